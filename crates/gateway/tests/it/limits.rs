//! Replies that would not fit into the window beside their prompt, before an engine that
//! lowers such a limit and before one that refuses it.

use crate::{HandEngine, Rig, dialects, say, within};
use polar_engine::{EngineOptions, connect};
use polar_gateway::GatewayConfig;
use polar_simulator::{SimulatorConfig, SimulatorHandle, serve};
use serde_json::Value;
use std::sync::Arc;

/// Room for the probe, and not for much else.
const WINDOW: u64 = 600;

async fn before_simulator(lowers_limits: bool) -> (Rig, SimulatorHandle) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let context_window = usize::try_from(WINDOW).unwrap();
    let config = SimulatorConfig { context_window, lowers_limits, ..SimulatorConfig::default() };
    let simulator = serve(config).await.unwrap();
    let engine = connect(&simulator.url(), EngineOptions::default()).await.unwrap();
    let by_hand = Arc::new(HandEngine::default());
    (Rig::before(GatewayConfig::default(), engine, by_hand).await, simulator)
}

async fn ask(rig: &Rig, path: &str, secret: &str, body: &Value) -> (u16, String) {
    let response = within("the reply", rig.post(path, secret, body).send()).await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test]
async fn a_limit_that_does_not_fit_beside_the_prompt_is_lowered_and_recorded() {
    for lowers_limits in [true, false] {
        let (rig, _simulator) = before_simulator(lowers_limits).await;
        let session = rig.open("s");
        let mut asked = Vec::new();
        for stream in [false, true] {
            for (path, mut body) in dialects(stream) {
                // Less than all, all, and more than all of the window; and one that fits.
                for limit in [WINDOW - 1, WINDOW, 10 * WINDOW, 3] {
                    crate::limit(&mut body, limit);
                    let (status, text) = ask(&rig, path, session.secret(), &body).await;
                    assert_eq!(status, 200, "{path}, {limit}: {text}");
                    assert!(!text.contains("\"error\":{"), "{path}, {limit}: {text}");
                    asked.push(limit);
                }
            }
        }
        session.close().unwrap();
        let recorded = rig.recorded("s");
        assert_eq!(recorded.calls().len(), asked.len());
        for (call, asked) in recorded.calls().iter().zip(asked) {
            let room = WINDOW - call.meta.prompt_tokens;
            assert_eq!(call.meta.sampling["max_tokens"], asked.min(room));
            let lowered = (asked > room).then_some(asked);
            assert_eq!(call.meta.extra.get("max_tokens_asked"), lowered.map(Value::from).as_ref());
        }
    }
}

#[tokio::test]
async fn only_a_prompt_that_does_not_fit_itself_is_an_overflow() {
    for lowers_limits in [true, false] {
        let (rig, _simulator) = before_simulator(lowers_limits).await;
        let session = rig.open("s");
        for (path, mut body) in dialects(false) {
            crate::limit(&mut body, WINDOW - 1);
            say(&mut body, "word ".repeat(1000));
            let (status, text) = ask(&rig, path, session.secret(), &body).await;
            assert_eq!(status, 400, "{path}: {text}");
            let told = ["context_length_exceeded", "prompt is too long", "input token count"];
            assert!(told.iter().any(|told| text.contains(told)), "{path}: {text}");
        }
        session.close().unwrap();
    }
}

#[tokio::test]
async fn a_prompt_that_fills_the_window_to_the_last_token_is_an_overflow() {
    let (rig, _simulator) = before_simulator(true).await;
    let session = rig.open("s");
    for (path, mut body) in dialects(false) {
        // Longer by one word a time until there is no room for a reply.
        let mut statuses = Vec::new();
        for words in 500..600 {
            say(&mut body, "word ".repeat(words));
            let (status, text) = ask(&rig, path, session.secret(), &body).await;
            if status != 200 {
                let told = ["context_length_exceeded", "prompt is too long", "input token count"];
                assert!(told.iter().any(|told| text.contains(told)), "{path}: {text}");
            }
            statuses.push(status);
        }
        assert!(statuses.contains(&200) && statuses.contains(&400), "{statuses:?}");
    }
    session.close().unwrap();
}
