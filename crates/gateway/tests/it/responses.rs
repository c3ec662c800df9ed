//! What Responses has that the other dialects have not: requests that go on from earlier
//! replies of their session, and a WebSocket that is not served.

use super::*;
use polar_convo::{FinishReason, ReplyEvent, chat_messages};
use polar_engine::{EngineEnd, EngineEvent};
use polar_types::ErrorClass;

const PATH: &str = "/v1/responses";

/// Answers a call with a text, and returns the reply's body.
async fn answered(rig: &Rig, secret: &str, body: &Value, text: &str) -> (Vec<Value>, Value) {
    let (response, call) = rig.call(PATH, secret, body).await;
    let asked = chat_messages(&call.request.request);
    call.prompt(&[1]);
    call.text(text, &[2]);
    call.end(1, 1);
    let response = within("reply", response).await.unwrap();
    (asked, response.json().await.unwrap())
}

fn next(previous: &Value) -> Value {
    let mut body = responses(false);
    body["input"] = "again".into();
    body["previous_response_id"] = previous["id"].clone();
    body
}

#[tokio::test]
async fn a_request_goes_on_from_a_reply_of_its_own_session_only() {
    let rig = Rig::start().await;
    let (one, two) = (rig.open("one"), rig.open("two"));
    let (_, first) = answered(&rig, one.secret(), &responses(false), "hi").await;
    assert!(first["id"].as_str().unwrap().starts_with("resp_"));
    let (asked, second) = answered(&rig, one.secret(), &next(&first), "hi again").await;
    let said: Vec<_> = asked.iter().map(|message| message["content"].clone()).collect();
    assert_eq!(said, ["hello", "hi", "again"]);
    assert_eq!(second["previous_response_id"], first["id"]);

    let stranger = rig.post(PATH, two.secret(), &next(&first)).send().await.unwrap();
    assert_eq!(stranger.status(), 400);
    let error: Value = stranger.json().await.unwrap();
    assert_eq!(error["error"]["code"], "previous_response_not_found");
    assert_eq!(error["error"]["param"], "previous_response_id");
}

#[tokio::test]
async fn a_streamed_reply_can_be_gone_on_from_as_soon_as_its_end_is_told() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let (response, call) = rig.call(PATH, session.secret(), &responses(true)).await;
    call.prompt(&[1]);
    call.text("hi", &[2]);
    call.end(1, 1);
    let text = within("body", within("reply", response).await.unwrap().text()).await.unwrap();
    let id = text.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap();
    let (asked, _) = answered(&rig, session.secret(), &next(&json!({"id": id})), "x").await;
    assert_eq!(asked[1]["content"], "hi");
}

#[tokio::test]
async fn a_reply_that_failed_or_was_not_to_be_kept_is_not_gone_on_from() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let mut body = responses(false);
    body["store"] = false.into();
    let (_, unkept) = answered(&rig, session.secret(), &body, "hi").await;
    let refused = rig.post(PATH, session.secret(), &next(&unkept)).send().await.unwrap();
    assert_eq!(refused.status(), 400);

    let (response, call) = rig.call(PATH, session.secret(), &responses(true)).await;
    call.prompt(&[1]);
    call.text("hi", &[2]);
    call.send(EngineEvent::End(EngineEnd {
        finish: FinishReason::Abort,
        engine_finish: "abort".to_owned(),
        stop_sequence: None,
        usage: polar_convo::Usage { prompt_tokens: 1, completion_tokens: 1, ..Default::default() },
        weight_versions: Vec::new(),
        arrays: std::collections::BTreeMap::new(),
        extra: serde_json::Map::new(),
    }));
    let text = within("body", within("reply", response).await.unwrap().text()).await.unwrap();
    assert!(text.contains("event: response.failed"), "{text}");
    let id = text.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap();
    let from = next(&json!({"id": id}));
    let refused = rig.post(PATH, session.secret(), &from).send().await.unwrap();
    assert_eq!(refused.status(), 400);
}

/// Codex keeps the conversation itself; the gateway still knows how the call was spelled.
#[tokio::test]
async fn promise_2_a_freeform_call_comes_back_as_it_was_sampled() {
    const SAMPLED: &str = "{ \"input\" : \"*** Begin\\u0020Patch\\n\" }";
    let rig = Rig::start().await;
    let session = rig.open("s");
    let mut body = responses(false);
    body["store"] = false.into();
    body["tools"] = json!([{"type": "custom", "name": "apply_patch"}]);
    let (response, call) = rig.call(PATH, session.secret(), &body).await;
    call.prompt(&[1]);
    call.send(EngineEvent::Chunk {
        events: vec![
            ReplyEvent::ToolCall { index: 0, id: "c".to_owned(), name: "apply_patch".to_owned() },
            ReplyEvent::ToolArguments { index: 0, fragment: SAMPLED.to_owned() },
        ],
        ids: vec![2],
        logprobs: vec![None],
    });
    call.end(1, 1);
    let reply: Value = within("reply", response).await.unwrap().json().await.unwrap();
    let item = reply["output"][0].clone();
    assert_eq!(
        (&item["type"], &item["input"]),
        (&json!("custom_tool_call"), &json!("*** Begin Patch\n"))
    );
    body["input"] = json!([
        {"role": "user", "content": "hello"},
        item,
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
    ]);
    let (asked, _) = answered(&rig, session.secret(), &body, "x").await;
    assert_eq!(asked[1]["tool_calls"][0]["function"]["arguments"], SAMPLED);
    session.close().unwrap();
    let recorded = rig.recorded("s");
    let told = recorded.record(&recorded.calls()[0]).reply;
    assert_eq!(told["tool_calls"], asked[1]["tool_calls"]);
}

#[tokio::test]
async fn an_overflow_found_before_the_stream_is_told_within_it_and_recorded() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    rig.engine.refuse(hand_engine::engine_error(ErrorClass::ContextOverflow, "too long"));
    let response = rig.post(PATH, session.secret(), &responses(true)).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let text = response.text().await.unwrap();
    assert!(text.contains("event: response.created"), "{text}");
    assert!(text.contains("event: response.failed"), "{text}");
    assert!(text.contains(r#""code":"context_length_exceeded""#), "{text}");
    session.close().unwrap();
    let recorded = rig.recorded("s");
    assert_eq!(recorded.calls()[0].meta.finish_reason, "error");
    assert_eq!(recorded.calls()[0].delivered, Some(false));
}

#[tokio::test]
async fn a_websocket_is_refused_such_that_clients_fall_back_at_once() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let ask = |secret: &str| {
        rig.client
            .get(format!("{}{PATH}", rig.base))
            .bearer_auth(secret)
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .send()
    };
    let refused = ask(session.secret()).await.unwrap();
    assert_eq!(refused.status(), 426);
    assert!(refused.headers().contains_key("upgrade"));
    let error: Value = refused.json().await.unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains("POST /v1/responses"));
    assert_eq!(ask("wrong").await.unwrap().status(), 401);
}
