//! What a test stands on: a simulated engine, a gateway on its sockets, sandboxes as
//! plain processes, and a small agent in Python.

use async_trait::async_trait;
use polar_engine::{EngineOptions, connect};
use polar_gateway::{Gateway, GatewayConfig, serve_tcp, serve_unix};
use polar_sandbox::{
    LocalConfig, LocalIsolation, LocalProvider, Sandbox, SandboxError, SandboxProvider, SandboxSpec,
};
use polar_session::check::write_file_policy;
use polar_session::{
    AttemptFolder, Control, Ended, HarnessAdapter, Progress, RoomLimits, RunnerConfig,
    RuntimeImage, SessionRunner, WarmImage,
};
use polar_simulator::{SimulatorConfig, SimulatorHandle};
use polar_types::{
    Epoch, GroupId, Known, Lease, RuntimeKind, SessionId, SessionReport, Slots, Stage, TaskRequest,
};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longest time that anything in a test may take.
const LONGEST: Duration = Duration::from_secs(120);

const AGENT: &str = include_str!("agent.py");

/// The agent, as a harness command.
pub(crate) const RUN_AGENT: &str = "python3 agent.py";

pub(crate) struct Ground {
    pub(crate) dir: TempDir,
    pub(crate) simulator: SimulatorHandle,
    pub(crate) provider: Arc<dyn SandboxProvider>,
    pub(crate) runner: SessionRunner,
    gateway_address: std::net::SocketAddr,
    next: AtomicU64,
    stop: CancellationToken,
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A session that runs.
pub(crate) struct Session {
    pub(crate) folder: AttemptFolder,
    pub(crate) control: watch::Sender<Control>,
    pub(crate) progress: watch::Receiver<Progress>,
    task: JoinHandle<Ended>,
}

impl Ground {
    pub(crate) async fn new() -> Self {
        Self::with_slots(Slots { prepare: 2, ready: 2, run: 2, grade: 2, warm: 2 }).await
    }

    pub(crate) async fn with_slots(slots: Slots) -> Self {
        Self::build(slots, None).await
    }

    pub(crate) async fn build(slots: Slots, cache: Option<PathBuf>) -> Self {
        Self::with_providers(slots, cache, 0, |local| local).await
    }

    /// With so many sandboxes kept ready, by a provider that is made of the usual one.
    pub(crate) async fn with_providers(
        slots: Slots,
        cache: Option<PathBuf>,
        warm: u32,
        wrap: impl FnOnce(Arc<dyn SandboxProvider>) -> Arc<dyn SandboxProvider>,
    ) -> Self {
        Self::with_warm(slots, cache, warm_places(warm), wrap).await
    }

    /// With so much memory for sandboxes, which are not held to it, and so many kept ready.
    pub(crate) async fn with_memory(slots: Slots, memory_mb: u64, warm: u32) -> Self {
        let room = RoomLimits { memory_mb: Some(memory_mb), disk: None };
        let unlimited = |local| -> Arc<dyn SandboxProvider> { Arc::new(Unlimited(local)) };
        Self::with_room(slots, None, warm_places(warm), room, unlimited).await
    }

    /// The same, of other images than the machine itself.
    pub(crate) async fn with_warm(
        slots: Slots,
        cache: Option<PathBuf>,
        warm: Vec<WarmImage>,
        wrap: impl FnOnce(Arc<dyn SandboxProvider>) -> Arc<dyn SandboxProvider>,
    ) -> Self {
        Self::with_room(slots, cache, warm, RoomLimits::default(), wrap).await
    }

    async fn with_room(
        slots: Slots,
        cache: Option<PathBuf>,
        warm: Vec<WarmImage>,
        room: RoomLimits,
        wrap: impl FnOnce(Arc<dyn SandboxProvider>) -> Arc<dyn SandboxProvider>,
    ) -> Self {
        rustls::crypto::ring::default_provider().install_default().ok();
        let dir = tempfile::Builder::new().prefix("polar-session-test-").tempdir().unwrap();
        let simulator = polar_simulator::serve(SimulatorConfig {
            policy: write_file_policy(),
            ..SimulatorConfig::default()
        })
        .await
        .unwrap();
        let engine = connect(&simulator.url(), EngineOptions::default()).await.unwrap();
        let gateway = Gateway::new(GatewayConfig::default(), engine);
        let stop = CancellationToken::new();
        let gateway_socket = dir.path().join("gateway.sock");
        let unix = UnixListener::bind(&gateway_socket).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway_address = tcp.local_addr().unwrap();
        tokio::spawn(serve_unix(gateway.router(), unix, stop.clone()));
        tokio::spawn(serve_tcp(gateway.router(), tcp, stop.clone()));

        let name = dir.path().file_name().unwrap().to_str().unwrap().to_owned();
        let provider: Arc<dyn SandboxProvider> = Arc::new(
            LocalProvider::new(LocalConfig {
                isolation: LocalIsolation::Process,
                ..LocalConfig::new(name, dir.path().join("sandboxes"))
            })
            .unwrap(),
        );
        let provider = wrap(provider);
        let runner = SessionRunner::new(RunnerConfig {
            node_id: "n".parse().unwrap(),
            slots,
            gateway,
            gateway_socket,
            gateway_address,
            providers: vec![provider.clone()],
            cache: cache.unwrap_or_else(|| dir.path().join("cache")),
            room,
            warm,
            warm_folder: dir.path().join("warm"),
            output_limit: 1 << 20,
        });
        let next = AtomicU64::new(1);
        Self { dir, simulator, provider, runner, gateway_address, next, stop }
    }

    /// A task for the agent; `changes` go over it field by field.
    pub(crate) fn lease(&self, changes: Value) -> Lease {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut request = json!({
            "instruction": "Write hello.txt.",
            "harness": {"name": "shell", "command": RUN_AGENT},
            "runtime": {
                "type": "local",
                "prepare": [{"type": "write_file", "path": "agent.py", "content": AGENT}],
            },
            "evaluator": {"type": "command", "command": "grep -q hello hello.txt"},
            "budgets": {"prepare_seconds": 60.0, "run_seconds": 60.0, "grade_seconds": 60.0},
        });
        for (field, value) in changes.as_object().unwrap() {
            request[field] = value.clone();
        }
        let request: TaskRequest = serde_json::from_value(request).unwrap();
        let known = Known {
            harnesses: HarnessAdapter::names().into_iter().map(str::to_owned).collect(),
            default_image: None,
            ..Known::default()
        };
        let task = request.resolve(format!("t{number}").parse().unwrap(), &known).unwrap();
        Lease {
            session_id: SessionId::of_sample(&task.task_id, 0),
            attempt: 1,
            epoch: Epoch(number),
            sample_index: 0,
            group_id: GroupId::from(&task.task_id),
            task,
            regrade: None,
        }
    }

    pub(crate) fn gateway_address(&self) -> std::net::SocketAddr {
        self.gateway_address
    }

    pub(crate) fn sessions(&self) -> PathBuf {
        self.dir.path().join("sessions")
    }

    pub(crate) fn start(&self, lease: Lease) -> Session {
        let folder = AttemptFolder::create(&self.sessions(), &lease).unwrap();
        let (control, orders) = watch::channel(Control::Go);
        let (sender, progress) = watch::channel(Progress::default());
        let (runner, own) = (self.runner.clone(), folder.clone());
        let room = runner.reserve(&lease);
        let task = tokio::spawn(async move {
            let (ended, removal) = runner.run(lease, room, own, orders, Arc::new(sender)).await;
            removal.over().await;
            ended
        });
        Session { folder, control, progress, task }
    }

    /// Runs a session to its report.
    pub(crate) async fn run(&self, changes: Value) -> (SessionReport, AttemptFolder) {
        let session = self.start(self.lease(changes));
        let folder = session.folder.clone();
        (session.report().await, folder)
    }

    /// That nothing is left: a session still passes all stages, and no sandbox of an
    /// earlier one is there.
    pub(crate) async fn is_free(&self) {
        let (report, folder) = self.run(json!({})).await;
        assert_eq!(report.reward, Some(1.0), "{report:?}");
        folder.remove().unwrap();
        for entry in std::fs::read_dir(self.sessions()).unwrap() {
            for name in ["sandbox", "grader-sandbox1", "grader-sandbox2", "grader-sandbox3"] {
                let sandbox = entry.as_ref().unwrap().path().join(name).join("sandbox");
                assert!(!sandbox.exists(), "{} is left", sandbox.display());
            }
        }
        assert_eq!(self.runner.places_taken(), 0);
    }
}

/// Plain processes, which can't be held to a `memory_mb`, and need not be here.
struct Unlimited(Arc<dyn SandboxProvider>);

#[async_trait]
impl SandboxProvider for Unlimited {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    async fn check(&self) -> Result<(), SandboxError> {
        self.0.check().await
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        self.0.create(SandboxSpec { memory_mb: None, ..spec }).await
    }

    async fn sweep(&self, keep: &HashSet<String>) -> Result<u32, SandboxError> {
        self.0.sweep(keep).await
    }
}

fn warm_places(places: u32) -> Vec<WarmImage> {
    vec![WarmImage { of: RuntimeImage { runtime: RuntimeKind::Local, image: None }, places }]
}

impl Session {
    /// Waits until it is in a stage, and waiting for something that contains these words.
    pub(crate) async fn reaches(&mut self, stage: Stage, words: &str) {
        let there = |p: &Progress| p.stage == Some(stage) && p.waiting_for().contains(words);
        within(self.progress.wait_for(there)).await.unwrap();
    }

    pub(crate) async fn end(self) -> Ended {
        within(self.task).await.unwrap()
    }

    pub(crate) async fn report(self) -> SessionReport {
        match self.end().await {
            Ended::Reported(report) => *report,
            Ended::Abandoned => panic!("the session gave no report"),
        }
    }
}

pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONGEST, work).await.expect("took too long")
}

pub(crate) fn artifact(folder: &AttemptFolder, name: &str) -> String {
    std::fs::read_to_string(folder.artifact(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Waits until a file is there, which a command in a sandbox makes.
pub(crate) async fn appears(path: &std::path::Path) {
    within(async {
        let mut looks = tokio::time::interval(Duration::from_millis(20));
        while !path.exists() {
            looks.tick().await;
        }
    })
    .await;
}
