//! What the model keeps, and how it looks from outside.

use super::batches::Queue;
use crate::StoreError;
use crate::regrades;
use crate::rules::rfc3339;
use crate::signals::Stored;
use crate::weights::StoredUpdate;
use polar_types::{
    AttemptInfo, CallbackState, EngineWeights, Event, EventKind, Grading, LeftOut, NodeId,
    NodeInfo, Outcome, QueueName, RegradeInfo, RegradeOrder, SessionId, SessionInfo, SessionStatus,
    TaskId, TaskInfo, TaskSpec, TaskStatus,
};
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Clone, Default)]
pub(super) struct State {
    pub(super) tasks: BTreeMap<TaskId, Task>,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) events: Vec<Event>,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) callbacks: BTreeMap<String, OutboxEntry>,
    pub(super) queues: BTreeMap<QueueName, Queue>,
    pub(super) last_task: u64,
    pub(super) last_session: u64,
    pub(super) weights: Vec<Weights>,
    /// The place of the newest of them.
    pub(super) last_weights: u64,
    pub(super) stored: Stored,
}

/// An update, with since when each engine is how far with it.
#[derive(Clone)]
pub(super) struct Weights {
    pub(super) update: StoredUpdate,
    pub(super) engines: BTreeMap<(NodeId, String), (EngineWeights, i64)>,
}

#[derive(Clone)]
pub(super) struct Task {
    pub(super) spec: TaskSpec,
    pub(super) body_hash: String,
    pub(super) ordinal: u64,
    pub(super) status: TaskStatus,
    pub(super) cancel_requested: bool,
    /// The batch it is in, or with which it was left out.
    pub(super) batch: Option<(u64, Option<LeftOut>)>,
    pub(super) created_at: i64,
    pub(super) updated_at: i64,
}

impl Task {
    pub(super) fn is_over(&self) -> bool {
        self.status != TaskStatus::Running
    }

    /// Whether it has ended and is neither in a batch nor left out.
    pub(super) fn is_ready(&self) -> bool {
        self.is_over() && self.batch.is_none()
    }
}

#[derive(Clone)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) task: TaskId,
    pub(super) sample_index: u32,
    pub(super) runtime: String,
    pub(super) max_attempts: u32,
    pub(super) ordinal: u64,
    pub(super) status: SessionStatus,
    pub(super) waiting_for: Option<String>,
    pub(super) cancel_requested: bool,
    pub(super) cancel_why: Option<String>,
    pub(super) attempts: Vec<AttemptInfo>,
    pub(super) spent: u32,
    pub(super) lease: Option<Holder>,
    pub(super) deadline_at: i64,
    pub(super) available_at: Option<i64>,
    pub(super) outcome: Option<Outcome>,
    pub(super) reward: Option<f64>,
    pub(super) revision: u32,
    pub(super) gradings: Vec<Grading>,
    /// Set where only stored work is graded; then it is no session of its own.
    pub(super) regrade: Option<RegradeOrder>,
    pub(super) usable: bool,
    pub(super) created_at: i64,
    pub(super) updated_at: i64,
}

#[derive(Clone)]
pub(super) struct Holder {
    pub(super) node: NodeId,
    pub(super) boot_id: String,
    pub(super) since: i64,
    pub(super) expires_at: i64,
}

#[derive(Clone)]
pub(super) struct Node {
    pub(super) info: NodeInfo,
    pub(super) first_seen: i64,
    pub(super) last_seen: i64,
}

#[derive(Clone)]
pub(super) struct OutboxEntry {
    pub(super) event: Event,
    pub(super) state: CallbackState,
    pub(super) next_at: Option<i64>,
    pub(super) created_at: i64,
}

impl State {
    pub(super) fn find_task(&self, id: &TaskId) -> Result<&Task, StoreError> {
        self.tasks.get(id).ok_or_else(|| StoreError::not_found("task", id))
    }

    pub(super) fn find_session(&self, id: &SessionId) -> Result<&Session, StoreError> {
        let own = self.sessions.get(id).filter(|session| session.regrade.is_none());
        own.ok_or_else(|| StoreError::not_found("session", id))
    }

    /// By sample index.
    pub(super) fn sessions_of<'a>(&'a self, task: &'a TaskId) -> impl Iterator<Item = &'a Session> {
        self.rows_of(task).filter(|session| session.regrade.is_none())
    }

    /// The same with what grades their stored work again.
    pub(super) fn rows_of<'a>(&'a self, task: &'a TaskId) -> impl Iterator<Item = &'a Session> {
        let mut sessions: Vec<_> =
            self.sessions.values().filter(|session| session.task == *task).collect();
        sessions.sort_by_key(|session| session.sample_index);
        sessions.into_iter()
    }

    pub(super) fn leases_of<'a>(&'a self, node: &'a NodeId) -> impl Iterator<Item = &'a Session> {
        self.sessions.values().filter(|s| s.lease.as_ref().is_some_and(|held| held.node == *node))
    }

    pub(super) fn append(
        &mut self,
        now: i64,
        kind: EventKind,
        task: &TaskId,
        session: Option<&SessionId>,
        data: Value,
    ) -> Event {
        let event = Event {
            seq: self.events.len() as u64 + 1,
            at: rfc3339(now),
            kind,
            task_id: task.clone(),
            session_id: session.cloned(),
            data,
        };
        self.stored.last_event = Some(event.seq);
        self.events.push(event.clone());
        event
    }

    pub(super) fn task_info(&self, id: &TaskId) -> Result<TaskInfo, StoreError> {
        let task = self.find_task(id)?;
        let mut sessions: BTreeMap<String, u32> = BTreeMap::new();
        let mut rewards = Vec::new();
        for session in self.sessions_of(id) {
            *sessions.entry(session.status.as_str().to_owned()).or_default() += 1;
            rewards.extend(session.reward);
        }
        let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
        Ok(TaskInfo {
            task_id: id.clone(),
            status: task.status,
            harness: task.spec.harness.name.clone(),
            num_samples: task.spec.num_samples,
            queue: task.spec.queue.clone(),
            batch: task.batch.map(|(number, _)| number),
            left_out: task.batch.and_then(|(_, left_out)| left_out),
            sessions,
            mean_reward: (!rewards.is_empty()).then_some(mean),
            callback: self.callback_of(None, id),
            created_at: rfc3339(task.created_at),
            updated_at: rfc3339(task.updated_at),
            metadata: task.spec.metadata.clone(),
        })
    }

    pub(super) fn session_info(&self, session: &Session) -> SessionInfo {
        SessionInfo {
            session_id: session.id.clone(),
            task_id: session.task.clone(),
            group_id: (&session.task).into(),
            sample_index: session.sample_index,
            status: session.status,
            waiting_for: session.waiting_for.clone(),
            attempts: session.attempts.clone(),
            reward: session.reward,
            revision: session.revision,
            gradings: session.gradings.clone(),
            regrade: self.regrade_of(session),
            outcome: session.outcome.clone(),
            reason: None,
            reason_detail: None,
            callback: self.callback_of(Some(&session.id), &session.task),
            created_at: rfc3339(session.created_at),
            updated_at: rfc3339(session.updated_at),
        }
        .with_reason(session.cancel_why.clone())
    }

    /// The latest that was asked for.
    pub(super) fn regrades_of<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> impl Iterator<Item = &'a Session> {
        let of = |s: &&Session| s.regrade.as_ref().is_some_and(|order| order.session_id == *id);
        self.sessions.values().filter(of)
    }

    fn regrade_of(&self, session: &Session) -> Option<RegradeInfo> {
        let latest = self.regrades_of(&session.id).max_by_key(|regrade| regrade.revision)?;
        Some(regrades::info(
            session.id.clone(),
            latest.revision,
            latest.status,
            latest.waiting_for.clone(),
            latest.outcome.as_ref(),
        ))
    }

    fn callback_of(&self, session: Option<&SessionId>, task: &TaskId) -> Option<CallbackState> {
        let of = |entry: &&OutboxEntry| {
            let is_end = matches!(entry.event.kind, EventKind::SessionEnded | EventKind::TaskEnded);
            is_end && entry.event.task_id == *task && entry.event.session_id.as_ref() == session
        };
        self.callbacks.values().find(of).map(|entry| entry.state.clone())
    }
}
