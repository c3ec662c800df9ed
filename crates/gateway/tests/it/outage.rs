//! An engine that goes away while calls come in, and comes back.

use crate::{Rig, dialects, within};
use polar_engine::EngineOptions;
use polar_gateway::{ENGINE_OUTAGE, EnginePool, GatewayConfig, SessionHandle};
use polar_simulator::{SimulatorConfig, SimulatorHandle};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

async fn before_simulator(config: GatewayConfig) -> (Rig, SimulatorHandle) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let simulator = polar_simulator::serve(SimulatorConfig::default()).await.unwrap();
    let engine = polar_engine::connect(&simulator.url(), EngineOptions::default()).await.unwrap();
    let by_hand = Arc::new(crate::HandEngine::default());
    (Rig::before(config, engine, by_hand).await, simulator)
}

/// The same engine again.
async fn back(listen: SocketAddr) -> SimulatorHandle {
    let config = SimulatorConfig { listen, ..SimulatorConfig::default() };
    polar_simulator::serve(config).await.unwrap()
}

async fn away(watch: &EnginePool) {
    let mut outage = watch.subscribe();
    within("the outage", outage.wait_for(Option::is_some)).await.unwrap();
}

async fn held(session: &SessionHandle, calls: u32) {
    within("held calls", async {
        let mut looks = tokio::time::interval(Duration::from_millis(10));
        while session.activity().held != calls {
            looks.tick().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_wait_for_an_engine_that_is_away_and_are_answered_when_it_is_back() {
    let config = GatewayConfig {
        keep_alive: Duration::from_millis(50),
        header_wait: Duration::from_millis(100),
        ..GatewayConfig::default()
    };
    let (rig, simulator) = before_simulator(config).await;
    let session = rig.open("s");
    let addr = simulator.addr;
    simulator.shutdown().await;
    let mut calls = Vec::new();
    for stream in [false, true] {
        for (path, body) in dialects(stream) {
            let request = rig.post(path, session.secret(), &body);
            calls.push((
                path,
                stream,
                tokio::spawn(async move {
                    let response = request.send().await.unwrap();
                    (response.status(), response.text().await.unwrap())
                }),
            ));
        }
    }
    let count = u32::try_from(calls.len()).unwrap();
    held(&session, count).await;
    let outage = rig.gateway.engines().outage().unwrap().to_string();
    assert!(outage.contains("engine unreachable since"), "{outage}");
    assert_eq!(session.activity().calls, 0, "none has ended");

    let _simulator = back(addr).await;
    for (path, stream, call) in calls {
        let (status, text) = within("the reply", call).await.unwrap();
        assert_eq!(status, 200, "{path}, {stream}: {text}");
        assert!(!text.contains("\"error\":{"), "{path}, {stream}: {text}");
    }
    assert_eq!((rig.gateway.engines().outage(), session.activity().held), (None, 0));
    session.close().unwrap();
    for call in rig.recorded("s").calls() {
        let noted = &call.meta.extra[ENGINE_OUTAGE];
        assert_eq!(noted["is_over"], true, "{noted}");
        assert!(noted["reason"].as_str().unwrap().contains("no engine can be reached"), "{noted}");
    }
}

/// What an agent hears in the end is that it should ask again, in its dialect.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_in_vain_ends_in_an_error_that_is_asked_again() {
    let config =
        GatewayConfig { engine_wait: Duration::from_millis(200), ..GatewayConfig::default() };
    let (rig, simulator) = before_simulator(config).await;
    let session = rig.open("s");
    simulator.shutdown().await;
    for stream in [false, true] {
        for (path, body) in dialects(stream) {
            let sent = rig.post(path, session.secret(), &body).send();
            let response = within("the refusal", sent).await.unwrap();
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let text = response.text().await.unwrap();
            assert!([503, 529].contains(&status), "{path}, {stream}: {status} {text}");
            assert!(
                headers.contains_key("retry-after") || path.contains("models"),
                "{path}: {text}"
            );
            assert!(text.contains("waited for it in vain"), "{path}, {stream}: {text}");
        }
    }
    session.close().unwrap();
    for call in rig.recorded("s").calls() {
        assert_eq!(call.meta.finish_reason, "error");
        assert_eq!(call.meta.extra[ENGINE_OUTAGE]["is_over"], false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_harness_that_hangs_up_meanwhile_is_not_waited_for() {
    let (rig, simulator) = before_simulator(GatewayConfig::default()).await;
    let session = rig.open("s");
    simulator.shutdown().await;
    let (path, body) = dialects(true).into_iter().next().unwrap();
    let call = tokio::spawn(rig.post(path, session.secret(), &body).send());
    held(&session, 1).await;
    call.abort();
    held(&session, 0).await;
    session.close().unwrap();
    let recorded = rig.recorded("s");
    assert_eq!(recorded.calls()[0].meta.finish_reason, "cancelled");
    assert_eq!(recorded.calls()[0].meta.extra[ENGINE_OUTAGE]["is_over"], Value::Bool(false));
}

/// The loss of an engine that nobody calls is found out as well, and so is its return.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_is_asked_whether_it_is_there() {
    let config =
        GatewayConfig { engine_questions: Duration::from_millis(20), ..GatewayConfig::default() };
    let (rig, simulator) = before_simulator(config).await;
    let watch = rig.gateway.engines().clone();
    let asking = tokio::spawn(watch.clone().ask_regularly());
    let addr = simulator.addr;
    simulator.shutdown().await;
    away(&watch).await;
    let _simulator = back(addr).await;
    within("its return", watch.present()).await;
    asking.abort();
}

/// An engine may say that it is well and fail every call. One call that fails is the harness's,
/// and so are all that fail of one session.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_fails_call_after_call_is_away() {
    let (rig, simulator) = before_simulator(GatewayConfig::default()).await;
    let (alone, session) = (rig.open("alone"), rig.open("s"));
    let fails = "name: down\nrules: [{name: all, fault: status=503}]\ndefault: {text: x}\n";
    simulator.set_policy(polar_simulator::Policy::from_yaml(fails).unwrap());
    let (path, body) = dialects(false).into_iter().next().unwrap();
    for call in 1..20 {
        let sent = rig.post(path, alone.secret(), &body).send();
        assert_eq!(within("the failure", sent).await.unwrap().status(), 503, "call {call}");
        assert_eq!(rig.gateway.engines().outage(), None, "call {call}");
    }
    let call = tokio::spawn(rig.post(path, session.secret(), &body).send());
    held(&session, 1).await;
    let outage = rig.gateway.engines().outage().unwrap();
    assert!(outage.reason.contains("20 calls in a row failed"), "{outage}");
    assert_eq!(rig.gateway.engines().errors(), 20);
    simulator
        .set_policy(polar_simulator::Policy::from_yaml("name: up\ndefault: {text: x}\n").unwrap());
    assert_eq!(within("the reply", call).await.unwrap().unwrap().status(), 200);
}
