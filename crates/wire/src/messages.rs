//! What a server of Anthropic Messages writes.

use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// An event of a streamed reply. Its name stands in the `event` line too.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StreamEvent<'a> {
    /// The reply begins.
    MessageStart {
        /// The reply without content.
        message: Message<'a>,
    },
    /// A block begins; blocks follow each other and never overlap.
    ContentBlockStart {
        /// Position of the block.
        index: u32,
        /// The block without content.
        content_block: ContentBlock<'a>,
    },
    /// More of a block.
    ContentBlockDelta {
        /// Which block.
        index: u32,
        /// What is new.
        delta: Delta<'a>,
    },
    /// A block is complete.
    ContentBlockStop {
        /// Which block.
        index: u32,
    },
    /// Why the reply ended, and its usage.
    MessageDelta {
        /// Why it ended.
        delta: MessageEnd<'a>,
        /// Whole usage, not what is new.
        usage: Usage,
    },
    /// The reply is complete.
    MessageStop,
    /// Nothing is new, but the stream lives.
    Ping,
    /// The reply failed; nothing follows.
    Error {
        /// What is wrong.
        error: ErrorDetail<'a>,
    },
}

impl StreamEvent<'_> {
    /// For the `event` line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
            Self::Error { .. } => "error",
        }
    }
}

/// A reply: unary, or the head of a streamed one.
#[derive(Debug, Serialize)]
pub struct Message<'a> {
    /// Id of the reply.
    pub id: &'a str,
    /// `message`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `assistant`.
    pub role: &'static str,
    /// Model name.
    pub model: &'a str,
    /// What the model said, in order.
    pub content: Vec<ContentBlock<'a>>,
    /// Why it ended; null in a head.
    pub stop_reason: Option<&'static str>,
    /// The stop string that matched.
    pub stop_sequence: Option<&'a str>,
    /// Token counts.
    pub usage: Usage,
}

/// A piece of a reply.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock<'a> {
    /// Visible text.
    Text {
        /// The text.
        text: &'a str,
    },
    /// Reasoning.
    Thinking {
        /// The reasoning text.
        thinking: &'a str,
        /// Opaque mark; clients drop reasoning without one from their history.
        signature: &'a str,
    },
    /// A call of a tool.
    ToolUse {
        /// Pairs it with its result.
        id: &'a str,
        /// Tool name.
        name: &'a str,
        /// An object.
        input: Cow<'a, RawValue>,
    },
}

/// What is new in a block.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Delta<'a> {
    /// More text.
    TextDelta {
        /// The text.
        text: &'a str,
    },
    /// More reasoning.
    ThinkingDelta {
        /// The reasoning text.
        thinking: &'a str,
    },
    /// The opaque mark, as the block's last delta.
    SignatureDelta {
        /// The mark.
        signature: &'a str,
    },
    /// More of a call's input.
    InputJsonDelta {
        /// A fragment of JSON text.
        partial_json: &'a str,
    },
}

/// Why a streamed reply ended.
#[derive(Debug, Serialize)]
pub struct MessageEnd<'a> {
    /// Why.
    pub stop_reason: &'static str,
    /// The stop string that matched.
    pub stop_sequence: Option<&'a str>,
}

/// Token counts. The prompt has `input_tokens` + `cache_read_input_tokens` tokens.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Usage {
    /// Prompt tokens not found in the cache.
    pub input_tokens: u64,
    /// Always 0: an engine's cache is not written on request.
    pub cache_creation_input_tokens: u64,
    /// Prompt tokens found in the engine's cache.
    pub cache_read_input_tokens: u64,
    /// Tokens sampled.
    pub output_tokens: u64,
}

/// An error body.
#[derive(Debug, Serialize)]
pub struct ErrorBody<'a> {
    /// `error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What is wrong.
    pub error: ErrorDetail<'a>,
}

/// What is wrong.
#[derive(Debug, Serialize)]
pub struct ErrorDetail<'a> {
    /// Kind.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// In words.
    pub message: &'a str,
    /// For what clients do something about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<ErrorCode>,
}

/// The cause of an error by a name.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ErrorCode {
    /// The name.
    pub error_code: &'static str,
}

/// A page of models; there is only one page.
#[derive(Debug, Serialize)]
pub struct ModelList<'a> {
    /// The models.
    pub data: Vec<Model<'a>>,
    /// Always false.
    pub has_more: bool,
    /// Id of the first model.
    pub first_id: Option<&'a str>,
    /// Id of the last model.
    pub last_id: Option<&'a str>,
}

/// A model.
#[derive(Debug, Serialize)]
pub struct Model<'a> {
    /// `model`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Name to ask for.
    pub id: &'a str,
    /// Name to show.
    pub display_name: &'a str,
    /// RFC 3339; the epoch stands for unknown.
    pub created_at: &'static str,
    /// Context window in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u64>,
}

/// The answer to a question for the size of a prompt.
#[derive(Debug, Serialize)]
pub struct TokenCount {
    /// Tokens the prompt has.
    pub input_tokens: u64,
}
