//! Promises 1 to 3 over random histories.
#![allow(clippy::unwrap_used)] // Tests: a panic is the report.

mod histories;
mod sessions;

use histories::{History, history};
use polar_record::{CallRecord, RecordedSession};
use polar_trajectory::{Built, build, verify};
use polar_types::{CallId, Trace, TrajectoryStrategy, UntrainedReason};
use proptest::prelude::*;
use sessions::recorded;

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
        let changes: [Change; 11] = [
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
            |trace, _| trace.turn_ends[0] -= 1,
            |trace, _| trace.turn_ends.push(0),
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
