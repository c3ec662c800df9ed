//! `POST /v1/chat/completions`, which tells no ids, and its `/render`, which tells those of a prompt.

use super::fields::{OF_CHAT, OF_FUNCTION};
use super::{Refusal, forbidden, request, usage};
use crate::api::Simulator;
use crate::api::chat::ChatView;
use crate::api::chat_reply;
use crate::api::chat_request::{ChatFields, SamplingFields, ToolChoice, fields};
use crate::api::error::ApiError;
use crate::api::generation::{Generation, prompt_text};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, Uri};
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn chat(
    State(simulator): State<Arc<Simulator>>,
    uri: Uri,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Refusal> {
    let body = request(&headers, &bytes, OF_CHAT)?;
    let number = simulator.arrived(&uri, &headers, &body);
    let (sampling, mut chat): (SamplingFields, ChatFields) = (fields(&body)?, fields(&body)?);
    check(&chat)?;
    sampling.check()?;
    if sampling.streams() {
        return Err(ApiError::bad_request("The simulator answers chats whole.").into());
    }
    if !simulator.config.parse_tools {
        // The template is given the tools, and calls of them stay text.
        chat.tool_choice = Some("none".into());
    }
    let view = ChatView {
        logprobs: chat.logprobs.unwrap_or(false),
        top_logprobs: 0,
        tool_choice: chat.tool_choice()?,
        single_call: false,
        return_prompt_text: false,
        include_reasoning: true,
    };
    let generation = Generation::chat(simulator, number, &headers, sampling, &chat)?;
    generation.before_headers().await;
    Ok(match chat_reply::played(generation, &view).await {
        Ok((generation, reply)) => Json(shown(&generation, reply)).into_response(),
        Err(broken) => broken,
    })
}

fn check(chat: &ChatFields) -> Result<(), Refusal> {
    for tool in chat.tools.iter().flatten() {
        let function = tool["function"].as_object().into_iter().flatten();
        let unknown = function.map(|(key, _)| key).find(|key| !OF_FUNCTION.contains(&key.as_str()));
        if let Some(unknown) = unknown {
            return Err(forbidden("body', 'tools', 'function", unknown));
        }
    }
    if chat.tool_choice()? == ToolChoice::Required {
        let message = "tool_choice='required' is not supported for this model.";
        return Err(ApiError::bad_request(message).into());
    }
    Ok(chat.check()?)
}

/// Of vLLM's reply what this server has too, under its names.
fn shown(generation: &Generation, reply: chat_reply::Reply) -> Value {
    let choices = reply.choices.into_iter().map(|choice| {
        let message = &choice["message"];
        let calls = message.get("tool_calls").cloned().unwrap_or_else(|| json!([]));
        json!({
            "index": choice["index"],
            "message": {
                "role": "assistant",
                "content": message["content"],
                "reasoning_content": message["reasoning"],
                "reasoning": null,
                "tool_calls": calls,
            },
            "logprobs": choice["logprobs"],
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice["stop_reason"],
            "mm_embedding_handle": null,
            "disaggregated_params": null,
            "avg_decoded_tokens_per_iter": 1.0,
        })
    });
    json!({
        "id": format!("chatcmpl-{}", generation.id),
        "object": "chat.completion",
        "created": generation.created,
        "model": generation.simulator.config.model,
        "choices": choices.collect::<Vec<_>>(),
        "usage": usage(generation, reply.sampled),
        "prompt_token_ids": null,
    })
}

pub(super) async fn render(
    State(simulator): State<Arc<Simulator>>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body = request(&headers, &bytes, OF_CHAT)?;
    let chat: ChatFields = fields(&body)?;
    check(&chat)?;
    let options = chat.template_options(&simulator.config.chat_template_kwargs);
    let text = prompt_text(&simulator, &chat, &options)?;
    Ok(Json(json!({
        "schema_version": 1,
        "kind": "chat",
        "fingerprint": {"simulator": simulator.config.model},
        "token_ids": simulator.encode_prompt(&text)?,
        "tokens_trusted": true,
        "untrusted_reason": null,
        "context": {"prompt_tokens_excluded_from_usage": 0, "resolved_thinking": null},
        "request": body,
    })))
}
