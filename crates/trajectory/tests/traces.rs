//! What is in the traces of small sessions, written out.
#![allow(clippy::unwrap_used)] // Tests: a panic is the report.

mod sessions;

use polar_trajectory::{Violation, verify};
use polar_types::{CallId, ForkCause, UntrainedReason, WeightSpan};
use serde_json::json;
use sessions::{built, built_of, call, causes, finished, recorded, said, system, user};

fn span(version: Option<&str>, start: u64, end: u64) -> WeightSpan {
    WeightSpan { version: version.map(str::to_owned), start, end }
}

#[test]
fn calls_that_extend_each_other_are_one_trace() {
    let mut first = call(&[system(), user("a")], said("x"), &[1, 2], &[10, 11]);
    first.meta.weight_versions = vec![span(Some("w1"), 0, 2)];
    let mut second = call(
        &[system(), user("a"), said("x"), user("b")],
        said("y"),
        &[1, 2, 10, 11, 3, 4],
        &[12, 13, 14],
    );
    second.meta.weight_versions = vec![span(Some("w1"), 0, 1), span(Some("w2"), 1, 2)];
    second.logprobs[1] = None;
    second.tools = Some(json!([]));
    let second = finished(second, "length");
    let built = built_of(&[first, second]);

    let trajectory = &built.trajectory;
    let [trace] = &trajectory.traces[..] else { panic!("{} traces", trajectory.traces.len()) };
    assert_eq!(trace.prompt_ids, [1, 2]);
    assert_eq!(trace.response_ids, [10, 11, 3, 4, 12, 13, 14]);
    assert_eq!(trace.loss_mask, [1, 1, 0, 0, 1, 0, 1]);
    let logprob = |id: u32| Some(-(id as f32) / 7.0);
    assert_eq!(
        trace.response_logprobs,
        [logprob(10), logprob(11), None, None, logprob(12), None, logprob(14)]
    );
    assert_eq!(trace.prompt_messages, [system(), user("a")]);
    assert_eq!(trace.response_messages, [said("x"), user("b"), said("y")]);
    assert_eq!(
        trace.weight_versions,
        [span(Some("w1"), 0, 2), span(Some("w1"), 4, 5), span(Some("w2"), 5, 6), span(None, 6, 7)]
    );
    assert_eq!((trace.finish_reason.as_deref(), &trace.tools), (Some("length"), &Some(json!([]))));
    assert_eq!(trace.calls, [CallId::of_index(0), CallId::of_index(1)]);
    assert_eq!((trace.siblings, trace.loss_weight, trace.reward), (1, 1.0, Some(0.5)));
    assert_eq!(trace.rollout_id.as_str(), "fix-s0");
    assert_eq!(trace.group_id.as_str(), "fix-g");
    assert_eq!(
        trace.sampling,
        json!({"temperature": 0.7, "engine": {"name": "simulator"}, "logprob_mode": "raw"})
    );
    let tokens = &trajectory.tokens;
    assert_eq!((tokens.sampled, tokens.trained, tokens.context), (5, 4, 2));
    assert_eq!(tokens.untrained, [(UntrainedReason::LogprobMissing, 1)].into());
    assert_eq!(trajectory.forks, [(ForkCause::NewLineage, 1)].into());

    let summary = &built.calls[1];
    assert_eq!((summary.trace, &summary.fork), (Some(0), &None));
    assert_eq!(summary.started_at, "2025-11-24T16:00:00.123Z");
    assert_eq!((summary.seconds, summary.prompt_tokens, summary.sampled_tokens), (0.25, 6, 3));
    assert_eq!(built.calls[0].fork.as_ref().unwrap().cause, ForkCause::NewLineage);
}

#[test]
fn all_that_bent_the_distribution_is_told_with_the_trace() {
    let root = [user("a")];
    let go = |text: &str| [user("a"), said("x"), user(text)];
    let mut calls = [
        call(&root, said("x"), &[1], &[10]),
        call(&go("b"), said("y"), &[1, 10, 2], &[11]),
        call(&go("c"), said("z"), &[1, 10, 2, 11, 3], &[12]),
    ];
    calls[0].meta.extra.insert("tool_choice".to_owned(), json!("required"));
    calls[1].meta.sampling = json!({"temperature": 0.2, "top_p": 0.9});
    calls[2].meta.extra.insert("carried".to_owned(), json!({"min_p": 0.1}));
    calls[2].meta.extra.insert("losses".to_owned(), json!([]));
    let built = built_of(&calls);
    let [trace] = &built.trajectory.traces[..] else { panic!("one trace expected") };
    assert_eq!(
        trace.sampling,
        json!({
            "temperature": 0.7, "carried": {"min_p": 0.1},
            "engine": {"name": "simulator"}, "logprob_mode": "raw",
            "varied": ["carried", "temperature", "tool_choice", "top_p"],
        })
    );
}

#[test]
fn promise_10_losses_and_restored_history_are_counted_by_calls() {
    let root = [user("a")];
    let go = |text: &str| [user("a"), said("x"), user(text)];
    let mut calls =
        [call(&root, said("x"), &[1], &[10]), call(&go("b"), said("y"), &[1, 10, 2], &[11])];
    assert!(built_of(&calls).trajectory.translation.is_empty());
    let loss = |kind: &str, count: u32| json!({"kind": kind, "field": "x", "count": count});
    calls[0].meta.extra.insert("losses".to_owned(), json!([loss("effort_ignored", 1)]));
    let both = json!([loss("effort_ignored", 1), loss("cache_control_dropped", 7)]);
    calls[1].meta.extra.insert("losses".to_owned(), both);
    calls[1].meta.extra.insert("restored".to_owned(), json!({"reasoning": 5}));
    calls[1].meta.extra.insert("edited".to_owned(), json!({"calls": ["call_1", "call_2"]}));
    calls[1].meta.extra.insert("normalised".to_owned(), json!({"billing": 2}));
    assert_eq!(
        json!(built_of(&calls).trajectory.translation),
        json!({
            "losses": {"effort_ignored": 2, "cache_control_dropped": 1},
            "restored": {"reasoning": 1},
            "edited": {"calls": 1},
            "normalised": {"billing": 1},
        })
    );
}

#[test]
fn a_second_continuation_is_a_trace_with_the_shared_part_as_context() {
    let root = [system(), user("a")];
    let go = |text: &str| [system(), user("a"), said("x"), user(text)];
    let built = built_of(&[
        call(&root, said("x"), &[1], &[10]),
        call(&go("b"), said("y"), &[1, 10, 2, 3], &[11]),
        call(&go("c"), said("z"), &[1, 10, 2, 4], &[12]),
    ]);
    assert_eq!(causes(&built), [ForkCause::NewLineage, ForkCause::Branch]);
    let traces = &built.trajectory.traces;
    assert_eq!(
        (&traces[1].prompt_ids[..], &traces[1].response_ids[..]),
        (&[1, 10, 2, 4][..], &[12][..])
    );
    assert_eq!(traces[1].prompt_messages, go("c"));
    assert_eq!(traces[1].lineage.parent, Some(0));
    assert_eq!((traces[1].siblings, traces[1].loss_weight), (2, 0.5));
    let fork = &traces[1].lineage.fork;
    assert_eq!(fork.nearest, Some(CallId::of_index(1)));
    assert_eq!((fork.shared_tokens, fork.expected, fork.found), (3, Some(3), Some(4)));
    assert_eq!(built.calls[2].fork.as_ref(), Some(fork));
}

#[test]
fn a_reply_the_harness_never_had_is_counted_and_not_trained() {
    let prompt = [system(), user("a")];
    let session = recorded(&[
        (call(&prompt, said("x"), &[1], &[10, 11]), Some(false)),
        (call(&prompt, said("x y"), &[1], &[10, 12]), Some(true)),
        (
            call(&[system(), user("a"), said("x y"), user("b")], said("z"), &[1, 10, 12, 2], &[13]),
            None,
        ),
    ]);
    let built = built(&session);
    assert_eq!(built.trajectory.traces.len(), 1);
    assert_eq!(built.trajectory.traces[0].response_ids, [10, 12, 2, 13]);
    assert_eq!(built.trajectory.tokens.untrained, [(UntrainedReason::Undelivered, 2)].into());
    assert_eq!(built.calls[0].trace, None);
    assert_eq!(built.calls[0].delivered, Some(false));
}

#[test]
fn a_reply_that_a_later_prompt_continues_was_delivered_whatever_was_noted() {
    let cut = finished(call(&[user("a")], said("x"), &[1], &[10, 11]), "cancelled");
    let resumed = call(&[user("a"), said("x"), user("go on")], said("y"), &[1, 10, 11, 2], &[12]);
    for delivered in [Some(false), None] {
        let session = recorded(&[(cut.clone(), delivered), (resumed.clone(), Some(true))]);
        let built = built(&session);
        assert_eq!(built.trajectory.traces.len(), 1);
        assert_eq!(built.trajectory.tokens.trained, 3);
    }
    // Nothing continues it, and the harness left: nobody needs to have noted that.
    let session = recorded(&[(cut, None)]);
    assert_eq!(
        built(&session).trajectory.tokens.untrained,
        [(UntrainedReason::Undelivered, 2)].into()
    );
}

#[test]
fn a_cut_reply_that_begins_like_its_retry_is_not_taken_for_delivered() {
    let prompt = [system(), user("a")];
    let session = recorded(&[
        (finished(call(&prompt, said("x"), &[1], &[10]), "cancelled"), Some(false)),
        (call(&prompt, said("x y"), &[1], &[10, 12]), Some(true)),
        (
            call(&[system(), user("a"), said("x y"), user("b")], said("z"), &[1, 10, 12, 2], &[13]),
            None,
        ),
    ]);
    let built = built(&session);
    assert_eq!(built.trajectory.tokens.untrained, [(UntrainedReason::Undelivered, 1)].into());
    assert_eq!(built.trajectory.traces.len(), 1);
}

#[test]
fn a_reply_that_never_arrived_stays_so_when_an_equal_one_did() {
    let reply = call(&[user("a")], said("x"), &[1], &[10]);
    let next = call(&[user("a"), said("x"), user("b")], said("y"), &[1, 10, 2], &[11]);
    for (first, second) in [(true, false), (false, true)] {
        let session = recorded(&[
            (reply.clone(), Some(first)),
            (reply.clone(), Some(second)),
            (next.clone(), Some(true)),
        ]);
        let built = built(&session);
        assert_eq!(built.trajectory.tokens.untrained, [(UntrainedReason::Undelivered, 1)].into());
        assert_eq!(built.trajectory.traces.len(), 1);
    }
}

#[test]
fn what_an_engine_broke_off_is_context_at_most() {
    let session = recorded(&[
        (call(&[user("a")], said("x"), &[1], &[10]), Some(true)),
        (
            finished(
                call(&[user("a"), said("x"), user("b")], said("p"), &[1, 10, 2], &[20, 21]),
                "abort",
            ),
            Some(true),
        ),
        (
            call(
                &[user("a"), said("x"), user("b"), said("p"), user("c")],
                said("y"),
                &[1, 10, 2, 20, 21, 3],
                &[11],
            ),
            Some(true),
        ),
    ]);
    let built = built(&session);
    let [trace] = &built.trajectory.traces[..] else { panic!("one trace expected") };
    assert_eq!(trace.response_ids, [10, 2, 20, 21, 3, 11]);
    assert_eq!(trace.loss_mask, [1, 0, 0, 0, 0, 1]);
    assert_eq!(trace.response_messages, [said("x"), user("b"), said("p"), user("c"), said("y")]);
    assert_eq!(built.trajectory.tokens.untrained, [(UntrainedReason::EngineAborted, 2)].into());
}

#[test]
fn what_the_engine_did_not_give_is_counted_as_missing() {
    let mut no_prompt = call(&[user("a")], said("x"), &[], &[1, 2]);
    no_prompt.prompt_ids = None;
    let mut no_sampled = call(&[user("b")], said("x"), &[1], &[]);
    no_sampled.sampled_ids = None;
    no_sampled.meta.sampled_tokens = 7;
    let mut short = call(&[user("c")], said("x"), &[2], &[5, 6]);
    short.logprobs.pop();
    let mut infinite = call(&[user("d")], said("x"), &[3], &[5, 6]);
    infinite.logprobs = vec![Some(f32::NEG_INFINITY), Some(-9999.0)];
    let built = built_of(&[no_prompt, no_sampled, short, infinite]);
    let tokens = &built.trajectory.tokens;
    assert_eq!((tokens.sampled, tokens.trained), (13, 1));
    assert_eq!(
        tokens.untrained,
        [(UntrainedReason::IdsMissing, 9), (UntrainedReason::LogprobMissing, 3)].into()
    );
    let traces = &built.trajectory.traces;
    assert_eq!(traces[0].response_logprobs, [None, None]);
    assert_eq!(traces[1].response_logprobs, [None, Some(-9999.0)]);
    assert_eq!(traces[1].loss_mask, [0, 1]);
}

#[test]
fn equal_replies_to_equal_prompts_are_each_continued_in_their_own_trace() {
    let root = call(&[user("a")], said("x"), &[1], &[10]);
    let go = |text: &str, id: u32| {
        call(&[user("a"), said("x"), user(text)], said("y"), &[1, 10, id], &[11])
    };
    let built = built_of(&[root.clone(), root, go("b", 2), go("c", 3)]);
    assert_eq!(causes(&built), [ForkCause::NewLineage, ForkCause::Retry]);
    assert_eq!(built.trajectory.tokens.trained, 4);
}

#[test]
fn calls_of_different_contexts_in_one_trace_are_found_out() {
    let session = recorded(&[
        (call(&[user("a")], said("x"), &[1], &[10]), Some(true)),
        (call(&[user("b")], said("y"), &[2, 10, 3], &[11]), Some(true)),
    ]);
    let mut trajectory = built(&session).trajectory;
    let mut second = trajectory.traces.remove(1);
    let merged = &mut trajectory.traces[0];
    merged.response_ids.extend([3, 11]);
    merged.loss_mask.extend([0, 1]);
    merged.response_logprobs.push(None);
    merged.response_logprobs.append(&mut second.response_logprobs);
    merged.weight_versions.push(span(None, 2, 3));
    merged.calls.append(&mut second.calls);
    merged.turn_ends.push(3);
    (merged.siblings, merged.loss_weight) = (1, 1.0);
    trajectory.tokens.context = 1;
    trajectory.sizes = None;
    let (call, position) = (CallId::of_index(1), 0);
    let found = verify(&trajectory, &session);
    assert_eq!(found, Err(Violation::Context { trace: 0, call, position }));
}

#[test]
fn promise_2_equal_tokens_that_stand_for_another_picture_are_another_context() {
    let look = |picture: &str| {
        json!({"role": "user", "content": [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": picture}},
        ]})
    };
    // Tokens 7 stand for a picture.
    let first = call(&[look("one")], said("x"), &[1, 7, 7], &[10]);
    let next = |picture: &str| {
        let messages = [look(picture), said("x"), look("three")];
        call(&messages, said("y"), &[1, 7, 7, 10, 2, 7, 7], &[11])
    };
    let session = |next| recorded(&[(first.clone(), Some(true)), (next, Some(true))]);
    let same = built(&session(next("one"))).trajectory;
    assert_eq!(same.traces.len(), 1);
    let other = session(next("two"));
    let apart = built(&other).trajectory;
    assert_eq!(apart.traces.len(), 2);
    assert_eq!(apart.traces[1].prompt_messages[0], look("two"));
    let call = CallId::of_index(1);
    assert_eq!(verify(&same, &other), Err(Violation::Pictures { trace: 0, call }));
}

#[test]
fn a_session_without_calls_has_no_traces() {
    let built = built(&recorded(&[]));
    assert_eq!((built.trajectory.traces.len(), built.calls.len()), (0, 0));
}
