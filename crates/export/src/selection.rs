//! Which traces become rows.

use crate::{Counts, ExportError, LeftOut, Row};
use polar_trajectory::unroll;
use polar_types::{CallRole, EndReason, GroupId, Trace, Trajectory};
use sha2::{Digest, Sha256};
use std::collections::HashSet;

/// Which of two files a group's rows go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// To train on.
    Train,
    /// Held out.
    Test,
}

/// Which traces are asked for; all where nothing is said.
#[derive(Debug, Clone, Default)]
pub struct Filters {
    /// Sessions that ended so; all when empty.
    pub reasons: Vec<EndReason>,
    /// Traces of these roles; all when empty.
    pub roles: Vec<CallRole>,
    /// Smallest reward.
    pub min_reward: Option<f64>,
    /// Largest reward.
    pub max_reward: Option<f64>,
    /// Most tokens, of prompt and response together.
    pub max_tokens: Option<u64>,
    /// Whether rows with the same tokens and mask as one before are left out.
    pub dedupe: bool,
    /// Share of the groups that are held out.
    pub held_out: f64,
}

/// Takes what is asked for, and counts that and what it leaves out.
#[derive(Debug, Default)]
pub struct Selection {
    filters: Filters,
    seen: HashSet<[u8; 32]>,
    counts: Counts,
}

impl Selection {
    /// By these filters.
    pub fn by(filters: Filters) -> Self {
        Self { filters, ..Self::default() }
    }

    /// What became of all that was read so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Gives each trace of a session that is asked for to `take`, with the side its group is on.
    pub fn of_session(
        &mut self,
        trajectory: &Trajectory,
        mut take: impl FnMut(Row<'_>, Side) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let traces = unroll(trajectory).map_err(|violation| ExportError::Broken {
            session: trajectory.session_id.to_string(),
            what: violation.to_string(),
        })?;
        self.counts.sessions += 1;
        self.counts.trained_in_all += trajectory.tokens.trained;
        let side = self.side(&trajectory.group_id);
        for (index, trace) in traces.iter().enumerate() {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let row = Row { trajectory, trace, index };
            match self.reason_against(trajectory, trace, row.trained()) {
                Some(reason) => {
                    *self.counts.left_out.entry(reason).or_default() += 1;
                    self.counts.trained_left_out += row.trained();
                }
                None => {
                    take(row, side)?;
                    self.counts.rows += 1;
                    self.counts.trained += row.trained();
                }
            }
        }
        Ok(())
    }

    /// The same for all sessions of a group, in every run: by the hash of its id alone.
    fn side(&self, group: &GroupId) -> Side {
        let hash = Sha256::digest(group.as_str());
        let head: [u8; 4] = [hash[0], hash[1], hash[2], hash[3]];
        let place = f64::from(u32::from_be_bytes(head)) / (f64::from(u32::MAX) + 1.0);
        if place < self.filters.held_out { Side::Test } else { Side::Train }
    }

    fn reason_against(
        &mut self,
        trajectory: &Trajectory,
        trace: &Trace,
        trained: u64,
    ) -> Option<LeftOut> {
        let filters = &self.filters;
        let reason = trajectory.reason;
        let has_status = reason.is_some_and(|reason| filters.reasons.contains(&reason));
        if !filters.reasons.is_empty() && !has_status {
            return Some(LeftOut::Status);
        }
        if !filters.roles.is_empty() && !filters.roles.contains(&trace.lineage.role) {
            return Some(LeftOut::Role);
        }
        if filters.min_reward.is_some() || filters.max_reward.is_some() {
            let Some(reward) = trace.reward else { return Some(LeftOut::NoReward) };
            let low = filters.min_reward.is_some_and(|least| reward < least);
            let high = filters.max_reward.is_some_and(|most| reward > most);
            if low || high {
                return Some(LeftOut::Reward);
            }
        }
        let tokens = (trace.prompt_ids.len() + trace.response_ids.len()) as u64;
        if filters.max_tokens.is_some_and(|most| tokens > most) {
            return Some(LeftOut::TooLong);
        }
        if trained == 0 {
            return Some(LeftOut::NothingTrained);
        }
        if filters.dedupe && !self.seen.insert(fingerprint(trace)) {
            return Some(LeftOut::Duplicate);
        }
        None
    }
}

/// Of what would be trained: the tokens and which of them.
fn fingerprint(trace: &Trace) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update((trace.prompt_ids.len() as u64).to_le_bytes());
    for id in trace.prompt_ids.iter().chain(&trace.response_ids) {
        hash.update(id.to_le_bytes());
    }
    hash.update(&trace.loss_mask);
    hash.finalize().into()
}
