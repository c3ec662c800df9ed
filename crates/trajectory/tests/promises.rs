//! Promises 1 to 3 over random histories: extensions, branches, rewrites, retries, replies
//! that never arrived, holes, missing ids, aborts, interleaved lineages, empty replies.
//!
//! Tokens are drawn from very few, so that histories meet by chance as well.
#![allow(clippy::unwrap_used)] // Tests: a panic is the report.

mod sessions;

use polar_record::{CallRecord, RecordedSession};
use polar_trajectory::{Built, build, verify};
use polar_types::{CallId, Trace, TrajectoryStrategy, UntrainedReason, WeightSpan};
use proptest::prelude::*;
use serde_json::{Value, json};
use sessions::{call, finished, recorded, said, user};

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

fn history() -> impl Strategy<Value = Vec<(CallRecord, Option<bool>)>> {
    prop::collection::vec(step(), 0..14).prop_map(play)
}

type History = [(CallRecord, Option<bool>)];

fn both(history: &History) -> [Built; 2] {
    let session = recorded(history);
    [TrajectoryStrategy::PrefixMerging, TrajectoryStrategy::PerRequest].map(|strategy| {
        let built = build(&session, strategy, Some(1.0));
        assert_eq!(verify(&built.trajectory, &session), Ok(()));
        built
    })
}

/// The calls of a trace with where their sampled tokens begin in the whole sequence.
fn placed<'a>(
    trace: &'a Trace,
    history: &'a History,
) -> impl Iterator<Item = (&'a CallRecord, usize)> + 'a {
    trace.calls.iter().map(|id| {
        let (record, _) = history.iter().find(|(record, _)| record.meta.call_id == *id).unwrap();
        (record, record.prompt_ids.as_ref().unwrap().len())
    })
}

fn sampled(record: &CallRecord) -> u64 {
    record.sampled_ids.as_ref().map_or(record.meta.sampled_tokens, |ids| ids.len() as u64)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn promise_1_every_sampled_token_is_trained_once_or_counted(history in history()) {
        for built in both(&history) {
            let trajectory = &built.trajectory;
            let tokens = &trajectory.tokens;
            prop_assert!(tokens.is_conserved(), "{tokens:?}");
            prop_assert_eq!(tokens.sampled, history.iter().map(|(call, _)| sampled(call)).sum::<u64>());
            let masks = trajectory.traces.iter().flat_map(|trace| &trace.loss_mask);
            prop_assert_eq!(tokens.trained, masks.map(|mask| u64::from(*mask)).sum::<u64>());

            let mut placed: Vec<&CallId> = trajectory.traces.iter().flat_map(|trace| &trace.calls).collect();
            placed.sort();
            let all = placed.len();
            placed.dedup();
            prop_assert_eq!(placed.len(), all, "a call is in two traces");
            for ((record, delivered), summary) in history.iter().zip(&built.calls) {
                let role = summary.origin.as_ref().map(|origin| origin.role);
                let is_agents = role.is_some_and(|role| trajectory.train_roles.contains(&role));
                let was_seen = delivered.unwrap_or(record.meta.finish_reason != "cancelled");
                let is_whole = !["abort", "error"].contains(&record.meta.finish_reason.as_str());
                let has_ids = record.prompt_ids.is_some() && record.sampled_ids.is_some();
                let is_placed = placed.binary_search(&&record.meta.call_id).is_ok();
                let must_be = was_seen && is_whole && has_ids && is_agents && sampled(record) > 0;
                prop_assert!(is_placed || !must_be, "{} is dropped", record.meta.call_id);
                prop_assert!(!is_placed || (is_whole && has_ids && is_agents), "{} is trained", record.meta.call_id);
            }
            let holes = tokens.untrained.get(&UntrainedReason::LogprobMissing).copied().unwrap_or(0);
            let responses: usize = trajectory.traces.iter().map(|trace| trace.response_ids.len()).sum();
            prop_assert_eq!(responses as u64, tokens.trained + tokens.context + holes);
            prop_assert_eq!(trajectory.forks.values().sum::<u32>() as usize, trajectory.traces.len());
        }
    }

    #[test]
    fn promise_2_every_trained_token_has_the_context_the_engine_had(history in history()) {
        for built in both(&history) {
            for trace in &built.trajectory.traces {
                let whole = [&trace.prompt_ids[..], &trace.response_ids[..]].concat();
                let mut explained = vec![false; whole.len()];
                for (record, start) in placed(trace, &history) {
                    let had = [record.prompt_ids.clone().unwrap(), record.sampled_ids.clone().unwrap()].concat();
                    prop_assert_eq!(&whole[..had.len()], &had[..]);
                    explained[start..had.len()].fill(true);
                }
                for (at, mask) in trace.loss_mask.iter().enumerate() {
                    prop_assert!(*mask == 0 || explained[trace.prompt_ids.len() + at]);
                }
            }
        }
    }

    #[test]
    fn promise_3_no_id_and_no_logprob_is_invented(history in history()) {
        for built in both(&history) {
            for trace in &built.trajectory.traces {
                let mut expected = vec![None; trace.response_ids.len()];
                for (record, start) in placed(trace, &history) {
                    let count = sampled(record) as usize;
                    if record.logprobs.len() == count {
                        let first = start - trace.prompt_ids.len();
                        expected[first..first + count].copy_from_slice(&record.logprobs);
                    }
                }
                for (at, logprob) in trace.response_logprobs.iter().enumerate() {
                    let expected = expected[at].filter(|value: &f32| value.is_finite());
                    prop_assert_eq!(logprob.map(f32::to_bits), expected.map(f32::to_bits));
                    prop_assert_eq!(trace.loss_mask[at] == 1, logprob.is_some());
                }
            }
        }
    }

    #[test]
    fn the_journal_gives_back_what_was_played(history in history()) {
        let session = recorded(&history);
        prop_assert_eq!(session.calls().len(), history.len());
        for (call, (played, delivered)) in session.calls().iter().zip(&history) {
            let mut read = session.record(call);
            prop_assert_eq!(call.delivered, *delivered);
            let bits = |record: &CallRecord| -> Vec<Option<u32>> {
                record.logprobs.iter().map(|value| value.map(f32::to_bits)).collect()
            };
            prop_assert_eq!(bits(&read), bits(played));
            // By their bits above: not-a-number is equal to nothing.
            let mut played = played.clone();
            played.logprobs.clear();
            read.logprobs.clear();
            prop_assert_eq!(read, played);
        }
    }

    /// A trajectory that was tampered with anywhere is not accepted.
    #[test]
    fn the_check_finds_every_single_change(history in history(), pick in any::<usize>()) {
        let session = recorded(&history);
        let built = build(&session, TrajectoryStrategy::PrefixMerging, None);
        let Some(index) = pick.checked_rem(built.trajectory.traces.len()) else { return Ok(()) };
        type Change = fn(&mut Trace, usize);
        let changes: [Change; 9] = [
            |trace, at| trace.loss_mask[at] ^= 1,
            |trace, at| trace.response_ids[at] ^= 1,
            |trace, at| trace.response_logprobs[at] = match trace.response_logprobs[at] {
                None => Some(0.0),
                Some(_) => None,
            },
            |trace, at| trace.response_logprobs[at] = match trace.response_logprobs[at] {
                None => Some(-0.5),
                Some(value) => Some(f32::from_bits(value.to_bits() ^ 1)),
            },
            |trace, at| { trace.loss_mask.remove(at); },
            |trace, at| { trace.response_ids.remove(at); trace.loss_mask.remove(at); trace.response_logprobs.remove(at); },
            |trace, _| { trace.calls.pop(); },
            |trace, _| { trace.weight_versions.pop(); },
            |trace, _| trace.prompt_ids.push(0),
        ];
        for change in changes {
            let mut changed = built.trajectory.clone();
            let trace = &mut changed.traces[index];
            let at = pick % trace.response_ids.len();
            change(trace, at);
            prop_assert!(verify(&changed, &session).is_err());
        }
        let mut twice = built.trajectory.clone();
        twice.traces.push(twice.traces[index].clone());
        prop_assert!(verify(&twice, &session).is_err());
        let mut dropped = built.trajectory.clone();
        dropped.traces.remove(index);
        prop_assert!(verify(&dropped, &session).is_err());
    }
}

/// The properties above hold for nothing if the histories lack what they are about.
#[test]
fn the_histories_hold_every_kind_of_break() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut seen = std::collections::BTreeSet::new();
    let mut merged = 0;
    for _ in 0..400 {
        let history = history().new_tree(&mut runner).unwrap().current();
        let session: RecordedSession = recorded(&history);
        let built = build(&session, TrajectoryStrategy::PrefixMerging, None);
        seen.extend(built.trajectory.tokens.untrained.keys().map(|reason| format!("{reason:?}")));
        seen.extend(built.trajectory.forks.keys().map(|cause| format!("{cause:?}")));
        merged += built.trajectory.traces.iter().filter(|trace| trace.calls.len() > 1).count();
    }
    for kind in [
        "Undelivered",
        "IdsMissing",
        "LogprobMissing",
        "EngineAborted",
        "NewLineage",
        "HistoryRewritten",
        "Retry",
        "Branch",
    ] {
        assert!(seen.contains(kind), "{kind} never happens: {seen:?}");
    }
    assert!(merged > 100, "{merged}");
}
