//! A real server on a real socket with a real database, and a clock that tests move.

use jiff::{SignedDuration, Timestamp};
use polar_server::{Clock, Server, ServerConfig, ServerHandle};
use polar_store::Limits;
use polar_types::{
    Artifact, Known, Lease, LeaseRequest, LeaseResponse, NodeInfo, NodeRoom, Outcome,
    SessionReport, Slots, StageTimes, TokenCounts,
};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// No test waits longer for anything.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Time stands still until it is moved.
#[derive(Clone)]
pub(crate) struct ManualClock(Arc<Mutex<Timestamp>>);

impl ManualClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new("2026-01-02T03:04:05Z".parse().unwrap())))
    }

    pub(crate) fn advance(&self, span: Duration) {
        let mut now = self.0.lock().unwrap();
        *now = now.saturating_add(SignedDuration::try_from(span).unwrap()).unwrap();
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
}

/// A configuration for tests: any port, deadlines looked at often.
pub(crate) fn config(data: &Path, clock: &ManualClock) -> ServerConfig {
    let mut config = ServerConfig::new(data);
    config.bind.set_port(0);
    config.known = Known {
        harnesses: vec!["shell".to_owned(), "pi".to_owned()],
        default_image: Some("debian:12".to_owned()),
        ..Known::default()
    };
    config.tick = Duration::from_millis(10);
    config.clock = Arc::new(clock.clone());
    config
}

pub(crate) struct Fixture {
    pub(crate) data: TempDir,
    pub(crate) clock: ManualClock,
    pub(crate) client: reqwest::Client,
    /// The terms that the server was started with.
    pub(crate) limits: Limits,
    server: Option<ServerHandle>,
    url: String,
    edit: Box<dyn Fn(&mut ServerConfig) + Send + Sync>,
}

impl Fixture {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(
        edit: impl Fn(&mut ServerConfig) + Send + Sync + 'static,
    ) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut fixture = Self {
            data: tempfile::tempdir().unwrap(),
            clock: ManualClock::new(),
            client: reqwest::Client::builder().timeout(DEADLINE).no_proxy().build().unwrap(),
            limits: Limits::default(),
            server: None,
            url: String::new(),
            edit: Box::new(edit),
        };
        fixture.up().await;
        fixture
    }

    /// Starts a server on the fixture's data.
    pub(crate) async fn up(&mut self) {
        let mut config = config(self.data.path(), &self.clock);
        (self.edit)(&mut config);
        self.limits = config.limits;
        let server = Server::start(config).await.unwrap();
        self.url = format!("http://{}", server.addr());
        self.server = Some(server);
    }

    /// Ends the server; its data stay.
    pub(crate) async fn down(&mut self) {
        self.server.take().unwrap().shutdown().await;
    }

    /// Talks to another process's server from now on.
    pub(crate) fn point_to(&mut self, url: String) {
        self.url = url;
    }

    /// `None` when the server is gone.
    pub(crate) async fn try_post(&self, path: &str, body: &impl Serialize) -> Option<Value> {
        let answer = self.request(Method::POST, path).json(body).send().await.ok()?;
        let status = answer.status();
        let value = answer.json().await.ok()?;
        assert!(status.is_success(), "{status}: {value}");
        Some(value)
    }

    /// One session; `None` when the server is gone.
    pub(crate) async fn try_lease(&self, node: &str) -> Option<Lease> {
        let ask = LeaseRequest { node: node_info(node, "boot-1"), free: 1, wait_seconds: 10.0 };
        let answer = self.try_post(&format!("/api/nodes/{node}/lease"), &ask).await?;
        serde_json::from_value::<LeaseResponse>(answer).unwrap().leases.pop()
    }

    /// `None` when the server is gone.
    pub(crate) async fn try_upload(&self, name: &str, text: String) -> Option<Artifact> {
        let sha256 = hex::encode(Sha256::digest(&text));
        let size = text.len() as u64;
        let put = self.request(Method::PUT, &format!("/api/blobs/{sha256}")).body(text);
        let answer = put.send().await.ok()?;
        assert!(answer.status().is_success(), "{}", answer.status());
        Some(Artifact { name: name.to_owned(), sha256, size })
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        json_of(self.request(Method::GET, path)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> (StatusCode, Value) {
        json_of(self.request(Method::DELETE, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &impl Serialize) -> (StatusCode, Value) {
        json_of(self.request(Method::POST, path).json(body)).await
    }

    /// Submits a task of the shell harness with these fields added.
    pub(crate) async fn submit(&self, fields: Value) -> Value {
        let (status, task) = self.post("/api/tasks", &shell_task(fields)).await;
        assert!(status.is_success(), "{status}: {task}");
        task
    }

    pub(crate) async fn lease(&self, node: &str, free: u32) -> Vec<Lease> {
        let request = LeaseRequest { node: node_info(node, "boot-1"), free, wait_seconds: 0.0 };
        let (status, answer) = self.post(&format!("/api/nodes/{node}/lease"), &request).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        serde_json::from_value::<LeaseResponse>(answer).unwrap().leases
    }

    /// The next session, for a node on which everything works.
    pub(crate) async fn lease_of_any(&self) -> Lease {
        let mut node = node_info("n1", "boot-1");
        node.runtimes = ["local", "docker", "podman", "apptainer"].map(str::to_owned).to_vec();
        let request = LeaseRequest { node, free: 1, wait_seconds: 0.0 };
        let (status, answer) = self.post("/api/nodes/n1/lease", &request).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        serde_json::from_value::<LeaseResponse>(answer).unwrap().leases.remove(0)
    }

    pub(crate) async fn upload(&self, name: &str, bytes: impl Into<Vec<u8>>) -> Artifact {
        let bytes: Vec<u8> = bytes.into();
        let sha256 = hex::encode(Sha256::digest(&bytes));
        let size = bytes.len() as u64;
        let put = self.request(Method::PUT, &format!("/api/blobs/{sha256}")).body(bytes);
        let (status, answer) = json_of(put).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        Artifact { name: name.to_owned(), sha256, size }
    }

    /// Reports a session; returns the acknowledgement.
    pub(crate) async fn report(&self, report: &SessionReport) -> Value {
        let (status, ack) =
            self.post(&format!("/api/sessions/{}/result", report.session_id), report).await;
        assert_eq!(status, StatusCode::OK, "{ack}");
        ack
    }

    /// Reads until the answer is what is waited for.
    pub(crate) async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let looking = async {
            loop {
                let (_, found) = self.get(path).await;
                if wanted(&found) {
                    return found;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, looking).await.unwrap_or_else(|_| panic!("{path}"))
    }
}

pub(crate) async fn json_of(request: RequestBuilder) -> (StatusCode, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    let value = serde_json::from_str(&text).unwrap_or_else(|_| json!({ "text": text }));
    (status, value)
}

pub(crate) fn shell_task(fields: Value) -> Value {
    let mut task = json!({ "harness": { "name": "shell", "command": "true" } });
    task.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    task
}

pub(crate) fn node_info(node: &str, boot: &str) -> NodeInfo {
    NodeInfo {
        node_id: node.parse().unwrap(),
        boot_id: boot.to_owned(),
        instance_id: format!("folder-of-{node}"),
        version: "0".to_owned(),
        slots: Slots::default(),
        runtimes: vec!["local".to_owned()],
        offers: Vec::new(),
        room: NodeRoom::default(),
        engine: "simulator".to_owned(),
        engines: Vec::new(),
        held: BTreeMap::new(),
        troubles: Vec::new(),
        engine_errors: 0,
    }
}

pub(crate) fn report_of(lease: &Lease, node: &str, outcome: Outcome) -> SessionReport {
    SessionReport {
        session_id: lease.session_id.clone(),
        regrade_of: None,
        epoch: lease.epoch,
        node_id: node.parse().unwrap(),
        outcome,
        reward: Some(1.0),
        grade_error: None,
        grade_note: None,
        grade: None,
        reason: None,
        reason_detail: None,
        hack_labels: Vec::new(),
        network: Default::default(),
        exit_code: Some(0),
        calls: 1,
        traces: 1,
        tokens: TokenCounts { sampled: 5, trained: 5, ..TokenCounts::default() },
        weight_versions: vec!["1".to_owned()],
        sizes: None,
        forks: BTreeMap::new(),
        roles: Default::default(),
        translation: Default::default(),
        times: StageTimes::default(),
        artifacts: Vec::new(),
    }
}
