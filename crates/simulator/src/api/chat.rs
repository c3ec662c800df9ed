//! `POST /v1/chat/completions`.

use super::chat_request::{ChatFields, SamplingFields, ToolChoice, body, fields};
use super::error::ApiError;
use super::generation::Generation;
use super::{Simulator, chat_reply, chat_stream};
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Uri};
use std::sync::Arc;

/// How a chat reply is shown.
#[derive(Debug, Clone)]
pub(super) struct ChatView {
    pub logprobs: bool,
    pub top_logprobs: usize,
    pub tool_choice: ToolChoice,
    pub single_call: bool,
    pub return_prompt_text: bool,
    pub include_reasoning: bool,
}

pub(super) async fn chat(
    State(simulator): State<Arc<Simulator>>,
    uri: Uri,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, ApiError> {
    let body = body(&headers, &bytes)?;
    let number = simulator.arrived(&uri, &headers, &body);
    let (sampling, mut chat): (SamplingFields, ChatFields) = (fields(&body)?, fields(&body)?);
    chat.accept_reasoning_content();
    sampling.check()?;
    chat.check()?;
    simulator.check_model(sampling.model.as_deref())?;
    let view = ChatView {
        logprobs: chat.logprobs.unwrap_or(false),
        top_logprobs: match chat.top_logprobs {
            Some(-1) => usize::MAX,
            top => top.and_then(|top| usize::try_from(top).ok()).unwrap_or(0),
        },
        tool_choice: chat.tool_choice()?,
        single_call: chat.parallel_tool_calls == Some(false),
        return_prompt_text: chat.return_prompt_text.unwrap_or(false),
        include_reasoning: chat.include_reasoning.unwrap_or(true),
    };
    let generation = Generation::chat(simulator, number, &headers, sampling, &chat)?;
    generation.before_headers().await;
    if generation.fields.streams() {
        Ok(chat_stream::respond(generation, view))
    } else {
        Ok(chat_reply::respond(generation, &view).await)
    }
}

impl ChatView {
    /// vLLM hides ids and logprobs together with the reasoning.
    pub(super) fn hides_tokens(&self, generation: &Generation) -> bool {
        let config = &generation.simulator.config;
        !self.include_reasoning && (config.parse_reasoning || config.parse_tools)
    }

    /// The finish reason a client sees.
    pub(super) fn finish(
        &self,
        engine: &'static str,
        called: bool,
        streamed: bool,
    ) -> &'static str {
        let shown = match self.tool_choice {
            ToolChoice::Auto if streamed => called && engine == "stop",
            ToolChoice::Auto => called,
            ToolChoice::Required if streamed => called && engine == "stop",
            ToolChoice::Required => engine == "stop",
            ToolChoice::None | ToolChoice::Named(_) => false,
        };
        if shown { "tool_calls" } else { engine }
    }
}
