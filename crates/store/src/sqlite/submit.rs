//! Storing tasks, and cancelling them.

use super::ending::{self, SessionRow};
use super::events::{append, next};
use super::read;
use super::rows::{backend, get, json, to_json};
use super::writer::{Work, Write};
use crate::rules::{self, Cancelling, End, plus};
use crate::{NewTask, StoreError, Submitted};
use async_trait::async_trait;
use polar_types::{Demand, EventKind, Outcome, SessionId, SessionStatus, TaskId, TaskInfo};
use sqlx::{QueryBuilder, Sqlite};

pub(super) struct Submit {
    pub(super) tasks: Vec<NewTask>,
    pub(super) now: i64,
}

#[async_trait]
impl Write for Submit {
    type Answer = Vec<Submitted>;

    async fn apply(&self, work: &mut Work<'_>) -> Result<Vec<Submitted>, StoreError> {
        let mut answers = Vec::with_capacity(self.tasks.len());
        for task in &self.tasks {
            let created = self.submit(work, task).await?;
            let task = read::task(work.db, &task.spec.task_id).await?;
            answers.push(Submitted { task, created });
        }
        Ok(answers)
    }
}

impl Submit {
    /// Returns false when the same task is stored already.
    async fn submit(&self, work: &mut Work<'_>, task: &NewTask) -> Result<bool, StoreError> {
        let id = &task.spec.task_id;
        let stored = sqlx::query("SELECT body_hash, spec FROM task WHERE task_id = $1")
            .bind(id.as_str())
            .fetch_optional(&mut *work.db)
            .await
            .map_err(backend)?;
        if let Some(row) = stored {
            let stored_hash: String = get(&row, "body_hash")?;
            if stored_hash == task.body_hash {
                return Ok(false);
            }
            return Err(rules::other_body(&json(&row, "spec")?, &task.spec));
        }
        self.insert_task(work, task).await?;
        self.insert_sessions(work, task).await?;
        let created = rules::task_created(&task.spec.harness.name, task.spec.num_samples);
        append(work, self.now, EventKind::TaskCreated, id.as_str(), None, &created).await?;
        work.stored.queued = true;
        Ok(true)
    }

    async fn insert_task(&self, work: &mut Work<'_>, task: &NewTask) -> Result<(), StoreError> {
        let spec = &task.spec;
        let callback = spec.callback.as_ref().map(|c| to_json("callback", c)).transpose()?;
        let ordinal = next(work, "task", 1).await?;
        sqlx::query(
            "INSERT INTO task (task_id, ordinal, body_hash, spec, metadata, callback, harness,
                 num_samples, live_sessions, status, cancel_requested, created_at, updated_at,
                 priority, weight, demand, queued, queue, early_stop)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8, 'running', FALSE, $9, $9, $10, $11,
                 $12, $8, $13, $14)",
        )
        .bind(spec.task_id.as_str())
        .bind(ordinal)
        .bind(&task.body_hash)
        .bind(to_json("spec", spec)?)
        .bind(to_json("metadata", &spec.metadata)?)
        .bind(callback)
        .bind(&spec.harness.name)
        .bind(i64::from(spec.num_samples))
        .bind(self.now)
        .bind(i64::from(spec.priority))
        .bind(i64::from(spec.weight))
        .bind(to_json("demand", &Demand::of(spec))?)
        .bind(spec.queue.as_str())
        .bind(spec.early_stop.map(|stop| i64::from(stop.usable)))
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
        Ok(())
    }

    async fn insert_sessions(&self, work: &mut Work<'_>, task: &NewTask) -> Result<(), StoreError> {
        /// Rows per statement; bounded by the number of its parameters.
        const CHUNK: usize = 256;
        let spec = &task.spec;
        let runtime = spec.runtime.kind.as_str();
        let deadline = plus(self.now, work.limits.queue_limit);
        let last = next(work, "session", i64::from(spec.num_samples)).await?;
        let first = last - i64::from(spec.num_samples) + 1;
        let samples: Vec<u32> = (0..spec.num_samples).collect();
        for chunk in samples.chunks(CHUNK) {
            let mut insert = QueryBuilder::<Sqlite>::new(
                "INSERT INTO session (session_id, task_id, group_id, ordinal, sample_index,
                     priority, runtime, max_attempts, status, waiting_for, cancel_requested,
                     attempt, spent, epoch, deadline_at, created_at, updated_at) ",
            );
            insert.push_values(chunk, |mut row, index| {
                row.push_bind(String::from(SessionId::of_sample(&spec.task_id, *index)))
                    .push_bind(spec.task_id.as_str())
                    .push_bind(spec.group_id.as_str())
                    .push_bind(first + i64::from(*index))
                    .push_bind(i64::from(*index))
                    .push_bind(i64::from(spec.priority))
                    .push_bind(runtime)
                    .push_bind(i64::from(spec.max_attempts))
                    .push_bind(SessionStatus::Queued.as_str())
                    .push_bind(rules::waiting_for_node(runtime))
                    .push("FALSE, 0, 0, 0")
                    .push_bind(deadline)
                    .push_bind(self.now)
                    .push_bind(self.now);
            });
            // Ids of long task names are cut, so two tasks may want the same ones.
            insert.push(" ON CONFLICT (session_id) DO NOTHING");
            let done = insert.build().execute(&mut *work.db).await.map_err(backend)?;
            if done.rows_affected() != chunk.len() as u64 {
                return Err(rules::session_ids_taken(&spec.task_id));
            }
        }
        Ok(())
    }
}

pub(super) struct Cancel {
    pub(super) task: TaskId,
    pub(super) now: i64,
}

#[async_trait]
impl Write for Cancel {
    type Answer = TaskInfo;

    async fn apply(&self, work: &mut Work<'_>) -> Result<TaskInfo, StoreError> {
        let asked = sqlx::query(
            "UPDATE task SET cancel_requested = TRUE, updated_at = $2
             WHERE task_id = $1 AND status = 'running' AND NOT cancel_requested",
        )
        .bind(self.task.as_str())
        .bind(self.now)
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
        if asked.rows_affected() > 0 {
            end_sessions(work, self.task.as_str(), Cancelling::Asked, self.now).await?;
        }
        let why = Cancelling::Asked;
        Held { task: self.task.as_str(), regrades: true, why, now: self.now }.end(work).await?;
        read::task(work.db, &self.task).await
    }
}

/// Ends a task's queued sessions, and asks nodes to end those that they hold.
pub(super) async fn end_sessions(
    work: &mut Work<'_>,
    task: &str,
    why: Cancelling,
    now: i64,
) -> Result<(), StoreError> {
    Held { task, regrades: false, why, now }.end(work).await
}

/// What there is of a task: its sessions, or what grades their stored work again.
struct Held<'a> {
    task: &'a str,
    regrades: bool,
    why: Cancelling,
    now: i64,
}

impl Held<'_> {
    async fn end(&self, work: &mut Work<'_>) -> Result<(), StoreError> {
        self.say_why(work).await?;
        self.ask_nodes(work).await?;
        self.end_queued(work).await
    }

    async fn say_why(&self, work: &mut Work<'_>) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE session SET cancel_why = $2
             WHERE task_id = $1 AND outcome IS NULL AND cancel_why IS NULL
                 AND (regrade_of IS NOT NULL) = $3",
        )
        .bind(self.task)
        .bind(self.why.in_words())
        .bind(self.regrades)
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
        Ok(())
    }

    async fn ask_nodes(&self, work: &mut Work<'_>) -> Result<(), StoreError> {
        let latest = plus(self.now, work.limits.cancel_grace);
        let held = sqlx::query(
            "UPDATE session SET cancel_requested = TRUE, waiting_for = $2,
                 deadline_at = CASE WHEN deadline_at < $3 THEN deadline_at ELSE $3 END,
                 updated_at = $4
             WHERE task_id = $1 AND node_id IS NOT NULL AND (regrade_of IS NOT NULL) = $5",
        )
        .bind(self.task)
        .bind(rules::WAITING_FOR_CANCEL)
        .bind(latest)
        .bind(self.now)
        .bind(self.regrades)
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
        work.stored.cancelled |= held.rows_affected() > 0;
        Ok(())
    }

    async fn end_queued(&self, work: &mut Work<'_>) -> Result<(), StoreError> {
        let rows = sqlx::query(
            "SELECT session_id FROM session
             WHERE task_id = $1 AND status = 'queued' AND (regrade_of IS NOT NULL) = $2
             ORDER BY sample_index",
        )
        .bind(self.task)
        .bind(self.regrades)
        .fetch_all(&mut *work.db)
        .await
        .map_err(backend)?;
        for row in rows {
            let id: String = get(&row, "session_id")?;
            let session = SessionRow::load(work, &id).await?;
            ending::end(work, &session, &End::of(Outcome::Cancelled), self.now).await?;
        }
        Ok(())
    }
}
