//! Calls to write down.
#![allow(clippy::unwrap_used)] // Tests: a panic is the report.
#![allow(dead_code)] // Each test binary uses its part.

use polar_record::{CallMeta, CallRecord, SessionHeader};
use polar_types::CallId;
use serde_json::{Value, json};

pub(crate) fn header() -> SessionHeader {
    SessionHeader {
        session_id: "fix-s0".parse().unwrap(),
        task_id: "fix".parse().unwrap(),
        group_id: "fix".parse().unwrap(),
        attempt: 1,
        epoch: 3,
        created_at_ms: 1_764_000_000_000,
        engine: json!({"name": "simulator"}),
        rules: Default::default(),
    }
}

pub(crate) fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

pub(crate) fn reply(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// A call with these tokens, a logprob for each sampled one, and messages made of the prompt.
pub(crate) fn call(prompt: &[u32], sampled: &[u32]) -> CallRecord {
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
            cached_tokens: Some(0),
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
        messages: vec![user(&format!("{prompt:?}"))],
        tools: None,
        reply: reply(&format!("{sampled:?}")),
        prompt_ids: Some(prompt.to_vec()),
        sampled_ids: Some(sampled.to_vec()),
        logprobs: sampled.iter().map(|id| Some(-(*id as f32) / 7.0)).collect(),
    }
}

/// A conversation of so many turns that only grows, 300 tokens of observation and 200
/// sampled ones a turn, four letters of text for each.
pub(crate) fn linear_session(turns: u32) -> Vec<CallRecord> {
    // No two alike: a repeated message would be stored once.
    let text = |turn: u32, tokens: u32| -> String {
        let word = |at: u32| (turn * 1000 + at).wrapping_mul(2_654_435_761) >> 16;
        (0..tokens).map(|at| format!("{:04x}", word(at))).collect()
    };
    let mut ids: Vec<u32> = Vec::new();
    let mut messages = Vec::new();
    let mut calls = Vec::new();
    for turn in 0..turns {
        ids.extend((0..300).map(|at| (turn * 7919 + at * 31) % 150_000));
        messages.push(user(&text(turn, 300)));
        let sampled: Vec<u32> = (0..200).map(|at| (turn * 104_729 + at * 17) % 150_000).collect();
        let mut record = call(&ids, &sampled);
        record.messages.clone_from(&messages);
        record.reply = reply(&text(turn + 500, 200));
        messages.push(record.reply.clone());
        ids.extend(sampled);
        calls.push(record);
    }
    calls
}
