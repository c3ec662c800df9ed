//! What can be set about a simulator.

use crate::{FaultChance, Policy};
use serde_json::{Map, Value};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Settings of one simulator.
#[derive(Debug, Clone)]
pub struct SimulatorConfig {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Served model name.
    pub model: String,
    /// Where the simulator says that it has its model from, see [`crate::write_model_files`].
    pub model_folder: Option<PathBuf>,
    /// What it replies.
    pub policy: Policy,
    /// Context window in tokens, prompt and reply together.
    pub context_window: usize,
    /// Whether a limit on the reply that does not fit beside the prompt is lowered to what is
    /// left, as vLLM does now; earlier versions refuse the request.
    pub lowers_limits: bool,
    /// How fast it replies.
    pub speed: Speed,
    /// Seed of everything chosen at random when the request has none.
    pub seed: u64,
    /// Fault to happen by chance; faults by rule are in the policy.
    pub fault: Option<FaultChance>,
    /// Whether reasoning is parsed out of replies (vLLM's `--reasoning-parser qwen3`).
    pub parse_reasoning: bool,
    /// Whether tool calls are parsed out of replies (vLLM's `--tool-call-parser hermes`).
    pub parse_tools: bool,
    /// Whether ids are taken at `/inference/v1/generate` (vLLM's `--enable-scale-out`).
    pub scale_out: bool,
    /// Whose API it speaks.
    pub speaks: EngineApi,
    /// Whether prompts are rendered for others (TensorRT-LLM's
    /// `TRTLLM_ENABLE_RENDER_ENDPOINTS=1`). vLLM always does.
    pub renders: bool,
    /// Defaults under each request's `chat_template_kwargs`.
    pub chat_template_kwargs: Map<String, Value>,
    /// Requests kept for `/simulator/requests`.
    pub kept_requests: usize,
}

/// An engine's API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EngineApi {
    /// vLLM's, which was held against the real server.
    #[default]
    Vllm,
    /// TensorRT-LLM's `trtllm-serve`, by its published source.
    TensorRtLlm,
}

impl Default for SimulatorConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            model: "simulated".to_owned(),
            model_folder: None,
            policy: Policy::default(),
            context_window: 131_072,
            lowers_limits: true,
            speed: Speed::default(),
            seed: 0,
            fault: None,
            parse_reasoning: true,
            parse_tools: true,
            scale_out: true,
            speaks: EngineApi::default(),
            renders: false,
            chat_template_kwargs: Map::new(),
            kept_requests: 16,
        }
    }
}

/// How fast replies come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Wait before the first token.
    pub first_token: Duration,
    /// Tokens per second and reply; none for as fast as can be.
    pub tokens_per_second: Option<f64>,
    /// Tokens in each streamed chunk, when the request does not say.
    pub tokens_per_chunk: usize,
}

impl Default for Speed {
    fn default() -> Self {
        Self { first_token: Duration::ZERO, tokens_per_second: None, tokens_per_chunk: 1 }
    }
}
