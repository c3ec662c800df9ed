//! Sessions to build trajectories from.
#![allow(clippy::unwrap_used)] // Tests: a panic is the report.
#![allow(dead_code)] // Each test binary uses its part.

use polar_record::{CallMeta, CallRecord, RecordedSession, SessionHeader};
use polar_trajectory::{Built, build, unroll, verify};
use polar_types::{CallId, ForkCause, TrajectoryStrategy};
use serde_json::{Value, json};

pub(crate) fn header() -> SessionHeader {
    SessionHeader {
        session_id: "fix-s0".parse().unwrap(),
        task_id: "fix".parse().unwrap(),
        group_id: "fix-g".parse().unwrap(),
        attempt: 1,
        epoch: 0,
        created_at_ms: 1_764_000_000_000,
        engine: json!({"name": "simulator"}),
        rules: Default::default(),
    }
}

pub(crate) fn system() -> Value {
    json!({"role": "system", "content": "You fix tests."})
}

pub(crate) fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

pub(crate) fn said(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// A call with these messages and tokens, a logprob for each sampled token.
pub(crate) fn call(
    messages: &[Value],
    reply: Value,
    prompt: &[u32],
    sampled: &[u32],
) -> CallRecord {
    CallRecord {
        meta: CallMeta {
            call_id: CallId::of_index(0),
            dialect: "chat".to_owned(),
            stream: true,
            model: "policy".to_owned(),
            started_at_ms: 1_764_000_000_123,
            duration_ms: 250,
            sampled_tokens: sampled.len() as u64,
            prompt_tokens: prompt.len() as u64,
            cached_tokens: None,
            finish_reason: "stop".to_owned(),
            engine_finish: "stop".to_owned(),
            weight_versions: Vec::new(),
            sampling: json!({"temperature": 0.7}),
            logprob_mode: "raw".to_owned(),
            extra: serde_json::Map::new(),
            error: None,
            headers: Default::default(),
            fingerprint: None,
        },
        messages: messages.to_vec(),
        tools: None,
        reply,
        prompt_ids: Some(prompt.to_vec()),
        sampled_ids: Some(sampled.to_vec()),
        logprobs: sampled.iter().map(|id| Some(-(*id as f32) / 7.0)).collect(),
    }
}

pub(crate) fn finished(mut call: CallRecord, reason: &str) -> CallRecord {
    call.meta.finish_reason = reason.to_owned();
    call
}

pub(crate) fn recorded(calls: &[(CallRecord, Option<bool>)]) -> RecordedSession {
    let calls = calls.iter().map(|(call, delivered)| (call, *delivered));
    RecordedSession::from_calls(&header(), calls).unwrap()
}

/// Builds with every strategy, has all checked and gives the merged one.
pub(crate) fn built(session: &RecordedSession) -> Built {
    let alone = build(session, TrajectoryStrategy::PerRequest, Some(0.5));
    verify(&alone.trajectory, session).unwrap();
    let merged = build(session, TrajectoryStrategy::PrefixMerging, Some(0.5));
    verify(&merged.trajectory, session).unwrap();
    assert_eq!(merged.trajectory.tokens.trained, alone.trajectory.tokens.trained);
    let tree = build(session, TrajectoryStrategy::PrefixTree, Some(0.5));
    verify(&tree.trajectory, session).unwrap();
    assert_eq!(unroll(&tree.trajectory).unwrap(), merged.trajectory.traces);
    merged
}

/// Builds a session whose calls were all delivered.
pub(crate) fn built_of(calls: &[CallRecord]) -> Built {
    let calls: Vec<_> = calls.iter().map(|call| (call.clone(), Some(true))).collect();
    built(&recorded(&calls))
}

pub(crate) fn causes(built: &Built) -> Vec<ForkCause> {
    built.trajectory.traces.iter().map(|trace| trace.lineage.fork.cause).collect()
}
