//! What a server of OpenAI Responses writes.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// An event of a streamed reply. Its `kind` stands in the `event` line too. Which of the other
/// fields it has depends on the kind.
#[derive(Debug, Default, serde::Serialize)]
pub struct StreamEvent<'a> {
    /// For example `response.output_text.delta`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Counts the events of a reply from 0.
    pub sequence_number: u64,
    /// The reply as it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<Response<'a>>,
    /// Position of an item among the reply's items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_index: Option<usize>,
    /// An item's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_id: Option<&'a str>,
    /// Position of a part in its item; there is only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_index: Option<u32>,
    /// Position of a part of a summary; there is only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary_index: Option<u32>,
    /// An item, without content when it begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<OutputItem<'a>>,
    /// A part, without content when it begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<Part<'a>>,
    /// What is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta: Option<&'a str>,
    /// A whole text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<&'a str>,
    /// A call's whole arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<&'a str>,
    /// A freeform call's whole input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<&'a str>,
    /// Always empty, in events of visible text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<[(); 0]>,
}

/// A reply: unary, or as it stands in a stream.
#[derive(Debug)]
pub struct Response<'a> {
    /// Id of the reply.
    pub id: &'a str,
    /// Unix seconds.
    pub created_at: i64,
    /// `in_progress`, `completed`, `incomplete` or `failed`.
    pub status: &'static str,
    /// Why it failed.
    pub error: Option<ResponseError<'a>>,
    /// Why it is incomplete, for example `max_output_tokens`.
    pub incomplete_reason: Option<&'static str>,
    /// Model name.
    pub model: &'a str,
    /// What the model said, in order.
    pub output: Vec<OutputItem<'a>>,
    /// Token counts; none before the end.
    pub usage: Option<Usage>,
    /// Fields of the request, which a reply repeats.
    pub echo: &'a Map<String, Value>,
}

impl Serialize for Response<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", self.id)?;
        map.serialize_entry("object", "response")?;
        map.serialize_entry("created_at", &self.created_at)?;
        map.serialize_entry("status", self.status)?;
        map.serialize_entry("background", &false)?;
        map.serialize_entry("error", &self.error)?;
        let details = self.incomplete_reason.map(|reason| BTreeMap::from([("reason", reason)]));
        map.serialize_entry("incomplete_details", &details)?;
        map.serialize_entry("model", self.model)?;
        map.serialize_entry("output", &self.output)?;
        map.serialize_entry("usage", &self.usage)?;
        for (name, value) in self.echo {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// Why a reply failed.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct ResponseError<'a> {
    /// Code that programs read.
    pub code: &'static str,
    /// In words.
    pub message: &'a str,
}

/// A piece of a reply.
#[derive(Debug, serde::Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem<'a> {
    /// Visible text.
    Message {
        /// Id of the item.
        id: String,
        /// `in_progress`, `completed` or `incomplete`.
        status: &'static str,
        /// `assistant`.
        role: &'static str,
        /// The text, as one part.
        content: Vec<Part<'a>>,
    },
    /// Reasoning.
    Reasoning {
        /// Id of the item.
        id: String,
        /// As a summary, when one was asked for.
        summary: Vec<Part<'a>>,
        /// In full, when no summary was asked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<Vec<Part<'a>>>,
        /// Opaque to clients, who send it back.
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
    },
    /// A call of a function.
    FunctionCall {
        /// Id of the item.
        id: String,
        /// `in_progress`, `completed` or `incomplete`.
        status: &'static str,
        /// Pairs it with its output.
        call_id: &'a str,
        /// Function name.
        name: &'a str,
        /// Group of tools the function belongs to.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<&'a str>,
        /// JSON text.
        arguments: &'a str,
    },
    /// A call of a tool that takes any text.
    CustomToolCall {
        /// Id of the item.
        id: String,
        /// `in_progress`, `completed` or `incomplete`.
        status: &'static str,
        /// Pairs it with its output.
        call_id: &'a str,
        /// Tool name.
        name: &'a str,
        /// Group of tools the tool belongs to.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<&'a str>,
        /// The text.
        input: String,
    },
    /// A call of the client's shell.
    LocalShellCall {
        /// Id of the item.
        id: String,
        /// `in_progress`, `completed` or `incomplete`.
        status: &'static str,
        /// Pairs it with its output.
        call_id: &'a str,
        /// What to run.
        action: ShellAction,
    },
}

/// What a shell is to run.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "type", rename = "exec", deny_unknown_fields)]
pub struct ShellAction {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment variables to set.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Longest it may take, in milliseconds.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// User to run as.
    #[serde(default)]
    pub user: Option<String>,
    /// Folder to run in.
    #[serde(default)]
    pub working_directory: Option<String>,
}

/// A part of an item.
#[derive(Debug, serde::Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part<'a> {
    /// Visible text.
    OutputText {
        /// The text.
        text: &'a str,
        /// Always empty.
        annotations: [(); 0],
        /// Always empty.
        logprobs: [(); 0],
    },
    /// Reasoning in full.
    ReasoningText {
        /// The text.
        text: &'a str,
    },
    /// Reasoning as a summary.
    SummaryText {
        /// The text.
        text: &'a str,
    },
}

/// Token counts.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Usage {
    /// Prompt tokens.
    pub input_tokens: u64,
    /// More about them.
    pub input_tokens_details: InputTokensDetails,
    /// Tokens sampled.
    pub output_tokens: u64,
    /// More about them.
    pub output_tokens_details: OutputTokensDetails,
    /// Both together.
    pub total_tokens: u64,
}

/// What is known of the prompt's tokens.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct InputTokensDetails {
    /// Those found in the engine's cache.
    pub cached_tokens: u64,
    /// Always 0: an engine's cache is not written on request.
    pub cache_write_tokens: u64,
}

/// What is known of the sampled tokens.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct OutputTokensDetails {
    /// Those that are reasoning.
    pub reasoning_tokens: u64,
}

/// The answer to a question for the size of a prompt.
#[derive(Debug, serde::Serialize)]
pub struct InputTokens {
    object: &'static str,
    input_tokens: u64,
}

impl InputTokens {
    /// Of a prompt of so many tokens.
    pub fn new(input_tokens: u64) -> Self {
        Self { object: "response.input_tokens", input_tokens }
    }
}
