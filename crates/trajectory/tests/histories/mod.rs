//! Random histories: extensions, branches, rewrites, retries, replies that never arrived, holes,
//! missing ids, aborts, interleaved lineages, empty replies.
//!
//! Tokens are drawn from very few, so that histories meet by chance as well.
#![allow(clippy::unwrap_used)] // Tests: a panic is the report.
#![allow(dead_code)] // Each test binary uses its part.

use crate::sessions::{call, finished, said, user};
use polar_record::CallRecord;
use polar_types::{CallId, WeightSpan};
use proptest::prelude::*;
use serde_json::{Value, json};

/// How a call's prompt comes from what was before it. `usize`s pick an earlier call or a
/// place in its tokens.
#[derive(Debug, Clone)]
enum Prompt {
    Fresh(Vec<u32>),
    Extend(usize, Vec<u32>),
    Rewrite(usize, usize, Vec<u32>),
    Retry(usize),
}

#[derive(Debug, Clone)]
struct Step {
    prompt: Prompt,
    sampled: Vec<u32>,
    finish: &'static str,
    delivered: Option<bool>,
    /// Which of prompt ids and sampled ids are given.
    given: (bool, bool),
    /// Logprob of each sampled token by its bits; used as far as it reaches.
    logprobs: Vec<Option<u32>>,
    is_misaligned: bool,
    spans: Vec<WeightSpan>,
    tools: Option<bool>,
}

fn tokens(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..3, len)
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let any = || any::<usize>();
    prop_oneof![
        1 => tokens(0..4).prop_map(Prompt::Fresh),
        6 => (any(), tokens(0..4)).prop_map(|(call, tail)| Prompt::Extend(call, tail)),
        2 => (any(), any(), tokens(0..4)).prop_map(|(call, at, tail)| Prompt::Rewrite(call, at, tail)),
        2 => any().prop_map(Prompt::Retry),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let finish = prop_oneof![
        8 => Just("stop"), 2 => Just("length"), 1 => Just("abort"),
        1 => Just("error"), 1 => Just("cancelled"),
    ];
    let delivered = prop_oneof![6 => Just(Some(true)), 2 => Just(Some(false)), 1 => Just(None)];
    let given = (prop::bool::weighted(0.9), prop::bool::weighted(0.9));
    let bits = prop_oneof![
        5 => any::<f32>().prop_map(|value| Some((-value.abs()).to_bits())),
        1 => Just(None),
        1 => any::<u32>().prop_map(Some),
    ];
    let spans = prop::collection::vec((0u64..6, 0u64..6, prop::option::of("[ab]")), 0..3).prop_map(
        |spans| {
            let span = |(start, end, version)| WeightSpan { version, start, end };
            spans.into_iter().map(span).collect()
        },
    );
    (
        prompt(),
        tokens(0..4),
        finish,
        delivered,
        given,
        prop::collection::vec(bits, 4),
        prop::bool::weighted(0.05),
        spans,
        prop::option::of(any::<bool>()),
    )
        .prop_map(|parts| {
            let (prompt, sampled, finish, delivered, given, logprobs, is_misaligned, spans, tools) =
                parts;
            Step {
                prompt,
                sampled,
                finish,
                delivered,
                given,
                logprobs,
                is_misaligned,
                spans,
                tools,
            }
        })
}

/// What a harness keeps of a call to go on from.
#[derive(Clone, Default)]
struct Past {
    messages: Vec<Value>,
    ids: Vec<u32>,
    sampled: Vec<u32>,
    reply: Value,
}

impl Past {
    /// The prompt that `prompt` makes of this, with `said` as its new message.
    fn prompt(mut self, prompt: Prompt, said: Value) -> (Vec<Value>, Vec<u32>) {
        match prompt {
            Prompt::Retry(_) => {}
            Prompt::Fresh(tail) => {
                self.ids = tail;
                self.messages = vec![said];
            }
            Prompt::Extend(_, tail) => {
                self.ids.extend(self.sampled);
                self.ids.extend(tail);
                self.messages.extend([self.reply, said]);
            }
            Prompt::Rewrite(_, at, tail) => {
                self.ids.extend(self.sampled);
                self.ids.truncate(at % (self.ids.len() + 1));
                self.ids.extend(tail);
                self.messages.truncate(at % (self.messages.len() + 1));
                self.messages.push(said);
            }
        }
        (self.messages, self.ids)
    }
}

/// Plays the steps as a harness and an engine would.
fn play(steps: Vec<Step>) -> Vec<(CallRecord, Option<bool>)> {
    let mut past: Vec<Past> = Vec::new();
    let mut calls = Vec::new();
    for (number, step) in steps.into_iter().enumerate() {
        let picked = match step.prompt {
            Prompt::Fresh(_) => None,
            Prompt::Extend(call, _) | Prompt::Rewrite(call, _, _) | Prompt::Retry(call) => {
                call.checked_rem(past.len()).map(|at| past[at].clone())
            }
        };
        let said_next = user(&number.to_string());
        let (messages, ids) = picked.unwrap_or_default().prompt(step.prompt, said_next);
        let reply = said(&format!("{:?}", step.sampled));
        let mut record = finished(call(&messages, reply.clone(), &ids, &step.sampled), step.finish);
        let bits = &step.logprobs[..step.sampled.len()];
        record.logprobs = bits.iter().map(|bits| bits.map(f32::from_bits)).collect();
        if step.is_misaligned {
            record.logprobs.push(Some(-1.0));
        }
        record.prompt_ids = record.prompt_ids.filter(|_| step.given.0);
        record.sampled_ids = record.sampled_ids.filter(|_| step.given.1);
        record.meta.weight_versions = step.spans;
        record.tools = step.tools.map(|tools| json!([tools]));
        record.meta.call_id = CallId::of_index(number as u32);
        past.push(Past { messages, ids, sampled: step.sampled, reply });
        calls.push((record, step.delivered));
    }
    calls
}

pub(crate) fn history() -> impl Strategy<Value = Vec<(CallRecord, Option<bool>)>> {
    prop::collection::vec(step(), 0..14).prop_map(play)
}

pub(crate) type History = [(CallRecord, Option<bool>)];
