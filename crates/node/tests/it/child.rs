//! Node and server as processes of their own, so that they can be killed.

use crate::cluster::{node_config, serve};
use polar_node::Node;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SERVER_FOLDER: &str = "POLAR_TEST_SERVER_FOLDER";
const LEASE_TTL: &str = "POLAR_TEST_LEASE_TTL";
const STATE: &str = "POLAR_TEST_NODE_STATE";
const SERVER: &str = "POLAR_TEST_NODE_SERVER";
const ENGINE: &str = "POLAR_TEST_NODE_ENGINE";

/// Starts this test program again as a node.
pub(crate) fn start_node(state: &Path, server: SocketAddr, engine: &str) -> Child {
    itself("child::node_process")
        .env(STATE, state)
        .env(SERVER, server.to_string())
        .env(ENGINE, engine)
        .spawn()
        .unwrap()
}

/// Starts this test program again as the server whose data are in `folder`.
pub(crate) fn start_server(folder: &Path, address: SocketAddr, lease_ttl: Duration) -> Child {
    itself("child::server_process")
        .env(SERVER_FOLDER, folder)
        .env(SERVER, address.to_string())
        .env(LEASE_TTL, lease_ttl.as_secs().to_string())
        .spawn()
        .unwrap()
}

fn itself(body: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", body, "--nocapture"]).stdout(Stdio::null()).stderr(Stdio::null());
    command
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

/// The same for the server.
#[tokio::test(flavor = "multi_thread")]
async fn server_process() {
    let Some(folder) = std::env::var_os(SERVER_FOLDER).map(PathBuf::from) else { return };
    let address = std::env::var(SERVER).unwrap().parse().unwrap();
    let lease_ttl = std::env::var(LEASE_TTL).unwrap().parse().unwrap();
    let _server = serve(&folder, address, Duration::from_secs(lease_ttl)).await;
    std::future::pending::<()>().await;
}
