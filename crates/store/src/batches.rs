//! Which groups go into a batch, apart from where they are kept.
//!
//! A store offers groups to a [`Plan`], first those that the batch has already and then those
//! that are ready, oldest first, and does what the [`Decision`] says in one transaction.

use crate::StoreError;
use polar_types::{
    Artifact, BatchGroup, BatchRequest, BatchSession, EarlyStopInfo, EqualRewards, GroupId,
    LeftOut, SessionInfo, SessionReport, SessionStatus, TaskId, TaskInfo, TaskStatus,
};
use std::collections::HashMap;

/// Name of the file that holds a session's trajectory.
const TRAJECTORY: &str = "trajectory.json";
/// Name of the one with its arrays.
const ARRAYS: &str = "trajectory.safetensors";

/// A group that has ended.
pub(crate) struct Candidate {
    pub(crate) task_id: TaskId,
    /// Its place among all tasks.
    pub(crate) ordinal: u64,
    /// Its task was cancelled by the client.
    pub(crate) cancelled: bool,
    pub(crate) metadata: serde_json::Map<String, serde_json::Value>,
    pub(crate) sessions: Vec<BatchSession>,
}

impl Candidate {
    pub(crate) fn new(task: &TaskInfo, ordinal: u64, sessions: &[SessionInfo]) -> Self {
        Self {
            task_id: task.task_id.clone(),
            ordinal,
            cancelled: task.status == TaskStatus::Cancelled,
            metadata: task.metadata.clone(),
            sessions: sessions.iter().map(batch_session).collect(),
        }
    }

    /// As it is shown, told against a version.
    pub(crate) fn into_group(self, version: Option<&str>, versions: &Versions) -> BatchGroup {
        let usable = || self.sessions.iter().filter(|session| session.usable);
        let rewards: Vec<f64> = usable().filter_map(|session| session.reward).collect();
        let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
        BatchGroup {
            staleness: version.and_then(|version| self.staleness(version, versions)),
            mean_reward: (!rewards.is_empty()).then_some(mean),
            early_stop: if self.cancelled { None } else { early_stop(&self.sessions) },
            group_id: GroupId::from(&self.task_id),
            task_id: self.task_id,
            sessions: self.sessions,
            metadata: self.metadata,
        }
    }

    /// Versions that its oldest token is behind; `None` where that cannot be told.
    fn staleness(&self, current: &str, versions: &Versions) -> Option<u64> {
        let mut most = None;
        for session in self.sessions.iter().filter(|session| session.usable) {
            if session.weight_versions.is_empty() {
                return None;
            }
            for version in &session.weight_versions {
                most = most.max(Some(versions.behind(current, version)?));
            }
        }
        most
    }

    /// Whether it would be left out as stale however it ends.
    pub(crate) fn is_too_stale(&self, request: &BatchRequest, versions: &Versions) -> bool {
        let asked = request.version.as_deref().zip(request.max_staleness);
        let Some((current, most)) = asked else { return false };
        self.staleness(current, versions).is_some_and(|behind| behind > most)
    }

    fn judge(&self, request: &BatchRequest, versions: &Versions) -> Result<(), Unfit> {
        if self.cancelled {
            return Err(Unfit::LeftOut(LeftOut::Cancelled));
        }
        let usable = || self.sessions.iter().filter(|session| session.usable);
        if usable().count() < request.min_usable as usize {
            return Err(Unfit::LeftOut(LeftOut::TooFewUsable));
        }
        let mut rewards = usable().map(|session| session.reward);
        let first = rewards.next();
        if request.equal_rewards == EqualRewards::LeaveOut
            && rewards.all(|reward| Some(reward) == first)
        {
            return Err(Unfit::LeftOut(LeftOut::EqualRewards));
        }
        match (request.version.as_deref(), request.max_staleness) {
            (Some(current), Some(most)) => match self.staleness(current, versions) {
                None => Err(Unfit::HeldBack),
                Some(behind) if behind > most => Err(Unfit::LeftOut(LeftOut::Stale)),
                Some(_) => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

/// Why a group is not taken.
enum Unfit {
    /// It is in no batch.
    LeftOut(LeftOut),
    /// It cannot be told how old it is, and may be another time.
    HeldBack,
}

/// Weight versions by how many there were before them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Versions(HashMap<String, u64>);

/// A version that was asked for.
pub(crate) struct AskedVersion {
    pub(crate) version: String,
    pub(crate) ordinal: u64,
    /// An engine has loaded it, or may have.
    pub(crate) reached: bool,
}

impl Versions {
    /// Those that no engine was given sampled nothing, and take none further back.
    pub(crate) fn new(mut asked: Vec<AskedVersion>) -> Self {
        asked.sort_by_key(|asked| asked.ordinal);
        let mut before = 0;
        let places = asked.into_iter().map(|asked| {
            let place = before + 1;
            before += u64::from(asked.reached);
            (asked.version, place)
        });
        Self(places.collect())
    }

    /// How many versions a sampled token is behind. Versions that nobody asked for are compared
    /// where they are numbers; else they are what engines had before the first one that was.
    fn behind(&self, current: &str, sampled: &str) -> Option<u64> {
        if current == sampled {
            return Some(0);
        }
        let numbers = || current.parse::<u64>().ok().zip(sampled.parse::<u64>().ok());
        let (current, sampled) = match (self.0.get(current), self.0.get(sampled)) {
            (Some(current), Some(sampled)) => (*current, *sampled),
            (Some(current), None) => numbers().unwrap_or((*current, 0)),
            (None, _) => numbers()?,
        };
        Some(current.saturating_sub(sampled))
    }

    /// Refuses a version of the trainer's that cannot be one: not asked for, where others were.
    fn check(&self, current: &str) -> Result<(), StoreError> {
        let newest = self.0.iter().max_by_key(|(_, place)| **place);
        match newest {
            Some((newest, _))
                if !self.0.contains_key(current) && current.parse::<u64>().is_err() =>
            {
                let field = ("version", "was never pushed to /api/weights", format!("{newest:?}"));
                Err(StoreError::conflict_in(
                    field,
                    format!(
                        "`version` {current:?} was never pushed to /api/weights; the newest is \
                         {newest:?}"
                    ),
                ))
            }
            _ => Ok(()),
        }
    }
}

fn batch_session(info: &SessionInfo) -> BatchSession {
    let report = info.report();
    let ended_so = |report: &&SessionReport| {
        info.outcome.as_ref().is_some_and(|outcome| *outcome == report.outcome)
    };
    BatchSession {
        session_id: info.session_id.clone(),
        sample_index: info.sample_index,
        status: info.status,
        reason: info.reason,
        usable: report.filter(ended_so).is_some_and(SessionReport::is_usable),
        reward: info.reward,
        traces: report.map_or(0, |report| report.traces),
        tokens: report.map(|report| report.tokens.clone()).unwrap_or_default(),
        weight_versions: report.map(|r| r.weight_versions.clone()).unwrap_or_default(),
        hack_labels: report.map(|report| report.hack_labels.clone()).unwrap_or_default(),
        trajectory: report.and_then(|report| named(&report.artifacts, TRAJECTORY)),
        arrays: report.and_then(|report| named(&report.artifacts, ARRAYS)),
    }
}

fn named(artifacts: &[Artifact], name: &str) -> Option<Artifact> {
    artifacts.iter().find(|artifact| artifact.name == name).cloned()
}

/// What was cancelled in a group that nobody cancelled.
fn early_stop(sessions: &[BatchSession]) -> Option<EarlyStopInfo> {
    let is_cancelled = |session: &&BatchSession| session.status == SessionStatus::Cancelled;
    let cancelled = sessions.iter().filter(is_cancelled).count();
    let begun = sessions.iter().filter(is_cancelled).filter(|session| session.tokens.sampled > 0);
    let usable = sessions.iter().filter(|session| session.usable);
    (cancelled > 0).then(|| EarlyStopInfo {
        cancelled: u32::try_from(cancelled).unwrap_or(u32::MAX),
        usable_mean_tokens: mean_tokens(usable).unwrap_or_default(),
        cancelled_mean_tokens: mean_tokens(begun),
    })
}

fn mean_tokens<'a>(sessions: impl Iterator<Item = &'a BatchSession>) -> Option<f64> {
    let tokens: Vec<f64> = sessions.map(|session| session.tokens.sampled as f64).collect();
    (!tokens.is_empty()).then(|| tokens.iter().sum::<f64>() / tokens.len() as f64)
}

/// What is kept of a batch that was begun before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Begun {
    /// It was given, and nothing was taken out of it since.
    pub(crate) settled: bool,
}

/// The making of one batch.
pub(crate) struct Plan<'a> {
    request: &'a BatchRequest,
    versions: &'a Versions,
    /// Number of the batch.
    pub(crate) number: u64,
    /// The batch is not the newest: it is given as it was.
    is_past: bool,
    begun: Option<Begun>,
    kept: Vec<Candidate>,
    taken: Vec<Candidate>,
    left_out: Vec<(TaskId, LeftOut)>,
    /// Ready groups whose staleness cannot be told: they stay where they are.
    pub(crate) held_back: u64,
}

/// What to store, and what to answer.
pub(crate) struct Decision {
    /// Groups of the batch, oldest first; none when there are not enough.
    pub(crate) groups: Option<Vec<Candidate>>,
    /// Groups that are new in it.
    pub(crate) taken: Vec<TaskId>,
    /// Groups that are not in it, and in no later one.
    pub(crate) left_out: Vec<(TaskId, LeftOut)>,
}

impl<'a> Plan<'a> {
    /// Of the batch after the cursor, where the queue's last batch is `last`. `filled` is the first
    /// one between them that has groups: those that lost all theirs are passed over.
    pub(crate) fn new(
        request: &'a BatchRequest,
        versions: &'a Versions,
        last: u64,
        filled: Option<u64>,
    ) -> Result<Self, StoreError> {
        let BatchRequest { queue, after, .. } = request;
        if *after > last {
            let field = ("after", format!("must be at most {last}"), last.to_string());
            return Err(StoreError::conflict_in(
                field,
                format!(
                    "queue {queue} has given {last} batches, so that `after` cannot be {after}; \
                     pass the number of the last batch that the trainer is done with, or 0"
                ),
            ));
        }
        if let Some(version) = &request.version {
            versions.check(version)?;
        }
        let number = filled.unwrap_or(if *after < last { last } else { after + 1 });
        let is_past = number < last;
        if is_past && !request.reject.is_empty() {
            let field = ("reject", "takes nothing out of a batch that is not the newest", "[]");
            return Err(StoreError::conflict_in(
                field,
                format!(
                    "batch {number} of queue {queue} is not its newest, {last}, so that no group \
                     of it can be rejected; leave out `reject`"
                ),
            ));
        }
        let (kept, taken, left_out) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self {
            request,
            versions,
            number,
            is_past,
            begun: None,
            kept,
            taken,
            left_out,
            held_back: 0,
        })
    }

    /// Of what was begun before: the groups it has, oldest first, and those that were taken out of
    /// it or left out while it was made.
    pub(crate) fn go_on(
        &mut self,
        begun: Begun,
        groups: Vec<Candidate>,
        out: &[TaskId],
    ) -> Result<(), StoreError> {
        self.begun = Some(begun);
        let is_known =
            |task: &TaskId| out.contains(task) || groups.iter().any(|group| group.task_id == *task);
        if let Some(stranger) = self.request.reject.iter().find(|task| !is_known(task)) {
            let (number, queue) = (self.number, &self.request.queue);
            let problem = format!("{stranger} is not in batch {number}");
            return Err(StoreError::conflict_in(
                ("reject", problem, "[]"),
                format!(
                    "`reject` names {stranger}, which is not in batch {number} of queue {queue}; \
                     name groups of the batch after `after`"
                ),
            ));
        }
        for group in groups {
            match self.judge_again(&group) {
                Ok(()) => self.kept.push(group),
                Err(reason) => self.left_out.push((group.task_id, reason)),
            }
        }
        Ok(())
    }

    fn judge_again(&self, group: &Candidate) -> Result<(), LeftOut> {
        if self.is_past {
            return Ok(());
        }
        if self.request.reject.contains(&group.task_id) {
            return Err(LeftOut::Rejected);
        }
        // What it was taken for holds; only time has passed.
        match group.judge(self.request, self.versions) {
            Err(Unfit::LeftOut(LeftOut::Stale)) => Err(LeftOut::Stale),
            _ => Ok(()),
        }
    }

    /// Whether it is given as it is.
    fn stands(&self) -> bool {
        let settled = self.begun.is_some_and(|begun| begun.settled);
        self.is_past || (settled && self.left_out.is_empty() && !self.kept.is_empty())
    }

    /// Whether ready groups are to be offered.
    pub(crate) fn wants_more(&self) -> bool {
        !self.stands() && self.kept.len() + self.taken.len() < self.request.groups as usize
    }

    /// Offers a group that is ready.
    pub(crate) fn offer(&mut self, group: Candidate) {
        match group.judge(self.request, self.versions) {
            Ok(()) => self.taken.push(group),
            Err(Unfit::HeldBack) => self.held_back += 1,
            Err(Unfit::LeftOut(reason)) => self.left_out.push((group.task_id, reason)),
        }
    }

    /// What comes of it, where so many groups are enough.
    pub(crate) fn decide(self, enough: u32) -> Decision {
        let stands = self.stands();
        let is_enough = stands || self.kept.len() + self.taken.len() >= enough.max(1) as usize;
        let taken = if is_enough { self.taken } else { Vec::new() };
        let ids = taken.iter().map(|group| group.task_id.clone()).collect();
        let mut groups: Vec<Candidate> = self.kept.into_iter().chain(taken).collect();
        groups.sort_by_key(|group| group.ordinal);
        Decision { groups: is_enough.then_some(groups), taken: ids, left_out: self.left_out }
    }
}
