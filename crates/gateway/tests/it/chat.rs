//! What Chat has that the other dialects have not: logprobs told to the client, calls in the form
//! before `tools`, and neighbours of the API that are not served.

use super::*;
use polar_convo::{ReplyEvent, chat_messages};
use polar_engine::EngineEvent;

const PATH: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_client_that_wants_to_know_gets_the_recorded_logprobs() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    for stream in [false, true] {
        let mut body = chat(stream);
        body["logprobs"] = true.into();
        let (response, call) = rig.call(PATH, session.secret(), &body).await;
        // Engines are always asked for them, in their own words.
        assert!(!call.request.request.rest.contains_key("logprobs"));
        call.prompt(&[1]);
        call.text("a", &[10]);
        call.text("b", &[11]);
        call.end(1, 2);
        let text = within("reply", response).await.unwrap().text().await.unwrap();
        for told in [
            r#"{"token":"token_id:10","logprob":-10.5,"bytes":null,"top_logprobs":[]}"#,
            r#"{"token":"token_id:11","logprob":-11.5,"bytes":null,"top_logprobs":[]}"#,
        ] {
            assert_eq!(text.matches(told).count(), 1, "{text}");
        }
    }
    session.close().unwrap();
    let recorded = rig.recorded("s");
    let record = recorded.record(&recorded.calls()[0]);
    assert_eq!(record.logprobs, [Some(-10.5), Some(-11.5)]);
}

fn two_calls() -> EngineEvent {
    let call =
        |index| ReplyEvent::ToolCall { index, id: format!("c{index}"), name: "f".to_owned() };
    EngineEvent::Chunk { events: vec![call(0), call(1)], ids: vec![2], logprobs: vec![None] }
}

#[tokio::test]
async fn functions_are_called_one_at_a_time_and_never_half_told() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    for stream in [false, true] {
        let mut body = chat(stream);
        body["functions"] = json!([{"name": "f"}]);
        body["messages"].as_array_mut().unwrap().extend([
            json!({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}),
            json!({"role": "function", "name": "f", "content": "done"}),
        ]);
        let (response, call) = rig.call(PATH, session.secret(), &body).await;
        let asked = chat_messages(&call.request.request);
        assert_eq!(asked[1]["tool_calls"][0]["id"], asked[2]["tool_call_id"]);
        assert_eq!(call.request.request.rest["parallel_tool_calls"], false);
        call.prompt(&[1]);
        call.send(two_calls());
        if !stream {
            call.end(1, 1);
        }
        let text = within("reply", response).await.unwrap().text().await.unwrap();
        assert!(text.contains("two functions at once") && !text.contains("[DONE]"), "{text}");
    }
    session.close().unwrap();
    for call in rig.recorded("s").calls() {
        assert_eq!(call.delivered, Some(false));
    }
}

#[tokio::test]
async fn completions_and_embeddings_are_refused_with_what_to_do() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    for (path, mend) in
        [("/v1/completions", "/v1/chat/completions"), ("/v1/embeddings", "another base URL")]
    {
        let body = json!({"model": "m", "prompt": "x", "input": "x"});
        let refused = rig.post(path, session.secret(), &body).send().await.unwrap();
        assert_eq!(refused.status(), 404);
        let error: Value = refused.json().await.unwrap();
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert!(error["error"]["message"].as_str().unwrap().contains(mend), "{error}");
        assert_eq!(rig.post(path, "wrong", &body).send().await.unwrap().status(), 401);
    }
}
