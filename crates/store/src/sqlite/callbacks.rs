//! The outbox: ends that the client's URL is to be told of.

use super::read::event;
use super::rows::{backend, count, get, json};
use super::writer::{Work, Write};
use crate::rules::timestamp;
use crate::{CallbackDue, CallbackResult, StoreError};
use async_trait::async_trait;
use polar_types::{Callback, CallbackStatus};
use sqlx::SqliteConnection;

pub(super) async fn due(
    db: &mut SqliteConnection,
    now: i64,
    limit: u32,
) -> Result<Vec<CallbackDue>, StoreError> {
    let rows = sqlx::query(
        "SELECT c.callback_id, c.attempts, c.created_at, t.callback,
             e.seq, e.at, e.kind, e.task_id, e.session_id, e.data
         FROM callback c
         JOIN task t ON t.task_id = c.task_id
         JOIN event e ON e.seq = c.event_seq
         WHERE c.next_at <= $1 ORDER BY c.next_at, c.event_seq LIMIT $2",
    )
    .bind(now)
    .bind(i64::from(limit))
    .fetch_all(db)
    .await
    .map_err(backend)?;
    rows.iter()
        .map(|row| {
            let callback: Callback = json(row, "callback")?;
            Ok(CallbackDue {
                callback_id: get(row, "callback_id")?,
                url: callback.url,
                secret: callback.secret,
                format: callback.format,
                event: event(row)?,
                attempts: count(row, "attempts")?,
                created_at: timestamp(get(row, "created_at")?),
            })
        })
        .collect()
}

pub(super) async fn next_at(db: &mut SqliteConnection) -> Result<Option<i64>, StoreError> {
    let row = sqlx::query("SELECT MIN(next_at) AS next_at FROM callback")
        .fetch_one(db)
        .await
        .map_err(backend)?;
    get(&row, "next_at")
}

pub(super) struct Settle {
    pub(super) callback_id: String,
    pub(super) result: CallbackResult,
}

#[async_trait]
impl Write for Settle {
    type Answer = ();

    async fn apply(&self, work: &mut Work<'_>) -> Result<(), StoreError> {
        let (status, next_at, error) = match &self.result {
            CallbackResult::Delivered => (CallbackStatus::Delivered, None, None),
            CallbackResult::Retry { at, error } => {
                (CallbackStatus::Pending, Some(at.as_millisecond()), Some(error))
            }
            CallbackResult::Failed { error } => (CallbackStatus::Failed, None, Some(error)),
        };
        // One that is settled stays so, whoever else was sending it.
        let done = sqlx::query(
            "UPDATE callback SET attempts = attempts + 1, status = $2, next_at = $3, error = $4
             WHERE callback_id = $1 AND status = 'pending'",
        )
        .bind(&self.callback_id)
        .bind(status.as_str())
        .bind(next_at)
        .bind(error)
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
        if done.rows_affected() == 0 {
            return Err(StoreError::not_found("pending callback", &self.callback_id));
        }
        Ok(())
    }
}
