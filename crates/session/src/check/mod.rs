//! Runs a harness through scenarios and says what works and what does not.
//!
//! For people who bring an agent program, and for us whenever one is released: each
//! finding names what is wrong and how to mend it. Runs the real stages in a real sandbox.
//! The model is played by the simulator, by the scenario's script; a real engine can take
//! its place where the script does not matter.
//!
//! A scenario's rules say who truly makes each call they answer, so that the roles that
//! Polar gives to calls are checked against the truth.

mod engine;
mod expectation;
mod findings;
mod labels;
mod scenario;
mod script;

pub use findings::{Finding, Verdict};
pub use labels::LabelledCall;
pub use scenario::{Scenario, ScenarioError, ScenarioKind, write_file_policy};

use crate::harness::{HarnessAdapter, Installer};
use crate::{AttemptFolder, Control, Ended, Progress, RoomLimits, RunnerConfig, SessionRunner};
use engine::ScenarioEngine;
use polar_engine::Engine;
use polar_gateway::{Gateway, GatewayConfig, serve_tcp, serve_unix};
use polar_record::RecordedSession;
use polar_sandbox::SandboxProvider;
use polar_types::{
    Budgets, CallRole, Epoch, EvaluatorSpec, GradingSandbox, GradingSpec, GroupId, HarnessSpec,
    HistoryPolicy, Known, Lease, RewardSource, RuntimeKind, RuntimeSpec, SamplingPins, SessionId,
    SessionReport, Slots, TaskRequest, TaskSpec, TrajectoryStrategy,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What to check, and with what.
pub struct CheckOptions {
    /// Names its session; unique among the checks that run at a time.
    pub id: String,
    /// The adapter.
    pub adapter: HarnessAdapter,
    /// Model name, settings, environment and, for `shell`, the command. Its name and
    /// adapter are taken from `adapter`.
    pub harness: HarnessSpec,
    /// What it must cope with.
    pub scenario: Scenario,
    /// A real engine in the place of the scenario's script, which then says nothing about
    /// calls, traces and roles.
    pub engine: Option<Arc<dyn Engine>>,
    /// Whether the script's engine is used in token mode.
    pub token_mode: bool,
    /// Where it runs.
    pub provider: Arc<dyn SandboxProvider>,
    /// Image, for containers.
    pub image: Option<String>,
    /// Cache folder for installations.
    pub cache: PathBuf,
    /// Folder for its files, with a short path, as a socket lies in it. The caller makes
    /// and removes it.
    pub folder: PathBuf,
    /// Longest run, in seconds.
    pub run_seconds: f64,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckReport {
    /// In the order in which things happen.
    pub findings: Vec<Finding>,
    /// The recorded calls beside the rules that answered them.
    pub calls: Vec<LabelledCall>,
    /// The session's own report.
    pub session: SessionReport,
    /// Last lines of what the harness printed, for the reader.
    pub output: String,
    /// What the engine had to read.
    pub prompts: PromptTokens,
    /// How long it took.
    pub took: Duration,
}

/// Tokens of the prompts of all calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptTokens {
    /// All of them.
    pub sent: u64,
    /// Those that the engine had in its cache, as far as it says.
    pub cached: u64,
}

impl PromptTokens {
    fn of(recorded: &RecordedSession) -> Self {
        recorded.calls().iter().fold(Self::default(), |sum, call| Self {
            sent: sum.sent + call.meta.prompt_tokens,
            cached: sum.cached + call.meta.cached_tokens.unwrap_or(0),
        })
    }
}

impl CheckReport {
    /// The gravest verdict.
    pub fn verdict(&self) -> Verdict {
        let verdicts = self.findings.iter().map(|finding| finding.verdict);
        verdicts.max().unwrap_or(Verdict::Passed)
    }

    /// How many calls each true role made.
    pub fn calls_by_role(&self) -> BTreeMap<String, u64> {
        labels::by_role(&self.calls)
    }

    /// Whether nothing failed.
    pub fn passed(&self) -> bool {
        self.findings.iter().all(|finding| finding.verdict != Verdict::Failed)
    }
}

/// Why a check could not be made at all.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The task made for it is not valid, which the options decide.
    #[error("{0}")]
    Options(String),
    /// The scenario cannot be played.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The simulated engine does not start.
    #[error("the simulated engine: {0}")]
    Engine(String),
    /// A folder or socket could not be used.
    #[error("{action}: {error}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// What the operating system said.
        error: io::Error,
    },
}

/// Runs the check. Leaves nothing behind but the installation and what is in its folder.
pub async fn check_harness(options: CheckOptions) -> Result<CheckReport, CheckError> {
    let io = |action| move |error| CheckError::Io { action, error };
    let started = Instant::now();
    let mut expect = options.scenario.expectations(&options.adapter.check)?;
    if options.token_mode {
        expect.only_forks_of_the_harness();
    }
    let installer = Installer::new(&options.cache);
    let installed_before = installer.is_installed(&options.adapter);
    let lease = lease(&options)?;
    let attempt =
        AttemptFolder::create(&options.folder, &lease).map_err(io("make the session's folder"))?;

    let stop = CancellationToken::new();
    let engine = ScenarioEngine::start(&options, &stop).await?;
    let runner = runner(&options, engine.engine(), &stop).await?;
    let (_owner, control) = watch::channel(Control::Go);
    let (progress, _) = watch::channel(Progress::default());
    let room = runner.reserve(&lease);
    let progress = Arc::new(progress);
    let (ended, removal) = runner.run(lease, room, attempt.clone(), control, progress).await;
    removal.over().await;
    stop.cancel();
    let Ended::Reported(session) = ended else {
        return Err(CheckError::Options("the check's session was abandoned".to_owned()));
    };
    let recorded = RecordedSession::read(attempt.journal()).ok();
    let answers = engine.answers().await;
    let calls = recorded.as_ref().map(|recorded| {
        labels::label(recorded, &answers, &summaries(&attempt.artifact("calls.json")))
    });
    let calls = calls.unwrap_or_default();
    let findings = findings::examine(findings::Evidence {
        adapter: &options.adapter,
        expect: &expect,
        scripted: options.engine.is_none(),
        session: &session,
        recorded: recorded.as_ref(),
        calls: &calls,
        installed_before,
        installed: installer.is_installed(&options.adapter),
    });
    let output = last_output(&attempt);
    let prompts = recorded.as_ref().map(PromptTokens::of).unwrap_or_default();
    let took = started.elapsed();
    Ok(CheckReport { findings, calls, session: *session, output, prompts, took })
}

/// What the session delivers of its calls.
fn summaries(path: &Path) -> Vec<Value> {
    let text = std::fs::read(path).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn last_output(attempt: &AttemptFolder) -> String {
    let output = ["stdout.log", "stderr.log"]
        .iter()
        .map(|name| crate::harness::tail(&attempt.artifact(name)).unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    crate::report::clip_end(&output, 4000)
}

/// A gateway of its own and a runner with one place per stage.
async fn runner(
    options: &CheckOptions,
    engine: Arc<dyn Engine>,
    stop: &CancellationToken,
) -> Result<SessionRunner, CheckError> {
    let io = |error| CheckError::Io { action: "listen for the harness", error };
    // A harness is to meet every fault itself.
    let config = GatewayConfig { engine_wait: Duration::ZERO, ..GatewayConfig::default() };
    let gateway = Gateway::new(config, engine);
    let socket = options.folder.join("gateway.sock");
    let unix = UnixListener::bind(&socket).map_err(io)?;
    let tcp = TcpListener::bind("127.0.0.1:0").await.map_err(io)?;
    let gateway_address = tcp.local_addr().map_err(io)?;
    tokio::spawn(serve_unix(gateway.router(), unix, stop.clone()));
    tokio::spawn(serve_tcp(gateway.router(), tcp, stop.clone()));
    let node_id = "check".parse().map_err(|error| CheckError::Options(format!("{error}")))?;
    Ok(SessionRunner::new(RunnerConfig {
        node_id,
        slots: Slots { prepare: 1, ready: 0, run: 1, grade: 1, warm: 1 },
        gateway,
        gateway_socket: socket,
        gateway_address,
        providers: vec![options.provider.clone()],
        cache: options.cache.clone(),
        room: RoomLimits::default(),
        warm: Vec::new(),
        warm_folder: options.folder.join("warm"),
        output_limit: 4 << 20,
    }))
}

fn lease(options: &CheckOptions) -> Result<Lease, CheckError> {
    let task = task(options)?;
    Ok(Lease {
        session_id: SessionId::of_sample(&task.task_id, 0),
        attempt: 1,
        epoch: Epoch(1),
        sample_index: 0,
        group_id: GroupId::from(&task.task_id),
        task,
        regrade: None,
    })
}

fn task(options: &CheckOptions) -> Result<TaskSpec, CheckError> {
    let kind = RuntimeKind::named(options.provider.kind()).unwrap_or_default();
    let adapter = serde_json::to_value(&options.adapter)
        .map_err(|error| CheckError::Options(error.to_string()))?;
    // A shell harness is known by name; only that one may have a command.
    let shipped = options.adapter.name == "shell";
    let notes = options.scenario.notes(&options.adapter.check);
    let mut harness = HarnessSpec {
        name: options.adapter.name.clone(),
        adapter: (!shipped).then_some(adapter),
        ..options.harness.clone()
    };
    // What the user says wins over what the adapter says for the scenario.
    let settings = std::mem::replace(&mut harness.settings, notes.settings);
    harness.settings.extend(settings);
    let env = std::mem::replace(&mut harness.env, notes.env);
    harness.env.extend(env);
    harness.model = harness.model.or(notes.model);
    let run_seconds = options.scenario.run_seconds.unwrap_or_default().max(options.run_seconds);
    let request = TaskRequest {
        task_id: None,
        instruction: options.scenario.instruction.clone(),
        harness,
        runtime: RuntimeSpec { image: options.image.clone(), ..RuntimeSpec::of_kind(kind) },
        evaluator: EvaluatorSpec::Command {
            command: options.scenario.evaluator.clone(),
            workdir: None,
            env: Default::default(),
            reward: RewardSource::ExitCode,
        },
        // What it looks at lies outside of the work folder too.
        grading: GradingSpec { sandbox: Some(GradingSandbox::Session), ..GradingSpec::default() },
        trajectory_strategy: TrajectoryStrategy::PrefixMerging,
        train_roles: CallRole::trained_by_default(),
        num_samples: 1,
        sampling: SamplingPins::default(),
        history: HistoryPolicy::default(),
        budgets: Budgets { run_seconds, ..Budgets::default() },
        timeout_seconds: None,
        max_attempts: 1,
        priority: 0,
        weight: 1,
        queue: Default::default(),
        early_stop: None,
        callback: None,
        metadata: serde_json::Map::new(),
    };
    let minted = options.id.parse().map_err(|error| CheckError::Options(format!("{error}")))?;
    let known = Known {
        harnesses: HarnessAdapter::names().into_iter().map(str::to_owned).collect(),
        default_image: None,
        ..Known::default()
    };
    request.resolve(minted, &known).map_err(|problems| {
        let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
        CheckError::Options(problems.join("; "))
    })
}
