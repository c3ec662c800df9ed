//! Batches of a queue: making the next one, and giving one again.

use super::read;
use super::rows::{backend, count, get, position};
use super::submit;
use super::writer::{Work, Write};
use crate::StoreError;
use crate::batches::{AskedVersion, Begun, Candidate, Decision, Plan, Versions};
use crate::rules::{Cancelling, rfc3339};
use async_trait::async_trait;
use polar_types::{
    Batch, BatchAnswer, BatchRequest, LeftOut, QueueInfo, QueueName, TaskId, TaskInfo,
};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use std::collections::BTreeMap;

/// Ready groups read at a time.
const CHUNK: i64 = 64;

pub(super) struct Next {
    pub(super) request: BatchRequest,
    pub(super) enough: u32,
    pub(super) now: i64,
}

#[async_trait]
impl Write for Next {
    type Answer = BatchAnswer;

    async fn apply(&self, work: &mut Work<'_>) -> Result<BatchAnswer, StoreError> {
        let queue = &self.request.queue;
        let last = self.note_queue(work).await?;
        let versions = versions(work.db, &self.request).await?;
        let filled = self.first_filled(work.db, last).await?;
        let mut plan = Plan::new(&self.request, &versions, last, filled)?;
        let number = plan.number;
        if number <= last {
            let groups = groups_of(work.db, queue, number).await?;
            let row = batch_row(work.db, queue, number).await?;
            let out = left_out_of(work.db, queue, number).await?;
            plan.go_on(Begun { settled: get(&row, "settled")? }, groups, &out)?;
        }
        self.end_stale(work, &versions).await?;
        self.offer_ready(work, &mut plan).await?;
        let held_back = plan.held_back;
        let decision = plan.decide(self.enough);
        self.keep(work, number, &decision).await?;
        // Groups may be begun that were too many before.
        work.stored.queued |= !(decision.taken.is_empty() && decision.left_out.is_empty());
        let batch = match decision.groups {
            None => None,
            Some(groups) => {
                let version = self.request.version.as_deref();
                Some(assemble(work.db, queue, number, groups, (version, &versions)).await?)
            }
        };
        Ok(BatchAnswer { batch, held_back, state: info(work.db, queue).await? })
    }
}

impl Next {
    /// Returns the number of the queue's last batch.
    async fn note_queue(&self, work: &mut Work<'_>) -> Result<u64, StoreError> {
        let before = info(work.db, &self.request.queue).await?.max_ahead;
        work.stored.queued |= before != self.request.max_ahead;
        let row = sqlx::query(
            "INSERT INTO queue (queue, last, max_ahead) VALUES ($1, 0, $2)
             ON CONFLICT (queue) DO UPDATE SET max_ahead = excluded.max_ahead RETURNING last",
        )
        .bind(self.request.queue.as_str())
        .bind(self.request.max_ahead.map(i64::from))
        .fetch_one(&mut *work.db)
        .await
        .map_err(backend)?;
        count(&row, "last")
    }

    /// The first batch behind the cursor and before the last one that has groups.
    async fn first_filled(
        &self,
        db: &mut SqliteConnection,
        last: u64,
    ) -> Result<Option<u64>, StoreError> {
        let row = sqlx::query(
            "SELECT MIN(batch) AS filled FROM task
             WHERE queue = $1 AND batch > $2 AND batch < $3 AND left_out IS NULL",
        )
        .bind(self.request.queue.as_str())
        .bind(position(self.request.after))
        .bind(position(last))
        .fetch_one(db)
        .await
        .map_err(backend)?;
        let filled: Option<i64> = get(&row, "filled")?;
        Ok(filled.and_then(|number| u64::try_from(number).ok()))
    }

    /// Ends what still runs of groups that would be left out as stale.
    async fn end_stale(&self, work: &mut Work<'_>, versions: &Versions) -> Result<(), StoreError> {
        if self.request.max_staleness.is_none() {
            return Ok(());
        }
        let rows = sqlx::query(
            "SELECT task_id, ordinal FROM task
             WHERE queue = $1 AND begun AND batch IS NULL AND status = 'running' AND EXISTS
                 (SELECT 1 FROM session WHERE session.task_id = task.task_id AND usable)
             ORDER BY ordinal",
        )
        .bind(self.request.queue.as_str())
        .fetch_all(&mut *work.db)
        .await
        .map_err(backend)?;
        for row in &rows {
            let group = candidate(work.db, row).await?;
            if group.is_too_stale(&self.request, versions) {
                let (task, why) = (group.task_id.as_str(), Cancelling::Stale);
                submit::end_sessions(work, task, why, self.now).await?;
            }
        }
        Ok(())
    }

    async fn offer_ready(
        &self,
        work: &mut Work<'_>,
        plan: &mut Plan<'_>,
    ) -> Result<(), StoreError> {
        let mut after = -1_i64;
        while plan.wants_more() {
            let rows = sqlx::query(
                "SELECT task_id, ordinal FROM task
                 WHERE queue = $1 AND status <> 'running' AND batch IS NULL AND ordinal > $2
                 ORDER BY ordinal LIMIT $3",
            )
            .bind(self.request.queue.as_str())
            .bind(after)
            .bind(CHUNK)
            .fetch_all(&mut *work.db)
            .await
            .map_err(backend)?;
            let Some(last) = rows.last() else { break };
            after = get(last, "ordinal")?;
            for row in &rows {
                if !plan.wants_more() {
                    break;
                }
                plan.offer(candidate(work.db, row).await?);
            }
        }
        Ok(())
    }

    async fn keep(
        &self,
        work: &mut Work<'_>,
        number: u64,
        decision: &Decision,
    ) -> Result<(), StoreError> {
        for (task, reason) in &decision.left_out {
            self.place(work, task, number, Some(*reason)).await?;
        }
        for task in &decision.taken {
            self.place(work, task, number, None).await?;
        }
        if decision.groups.is_some() {
            sqlx::query(
                "INSERT INTO batch (queue, number, made_at, settled) VALUES ($1, $2, $3, TRUE)
                 ON CONFLICT (queue, number) DO UPDATE SET settled = TRUE",
            )
            .bind(self.request.queue.as_str())
            .bind(position(number))
            .bind(self.now)
            .execute(&mut *work.db)
            .await
            .map_err(backend)?;
            sqlx::query("UPDATE queue SET last = $2 WHERE queue = $1 AND last < $2")
                .bind(self.request.queue.as_str())
                .bind(position(number))
                .execute(&mut *work.db)
                .await
                .map_err(backend)?;
        } else if !decision.left_out.is_empty() {
            sqlx::query("UPDATE batch SET settled = FALSE WHERE queue = $1 AND number = $2")
                .bind(self.request.queue.as_str())
                .bind(position(number))
                .execute(&mut *work.db)
                .await
                .map_err(backend)?;
        }
        Ok(())
    }

    /// Into a batch, or out of all for a reason, which is kept with the batch that was made.
    async fn place(
        &self,
        work: &mut Work<'_>,
        task: &TaskId,
        number: u64,
        left_out: Option<LeftOut>,
    ) -> Result<(), StoreError> {
        sqlx::query("UPDATE task SET batch = $2, left_out = $3 WHERE task_id = $1")
            .bind(task.as_str())
            .bind(position(number))
            .bind(left_out.map(LeftOut::as_str))
            .execute(&mut *work.db)
            .await
            .map_err(backend)?;
        Ok(())
    }
}

/// A batch that was made before.
pub(super) async fn batch(
    db: &mut SqliteConnection,
    queue: &QueueName,
    number: u64,
) -> Result<Batch, StoreError> {
    let groups = groups_of(db, queue, number).await?;
    assemble(db, queue, number, groups, (None, &Versions::default())).await
}

/// Queues by name. One that was asked for and never had a group may be a slip of the pen.
pub(super) async fn queues(db: &mut SqliteConnection) -> Result<Vec<QueueInfo>, StoreError> {
    let rows = sqlx::query("SELECT DISTINCT queue FROM task ORDER BY queue")
        .fetch_all(&mut *db)
        .await
        .map_err(backend)?;
    let mut queues = Vec::with_capacity(rows.len());
    for row in &rows {
        let name: QueueName = super::rows::word(row, "queue")?;
        queues.push(info(db, &name).await?);
    }
    Ok(queues)
}

/// Where a queue stands; one that nobody has named has nothing in it.
pub(super) async fn info(
    db: &mut SqliteConnection,
    queue: &QueueName,
) -> Result<QueueInfo, StoreError> {
    let row = sqlx::query(
        "SELECT
             COALESCE((SELECT last FROM queue WHERE queue = $1), 0) AS last,
             (SELECT max_ahead FROM queue WHERE queue = $1) AS max_ahead,
             (SELECT COUNT(*) FROM task
              WHERE queue = $1 AND status <> 'running' AND batch IS NULL) AS ready,
             (SELECT COUNT(*) FROM task WHERE queue = $1 AND status = 'running') AS running,
             (SELECT COUNT(*) FROM task WHERE queue = $1 AND begun AND batch IS NULL) AS ahead",
    )
    .bind(queue.as_str())
    .fetch_one(&mut *db)
    .await
    .map_err(backend)?;
    let counts = sqlx::query(
        "SELECT left_out, COUNT(*) AS number FROM task
         WHERE queue = $1 AND left_out IS NOT NULL GROUP BY left_out",
    )
    .bind(queue.as_str())
    .fetch_all(db)
    .await
    .map_err(backend)?;
    let max_ahead: Option<i64> = get(&row, "max_ahead")?;
    Ok(QueueInfo {
        queue: queue.clone(),
        last: count(&row, "last")?,
        ready: count(&row, "ready")?,
        running: count(&row, "running")?,
        ahead: count(&row, "ahead")?,
        max_ahead: max_ahead.and_then(|most| u32::try_from(most).ok()),
        left_out: by_reason(&counts)?,
    })
}

async fn batch_row(
    db: &mut SqliteConnection,
    queue: &QueueName,
    number: u64,
) -> Result<SqliteRow, StoreError> {
    sqlx::query("SELECT made_at, settled FROM batch WHERE queue = $1 AND number = $2")
        .bind(queue.as_str())
        .bind(position(number))
        .fetch_optional(db)
        .await
        .map_err(backend)?
        .ok_or_else(|| StoreError::not_found("batch", format!("{number} of queue {queue}")))
}

/// The groups of a batch, oldest first.
async fn groups_of(
    db: &mut SqliteConnection,
    queue: &QueueName,
    number: u64,
) -> Result<Vec<Candidate>, StoreError> {
    let rows = sqlx::query(
        "SELECT task_id, ordinal FROM task WHERE queue = $1 AND batch = $2 AND left_out IS NULL
         ORDER BY ordinal",
    )
    .bind(queue.as_str())
    .bind(position(number))
    .fetch_all(&mut *db)
    .await
    .map_err(backend)?;
    let mut groups = Vec::with_capacity(rows.len());
    for row in &rows {
        groups.push(candidate(db, row).await?);
    }
    Ok(groups)
}

async fn left_out_of(
    db: &mut SqliteConnection,
    queue: &QueueName,
    number: u64,
) -> Result<Vec<TaskId>, StoreError> {
    let rows = sqlx::query(
        "SELECT task_id FROM task WHERE queue = $1 AND batch = $2 AND left_out IS NOT NULL",
    )
    .bind(queue.as_str())
    .bind(position(number))
    .fetch_all(db)
    .await
    .map_err(backend)?;
    rows.iter().map(|row| super::rows::word(row, "task_id")).collect()
}

async fn candidate(db: &mut SqliteConnection, row: &SqliteRow) -> Result<Candidate, StoreError> {
    let id: TaskId = super::rows::word(row, "task_id")?;
    let task: TaskInfo = read::task(db, &id).await?;
    let sessions = read::sessions(db, &id).await?;
    Ok(Candidate::new(&task, count(row, "ordinal")?, &sessions))
}

/// Those that were asked for, where the request needs them.
async fn versions(
    db: &mut SqliteConnection,
    request: &BatchRequest,
) -> Result<Versions, StoreError> {
    if request.version.is_none() {
        return Ok(Versions::default());
    }
    let rows = sqlx::query(
        "SELECT version, ordinal, EXISTS
             (SELECT 1 FROM weight_engine WHERE weight_engine.ordinal = weight_update.ordinal
              AND state NOT IN ('waiting', 'draining', 'unchanged')) AS reached
         FROM weight_update",
    )
    .fetch_all(db)
    .await
    .map_err(backend)?;
    let asked = rows.iter().map(|row| {
        Ok(AskedVersion {
            version: get(row, "version")?,
            ordinal: count(row, "ordinal")?,
            reached: get(row, "reached")?,
        })
    });
    Ok(Versions::new(asked.collect::<Result<Vec<_>, StoreError>>()?))
}

async fn assemble(
    db: &mut SqliteConnection,
    queue: &QueueName,
    number: u64,
    groups: Vec<Candidate>,
    (version, versions): (Option<&str>, &Versions),
) -> Result<Batch, StoreError> {
    let row = batch_row(db, queue, number).await?;
    let counts = sqlx::query(
        "SELECT left_out, COUNT(*) AS number FROM task
         WHERE queue = $1 AND batch = $2 AND left_out IS NOT NULL GROUP BY left_out",
    )
    .bind(queue.as_str())
    .bind(position(number))
    .fetch_all(&mut *db)
    .await
    .map_err(backend)?;
    Ok(Batch {
        queue: queue.clone(),
        number,
        made_at: rfc3339(get(&row, "made_at")?),
        groups: groups.into_iter().map(|group| group.into_group(version, versions)).collect(),
        left_out: by_reason(&counts)?,
    })
}

fn by_reason(counts: &[SqliteRow]) -> Result<BTreeMap<LeftOut, u64>, StoreError> {
    let pairs = counts
        .iter()
        .map(|row| Ok((super::rows::word::<LeftOut>(row, "left_out")?, count(row, "number")?)));
    pairs.collect()
}
