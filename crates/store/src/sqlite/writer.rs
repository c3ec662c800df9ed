//! The one writer. It drains what has come in, applies all of it in one transaction, and
//! answers after the commit: one fsync for many callers, and no two writers that wait for
//! each other's locks.

use super::lock::Lock;
use super::rows::backend;
use crate::signals::{Signals, Stored};
use crate::{Limits, StoreError};
use async_trait::async_trait;
use sqlx::{Connection, SqliteConnection};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Most writes in one transaction; bounds how long the first of them waits.
const MOST_PER_COMMIT: usize = 128;
/// Writes that may wait; callers beyond it wait to be let in.
const INBOX: usize = 1024;

/// One write. Either all of it is stored or, when it fails, nothing.
#[async_trait]
pub(super) trait Write: Send + Sync + 'static {
    type Answer: Send + 'static;
    async fn apply(&self, work: &mut Work<'_>) -> Result<Self::Answer, StoreError>;
}

/// What a write works with.
pub(super) struct Work<'a> {
    pub(super) db: &'a mut SqliteConnection,
    pub(super) limits: &'a Limits,
    pub(super) stored: Stored,
}

/// The writer's address.
#[derive(Clone)]
pub(super) struct Writer {
    inbox: mpsc::Sender<Box<dyn Job>>,
}

impl Writer {
    /// Starts the writer. It ends once every `Writer` is gone and its work is done.
    pub(super) fn start(
        db: SqliteConnection,
        lock: Lock,
        limits: Limits,
        signals: Arc<Signals>,
    ) -> (Self, tokio::task::JoinHandle<()>) {
        let (inbox, jobs) = mpsc::channel(INBOX);
        let task = tokio::spawn(run(db, lock, jobs, limits, signals));
        (Self { inbox }, task)
    }

    /// Applies a write and waits until it is durable.
    pub(super) async fn write<W: Write>(&self, write: W) -> Result<W::Answer, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = Pending { write, reply, answer: None };
        self.inbox.send(Box::new(job)).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }
}

async fn run(
    mut db: SqliteConnection,
    lock: Lock,
    mut jobs: mpsc::Receiver<Box<dyn Job>>,
    limits: Limits,
    signals: Arc<Signals>,
) {
    let mut batch = Vec::with_capacity(MOST_PER_COMMIT);
    while jobs.recv_many(&mut batch, MOST_PER_COMMIT).await > 0 {
        let committed = commit(&mut db, &mut batch, &limits).await;
        let failure = match committed {
            Ok(stored) => {
                signals.tell(stored);
                None
            }
            Err(error) => {
                tracing::error!(%error, writes = batch.len(), "the transaction failed");
                Some(error.to_string())
            }
        };
        for job in batch.drain(..) {
            job.settle(failure.as_deref());
        }
    }
    if let Err(error) = db.close().await {
        tracing::warn!(%error, "the database did not close cleanly");
    }
    // Last of all, so that nobody else opens what is still being written.
    drop(lock);
}

async fn commit(
    db: &mut SqliteConnection,
    batch: &mut [Box<dyn Job>],
    limits: &Limits,
) -> Result<Stored, sqlx::Error> {
    let mut stored = Stored::default();
    let mut whole = db.begin_with("BEGIN IMMEDIATE").await?;
    for job in batch {
        // A savepoint each, so that one refused write takes nothing else with it.
        let mut own = whole.begin().await?;
        let mut work = Work { db: &mut own, limits, stored: Stored::default() };
        if job.apply(&mut work).await {
            stored.merge(work.stored);
            own.commit().await?;
        } else {
            own.rollback().await?;
        }
    }
    whole.commit().await?;
    Ok(stored)
}

/// A write together with who waits for it, with the answer's type forgotten.
#[async_trait]
trait Job: Send {
    /// Returns whether to keep what was written.
    async fn apply(&mut self, work: &mut Work<'_>) -> bool;
    /// Answers; with what was found, or that the transaction failed.
    fn settle(self: Box<Self>, failure: Option<&str>);
}

struct Pending<W: Write> {
    write: W,
    reply: oneshot::Sender<Result<W::Answer, StoreError>>,
    answer: Option<Result<W::Answer, StoreError>>,
}

#[async_trait]
impl<W: Write + Sync> Job for Pending<W>
where
    W::Answer: Send,
{
    async fn apply(&mut self, work: &mut Work<'_>) -> bool {
        let answer = self.write.apply(work).await;
        let keep = answer.is_ok();
        self.answer = Some(answer);
        keep
    }

    fn settle(self: Box<Self>, failure: Option<&str>) {
        let answer = match (failure, self.answer) {
            (None, Some(answer)) => answer,
            // A refusal holds whether or not the others were stored.
            (Some(_), Some(Err(refused))) => Err(refused),
            (Some(why), _) => Err(StoreError::Backend(why.into())),
            (None, None) => Err(StoreError::Closed),
        };
        // Whoever asked may be gone; what was written stays.
        let _ = self.reply.send(answer);
    }
}

/// Opens the connection that only the writer uses.
pub(super) async fn connect(
    options: &sqlx::sqlite::SqliteConnectOptions,
) -> Result<SqliteConnection, StoreError> {
    SqliteConnection::connect_with(options).await.map_err(backend)
}
