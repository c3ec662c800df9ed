//! A chat completion as server-sent events.

use super::chat::ChatView;
use super::chat_reply::{ReasoningCounter, call_id};
use super::generation::{Generation, without_nulls};
use super::logprobs::{ChatLogprobs, ScorerState};
use crate::fault::Fault;
use crate::parsing::{Delta, StreamParser};
use crate::sampling::{Batch, Broken, Player};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderName, HeaderValue, header};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Bytes of events that are sent together when nothing slows the reply down.
pub(super) const FRAME_BYTES: usize = 16 << 10;

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [ChunkChoice],
    /// Only on the first chunk, null when not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Option<&'a [u32]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_text: Option<Option<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_fingerprint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

#[derive(Debug, Serialize)]
struct ChunkChoice {
    index: usize,
    delta: ChunkDelta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Option<Vec<u32>>>,
}

#[derive(Debug, Default, Serialize)]
struct ChunkDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
}

/// One choice on its way.
struct Choice {
    player: Player,
    parser: StreamParser,
    scorer: Option<ScorerState>,
    reasoning: ReasoningCounter,
    called: bool,
    tokens: usize,
    done: bool,
}

/// The stream's state between frames.
struct Streaming {
    generation: Generation,
    view: ChatView,
    id: String,
    choices: Vec<Choice>,
    phase: Phase,
    /// Events ready to be sent, oldest first.
    ready: VecDeque<Bytes>,
}

#[derive(PartialEq, Eq)]
enum Phase {
    NotStarted,
    Playing,
    Breaking,
    Done,
}

pub(super) fn respond(generation: Generation, view: ChatView) -> Response {
    let id = format!("chatcmpl-{}", generation.id);
    let streaming = Streaming {
        generation,
        view,
        id,
        choices: Vec::new(),
        phase: Phase::NotStarted,
        ready: VecDeque::new(),
    };
    let frames = stream::unfold(streaming, |mut streaming| async move {
        let frame = streaming.frame().await?;
        Some((frame, streaming))
    });
    event_stream(Body::from_stream(frames))
}

/// A response of server-sent events.
pub(super) fn event_stream(body: Body) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, kind);
    let proxies = HeaderName::from_static("x-accel-buffering");
    headers.insert(proxies, HeaderValue::from_static("no"));
    response
}

impl Streaming {
    /// The next bytes to send; none at the end.
    async fn frame(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(Ok(frame));
            }
            match self.phase {
                Phase::NotStarted => self.begin().await,
                Phase::Playing => self.play().await,
                Phase::Breaking => {
                    // Lets the connection send what it has before it is cut.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    self.phase = Phase::Done;
                    return Some(Err(io::ErrorKind::ConnectionReset.into()));
                }
                Phase::Done => return None,
            }
        }
    }

    async fn begin(&mut self) {
        let players = self.generation.start(self.generation.chunk()).await;
        let scored = self.view.logprobs
            && !self.view.hides_tokens(&self.generation)
            && self.generation.fault != Some(Fault::MissingLogprobs);
        self.choices = players
            .into_iter()
            .map(|player| Choice {
                player,
                parser: StreamParser::new(self.generation.parsers),
                scorer: scored.then(|| self.generation.scorer()),
                reasoning: ReasoningCounter::new(&self.generation),
                called: false,
                tokens: 0,
                done: false,
            })
            .collect();
        for index in 0..self.choices.len() {
            let delta = ChunkDelta {
                role: Some("assistant"),
                content: Some(Some(String::new())),
                ..ChunkDelta::default()
            };
            let choice = ChunkChoice {
                index,
                delta,
                logprobs: None,
                finish_reason: None,
                stop_reason: None,
                token_ids: None,
            };
            let shown = self.generation.shows_ids();
            let mut chunk = self.chunk(std::slice::from_ref(&choice));
            chunk.prompt_token_ids = Some(shown.then_some(&self.generation.prompt));
            let text = self.generation.prompt_text.as_deref();
            chunk.prompt_text = Some(text.filter(|_| self.view.return_prompt_text));
            if self.continuous_usage() {
                chunk.usage = Some(self.usage_so_far(0));
            }
            let event = event(&chunk);
            self.ready.push_back(event.into());
        }
        self.phase = Phase::Playing;
    }

    /// Plays a round over the choices, or several while they cost no time.
    async fn play(&mut self) {
        let mut frame = Vec::new();
        let unpaced = self.generation.simulator.config.speed.tokens_per_second.is_none();
        loop {
            for index in 0..self.choices.len() {
                if self.choices[index].done {
                    continue;
                }
                let simulator = &self.generation.simulator;
                match self.choices[index].player.next(&simulator.control).await {
                    Some(Ok(batch)) => self.show(index, &batch, &mut frame),
                    Some(Err(Broken)) => {
                        self.phase = Phase::Breaking;
                        self.ready.push_back(frame.into());
                        return;
                    }
                    None => self.choices[index].done = true,
                }
            }
            if self.choices.iter().all(|choice| choice.done) {
                self.end(&mut frame);
                self.phase = Phase::Done;
                break;
            }
            if !unpaced || frame.len() >= FRAME_BYTES || self.may_stall() {
                break;
            }
        }
        self.ready.push_back(frame.into());
    }

    /// Whether the next step may take for ever, so that what is there must go out first.
    fn may_stall(&self) -> bool {
        matches!(self.generation.fault, Some(Fault::StallAfter(_)))
            || self.generation.simulator.control.is_paused()
    }

    /// Turns a batch of tokens into an event, unless there is nothing to say.
    fn show(&mut self, index: usize, batch: &Batch, frame: &mut Vec<u8>) {
        let generation = &self.generation;
        let choice = &mut self.choices[index];
        let script = choice.player.script();
        let ids = &script.ids[batch.range.clone()];
        let text = script.texts[batch.range.clone()].concat();
        let first = batch.range.start == 0;
        ids.iter().for_each(|id| choice.reasoning.take(generation, *id));
        let delta = choice.parser.push(&text, batch.end.is_some());
        choice.called |= delta.as_ref().is_some_and(|delta| !delta.calls.is_empty());
        choice.tokens += ids.len();
        choice.done = batch.end.is_some();
        generation.simulator.activity.sampled(ids.len());
        let ids = ids.to_vec();
        let logprobs = choice.scorer.take().map(|state| {
            let as_ids = generation.fields.return_tokens_as_token_ids.unwrap_or(false);
            let mut scorer = state.resume(&generation.simulator);
            let top = self.view.top_logprobs;
            let mut content: Vec<_> = ids
                .iter()
                .map(|id| scorer.score(*id, &batch.weights, top).into_chat(top, as_ids))
                .collect();
            choice.scorer = Some(scorer.pause());
            if first && generation.loses_a_logprob() && !content.is_empty() {
                content.remove(0);
            }
            ChatLogprobs { content }
        });
        let shows_ids = generation.shows_ids() && !self.view.hides_tokens(generation);
        let delta = delta.filter(|delta| self.view.include_reasoning || delta.reasoning.is_none());
        if delta.is_none() && batch.end.is_none() && logprobs.is_none() && !shows_ids {
            return;
        }
        let choice = ChunkChoice {
            index,
            delta: delta.map_or_else(ChunkDelta::default, |delta| {
                shown_delta(generation, &self.view, index, delta)
            }),
            logprobs,
            finish_reason: batch
                .end
                .as_ref()
                .map(|end| self.view.finish(end.finish, self.choices[index].called, true)),
            stop_reason: batch.end.as_ref().map(|end| end.stop_reason.clone()),
            token_ids: Some(shows_ids.then(|| generation.shown_ids(&ids, first))),
        };
        let mut chunk = self.chunk(std::slice::from_ref(&choice));
        if batch.end.is_some() && !self.includes_usage() {
            chunk.system_fingerprint = Some(self.generation.simulator.fingerprint());
        }
        if self.continuous_usage() {
            let sampled = self.choices[index].tokens;
            chunk.usage = Some(self.usage_so_far(sampled));
        }
        frame.extend_from_slice(&event(&chunk));
    }

    fn end(&mut self, frame: &mut Vec<u8>) {
        if self.includes_usage() {
            let sampled = self.choices.iter().map(|choice| choice.tokens).sum();
            let mut chunk = self.chunk(&[]);
            chunk.system_fingerprint = Some(self.generation.simulator.fingerprint());
            let usage = self.generation.usage(sampled, self.reasoning_tokens());
            chunk.usage = Some(without_nulls(usage));
            frame.extend_from_slice(&event(&chunk));
        }
        frame.extend_from_slice(b"data: [DONE]\n\n");
        self.generation.running.finish();
    }

    fn chunk<'a>(&'a self, choices: &'a [ChunkChoice]) -> Chunk<'a> {
        Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.generation.created,
            model: &self.generation.simulator.config.model,
            choices,
            prompt_token_ids: None,
            prompt_text: None,
            system_fingerprint: None,
            usage: None,
        }
    }

    fn includes_usage(&self) -> bool {
        self.generation.fields.stream_options.is_some_and(|options| options.include_usage)
    }

    fn continuous_usage(&self) -> bool {
        let options = self.generation.fields.stream_options;
        options.is_some_and(|options| options.include_usage && options.continuous_usage_stats)
    }

    /// Usage on every chunk says nothing about the cache.
    fn usage_so_far(&self, sampled: usize) -> Value {
        let mut usage = self.generation.usage(sampled, self.reasoning_tokens());
        usage["prompt_tokens_details"] = Value::Null;
        without_nulls(usage)
    }

    fn reasoning_tokens(&self) -> Option<usize> {
        let parses = self.generation.simulator.config.parse_reasoning;
        parses.then(|| self.choices.iter().map(|choice| choice.reasoning.tokens).sum())
    }
}

fn shown_delta(generation: &Generation, view: &ChatView, index: usize, delta: Delta) -> ChunkDelta {
    let calls = delta.calls.into_iter().filter(|call| !view.single_call || call.index == 0);
    let calls = calls.map(|call| {
        let mut shown = Map::new();
        if call.name.is_some() {
            shown.insert("id".to_owned(), call_id(generation, index, call.index).into());
            shown.insert("type".to_owned(), "function".into());
        }
        shown.insert("index".to_owned(), call.index.into());
        let function = [("name", call.name), ("arguments", call.arguments)];
        let function =
            function.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.into())));
        shown.insert("function".to_owned(), Value::Object(function.collect()));
        Value::Object(shown)
    });
    ChunkDelta {
        role: None,
        content: delta.content,
        reasoning: delta.reasoning,
        tool_calls: calls.collect(),
    }
}

/// One server-sent event.
pub(super) fn event<T: Serialize>(data: &T) -> Vec<u8> {
    let mut event = b"data: ".to_vec();
    // Plain data in memory always serialises.
    if serde_json::to_writer(&mut event, data).is_err() {
        event.truncate(b"data: ".len());
    }
    event.extend_from_slice(b"\n\n");
    event
}
