//! The model: the same store as plain maps behind one lock. It is what the durable store is
//! compared with, so it is written for being read, not for speed, and it shares only the
//! decisions of `rules` and `batches` with it.

mod batches;
mod lifecycle;
mod regrades;
mod state;
mod weights;

use crate::rules::{millis, plus, rfc3339, timestamp};
use crate::signals::Stored;
use crate::{
    CallbackDue, CallbackResult, Claimed, EventQuery, Expired, Limits, Live, NewRegrade, NewTask,
    PushedWeights, Signals, StoreError, Submitted, TaskQuery, TaskStore,
};
use async_trait::async_trait;
use jiff::Timestamp;
use polar_types::{
    Batch, BatchAnswer, BatchRequest, CallbackState, CallbackStatus, Demand, EventPage, NodeInfo,
    NodeSeen, QueueInfo, QueueName, ReleaseRequest, RenewRequest, RenewResponse, ResultAck,
    SessionId, SessionInfo, SessionReport, TaskId, TaskInfo, TaskPage, TaskSpec, WeightReport,
    WeightTarget, WeightUpdate, WeightUpdateRequest,
};
use state::State;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A task store that forgets everything when it is dropped.
pub struct MemoryStore {
    /// `None` once closed.
    state: Mutex<Option<State>>,
    limits: Limits,
    signals: Signals,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(limits: Limits) -> Self {
        Self { state: Mutex::new(Some(State::default())), limits, signals: Signals::new(0) }
    }

    fn locked(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> Result<T, StoreError>) -> Result<T, StoreError> {
        read(self.locked().as_ref().ok_or(StoreError::Closed)?)
    }

    /// Applies a write to a copy, which becomes the state only when nothing failed.
    fn write<T>(
        &self,
        write: impl FnOnce(&mut State, &Limits) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut held = self.locked();
        let state = held.as_mut().ok_or(StoreError::Closed)?;
        let mut next = state.clone();
        next.stored = Stored::default();
        let answer = write(&mut next, &self.limits)?;
        let stored = next.stored;
        *state = next;
        drop(held);
        self.signals.tell(stored);
        Ok(answer)
    }
}

#[async_trait]
impl TaskStore for MemoryStore {
    async fn submit(
        &self,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> Result<Vec<Submitted>, StoreError> {
        self.write(|state, limits| {
            tasks.into_iter().map(|task| state.submit(task, limits, millis(now))).collect()
        })
    }

    async fn cancel(&self, task: &TaskId, now: Timestamp) -> Result<TaskInfo, StoreError> {
        self.write(|state, limits| state.cancel(task, limits, millis(now)))
    }

    async fn claim(
        &self,
        node: &NodeInfo,
        free: u32,
        now: Timestamp,
    ) -> Result<Claimed, StoreError> {
        self.write(|state, limits| state.claim(node, free, limits, millis(now)))
    }

    async fn renew(
        &self,
        request: &RenewRequest,
        now: Timestamp,
    ) -> Result<RenewResponse, StoreError> {
        self.write(|state, limits| state.renew(request, limits, millis(now)))
    }

    async fn complete(
        &self,
        report: &SessionReport,
        now: Timestamp,
    ) -> Result<ResultAck, StoreError> {
        self.write(|state, limits| state.complete(report, limits, millis(now)))
    }

    async fn release(
        &self,
        request: &ReleaseRequest,
        now: Timestamp,
    ) -> Result<Vec<SessionId>, StoreError> {
        self.write(|state, limits| Ok(state.release(request, limits, millis(now))))
    }

    async fn expire(&self, now: Timestamp) -> Result<Expired, StoreError> {
        self.write(|state, limits| Ok(state.expire(limits, millis(now))))
    }

    async fn extend_leases(&self, now: Timestamp) -> Result<u64, StoreError> {
        self.write(|state, limits| Ok(state.extend_leases(limits, millis(now))))
    }

    async fn task(&self, task: &TaskId) -> Result<TaskInfo, StoreError> {
        self.read(|state| state.task_info(task))
    }

    async fn regrade(
        &self,
        regrades: Vec<NewRegrade>,
        now: Timestamp,
    ) -> Result<Vec<SessionInfo>, StoreError> {
        self.write(|state, limits| {
            regrades.iter().map(|new| state.regrade(new, limits, millis(now))).collect()
        })
    }

    async fn spec(&self, task: &TaskId) -> Result<TaskSpec, StoreError> {
        self.read(|state| Ok(state.find_task(task)?.spec.clone()))
    }

    async fn demand(&self, task: &TaskId) -> Result<Demand, StoreError> {
        self.read(|state| Ok(Demand::of(&state.find_task(task)?.spec)))
    }

    async fn tasks(&self, query: &TaskQuery) -> Result<TaskPage, StoreError> {
        self.read(|state| {
            let mut found: Vec<_> = state
                .tasks
                .values()
                .filter(|task| query.before.is_none_or(|before| task.ordinal < before))
                .filter(|task| query.status.is_none_or(|status| task.status == status))
                .filter(|task| query.harness.as_ref().is_none_or(|h| task.spec.harness.name == *h))
                .collect();
            found.sort_by_key(|task| std::cmp::Reverse(task.ordinal));
            found.truncate(query.limit as usize);
            let full = found.len() == query.limit as usize;
            let next_before = found.last().filter(|_| full).map(|task| task.ordinal);
            let tasks = found
                .iter()
                .map(|task| state.task_info(&task.spec.task_id))
                .collect::<Result<_, _>>()?;
            Ok(TaskPage { tasks, next_before })
        })
    }

    async fn sessions(&self, task: &TaskId) -> Result<Vec<SessionInfo>, StoreError> {
        self.read(|state| {
            state.find_task(task)?;
            Ok(state.sessions_of(task).map(|session| state.session_info(session)).collect())
        })
    }

    async fn session(&self, session: &SessionId) -> Result<SessionInfo, StoreError> {
        self.read(|state| Ok(state.session_info(state.find_session(session)?)))
    }

    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        self.read(|state| {
            let events: Vec<_> = state
                .events
                .iter()
                .filter(|event| event.seq > query.after)
                .filter(|event| query.kinds.is_empty() || query.kinds.contains(&event.kind))
                .filter(|event| query.task_id.as_ref().is_none_or(|id| event.task_id == *id))
                .take(query.limit as usize)
                .cloned()
                .collect();
            let full = events.len() == query.limit as usize;
            let cursor = match events.last().filter(|_| full) {
                Some(last) => last.seq,
                None => query.after.max(state.events.len() as u64),
            };
            Ok(EventPage { events, cursor })
        })
    }

    async fn live(&self) -> Result<Live, StoreError> {
        self.read(|state| {
            let mut live = Live::default();
            for session in state.sessions.values().filter(|s| !s.status.is_terminal()) {
                *live.by_status.entry(session.status).or_default() += 1;
                live.paused += u64::from(session.available_at.is_some());
            }
            Ok(live)
        })
    }

    async fn nodes(&self, now: Timestamp) -> Result<Vec<NodeSeen>, StoreError> {
        self.read(|state| {
            let seen = state.nodes.values().map(|node| NodeSeen {
                node: node.info.clone(),
                leased: state.leases_of(&node.info.node_id).count() as u32,
                first_seen_at: rfc3339(node.first_seen),
                last_seen_at: rfc3339(node.last_seen),
                alive: plus(node.last_seen, self.limits.lease_ttl) > millis(now),
            });
            Ok(seen.collect())
        })
    }

    async fn due_callbacks(
        &self,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<CallbackDue>, StoreError> {
        self.read(|state| {
            let mut due: Vec<_> = state
                .callbacks
                .iter()
                .filter(|(_, callback)| callback.next_at.is_some_and(|at| at <= millis(now)))
                .collect();
            due.sort_by_key(|(_, callback)| (callback.next_at, callback.event.seq));
            due.into_iter()
                .take(limit as usize)
                .map(|(id, callback)| {
                    let task = state.find_task(&callback.event.task_id)?;
                    let target = task.spec.callback.clone();
                    let target = target.ok_or_else(|| StoreError::not_found("callback", id))?;
                    Ok(CallbackDue {
                        callback_id: id.clone(),
                        url: target.url,
                        secret: target.secret,
                        format: target.format,
                        event: callback.event.clone(),
                        attempts: callback.state.attempts,
                        created_at: timestamp(callback.created_at),
                    })
                })
                .collect()
        })
    }

    async fn next_callback_at(&self) -> Result<Option<Timestamp>, StoreError> {
        self.read(|state| {
            Ok(state.callbacks.values().filter_map(|c| c.next_at).min().map(timestamp))
        })
    }

    async fn settle_callback(
        &self,
        callback_id: &str,
        result: CallbackResult,
    ) -> Result<(), StoreError> {
        self.write(|state, _| {
            let callback = state
                .callbacks
                .get_mut(callback_id)
                .filter(|callback| callback.state.status == CallbackStatus::Pending)
                .ok_or_else(|| StoreError::not_found("pending callback", callback_id))?;
            let (status, next_at, error) = match result {
                CallbackResult::Delivered => (CallbackStatus::Delivered, None, None),
                CallbackResult::Retry { at, error } => {
                    (CallbackStatus::Pending, Some(millis(at)), Some(error))
                }
                CallbackResult::Failed { error } => (CallbackStatus::Failed, None, Some(error)),
            };
            callback.next_at = next_at;
            callback.state = CallbackState { status, attempts: callback.state.attempts + 1, error };
            Ok(())
        })
    }

    async fn next_batch(
        &self,
        request: &BatchRequest,
        enough: u32,
        now: Timestamp,
    ) -> Result<BatchAnswer, StoreError> {
        self.write(|state, limits| state.next_batch(request, enough, limits, millis(now)))
    }

    async fn batch(&self, queue: &QueueName, number: u64) -> Result<Batch, StoreError> {
        self.read(|state| state.batch(queue, number))
    }

    async fn queue(&self, queue: &QueueName) -> Result<QueueInfo, StoreError> {
        self.read(|state| Ok(state.queue_info(queue)))
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>, StoreError> {
        self.read(|state| Ok(state.queue_infos()))
    }

    async fn push_weights(
        &self,
        request: WeightUpdateRequest,
        now: Timestamp,
    ) -> Result<PushedWeights, StoreError> {
        self.write(|state, limits| state.push_weights(request, limits, millis(now)))
    }

    async fn note_weights(&self, report: &WeightReport, now: Timestamp) -> Result<(), StoreError> {
        self.write(|state, limits| {
            state.note_weights(report, limits, millis(now));
            Ok(())
        })
    }

    async fn weight_target(&self) -> Result<Option<WeightTarget>, StoreError> {
        self.read(|state| Ok(state.weight_target()))
    }

    async fn weight_updates(
        &self,
        limit: u32,
        now: Timestamp,
    ) -> Result<Vec<WeightUpdate>, StoreError> {
        self.read(|state| Ok(state.weight_updates(limit, &self.limits, millis(now))))
    }

    async fn weight_update(
        &self,
        version: &str,
        now: Timestamp,
    ) -> Result<WeightUpdate, StoreError> {
        self.read(|state| state.weight_update(version, &self.limits, millis(now)))
    }

    fn signals(&self) -> &Signals {
        &self.signals
    }

    async fn close(&self) {
        self.locked().take();
    }
}
