//! Replies under changing weights: each says by which its tokens were sampled, and those that
//! were ended for new weights go on behind their ids.
//!
//! Whoever reads the reply drives it; no task runs behind it.

use super::gate::{Gate, Ticket};
use super::served::{is_lost, takes_no_ids};
use crate::{Engine, EngineEnd, EngineError, EngineEvent, EngineStream, SampleRequest};
use futures_util::{StreamExt, stream};
use polar_convo::{FinishReason, Usage};
use polar_types::{ErrorClass, WeightSpan};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Names the places at which a reply was ended in the engine and sampled on, in what the engine
/// says besides.
pub const CONTINUED: &str = "continued";

/// How long a reply that was ended waits for an engine to go on. Below the shortest time that a
/// known harness waits for a token (300 s).
const PATIENCE: Duration = Duration::from_secs(240);

/// Fields that say something of the reply as a whole, so that half of it is not another reply's
/// prompt: grammars, penalties on what was said, budgets.
const OF_THE_WHOLE: &[&str] = &[
    "bad_words",
    "custom_logit_processor",
    "custom_params",
    "ebnf",
    "frequency_penalty",
    "json_schema",
    "presence_penalty",
    "regex",
    "repetition_penalty",
    "response_format",
    "stop_regex",
    "structured_outputs",
    "thinking_token_budget",
];

/// A reply that stays where it is.
pub(super) fn in_place(stream: EngineStream, ticket: Ticket, gate: &Arc<Gate>) -> EngineStream {
    let gate = Arc::clone(gate);
    let mut ticket = Some(ticket);
    Box::pin(stream.map(move |event| match event {
        Ok(EngineEvent::End(mut end)) => {
            if let Some(ticket) = ticket.take() {
                say_version(&mut end, &ticket, &gate);
            }
            Ok(EngineEvent::End(end))
        }
        Err(error) => {
            if is_lost(&error) {
                gate.suspect();
            }
            ticket = None;
            Err(error)
        }
        other => other,
    }))
}

/// Says which weights sampled a reply, where the engine does not and only one can have.
fn say_version(end: &mut EngineEnd, ticket: &Ticket, gate: &Gate) {
    let only = ticket.only_version();
    let count = end.usage.completion_tokens;
    if ticket.is_in_doubt() {
        // The engine's own word is that of a label.
        end.weight_versions = vec![WeightSpan { version: None, start: 0, end: count }];
    } else if end.weight_versions.is_empty() {
        if let Some(version) = only.filter(|_| count > 0) {
            end.weight_versions = vec![WeightSpan { version: Some(version), start: 0, end: count }];
        }
    } else if let Some(only) = only
        && end.weight_versions.iter().any(|span| span.version.as_ref() != Some(&only))
    {
        // The engine has others than it was given: it may have come back with its old ones.
        gate.suspect();
    }
}

/// Whether half of the reply is as good a prompt for the other half.
fn goes_on(request: &SampleRequest) -> bool {
    let is_neutral = |(name, value): (&String, &Value)| match name.as_str() {
        "repetition_penalty" => *value == json!(1.0) || *value == json!(1),
        "frequency_penalty" | "presence_penalty" => *value == json!(0.0) || *value == json!(0),
        name => !OF_THE_WHOLE.contains(&name) || value.is_null(),
    };
    request.pictures.is_empty()
        && request.sampling.stop.is_empty()
        && request.rest.iter().all(is_neutral)
}

/// A reply that is sampled on behind its ids when it is ended for new weights.
pub(super) struct SampledOn {
    engine: Arc<dyn Engine>,
    gate: Arc<Gate>,
    request: SampleRequest,
    stream: EngineStream,
    ticket: Option<Ticket>,
    /// Sampled in this part.
    ids: Vec<u32>,
    before: Before,
    goes_on: bool,
}

/// What earlier parts were.
#[derive(Default)]
struct Before {
    ids: Vec<u32>,
    spans: Vec<WeightSpan>,
    extra: Map<String, Value>,
    cached: Option<u64>,
    /// Where parts ended.
    ends: Vec<u64>,
    /// The prompt was told. One that was ended before it began has none.
    is_prompt_told: bool,
}

impl SampledOn {
    pub(super) async fn begin(
        engine: Arc<dyn Engine>,
        gate: Arc<Gate>,
        request: SampleRequest,
    ) -> Result<EngineStream, EngineError> {
        let goes_on = goes_on(&request);
        let ticket = gate.admit(&request.request_id, goes_on).await?;
        let tokens = engine.tokens().ok_or_else(takes_no_ids)?;
        let stream = tokens.sample(request.clone()).await.inspect_err(|error| {
            if is_lost(error) {
                gate.suspect();
            }
        })?;
        let (ticket, ids, before) = (Some(ticket), Vec::new(), Before::default());
        let reply = Self { engine, gate, request, stream, ticket, ids, before, goes_on };
        Ok(Box::pin(stream::unfold(Some(Box::new(reply)), |reply| async move {
            let mut reply = reply?;
            match reply.next().await {
                Ok(event) => {
                    let ended = matches!(event, EngineEvent::End(_));
                    Some((Ok(event), (!ended).then_some(reply)))
                }
                Err(error) => Some((Err(error), None)),
            }
        })))
    }

    async fn next(&mut self) -> Result<EngineEvent, EngineError> {
        loop {
            match self.stream.next().await {
                Some(Ok(EngineEvent::PromptIds(ids))) => {
                    if let Some(prompt) = self.before.prompt(ids, &self.request) {
                        return Ok(EngineEvent::PromptIds(prompt));
                    }
                }
                Some(Ok(EngineEvent::Chunk { events, ids, logprobs })) => {
                    self.ids.extend_from_slice(&ids);
                    return Ok(EngineEvent::Chunk { events, ids, logprobs });
                }
                Some(Ok(EngineEvent::End(mut end))) => {
                    let Some(ticket) = self.ticket.take() else {
                        return Ok(EngineEvent::End(end));
                    };
                    say_version(&mut end, &ticket, &self.gate);
                    if end.finish != FinishReason::Abort || !ticket.is_aborted() || !self.goes_on {
                        return Ok(EngineEvent::End(self.before.whole(end)));
                    }
                    drop(ticket);
                    self.part(end);
                    self.go_on().await?;
                }
                Some(Err(error)) => {
                    self.ticket = None;
                    if is_lost(&error) {
                        self.gate.suspect();
                    }
                    return Err(error);
                }
                None => {
                    return Err(EngineError::malformed("the reply ended without an end mark"));
                }
            }
        }
    }

    /// Keeps what an ended part was.
    fn part(&mut self, end: EngineEnd) {
        let sampled = self.ids.len() as u64;
        let wasted = end.usage.completion_tokens.saturating_sub(sampled);
        self.gate.count(|calls| {
            calls.continued += 1;
            calls.tokens_wasted += wasted;
        });
        self.before.add(end, std::mem::take(&mut self.ids));
    }

    /// Samples on, as soon as there are weights to do it with.
    async fn go_on(&mut self) -> Result<(), EngineError> {
        let until = Instant::now() + PATIENCE;
        let asked = self.before.rest_of(&self.request);
        loop {
            let begun = match self.gate.admit(&asked.request_id, self.goes_on).await {
                Ok(ticket) => {
                    let tokens = self.engine.tokens().ok_or_else(takes_no_ids)?;
                    tokens.sample(asked.clone()).await.map(|stream| (stream, ticket))
                }
                Err(error) => Err(error),
            };
            match begun {
                Ok((stream, ticket)) => {
                    self.stream = stream;
                    self.ticket = Some(ticket);
                    return Ok(());
                }
                Err(error) if is_lost(&error) => {
                    self.gate.suspect();
                    if !self.gate.opened(until).await || Instant::now() >= until {
                        return Err(error);
                    }
                    tokio::time::sleep(AGAIN).await;
                }
                // All that was ended comes back at once, and its harness cannot be told to wait.
                Err(error) if error.class == ErrorClass::Overloaded && Instant::now() < until => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Pause before an engine that did not take the rest of a reply is asked again.
const AGAIN: Duration = Duration::from_millis(250);

impl Before {
    /// The prompt of the reply, once: that of a later part has what was sampled behind it.
    fn prompt(&mut self, told: Vec<u32>, request: &SampleRequest) -> Option<Vec<u32>> {
        if std::mem::replace(&mut self.is_prompt_told, true) {
            return None;
        }
        Some(if self.ends.is_empty() { told } else { request.prompt.to_vec() })
    }

    fn add(&mut self, end: EngineEnd, ids: Vec<u32>) {
        let place = self.ids.len() as u64;
        self.spans.extend(moved(end.weight_versions, place));
        self.ids.extend(ids);
        self.ends.push(self.ids.len() as u64);
        self.extra.extend(end.extra);
        self.cached = self.cached.or(end.usage.cached_tokens);
    }

    /// What is left to be sampled.
    fn rest_of(&self, whole: &SampleRequest) -> SampleRequest {
        let sampled = self.ids.len() as u64;
        let mut rest = whole.clone();
        rest.prompt = whole.prompt.iter().chain(&self.ids).copied().collect();
        let sampling = &mut rest.sampling;
        sampling.max_tokens = sampling.max_tokens.map(|most| most.saturating_sub(sampled).max(1));
        // The same seed would give the same chances again as at the beginning.
        let apart = i64::try_from(sampled).unwrap_or(0);
        sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(apart) & i64::MAX);
        for name in ["min_tokens", "min_new_tokens"] {
            if let Some(least) = rest.rest.get(name).and_then(Value::as_u64) {
                rest.rest.insert(name.to_owned(), least.saturating_sub(sampled).into());
            }
        }
        rest.request_id = format!("{}-{}", whole.request_id, self.ends.len());
        rest
    }

    /// The end of the whole reply, from that of its last part.
    fn whole(&mut self, end: EngineEnd) -> EngineEnd {
        if self.ends.is_empty() {
            return end;
        }
        let place = self.ids.len() as u64;
        let mut spans = std::mem::take(&mut self.spans);
        spans.extend(moved(end.weight_versions, place));
        let mut extra = std::mem::take(&mut self.extra);
        extra.extend(end.extra);
        extra.insert(CONTINUED.to_owned(), json!(self.ends));
        if !end.arrays.is_empty() {
            // Each is of one part, and a trainer would take it for the whole reply's.
            extra.insert("arrays_left_out".to_owned(), CONTINUED.into());
        }
        EngineEnd {
            usage: Usage {
                prompt_tokens: end.usage.prompt_tokens.saturating_sub(place),
                // A count that is wrong stays wrong, so that it is seen.
                completion_tokens: place + end.usage.completion_tokens,
                cached_tokens: self.cached,
                reasoning_tokens: None,
            },
            weight_versions: joined(spans),
            arrays: BTreeMap::new(),
            extra,
            ..end
        }
    }
}

fn moved(spans: Vec<WeightSpan>, by: u64) -> impl Iterator<Item = WeightSpan> {
    spans.into_iter().map(move |span| WeightSpan {
        start: span.start + by,
        end: span.end + by,
        ..span
    })
}

/// Neighbours of one version are one span.
fn joined(spans: Vec<WeightSpan>) -> Vec<WeightSpan> {
    let mut joined: Vec<WeightSpan> = Vec::with_capacity(spans.len());
    for span in spans.into_iter().filter(|span| span.end > span.start) {
        match joined.last_mut() {
            Some(last) if last.version == span.version && last.end == span.start => {
                last.end = span.end;
            }
            _ => joined.push(span),
        }
    }
    joined
}
