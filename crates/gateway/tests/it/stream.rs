//! Streaming: tokens arrive as they are sampled, silence carries keep-alives, bad ends
//! are said.

use super::hand_engine::engine_error;
use super::*;
use futures_util::{Stream, StreamExt};
use polar_trajectory::build;
use polar_types::{ErrorClass, TrajectoryStrategy};

/// Reads a body until what came so far contains `wanted`.
async fn read_until<B: AsRef<[u8]>, E: std::fmt::Debug>(
    body: &mut (impl Stream<Item = Result<B, E>> + Unpin),
    seen: &mut String,
    wanted: &str,
) {
    while !seen.contains(wanted) {
        let piece = within(wanted, body.next()).await;
        let piece = piece.unwrap_or_else(|| panic!("ended without {wanted:?}: {seen}")).unwrap();
        seen.push_str(std::str::from_utf8(piece.as_ref()).unwrap());
    }
}

/// Reads on until some more events have come, in the silence of the engine.
async fn lives_on<B: AsRef<[u8]>, E: std::fmt::Debug>(
    body: &mut (impl Stream<Item = Result<B, E>> + Unpin),
    seen: &mut String,
) {
    let events = |seen: &str| seen.matches("data: ").count();
    let wanted = events(seen) + 4;
    while events(seen) < wanted {
        let piece = within("signs of life", body.next()).await.unwrap().unwrap();
        seen.push_str(std::str::from_utf8(piece.as_ref()).unwrap());
    }
}

#[tokio::test]
async fn the_harness_gets_tokens_as_they_are_sampled() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    for (path, body) in dialects(true) {
        let (response, call) = rig.call(path, session.secret(), &body).await;
        let response = within("headers before any token", response).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut body = response.bytes_stream();
        let mut seen = String::new();
        call.prompt(&[1, 2, 3]);
        call.text("first", &[10]);
        read_until(&mut body, &mut seen, "first").await;
        call.text("second", &[11]);
        read_until(&mut body, &mut seen, "second").await;
        call.end(3, 2);
        read_until(&mut body, &mut seen, end_mark(path)).await;
        assert!(within("end", body.next()).await.is_none());
    }
}

#[tokio::test]
async fn silence_carries_keep_alives() {
    let config =
        GatewayConfig { keep_alive: Duration::from_millis(20), ..GatewayConfig::default() };
    let rig = Rig::with(config).await;
    let session = rig.open("s");
    for (path, body) in dialects(true) {
        let (response, call) = rig.call(path, session.secret(), &body).await;
        let mut body = within("headers", response).await.unwrap().bytes_stream();
        let wanted = match path {
            "/v1/messages" => "event: ping",
            "/v1/responses" => "event: response.in_progress",
            google if google.contains("GenerateContent") => r#""parts":[{"text":""}]"#,
            _ => r#""delta":{}"#,
        };
        read_until(&mut body, &mut String::new(), wanted).await;
        call.prompt(&[1]);
        call.end(1, 0);
        while within("rest", body.next()).await.is_some() {}
    }
}

/// Gemini CLI gives up when headers take a minute, and Codex and Qwen Code count only events as
/// life, not comments.
#[tokio::test]
async fn an_engine_that_accepts_nothing_yet_keeps_no_headers_back_and_no_client_waiting() {
    let config = GatewayConfig {
        keep_alive: Duration::from_millis(20),
        header_wait: Duration::from_millis(20),
        ..GatewayConfig::default()
    };
    let rig = Rig::with(config).await;
    let session = rig.open("s");
    for (path, body) in dialects(true) {
        let held = rig.engine.hold().await;
        let sent = rig.post(path, session.secret(), &body).send();
        let mut body = within("headers", sent).await.unwrap().bytes_stream();
        let mut seen = String::new();
        lives_on(&mut body, &mut seen).await;
        drop(held);
        let call = within("the engine call", rig.engine.next_call()).await;
        call.prompt(&[1]);
        call.text("first", &[2]);
        read_until(&mut body, &mut seen, "first").await;
        lives_on(&mut body, &mut seen).await;
        call.text("last", &[3]);
        call.end(1, 2);
        read_until(&mut body, &mut seen, end_mark(path)).await;
        assert!(seen.contains("last"), "{path}: {seen}");
        assert!(!seen.lines().any(|line| line.starts_with(':')), "{path}: {seen}");
    }
}

#[tokio::test]
async fn an_engine_that_refuses_becomes_a_status() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    for (class, openai_status, messages_status, google_status) in [
        (ErrorClass::ContextOverflow, 400, 400, 400),
        (ErrorClass::NotFound, 404, 404, 404),
        (ErrorClass::Overloaded, 429, 529, 503),
    ] {
        for stream in [false, true] {
            for (path, body) in dialects(stream) {
                let told_in_the_stream = stream && class == ErrorClass::ContextOverflow;
                let status = match path {
                    "/v1/messages" => messages_status,
                    google if google.starts_with("/v1beta/") => google_status,
                    "/v1/responses" if told_in_the_stream => 200,
                    _ => openai_status,
                };
                rig.engine.refuse(engine_error(class, "because"));
                let response = rig.post(path, session.secret(), &body).send().await.unwrap();
                assert_eq!(response.status(), status, "{path} {class:?} stream: {stream}");
                assert!(response.text().await.unwrap().contains("because"));
            }
        }
    }
}

#[tokio::test]
async fn an_engine_that_breaks_off_ends_the_stream_in_an_error() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    for (path, body) in dialects(true) {
        let (response, call) = rig.call(path, session.secret(), &body).await;
        call.prompt(&[1]);
        call.text("part", &[2]);
        call.fail(engine_error(ErrorClass::Unavailable, "engine died"));
        let text = within("body", within("headers", response).await.unwrap().text()).await.unwrap();
        assert!(text.contains("part") && text.contains("engine died"), "{text}");
        assert!(!text.contains(end_mark(path)) && !text.contains("finish_reason\":\"stop"));
    }
    session.close().unwrap();
    let recorded = rig.recorded("s");
    assert_eq!(recorded.calls().len(), 4);
    for call in recorded.calls() {
        assert_eq!(call.meta.finish_reason, "error");
        assert_eq!(call.delivered, Some(false));
    }
}

#[tokio::test]
async fn an_answer_names_its_call_as_the_record_does() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let mut named = Vec::new();
    for stream in [false, true] {
        for (path, body) in dialects(stream) {
            let (response, call) = rig.call(path, session.secret(), &body).await;
            call.prompt(&[1]);
            call.text("a", &[2]);
            call.end(1, 1);
            let whole = within("headers", response).await.unwrap();
            // Before the first byte of a stream, too, for there it can be said no more.
            rig.engine.refuse(engine_error(ErrorClass::NotFound, "because"));
            let refused = rig.post(path, session.secret(), &body).send().await.unwrap();
            let header = match path {
                "/v1/chat/completions" | "/v1/responses" => Some("x-request-id"),
                "/v1/messages" => Some("request-id"),
                _ => None,
            };
            for response in [whole, refused] {
                let name = header.and_then(|header| response.headers().get(header)).cloned();
                named.push(name.map(|name| name.to_str().unwrap().to_owned()));
                within("body", response.bytes()).await.unwrap();
            }
        }
    }
    session.close().unwrap();
    let recorded = rig.recorded("s");
    assert_eq!(recorded.calls().len(), named.len());
    for (call, named) in recorded.calls().iter().zip(named) {
        let known = call.meta.extra["engine_request_id"].as_str().map(str::to_owned);
        assert_eq!(named, known.filter(|_| call.meta.dialect != "google"));
    }
}

/// llama.cpp samples a reply and fails it: asked again it would sample another one.
#[tokio::test]
async fn a_reply_that_the_engine_keeps_to_itself_is_counted_and_not_asked_for_again() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    for stream in [false, true] {
        for (path, body) in dialects(stream) {
            let mut error = engine_error(ErrorClass::Invalid, "because");
            error.lost_reply = true;
            rig.engine.refuse(error);
            let refused = rig.post(path, session.secret(), &body).send().await.unwrap();
            assert_eq!(refused.status(), 400, "{path}");
            assert_eq!(refused.headers()["x-should-retry"], "false", "{path}");
        }
    }
    session.close().unwrap();
    let recorded = rig.recorded("s");
    for call in recorded.calls() {
        assert_eq!(call.meta.extra["losses"][0]["kind"], "reply_unreadable");
    }
    let built = build(&recorded, TrajectoryStrategy::PrefixMerging, None);
    assert_eq!(built.trajectory.translation.losses["reply_unreadable"], 8);
}
