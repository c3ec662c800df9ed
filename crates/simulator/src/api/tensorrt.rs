//! The routes of TensorRT-LLM's `trtllm-serve`, by its published source.
//!
//! It must not be kinder than that: each request may only have the fields that the server's own
//! models have, chats tell no ids, and the id of a stop token that ended a reply is cut off unless it
//! is asked for. Chats are answered whole only.

mod chat;
mod completions;
mod fields;

use super::chat_request::body;
use super::error::ApiError;
use super::generation::Generation;
use super::{Simulator, now, server};
use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

/// What it says of itself.
const VERSION: &str = "1.3.0rc-simulated";

pub(super) fn routes(renders: bool) -> Router<Arc<Simulator>> {
    let routes = Router::new()
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/models", get(models))
        .route("/health", get(server::health))
        .route("/version", get(version))
        .route("/steady_clock_offset", get(steady_clock_offset));
    match renders {
        true => routes.route("/v1/chat/completions/render", post(chat::render)),
        false => routes,
    }
}

/// A refusal, in one of the two shapes that the server has.
enum Refusal {
    /// The body has not the form of a request.
    Form(String),
    Other(ApiError),
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self::Other(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Form(problem) => {
                (StatusCode::BAD_REQUEST, Json(json!({"error": problem}))).into_response()
            }
            Self::Other(error) => error.into_flat_response(),
        }
    }
}

/// A request with no other fields than the server knows.
fn request(headers: &HeaderMap, bytes: &[u8], known: &[&str]) -> Result<Value, Refusal> {
    let body = body(headers, bytes)?;
    let fields = body.as_object().into_iter().flatten();
    match fields.map(|(name, _)| name).find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => Err(forbidden("body", unknown)),
        None => Ok(body),
    }
}

fn forbidden(place: &str, field: &str) -> Refusal {
    Refusal::Form(format!(
        "1 validation error:\n  {{'type': 'extra_forbidden', 'loc': ('{place}', '{field}'), 'msg': \
         'Extra inputs are not permitted'}}"
    ))
}

fn usage(generation: &Generation, sampled: usize) -> Value {
    let all = generation.usage(sampled, None);
    json!({
        "prompt_tokens": all["prompt_tokens"],
        "total_tokens": all["total_tokens"],
        "completion_tokens": all["completion_tokens"],
        "prompt_tokens_details": {"cached_tokens": all["prompt_tokens_details"]["cached_tokens"]},
    })
}

async fn models(State(simulator): State<Arc<Simulator>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [{
        "id": simulator.config.model,
        "object": "model",
        "created": now(),
        "owned_by": "tensorrt_llm",
    }]}))
}

async fn version() -> Json<Value> {
    Json(json!({"version": VERSION}))
}

async fn steady_clock_offset() -> Json<Value> {
    Json(json!({"receive_ts": 0.0, "transmit_ts": 0.0}))
}
