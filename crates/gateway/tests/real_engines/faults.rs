//! What goes wrong on purpose.

use crate::engine_under_test::{EngineUnderTest, NOT_STARTED};
use futures_util::StreamExt;
use polar_convo::{Dialect, FinishReason, Message, Request, Role};
use polar_engine::{EngineEnd, EngineEvent, EngineKind, EngineStream, GenerateRequest};
use polar_types::ErrorClass;
use serde_json::{Value, json};
use std::time::Duration;

/// How often an engine is asked what it runs. llama.cpp looks for closed connections only when
/// it has had nothing else to tell for a second, questions like ours included.
const ASK_EVERY: Duration = Duration::from_millis(1500);

/// Longest any wait of a test may take. Reached only when a test fails: an engine on a
/// busy machine's CPU can take a minute to look up from its work.
const DEADLINE: Duration = Duration::from_secs(300);

fn request(text: &str, stream: bool) -> Request {
    let mut request = Request::new(Dialect::Chat, "any");
    request.messages = vec![Message::text(Role::User, text)];
    request.stream = stream;
    request
}

/// A generation that goes on until it is ended from outside.
fn endless(stream: bool) -> Request {
    let mut request = request("Say hello.", stream);
    request.sampling.max_tokens = Some(12000);
    request.rest.insert("ignore_eos".into(), json!(true));
    request
}

fn asked(request: Request) -> GenerateRequest {
    GenerateRequest { request, request_id: format!("test-{}", uuid_like()) }
}

/// Engines refuse an id that is in use.
pub(crate) fn uuid_like() -> u128 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos()
}

pub(crate) async fn prompt_does_not_fit(kind: EngineKind) {
    let under = EngineUnderTest::connect(kind).await;
    let mut long = request(&"sun ".repeat(60_000), true);
    long.sampling.max_tokens = Some(16);
    let error = under.engine.generate(asked(long)).await.err().unwrap();
    assert_eq!(error.class, ErrorClass::ContextOverflow, "{error}");
    let context = error.context.unwrap();
    assert_eq!(Some(context.window), under.engine.info().context_window);
    assert!(context.tokens > context.window);
}

pub(crate) async fn more_tokens_than_fit_may_be_asked_for(kind: EngineKind) {
    let under = EngineUnderTest::connect(kind).await;
    let mut wishful = request("Say hello.", false);
    wishful.sampling.max_tokens = Some(1_000_000);
    wishful.sampling.temperature = Some(0.0);
    let (_, sampled, end) = read(under.engine.generate(asked(wishful)).await.unwrap()).await;
    assert_eq!(end.finish, FinishReason::Stop);
    assert!(!sampled.is_empty());
}

/// Prompt and limit each fit into the window, together they do not.
pub(crate) async fn more_than_is_left_may_be_asked_for(kind: EngineKind) {
    let under = EngineUnderTest::connect(kind).await;
    let window = under.engine.info().context_window.unwrap();
    for stream in [false, true] {
        let mut wishful = request("Say hello.", stream);
        wishful.sampling.max_tokens = Some(window - 1);
        wishful.sampling.temperature = Some(0.0);
        let (_, sampled, end) = read(under.engine.generate(asked(wishful)).await.unwrap()).await;
        assert_eq!(end.finish, FinishReason::Stop);
        assert!(!sampled.is_empty());
    }
}

pub(crate) async fn counts_like_it_generates(kind: EngineKind) {
    let under = EngineUnderTest::connect(kind).await;
    let mut short = request("How is the weather in Oslo?", false);
    short.sampling.max_tokens = Some(1);
    let counted = under.engine.count_tokens(&short).await.unwrap();
    let (prompt, _, _) = read(under.engine.generate(asked(short)).await.unwrap()).await;
    assert_eq!(counted, prompt.unwrap().len() as u64);
}

async fn read(mut stream: EngineStream) -> (Option<Vec<u32>>, Vec<u32>, EngineEnd) {
    let (mut prompt, mut sampled) = (None, Vec::new());
    loop {
        match stream.next().await.unwrap().unwrap() {
            EngineEvent::PromptIds(ids) => prompt = Some(ids),
            EngineEvent::Chunk { ids, .. } => sampled.extend(ids),
            EngineEvent::End(end) => return (prompt, sampled, end),
        }
    }
}

pub(crate) async fn dropping_frees_the_engine(kind: EngineKind) {
    let under = EngineUnderTest::connect(kind).await;
    for stream in [true, false] {
        // What it says of itself lags behind.
        until_running(&under, 0).await;
        let engine = under.engine.clone();
        let generation = tokio::spawn(async move {
            let stream = engine.generate(asked(endless(stream))).await.unwrap();
            read(stream).await
        });
        until_running(&under, 1).await;
        generation.abort();
        until_running(&under, 0).await;
    }
}

pub(crate) async fn until_running(under: &EngineUnderTest, wanted: u64) {
    until(under, ASK_EVERY, |running| running == wanted).await;
}

/// For engines that may be asked often.
pub(crate) async fn until_busy(under: &EngineUnderTest) {
    until(under, Duration::from_millis(100), |running| running > 0).await;
}

async fn until(under: &EngineUnderTest, every: Duration, so: impl Fn(u64) -> bool) {
    let mut ticks = tokio::time::interval(every);
    let waiting = async {
        while !so(running(under).await) {
            ticks.tick().await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.unwrap();
}

/// Generations the engine is busy with, by its own account.
async fn running(under: &EngineUnderTest) -> u64 {
    match under.kind {
        EngineKind::LlamaCpp => {
            let slots: Vec<Value> = serde_json::from_str(&under.get("/slots").await).unwrap();
            slots.iter().filter(|slot| slot["is_processing"] == true).count() as u64
        }
        EngineKind::Vllm => {
            let metrics = under.get("/metrics").await;
            let line = metrics.lines().find(|line| line.starts_with("vllm:num_requests_running"));
            let value = line.unwrap().rsplit(' ').next().unwrap();
            value.parse::<f64>().unwrap() as u64
        }
        EngineKind::Sglang => {
            let loads: Value = serde_json::from_str(&under.get("/v1/loads").await).unwrap();
            let loads = loads["loads"].as_array().unwrap().iter();
            loads.map(|load| load["num_running_reqs"].as_u64().unwrap()).sum()
        }
        EngineKind::TensorRtLlm => panic!("{NOT_STARTED}"),
    }
}

pub(crate) async fn weight_versions_and_aborts() {
    let under = EngineUnderTest::connect(EngineKind::Vllm).await;
    let label = |version: &str| json!({"new_version": version});
    under.post("/update_weight_version", &label("step-1")).await;
    let mut short = request("Say hello.", true);
    short.sampling.max_tokens = Some(4);
    let (_, sampled, end) = read(under.engine.generate(asked(short)).await.unwrap()).await;
    assert_eq!(end.weight_versions.len(), 1);
    assert_eq!(end.weight_versions[0].version.as_deref(), Some("step-1"));
    assert_eq!(end.weight_versions[0].end, sampled.len() as u64);

    let engine = under.engine.clone();
    let generation =
        tokio::spawn(
            async move { read(engine.generate(asked(endless(true))).await.unwrap()).await },
        );
    until_running(&under, 1).await;
    under.post("/pause?mode=abort", &json!({})).await;
    under.post("/update_weight_version", &label("default")).await;
    under.post("/resume", &json!({})).await;
    let (prompt, sampled, end) = generation.await.unwrap();
    assert_eq!(end.finish, FinishReason::Abort);
    assert_eq!(sampled.len() as u64, end.usage.completion_tokens);
    assert!(prompt.is_some());
}
