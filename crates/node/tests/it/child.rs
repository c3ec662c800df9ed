//! A node as a process of its own, so that it can be killed.

use crate::cluster::node_config;
use polar_node::Node;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const STATE: &str = "POLAR_TEST_NODE_STATE";
const SERVER: &str = "POLAR_TEST_NODE_SERVER";
const ENGINE: &str = "POLAR_TEST_NODE_ENGINE";

/// Starts this test program again as a node.
pub(crate) fn start_node(state: &Path, server: SocketAddr, engine: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child::node_process", "--nocapture"])
        .env(STATE, state)
        .env(SERVER, server.to_string())
        .env(ENGINE, engine)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test by itself: the body of the child process. Without its environment it has
/// nothing to do.
#[tokio::test(flavor = "multi_thread")]
async fn node_process() {
    let Some(state) = std::env::var_os(STATE).map(PathBuf::from) else { return };
    let server = std::env::var(SERVER).unwrap().parse().unwrap();
    let engine = std::env::var(ENGINE).unwrap();
    let name = state.file_name().unwrap().to_str().unwrap().to_owned();
    let _node = Node::start(node_config(&name, &state, server, &engine).await).await.unwrap();
    std::future::pending::<()>().await;
}
