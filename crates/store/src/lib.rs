//! The task store: what was asked for, who holds what, and how it ended.
//!
//! One trait, [`TaskStore`], with two implementations that one conformance suite and one
//! state-machine test hold to the same behaviour: [`SqliteStore`], which is durable, and
//! [`MemoryStore`], the model. A store owns every task, session, lease, event and due
//! callback; nothing else in Polar decides who holds a session.
//!
//! What it promises: a call that returned is durable; at most one node holds a session at
//! a time, fenced by an epoch; a result is accepted exactly once, together with its event
//! and its callback, in one transaction; events are numbered without gaps.
//!
//! What it must not do: read a clock (the caller passes the time), talk to a network, or
//! keep bulk data (that is the blob store's).

mod batches;
mod error;
mod filesystem;
mod memory;

mod regrades;
mod rules;
mod signals;
mod sqlite;
mod weights;

pub use error::{Conflict, StoreError};
pub use filesystem::refuse_network_filesystem;
pub use memory::MemoryStore;
pub use regrades::NewRegrade;

pub use signals::Signals;
pub use sqlite::SqliteStore;
pub use weights::PushedWeights;

use async_trait::async_trait;
use jiff::Timestamp;
use polar_types::{
    Batch, BatchAnswer, BatchRequest, CallbackFormat, Demand, Event, EventKind, EventPage, Lease,
    NodeInfo, NodeSeen, QueueInfo, QueueName, ReleaseRequest, RenewRequest, RenewResponse,
    ResultAck, SessionId, SessionInfo, SessionReport, SessionStatus, TaskId, TaskInfo, TaskPage,
    TaskSpec, TaskStatus, WeightReport, WeightTarget, WeightUpdate, WeightUpdateRequest,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Durable state of the rollout server. Times are truncated to milliseconds.
#[async_trait]
pub trait TaskStore: Send + Sync + 'static {
    /// Stores all tasks or, when one of them contradicts what is stored, none. A task whose
    /// id and body hash are already stored is answered with what is stored.
    async fn submit(
        &self,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> Result<Vec<Submitted>, StoreError>;

    /// Cancels a task. Queued sessions end at once; a node learns of the others with its
    /// next renewal, and has [`Limits::cancel_grace`] to report.
    async fn cancel(&self, task: &TaskId, now: Timestamp) -> Result<TaskInfo, StoreError>;

    /// Leases at most `free` queued sessions that a node can run: of the most urgent task, among
    /// tasks of one priority of that with the fewest leased sessions by its weight, then of the
    /// oldest. The first that the node lacks the room for ends it, so that smaller ones behind do
    /// not keep a large one from its turn for ever.
    async fn claim(
        &self,
        node: &NodeInfo,
        free: u32,
        now: Timestamp,
    ) -> Result<Claimed, StoreError>;

    /// Renews all leases of a node and takes note of where its sessions stand. Those that
    /// still wait on the node for a place get their time anew.
    async fn renew(
        &self,
        request: &RenewRequest,
        now: Timestamp,
    ) -> Result<RenewResponse, StoreError>;

    /// Takes the result of an attempt: exactly once, and only from the holder of the lease.
    async fn complete(
        &self,
        report: &SessionReport,
        now: Timestamp,
    ) -> Result<ResultAck, StoreError>;

    /// Queues sessions again that a draining node gives back. Returns those that were its own.
    async fn release(
        &self,
        request: &ReleaseRequest,
        now: Timestamp,
    ) -> Result<Vec<SessionId>, StoreError>;

    /// Ends what is past its deadline: leases not renewed, sessions held longer than their
    /// budgets allow, sessions that no node took. Wakes nodes for sessions whose pause before
    /// another attempt is over, and forgets nodes not heard of for long.
    async fn expire(&self, now: Timestamp) -> Result<Expired, StoreError>;

    /// Gives every live lease a fresh term, and moves the deadline of its session as far.
    /// Called when a server starts, so that the time it was away costs no node its
    /// sessions. Returns how many there are.
    async fn extend_leases(&self, now: Timestamp) -> Result<u64, StoreError>;

    /// One task.
    async fn task(&self, task: &TaskId) -> Result<TaskInfo, StoreError>;

    /// Has the stored work of sessions that have ended graded again: all of them, or none where one
    /// has not ended, or is being graded by another evaluator. One that is being graded by the
    /// same is left at that. Gives the sessions as they are then.
    async fn regrade(
        &self,
        regrades: Vec<NewRegrade>,
        now: Timestamp,
    ) -> Result<Vec<SessionInfo>, StoreError>;

    /// A task as it was checked.
    async fn spec(&self, task: &TaskId) -> Result<TaskSpec, StoreError>;

    /// What a task's sessions ask of nodes.
    async fn demand(&self, task: &TaskId) -> Result<Demand, StoreError>;

    /// Tasks, newest first.
    async fn tasks(&self, query: &TaskQuery) -> Result<TaskPage, StoreError>;

    /// The sessions of a task, by sample index.
    async fn sessions(&self, task: &TaskId) -> Result<Vec<SessionInfo>, StoreError>;

    /// One session.
    async fn session(&self, session: &SessionId) -> Result<SessionInfo, StoreError>;

    /// Events after a position, oldest first. With a filter, the page's cursor also moves
    /// past what the filter left out.
    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError>;

    /// How many sessions have not ended, by where they stand.
    async fn live(&self) -> Result<Live, StoreError>;

    /// Nodes that were heard of, by name.
    async fn nodes(&self, now: Timestamp) -> Result<Vec<NodeSeen>, StoreError>;

    /// Callbacks to be sent by now, those due longest first.
    async fn due_callbacks(
        &self,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<CallbackDue>, StoreError>;

    /// When the next pending callback is to be sent; `None` when there is none.
    async fn next_callback_at(&self) -> Result<Option<Timestamp>, StoreError>;

    /// Notes what became of one sending of a callback.
    async fn settle_callback(
        &self,
        callback_id: &str,
        result: CallbackResult,
    ) -> Result<(), StoreError>;

    /// The batch after the trainer's cursor: as it was given before, or made of what is ready when
    /// that is `enough` groups. Which are left out is kept either way.
    async fn next_batch(
        &self,
        request: &BatchRequest,
        enough: u32,
        now: Timestamp,
    ) -> Result<BatchAnswer, StoreError>;

    /// A batch that was made before, as it is now.
    async fn batch(&self, queue: &QueueName, number: u64) -> Result<Batch, StoreError>;

    /// Where a queue stands; one that nobody has named is empty.
    async fn queue(&self, queue: &QueueName) -> Result<QueueInfo, StoreError>;

    /// All queues, by name.
    async fn queues(&self) -> Result<Vec<QueueInfo>, StoreError>;

    /// Stores a weight update, the newest from then on. One whose version is stored with the same
    /// request is answered with what is stored.
    async fn push_weights(
        &self,
        request: WeightUpdateRequest,
        now: Timestamp,
    ) -> Result<PushedWeights, StoreError>;

    /// Takes note of how far a node's engines are with the update that it knows.
    async fn note_weights(&self, report: &WeightReport, now: Timestamp) -> Result<(), StoreError>;

    /// The newest weight update.
    async fn weight_target(&self) -> Result<Option<WeightTarget>, StoreError>;

    /// Weight updates, newest first, at most so many.
    async fn weight_updates(
        &self,
        limit: u32,
        now: Timestamp,
    ) -> Result<Vec<WeightUpdate>, StoreError>;

    /// The weight update of a version.
    async fn weight_update(
        &self,
        version: &str,
        now: Timestamp,
    ) -> Result<WeightUpdate, StoreError>;

    /// Tells of new events, of new work, of cancelled sessions and of weights.
    fn signals(&self) -> &Signals;

    /// Finishes what was begun and lets go of the file. Later calls fail.
    async fn close(&self);
}

/// Terms that leases and waits get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long a lease lives without a renewal.
    pub lease_ttl: Duration,
    /// How long a node may take to end a cancelled session.
    pub cancel_grace: Duration,
    /// How much longer than the sum of its budgets a node may hold a session that it has
    /// begun to run: waiting to be graded and handing over.
    pub overdue_slack: Duration,
    /// How long a session may wait for a node, and then on the node for a place.
    pub queue_limit: Duration,
    /// Pause before a failed attempt is tried again; four times as long after each further
    /// one, so that an engine that is down does not use up all attempts at once.
    pub retry_pause: Duration,
    /// Longest such pause.
    pub longest_retry_pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lease_ttl: Duration::from_secs(60),
            cancel_grace: Duration::from_secs(120),
            overdue_slack: Duration::from_secs(3600),
            queue_limit: Duration::from_secs(7 * 24 * 3600),
            retry_pause: Duration::from_secs(5),
            longest_retry_pause: Duration::from_secs(300),
        }
    }
}

/// A task to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// The checked task.
    pub spec: TaskSpec,
    /// Hash of the request it came from, apart from the id. Decides whether a repeated
    /// submission is the same task.
    pub body_hash: String,
}

/// Answer to one submitted task.
#[derive(Debug, Clone, PartialEq)]
pub struct Submitted {
    /// The task as stored.
    pub task: TaskInfo,
    /// Whether this submission stored it; false for a repeat.
    pub created: bool,
}

/// Sessions that have not ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Live {
    /// By status.
    pub by_status: BTreeMap<SessionStatus, u64>,
    /// Queued ones that pause before another attempt.
    pub paused: u64,
}

/// What [`TaskStore::expire`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expired {
    /// Sessions queued again.
    pub requeued: Vec<SessionId>,
    /// Sessions that came to their end.
    pub ended: Vec<SessionId>,
}

/// What [`TaskStore::claim`] gave.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Claimed {
    /// The sessions.
    pub leases: Vec<Lease>,
    /// Whether the next one was kept back because the node has no room for it now.
    pub lacks_room: bool,
}

/// Which tasks to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskQuery {
    /// Only those that stand so.
    pub status: Option<TaskStatus>,
    /// Only those with a harness of this name.
    pub harness: Option<String>,
    /// Only those older than this position; [`TaskPage::next_before`] of the page before.
    pub before: Option<u64>,
    /// At most so many.
    pub limit: u32,
}

impl Default for TaskQuery {
    fn default() -> Self {
        Self { status: None, harness: None, before: None, limit: 100 }
    }
}

/// Which events to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Position of the last event already read; 0 from the start.
    pub after: u64,
    /// At most so many.
    pub limit: u32,
    /// Only these kinds; all when empty.
    pub kinds: Vec<EventKind>,
    /// Only those of one task.
    pub task_id: Option<TaskId>,
}

/// A callback that is to be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct CallbackDue {
    /// The same for every sending of the same end, so that the receiver can tell repeats.
    pub callback_id: String,
    /// Where to.
    pub url: String,
    /// Key of the signature.
    pub secret: Option<String>,
    /// What is told.
    pub format: CallbackFormat,
    /// What it tells of.
    pub event: Event,
    /// Sendings so far.
    pub attempts: u32,
    /// When it was first due.
    pub created_at: Timestamp,
}

/// What became of one sending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallbackResult {
    /// Taken.
    Delivered,
    /// Not taken; to be sent again.
    Retry {
        /// When.
        at: Timestamp,
        /// What went wrong.
        error: String,
    },
    /// Not taken, and given up.
    Failed {
        /// What went wrong.
        error: String,
    },
}
