//! A server with vLLM's reply shapes that has nothing to compute: replies are made once
//! per (prompt tokens, sampled tokens) and replayed.

use anyhow::Result;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Response, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use axum::{Json, Router};
use futures_util::stream;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::convert::Infallible;
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::MissedTickBehavior;

const MODEL: &str = "bench";

#[derive(Clone)]
struct Canned {
    unary: Bytes,
    chunks: Arc<Vec<Bytes>>,
}

type Cache = Arc<Mutex<HashMap<(usize, usize), Canned>>>;

pub(crate) async fn serve() -> Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    writeln!(std::io::stdout(), "http://{}", listener.local_addr()?)?;
    let router = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/models", get(models))
        .route("/tokenize", post(tokenize))
        .route("/health", get(|| async {}))
        .route("/version", get(|| async { Json(json!({"version": "0.32.0"})) }))
        .with_state(Cache::default());
    let listener = listener.tap_io(|stream| {
        // A failure would only make the engine slower.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router).await?;
    Ok(())
}

async fn models() -> Json<Value> {
    Json(json!({"object": "list", "data": [
        {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 1_000_000}
    ]}))
}

async fn tokenize() -> Json<Value> {
    Json(json!({"count": 3, "max_model_len": 1_000_000, "tokens": [1, 2, 3], "token_strs": null}))
}

/// The first message asks for the size of the reply: `prompt,sampled,interval`, the last
/// in microseconds between streamed tokens. Other requests (a probe) get a small one.
async fn chat(State(cache): State<Cache>, body: Bytes) -> Response<Body> {
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let asked: Vec<usize> = request["messages"][0]["content"]
        .as_str()
        .map(|user| user.split(',').filter_map(|number| number.parse().ok()).collect())
        .unwrap_or_default();
    let (size, interval) = match asked[..] {
        [prompt, sampled, interval] => ((prompt, sampled), Duration::from_micros(interval as u64)),
        _ => {
            let most = request["max_tokens"].as_u64().map_or(4, |most| most.min(4) as usize);
            ((3, most), Duration::ZERO)
        }
    };
    let canned = cache
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(size)
        .or_insert_with(|| make(size.0, size.1))
        .clone();
    if request["stream"].as_bool() == Some(true) {
        let usage = request["stream_options"]["include_usage"].as_bool() == Some(true);
        let last = canned.chunks.len() - 2;
        let chunks: Vec<Bytes> = canned
            .chunks
            .iter()
            .enumerate()
            .filter(|(index, _)| usage || *index != last)
            .map(|(_, chunk)| chunk.clone())
            .collect();
        // One chunk per poll, as an engine that samples token by token would send them.
        let mut ticks = tokio::time::interval(interval.max(Duration::from_micros(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let body =
            stream::unfold((chunks.into_iter(), ticks), move |(mut rest, mut ticks)| async move {
                let chunk = rest.next()?;
                if interval.is_zero() {
                    tokio::task::yield_now().await;
                } else {
                    ticks.tick().await;
                }
                Some((Ok::<_, Infallible>(chunk), (rest, ticks)))
            });
        ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(body)).into_response()
    } else {
        ([(header::CONTENT_TYPE, "application/json")], canned.unary).into_response()
    }
}

fn make(prompt: usize, sampled: usize) -> Canned {
    let prompt_ids: Vec<u32> = (0..prompt as u32).map(|i| (i * 7919) % 150_000).collect();
    let ids: Vec<u32> = (0..sampled as u32).map(|i| (i * 104_729) % 150_000).collect();
    let logprob = |id: u32| -f64::from(id % 1000) / 250.0;
    let entry = |id: u32| json!({"token": " word", "logprob": logprob(id), "bytes": [32, 119, 111, 114, 100], "top_logprobs": []});
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": sampled,
        "total_tokens": prompt + sampled, "prompt_tokens_details": {"cached_tokens": 0}});
    let unary = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1_790_000_000, "model": MODEL,
        "choices": [{"index": 0,
            "message": {"role": "assistant", "content": " word".repeat(sampled), "reasoning": null, "tool_calls": []},
            "logprobs": {"content": ids.iter().map(|id| entry(*id)).collect::<Vec<_>>()},
            "finish_reason": "stop", "stop_reason": null, "token_ids": ids}],
        "usage": usage, "prompt_logprobs": null, "prompt_token_ids": prompt_ids,
        "kv_transfer_params": null});
    let chunk = |choices: Value, extra: &[(&str, Value)]| {
        let mut chunk = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk",
            "created": 1_790_000_000, "model": MODEL, "choices": choices});
        for (name, value) in extra {
            chunk[*name] = value.clone();
        }
        Bytes::from(format!("data: {chunk}\n\n"))
    };
    let mut chunks = vec![chunk(
        json!([{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}]),
        &[("prompt_token_ids", json!(prompt_ids))],
    )];
    for (position, id) in ids.iter().enumerate() {
        let last = position + 1 == ids.len();
        chunks.push(chunk(
            json!([{"index": 0, "delta": {"content": " word"}, "logprobs": {"content": [entry(*id)]},
                "finish_reason": if last { json!("stop") } else { Value::Null },
                "stop_reason": null, "token_ids": [id]}]),
            &[],
        ));
    }
    chunks.push(chunk(json!([]), &[("usage", usage)]));
    chunks.push(Bytes::from_static(b"data: [DONE]\n\n"));
    Canned { unary: Bytes::from(unary.to_string()), chunks: Arc::new(chunks) }
}
