//! Lays calls out as one token sequence with its mask, logprobs and messages.

use polar_record::{ENGINE, ENGINES, RecordedCall, RecordedSession};
use polar_types::{LineageInfo, TokenCounts, Trace, UntrainedReason, WeightSpan};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// A sequence that calls are added to.
pub(crate) struct Growing {
    /// What it is so far. `prompt_ids` has only what is not shared with another sequence, and
    /// messages and tools are those below.
    pub(crate) trace: Trace,
    /// Its calls, oldest first.
    pub(crate) calls: Vec<u32>,
    /// Messages by their number in the session.
    pub(crate) prompt_messages: Vec<u32>,
    pub(crate) response_messages: Vec<u32>,
    /// Number of the tools that its last call offered.
    pub(crate) tools: Option<u32>,
}

impl Growing {
    /// A sequence that begins with the prompt of `call`, of which the first `shared` tokens are
    /// kept elsewhere.
    pub(crate) fn start(
        session: &RecordedSession,
        call: u32,
        shared: usize,
        lineage: LineageInfo,
    ) -> Self {
        let header = &session.header;
        let call = &session.calls()[call as usize];
        let own = call.prompt_end().map(|end| session.tokens().path(end, shared));
        let trace = Trace {
            prompt_ids: own.unwrap_or_default(),
            response_ids: Vec::new(),
            loss_mask: Vec::new(),
            response_logprobs: Vec::new(),
            prompt_messages: Vec::new(),
            response_messages: Vec::new(),
            tools: None,
            finish_reason: None,
            reward: None,
            turn_scores: Vec::new(),
            turn_ends: Vec::new(),
            weight_versions: Vec::new(),
            lineage,
            calls: Vec::new(),
            rollout_id: header.session_id.clone(),
            group_id: header.group_id.clone(),
            siblings: 0,
            loss_weight: 0.0,
            sampling: Value::Null,
        };
        Self {
            trace,
            calls: Vec::new(),
            prompt_messages: messages(session, call, 0),
            response_messages: Vec::new(),
            tools: None,
        }
    }

    /// Adds what `call`'s prompt says behind the reply of `parent`, the last call so far.
    pub(crate) fn extend(&mut self, session: &RecordedSession, parent: u32, call: u32) {
        let trace = &mut self.trace;
        let parent = &session.calls()[parent as usize];
        let call = &session.calls()[call as usize];
        if let (Some(from), Some(to)) = (parent.sequence_end(), call.prompt_end()) {
            let context = session.tokens().path(to, from.depth());
            trace.loss_mask.resize(trace.loss_mask.len() + context.len(), 0);
            trace.response_logprobs.resize(trace.response_logprobs.len() + context.len(), None);
            trace.response_ids.extend(context);
        }
        let mut messages = messages(session, call, parent.prompt_messages());
        // The harness repeats the reply, often changed; the reply itself is already there.
        if messages.first().is_some_and(|first| session.message(*first)["role"] == "assistant") {
            messages.remove(0);
        }
        self.response_messages.extend(messages);
    }

    /// Adds the reply of a call, whose prompt is all so far.
    pub(crate) fn add_reply(
        &mut self,
        session: &RecordedSession,
        number: u32,
        counts: &mut TokenCounts,
    ) {
        let trace = &mut self.trace;
        let call = &session.calls()[number as usize];
        let sampled = session.sampled_ids(call).unwrap_or_default();
        let start = trace.response_ids.len();
        for at in 0..sampled.len() {
            let logprob = logprob(call, at, sampled.len());
            trace.loss_mask.push(u8::from(logprob.is_some()));
            trace.response_logprobs.push(logprob);
        }
        let trained = trace.loss_mask[start..].iter().map(|mask| u64::from(*mask)).sum::<u64>();
        let missing = sampled.len() as u64 - trained;
        counts.trained += trained;
        if missing > 0 {
            *counts.untrained.entry(UntrainedReason::LogprobMissing).or_default() += missing;
        }
        trace.response_ids.extend(sampled);
        trace.turn_ends.push(trace.response_ids.len() as u64);
        add_weight_versions(trace, call, start as u64);
        trace.finish_reason = Some(call.meta.finish_reason.clone());
        trace.sampling = sampling(session, call, &trace.sampling);
        trace.calls.push(call.meta.call_id.clone());
        self.response_messages.push(call.reply_number());
        self.tools = call.tools_number();
        self.calls.push(number);
    }

    /// Tokens that are kept here.
    pub(crate) fn own_tokens(&self) -> usize {
        self.trace.prompt_ids.len() + self.trace.response_ids.len()
    }

    /// All of it as a trace, which is whole where nothing is kept elsewhere.
    pub(crate) fn into_trace(self, session: &RecordedSession) -> Trace {
        let messages = |numbers: Vec<u32>| {
            numbers.into_iter().map(|number| session.message(number)).collect::<Vec<_>>()
        };
        Trace {
            prompt_messages: messages(self.prompt_messages),
            response_messages: messages(self.response_messages),
            tools: self.tools.map(|number| session.message(number)),
            ..self.trace
        }
    }
}

/// Numbers of a prompt's messages from the `start`-th on.
fn messages(session: &RecordedSession, call: &RecordedCall, start: usize) -> Vec<u32> {
    let start = start.min(call.prompt_messages());
    let mut numbers = session.messages_tree().path(call.exchange_end(), start);
    numbers.pop();
    numbers
}

/// The logprob of a sampled token, where there is one that can be trained on: JSON has no
/// way to say infinity or not-a-number, and no trainer a use for them.
fn logprob(call: &RecordedCall, at: usize, sampled: usize) -> Option<f32> {
    let is_aligned = call.logprobs.len() == sampled;
    call.logprobs.get(at).copied().flatten().filter(|value| is_aligned && value.is_finite())
}

/// Moves a reply's spans to their place in the response. What the engine did not say is a
/// span without version, so that the spans always cover exactly the sampled positions.
fn add_weight_versions(trace: &mut Trace, call: &RecordedCall, start: u64) {
    let end = trace.response_ids.len() as u64;
    let mut at = start;
    let spans = &mut trace.weight_versions;
    for span in &call.meta.weight_versions {
        let from = start.saturating_add(span.start).clamp(at, end);
        let to = start.saturating_add(span.end).clamp(from, end);
        push_span(spans, None, at, from);
        push_span(spans, span.version.clone(), from, to);
        at = to;
    }
    push_span(spans, None, at, end);
}

fn push_span(spans: &mut Vec<WeightSpan>, version: Option<String>, start: u64, end: u64) {
    if start == end {
        return;
    }
    match spans.last_mut() {
        Some(last) if last.end == start && last.version == version => last.end = end,
        _ => spans.push(WeightSpan { version, start, end }),
    }
}

/// What bends the distribution, of the trace's last call. `before` is that of the call before,
/// null for the first; parameters that differ between calls are named under `varied`.
fn sampling(session: &RecordedSession, call: &RecordedCall, before: &Value) -> Value {
    let mut sampling = match &call.meta.sampling {
        Value::Object(parameters) => parameters.clone(),
        Value::Null => Map::new(),
        other => Map::from_iter([("parameters".to_owned(), other.clone())]),
    };
    for name in ["carried", "tool_choice"] {
        sampling.extend(call.meta.extra.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    sampling.insert("engine".to_owned(), engine(session, call));
    sampling.insert("logprob_mode".to_owned(), json!(call.meta.logprob_mode));
    if let Value::Object(before) = before {
        let varied = varied(before, &sampling);
        if !varied.is_empty() {
            sampling.insert(VARIED.to_owned(), json!(varied));
        }
    }
    Value::Object(sampling)
}

/// The engine that a call was at: where there are several, the call says which.
fn engine(session: &RecordedSession, call: &RecordedCall) -> Value {
    let mut engine = session.header.engine.clone();
    if let (Value::Object(fields), Some(url)) = (&mut engine, call.meta.extra.get(ENGINE)) {
        fields.remove(ENGINES);
        fields.insert("url".to_owned(), url.clone());
    }
    engine
}

const VARIED: &str = "varied";

/// Names of parameters that are not the same in both, and those that were not before.
fn varied(before: &Map<String, Value>, now: &Map<String, Value>) -> BTreeSet<String> {
    let known = before.get(VARIED).and_then(Value::as_array).into_iter().flatten();
    let known = known.filter_map(Value::as_str).map(str::to_owned);
    let names = before.keys().chain(now.keys()).filter(|name| *name != VARIED);
    known.chain(names.filter(|name| before.get(*name) != now.get(*name)).cloned()).collect()
}
