//! Reading columns into the words of Polar.

use crate::rules::rfc3339;
use crate::{StoreError, regrades};
use polar_types::{
    AttemptInfo, CallbackState, Epoch, Outcome, RegradeInfo, SessionInfo, SessionStatus, TaskInfo,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::sqlite::SqliteRow;
use sqlx::{ColumnIndex, Decode, Row, Sqlite, Type};
use std::collections::BTreeMap;

/// A failure of the database as the store's own.
pub(super) fn backend(error: sqlx::Error) -> StoreError {
    StoreError::Backend(Box::new(error))
}

/// One column.
pub(super) fn get<'r, T, I>(row: &'r SqliteRow, column: I) -> Result<T, StoreError>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
    I: ColumnIndex<SqliteRow>,
{
    row.try_get(column).map_err(backend)
}

/// A column that holds one word of an enumeration or an id.
pub(super) fn word<T: DeserializeOwned>(
    row: &SqliteRow,
    column: &'static str,
) -> Result<T, StoreError> {
    let text: String = get(row, column)?;
    serde_json::from_value(serde_json::Value::String(text))
        .map_err(|e| StoreError::Damaged { what: column, detail: e.to_string() })
}

/// A column that holds JSON.
pub(super) fn json<T: DeserializeOwned>(
    row: &SqliteRow,
    column: &'static str,
) -> Result<T, StoreError> {
    let text: &str = get(row, column)?;
    from_json(column, text)
}

/// A column that may hold JSON.
pub(super) fn optional_json<T: DeserializeOwned>(
    row: &SqliteRow,
    column: &'static str,
) -> Result<Option<T>, StoreError> {
    let text: Option<&str> = get(row, column)?;
    text.map(|text| from_json(column, text)).transpose()
}

fn from_json<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|e| StoreError::Damaged { what, detail: e.to_string() })
}

/// A value as it goes into a JSON column.
pub(super) fn to_json<T: Serialize>(what: &'static str, value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|e| StoreError::Damaged { what, detail: e.to_string() })
}

/// A column that holds a count or a position.
pub(super) fn count<T: TryFrom<i64>>(
    row: &SqliteRow,
    column: &'static str,
) -> Result<T, StoreError> {
    let value: i64 = get(row, column)?;
    T::try_from(value).map_err(|_| StoreError::Damaged {
        what: column,
        detail: format!("{value} is out of range"),
    })
}

/// A position as it goes into a column.
pub(super) fn position(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A row of `task`, without what other tables add.
pub(super) fn task_info(row: &SqliteRow) -> Result<TaskInfo, StoreError> {
    Ok(TaskInfo {
        task_id: word(row, "task_id")?,
        status: word(row, "status")?,
        harness: get(row, "harness")?,
        num_samples: count(row, "num_samples")?,
        queue: word(row, "queue")?,
        batch: match get::<Option<i64>, _>(row, "batch")? {
            Some(_) => Some(count(row, "batch")?),
            None => None,
        },
        left_out: match get::<Option<String>, _>(row, "left_out")? {
            Some(_) => Some(word(row, "left_out")?),
            None => None,
        },
        sessions: BTreeMap::new(),
        mean_reward: None,
        callback: None,
        created_at: rfc3339(get(row, "created_at")?),
        updated_at: rfc3339(get(row, "updated_at")?),
        metadata: json(row, "metadata")?,
    })
}

/// A row of `session`, without what other tables add.
pub(super) fn session_info(row: &SqliteRow) -> Result<SessionInfo, StoreError> {
    Ok(SessionInfo {
        session_id: word(row, "session_id")?,
        task_id: word(row, "task_id")?,
        group_id: word(row, "group_id")?,
        sample_index: count(row, "sample_index")?,
        status: word::<SessionStatus>(row, "status")?,
        waiting_for: get(row, "waiting_for")?,
        attempts: Vec::new(),
        reward: get(row, "reward")?,
        revision: count(row, "revision")?,
        gradings: optional_json(row, "gradings")?.unwrap_or_default(),
        regrade: regrade_info(row)?,
        outcome: optional_json(row, "outcome")?,
        reason: None,
        reason_detail: None,
        callback: None,
        created_at: rfc3339(get(row, "created_at")?),
        updated_at: rfc3339(get(row, "updated_at")?),
    })
}

/// The latest order to grade a session's stored work again.
fn regrade_info(row: &SqliteRow) -> Result<Option<RegradeInfo>, StoreError> {
    let Some(revision) = get::<Option<i64>, _>(row, "latest_revision")? else { return Ok(None) };
    let outcome: Option<Outcome> = optional_json(row, "latest_outcome")?;
    Ok(Some(regrades::info(
        word(row, "session_id")?,
        u32::try_from(revision).unwrap_or(u32::MAX),
        word::<SessionStatus>(row, "latest_status")?,
        get(row, "latest_waiting_for")?,
        outcome.as_ref(),
    )))
}

/// A row of `attempt`.
pub(super) fn attempt_info(row: &SqliteRow) -> Result<AttemptInfo, StoreError> {
    let ended_at: Option<i64> = get(row, "ended_at")?;
    Ok(AttemptInfo {
        attempt: count(row, "attempt")?,
        epoch: Epoch(count(row, "epoch")?),
        node_id: word(row, "node_id")?,
        started_at: rfc3339(get(row, "started_at")?),
        ended_at: ended_at.map(rfc3339),
        lost: get(row, "lost")?,
        report: optional_json(row, "report")?,
    })
}

/// A row of `callback`.
pub(super) fn callback_state(row: &SqliteRow) -> Result<CallbackState, StoreError> {
    Ok(CallbackState {
        status: word(row, "status")?,
        attempts: count(row, "attempts")?,
        error: get(row, "error")?,
    })
}
