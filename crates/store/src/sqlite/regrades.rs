//! Grading the stored work of sessions again.
//!
//! What is on its way is a row among the sessions, so that leases, fencing, attempts and turns are
//! theirs. It is no session: it is not listed, has no events of its own, and its task does not
//! wait for it. When it ends well, the result of the session it is of changes in the same
//! transaction as the event that tells so.

use super::ending::{self, SessionRow};
use super::events::{append, next};
use super::read;
use super::rows::{backend, optional_json, to_json};
use super::turns::{self, Moved};
use super::writer::{Work, Write};
use crate::StoreError;
use crate::regrades::{self, NewRegrade};
use crate::rules::{self, Next, plus, rfc3339};
use async_trait::async_trait;
use polar_types::{
    Callback, EventKind, Grading, Outcome, RegradeOrder, SessionId, SessionInfo, SessionReport,
    SessionStatus,
};
use serde_json::Value;

pub(super) struct Regrade {
    pub(super) regrades: Vec<NewRegrade>,
    pub(super) now: i64,
}

#[async_trait]
impl Write for Regrade {
    type Answer = Vec<SessionInfo>;

    async fn apply(&self, work: &mut Work<'_>) -> Result<Vec<SessionInfo>, StoreError> {
        let mut sessions = Vec::with_capacity(self.regrades.len());
        for new in &self.regrades {
            self.begin(work, new).await?;
            sessions.push(read::session(work.db, &new.session).await?);
        }
        Ok(sessions)
    }
}

impl Regrade {
    async fn begin(&self, work: &mut Work<'_>, new: &NewRegrade) -> Result<(), StoreError> {
        let info = read::session(work.db, &new.session).await?;
        let report = info.report().filter(|_| info.status.is_terminal());
        let report = report.ok_or_else(|| rules::not_ended(&new.session))?;
        if info.regrade.as_ref().is_some_and(|latest| !latest.status.is_terminal()) {
            return is_the_same(work, new).await;
        }
        let revision = info.regrade.as_ref().map_or(1, |latest| latest.revision) + 1;
        let order = RegradeOrder::new(report, revision, new.evaluator.clone());
        let ordinal = next(work, "session", 1).await?;
        sqlx::query(
            "INSERT INTO session (session_id, task_id, group_id, ordinal, sample_index, priority,
                 runtime, max_attempts, status, waiting_for, cancel_requested, attempt, spent,
                 epoch, deadline_at, created_at, updated_at, regrade_of, regrade, revision)
             SELECT $2, task_id, group_id, $3, sample_index, priority, runtime, $4, 'queued', $5,
                 FALSE, 0, 0, 0, $6, $7, $7, session_id, $8, $9
             FROM session WHERE session_id = $1",
        )
        .bind(new.session.as_str())
        .bind(SessionId::of_regrade(&new.session, revision).as_str())
        .bind(ordinal)
        .bind(i64::from(regrades::MAX_ATTEMPTS))
        .bind(regrades::WAITING)
        .bind(plus(self.now, work.limits.queue_limit))
        .bind(self.now)
        .bind(to_json("regrade", &order)?)
        .bind(i64::from(revision))
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
        turns::moved(work, info.task_id.as_str(), Moved { queued: 1, leased: 0 }).await?;
        work.stored.queued = true;
        Ok(())
    }
}

/// Fails where a session's work is being graded by another evaluator than is asked for.
async fn is_the_same(work: &mut Work<'_>, new: &NewRegrade) -> Result<(), StoreError> {
    let row = sqlx::query(
        "SELECT regrade FROM session WHERE regrade_of = $1 ORDER BY revision DESC LIMIT 1",
    )
    .bind(new.session.as_str())
    .fetch_one(&mut *work.db)
    .await
    .map_err(backend)?;
    let running: Option<RegradeOrder> = optional_json(&row, "regrade")?;
    match running.is_some_and(|order| order.evaluator == new.evaluator) {
        true => Ok(()),
        false => Err(rules::is_being_regraded(&new.session)),
    }
}

/// Takes the report of grading stored work.
pub(super) async fn complete(
    work: &mut Work<'_>,
    row: &SessionRow,
    order: &RegradeOrder,
    report: &SessionReport,
    now: i64,
) -> Result<(), StoreError> {
    let told = regrades::as_ordered(report, &order.session_id);
    let verdict = rules::after_report(row.standing, &told);
    if told.is_regraded() && matches!(verdict.next, Next::End(_)) {
        revise(work, order, &told, now).await?;
    }
    ending::conclude(work, row, &verdict, now).await
}

/// Gives a session's result another revision.
async fn revise(
    work: &mut Work<'_>,
    order: &RegradeOrder,
    by: &SessionReport,
    now: i64,
) -> Result<(), StoreError> {
    let info = read::session(work.db, &order.session_id).await?;
    let Some((attempt, before)) = info.attempts.last().zip(info.report()) else { return Ok(()) };
    let after = before.regraded(by);
    let ended_at = attempt.ended_at.clone().unwrap_or_default();
    let gradings: Vec<Grading> = regrades::with_grading(
        info.gradings.clone(),
        (before, ended_at),
        &after,
        order.revision,
        rfc3339(now),
    );
    sqlx::query("UPDATE attempt SET report = $3 WHERE session_id = $1 AND attempt = $2")
        .bind(order.session_id.as_str())
        .bind(i64::from(attempt.attempt))
        .bind(to_json("report", &after)?)
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
    sqlx::query(
        "UPDATE session SET reward = $2, usable = $3, revision = $4, gradings = $5,
             updated_at = $6
         WHERE session_id = $1",
    )
    .bind(order.session_id.as_str())
    .bind(after.reward)
    .bind(after.is_usable())
    .bind(i64::from(order.revision))
    .bind(to_json("gradings", &gradings)?)
    .bind(now)
    .execute(&mut *work.db)
    .await
    .map_err(backend)?;
    let data = regrades::regraded(before, &after, order.revision);
    let task = info.task_id.as_str();
    tell(work, order, task, EventKind::SessionRegraded, &data, now).await
}

/// What is to be done when the row has ended: where it came to nothing, to say so.
pub(super) async fn end(
    work: &mut Work<'_>,
    row: &SessionRow,
    order: &RegradeOrder,
    outcome: &Outcome,
    now: i64,
) -> Result<(), StoreError> {
    if outcome.status() == SessionStatus::Completed {
        return Ok(());
    }
    let data = regrades::failed(order.revision, &regrades::why_failed(outcome, None));
    tell(work, order, &row.task_id, EventKind::SessionRegradeFailed, &data, now).await
}

async fn tell(
    work: &mut Work<'_>,
    order: &RegradeOrder,
    task: &str,
    kind: EventKind,
    data: &Value,
    now: i64,
) -> Result<(), StoreError> {
    let session = order.session_id.as_str();
    let seq = append(work, now, kind, task, Some(session), data).await?;
    let row = sqlx::query("SELECT callback FROM task WHERE task_id = $1")
        .bind(task)
        .fetch_one(&mut *work.db)
        .await
        .map_err(backend)?;
    let callback: Option<Callback> = optional_json(&row, "callback")?;
    if callback.is_some_and(|callback| callback.format.tells_of(kind)) {
        let id = SessionId::of_regrade(&order.session_id, order.revision);
        ending::due(work, (id.as_str(), kind), task, Some(session), seq, now).await?;
    }
    Ok(())
}
