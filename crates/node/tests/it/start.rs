//! What a node refuses at its start, and what it says then.

use crate::cluster::Cluster;
use polar_node::{Node, NodeError};
use polar_types::Slots;
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
