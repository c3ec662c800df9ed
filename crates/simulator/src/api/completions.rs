//! `POST /v1/completions`: ids or text in, ids and logprobs out. Used to score tokens
//! again (`prompt_logprobs`, or `echo` with `logprobs`).

use super::Simulator;
use super::chat_reply::{Played, broken_response, play};
use super::chat_request::{SamplingFields, body, fields};
use super::error::ApiError;
use super::generation::{Generation, own_ids, without_nulls};
use super::logprobs::{Scored, ScorerState, prompt_logprobs};
use super::token_stream::{self, Piece, TokenView};
use crate::fault::Fault;
use crate::sampling::Broken;
use crate::weights::Context;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, Uri};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Fields of text completions alone.
#[derive(Debug, Clone, Deserialize)]
struct CompletionFields {
    #[serde(default)]
    prompt: Value,
    logprobs: Option<usize>,
    echo: Option<bool>,
}

pub(super) async fn completions(
    State(simulator): State<Arc<Simulator>>,
    uri: Uri,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, ApiError> {
    let body = body(&headers, &bytes)?;
    let number = simulator.arrived(&uri, &headers, &body);
    let (mut sampling, asked): (SamplingFields, CompletionFields) =
        (fields(&body)?, fields(&body)?);
    sampling.check()?;
    simulator.check_model(sampling.model.as_deref())?;
    // The old default of the completions API.
    sampling.max_tokens = sampling.max_tokens.or(Some(16));
    let mut generations = Vec::new();
    for prompt in prompts(&simulator, &asked.prompt)? {
        let simulator = Arc::clone(&simulator);
        let fields = sampling.clone();
        generations.push(Generation::completion(simulator, number, &headers, fields, prompt)?);
    }
    match generations.pop() {
        Some(generation) if sampling.streams() && generations.is_empty() => {
            generation.before_headers().await;
            stream(generation, &asked)
        }
        _ if sampling.streams() => {
            let message = "The simulator streams the reply to one prompt.";
            Err(ApiError::bad_request(message).of("prompt"))
        }
        last => {
            generations.extend(last);
            respond(&simulator, generations, &asked).await
        }
    }
}

fn stream(generation: Generation, asked: &CompletionFields) -> Result<Response, ApiError> {
    if asked.echo.unwrap_or(false) {
        let message = "The simulator does not stream an echo.";
        return Err(ApiError::bad_request(message).of("echo"));
    }
    let top = asked.logprobs.filter(|_| generation.fault != Some(Fault::MissingLogprobs));
    let id = format!("cmpl-{}", generation.id);
    token_stream::respond(generation, Box::new(CompletionView { id, top, characters: 0 }))
}

/// How a streamed completion is shown.
struct CompletionView {
    id: String,
    /// Likeliest tokens to show; none for no logprobs at all.
    top: Option<usize>,
    /// Shown so far.
    characters: usize,
}

impl CompletionView {
    fn chunk(&self, generation: &Generation, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": generation.created,
            "model": generation.simulator.config.model,
            "choices": choices,
        })
    }
}

impl TokenView for CompletionView {
    fn top(&self) -> Option<usize> {
        self.top
    }

    fn piece(&mut self, generation: &Generation, piece: Piece<'_>) -> Value {
        let Piece { ids, text, scored, first, end, .. } = piece;
        let lost = usize::from(first && generation.loses_a_logprob());
        let mut lists = Lists::after(self.characters);
        scored.iter().skip(lost).for_each(|scored| lists.add(scored, true));
        self.characters = lists.characters;
        let shown = generation.shows_ids();
        let choice = json!({
            "index": 0,
            "text": text,
            "logprobs": self.top.map(|_| lists.into_json()),
            "finish_reason": end.map(|end| end.finish),
            "stop_reason": end.map(|end| end.stop_reason.clone()),
            "prompt_token_ids": (shown && first).then_some(&generation.prompt),
            "token_ids": shown.then(|| generation.shown_ids(ids, first)),
        });
        let mut chunk = self.chunk(generation, json!([choice]));
        let usage_follows =
            generation.fields.stream_options.is_some_and(|options| options.include_usage);
        if end.is_some() && !usage_follows {
            chunk["system_fingerprint"] = generation.simulator.fingerprint().into();
        }
        chunk
    }

    fn usage(&self, generation: &Generation, usage: Value) -> Value {
        let mut chunk = self.chunk(generation, json!([]));
        chunk["system_fingerprint"] = generation.simulator.fingerprint().into();
        chunk["usage"] = without_nulls(usage);
        chunk
    }
}

/// Ids of a prompt, and its text when it came as text.
pub(super) type Prompt = (Vec<u32>, Option<String>);

/// One prompt or several, each as text or ids.
pub(super) fn prompts(simulator: &Simulator, prompt: &Value) -> Result<Vec<Prompt>, ApiError> {
    let one = |prompt: &Value| match prompt {
        Value::String(text) => Ok((simulator.encode_prompt(text)?, Some(text.clone()))),
        Value::Array(ids) => Ok((own_ids(simulator, ids)?, None)),
        _ => Err(ApiError::validation("Input should be text or ids", Some("prompt"))),
    };
    match prompt {
        Value::Array(items) if items.is_empty() => {
            Err(ApiError::bad_request("You must pass at least one prompt"))
        }
        Value::Array(items) if items.iter().any(|item| !item.is_number()) => {
            items.iter().map(one).collect()
        }
        Value::Null => {
            let message = "Either prompt or prompt_embeds must be provided and non-empty.";
            Err(ApiError::bad_request(message).of("prompt"))
        }
        single => Ok(vec![one(single)?]),
    }
}

async fn respond(
    simulator: &Arc<Simulator>,
    generations: Vec<Generation>,
    asked: &CompletionFields,
) -> Result<Response, ApiError> {
    let mut choices = Vec::new();
    let (mut prompt_tokens, mut sampled) = (0, 0);
    let mut first = None;
    for mut generation in generations {
        generation.before_headers().await;
        for player in generation.start(generation.unwatched_batch()).await {
            let Ok(reply) = play(player, &simulator.control).await else {
                let Broken = Broken;
                return Ok(broken_response(br#"{"id":"cmpl-"#));
            };
            sampled += reply.tokens();
            choices.push(choice(&generation, asked, choices.len(), &reply));
        }
        generation.running.finish();
        prompt_tokens += generation.prompt.len();
        first.get_or_insert(generation);
    }
    simulator.activity.sampled(sampled);
    let Some(generation) = first else {
        return Err(ApiError::bad_request("You must pass at least one prompt"));
    };
    let mut usage = generation.usage(sampled, None);
    usage["prompt_tokens_details"]["created_cache_tokens"] = Value::Null;
    usage["prompt_tokens"] = prompt_tokens.into();
    usage["total_tokens"] = (prompt_tokens + sampled).into();
    Ok(Json(json!({
        "id": format!("cmpl-{}", generation.id),
        "object": "text_completion",
        "created": generation.created,
        "model": simulator.config.model,
        "choices": choices,
        "service_tier": null,
        "system_fingerprint": simulator.fingerprint(),
        "usage": usage,
        "kv_transfer_params": null,
        "ec_transfer_params": null,
        "metrics": null,
    }))
    .into_response())
}

fn choice(
    generation: &Generation,
    asked: &CompletionFields,
    index: usize,
    reply: &Played,
) -> Value {
    let simulator = &generation.simulator;
    let (finish, stop_reason) = reply.end();
    let echo = asked.echo.unwrap_or(false);
    let mut text = reply.text();
    // A prompt of ids has no text to echo.
    if let Some(prompt) = generation.prompt_text.as_ref().filter(|_| echo) {
        text.insert_str(0, prompt);
    }
    let shown = generation.shows_ids();
    // Echo with logprobs scores the prompt as well.
    let top = generation.fields.prompt_logprobs.and_then(|top| usize::try_from(top).ok());
    let top = top.or(asked.logprobs.filter(|_| echo));
    let logprobs = asked.logprobs.filter(|_| generation.fault != Some(Fault::MissingLogprobs));
    json!({
        "index": index,
        "text": text,
        "logprobs": logprobs.map(|top| legacy_logprobs(generation, reply, top, echo)),
        "finish_reason": finish,
        "stop_reason": stop_reason,
        "token_ids": shown.then(|| generation.shown_ids(reply.ids(), true)),
        "prompt_logprobs": top.map(|top| prompt_logprobs(simulator, &generation.prompt, top)),
        "prompt_token_ids": shown.then_some(&generation.prompt),
        "routed_experts": null,
    })
}

/// The four parallel lists of the completions API.
fn legacy_logprobs(generation: &Generation, reply: &Played, top: usize, echo: bool) -> Value {
    let simulator = &generation.simulator;
    let mut lists = Lists::default();
    if echo {
        let version = simulator.control.weights();
        let mut scorer = ScorerState::at(Context::empty()).resume(simulator);
        for (place, id) in generation.prompt.iter().enumerate() {
            let scored = scorer.score(*id, &version, top);
            lists.add(&scored, place > 0);
        }
    }
    let mut scorer = generation.scorer().resume(simulator);
    for (place, batch) in reply.batches.iter().enumerate() {
        for (step, id) in reply.player.script().ids[batch.range.clone()].iter().enumerate() {
            let scored = scorer.score(*id, &batch.weights, top);
            if !(generation.loses_a_logprob() && place == 0 && step == 0) {
                lists.add(&scored, true);
            }
        }
    }
    lists.into_json()
}

/// The four parallel lists of logprobs.
#[derive(Default)]
pub(super) struct Lists {
    characters: usize,
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f64>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
}

impl Lists {
    /// Of what comes behind so many characters.
    pub(super) fn after(characters: usize) -> Self {
        Self { characters, ..Self::default() }
    }

    pub(super) fn characters(&self) -> usize {
        self.characters
    }

    pub(super) fn into_json(self) -> Value {
        json!({
            "text_offset": self.text_offset,
            "token_logprobs": self.token_logprobs,
            "tokens": self.tokens,
            "top_logprobs": self.top_logprobs,
        })
    }

    /// `known` is false for the first token of a prompt, which nothing comes before.
    pub(super) fn add(&mut self, scored: &Scored, known: bool) {
        let number = |value: f32| f64::from(value);
        self.text_offset.push(self.characters);
        self.characters += scored.text.chars().count();
        self.tokens.push(scored.text.clone());
        self.token_logprobs.push(known.then(|| number(scored.logprob.value)));
        self.top_logprobs.push(known.then(|| {
            let entries = scored.all.iter();
            entries.map(|(_, text, logprob)| (text.clone(), number(logprob.value).into())).collect()
        }));
    }
}
