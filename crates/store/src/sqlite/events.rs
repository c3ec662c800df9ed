//! Appending to the event log. Numbers come from a counter row in the same transaction, so
//! a write that is rolled back leaves no gap.

use super::rows::{backend, get, to_json};
use super::writer::Work;
use crate::StoreError;
use polar_types::EventKind;
use serde_json::Value;

/// Raises a counter and returns its new value.
pub(super) async fn next(work: &mut Work<'_>, counter: &str, by: i64) -> Result<i64, StoreError> {
    let row = sqlx::query("UPDATE counter SET value = value + $2 WHERE name = $1 RETURNING value")
        .bind(counter)
        .bind(by)
        .fetch_one(&mut *work.db)
        .await
        .map_err(backend)?;
    get(&row, "value")
}

/// Appends one event and returns its position.
pub(super) async fn append(
    work: &mut Work<'_>,
    now: i64,
    kind: EventKind,
    task: &str,
    session: Option<&str>,
    data: &Value,
) -> Result<i64, StoreError> {
    let seq = next(work, "event", 1).await?;
    sqlx::query(
        "INSERT INTO event (seq, at, kind, task_id, session_id, data)
         VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(seq)
    .bind(now)
    .bind(kind.as_str())
    .bind(task)
    .bind(session)
    .bind(to_json("data", data)?)
    .execute(&mut *work.db)
    .await
    .map_err(backend)?;
    work.stored.last_event = work.stored.last_event.max(u64::try_from(seq).ok());
    Ok(seq)
}
