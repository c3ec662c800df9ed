//! The journal: what the gateway writes down of a session, call by call.
//!
//! One append-only file per attempt. A record is checksummed and versioned; a reader
//! survives a torn tail. Prompts are stored as deltas against earlier calls, so that a
//! session's journal is as large as its tokens and not as turns × context.

use polar_types::{CallId, GroupId, SessionId, TaskId, WeightSpan};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// First record of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionHeader {
    /// Which session.
    pub session_id: SessionId,
    /// Of which task.
    pub task_id: TaskId,
    /// Sessions compared with each other.
    pub group_id: GroupId,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// The fencing token it was leased with; 0 for a session without a server.
    pub epoch: u64,
    /// Unix milliseconds.
    pub created_at_ms: i64,
    /// The engine, as its probe described it.
    pub engine: Value,
}

/// One call, whole. What the journal takes and what its reader gives back.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRecord {
    /// Everything but tokens and messages.
    pub meta: CallMeta,
    /// The prompt as OpenAI chat messages.
    pub messages: Vec<Value>,
    /// Tools offered, as OpenAI tool definitions.
    pub tools: Option<Value>,
    /// The reply as the harness saw it, as an OpenAI chat message.
    pub reply: Value,
    /// The engine's context; absent when the engine did not give it.
    pub prompt_ids: Option<Vec<u32>>,
    /// What was sampled; absent when the engine did not give ids.
    pub sampled_ids: Option<Vec<u32>>,
    /// Logprob of each sampled id; as long as `sampled_ids`, holes stay holes.
    pub logprobs: Vec<Option<f32>>,
}

/// The small part of a call's record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallMeta {
    /// Which call; `CallId::of_index` of its position in the journal.
    pub call_id: CallId,
    /// `chat` or `messages`.
    pub dialect: String,
    /// Whether the harness asked for a stream.
    pub stream: bool,
    /// Model name the harness asked for.
    pub model: String,
    /// When the request came in, Unix milliseconds.
    pub started_at_ms: i64,
    /// Milliseconds until the last token.
    pub duration_ms: u64,
    /// Tokens sampled, as the engine counted them; the length of `sampled_ids` where given.
    pub sampled_tokens: u64,
    /// Prompt tokens, as the engine counted them.
    pub prompt_tokens: u64,
    /// Prompt tokens found in the engine's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Normalised finish reason, `error` when it failed, `cancelled` when the harness left.
    pub finish_reason: String,
    /// The engine's own word for it.
    pub engine_finish: String,
    /// Which weights sampled which ids of this reply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weight_versions: Vec<WeightSpan>,
    /// Sampling parameters that were used, after pins.
    pub sampling: Value,
    /// What the logprobs mean.
    pub logprob_mode: String,
    /// Whatever else the engine said.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub extra: serde_json::Map<String, Value>,
    /// Error, when it ended in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
