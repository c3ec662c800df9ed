//! Promise 8: building takes what the tokens take, however many calls they came in.
#![allow(clippy::unwrap_used)] // Tests: a panic is the report.

mod sessions;

use polar_record::CallRecord;
use polar_trajectory::{build, verify};
use polar_types::TrajectoryStrategy;
use sessions::{call, recorded, said, user};

/// A conversation that only grows: 300 new prompt tokens and 200 sampled ones a turn.
fn linear(turns: u32) -> Vec<(CallRecord, Option<bool>)> {
    let mut ids: Vec<u32> = Vec::new();
    let mut messages = Vec::new();
    let turn = |turn: u32| {
        ids.extend((0..300).map(|at| (turn * 7919 + at * 31) % 150_000));
        messages.push(user(&turn.to_string()));
        let sampled: Vec<u32> = (0..200).map(|at| (turn * 104_729 + at * 17) % 150_000).collect();
        let reply = said(&format!("reply {turn}"));
        let record = call(&messages, reply.clone(), &ids, &sampled);
        ids.extend(sampled);
        messages.push(reply);
        (record, Some(true))
    };
    (0..turns).map(turn).collect()
}

#[test]
fn promise_8_building_touches_each_token_a_fixed_number_of_times() {
    let mut per_token = Vec::new();
    for turns in [50, 100, 200] {
        let session = recorded(&linear(turns));
        let tokens = 500 * u64::from(turns);
        let before = (session.tokens().work(), session.messages_tree().work());
        let built = build(&session, TrajectoryStrategy::PrefixMerging, None);
        let [trace] = &built.trajectory.traces[..] else { panic!("one trace expected") };
        assert_eq!((trace.prompt_ids.len() + trace.response_ids.len()) as u64, tokens);
        assert_eq!(built.trajectory.tokens.trained, 200 * u64::from(turns));
        let work = session.tokens().work() - before.0;
        let messages = session.messages_tree().work() - before.1;
        println!("{turns} turns, {tokens} tokens: {work} tokens and {messages} messages touched");
        assert_eq!(work, tokens, "each token is copied into the trace, once");
        assert!(messages <= 10 * u64::from(turns), "{messages} messages for {turns} turns");
        per_token.push(work / tokens);

        let before = session.tokens().work();
        assert_eq!(verify(&built.trajectory, &session), Ok(()));
        let checking = session.tokens().work() - before;
        assert_eq!(checking, tokens, "each token is compared with the trace, once");
    }
    assert_eq!(per_token, [1, 1, 1]);
}
