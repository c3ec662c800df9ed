//! The HTTP face: the routes of vLLM or of TensorRT-LLM, and `/simulator/…` for tests.

mod chat;
mod chat_reply;
mod chat_request;
mod chat_stream;
mod completions;
mod error;
mod generate;
mod generation;
mod logprobs;
mod prefix_cache;
mod server;
mod tensorrt;
mod token_stream;
mod tokens;

use crate::activity::{Activity, SeenRequest};
use crate::control::Control;
use crate::policy::PlayedPolicy;
use crate::weights::{mix, text_seed};
use crate::{ChatTemplate, EngineApi, Policy, SimulatorConfig, SimulatorError, Vocabulary};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use error::ApiError;
use http::{HeaderMap, Uri};
use polar_tokens::template::Preparation;
use prefix_cache::PrefixCache;
use serde_json::Value;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Largest request body.
const MOST_BODY_BYTES: usize = 256 << 20;

/// Everything handlers share.
#[derive(Debug)]
pub(crate) struct Simulator {
    pub(crate) config: SimulatorConfig,
    pub(crate) vocabulary: Vocabulary,
    pub(crate) template: ChatTemplate,
    pub(crate) activity: Arc<Activity>,
    pub(crate) control: Control,
    pub(crate) cache: PrefixCache,
    policy: RwLock<Arc<PlayedPolicy>>,
}

impl Simulator {
    pub(crate) fn new(config: SimulatorConfig) -> Result<Self, SimulatorError> {
        Ok(Self {
            vocabulary: Vocabulary::load()?,
            template: match config.speaks {
                EngineApi::Vllm => ChatTemplate::load()?,
                EngineApi::TensorRtLlm => ChatTemplate::load_for(Preparation::TensorRtLlm)?,
            },
            activity: Arc::new(Activity::keeping(config.kept_requests)),
            control: Control::default(),
            cache: PrefixCache::default(),
            policy: RwLock::new(Arc::new(PlayedPolicy::new(config.policy.clone()))),
            config,
        })
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) =
            Arc::new(PlayedPolicy::new(policy));
    }

    pub(crate) fn policy(&self) -> Arc<PlayedPolicy> {
        Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts and keeps a request; gives it its number.
    fn arrived(&self, uri: &Uri, headers: &HeaderMap, body: &Value) -> u64 {
        let number = self.activity.arrived();
        if self.activity.keeps_requests() {
            let text =
                |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            let headers = headers
                .iter()
                .map(|(name, value)| (name.to_string(), text(value).into()))
                .collect();
            let path = uri.path().to_owned();
            self.activity.keep(SeenRequest { path, headers, body: body.clone() });
        }
        number
    }

    /// Refuses models that are not served. No name at all is fine, as with vLLM.
    fn check_model(&self, model: Option<&str>) -> Result<(), ApiError> {
        match model {
            Some(name) if !name.is_empty() && name != self.config.model => {
                Err(ApiError::unknown_model(name, &self.config.model))
            }
            _ => Ok(()),
        }
    }

    /// Ids of a prompt that came as text.
    fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, ApiError> {
        let window = self.config.context_window;
        let most = window.saturating_mul(self.vocabulary.longest_token());
        // Bytes bound characters from above and cost nothing to count.
        if text.len() > most {
            let characters = text.chars().count();
            if characters > most {
                return Err(ApiError::text_too_long(characters, most, window));
            }
        }
        Ok(self.vocabulary.encode(text)?)
    }

    /// Sixteen hex digits that no other request of this server has.
    fn unique(&self, request: u64, part: u64) -> String {
        format!("{:016x}", mix(self.config.seed ^ mix(request) ^ part.wrapping_mul(0x1_0001)))
    }

    fn fingerprint(&self) -> String {
        format!("vllm-{}-{:08x}", server::VERSION, text_seed(&self.config.model) as u32)
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs())
}

pub(crate) fn router(simulator: Arc<Simulator>) -> Router {
    let routes = match simulator.config.speaks {
        EngineApi::Vllm => vllm_routes(),
        EngineApi::TensorRtLlm => tensorrt::routes(simulator.config.renders),
    };
    routes
        .route("/simulator/stats", get(server::simulator_stats))
        .route("/simulator/requests", get(server::simulator_requests))
        .fallback(server::not_found)
        .method_not_allowed_fallback(server::method_not_allowed)
        .layer(DefaultBodyLimit::max(MOST_BODY_BYTES))
        .with_state(simulator)
}

fn vllm_routes() -> Router<Arc<Simulator>> {
    Router::new()
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/inference/v1/generate", post(generate::generate))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/models", get(server::models))
        .route("/health", get(server::health))
        .route("/ping", get(server::health).post(server::health))
        .route("/load", get(server::load))
        .route("/version", get(server::version))
        .route("/metrics", get(server::metrics))
        .route("/weight_info", get(server::weight_info))
        .route("/update_weight_version", post(server::update_weight_version))
        .route("/pause", post(server::pause))
        .route("/resume", post(server::resume))
        .route("/is_paused", get(server::is_paused))
        .route("/abort_requests", post(server::abort_requests))
        .route("/inference/v1/abort_requests", post(server::abort_requests))
        .route("/collective_rpc", post(server::collective_rpc))
        .route("/reset_prefix_cache", post(server::reset_prefix_cache))
}
