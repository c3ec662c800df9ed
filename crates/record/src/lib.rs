//! The journal: what the gateway writes down of a session, call by call.
//!
//! One append-only file per attempt, written by one [`JournalWriter`] and read back as a
//! [`RecordedSession`]. This crate owns the file format and nothing else: it does not
//! judge what is trainable, and knows neither HTTP nor engines nor clocks.
//!
//! # Invariants
//!
//! 1. When [`JournalWriter::append_call`] has returned, the call is in the file: killing
//!    the process loses nothing. One record is one `write`.
//! 2. A record that is whole in the file is read back, whatever lies behind it. Reading
//!    stops at the first frame that is cut or wrong, and says so ([`RecordedSession::damage`]).
//! 3. Numbers come back bit for bit, holes as holes. Nothing is filled in.
//! 4. The file, the writer and the reader grow with the session's distinct tokens and
//!    messages, not with calls × context: each call is stored as what it adds.
//!
//! # Format
//!
//! All numbers are little-endian. A file is `"POLARJNL"`, major version `u16`, minor version
//! `u16`, then frames:
//!
//! | bytes | field |
//! |---|---|
//! | 4 | length of the payload, `u32` |
//! | 4 | CRC-32 (IEEE) of length, kind and payload |
//! | 1 | kind |
//! | … | payload |
//!
//! A reader refuses a larger major version. It skips kinds it does not know when the minor
//! version is larger than its own, and takes them for damage otherwise.
//!
//! | kind | payload |
//! |---|---|
//! | 1 session | [`SessionHeader`] as JSON; the first frame, once |
//! | 2 call | see below; calls are counted from 0 in the order of their frames |
//! | 3 delivery | `u32` index of the call, `u8` 1 when the reply reached the harness, else 0; the last one counts |
//! | 4 end | `u32` number of calls; the last frame, absent when the session was not closed |
//!
//! A call's payload is a JSON text, then its numbers:
//!
//! | field | meaning |
//! |---|---|
//! | `u32`, bytes | length of the JSON text, the text |
//! | `u8` | bit 0: prompt ids are given; bit 1: sampled ids are given |
//! | `u32`, `u32`s | prompt ids behind the shared part: count, ids; none when not given |
//! | `u32`, `u32`s | sampled ids: count, ids; none when not given |
//! | `u32`, `u8`, bits, `f32`s | logprobs: count; 1 when a bitmap follows; bitmap, lowest bit first, set where there is a logprob; the logprobs that are there |
//!
//! The JSON text is an object:
//!
//! | key | meaning |
//! |---|---|
//! | `meta` | [`CallMeta`] |
//! | `values` | JSON values (messages, tools) seen for the first time in this file; they are numbered from 0 over the whole file, in order |
//! | `messages` | `base`: an earlier call, or null; `shared`: how many of its messages, its reply counted as the last, begin this call's; `tail`: the numbers of the messages after them |
//! | `reply` | number of the reply |
//! | `tools` | number of the tools, or null |
//! | `prompt` | `base`: an earlier call, or null; `shared`: how many of its tokens, sampled ones after prompt, begin this call's prompt |

mod encode;
mod fingerprint;
mod frame;
mod prefix_tree;
mod session;
mod values;
mod writer;

pub use fingerprint::{CallFingerprint, ChainHash, NotAChainHash};
pub use prefix_tree::{Position, PrefixTree};
pub use session::{Damage, Nearest, RecordedCall, RecordedSession};
pub use writer::{Durability, JournalWriter};

use polar_types::{CallId, GroupId, HarnessRules, SessionId, TaskId, WeightSpan};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Where [`CallMeta::extra`] says which engine the call was asked of, on a node that has or had several.
pub const ENGINE: &str = "engine";

/// Where there are several engines, the field of a header's `engine` that has the URLs of all.
pub const ENGINES: &str = "engines";

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
    /// What the harness's adapter knows of its calls.
    #[serde(default, skip_serializing_if = "HarnessRules::is_empty")]
    pub rules: HarnessRules,
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
    /// `chat`, `messages`, `responses` or `google`.
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
    /// Request headers that the harness's rules look at, by name in lower case.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// What its tokens were made with; absent in chat mode, and in journals of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<CallFingerprint>,
}

/// Why a journal could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused.
    #[error("cannot {doing} the journal {path}: {source}")]
    Io {
        /// What was tried, for example `write to`.
        doing: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The source of bytes failed.
    #[error("cannot read the journal: {0}")]
    Read(#[from] std::io::Error),
    /// The bytes are something else.
    #[error("this is not a journal: it does not begin with `POLARJNL` and a version")]
    NotAJournal,
    /// Written by a newer Polar.
    #[error(
        "the journal has format version {found}, this Polar reads up to version {known}: \
         read it with the version that wrote it or a newer one"
    )]
    NewerFormat {
        /// Major version of the file.
        found: u16,
        /// Largest major version that is read here.
        known: u16,
    },
    /// The first frame is missing or damaged, so it is not known whose calls follow.
    #[error("the journal's session header is damaged at byte {}: {}", .0.offset, .0.what)]
    Header(Damage),
    /// A record is longer than a frame can be.
    #[error("the record takes more than 4 GiB, which a journal cannot hold in one frame")]
    TooLarge,
    /// Something could not be written as JSON.
    #[error("cannot write the record as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A delivery was reported for a call that is not in the journal.
    #[error("there is no call {index} in this journal, it has {calls} so far")]
    UnknownCall {
        /// The call that was named.
        index: u32,
        /// Calls written so far.
        calls: u32,
    },
    /// An earlier write failed half-way and could not be undone.
    #[error(
        "the journal is unusable after an earlier failed write; end this attempt and start another"
    )]
    Unusable,
}
