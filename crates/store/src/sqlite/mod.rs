//! The store in one SQLite file: WAL, every commit on disk before it is answered, one
//! writer, readers beside it.
//!
//! What only SQLite needs is in this folder; statements keep to what PostgreSQL shares.

mod batches;
mod callbacks;
mod ending;
mod events;
mod lease;
mod lock;
mod private;
mod read;
mod regrades;
mod rows;
mod schema;
mod submit;
mod turns;
mod weights;
mod writer;

use crate::rules::{millis, timestamp};
use crate::{
    CallbackDue, CallbackResult, Claimed, EventQuery, Expired, Limits, Live, NewRegrade, NewTask,
    PushedWeights, Signals, StoreError, Submitted, TaskQuery, TaskStore, refuse_network_filesystem,
};
use async_trait::async_trait;
use jiff::Timestamp;
use lock::Lock;
use polar_types::{
    Batch, BatchAnswer, BatchRequest, Demand, EventPage, NodeInfo, NodeSeen, QueueInfo, QueueName,
    ReleaseRequest, RenewRequest, RenewResponse, ResultAck, SessionId, SessionInfo, SessionReport,
    TaskId, TaskInfo, TaskPage, TaskSpec, WeightReport, WeightTarget, WeightUpdate,
    WeightUpdateRequest,
};
use rows::backend;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Sqlite, Transaction};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use writer::{Write, Writer};

/// Connections for readers.
const READERS: u32 = 4;

/// The durable task store.
pub struct SqliteStore {
    /// Absent once closed.
    writer: Mutex<Option<Open>>,
    readers: SqlitePool,
    limits: Limits,
    signals: Arc<Signals>,
}

struct Open {
    writer: Writer,
    task: JoinHandle<()>,
}

impl SqliteStore {
    /// Opens or makes the database at `path`, for this user alone. Fails when another process has it, when it was
    /// written by a newer version, or when it lies on a network file system.
    pub async fn open(path: &Path, limits: Limits) -> Result<Self, StoreError> {
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        private::make_folder(folder)?;
        refuse_network_filesystem(folder)?;
        let lock = Lock::take(path)?;
        private::make_files(path)?;

        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            // A file of SQLite's own in the temporary folder outlives a process that is
            // killed between making and unlinking it.
            .pragma("temp_store", "MEMORY")
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(10));
        let mut db = writer::connect(&options.clone().optimize_on_close(true, None)).await?;
        schema::migrate(&mut db, path).await?;
        let signals = Arc::new(Signals::new(read::last_event(&mut db).await?));
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .connect_with(options.pragma("query_only", "ON"))
            .await
            .map_err(backend)?;
        let (writer, task) = Writer::start(db, lock, limits, Arc::clone(&signals));
        let writer = Mutex::new(Some(Open { writer, task }));
        Ok(Self { writer, readers, limits, signals })
    }

    async fn write<W: Write>(&self, write: W) -> Result<W::Answer, StoreError> {
        let writer = self.writer.lock().await.as_ref().map(|open| open.writer.clone());
        writer.ok_or(StoreError::Closed)?.write(write).await
    }

    /// A snapshot to read from.
    async fn snapshot(&self) -> Result<Transaction<'_, Sqlite>, StoreError> {
        self.readers.begin().await.map_err(|error| match error {
            sqlx::Error::PoolClosed => StoreError::Closed,
            other => backend(other),
        })
    }
}

#[async_trait]
impl TaskStore for SqliteStore {
    async fn submit(
        &self,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> Result<Vec<Submitted>, StoreError> {
        self.write(submit::Submit { tasks, now: millis(now) }).await
    }

    async fn cancel(&self, task: &TaskId, now: Timestamp) -> Result<TaskInfo, StoreError> {
        self.write(submit::Cancel { task: task.clone(), now: millis(now) }).await
    }

    async fn claim(
        &self,
        node: &NodeInfo,
        free: u32,
        now: Timestamp,
    ) -> Result<Claimed, StoreError> {
        self.write(lease::Claim { node: node.clone(), free, now: millis(now) }).await
    }

    async fn renew(
        &self,
        request: &RenewRequest,
        now: Timestamp,
    ) -> Result<RenewResponse, StoreError> {
        self.write(lease::Renew { request: request.clone(), now: millis(now) }).await
    }

    async fn complete(
        &self,
        report: &SessionReport,
        now: Timestamp,
    ) -> Result<ResultAck, StoreError> {
        self.write(ending::Complete { report: report.clone(), now: millis(now) }).await
    }

    async fn release(
        &self,
        request: &ReleaseRequest,
        now: Timestamp,
    ) -> Result<Vec<SessionId>, StoreError> {
        self.write(ending::Release { request: request.clone(), now: millis(now) }).await
    }

    async fn expire(&self, now: Timestamp) -> Result<Expired, StoreError> {
        self.write(ending::Expire { now: millis(now) }).await
    }

    async fn extend_leases(&self, now: Timestamp) -> Result<u64, StoreError> {
        self.write(lease::ExtendLeases { now: millis(now) }).await
    }

    async fn task(&self, task: &TaskId) -> Result<TaskInfo, StoreError> {
        read::task(&mut *self.snapshot().await?, task).await
    }

    async fn regrade(
        &self,
        regrades: Vec<NewRegrade>,
        now: Timestamp,
    ) -> Result<Vec<SessionInfo>, StoreError> {
        self.write(regrades::Regrade { regrades, now: millis(now) }).await
    }

    async fn spec(&self, task: &TaskId) -> Result<TaskSpec, StoreError> {
        read::spec(&mut *self.snapshot().await?, task).await
    }

    async fn demand(&self, task: &TaskId) -> Result<Demand, StoreError> {
        read::demand(&mut *self.snapshot().await?, task).await
    }

    async fn tasks(&self, query: &TaskQuery) -> Result<TaskPage, StoreError> {
        read::tasks(&mut *self.snapshot().await?, query).await
    }

    async fn sessions(&self, task: &TaskId) -> Result<Vec<SessionInfo>, StoreError> {
        read::sessions(&mut *self.snapshot().await?, task).await
    }

    async fn session(&self, session: &SessionId) -> Result<SessionInfo, StoreError> {
        read::session(&mut *self.snapshot().await?, session).await
    }

    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        read::events(&mut *self.snapshot().await?, query).await
    }

    async fn live(&self) -> Result<Live, StoreError> {
        read::live(&mut *self.snapshot().await?).await
    }

    async fn nodes(&self, now: Timestamp) -> Result<Vec<NodeSeen>, StoreError> {
        read::nodes(&mut *self.snapshot().await?, &self.limits, millis(now)).await
    }

    async fn due_callbacks(
        &self,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<CallbackDue>, StoreError> {
        callbacks::due(&mut *self.snapshot().await?, millis(now), limit).await
    }

    async fn next_callback_at(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(callbacks::next_at(&mut *self.snapshot().await?).await?.map(timestamp))
    }

    async fn settle_callback(
        &self,
        callback_id: &str,
        result: CallbackResult,
    ) -> Result<(), StoreError> {
        self.write(callbacks::Settle { callback_id: callback_id.to_owned(), result }).await
    }

    async fn next_batch(
        &self,
        request: &BatchRequest,
        enough: u32,
        now: Timestamp,
    ) -> Result<BatchAnswer, StoreError> {
        self.write(batches::Next { request: request.clone(), enough, now: millis(now) }).await
    }

    async fn batch(&self, queue: &QueueName, number: u64) -> Result<Batch, StoreError> {
        batches::batch(&mut *self.snapshot().await?, queue, number).await
    }

    async fn queue(&self, queue: &QueueName) -> Result<QueueInfo, StoreError> {
        batches::info(&mut *self.snapshot().await?, queue).await
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>, StoreError> {
        batches::queues(&mut *self.snapshot().await?).await
    }

    async fn push_weights(
        &self,
        request: WeightUpdateRequest,
        now: Timestamp,
    ) -> Result<PushedWeights, StoreError> {
        self.write(weights::Push { request, now: millis(now) }).await
    }

    async fn note_weights(&self, report: &WeightReport, now: Timestamp) -> Result<(), StoreError> {
        self.write(weights::Note { report: report.clone(), now: millis(now) }).await
    }

    async fn weight_target(&self) -> Result<Option<WeightTarget>, StoreError> {
        weights::target(&mut *self.snapshot().await?).await
    }

    async fn weight_updates(
        &self,
        limit: u32,
        now: Timestamp,
    ) -> Result<Vec<WeightUpdate>, StoreError> {
        weights::updates(&mut *self.snapshot().await?, &self.limits, None, limit, millis(now)).await
    }

    async fn weight_update(
        &self,
        version: &str,
        now: Timestamp,
    ) -> Result<WeightUpdate, StoreError> {
        let mut db = self.snapshot().await?;
        weights::updates(&mut db, &self.limits, Some(version), 1, millis(now))
            .await?
            .pop()
            .ok_or_else(|| StoreError::not_found("weight version", version))
    }

    fn signals(&self) -> &Signals {
        &self.signals
    }

    async fn close(&self) {
        let open = self.writer.lock().await.take();
        self.readers.close().await;
        if let Some(Open { writer, task }) = open {
            drop(writer);
            if let Err(error) = task.await {
                tracing::warn!(%error, "the writer did not end cleanly");
            }
        }
    }
}
