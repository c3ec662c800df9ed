//! Routes about the server itself: model list, health, weights and control, and the
//! simulator's own.

use super::chat_request::parsed;
use super::error::ApiError;
use super::{Simulator, now};
use crate::activity::{SeenRequest, Stats};
use crate::control::PauseMode;
use axum::Json;
use axum::extract::{Query, State};
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

/// Version of vLLM whose behaviour is simulated.
pub(super) const VERSION: &str = "0.32.0";

type Shared = State<Arc<Simulator>>;

pub(super) async fn models(State(simulator): Shared) -> Json<Value> {
    let (model, created) = (&simulator.config.model, now());
    let root = simulator.config.model_folder.as_ref().map(|folder| folder.to_string_lossy());
    let root = root.unwrap_or(model.into());
    Json(json!({"object": "list", "data": [{
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": null,
        "max_model_len": simulator.config.context_window,
        "permission": [{
            "id": format!("modelperm-{}", simulator.unique(u64::MAX, 0)),
            "object": "model_permission",
            "created": created,
            "allow_create_engine": false,
            "allow_sampling": true,
            "allow_logprobs": true,
            "allow_search_indices": false,
            "allow_view": true,
            "allow_fine_tuning": false,
            "organization": "*",
            "group": null,
            "is_blocking": false,
        }],
    }]}))
}

pub(super) async fn health() -> StatusCode {
    StatusCode::OK
}

pub(super) async fn load(State(simulator): Shared) -> Json<Value> {
    Json(json!({"server_load": simulator.activity.stats().running}))
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": VERSION}))
}

pub(super) async fn weight_info(State(simulator): Shared) -> Json<Value> {
    Json(json!({"weight_version": &*simulator.control.version()}))
}

pub(super) async fn update_weight_version(
    State(simulator): Shared,
    bytes: Bytes,
) -> Result<Json<Value>, ApiError> {
    let body = parsed(&bytes)?;
    let version = body.get("new_version").and_then(Value::as_str);
    let version =
        version.ok_or_else(|| ApiError::validation("Field required", Some("new_version")))?;
    simulator.control.set_version(version);
    Ok(Json(json!({"success": true, "new_version": version})))
}

pub(super) async fn pause(
    State(simulator): Shared,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Value>, ApiError> {
    let mode = match query.get("mode").map_or("abort", String::as_str) {
        "abort" => PauseMode::Abort,
        "wait" => PauseMode::Wait,
        "keep" => PauseMode::Keep,
        other => {
            let problem = format!("mode must be 'abort', 'wait' or 'keep', not '{other}'");
            return Err(ApiError::validation(&problem, None));
        }
    };
    simulator.control.pause(mode, &simulator.activity).await;
    Ok(Json(json!({"status": "paused"})))
}

pub(super) async fn resume(State(simulator): Shared) -> Json<Value> {
    simulator.control.resume();
    Json(json!({"status": "resumed"}))
}

pub(super) async fn is_paused(State(simulator): Shared) -> Json<Value> {
    Json(json!({"is_paused": simulator.control.is_paused()}))
}

/// Ends what runs: the named requests, or all where none is named.
pub(super) async fn abort_requests(
    State(simulator): Shared,
    bytes: Bytes,
) -> Result<Json<Value>, ApiError> {
    let body = parsed(&bytes)?;
    let named = body.get("request_ids").and_then(Value::as_array);
    let named: Option<Vec<&str>> =
        named.map(|names| names.iter().filter_map(Value::as_str).collect());
    let is_named = |name: &str| match &named {
        // By the name that the route made of the client's.
        Some(names) => names.iter().any(|asked| {
            ["generate-tokens-", "cmpl-", "chatcmpl-"]
                .iter()
                .any(|prefix| asked.strip_prefix(prefix) == Some(name))
        }),
        None => true,
    };
    let aborted = simulator.control.abort(is_named);
    Ok(Json(json!({"status": "aborted", "aborted": aborted})))
}

/// Calls a method of the workers, of which only the loading of weights is simulated: their name is
/// that of their folder.
pub(super) async fn collective_rpc(
    State(simulator): Shared,
    bytes: Bytes,
) -> Result<Json<Value>, ApiError> {
    let body = parsed(&bytes)?;
    if body.get("method").and_then(Value::as_str) != Some("reload_weights") {
        return Err(ApiError::bad_request("only reload_weights is simulated").of("method"));
    }
    let path = body.get("kwargs").and_then(|kwargs| kwargs.get("weights_path"));
    let path = path.and_then(Value::as_str).unwrap_or_default();
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if name.is_empty() {
        return Err(ApiError::bad_request("a folder is needed").of("kwargs.weights_path"));
    }
    match simulator.control.load(name).await {
        Ok(()) => Ok(Json(json!({"results": [null]}))),
        Err(()) => Err(ApiError::simulated(500, None)),
    }
}

/// What stands still keeps what is cached of it, unless it is to be computed anew.
pub(super) async fn reset_prefix_cache(
    State(simulator): Shared,
    Query(query): Query<HashMap<String, String>>,
) -> Json<Value> {
    let anew = query.get("reset_running_requests").is_some_and(|value| value == "true");
    let success = anew || simulator.activity.stats().running == 0;
    if success {
        simulator.cache.reset();
    }
    Json(json!({"success": success}))
}

pub(super) async fn metrics(State(simulator): Shared) -> String {
    let stats = simulator.activity.stats();
    let model = &simulator.config.model;
    let mut text = String::new();
    for (name, kind, value) in [
        ("num_requests_running", "gauge", stats.running),
        ("generation_tokens_total", "counter", stats.tokens),
        ("request_success_total", "counter", stats.finished),
    ] {
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "# TYPE vllm:{name} {kind}\nvllm:{name}{{model_name=\"{model}\"}} {value}.0"
        );
    }
    text
}

pub(super) async fn simulator_stats(State(simulator): Shared) -> Json<Stats> {
    Json(simulator.activity.stats())
}

pub(super) async fn simulator_requests(State(simulator): Shared) -> Json<Vec<SeenRequest>> {
    Json(simulator.activity.requests())
}

/// Unknown routes are answered by vLLM's web framework, in its own shape.
pub(super) async fn not_found() -> (StatusCode, Json<Value>) {
    (StatusCode::NOT_FOUND, Json(json!({"detail": "Not Found"})))
}

pub(super) async fn method_not_allowed() -> (StatusCode, Json<Value>) {
    (StatusCode::METHOD_NOT_ALLOWED, Json(json!({"detail": "Method Not Allowed"})))
}
