//! The model's own turns in the histories that harnesses send back.

use super::*;
use polar_convo::{ReplyEvent, chat_messages};
use polar_engine::EngineEvent;

const SAMPLED: &str = "{ \"n\": 1.0 }";

/// Answers a call with reasoning and a tool call; what the engine was asked comes back.
async fn calls_a_tool(rig: &Rig, path: &str, secret: &str, body: &Value) -> Vec<Value> {
    let (response, call) = rig.call(path, secret, body).await;
    let asked = chat_messages(&call.request.request);
    call.prompt(&[1]);
    call.send(EngineEvent::Chunk {
        events: vec![
            ReplyEvent::Reasoning(" hm ".to_owned()),
            ReplyEvent::ToolCall { index: 0, id: "call_1".to_owned(), name: "f".to_owned() },
            ReplyEvent::ToolArguments { index: 0, fragment: SAMPLED.to_owned() },
        ],
        ids: vec![2],
        logprobs: vec![None],
    });
    call.end(1, 1);
    within("reply", response).await.unwrap().bytes().await.unwrap();
    asked
}

/// The same history in two dialects: without reasoning, and with arguments spelled anew.
fn kept(path: &str, arguments: &str) -> Value {
    if path.ends_with("/messages") {
        let input: Value = serde_json::from_str(arguments).unwrap();
        return json!({"model": "m", "max_tokens": 9, "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "call_1", "name": "f", "input": input},
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1"}]},
        ]});
    }
    json!({"model": "m", "messages": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}},
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": ""},
    ]})
}

#[tokio::test]
async fn promise_2_a_turn_is_known_again_in_any_dialect_and_the_record_says_so() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let secret = session.secret();
    calls_a_tool(&rig, "/v1/chat/completions", secret, &chat(false)).await;
    for path in ["/v1/chat/completions", "/v1/messages"] {
        let asked = calls_a_tool(&rig, path, secret, &kept(path, "{\"n\":1}")).await;
        assert_eq!(asked[1]["reasoning_content"], " hm ", "{path}");
        assert_eq!(asked[1]["tool_calls"][0]["function"]["arguments"], SAMPLED, "{path}");
        let asked = calls_a_tool(&rig, path, secret, &kept(path, "{\"n\":2}")).await;
        assert_eq!(asked[1]["tool_calls"][0]["function"]["arguments"], "{\"n\":2}", "{path}");
    }
    session.close().unwrap();
    let recorded = rig.recorded("s");
    let said = |name: &str| -> Vec<Value> {
        let calls = recorded.calls().iter();
        calls.map(|call| call.meta.extra.get(name).cloned().unwrap_or_default()).collect()
    };
    let (both, reasoning) = (json!({"arguments": 1, "reasoning": 1}), json!({"reasoning": 1}));
    let restored = [&Value::Null, &both, &reasoning, &both, &reasoning];
    assert_eq!(said("restored").iter().collect::<Vec<_>>(), restored);
    // The second time the edit is in a record already.
    let edited = json!({"calls": ["call_1"]});
    let none = Value::Null;
    assert_eq!(said("edited").iter().collect::<Vec<_>>(), [&none, &none, &edited, &none, &none]);
    // What is recorded is what was in context.
    let record = recorded.record(&recorded.calls()[1]);
    assert_eq!(record.messages[1]["reasoning_content"], " hm ");
}

#[tokio::test]
async fn a_session_may_leave_what_its_harness_drops_as_it_is() {
    let rig = Rig::start().await;
    let session =
        rig.open_with("s", SamplingPins::default(), HistoryPolicy::AsSent, HarnessRules::default());
    let path = "/v1/chat/completions";
    calls_a_tool(&rig, path, session.secret(), &chat(false)).await;
    let asked = calls_a_tool(&rig, path, session.secret(), &kept(path, "{\"n\":1}")).await;
    assert_eq!(asked[1].get("reasoning_content"), None);
    assert_eq!(asked[1]["tool_calls"][0]["function"]["arguments"], SAMPLED);
}

/// What is taken out of prompts is no part of what a turn answers.
#[tokio::test]
async fn a_turn_is_known_again_behind_text_that_changes_with_each_call() {
    let rules = serde_json::from_value(json!({"normalise": [
        {"name": "cch", "description": "A counter.", "part": "user", "pattern": "^cch=\\d+\n"}]}));
    let rig = Rig::start().await;
    let history = HistoryPolicy::default();
    let session = rig.open_with("s", SamplingPins::default(), history, rules.unwrap());
    let asks = |count: u32, more: &[Value]| {
        let first = json!({"role": "user", "content": format!("cch={count}\nhello")});
        json!({"model": "m", "messages": ([&[first], more].concat())})
    };
    let path = "/v1/chat/completions";
    let (response, call) = rig.call(path, session.secret(), &asks(1, &[])).await;
    call.prompt(&[1, 2]);
    call.send(EngineEvent::Chunk {
        events: vec![ReplyEvent::Reasoning("hm".to_owned()), ReplyEvent::Text("hi".to_owned())],
        ids: vec![3, 4],
        logprobs: vec![None, None],
    });
    call.end(2, 2);
    within("reply", response).await.unwrap().text().await.unwrap();

    let more = [
        json!({"role": "assistant", "content": "hi"}),
        json!({"role": "user", "content": "go on"}),
    ];
    let (_response, call) = rig.call(path, session.secret(), &asks(2, &more)).await;
    let seen = chat_messages(&call.request.request);
    assert_eq!(seen[0]["content"], "hello");
    assert_eq!(seen[1]["reasoning_content"], "hm");
}

/// What one session said is unknown in another.
#[tokio::test]
async fn only_replies_of_the_own_session_are_known() {
    let rig = Rig::start().await;
    let (one, two) = (rig.open("one"), rig.open("two"));
    let path = "/v1/chat/completions";
    calls_a_tool(&rig, path, one.secret(), &chat(false)).await;
    let asked = calls_a_tool(&rig, path, two.secret(), &kept(path, "{\"n\":1}")).await;
    assert_eq!(asked[1].get("reasoning_content"), None);
    assert_eq!(asked[1]["tool_calls"][0]["function"]["arguments"], "{\"n\":1}");
}
