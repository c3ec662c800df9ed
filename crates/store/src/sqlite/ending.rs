//! The end of attempts, sessions and tasks, whichever way it comes.

use super::events::append;
use super::regrades;
use super::rows::{backend, count, get, optional_json, to_json, word};
use super::submit;
use super::turns::{self, Moved};
use super::writer::{Work, Write};
use crate::rules::{self, Cancelling, End, Loss, Next, Standing, Verdict, plus};
use crate::{Expired, StoreError};
use async_trait::async_trait;
use polar_types::{
    Callback, CallbackFormat, EventKind, RegradeOrder, ReleaseRequest, ResultAck, SessionId,
    SessionReport, SessionStatus,
};

/// What deciding about a session needs of its row.
pub(super) struct SessionRow {
    pub(super) session_id: SessionId,
    pub(super) task_id: String,
    pub(super) status: SessionStatus,
    pub(super) epoch: u64,
    pub(super) node_id: Option<String>,
    pub(super) runtime: String,
    pub(super) leased_at: Option<i64>,
    pub(super) hold: Option<i64>,
    pub(super) expires_at: Option<i64>,
    /// When the pause before its next attempt ends.
    pub(super) available_at: Option<i64>,
    /// Set where only stored work is graded; then it is no session of its own.
    pub(super) regrade: Option<RegradeOrder>,
    pub(super) standing: Standing,
}

impl SessionRow {
    pub(super) async fn find(work: &mut Work<'_>, id: &str) -> Result<Option<Self>, StoreError> {
        let row = sqlx::query(
            "SELECT session_id, task_id, status, epoch, node_id, runtime, leased_at, hold,
                 expires_at, available_at, attempt, spent, max_attempts, cancel_requested, regrade
             FROM session WHERE session_id = $1",
        )
        .bind(id)
        .fetch_optional(&mut *work.db)
        .await
        .map_err(backend)?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(Self {
            session_id: word(&row, "session_id")?,
            task_id: get(&row, "task_id")?,
            status: word(&row, "status")?,
            epoch: count(&row, "epoch")?,
            node_id: get(&row, "node_id")?,
            runtime: get(&row, "runtime")?,
            leased_at: get(&row, "leased_at")?,
            hold: get(&row, "hold")?,
            expires_at: get(&row, "expires_at")?,
            available_at: get(&row, "available_at")?,
            regrade: optional_json(&row, "regrade")?,
            standing: Standing {
                attempt: count(&row, "attempt")?,
                spent: count(&row, "spent")?,
                max_attempts: count(&row, "max_attempts")?,
                cancel_requested: get(&row, "cancel_requested")?,
            },
        }))
    }

    pub(super) async fn load(work: &mut Work<'_>, id: &str) -> Result<Self, StoreError> {
        Self::find(work, id).await?.ok_or_else(|| StoreError::not_found("session", id))
    }

    /// Whether the epoch is that of the live lease.
    pub(super) fn is_leased_with(&self, epoch: u64) -> bool {
        self.node_id.is_some() && self.epoch == epoch
    }
}

pub(super) struct Complete {
    pub(super) report: SessionReport,
    pub(super) now: i64,
}

#[async_trait]
impl Write for Complete {
    type Answer = ResultAck;

    async fn apply(&self, work: &mut Work<'_>) -> Result<ResultAck, StoreError> {
        let report = &self.report;
        let session = SessionRow::load(work, report.session_id.as_str()).await?;
        let attempt = sqlx::query(
            "SELECT lost, report IS NOT NULL AS reported FROM attempt
             WHERE session_id = $1 AND epoch = $2",
        )
        .bind(report.session_id.as_str())
        .bind(super::rows::position(report.epoch.0))
        .fetch_optional(&mut *work.db)
        .await
        .map_err(backend)?;
        let Some(attempt) = attempt else {
            let name = format!("{} with epoch {}", report.session_id, report.epoch);
            return Err(StoreError::not_found("attempt of session", name));
        };
        let lost: Option<String> = get(&attempt, "lost")?;
        let reported: bool = get(&attempt, "reported")?;
        match (lost, reported) {
            (None, true) => Ok(ResultAck::Repeated),
            (None, false) if session.is_leased_with(report.epoch.0) => {
                self.accept(work, &session).await?;
                Ok(ResultAck::Accepted)
            }
            (_, false) => {
                self.keep(work, None).await?;
                Ok(ResultAck::Stale)
            }
            (Some(_), true) => Ok(ResultAck::Stale),
        }
    }
}

impl Complete {
    async fn accept(&self, work: &mut Work<'_>, session: &SessionRow) -> Result<(), StoreError> {
        let report = &self.report;
        self.keep(work, Some(self.now)).await?;
        if let Some(order) = &session.regrade {
            return regrades::complete(work, session, order, report, self.now).await;
        }
        let verdict = rules::after_report(session.standing, report);
        conclude(work, session, &verdict, self.now).await?;
        stop_early(work, &session.task_id, self.now).await
    }

    /// Keeps the report with its attempt; a lost attempt keeps the time it was lost.
    async fn keep(&self, work: &mut Work<'_>, ended_at: Option<i64>) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE attempt SET report = $3, ended_at = COALESCE($4, ended_at)
             WHERE session_id = $1 AND epoch = $2",
        )
        .bind(self.report.session_id.as_str())
        .bind(super::rows::position(self.report.epoch.0))
        .bind(to_json("report", &self.report)?)
        .bind(ended_at)
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
        Ok(())
    }
}

pub(super) struct Release {
    pub(super) request: ReleaseRequest,
    pub(super) now: i64,
}

#[async_trait]
impl Write for Release {
    type Answer = Vec<SessionId>;

    async fn apply(&self, work: &mut Work<'_>) -> Result<Vec<SessionId>, StoreError> {
        let mut released = Vec::new();
        for item in &self.request.items {
            let found = SessionRow::find(work, item.session_id.as_str()).await?;
            let Some(session) = found.filter(|s| s.is_leased_with(item.epoch.0)) else { continue };
            lose(work, &session, Loss::from(&self.request), self.now).await?;
            released.push(session.session_id);
        }
        Ok(released)
    }
}

pub(super) struct Expire {
    pub(super) now: i64,
}

#[async_trait]
impl Write for Expire {
    type Answer = Expired;

    async fn apply(&self, work: &mut Work<'_>) -> Result<Expired, StoreError> {
        let due = sqlx::query(
            "SELECT session_id FROM session WHERE expires_at <= $1
             UNION SELECT session_id FROM session WHERE deadline_at <= $1
             ORDER BY session_id",
        )
        .bind(self.now)
        .fetch_all(&mut *work.db)
        .await
        .map_err(backend)?;
        let mut expired = Expired::default();
        for row in due {
            let id: String = get(&row, "session_id")?;
            let session = SessionRow::load(work, &id).await?;
            if self.end_one(work, &session).await? {
                expired.ended.push(session.session_id);
            } else {
                expired.requeued.push(session.session_id);
            }
        }
        turns::end_pauses(work, self.now).await?;
        self.forget_nodes(work).await?;
        Ok(expired)
    }
}

impl Expire {
    /// Returns whether the session has come to its end.
    async fn end_one(&self, work: &mut Work<'_>, session: &SessionRow) -> Result<bool, StoreError> {
        if session.node_id.is_none() {
            let outcome = rules::never_taken(&session.runtime, work.limits.queue_limit);
            end(work, session, &outcome, self.now).await?;
            return Ok(true);
        }
        let unrenewed = session.expires_at.is_some_and(|at| at <= self.now);
        let loss = if unrenewed { Loss::LeaseExpired } else { Loss::Overdue };
        lose(work, session, loss, self.now).await
    }

    async fn forget_nodes(&self, work: &mut Work<'_>) -> Result<(), StoreError> {
        let silent_since = self.now.saturating_sub(plus(0, rules::NODE_MEMORY));
        sqlx::query(
            "DELETE FROM node WHERE last_seen < $1 AND NOT EXISTS
                 (SELECT 1 FROM session WHERE session.node_id = node.node_id)",
        )
        .bind(silent_since)
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
        Ok(())
    }
}

/// Ends what is left of a task that has as many usable sessions as are enough.
async fn stop_early(work: &mut Work<'_>, task: &str, now: i64) -> Result<(), StoreError> {
    let row = sqlx::query(
        "SELECT status = 'running' AND early_stop <=
             (SELECT COUNT(*) FROM session WHERE session.task_id = task.task_id AND usable
                  AND regrade_of IS NULL)
             AS has_enough
         FROM task WHERE task_id = $1",
    )
    .bind(task)
    .fetch_one(&mut *work.db)
    .await
    .map_err(backend)?;
    if get::<Option<bool>, _>(&row, "has_enough")?.unwrap_or(false) {
        submit::end_sessions(work, task, Cancelling::EnoughUsable, now).await?;
    }
    Ok(())
}

/// Ends a lease without a report. Returns whether the session has come to its end.
pub(super) async fn lose(
    work: &mut Work<'_>,
    session: &SessionRow,
    loss: Loss,
    now: i64,
) -> Result<bool, StoreError> {
    sqlx::query(
        "UPDATE attempt SET lost = $3, ended_at = $4 WHERE session_id = $1 AND attempt = $2",
    )
    .bind(session.session_id.as_str())
    .bind(i64::from(session.standing.attempt))
    .bind(loss.as_str())
    .bind(now)
    .execute(&mut *work.db)
    .await
    .map_err(backend)?;
    let verdict = rules::after_loss(session.standing, loss);
    conclude(work, session, &verdict, now).await?;
    Ok(matches!(verdict.next, Next::End(_)))
}

pub(super) async fn conclude(
    work: &mut Work<'_>,
    session: &SessionRow,
    verdict: &Verdict,
    now: i64,
) -> Result<(), StoreError> {
    match &verdict.next {
        Next::Again { because, paused } => {
            let pause = rules::retry_pause(session.standing.attempt, work.limits);
            let available_at = paused.then(|| plus(now, pause));
            requeue(work, session, verdict, because, available_at, now).await
        }
        Next::End(ended) => end(work, session, ended, now).await,
    }
}

async fn requeue(
    work: &mut Work<'_>,
    session: &SessionRow,
    verdict: &Verdict,
    because: &str,
    available_at: Option<i64>,
    now: i64,
) -> Result<(), StoreError> {
    let standing = &session.standing;
    let waiting = rules::waiting_for_retry(verdict, standing.max_attempts, because);
    sqlx::query(
        "UPDATE session SET status = 'queued', waiting_for = $2, spent = $3, node_id = NULL,
             boot_id = NULL, expires_at = NULL, deadline_at = $4, available_at = $5,
             updated_at = $6
         WHERE session_id = $1",
    )
    .bind(session.session_id.as_str())
    .bind(waiting)
    .bind(i64::from(verdict.spent))
    .bind(plus(now, work.limits.queue_limit))
    .bind(available_at)
    .bind(now)
    .execute(&mut *work.db)
    .await
    .map_err(backend)?;
    let due = if available_at.is_none() { 1 } else { 0 };
    turns::moved(work, &session.task_id, Moved { queued: due, leased: -1 }).await?;
    let node = session.node_id.as_deref().unwrap_or_default();
    let data = rules::session_requeued(standing.attempt, node, because);
    let id = session.session_id.as_str();
    if session.regrade.is_none() {
        append(work, now, EventKind::SessionStatus, &session.task_id, Some(id), &data).await?;
    }
    work.stored.queued = true;
    Ok(())
}

/// Ends a session, and its task when it was the last: state, event and callback at once.
pub(super) async fn end(
    work: &mut Work<'_>,
    session: &SessionRow,
    ended: &End,
    now: i64,
) -> Result<(), StoreError> {
    let id = session.session_id.as_str();
    sqlx::query(
        "UPDATE session SET status = $2, outcome = $3, reward = $4, waiting_for = NULL,
             node_id = NULL, boot_id = NULL, expires_at = NULL, deadline_at = NULL,
             available_at = NULL, updated_at = $5, usable = $6
         WHERE session_id = $1",
    )
    .bind(id)
    .bind(ended.outcome.status().as_str())
    .bind(to_json("outcome", &ended.outcome)?)
    .bind(ended.reward)
    .bind(now)
    .bind(ended.usable)
    .execute(&mut *work.db)
    .await
    .map_err(backend)?;
    let node = session.node_id.as_deref();
    turns::moved(work, &session.task_id, Moved::out_of(session)).await?;
    if let Some(order) = &session.regrade {
        return regrades::end(work, session, order, &ended.outcome, now).await;
    }
    let data = rules::session_ended(ended, session.standing.attempt, node);
    let kind = EventKind::SessionEnded;
    let seq = append(work, now, kind, &session.task_id, Some(id), &data).await?;
    let row = sqlx::query(
        "UPDATE task SET live_sessions = live_sessions - 1, updated_at = $2 WHERE task_id = $1
         RETURNING live_sessions, cancel_requested, callback",
    )
    .bind(&session.task_id)
    .bind(now)
    .fetch_one(&mut *work.db)
    .await
    .map_err(backend)?;
    let callback: Option<Callback> = optional_json(&row, "callback")?;
    let told = callback.map(|callback| callback.format);
    if told.is_some_and(|format| format.tells_of(kind)) {
        due(work, (id, kind), &session.task_id, Some(id), seq, now).await?;
    }
    if get::<i64, _>(&row, "live_sessions")? == 0 {
        let cancelled: bool = get(&row, "cancel_requested")?;
        end_task(work, &session.task_id, cancelled, told, now).await?;
    }
    Ok(())
}

async fn end_task(
    work: &mut Work<'_>,
    task: &str,
    cancelled: bool,
    told: Option<CallbackFormat>,
    now: i64,
) -> Result<(), StoreError> {
    let row = sqlx::query(
        "SELECT EXISTS (SELECT 1 FROM session
             WHERE task_id = $1 AND regrade_of IS NULL
                 AND status IN ('completed', 'timed_out')) AS any_with_trajectory",
    )
    .bind(task)
    .fetch_one(&mut *work.db)
    .await
    .map_err(backend)?;
    let status = rules::task_end(cancelled, get(&row, "any_with_trajectory")?);
    sqlx::query("UPDATE task SET status = $2 WHERE task_id = $1")
        .bind(task)
        .bind(status.as_str())
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
    let kind = EventKind::TaskEnded;
    let seq = append(work, now, kind, task, None, &rules::task_ended(status)).await?;
    if told.is_some_and(|format| format.tells_of(kind)) {
        due(work, (task, kind), task, None, seq, now).await?;
    }
    Ok(())
}

/// Notes that the client's URL is to be told.
pub(super) async fn due(
    work: &mut Work<'_>,
    (ended, kind): (&str, EventKind),
    task: &str,
    session: Option<&str>,
    seq: i64,
    now: i64,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO callback (callback_id, task_id, session_id, event_seq, status, attempts,
             next_at, created_at)
         VALUES ($1, $2, $3, $4, 'pending', 0, $5, $5)",
    )
    .bind(rules::callback_id(ended, kind))
    .bind(task)
    .bind(session)
    .bind(seq)
    .bind(now)
    .execute(&mut *work.db)
    .await
    .map_err(backend)?;
    Ok(())
}
