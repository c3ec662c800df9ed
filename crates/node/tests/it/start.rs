//! What a node refuses at its start, and what it says then.

use crate::cluster::{Cluster, until, within};
use polar_node::{Node, NodeError};
use polar_server::{Server, ServerConfig};
use polar_types::{SessionStatus, Slots};
use serde_json::json;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn one_node_per_state_folder() {
    let cluster = Cluster::new().await;
    let node = cluster.node("a").await;
    let second = Node::start(cluster.config("a").await).await;
    assert!(matches!(second, Err(NodeError::Busy(_))));
    node.shutdown(Duration::ZERO).await;
    cluster.node("a").await.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_9_a_control_listener_for_everyone_needs_a_token() {
    let cluster = Cluster::new().await;
    let mut config = cluster.config("a").await;
    config.control_listen = Some("0.0.0.0:0".parse().unwrap());
    assert!(matches!(Node::start(config.clone()).await, Err(NodeError::Open(_))));
    config.control_token = Some("t".to_owned());
    Node::start(config).await.unwrap().shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_settings_say_what_to_change() {
    let cluster = Cluster::new().await;
    let mut config = cluster.config("a").await;
    config.slots = Slots { run: 0, ..config.slots };
    let error = Node::start(config).await.err().unwrap().to_string();
    assert!(error.contains("slots.run") && error.contains("at least 1"), "{error}");

    let mut config = cluster.config("a").await;
    config.state_dir = config.state_dir.join("x".repeat(100));
    let error = Node::start(config).await.err().unwrap().to_string();
    assert!(error.contains("shorter path"), "{error}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = cluster.config("a").await;
    config.gateway_listen = taken.local_addr().unwrap();
    let error = Node::start(config).await.err().unwrap().to_string();
    assert!(error.contains(&taken.local_addr().unwrap().to_string()), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_5_a_second_node_of_a_name_ends_and_takes_nothing_from_the_first() {
    let cluster = Cluster::new().await;
    let first = cluster.node("a").await;
    let started = cluster.state("started");
    let go = cluster.state("go");
    let command = format!(
        "touch {}; while [ ! -e {} ]; do sleep 0.05; done; python3 agent.py",
        started.display(),
        go.display()
    );
    let task = cluster.submit(json!({"harness": {"name": "shell", "command": command}})).await;
    until(|| started.exists()).await;

    let mut config = cluster.config("b").await;
    config.node_id = "a".parse().unwrap();
    let second = Node::start(config).await.unwrap();
    let refused = within(second.refused()).await;
    assert!(matches!(*refused, NodeError::NameInUse { .. }), "{refused}");
    let said = refused.to_string();
    assert!(said.contains("another running node") && said.contains("--node-id"), "{said}");
    within(second.shutdown(Duration::ZERO)).await;

    std::fs::write(&go, "").unwrap();
    let session = cluster.ended(&task).await.remove(0);
    assert_eq!(session.status, SessionStatus::Completed, "{session:?}");
    assert_eq!(session.attempts.len(), 1);
    first.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_token_is_refused_at_its_start_ends() {
    let cluster = Cluster::new().await;
    let mut closed = ServerConfig::new(cluster.state("closed"));
    closed.bind = "127.0.0.1:0".parse().unwrap();
    closed.control_token = Some("right".to_owned());
    let server = within(Server::start(closed)).await.unwrap();
    for token in [Some("wrong".to_owned()), None] {
        let mut config = cluster.config("a").await;
        let address = config.server.as_mut().unwrap();
        address.url = format!("http://{}", server.addr());
        address.token = token;
        let node = Node::start(config).await.unwrap();
        let refused = within(node.refused()).await;
        assert!(matches!(*refused, NodeError::Unauthorized { .. }), "{refused}");
        assert!(refused.to_string().contains("401"), "{refused}");
        within(node.shutdown(Duration::ZERO)).await;
    }
    server.shutdown().await;
}
