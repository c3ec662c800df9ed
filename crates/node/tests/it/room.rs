//! A node takes what its memory allows, and leaves the rest to others.

use crate::cluster::{Cluster, until};
use crate::gate::{Gates, OPEN};
use polar_node::{Node, NodeConfig};
use polar_types::{EventPage, NodeList, SessionInfo, SessionStatus, TaskInfo};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// A node of so much memory, whose sandboxes are made as the test says.
async fn config(cluster: &Cluster, name: &str, memory_mb: u64) -> (NodeConfig, Arc<Gates>) {
    let mut config = cluster.config(name).await;
    config.sandbox_memory_mb = Some(memory_mb);
    let gates = Gates::of(&mut config, 0, OPEN);
    (config, gates)
}

async fn submit(cluster: &Cluster, memory_mb: u64, fields: Value) -> TaskInfo {
    let mut task = json!({
        "runtime": {"type": "local", "memory_mb": memory_mb},
        "harness": {"name": "shell", "command": "true"},
        "evaluator": "none",
    });
    task.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    cluster.submit(task).await
}

fn with_status(sessions: &[SessionInfo], status: SessionStatus) -> usize {
    sessions.iter().filter(|session| session.status == status).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_takes_as_many_sessions_as_fit_and_the_rest_stay_for_others() {
    let cluster = Cluster::new().await;
    let task = submit(&cluster, 400, json!({"num_samples": 5})).await;
    let (a, of_a) = config(&cluster, "a", 1000).await;
    let a = Node::start(a).await.unwrap();
    let two_prepare = |sessions: &[SessionInfo]| {
        with_status(sessions, SessionStatus::Preparing) == 2
            && sessions.iter().any(|session| {
                let why = session.waiting_for.as_deref().unwrap_or_default();
                why.contains(
                    "a: no room for 400 MiB of memory (runtime.memory_mb); 200 of 1000 are free",
                )
            })
    };
    cluster.sessions_are(&task, two_prepare).await;
    // Another one is there for the rest.
    let (b, of_b) = config(&cluster, "b", 900).await;
    let b = Node::start(b).await.unwrap();
    cluster
        .sessions_are(&task, |sessions| with_status(sessions, SessionStatus::Preparing) == 4)
        .await;
    of_a.making.open(OPEN);
    of_b.making.open(OPEN);
    for session in cluster.ended(&task).await {
        assert_eq!(session.status, SessionStatus::Completed, "{session:?}");
        assert_eq!(session.attempts.len(), 1);
    }
    assert!(of_a.most() <= 2 && of_b.most() <= 2);
    until(|| of_a.live() + of_b.live() == 0).await;
    a.shutdown(Duration::ZERO).await;
    b.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_session_gets_its_turn_among_many_small_ones() {
    let cluster = Cluster::new().await;
    let (node, gates) = config(&cluster, "a", 1000).await;
    let first = submit(&cluster, 300, json!({"num_samples": 2})).await;
    let node = Node::start(node).await.unwrap();
    let prepare = |wanted| {
        move |sessions: &[SessionInfo]| with_status(sessions, SessionStatus::Preparing) == wanted
    };
    cluster.sessions_are(&first, prepare(2)).await;
    let large = submit(&cluster, 900, json!({"priority": 1})).await;
    let small = submit(&cluster, 100, json!({"num_samples": 4})).await;
    // One place is free by now, which is enough for a small one and not for the next in turn.
    gates.making.open(1);
    cluster.sessions_are(&first, |all| with_status(all, SessionStatus::Completed) == 1).await;
    gates.making.open(1);
    cluster.ended(&first).await;
    cluster.sessions_are(&large, prepare(1)).await;
    gates.making.open(OPEN);
    cluster.ended(&small).await;
    cluster.ended(&large).await;
    let page: EventPage = cluster.get("/api/events?after=0").await;
    let begun = |task: &TaskInfo| {
        page.events
            .iter()
            .position(|e| e.task_id == task.task_id && e.data["status"] == "preparing")
            .unwrap()
    };
    assert!(begun(&large) < begun(&small), "a small one was begun before");
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_fit_is_refused_where_nodes_are_known() {
    let cluster = Cluster::new().await;
    let (node, _gates) = config(&cluster, "a", 1000).await;
    let node = Node::start(node).await.unwrap();
    let task = json!({
        "instruction": "x",
        "harness": {"name": "shell", "command": "true"},
        "runtime": {"type": "local", "memory_mb": 1001},
    });
    let nodes: NodeList = crate::cluster::within(async {
        loop {
            let nodes: NodeList = cluster.get("/api/nodes").await;
            if !nodes.nodes.is_empty() {
                return nodes;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(nodes.nodes[0].node.room.memory_mb, Some(1000));
    let (status, answer) = cluster.post("/api/tasks", &task).await;
    assert_eq!(status, 422, "{answer}");
    assert_eq!(answer["error"]["problems"][0]["field"], "runtime.memory_mb");
    node.shutdown(Duration::ZERO).await;
}
