//! `POST /v1/completions`: ids in, and with `detokenize: false` ids out.

use super::fields::OF_COMPLETION;
use super::{Refusal, request, usage};
use crate::api::Simulator;
use crate::api::chat_reply::{broken_response, play};
use crate::api::chat_request::{SamplingFields, fields};
use crate::api::completions::{Lists, prompts};
use crate::api::error::ApiError;
use crate::api::generation::Generation;
use crate::api::logprobs::Scored;
use crate::api::token_stream::{self, Piece, TokenView};
use crate::fault::Fault;
use crate::sampling::Broken;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, Uri};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Fields that are read otherwise than vLLM's, or that it has not.
#[derive(Debug, Deserialize)]
struct Fields {
    #[serde(default)]
    prompt: Value,
    logprobs: Option<usize>,
    detokenize: Option<bool>,
    top_k: Option<i64>,
}

pub(super) async fn completions(
    State(simulator): State<Arc<Simulator>>,
    uri: Uri,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Refusal> {
    let body = request(&headers, &bytes, OF_COMPLETION)?;
    let number = simulator.arrived(&uri, &headers, &body);
    let (sampling, asked): (SamplingFields, Fields) = (fields(&body)?, fields(&body)?);
    if asked.top_k.is_some_and(|k| k < 0) {
        return Err(ApiError::bad_request("require top_k >= 0").into());
    }
    let prompt = one_prompt(&simulator, &asked.prompt)?;
    let sampling = completed(&simulator, sampling, prompt.0.len())?;
    let mut generation = Generation::completion(simulator, number, &headers, sampling, prompt)?;
    generation.before_headers().await;
    let view = View {
        id: format!("cmpl-{}", generation.id),
        top: asked.logprobs.filter(|top| *top > 0),
        detokenize: asked.detokenize.unwrap_or(true),
        sampled: 0,
        characters: 0,
    };
    if generation.fields.streams() {
        return Ok(token_stream::respond(generation, Box::new(view))?);
    }
    whole(&mut generation, view).await
}

fn one_prompt(
    simulator: &Simulator,
    prompt: &Value,
) -> Result<(Vec<u32>, Option<String>), Refusal> {
    let mut prompts = prompts(simulator, prompt)?;
    match (prompts.pop(), prompts.is_empty()) {
        (Some(prompt), true) => Ok(prompt),
        _ => Err(ApiError::bad_request("The simulator takes one prompt.").into()),
    }
}

/// The request as the other places have it. A limit that does not fit is lowered.
fn completed(
    simulator: &Simulator,
    mut sampling: SamplingFields,
    prompt: usize,
) -> Result<SamplingFields, Refusal> {
    let window = simulator.config.context_window;
    let left = window.checked_sub(prompt).filter(|left| *left > 0);
    let left = left.ok_or_else(|| ApiError::more_than_can_be_prefilled(prompt, window))?;
    let left = i64::try_from(left).unwrap_or(i64::MAX);
    sampling.max_tokens = Some(sampling.max_tokens.map_or(left, |most| most.min(left)));
    sampling.check()?;
    Ok(sampling)
}

async fn whole(generation: &mut Generation, mut view: View) -> Result<Response, Refusal> {
    let simulator = Arc::clone(&generation.simulator);
    let mut choices = Vec::new();
    for player in generation.start(generation.unwatched_batch()).await {
        let Ok(reply) = play(player, &simulator.control).await else {
            let Broken = Broken;
            return Ok(broken_response(br#"{"id":"cmpl-"#));
        };
        let mut scorer = generation.scorer().resume(&simulator);
        let mut scored = Vec::with_capacity(reply.tokens());
        for batch in &reply.batches {
            let ids = &reply.player.script().ids[batch.range.clone()];
            let top = view.top.unwrap_or(0);
            scored.extend(ids.iter().map(|id| scorer.score(*id, &batch.weights, top)));
        }
        let (finish, stop_reason) = reply.end();
        let end = (finish, &stop_reason);
        let mut choice =
            view.choice(generation, reply.ids(), reply.text(), scored, (true, Some(end)));
        choice["index"] = choices.len().into();
        choices.push(choice);
    }
    simulator.activity.sampled(view.sampled);
    generation.running.finish();
    let usage = usage(generation, view.sampled);
    Ok(Json(view.body(generation, json!(choices), usage)).into_response())
}

/// How a reply is shown.
struct View {
    id: String,
    /// Likeliest tokens to show; none for no logprobs at all.
    top: Option<usize>,
    detokenize: bool,
    /// Ids so far.
    sampled: usize,
    /// Characters shown so far.
    characters: usize,
}

impl View {
    fn choice(
        &mut self,
        generation: &Generation,
        ids: &[u32],
        text: String,
        mut scored: Vec<Scored>,
        (first, end): (bool, Option<(&str, &Value)>),
    ) -> Value {
        let mut ids = generation.shown_ids(ids, first);
        let keeps_stop = generation.fields.include_stop_str_in_output.unwrap_or(false);
        if end.is_some_and(|(_, reason)| reason.is_number()) && !keeps_stop {
            // Ended by a stop token: neither it nor its logprob is told.
            ids.pop();
            scored.pop();
        }
        self.sampled += ids.len();
        let lost = usize::from(first && generation.loses_a_logprob());
        let mut lists = Lists::after(self.characters);
        scored.iter().skip(lost).for_each(|scored| lists.add(scored, true));
        self.characters = lists.characters();
        let shows_logprobs = generation.fault != Some(Fault::MissingLogprobs);
        let shows_ids = !self.detokenize && generation.fault != Some(Fault::MissingIds);
        json!({
            "index": 0,
            "text": if self.detokenize { text } else { String::new() },
            "token_ids": shows_ids.then_some(ids),
            "logprobs": self.top.filter(|_| shows_logprobs).map(|_| lists.into_json()),
            "finish_reason": end.map(|(finish, _)| finish),
            "stop_reason": end.map(|(_, reason)| reason),
            "avg_decoded_tokens_per_iter": 1.0,
        })
    }

    fn body(&self, generation: &Generation, choices: Value, usage: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": generation.created,
            "model": generation.simulator.config.model,
            "choices": choices,
            "usage": usage,
        })
    }
}

impl TokenView for View {
    fn top(&self) -> Option<usize> {
        self.top
    }

    fn piece(&mut self, generation: &Generation, piece: Piece<'_>) -> Value {
        let Piece { ids, text, scored, first, end, .. } = piece;
        let end = end.map(|end| (end.finish, &end.stop_reason));
        let choice = self.choice(generation, ids, text, scored, (first, end));
        let options = generation.fields.stream_options.unwrap_or_default();
        let counted = options.continuous_usage_stats.then(|| usage(generation, self.sampled));
        self.body(generation, json!([choice]), counted.into())
    }

    fn usage(&self, generation: &Generation, _usage: Value) -> Value {
        self.body(generation, json!([]), usage(generation, self.sampled))
    }
}
