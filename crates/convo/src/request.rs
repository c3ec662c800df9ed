//! What a harness asks for, in one shape for all dialects.

use crate::ResponsesTerms;
use crate::chat::terms::ChatTerms;
use crate::google::terms::GoogleTerms;
use crate::loss::Loss;
use crate::turn_memory::HistoryReport;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;

/// The language a harness speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// OpenAI Chat Completions.
    Chat,
    /// Anthropic Messages.
    Messages,
    /// OpenAI Responses.
    Responses,
    /// Google generateContent.
    Google,
}

impl Dialect {
    /// The name kept in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Messages => "messages",
            Self::Responses => "responses",
            Self::Google => "google",
        }
    }
}

/// One generation request.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The language it came in.
    pub dialect: Dialect,
    /// Model name the harness asked for.
    pub model: String,
    /// The conversation, oldest first. System text is a message like any other.
    pub messages: Vec<Message>,
    /// Tools offered.
    pub tools: Vec<Tool>,
    /// Which tool the model may or must call.
    pub tool_choice: Option<ToolChoice>,
    /// Sampling parameters, after pins have been applied those that are used.
    pub sampling: Sampling,
    /// Whether the harness wants a stream.
    pub stream: bool,
    /// What a Chat request says about the form of its reply.
    pub chat: ChatTerms,
    /// What a Responses request says about the form of its reply.
    pub responses: Option<Arc<ResponsesTerms>>,
    /// What a request of Google's dialect says about the form of its reply.
    pub google: GoogleTerms,
    /// Fields carried to the engine as they are, in the engine's own (Chat) spelling.
    pub rest: Map<String, Value>,
    /// Fields kept for the record but not sent: labels without effect on sampling, for example
    /// `metadata`, and fields named in `losses`.
    pub unsent: Map<String, Value>,
    /// What the translation could not keep, one entry a kind.
    pub losses: Vec<Loss>,
    /// What of its history was restored, see [`crate::TurnMemory`].
    pub history: HistoryReport,
}

impl Request {
    /// An empty conversation.
    pub fn new(dialect: Dialect, model: impl Into<String>) -> Self {
        Self {
            dialect,
            model: model.into(),
            messages: Vec::new(),
            tools: Vec::new(),
            tool_choice: None,
            sampling: Sampling::default(),
            stream: false,
            chat: ChatTerms::default(),
            responses: None,
            google: GoogleTerms::default(),
            rest: Map::new(),
            unsent: Map::new(),
            losses: Vec::new(),
            history: HistoryReport::default(),
        }
    }
}

/// Sampling parameters; `None` is said by nobody yet, see [`Sampling::say_defaults`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Softmax temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus mass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Number of most likely tokens kept; -1 keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// Most tokens sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Random seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Strings that end the reply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
}

impl Sampling {
    /// Says what all dialects mean by saying nothing: the policy's own distribution, whole.
    /// Engines have other defaults, some from the model's files, so that without this the record
    /// would not hold what was used.
    pub fn say_defaults(&mut self) {
        self.temperature.get_or_insert(1.0);
        self.top_p.get_or_insert(1.0);
        self.top_k.get_or_insert(-1);
    }
}

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions of the operator.
    System,
    /// The same in newer OpenAI models.
    Developer,
    /// The person, or the harness in their name.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The name kept in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One message: ordered blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said, in order.
    pub blocks: Vec<Block>,
    /// Fields Polar does not act on, for example `name`; `cache_control` is dropped on decode.
    pub rest: Map<String, Value>,
}

impl Message {
    /// A message of some blocks and nothing else.
    pub fn new(role: Role, blocks: Vec<Block>) -> Self {
        Self { role, blocks, rest: Map::new() }
    }

    /// A message of one text.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self::new(role, vec![Block::Text(text.into())])
    }
}

/// A piece of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// Plain text.
    Text(String),
    /// The model's reasoning. `signature` is the opaque mark a dialect wants back.
    Reasoning {
        /// The reasoning text.
        text: String,
        /// Opaque signature.
        signature: Option<String>,
    },
    /// A call of a tool.
    ToolCall {
        /// Pairs it with its result.
        id: String,
        /// Tool name.
        name: String,
        /// Arguments as the harness spelled them: JSON text.
        arguments: String,
    },
    /// The result of a tool call.
    ToolResult {
        /// The call it answers.
        call_id: String,
        /// Text and images, in order.
        content: Vec<Block>,
        /// Whether the tool failed.
        is_error: bool,
    },
    /// An image.
    Image(ImageSource),
    /// A block of the same dialect that Polar does not act on, carried verbatim.
    Other(Value),
}

/// Where an image's bytes are.
#[derive(Debug, Clone, PartialEq)]
pub enum ImageSource {
    /// An http(s) or data URL.
    Url(String),
    /// Base64 with its media type.
    Base64 {
        /// For example `image/png`.
        media_type: String,
        /// The bytes.
        data: String,
    },
}

/// A tool the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON Schema of its arguments.
    pub parameters: Value,
    /// Further fields of the function object, for example `strict`.
    pub rest: Map<String, Value>,
}

/// Which tool may or must be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// No tool.
    None,
    /// Some tool.
    Required,
    /// This tool.
    Named(String),
}
