//! Answers to requests that generate nothing.

use crate::{Dialect, chat, messages};
use polar_wire::messages::TokenCount;
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
    }
    out
}

/// Body of `GET /v1/models/{id}`.
pub fn model_body(dialect: Dialect, model: &ModelInfo) -> Vec<u8> {
    let mut out = Vec::new();
    match dialect {
        Dialect::Chat | Dialect::Responses => chat::models::write_one(model, &mut out),
        Dialect::Messages => messages::models::write_one(model, &mut out),
    }
    out
}

/// Body of `POST /v1/messages/count_tokens`.
pub fn token_count_body(input_tokens: u64) -> Vec<u8> {
    let mut out = Vec::new();
    write_json(&mut out, &TokenCount { input_tokens });
    out
}
