//! New weights by the whole way: a trainer asks the server, nodes fetch, engines change.

use crate::cluster::{Cluster, node_config, within};
use polar_node::Node;
use polar_simulator::{SimulatorConfig, SimulatorHandle, WeightFault};
use polar_types::{EngineWeights, UpdateStatus, WeightState, WeightUpdate, WeightUpdateList};
use serde_json::{Value, json};
use std::time::Duration;

fn update(version: &str, mode: &str) -> Value {
    json!({
        "version": version, "source": {"disk": {"path": format!("/checkpoints/{version}")}},
        "mode": mode, "deadline_seconds": 5.0,
    })
}

async fn version_of(engine: &SimulatorHandle) -> String {
    let page: Value =
        reqwest::get(format!("{}/weight_info", engine.url())).await.unwrap().json().await.unwrap();
    page["weight_version"].as_str().unwrap().to_owned()
}

fn of<'a>(update: &'a WeightUpdate, node: &str) -> &'a EngineWeights {
    let is_of = |engine: &&EngineWeights| engine.node_id.as_ref().unwrap().as_str() == node;
    update.engines.iter().find(is_of).unwrap()
}

/// Two nodes, each before an engine of its own.
async fn two_nodes(cluster: &Cluster) -> [(Node, SimulatorHandle); 2] {
    let one = async |name: &'static str| {
        let engine = polar_simulator::serve(SimulatorConfig::default()).await.unwrap();
        let state = cluster.state(name);
        let config = node_config(name, &state, cluster.server_addr, &engine.url()).await;
        (Node::start(config).await.unwrap(), engine)
    };
    [one("a").await, one("b").await]
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_reach_every_engine_of_every_node() {
    let cluster = Cluster::new().await;
    let nodes = two_nodes(&cluster).await;
    for (version, mode) in [("1", "drain"), ("2", "pause"), ("3", "continue")] {
        let (status, told) = cluster.post("/api/weights", &update(version, mode)).await;
        assert_eq!((status, &told["version"]), (202, &json!(version)));
        let done = cluster.settled(version).await;
        assert_eq!(done.status, UpdateStatus::Current, "{done:?}");
        assert_eq!(done.engines.len(), 2);
        assert!(done.seconds.is_some());
        for (_, engine) in &nodes {
            assert_eq!(version_of(engine).await, version);
        }
    }
    // The same again is the same, and another under its name is refused by the field.
    let (status, _) = cluster.post("/api/weights", &update("3", "continue")).await;
    assert_eq!(status, 200);
    let (status, told) = cluster.post("/api/weights", &update("3", "pause")).await;
    let said = told["error"]["message"].as_str().unwrap();
    assert!(status == 409 && said.contains("`mode`"), "{status} {said}");
    let list: WeightUpdateList = cluster.get("/api/weights").await;
    assert_eq!(list.version.as_deref(), Some("3"));
    let statuses: Vec<UpdateStatus> = list.updates.iter().map(|update| update.status).collect();
    let superseded = UpdateStatus::Superseded;
    assert_eq!(statuses, [UpdateStatus::Current, superseded, superseded]);
    for (node, _) in nodes {
        within(node.shutdown(Duration::ZERO)).await;
    }
}

/// An engine that hangs is fenced and told of, the other goes on; a server that is restarted
/// meanwhile loses nothing; and the engine gets its weights once it loads again.
#[tokio::test(flavor = "multi_thread")]
async fn promise_6_one_engine_that_hangs_is_fenced_and_the_rest_goes_on() {
    let mut cluster = Cluster::new().await;
    let nodes = two_nodes(&cluster).await;
    nodes[1].1.set_weight_fault(Some(WeightFault::Hang));
    let mut wanted = update("17", "pause");
    wanted["deadline_seconds"] = json!(1.0);
    let (status, told) = cluster.post("/api/weights", &wanted).await;
    assert_eq!(status, 202, "{told}");
    cluster.stop_server().await;
    cluster.start_server().await;
    let done = cluster.settled("17").await;
    assert_eq!(done.status, UpdateStatus::Partial, "{done:?}");
    assert_eq!(
        (of(&done, "a").state, of(&done, "b").state),
        (WeightState::Current, WeightState::Fenced)
    );
    let reason = of(&done, "b").reason.clone().unwrap();
    assert!(reason.contains("failed to load"), "{reason}");
    let trouble = cluster.trouble("b").await;
    assert!(trouble.message.contains("does not serve weights 17"), "{trouble}");
    let paused: Value = reqwest::get(format!("{}/is_paused", nodes[1].1.url()))
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(paused["is_paused"], false);

    nodes[1].1.set_weight_fault(None);
    within(async {
        while cluster.settled("17").await.status != UpdateStatus::Current {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    cluster.untroubled("b").await;
    assert_eq!(version_of(&nodes[1].1).await, "17");
    for (node, _) in nodes {
        within(node.shutdown(Duration::ZERO)).await;
    }
}

/// A node that comes later, and one that comes back, begin with the weights that all have.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_later_brings_its_engine_to_the_newest_weights() {
    let cluster = Cluster::new().await;
    let (status, _) = cluster.post("/api/weights", &update("17", "pause")).await;
    assert_eq!(status, 202);
    let none: WeightUpdate = cluster.get("/api/weights/17").await;
    assert_eq!((none.status, none.engines.len()), (UpdateStatus::Rolling, 0));
    // Work is there before it, and nothing of it is sampled by what its engine was started with.
    let task = cluster.submit(json!({"num_samples": 2, "max_attempts": 1})).await;
    let node = cluster.node("late").await;
    for session in cluster.ended(&task).await {
        let trajectory = cluster.trajectory(&session).await;
        let spans = trajectory.traces.iter().flat_map(|trace| &trace.weight_versions);
        assert!(spans.clone().count() > 0);
        assert!(spans.clone().all(|span| span.version.as_deref() == Some("17")));
    }
    let done = cluster.settled("17").await;
    assert_eq!(done.status, UpdateStatus::Current, "{done:?}");
    within(node.shutdown(Duration::ZERO)).await;
}
