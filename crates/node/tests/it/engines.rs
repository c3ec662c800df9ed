//! A node before several engines, by the whole way: sessions outlive an engine, weights reach each
//! for itself, and engines come and go while agents run.

use crate::cluster::{Cluster, engine, within};
use polar_node::{Node, NodeConfig, NodeError};
use polar_session::check::write_file_policy;
use polar_simulator::{SimulatorConfig, SimulatorHandle, Speed, WeightFault};
use polar_types::{
    CallSummary, EngineList, EngineState, EngineStatus, NodeEngines, SessionInfo, SessionStatus,
    Slots, UpdateStatus, WeightState, WeightUpdate,
};
use serde_json::{Value, json};
use std::time::Duration;

async fn simulator(speed: Speed) -> SimulatorHandle {
    let config =
        SimulatorConfig { policy: write_file_policy(), speed, ..SimulatorConfig::default() };
    polar_simulator::serve(config).await.unwrap()
}

fn slow() -> Speed {
    Speed { tokens_per_second: Some(60.0), ..Speed::default() }
}

/// A node before the cluster's engine and this one.
async fn before_two(cluster: &Cluster, more: &SimulatorHandle) -> NodeConfig {
    let mut config = cluster.config("a").await;
    config.engines.push(engine(&more.url()).await.into());
    config.slots = Slots { prepare: 4, ready: 4, run: 4, grade: 4, warm: 0 };
    config.gateway.engine_questions = Duration::from_millis(50);
    config
}

async fn engines(cluster: &Cluster) -> Vec<EngineStatus> {
    let list: EngineList = cluster.get("/api/engines").await;
    list.nodes.into_iter().flat_map(|node| node.engines).collect()
}

/// What the server knows of an engine, once it is so.
async fn known(cluster: &Cluster, url: &str, so: impl Fn(&EngineStatus) -> bool) -> EngineStatus {
    within(async {
        let mut looks = tokio::time::interval(Duration::from_millis(50));
        loop {
            let all = engines(cluster).await;
            if let Some(found) = all.into_iter().find(|one| one.engine == url && so(one)) {
                return found;
            }
            looks.tick().await;
        }
    })
    .await
}

fn all_completed(sessions: &[SessionInfo]) {
    for session in sessions {
        assert_eq!(session.status, SessionStatus::Completed, "{session:?}");
        assert_eq!((session.attempts.len(), session.reward), (1, Some(1.0)), "{session:?}");
    }
}

async fn change(cluster: &Cluster, action: &str, url: &str) -> (u16, Value) {
    cluster.post("/api/engines", &json!({"action": action, "engine": url})).await
}

fn said(answer: &Value) -> &str {
    answer["error"]["message"].as_str().unwrap()
}

/// The engines that a session's calls were at.
async fn places(cluster: &Cluster, session: &SessionInfo) -> Vec<String> {
    let path = format!("/api/sessions/{}/calls", session.session_id);
    let calls: Vec<CallSummary> = cluster.get(&path).await;
    assert!(!calls.is_empty());
    calls.into_iter().map(|call| call.engine.unwrap()).collect()
}

fn update(version: &str, mode: &str, deadline: f64) -> Value {
    json!({
        "version": version, "source": {"disk": {"path": format!("/checkpoints/{version}")}},
        "mode": mode, "deadline_seconds": deadline,
    })
}

fn states(update: &WeightUpdate, urls: [&str; 2]) -> [WeightState; 2] {
    urls.map(|url| update.engines.iter().find(|engine| engine.engine == url).unwrap().state)
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_1_sessions_outlive_one_of_two_engines_and_wait_when_both_are_away() {
    let mut cluster = Cluster::with(Duration::from_secs(60), slow()).await;
    let more = simulator(slow()).await;
    let (one, other) = (cluster.engine_url(), more.url());
    let node = Node::start(before_two(&cluster, &more).await).await.unwrap();
    let task = cluster.submit(json!({"num_samples": 8, "max_attempts": 1})).await;
    known(&cluster, &one, |engine| engine.calls > 0).await;
    known(&cluster, &other, |engine| engine.calls > 0).await;
    cluster.stop_engine().await;
    known(&cluster, &one, |engine| engine.state == EngineState::Down).await;
    assert!(cluster.get::<Value>("/api/nodes").await["nodes"][0]["troubles"].is_null());
    all_completed(&cluster.ended(&task).await);

    // Without the other one too, the node waits as it does for an only engine.
    more.shutdown().await;
    let trouble = cluster.trouble("a").await;
    assert!(trouble.message.contains("none of 2 engines takes calls"), "{trouble}");
    let task = cluster.submit(json!({"num_samples": 2, "max_attempts": 1})).await;
    cluster.start_engine().await;
    cluster.untroubled("a").await;
    let sessions = cluster.ended(&task).await;
    all_completed(&sessions);
    for session in &sessions {
        assert!(places(&cluster, session).await.iter().all(|place| *place == one));
    }
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_6_of_two_engines_one_that_hangs_with_weights_is_fenced_and_the_other_serves() {
    let cluster = Cluster::new().await;
    let more = simulator(Speed::default()).await;
    let urls = [cluster.engine_url(), more.url()];
    let urls = [urls[0].as_str(), urls[1].as_str()];
    let node = Node::start(before_two(&cluster, &more).await).await.unwrap();
    more.set_weight_fault(Some(WeightFault::Hang));
    let (status, told) = cluster.post("/api/weights", &update("17", "pause", 1.0)).await;
    assert_eq!(status, 202, "{told}");
    let done = cluster.settled("17").await;
    assert_eq!(done.status, UpdateStatus::Partial, "{done:?}");
    assert_eq!(states(&done, urls), [WeightState::Current, WeightState::Fenced]);
    // The node is not out of order, and its sessions are sampled by the weights that are wanted.
    let task = cluster.submit(json!({"num_samples": 4, "max_attempts": 1})).await;
    let sessions = cluster.ended(&task).await;
    all_completed(&sessions);
    assert!(cluster.get::<Value>("/api/nodes").await["nodes"][0]["troubles"].is_null());
    for session in &sessions {
        assert!(places(&cluster, session).await.iter().all(|place| place == urls[0]));
        let trajectory = cluster.trajectory(session).await;
        let spans = trajectory.traces.iter().flat_map(|trace| &trace.weight_versions);
        assert!(spans.clone().count() > 0);
        assert!(spans.clone().all(|span| span.version.as_deref() == Some("17")));
    }
    let fenced = known(&cluster, urls[1], |engine| engine.state == EngineState::Fenced).await;
    assert!(fenced.reason.unwrap().contains("does not serve weights 17"));
    more.set_weight_fault(None);
    within(async {
        while cluster.settled("17").await.status != UpdateStatus::Current {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    known(&cluster, urls[1], |engine| engine.state == EngineState::Ready).await;
    node.shutdown(Duration::ZERO).await;
}

/// Engines whose calls come to their end first do so one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn engines_that_are_drained_for_weights_take_turns() {
    let speed = Speed { tokens_per_second: Some(20.0), ..Speed::default() };
    let cluster = Cluster::with(Duration::from_secs(60), speed).await;
    let more = simulator(speed).await;
    let urls = [cluster.engine_url(), more.url()];
    let urls = [urls[0].as_str(), urls[1].as_str()];
    let node = Node::start(before_two(&cluster, &more).await).await.unwrap();
    let task = cluster.submit(json!({"num_samples": 8, "max_attempts": 1})).await;
    known(&cluster, urls[0], |engine| engine.in_flight > 0).await;
    known(&cluster, urls[1], |engine| engine.in_flight > 0).await;
    let (status, told) = cluster.post("/api/weights", &update("17", "drain", 60.0)).await;
    assert_eq!(status, 202, "{told}");
    let is_held = |state: &WeightState| {
        matches!(state, WeightState::Draining | WeightState::Updating | WeightState::Verifying)
    };
    let (mut was_held, mut done) = (false, None);
    within(async {
        let mut looks = tokio::time::interval(Duration::from_millis(10));
        while done.is_none() {
            looks.tick().await;
            let now: WeightUpdate = cluster.get("/api/weights/17").await;
            let held = now.engines.iter().filter(|engine| is_held(&engine.state)).count();
            assert!(held <= 1, "{now:?}");
            was_held |= held == 1;
            done = (now.status != UpdateStatus::Rolling).then_some(now);
        }
    })
    .await;
    assert!(was_held);
    assert_eq!(done.unwrap().status, UpdateStatus::Current);
    all_completed(&cluster.ended(&task).await);
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_come_and_go_while_agents_run() {
    let cluster = Cluster::with(Duration::from_secs(60), slow()).await;
    let mut config = cluster.config("a").await;
    config.slots = Slots { prepare: 4, ready: 4, run: 4, grade: 4, warm: 0 };
    let node = Node::start(config).await.unwrap();
    let first = cluster.engine_url();
    cluster.post("/api/weights", &update("17", "pause", 20.0)).await;
    assert_eq!(cluster.settled("17").await.status, UpdateStatus::Current);
    let task = cluster.submit(json!({"num_samples": 12, "max_attempts": 1})).await;
    known(&cluster, &first, |engine| engine.in_flight > 0).await;

    // It gets the weights that all have before it takes a call.
    let more = simulator(slow()).await;
    let asked = json!({"action": "add", "engine": more.addr.to_string(), "weight": 2});
    let (status, told) = cluster.post("/api/engines", &asked).await;
    assert_eq!(status, 200, "{told}");
    let after: NodeEngines = serde_json::from_value(told).unwrap();
    let added = &after.engines[1];
    assert_eq!((added.engine.as_str(), added.weight), (more.url().as_str(), 2.0));
    assert_eq!((added.weight_version.as_deref(), added.calls), (Some("17"), 0));
    // Added again, it is as it was.
    let (status, told) = change(&cluster, "add", more.addr.to_string().as_str()).await;
    assert_eq!((status, told["engines"][1]["weight"].as_f64()), (200, Some(2.0)), "{told}");
    known(&cluster, &more.url(), |engine| engine.calls > 0).await;

    // And the first one goes.
    let (status, told) = change(&cluster, "drain", &first).await;
    assert_eq!((status, &told["engines"][0]["state"]), (200, &json!("draining")), "{told}");
    let (status, told) = change(&cluster, "drain", &more.url()).await;
    assert_eq!(status, 409, "{told}");
    assert!(said(&told).contains("the only engine that takes calls"), "{told}");
    let (status, told) = change(&cluster, "remove", &first).await;
    assert_eq!(status, 200, "{told}");
    let sessions = cluster.ended(&task).await;
    all_completed(&sessions);
    known(&cluster, &more.url(), |_| true).await;
    let task = cluster.submit(json!({"num_samples": 1})).await;
    let later = cluster.ended(&task).await;
    all_completed(&later);
    assert!(places(&cluster, &later[0]).await.iter().all(|place| *place == more.url()));
    let (status, told) = change(&cluster, "resume", &first).await;
    assert!((status, said(&told)).0 == 404 || status == 409, "{status} {told}");
    // New weights are its alone by now.
    cluster.post("/api/weights", &update("18", "pause", 20.0)).await;
    let done = cluster.settled("18").await;
    assert_eq!((done.status, done.engines.len()), (UpdateStatus::Current, 1), "{done:?}");
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_does_not_fit_is_refused_with_the_reason() {
    let cluster = Cluster::new().await;
    let node = cluster.node("a").await;
    let config = SimulatorConfig { model: "another".to_owned(), ..SimulatorConfig::default() };
    let other = polar_simulator::serve(config).await.unwrap();
    known(&cluster, &cluster.engine_url(), |_| true).await;
    let (status, told) = change(&cluster, "add", &other.url()).await;
    assert!(status == 409 && said(&told).contains("another"), "{status} {told}");
    let (status, told) = change(&cluster, "add", "localhost:1").await;
    assert!(status == 409 && said(&told).contains("localhost:1"), "{status} {told}");
    let (status, told) = change(&cluster, "drain", "localhost:1").await;
    assert!(status == 404 && said(&told).contains("no node has an engine"), "{status} {told}");
    let wrong = json!({"action": "weight", "engine": "localhost:1"});
    let (status, told) = cluster.post("/api/engines", &wrong).await;
    assert!(status == 422 && said(&told).contains("weight"), "{status} {told}");

    // Weights that only the trainer can move cannot be had for it.
    let label = json!({"version": "17", "source": {"label": {}}});
    cluster.post("/api/weights", &label).await;
    assert_eq!(cluster.settled("17").await.status, UpdateStatus::Current);
    let late = simulator(Speed::default()).await;
    let (status, told) = change(&cluster, "add", &late.url()).await;
    assert!(status == 409 && said(&told).contains("only the trainer can move"), "{told}");
    assert_eq!(engines(&cluster).await.len(), 1);

    let mut config = cluster.config("b").await;
    config.engines.push(engine(&other.url()).await.into());
    let refused = Node::start(config).await.err().unwrap();
    assert!(matches!(refused, NodeError::Prompts(_) | NodeError::Engines(_)), "{refused}");
    node.shutdown(Duration::ZERO).await;
}
