//! A chat completion in one piece.

use super::chat::ChatView;
use super::chat_request::ToolChoice;
use super::generation::Generation;
use super::logprobs::{ChatLogprobs, prompt_logprobs};
use crate::fault::Fault;
use crate::parsing::{Parsed, parse};
use crate::sampling::{Batch, Broken, Player};
use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::io;

pub(super) async fn respond(generation: Generation, view: &ChatView) -> Response {
    match played(generation, view).await {
        Ok((generation, reply)) => Json(response_body(&generation, view, reply)).into_response(),
        Err(broken) => broken,
    }
}

/// What was sampled for a request, before it is put into a server's shape.
pub(super) struct Reply {
    pub choices: Vec<Value>,
    pub sampled: usize,
    reasoning: usize,
}

/// Plays all choices to their end. A connection that is to break is an error that does so.
pub(super) async fn played(
    mut generation: Generation,
    view: &ChatView,
) -> Result<(Generation, Reply), Response> {
    let players = generation.start(generation.unwatched_batch()).await;
    let simulator = std::sync::Arc::clone(&generation.simulator);
    let control = &simulator.control;
    let replies = join_all(players.into_iter().map(|player| play(player, control))).await;
    let Ok(replies) = replies.into_iter().collect::<Result<Vec<_>, Broken>>() else {
        return Err(broken_response(br#"{"id":"chatcmpl-"#));
    };
    let mut reply = Reply { choices: Vec::with_capacity(replies.len()), sampled: 0, reasoning: 0 };
    for (index, played) in replies.iter().enumerate() {
        reply.sampled += played.player.script().ids.len().min(played.tokens());
        reply.reasoning += played.reasoning_tokens(&generation);
        reply.choices.push(choice(&generation, view, index, played));
    }
    generation.simulator.activity.sampled(reply.sampled);
    generation.running.finish();
    Ok((generation, reply))
}

/// A reply that has been played to its end.
pub(super) struct Played {
    pub player: Player,
    pub batches: Vec<Batch>,
}

/// Plays a reply to its end.
pub(super) async fn play(
    mut player: Player,
    control: &crate::control::Control,
) -> Result<Played, Broken> {
    let mut batches = Vec::new();
    while let Some(batch) = player.next(control).await {
        batches.push(batch?);
    }
    Ok(Played { player, batches })
}

impl Played {
    /// Tokens that were sampled before the end or an abort.
    pub(super) fn tokens(&self) -> usize {
        self.batches.last().map_or(0, |batch| batch.range.end)
    }

    pub(super) fn ids(&self) -> &[u32] {
        &self.player.script().ids[..self.tokens()]
    }

    pub(super) fn text(&self) -> String {
        self.player.script().texts[..self.tokens()].concat()
    }

    /// Finish reason and what matched.
    pub(super) fn end(&self) -> (&'static str, Value) {
        let end = self.batches.last().and_then(|batch| batch.end.clone());
        end.map_or(("stop", Value::Null), |end| (end.finish, end.stop_reason))
    }

    fn reasoning_tokens(&self, generation: &Generation) -> usize {
        let mut counter = ReasoningCounter::new(generation);
        self.ids().iter().for_each(|id| counter.take(generation, *id));
        counter.tokens
    }
}

/// Counts the tokens of a reply that are reasoning, marks not included.
#[derive(Debug)]
pub(super) struct ReasoningCounter {
    open: bool,
    pub tokens: usize,
}

impl ReasoningCounter {
    pub(super) fn new(generation: &Generation) -> Self {
        Self { open: generation.parsers.reasoning, tokens: 0 }
    }

    pub(super) fn take(&mut self, generation: &Generation, id: u32) {
        let vocabulary = &generation.simulator.vocabulary;
        if !self.open || vocabulary.is_special(id) {
            return;
        }
        match vocabulary.bytes(id) {
            b"<think>" => {}
            b"</think>" | b"<tool_call>" => self.open = false,
            _ => self.tokens += 1,
        }
    }
}

/// A response whose body breaks off after `start`.
pub(super) fn broken_response(start: &'static [u8]) -> Response {
    let start = futures_util::stream::iter([Ok(Bytes::from_static(start))]);
    let cut = futures_util::stream::once(async {
        // Lets the connection send what it has before it is cut.
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        Err(io::Error::from(io::ErrorKind::ConnectionReset))
    });
    Body::from_stream(start.chain(cut)).into_response()
}

fn choice(generation: &Generation, view: &ChatView, index: usize, reply: &Played) -> Value {
    let (engine_finish, stop_reason) = reply.end();
    let mut parsed = parse(&reply.text(), generation.parsers);
    let called = !parsed.calls.is_empty();
    if view.single_call {
        parsed.calls.truncate(1);
    }
    if !view.include_reasoning {
        parsed.reasoning = None;
    }
    let hidden = view.hides_tokens(generation);
    let logprobs =
        (view.logprobs && !hidden).then(|| chat_logprobs(generation, view, reply)).flatten();
    let ids = (generation.shows_ids() && !hidden).then(|| generation.shown_ids(reply.ids(), true));
    json!({
        "index": index,
        "message": message(generation, view, index, parsed),
        "logprobs": logprobs,
        "finish_reason": view.finish(engine_finish, called, false),
        "stop_reason": stop_reason,
        "token_ids": ids,
        "routed_experts": null,
    })
}

fn message(generation: &Generation, view: &ChatView, index: usize, parsed: Parsed) -> Value {
    let forced = matches!(view.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
    let content = if forced { Some(parsed.content.unwrap_or_default()) } else { parsed.content };
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    message.insert("content".to_owned(), content.into());
    for key in ["refusal", "annotations", "audio", "function_call"] {
        message.insert(key.to_owned(), Value::Null);
    }
    if !parsed.calls.is_empty() {
        let calls = parsed.calls.iter().enumerate().map(|(place, call)| {
            let id = call_id(generation, index, place);
            json!({"id": id, "type": "function", "function": call})
        });
        message.insert("tool_calls".to_owned(), calls.collect());
    }
    message.insert("reasoning".to_owned(), parsed.reasoning.into());
    Value::Object(message)
}

/// Id of a tool call: choice `index`, call `place`.
pub(super) fn call_id(generation: &Generation, index: usize, place: usize) -> String {
    let part = 1 + (index as u64) * 1000 + place as u64;
    format!("chatcmpl-tool-{}", generation.simulator.unique(generation.number, part))
}

fn chat_logprobs(generation: &Generation, view: &ChatView, reply: &Played) -> Option<ChatLogprobs> {
    if generation.fault == Some(Fault::MissingLogprobs) {
        return None;
    }
    let as_ids = generation.fields.return_tokens_as_token_ids.unwrap_or(false);
    let mut scorer = generation.scorer().resume(&generation.simulator);
    let mut content = Vec::with_capacity(reply.tokens());
    for batch in &reply.batches {
        for id in &reply.player.script().ids[batch.range.clone()] {
            let scored = scorer.score(*id, &batch.weights, view.top_logprobs);
            content.push(scored.into_chat(view.top_logprobs, as_ids));
        }
    }
    if generation.loses_a_logprob() && !content.is_empty() {
        content.remove(0);
    }
    Some(ChatLogprobs { content })
}

/// Written from the ids as they are: a long prompt as a tree of JSON values would cost
/// more than everything else.
#[derive(Serialize)]
struct ChatReply<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Value>,
    service_tier: Option<&'static str>,
    system_fingerprint: String,
    usage: Value,
    prompt_logprobs: Option<Vec<Value>>,
    prompt_token_ids: Option<&'a [u32]>,
    prompt_text: Option<&'a str>,
    kv_transfer_params: Option<Value>,
    ec_transfer_params: Option<Value>,
    metrics: Option<Value>,
}

fn response_body<'a>(generation: &'a Generation, view: &ChatView, reply: Reply) -> ChatReply<'a> {
    let Reply { choices, sampled, reasoning } = reply;
    let simulator = &generation.simulator;
    let scored = generation.fields.prompt_logprobs.map(|top| {
        prompt_logprobs(simulator, &generation.prompt, usize::try_from(top).unwrap_or(usize::MAX))
    });
    let reasoning = simulator.config.parse_reasoning.then_some(reasoning);
    ChatReply {
        id: format!("chatcmpl-{}", generation.id),
        object: "chat.completion",
        created: generation.created,
        model: &simulator.config.model,
        choices,
        service_tier: None,
        system_fingerprint: simulator.fingerprint(),
        usage: generation.usage(sampled, reasoning),
        prompt_logprobs: scored,
        prompt_token_ids: generation.shows_ids().then_some(&generation.prompt),
        prompt_text: generation.prompt_text.as_deref().filter(|_| view.return_prompt_text),
        kv_transfer_params: None,
        ec_transfer_params: None,
        metrics: None,
    }
}
