//! Faults of the connection and of the engine behind it.

use crate::fake_engine::{Answer, FakeEngine, collect, fixture, generate, recorded, request};
use crate::vllm::pages;
use futures_util::StreamExt;
use polar_engine::{
    Engine, EngineError, EngineOptions, EngineStream, GenerateRequest, ProbeError, Timeouts,
};
use polar_types::ErrorClass;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// An engine that is well while it is probed and then answers as told.
async fn failing(
    timeouts: Timeouts,
    answer: impl Fn() -> Answer + Send + Sync + 'static,
) -> (FakeEngine, Arc<dyn Engine>) {
    let well = Arc::new(AtomicBool::new(true));
    let switch = Arc::clone(&well);
    let server = FakeEngine::start(move |asked| {
        if asked.path != "/v1/chat/completions" {
            pages(asked)
        } else if !well.load(Ordering::SeqCst) {
            answer()
        } else if asked.body["logit_bias"].get("-1").is_some() {
            Answer::Json(400, fixture("vllm/no_such_id.json"))
        } else if asked.streams() {
            Answer::Stream(fixture("vllm/tool.sse"))
        } else {
            Answer::json(fixture("vllm/text.json"))
        }
    })
    .await;
    let options = EngineOptions { timeouts, ..EngineOptions::default() };
    let engine = polar_engine::connect(&server.url, options).await.unwrap();
    switch.store(false, Ordering::SeqCst);
    (server, engine)
}

async fn error_of(answer: impl Fn() -> Answer + Send + Sync + 'static) -> EngineError {
    let (_server, engine) = failing(Timeouts::default(), answer).await;
    generate(&engine, request(true)).await.unwrap_err()
}

fn without_end() -> String {
    let whole = fixture("vllm/text.sse");
    whole.split("data: [DONE]").next().unwrap().to_owned()
}

#[tokio::test]
async fn a_body_that_ends_without_its_mark_is_an_error() {
    let error = error_of(|| Answer::Stream(without_end())).await;
    assert_eq!(error.class, ErrorClass::Unavailable);
    assert!(error.message.contains("before the end"), "{error}");
}

#[tokio::test]
async fn a_cut_connection_is_an_error() {
    let error = error_of(|| Answer::Cut(without_end())).await;
    assert_eq!(error.class, ErrorClass::Unavailable);
    // The words by which agents tell that a call is to be made again.
    assert!(error.message.contains("connection lost"), "{error}");
}

#[tokio::test]
async fn an_error_inside_a_stream_is_an_error() {
    let error = error_of(|| {
        let sent = r#"data: {"error": {"message": "engine died", "code": 500}}"#;
        Answer::Stream(format!("{sent}\n\ndata: [DONE]\n\n"))
    })
    .await;
    assert_eq!(error.class, ErrorClass::Unavailable);
    assert!(error.message.contains("engine died"), "{error}");
}

#[tokio::test]
async fn a_stream_of_something_else_is_an_error() {
    let error = error_of(|| Answer::Stream("data: <html>\n\n".to_owned())).await;
    assert_eq!(error.class, ErrorClass::Unavailable);
    let error = error_of(|| Answer::Stream("data: [DONE]\n\n".to_owned())).await;
    assert!(error.message.contains("finish reason"), "{error}");
}

#[tokio::test]
async fn refusals_keep_status_numbers_and_patience() {
    let overflow = error_of(|| Answer::Json(400, fixture("vllm/too_long.json"))).await;
    assert_eq!(overflow.class, ErrorClass::ContextOverflow);
    assert_eq!(overflow.status, Some(400));
    let full = || Answer::WithHeader(503, ("retry-after", "7"), "{}".to_owned());
    let full = error_of(full).await;
    assert_eq!((full.class, full.retry_after), (ErrorClass::Unavailable, Some(7.0)));
    let gone = error_of(|| Answer::Json(404, r#"{"error":{"message":"no model"}}"#.into())).await;
    assert_eq!(gone.class, ErrorClass::NotFound);
}

/// Deadlines far from each other and from every other wait, so that an error tells which one
/// has passed. Tests stop the clock, which then jumps to the next deadline by itself.
fn hours() -> Timeouts {
    let hours = |n: u64| Duration::from_secs(3600 * n);
    Timeouts { first_byte: hours(2), idle: hours(3), call: hours(4), ..Timeouts::default() }
}

async fn expire(
    generation: impl Future<Output = Result<EngineStream, EngineError>>,
) -> EngineError {
    match generation.await {
        Err(error) => error,
        Ok(mut stream) => {
            stream.next().await.unwrap().unwrap();
            tokio::time::pause();
            loop {
                if let Err(error) = stream.next().await.unwrap() {
                    break error;
                }
            }
        }
    }
}

fn asked(stream: bool) -> GenerateRequest {
    GenerateRequest { request: request(stream), request_id: "asked".to_owned() }
}

/// Polls a generation until its request has reached the server.
async fn until_asked<F: Future + Unpin>(server: &FakeEngine, generation: &mut F) {
    let before = server.chats().len();
    while server.chats().len() == before {
        tokio::select! {
            _ = &mut *generation => panic!("a silent engine answered"),
            () = tokio::task::yield_now() => {}
        }
    }
}

#[tokio::test]
async fn silence_before_the_first_byte_ends() {
    for (stream, limit) in [(true, "7200 s"), (false, "14400 s")] {
        let (mut server, engine) = failing(hours(), || Answer::Silence).await;
        let mut generation = engine.generate(asked(stream));
        until_asked(&server, &mut generation).await;
        tokio::time::pause();
        let error = expire(generation).await;
        tokio::time::resume();
        assert_eq!(error.class, ErrorClass::Timeout);
        assert!(error.message.contains(limit), "{error}");
        server.client_left().await;
    }
}

#[tokio::test]
async fn silence_inside_a_stream_ends() {
    let (mut server, engine) = failing(hours(), || Answer::Hang(without_end())).await;
    let error = expire(engine.generate(asked(true))).await;
    tokio::time::resume();
    assert_eq!(error.class, ErrorClass::Timeout);
    assert!(error.message.contains("10800 s"), "{error}");
    server.client_left().await;
}

#[tokio::test]
async fn a_reply_that_takes_too_long_as_a_whole_ends() {
    let timeouts = Timeouts { call: Duration::from_secs(3600), ..hours() };
    let (mut server, engine) = failing(timeouts, || Answer::Hang(without_end())).await;
    let error = expire(engine.generate(asked(true))).await;
    tokio::time::resume();
    assert_eq!(error.class, ErrorClass::Timeout);
    assert!(error.message.contains("3600 s"), "{error}");
    server.client_left().await;
}

#[tokio::test]
async fn an_engine_that_never_generates_does_not_hold_the_probe() {
    let mut server = FakeEngine::start(|asked| match asked.path.as_str() {
        "/v1/chat/completions" if asked.body["logit_bias"].get("-1").is_some() => {
            Answer::Json(400, fixture("vllm/no_such_id.json"))
        }
        "/v1/chat/completions" => Answer::Silence,
        _ => pages(asked),
    })
    .await;
    let options = EngineOptions { timeouts: hours(), ..EngineOptions::default() };
    let mut probe = Box::pin(polar_engine::connect(&server.url, options));
    // The refusal that tells the vocabulary, then the generation.
    until_asked(&server, &mut probe).await;
    until_asked(&server, &mut probe).await;
    tokio::time::pause();
    let error = probe.await.err().unwrap();
    tokio::time::resume();
    assert!(error.to_string().contains("no whole reply within 600 s"), "{error}");
    server.client_left().await;
}

#[tokio::test]
async fn dropping_the_stream_closes_the_connection() {
    let (mut server, engine) = failing(Timeouts::default(), || Answer::Hang(without_end())).await;
    let mut stream = engine.generate(asked(true)).await.unwrap();
    assert!(stream.next().await.unwrap().is_ok());
    drop(stream);
    assert_eq!(server.client_left().await, "/v1/chat/completions");
}

#[tokio::test]
async fn dropping_a_whole_reply_closes_the_connection() {
    let (mut server, engine) = failing(Timeouts::default(), || Answer::Silence).await;
    let mut generation = engine.generate(asked(false));
    until_asked(&server, &mut generation).await;
    drop(generation);
    assert_eq!(server.client_left().await, "/v1/chat/completions");
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_said_to_be_not_there() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = polar_engine::connect(&address, EngineOptions::default()).await.err().unwrap();
    let ProbeError::Engine(error) = error else { panic!("{error}") };
    assert_eq!(error.class, ErrorClass::Unavailable);
    assert!(error.message.contains(&address) && error.message.contains("start it"), "{error}");
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = recorded("vllm", pages).await;
    let engine = crate::fake_engine::connect(&server).await;
    for _ in 0..3 {
        collect(engine.generate(asked(true)).await.unwrap()).await.unwrap();
    }
    assert!(server.connections() <= 3, "{} connections", server.connections());
}
