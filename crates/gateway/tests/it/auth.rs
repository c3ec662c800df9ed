//! Who may call, and what is not a generation.

use super::*;
use polar_http::testing::answer_after_all;

#[tokio::test]
async fn promise_9_an_unknown_secret_is_refused_in_each_dialect() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    for (path, body) in dialects(false) {
        for secret in ["", "wrong", "polar-00"] {
            let response = rig.post(path, secret, &body).send().await.unwrap();
            assert_eq!(response.status(), 401, "{path} with {secret:?}");
            let error: Value = response.json().await.unwrap();
            let is_messages = path.ends_with("messages");
            if is_messages {
                assert_eq!(error["type"], "error");
                assert_eq!(error["error"]["type"], "authentication_error");
            } else {
                assert!(error["error"]["message"].is_string(), "{error}");
            }
        }
    }
    session.close().unwrap();
    let response = rig.post("/v1/messages", session.secret(), &messages(false));
    assert_eq!(response.send().await.unwrap().status(), 401, "a closed session's secret");
}

#[tokio::test]
async fn promise_9_a_secret_opens_its_own_session_only() {
    let rig = Rig::start().await;
    let (one, two) = (rig.open("one"), rig.open("two"));
    assert_ne!(one.secret(), two.secret());
    let (response, call) = rig.call("/v1/chat/completions", two.secret(), &chat(false)).await;
    call.prompt(&[1]);
    call.text("x", &[2]);
    call.end(1, 1);
    assert_eq!(within("reply", response).await.unwrap().status(), 200);
    one.close().unwrap();
    two.close().unwrap();
    assert_eq!(rig.recorded("one").calls().len(), 0);
    assert_eq!(rig.recorded("two").calls().len(), 1);
}

#[tokio::test]
async fn the_secret_is_accepted_where_each_harness_can_put_it() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let secret = session.secret();
    let url = |path: &str| format!("{}{path}", rig.base);
    let requests = [
        rig.client.post(url(&format!("/s/{secret}/v1/chat/completions"))),
        rig.client.post(url(&format!("/s/{secret}/chat/completions"))).bearer_auth("ignored"),
        rig.client.post(url("/v1/chat/completions")).bearer_auth(secret),
        rig.client.post(url("/v1/chat/completions")).header("x-api-key", secret),
        rig.client.post(url("/v1/chat/completions")).header("x-goog-api-key", secret),
        rig.client.post(url(&format!("/v1/chat/completions?key={secret}"))),
        rig.client.post(url("/v1/chat/completions")).header("polar-session", secret),
    ];
    for (index, request) in requests.into_iter().enumerate() {
        let response = tokio::spawn(request.json(&chat(false)).send());
        let call = within("call", rig.engine.next_call()).await;
        call.prompt(&[1]);
        call.text("x", &[2]);
        call.end(1, 1);
        let response = within("reply", response).await.unwrap().unwrap();
        assert_eq!(response.status(), 200, "request {index}");
    }
}

#[tokio::test]
async fn other_endpoints_are_answered_and_never_recorded() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let get = |path: &str| {
        rig.client.get(format!("{}{path}", rig.base)).bearer_auth(session.secret()).send()
    };
    let models: Value = get("/v1/models").await.unwrap().json().await.unwrap();
    assert_eq!(models["data"][0]["id"], "m");
    assert_eq!(get("/v1/models/m").await.unwrap().status(), 200);
    assert_eq!(get("/v1/models/other").await.unwrap().status(), 404);
    assert_eq!(get("/v1/nothing").await.unwrap().status(), 404);
    assert_eq!(get("/v1/responses").await.unwrap().status(), 404);
    let told: Value = get("/v1/responses/resp_1").await.unwrap().json().await.unwrap();
    assert!(told["error"]["message"].as_str().unwrap().contains("previous_response_id"));
    let head = rig.client.head(format!("{}/api/hello", rig.base)).send().await.unwrap();
    assert_eq!(head.status(), 200);
    let count = rig
        .post("/v1/messages/count_tokens", session.secret(), &messages(false))
        .send()
        .await
        .unwrap();
    assert_eq!(count.json::<Value>().await.unwrap()["input_tokens"], 10);
    let path = "/v1/responses/input_tokens";
    let count = rig.post(path, session.secret(), &responses(false)).send().await.unwrap();
    assert_eq!(
        count.json::<Value>().await.unwrap(),
        json!({"object": "response.input_tokens", "input_tokens": 10})
    );
    let compact = rig.post("/v1/responses/compact", session.secret(), &responses(false));
    let refused = compact.send().await.unwrap();
    assert_eq!(refused.status(), 404);
    assert_eq!(refused.json::<Value>().await.unwrap()["error"]["code"], "not_found");
    session.close().unwrap();
    assert_eq!(rig.recorded("s").calls().len(), 0);
}

#[tokio::test]
async fn promise_8_too_many_calls_and_too_large_bodies_are_pushed_back() {
    let config = GatewayConfig {
        max_calls_per_session: 1,
        max_body_bytes: 1000,
        ..GatewayConfig::default()
    };
    let rig = Rig::with(config).await;
    let session = rig.open("s");
    let (first, call) = rig.call("/v1/chat/completions", session.secret(), &chat(false)).await;
    for (path, body) in dialects(true) {
        let refused = rig.post(path, session.secret(), &body).send().await.unwrap();
        assert_eq!(refused.status(), 429, "{path}");
        assert!(refused.headers().contains_key("retry-after"), "{path}");
    }
    call.prompt(&[1]);
    call.end(1, 0);
    assert_eq!(within("reply", first).await.unwrap().status(), 200);

    let large = json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(2000)}]});
    let refused = rig.post("/v1/chat/completions", session.secret(), &large).send().await.unwrap();
    assert_eq!(refused.status(), 413);
}

/// Bodies are read before it is known what they ask for, so that calls alone bound nothing.
#[tokio::test]
async fn promise_8_what_a_session_sends_at_a_time_is_bounded() {
    let config = GatewayConfig { max_held_bytes_per_session: 6000, ..GatewayConfig::default() };
    let rig = Rig::with(config).await;
    let session = rig.open("s");
    let padded = || {
        let mut body = chat(false);
        body["padding"] = "x".repeat(4000).into();
        body
    };
    let post = |body: &Value| rig.post("/v1/chat/completions", session.secret(), body).send();
    // Held for as long as its call runs.
    let first = tokio::spawn(post(&padded()));
    let call = within("call", rig.engine.next_call()).await;
    let refused = post(&padded()).await.unwrap();
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    let said = refused.text().await.unwrap();
    assert!(said.contains("more than 6000 bytes"), "{said}");
    // Another session has its own.
    let other = rig.open("t");
    let counted = rig.post("/v1/messages/count_tokens", other.secret(), &padded()).send().await;
    assert_ne!(counted.unwrap().status(), 429);
    call.prompt(&[1]);
    call.end(1, 0);
    assert_eq!(within("reply", first).await.unwrap().unwrap().status(), 200);
    let second = tokio::spawn(post(&padded()));
    let call = within("call", rig.engine.next_call()).await;
    call.prompt(&[1]);
    call.end(1, 0);
    assert_eq!(within("reply", second).await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn a_refusal_arrives_whatever_was_sent_with_it() {
    let rig =
        Rig::with(GatewayConfig { max_body_bytes: 4 << 20, ..GatewayConfig::default() }).await;
    let session = rig.open("s");
    let address = rig.base.trim_start_matches("http://").parse().unwrap();
    for (request, secret, status) in [
        ("POST /v1/messages", "wrong", 401),
        ("POST /v1/chat/completions", "wrong", 401),
        ("POST /v1/chat/completions", session.secret(), 413),
        ("POST /v1/nothing", session.secret(), 404),
    ] {
        let answer = answer_after_all(address, request, secret, vec![b'x'; 8 << 20]);
        let line = within("answer", answer).await.unwrap();
        assert!(line.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {line}");
    }
}
