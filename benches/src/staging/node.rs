//! One node with its engine, on which an arm's sessions run.

use crate::workload::Workload;
use anyhow::{Result, anyhow, ensure};
use polar_engine::{EngineOptions, connect};
use polar_gateway::{Gateway, GatewayConfig, serve_tcp, serve_unix};
use polar_record::RecordedSession;
use polar_sandbox::{LocalConfig, LocalProvider};
use polar_session::{
    AttemptFolder, Control, Ended, Progress, RoomLimits, RunnerConfig, SessionRunner,
};
use polar_simulator::{Policy, SimulatorConfig, SimulatorHandle, Speed};
use polar_types::{Lease, SessionReport, Slots, Stage};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// More than any call samples; each is cut at its limit.
const REPLY_WORDS: usize = 2000;

pub(crate) struct Node {
    runner: SessionRunner,
    sessions: PathBuf,
    stop: CancellationToken,
    simulator: SimulatorHandle,
    _folder: TempDir,
}

/// What a session did when.
pub(crate) struct Session {
    pub(crate) agent_started: Instant,
    pub(crate) agent_ended: Instant,
    pub(crate) report: SessionReport,
    /// How long its calls took, all together.
    pub(crate) calls: Duration,
}

pub(crate) struct Run {
    pub(crate) seconds: f64,
    pub(crate) sessions: Vec<Session>,
}

impl Node {
    pub(crate) async fn start(slots: Slots, pace: f64) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("polar-staging-").tempdir()?;
        let words = "word ".repeat(REPLY_WORDS);
        let policy =
            Policy::from_yaml(&format!("name: words\nrules: []\ndefault: {{text: {words:?}}}\n"))?;
        let speed = Speed {
            first_token: Duration::from_secs_f64(2.0 / pace),
            tokens_per_second: Some(pace),
            tokens_per_chunk: 1,
        };
        let config = SimulatorConfig { policy, speed, ..SimulatorConfig::default() };
        let simulator = polar_simulator::serve(config).await?;
        let engine = connect(&simulator.url(), EngineOptions::default())
            .await
            .map_err(|error| anyhow!("{error}"))?;
        let gateway = Gateway::new(GatewayConfig::default(), engine);
        let stop = CancellationToken::new();
        let gateway_socket = folder.path().join("gateway.sock");
        let unix = UnixListener::bind(&gateway_socket)?;
        let tcp = TcpListener::bind("127.0.0.1:0").await?;
        let gateway_address = tcp.local_addr()?;
        tokio::spawn(serve_unix(gateway.router(), unix, stop.clone()));
        tokio::spawn(serve_tcp(gateway.router(), tcp, stop.clone()));
        let local = LocalConfig::new("staging", folder.path().join("sandboxes"));
        let runner = SessionRunner::new(RunnerConfig {
            node_id: "staging".parse().map_err(|error| anyhow!("{error}"))?,
            slots,
            gateway,
            gateway_socket,
            gateway_address,
            providers: vec![Arc::new(LocalProvider::new(local)?)],
            cache: folder.path().join("cache"),
            warm: Vec::new(),
            warm_folder: folder.path().join("warm"),
            output_limit: 1 << 20,
            room: RoomLimits::default(),
        });
        let sessions = folder.path().join("sessions");
        Ok(Self { runner, sessions, stop, simulator, _folder: folder })
    }

    /// Runs all of it, with every session waiting from the start.
    pub(crate) async fn run(self, workload: &Workload) -> Result<Run> {
        let began = Instant::now();
        let mut running = JoinSet::new();
        for lease in workload.leases()? {
            let folder = AttemptFolder::create(&self.sessions, &lease)?;
            running.spawn(session(self.runner.clone(), lease, folder));
        }
        let mut sessions = Vec::new();
        while let Some(ended) = running.join_next().await {
            sessions.push(ended??);
        }
        let seconds = began.elapsed().as_secs_f64();
        self.stop.cancel();
        self.simulator.shutdown().await;
        Ok(Run { seconds, sessions })
    }
}

async fn session(runner: SessionRunner, lease: Lease, folder: AttemptFolder) -> Result<Session> {
    let (_control, orders) = watch::channel(Control::Go);
    let (progress, mut seen) = watch::channel(Progress::default());
    let started = tokio::spawn(async move {
        let runs = seen.wait_for(|progress| progress.stage == Some(Stage::Run)).await.is_ok();
        runs.then(Instant::now)
    });
    let journal = folder.journal();
    let room = runner.reserve(&lease);
    let (ended, removal) = runner.run(lease, room, folder, orders, Arc::new(progress)).await;
    removal.over().await;
    let Ended::Reported(report) = ended else { anyhow::bail!("a session was given up") };
    ensure!(report.reward == Some(1.0), "a session failed: {:?}", report);
    let agent_started = started.await?.ok_or_else(|| anyhow!("an agent never ran"))?;
    let agent_ended = agent_started + Duration::from_secs_f64(report.times.run_seconds);
    let recorded = RecordedSession::read(&journal)?;
    let calls =
        recorded.calls().iter().map(|call| Duration::from_millis(call.meta.duration_ms)).sum();
    Ok(Session { agent_started, agent_ended, report: *report, calls })
}
