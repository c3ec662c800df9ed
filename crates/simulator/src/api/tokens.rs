//! `POST /tokenize` and `POST /detokenize`.

use super::Simulator;
use super::chat_request::{ChatFields, body, fields};
use super::error::ApiError;
use super::generation::{own_ids, prompt_text};
use axum::Json;
use axum::extract::State;
use bytes::Bytes;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Debug, Deserialize)]
struct TokenizeFields {
    model: Option<String>,
    prompt: Option<String>,
    return_token_strs: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct DetokenizeFields {
    model: Option<String>,
    tokens: Vec<Value>,
}

pub(super) async fn tokenize(
    State(simulator): State<Arc<Simulator>>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Json<Value>, ApiError> {
    let body = body(&headers, &bytes)?;
    let (asked, mut chat): (TokenizeFields, ChatFields) = (fields(&body)?, fields(&body)?);
    simulator.check_model(asked.model.as_deref())?;
    let text = match asked.prompt {
        Some(prompt) => prompt,
        None => {
            chat.ignore_reasoning_content();
            chat.check()?;
            let options = chat.template_options(&simulator.config.chat_template_kwargs);
            prompt_text(&simulator, &chat, &options)?
        }
    };
    let tokens = simulator.vocabulary.encode(&text)?;
    let spelled = asked
        .return_token_strs
        .unwrap_or(false)
        .then(|| tokens.iter().map(|id| simulator.vocabulary.spelling(*id)).collect::<Vec<_>>());
    Ok(Json(json!({
        "count": tokens.len(),
        "max_model_len": simulator.config.context_window,
        "tokens": tokens,
        "token_strs": spelled,
    })))
}

pub(super) async fn detokenize(
    State(simulator): State<Arc<Simulator>>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Json<Value>, ApiError> {
    let asked: DetokenizeFields = fields(&body(&headers, &bytes)?)?;
    simulator.check_model(asked.model.as_deref())?;
    let ids = own_ids(&simulator, &asked.tokens)?;
    Ok(Json(json!({"prompt": simulator.vocabulary.decode(&ids, true)})))
}
