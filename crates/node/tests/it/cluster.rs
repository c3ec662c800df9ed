//! What a test stands on: a server, an engine, and nodes that come and go.

use polar_engine::{Engine, EngineOptions, connect};
use polar_gateway::GatewayConfig;
use polar_node::{Node, NodeConfig, ServerAddress};
use polar_sandbox::{LocalConfig, LocalIsolation, LocalProvider};
use polar_server::{Server, ServerConfig, ServerHandle};
use polar_session::check::write_file_policy;
use polar_simulator::{SimulatorConfig, SimulatorHandle, Speed};
use polar_types::{
    EventKind, EventPage, NodeList, NodeTrouble, SessionInfo, SessionList, Slots, TaskInfo,
    Trajectory, UpdateStatus, WeightUpdate,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Longest time that anything in a test may take.
const LONGEST: Duration = Duration::from_secs(150);

/// Pause between looks at what the server knows.
const LOOK: Duration = Duration::from_millis(50);

/// The same agent as in the tests of sessions.
pub(crate) const AGENT: &str = include_str!("../../../session/tests/it/agent.py");

pub(crate) struct Cluster {
    pub(crate) dir: TempDir,
    simulator: Option<SimulatorHandle>,
    engine_addr: SocketAddr,
    pub(crate) server_addr: SocketAddr,
    server: Option<ServerHandle>,
    client: reqwest::Client,
    lease_ttl: Duration,
}

impl Cluster {
    pub(crate) async fn new() -> Self {
        Self::with_lease_ttl(Duration::from_secs(60)).await
    }

    pub(crate) async fn with_lease_ttl(lease_ttl: Duration) -> Self {
        Self::with(lease_ttl, Speed::default()).await
    }

    pub(crate) async fn with(lease_ttl: Duration, speed: Speed) -> Self {
        rustls::crypto::ring::default_provider().install_default().ok();
        let dir = tempfile::Builder::new().prefix("polar-node-test-").tempdir().unwrap();
        let simulator = polar_simulator::serve(SimulatorConfig {
            policy: write_file_policy(),
            speed,
            ..SimulatorConfig::default()
        })
        .await
        .unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = serve(dir.path(), any, lease_ttl).await;
        let server_addr = server.addr();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let (engine_addr, simulator) = (simulator.addr, Some(simulator));
        Self { dir, simulator, engine_addr, server_addr, server: Some(server), client, lease_ttl }
    }

    pub(crate) fn engine_url(&self) -> String {
        format!("http://{}", self.engine_addr)
    }

    pub(crate) async fn stop_server(&mut self) {
        within(self.server.take().unwrap().shutdown()).await;
    }

    /// The same server again: same address, same data.
    pub(crate) async fn start_server(&mut self) {
        self.server = Some(serve(self.dir.path(), self.server_addr, self.lease_ttl).await);
    }

    pub(crate) fn state(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) async fn config(&self, name: &str) -> NodeConfig {
        let state = self.state(name);
        node_config(name, &state, self.server_addr, &self.engine_url()).await
    }

    pub(crate) async fn node(&self, name: &str) -> Node {
        Node::start(self.config(name).await).await.unwrap()
    }

    /// Submits a task for the agent; `changes` go over it field by field.
    pub(crate) async fn submit(&self, changes: Value) -> TaskInfo {
        let mut request = json!({
            "instruction": "Write hello.txt.",
            "harness": {"name": "shell", "command": "python3 agent.py"},
            "runtime": {
                "type": "local",
                "prepare": [{"type": "write_file", "path": "agent.py", "content": AGENT}],
            },
            "evaluator": {"type": "command", "command": "grep -q hello hello.txt"},
        });
        for (field, value) in changes.as_object().unwrap() {
            request[field] = value.clone();
        }
        let url = self.url("/api/tasks");
        let response = within(self.client.post(url).json(&request).send()).await.unwrap();
        let text = response.text().await.unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Has stored work graded again, and gives the answer.
    pub(crate) async fn regrade(&self, task: &TaskInfo, request: Value) -> Value {
        let url = self.url(&format!("/api/tasks/{}/regrade", task.task_id));
        let response = within(self.client.post(url).json(&request).send()).await.unwrap();
        within(response.json()).await.unwrap()
    }

    pub(crate) async fn cancel(&self, task: &TaskInfo) {
        let url = self.url(&format!("/api/tasks/{}", task.task_id));
        within(self.client.delete(url).send()).await.unwrap().error_for_status().unwrap();
    }

    /// Status and body of the answer.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = within(self.client.post(self.url(path)).json(body).send()).await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// Weights that were pushed, as a trainer asks for them until the engines are through.
    pub(crate) async fn settled(&self, version: &str) -> WeightUpdate {
        within(async {
            loop {
                let path = format!("/api/weights/{version}?wait_seconds=5");
                let update: WeightUpdate = self.get(&path).await;
                if update.status != UpdateStatus::Rolling {
                    return update;
                }
            }
        })
        .await
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> T {
        let response = within(self.client.get(self.url(path)).send()).await.unwrap();
        let text = response.text().await.unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"))
    }

    /// Reads the event log until one of this task fits.
    pub(crate) async fn event(&self, task: &TaskInfo, fits: impl Fn(EventKind, &Value) -> bool) {
        let watch = async {
            let mut cursor = 0;
            loop {
                let path = format!("/api/events?after={cursor}&wait_seconds=5");
                let page: EventPage = self.get(&path).await;
                let mut own = page.events.iter().filter(|event| event.task_id == task.task_id);
                if own.any(|event| fits(event.kind, &event.data)) {
                    return;
                }
                cursor = page.cursor;
            }
        };
        within(watch).await;
    }

    /// Waits until a task has ended, and gives its sessions.
    pub(crate) async fn ended(&self, task: &TaskInfo) -> Vec<SessionInfo> {
        self.event(task, |kind, _| kind == EventKind::TaskEnded).await;
        self.sessions(task).await
    }

    pub(crate) async fn sessions(&self, task: &TaskInfo) -> Vec<SessionInfo> {
        let path = format!("/api/tasks/{}/sessions", task.task_id);
        self.get::<SessionList>(&path).await.sessions
    }

    /// Waits until a node has told the server of a trouble.
    pub(crate) async fn trouble(&self, node: &str) -> NodeTrouble {
        let told = async {
            loop {
                if let Some(trouble) = self.troubles(node).await.into_iter().next() {
                    return trouble;
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        within(told).await
    }

    /// Waits until a node has told the server that it has none.
    pub(crate) async fn untroubled(&self, node: &str) {
        within(async {
            while !self.troubles(node).await.is_empty() {
                tokio::time::sleep(LOOK).await;
            }
        })
        .await;
    }

    async fn troubles(&self, node: &str) -> Vec<NodeTrouble> {
        let nodes = self.get::<NodeList>("/api/nodes").await.nodes;
        let of_it = nodes.into_iter().find(|seen| seen.node.node_id.as_str() == node);
        of_it.map(|seen| seen.node.troubles).unwrap_or_default()
    }

    /// Takes the engine away.
    pub(crate) async fn stop_engine(&mut self) {
        within(self.simulator.take().unwrap().shutdown()).await;
    }

    /// The same engine again, which answers at once.
    pub(crate) async fn start_engine(&mut self) {
        let config = SimulatorConfig {
            policy: write_file_policy(),
            listen: self.engine_addr,
            ..SimulatorConfig::default()
        };
        self.simulator = Some(polar_simulator::serve(config).await.unwrap());
    }

    /// Waits until the sessions of a task are so.
    pub(crate) async fn sessions_are(&self, task: &TaskInfo, so: impl Fn(&[SessionInfo]) -> bool) {
        within(async {
            let mut looks = tokio::time::interval(Duration::from_millis(50));
            while !so(&self.sessions(task).await) {
                looks.tick().await;
            }
        })
        .await;
    }

    pub(crate) async fn trajectory(&self, session: &SessionInfo) -> Trajectory {
        self.get(&format!("/api/sessions/{}/trajectory", session.session_id)).await
    }

    /// Waits until a server answers, whichever process it is.
    pub(crate) async fn server_is_up(&self) {
        let up = async {
            let mut looks = tokio::time::interval(Duration::from_millis(50));
            while self.client.get(self.url("/api/nodes")).send().await.is_err() {
                looks.tick().await;
            }
        };
        within(up).await;
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server_addr)
    }
}

pub(crate) async fn serve(dir: &Path, bind: SocketAddr, lease_ttl: Duration) -> ServerHandle {
    let mut config = ServerConfig::new(dir.join("server"));
    config.bind = bind;
    config.known.harnesses = vec!["shell".to_owned()];
    config.limits.lease_ttl = lease_ttl;
    config.tick = Duration::from_millis(100);
    within(Server::start(config)).await.unwrap()
}

pub(crate) async fn engine(url: &str) -> Arc<dyn Engine> {
    within(connect(url, EngineOptions::default())).await.unwrap()
}

pub(crate) async fn node_config(
    name: &str,
    state: &Path,
    server: SocketAddr,
    engine_url: &str,
) -> NodeConfig {
    rustls::crypto::ring::default_provider().install_default().ok();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    // Nodes of tests that run at the same time must not sweep each other.
    let label = state.display().to_string().replace('/', "-");
    let local = LocalProvider::new(LocalConfig {
        isolation: LocalIsolation::Process,
        ..LocalConfig::new(label, state.join("sandboxes"))
    });
    NodeConfig {
        node_id: name.parse().unwrap(),
        server: Some(ServerAddress { url: format!("http://{server}"), token: None }),
        state_dir: state.to_owned(),
        cache_dir: state.join("cache"),
        // Without graders' sandboxes beside those of agents, which tests count.
        slots: Slots { prepare: 2, ready: 2, run: 2, grade: 2, warm: 0 },
        prepull: Vec::new(),
        warm: Vec::new(),
        gateway_listen: any,
        control_listen: Some(any),
        control_token: None,
        gateway: GatewayConfig::default(),
        engines: vec![engine(engine_url).await.into()],
        engine_options: EngineOptions::default(),
        providers: vec![Arc::new(local.unwrap())],
        keep_free_mb: None,
        sandbox_memory_mb: None,
        output_limit: 1 << 20,
    }
}

pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONGEST, work).await.expect("took too long")
}

/// Waits until something outside this process is so.
pub(crate) async fn until(mut so: impl FnMut() -> bool) {
    within(async {
        let mut looks = tokio::time::interval(Duration::from_millis(20));
        while !so() {
            looks.tick().await;
        }
    })
    .await;
}

/// Names in a folder.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Whether a process is there and does something.
pub(crate) fn runs(pid: &str) -> bool {
    // The state is the first field after the name in brackets; Z is a zombie.
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|stat| {
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    })
}
