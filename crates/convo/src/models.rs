//! Answers to requests that generate nothing.

use crate::{Dialect, chat, google, messages};
use polar_wire::messages::TokenCount;
use polar_wire::responses::InputTokens;
use polar_wire::sse::write_json;

/// A model a harness may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Name to ask for.
    pub id: String,
    /// Context window in tokens, when known.
    pub context_window: Option<u64>,
}

/// Body of `GET /v1/models`.
pub fn models_body(dialect: Dialect, models: &[ModelInfo]) -> Vec<u8> {
    let mut out = Vec::new();
    match dialect {
        Dialect::Chat | Dialect::Responses => chat::models::write_list(models, &mut out),
        Dialect::Messages => messages::models::write_list(models, &mut out),
        Dialect::Google => google::models::write_list(models, &mut out),
    }
    out
}

/// Body of `GET /v1/models/{id}`.
pub fn model_body(dialect: Dialect, model: &ModelInfo) -> Vec<u8> {
    let mut out = Vec::new();
    match dialect {
        Dialect::Chat | Dialect::Responses => chat::models::write_one(model, &mut out),
        Dialect::Messages => messages::models::write_one(model, &mut out),
        Dialect::Google => google::models::write_one(model, &mut out),
    }
    out
}

/// Answer to the question how many tokens a prompt has. Chat has no such question and gets
/// Anthropic's answer.
pub fn token_count_body(dialect: Dialect, input_tokens: u64) -> Vec<u8> {
    let mut out = Vec::new();
    match dialect {
        Dialect::Google => google::models::write_count(input_tokens, &mut out),
        Dialect::Responses => write_json(&mut out, &InputTokens::new(input_tokens)),
        Dialect::Chat | Dialect::Messages => write_json(&mut out, &TokenCount { input_tokens }),
    }
    out
}
