//! Inference engines behind one trait.
//!
//! An adapter knows how its engine takes a chat request, how it gives token ids and
//! logprobs back, and which of its habits would corrupt training data. It owns no
//! session state. Dropping the stream of a generation cancels it in the engine.
//!
//! [`connect`] finds out which engine answers at a URL, makes the adapter, and lets it
//! generate once unary and once streamed, so that an engine that cannot give what training
//! needs is refused with what to change, before any session runs.
//!
//! Tool calls and reasoning are parsed by the engine, or by [`ParserOptions`] out of its raw text here.

mod arrays;
mod chat_reply;
mod connect;
mod error;
mod llama_cpp;
mod llama_tokens;
mod model_files;
mod parser_choice;
mod parsing;
mod pictures;
mod probe;
mod prompt_end;
mod reply_stream;
mod request_body;
mod same_prompts;
mod sglang;
mod sglang_tokens;
mod tensorrt_llm;
mod tensorrt_tokens;
mod token_engine;
mod token_mode;
mod token_reply;
mod tokenize;
mod tokens;
mod transport;
mod vllm;
mod vllm_tokens;
mod weight_version;
mod weights;

pub use connect::{EngineOptions, connect, probe};
pub use error::EngineError;
pub use model_files::{ModelFiles, ModelFilesError};
pub use parser_choice::{ParserChoice, ParserOptions};
pub use parsing::PARSE_FAULTS;
pub use polar_tokens::parse::{ReasoningFormat, ToolFormat};
pub use probe::{Check, Outcome, ProbeError, ProbeReport};
pub use same_prompts::{OtherPrompts, same_prompts};
pub use token_engine::{EngineArray, NOT_SENT, Rendering, SampleRequest, TokenEngine};
pub use token_mode::{Disagreement, TokenMode, TokenModeError, TokenModeOptions};
pub use transport::Timeouts;
pub use weights::{CONTINUED, Told, WeightEngine, Weights};

use async_trait::async_trait;
use futures_util::Stream;
use polar_convo::{FinishReason, ReplyEvent, Request, Usage};
use polar_types::WeightSpan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

/// Which engine it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// vLLM's OpenAI server, and anything that speaks its API.
    Vllm,
    /// SGLang's server.
    Sglang,
    /// llama.cpp's `llama-server`.
    LlamaCpp,
    /// TensorRT-LLM's `trtllm-serve`, in token mode alone.
    #[serde(rename = "tensorrt_llm")]
    TensorRtLlm,
}

/// What the probe found out. Kept with every record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// Which engine.
    pub kind: EngineKind,
    /// Its base URL, without a trailing slash.
    pub url: String,
    /// Its version, as it says.
    pub version: Option<String>,
    /// Served model name.
    pub model: String,
    /// Context window in tokens.
    pub context_window: Option<u64>,
    /// Ids are in `0..vocab_size`, when known.
    pub vocab_size: Option<u32>,
    /// What its logprobs mean: `raw` (before temperature and truncation), `temperature`
    /// (after temperature, before truncation) or `processed` (after both).
    pub logprob_mode: String,
    /// Weight version at the time of the probe.
    pub weight_version: Option<String>,
    /// Where the engine has the model from, as it says: a folder of its machine, or a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_folder: Option<String>,
    /// Set in token mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_mode: Option<TokenModeInfo>,
}

/// What prompts are made with in token mode. Kept with every record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenModeInfo {
    /// Hash of the chat template.
    pub template: String,
    /// Hash of the tokenizer.
    pub tokenizer: String,
    /// How calls are read out of what is sampled.
    pub tool_parser: String,
    /// How reasoning is.
    pub reasoning_parser: String,
}

/// One generation.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// The conversation; `sampling` already has the task's pins applied.
    pub request: Request,
    /// Names the call in the engine's logs.
    pub request_id: String,
}

/// What comes back while the engine samples.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineEvent {
    /// The exact prompt, as soon as the engine tells it: before the first token, or
    /// just before the end. Never sent when the engine does not give ids.
    PromptIds(Vec<u32>),
    /// A step of the reply. `ids` may be empty where the engine sends ids apart from
    /// text, and `events` may be empty where its parsers hold text back.
    Chunk {
        /// What the harness gets to see.
        events: Vec<ReplyEvent>,
        /// Sampled ids of this step.
        ids: Vec<u32>,
        /// Logprob of each id; as long as `ids`.
        logprobs: Vec<Option<f32>>,
    },
    /// The reply is complete. Always the last event of a stream without error.
    End(EngineEnd),
}

/// How a generation ended.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineEnd {
    /// Normalised.
    pub finish: FinishReason,
    /// The engine's own word.
    pub engine_finish: String,
    /// Stop string that matched.
    pub stop_sequence: Option<String>,
    /// Token counts.
    pub usage: Usage,
    /// Which weights sampled which ids of this reply; empty when the engine has no versions.
    pub weight_versions: Vec<WeightSpan>,
    /// What the engine gives of each token besides, where it was started for it and asked to: by
    /// the engine's name for it.
    pub arrays: BTreeMap<String, EngineArray>,
    /// Whatever else the engine said and a trainer might want.
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// Events of one generation. Dropping it cancels the generation.
pub type EngineStream = Pin<Box<dyn Stream<Item = Result<EngineEvent, EngineError>> + Send>>;

/// An inference engine.
#[async_trait]
pub trait Engine: Send + Sync {
    /// What the probe found.
    fn info(&self) -> &EngineInfo;

    /// Starts a generation. An error here means that nothing was sampled.
    async fn generate(&self, request: GenerateRequest) -> Result<EngineStream, EngineError>;

    /// Tokens the request's prompt has, by the engine's own template and tokenizer.
    async fn count_tokens(&self, request: &Request) -> Result<u64, EngineError>;

    /// Whether the engine answers now. Used by health pages, never by the hot path.
    async fn health(&self) -> Result<(), EngineError>;

    /// The side of it that takes ids, where there is one.
    fn tokens(&self) -> Option<&dyn TokenEngine> {
        None
    }

    /// The side of it that takes new weights while it serves, where there is one.
    fn weight_engine(&self) -> Option<&dyn WeightEngine> {
        None
    }

    /// Its weights, where its calls pass the gate that lets them be changed. [`connect`] sees to
    /// that.
    fn weights(&self) -> Option<&Arc<Weights>> {
        None
    }

    /// How calls are made in token mode, where that is wanted.
    fn token_mode(&self) -> Option<&Arc<TokenMode>> {
        None
    }
}
