//! `POST /inference/v1/generate`: ids in, ids out, without any text.

use super::Simulator;
use super::chat_reply::{Played, broken_response, play};
use super::chat_request::{SamplingFields, StreamOptions, body, fields};
use super::error::ApiError;
use super::generation::{Generation, own_ids, without_nulls};
use super::logprobs::{Scored, prompt_logprobs};
use super::token_stream::{self, Piece, TokenView};
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

/// Fields beside `sampling_params`.
#[derive(Debug, Deserialize)]
struct GenerateFields {
    token_ids: Vec<Value>,
    sampling_params: Option<Value>,
    model: Option<String>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    return_token_ids: Option<bool>,
    output_mode: Option<String>,
    cache_salt: Option<String>,
    request_id: Option<String>,
}

/// The one field of `sampling_params` that is read otherwise in chat.
#[derive(Debug, Deserialize)]
struct LogprobFields {
    logprobs: Option<usize>,
}

pub(super) async fn generate(
    State(simulator): State<Arc<Simulator>>,
    uri: Uri,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, ApiError> {
    let body = body(&headers, &bytes)?;
    let number = simulator.arrived(&uri, &headers, &body);
    if !simulator.config.scale_out {
        return Err(ApiError::scale_out_disabled());
    }
    let asked: GenerateFields = fields(&body)?;
    let missing = || ApiError::validation("Field required", Some("sampling_params"));
    let params = asked.sampling_params.as_ref().ok_or_else(missing)?;
    let (top, sampling) = (fields::<LogprobFields>(params)?.logprobs, fields(params)?);
    let prompt = prompt(&simulator, &asked)?;
    let sampling = completed(&simulator, sampling, asked, prompt.len())?;
    let generation = Generation::completion(simulator, number, &headers, sampling, (prompt, None))?;
    generation.before_headers().await;
    let view = GenerateView { top, id: format!("generate-tokens-{}", generation.id) };
    if generation.fields.streams() {
        token_stream::respond(generation, Box::new(view))
    } else {
        Ok(respond(generation, &view).await)
    }
}

fn prompt(simulator: &Simulator, asked: &GenerateFields) -> Result<Vec<u32>, ApiError> {
    let window = simulator.config.context_window;
    if asked.token_ids.is_empty() {
        let problem = "List should have at least 1 item after validation, not 0";
        return Err(ApiError::validation(problem, Some("token_ids")));
    }
    if asked.token_ids.len() > window {
        return Err(ApiError::decoder_prompt_too_long(asked.token_ids.len(), window));
    }
    own_ids(simulator, &asked.token_ids)
}

/// The request as the other places have it. A limit that does not fit is lowered.
fn completed(
    simulator: &Simulator,
    mut sampling: SamplingFields,
    asked: GenerateFields,
    prompt: usize,
) -> Result<SamplingFields, ApiError> {
    if asked.output_mode.is_some_and(|mode| mode != "tokens") {
        let message = "The simulator gives tokens only; leave `output_mode` out.";
        return Err(ApiError::bad_request(message).of("output_mode"));
    }
    let left = simulator.config.context_window.saturating_sub(prompt).max(1);
    let left = i64::try_from(left).unwrap_or(i64::MAX);
    sampling.max_tokens = sampling.max_tokens.map(|most| most.min(left));
    sampling.model = asked.model;
    sampling.stream = asked.stream;
    sampling.stream_options = asked.stream_options;
    sampling.return_token_ids = asked.return_token_ids;
    sampling.cache_salt = asked.cache_salt;
    sampling.request_id = asked.request_id;
    sampling.check()?;
    simulator.check_model(sampling.model.as_deref())?;
    Ok(sampling)
}

async fn respond(mut generation: Generation, view: &GenerateView) -> Response {
    let simulator = Arc::clone(&generation.simulator);
    let (mut choices, mut sampled) = (Vec::new(), 0);
    for player in generation.start(generation.unwatched_batch()).await {
        let Ok(reply) = play(player, &simulator.control).await else {
            let Broken = Broken;
            return broken_response(br#"{"request_id":"generate-tokens-"#);
        };
        sampled += reply.tokens();
        choices.push(whole_choice(&generation, view, choices.len(), &reply));
    }
    simulator.activity.sampled(sampled);
    generation.running.finish();
    let mut usage = generation.usage(sampled, None);
    usage["prompt_tokens_details"]["created_cache_tokens"] = Value::Null;
    let scored = generation.fields.prompt_logprobs.map(|top| {
        let top = usize::try_from(top).unwrap_or(usize::MAX);
        prompt_logprobs(&simulator, &generation.prompt, top)
    });
    let shown = generation.fields.return_token_ids.unwrap_or(false);
    Json(json!({
        "request_id": view.id,
        "model": simulator.config.model,
        "created": generation.created,
        "usage": usage,
        "prompt_logprobs": scored,
        "prompt_token_id_logprobs": null,
        "prompt_token_ids": shown.then_some(&generation.prompt),
        "mm_placeholders": null,
        "metrics": null,
        "kv_transfer_params": null,
        "ec_transfer_params": null,
        "output_mode": "tokens",
        "choices": choices,
    }))
    .into_response()
}

fn whole_choice(
    generation: &Generation,
    view: &GenerateView,
    index: usize,
    reply: &Played,
) -> Value {
    let mut spans = WeightSpans::default();
    let mut scorer = generation.scorer().resume(&generation.simulator);
    let mut scored = Vec::with_capacity(reply.tokens());
    for batch in &reply.batches {
        spans.add(&batch.version, batch.range.len());
        let ids = &reply.player.script().ids[batch.range.clone()];
        let top = view.top.unwrap_or(0);
        scored.extend(ids.iter().map(|id| scorer.score(*id, &batch.weights, top)));
    }
    let (finish, stop_reason) = reply.end();
    let mut choice = view.choice(generation, reply.ids(), scored, true);
    choice["index"] = index.into();
    choice["finish_reason"] = finish.into();
    choice["stop_reason"] = stop_reason;
    choice["weight_versions"] = spans.into_json();
    choice
}

/// How sampled ids are shown here.
struct GenerateView {
    id: String,
    /// Likeliest ids to show of each token; none for no logprobs at all.
    top: Option<usize>,
}

impl GenerateView {
    /// Sampled ids and their logprobs; how a reply ends is left open.
    fn choice(
        &self,
        generation: &Generation,
        ids: &[u32],
        scored: Vec<Scored>,
        first: bool,
    ) -> Value {
        let shown = generation.fault != Some(Fault::MissingIds);
        let scores = self.top.filter(|_| generation.fault != Some(Fault::MissingLogprobs));
        let lost = usize::from(first && generation.loses_a_logprob());
        let logprobs = scores.map(|top| {
            let entries = scored.into_iter().skip(lost);
            json!({"content": entries.map(|entry| entry.into_ids(top)).collect::<Vec<_>>()})
        });
        json!({
            "index": 0,
            "finish_reason": null,
            "stop_reason": null,
            "token_ids": shown.then(|| generation.shown_ids(ids, first)),
            "routed_experts": null,
            "sampling_mask": null,
            "weight_versions": null,
            "logprobs": logprobs,
        })
    }
}

impl TokenView for GenerateView {
    fn top(&self) -> Option<usize> {
        self.top
    }

    fn piece(&mut self, generation: &Generation, piece: Piece<'_>) -> Value {
        let Piece { ids, scored, first, end, spans, .. } = piece;
        let mut choice = self.choice(generation, ids, scored, first);
        if let Some(end) = end {
            choice["finish_reason"] = end.finish.into();
            choice["stop_reason"] = end.stop_reason.clone();
            choice["weight_versions"] = spans.clone().into_json();
        }
        let mut chunk = json!({
            "request_id": self.id, "usage": null, "output_mode": "tokens", "choices": [choice],
        });
        if first && generation.fields.return_token_ids.unwrap_or(false) {
            chunk["prompt_token_ids"] = json!(generation.prompt);
        }
        chunk
    }

    fn usage(&self, _generation: &Generation, usage: Value) -> Value {
        let usage = without_nulls(usage);
        json!({"request_id": self.id, "usage": usage, "output_mode": "tokens", "choices": []})
    }
}

/// Which weights sampled which ids of a reply.
#[derive(Debug, Clone, Default)]
pub(super) struct WeightSpans(Vec<(Arc<str>, usize)>);

impl WeightSpans {
    pub(super) fn add(&mut self, version: &Arc<str>, tokens: usize) {
        match self.0.last_mut() {
            Some((last, count)) if last == version => *count += tokens,
            _ if tokens > 0 => self.0.push((Arc::clone(version), tokens)),
            _ => {}
        }
    }

    fn into_json(self) -> Value {
        let mut start = 0;
        let spans = self.0.into_iter().map(|(version, tokens)| {
            let span = json!({"version": &*version, "start": start, "end": start + tokens});
            start += tokens;
            span
        });
        spans.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_follow_each_other() {
        let mut spans = WeightSpans::default();
        for (version, tokens) in [("a", 2), ("a", 1), ("b", 0), ("b", 4)] {
            spans.add(&Arc::from(version), tokens);
        }
        let expected = json!([
            {"version": "a", "start": 0, "end": 3}, {"version": "b", "start": 3, "end": 7},
        ]);
        assert_eq!(spans.into_json(), expected);
    }
}
