//! New weights at SGLang, whose adapters are taken out before others come in.

use crate::fake_engine::{Answer, Asked, FakeEngine, generate, recorded, reply_of, request};
use crate::sglang::pages;
use polar_engine::{Engine, EngineOptions, Timeouts, Weights};
use polar_types::{UpdateMode, WeightSource, WeightState, WeightUpdateRequest};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

fn adapter(mode: UpdateMode) -> WeightUpdateRequest {
    let source = WeightSource::Lora { name: "policy".to_owned(), path: "/lora/2".to_owned() };
    WeightUpdateRequest { version: "2".to_owned(), source, mode, deadline_seconds: 20.0 }
}

/// Where loading an adapter is refused, or taken.
fn control(asked: &Asked, loads: bool) -> Answer {
    match asked.path.as_str() {
        "/pause_generation" | "/continue_generation" | "/unload_lora_adapter" => {
            Answer::json(json!({"success": true}))
        }
        "/load_lora_adapter" if !loads => {
            Answer::Json(400, r#"{"success": false, "error_message": "no such folder"}"#.to_owned())
        }
        "/load_lora_adapter" | "/update_weight_version" | "/flush_cache" => {
            Answer::json(json!({"success": true}))
        }
        _ => pages(asked),
    }
}

async fn connected(server: &FakeEngine) -> (Arc<dyn Engine>, Arc<Weights>) {
    let engine = polar_engine::connect(&server.url, EngineOptions::default()).await.unwrap();
    let weights = Arc::clone(engine.weights().unwrap());
    (engine, weights)
}

/// The adapter before is gone by then, so that the engine does not serve what it did.
#[tokio::test]
async fn an_adapter_that_is_refused_behind_the_unloading_of_another_fences_the_engine() {
    let server = recorded("sglang", |asked| control(asked, false)).await;
    let (_engine, weights) = connected(&server).await;
    weights.bring_to(&adapter(UpdateMode::Pause), false).await;
    let told = weights.told().borrow().engine.clone();
    let reason = told.reason.unwrap();
    assert_eq!(told.state, WeightState::Fenced, "{reason}");
    assert!(reason.contains("the adapter before is gone"), "{reason}");
}

/// SGLang unloads one once no request uses it, which one that stands still does for ever.
#[tokio::test]
async fn promise_6_calls_end_before_an_adapter_is_taken_from_under_them() {
    let (answers, may_answer) = watch::channel(true);
    let server = when(may_answer, |asked| control(asked, true)).await;
    let (engine, weights) = connected(&server).await;
    answers.send_replace(false);
    let before = server.chats().len();
    let call = tokio::spawn(async move { generate(&engine, request(false)).await });
    while server.chats().len() == before {
        tokio::task::yield_now().await;
    }
    for mode in [UpdateMode::Pause, UpdateMode::Continue] {
        let short = WeightUpdateRequest { deadline_seconds: 0.2, ..adapter(mode) };
        weights.bring_to(&short, false).await;
        let told = weights.told().borrow().engine.clone();
        assert_eq!(told.state, WeightState::Unchanged, "{told:?}");
        assert!(told.reason.unwrap().contains("1 calls had not ended"));
        assert!(server.asked_at("/pause_generation").is_empty());
    }
    answers.send_replace(true);
    call.await.unwrap().unwrap();
    weights.bring_to(&adapter(UpdateMode::Pause), false).await;
    assert_eq!(server.asked_at("/unload_lora_adapter").len(), 1);
    assert_eq!(server.asked_at("/load_lora_adapter").len(), 1);
}

/// Whoever paused it was killed: nothing would ever answer, and it does not say so.
#[tokio::test]
async fn promise_6_an_sglang_that_was_left_paused_goes_on() {
    let (goes_on, goes) = watch::channel(false);
    let server = when(goes, move |asked| match asked.path.as_str() {
        "/continue_generation" => {
            goes_on.send_replace(true);
            Answer::json(json!({"success": true}))
        }
        _ => pages(asked),
    })
    .await;
    let timeouts = Timeouts { paused: Duration::from_millis(50), ..Timeouts::default() };
    let options = EngineOptions { timeouts, ..EngineOptions::default() };
    let probe = polar_engine::connect(&server.url, options);
    tokio::time::timeout(Duration::from_secs(20), probe).await.unwrap().unwrap();
    assert_eq!(server.asked_at("/continue_generation").len(), 1);
}

/// One that samples when it may.
async fn when(
    may: watch::Receiver<bool>,
    pages: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
) -> FakeEngine {
    FakeEngine::start(move |asked| match asked.path.as_str() {
        "/v1/chat/completions" => Answer::When(may.clone(), reply_of("sglang", asked).into()),
        _ => pages(asked),
    })
    .await
}
