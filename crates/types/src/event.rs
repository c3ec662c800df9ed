//! The event log: an append-only sequence that trainers and dashboards read by cursor.

use crate::{SessionId, TaskId};
use serde::{Deserialize, Serialize};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
pub enum EventKind {
    /// A task was accepted.
    #[serde(rename = "task.created")]
    TaskCreated,
    /// A task came to its end.
    #[serde(rename = "task.ended")]
    TaskEnded,
    /// A session changed its status.
    #[serde(rename = "session.status")]
    SessionStatus,
    /// A session came to its end; its trajectory, if any, can be fetched.
    #[serde(rename = "session.ended")]
    SessionEnded,
    /// The stored work of a session that had ended was graded again: its result has another
    /// revision.
    #[serde(rename = "session.regraded")]
    SessionRegraded,
    /// The same was asked for and came to nothing; the result stays as it was.
    #[serde(rename = "session.regrade_failed")]
    SessionRegradeFailed,
}

impl EventKind {
    /// The name used in JSON and in SSE.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TaskCreated => "task.created",
            Self::TaskEnded => "task.ended",
            Self::SessionStatus => "session.status",
            Self::SessionEnded => "session.ended",
            Self::SessionRegraded => "session.regraded",
            Self::SessionRegradeFailed => "session.regrade_failed",
        }
    }
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Event {
    /// Position in the log, from 1, without gaps. A reader's cursor.
    pub seq: u64,
    /// When (RFC 3339, UTC).
    pub at: String,
    /// What.
    pub kind: EventKind,
    /// Of which task.
    pub task_id: TaskId,
    /// Of which session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// More, by kind: `status`, `reward`, `attempt`, `node_id`.
    #[schema(value_type = Object)]
    pub data: serde_json::Value,
}

/// Answer to `GET /api/events?after=`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EventPage {
    /// Oldest first.
    pub events: Vec<Event>,
    /// Pass as `after` next time.
    pub cursor: u64,
}
