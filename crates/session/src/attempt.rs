//! One attempt from lease to report: prepare → ready → run → grade.
//!
//! An attempt is one task and the only owner of its state. Its owner speaks to it
//! through [`Control`] and sees its [`Progress`]; nothing else is shared, so a failure
//! here touches no other session. Whatever an attempt holds (slot, proxy session,
//! sandbox) it gives back on every way out. Its sandbox is removed behind its back, so
//! that a slow removal holds up no result.

use crate::control::{Control, Progress};
use crate::failure::Stop;
use crate::folder::AttemptFolder;
use crate::harness::{HarnessAdapter, Installer, RenderedHarness};
use crate::images::Images;
use crate::maker::{Deadline, Leftovers, Maker};
use crate::pools::{Pools, Slot};
use crate::removal::{Remains, Removal};
use crate::report::{self, Ending, Facts};
use crate::room::{Reservation, Room, RoomChanges, RoomLimits};
use crate::warm_pool::{RuntimeImage, WarmImage, WarmPool};
use crate::warming::{Order, Warming};
use polar_gateway::{Gateway, SessionHandle};
use polar_sandbox::{Exec, ExecEnd, Sandbox, SandboxProvider};
use polar_types::{
    ErrorClass, EvaluatorSpec, GradingSandbox, Lease, NetworkUse, NodeId, NodeRoom, PrepareStep,
    SessionReport, Side, Slots, Stage, StageTimes,
};
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What all attempts of a node share.
pub struct RunnerConfig {
    /// The node, named in reports.
    pub node_id: NodeId,
    /// Places per stage.
    pub slots: Slots,
    /// The proxy that harnesses talk to.
    pub gateway: Arc<Gateway>,
    /// Its Unix socket, for sandboxes without network.
    pub gateway_socket: PathBuf,
    /// Its TCP address, for sandboxes with network.
    pub gateway_address: SocketAddr,
    /// Kinds of sandbox there are.
    pub providers: Vec<Arc<dyn SandboxProvider>>,
    /// Folder for harness installations.
    pub cache: PathBuf,
    /// What all sandboxes together may take.
    pub room: RoomLimits,
    /// Images of which sandboxes are kept ready.
    pub warm: Vec<WarmImage>,
    /// Folder for the files of those.
    pub warm_folder: PathBuf,
    /// Bytes kept of each output of a command.
    pub output_limit: u64,
}

/// Runs attempts. Cheap to clone.
#[derive(Clone)]
pub struct SessionRunner {
    pub(crate) config: Arc<RunnerConfig>,
    pub(crate) installer: Installer,
    images: Images,
    pub(crate) warm: WarmPool,
    pools: Pools,
    room: Room,
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    /// It has ended; the artifacts named lie in its folder.
    Reported(Box<SessionReport>),
    /// Its owner gave it up; there is no report, but its folder holds what was recorded.
    Abandoned,
}

impl SessionRunner {
    /// Sets the stages up.
    pub fn new(config: RunnerConfig) -> Self {
        let installer = Installer::new(&config.cache);
        let pools = Pools::new(config.slots);
        let room = Room::new(config.room.clone());
        let (config, images) = (Arc::new(config), Images::default());
        let warm = WarmPool::new(config.clone(), images.clone(), room.clone());
        Self { pools, room, config, installer, images, warm }
    }

    /// Stands in line for the room that a session's sandboxes may take. Whoever asks for sessions
    /// does so as they come, so that it knows what is left for others.
    pub fn reserve(&self, lease: &Lease) -> Reservation {
        self.room.reserve(&lease.task.runtime)
    }

    /// Memory and disk for sandboxes, and what of that no session has or waits for.
    pub fn room(&self) -> NodeRoom {
        self.room.now()
    }

    /// Tells of changes of [`SessionRunner::room`].
    pub fn room_changes(&self) -> RoomChanges {
        self.room.changes()
    }

    /// Gets an image before a session wants it. A failure is only told to the log: sessions
    /// try again.
    pub async fn prepull(&self, wanted: &RuntimeImage) {
        let kind = wanted.runtime.as_str();
        let mut providers = self.config.providers.iter();
        let provider = providers.find(|provider| provider.kind() == kind).cloned();
        let (Some(provider), Some(image)) = (provider, &wanted.image) else {
            tracing::warn!(kind, image = ?wanted.image, "not pulled: the node has no such runtime");
            return;
        };
        match self.images.get(provider, image).await {
            Ok(_) => tracing::info!(kind, image, "image is here"),
            Err(error) => tracing::warn!(kind, image, %error, "image not pulled"),
        }
    }

    /// Sandboxes that are kept ready now, beside those of sessions.
    pub fn kept_ready(&self) -> usize {
        self.warm.stock()
    }

    /// Removes the sandboxes that are kept ready. Sessions may go on.
    pub async fn close(&self) {
        self.warm.close().await;
    }

    /// Places of all stages that sessions hold now.
    pub fn places_taken(&self) -> usize {
        self.pools.taken()
    }

    /// Runs a leased session to its end, in the room that it has or waits for; its sandbox may
    /// still be on its way out then. Always ends: each stage has a budget, and each wait in
    /// between is for a place that others leave within theirs.
    pub async fn run(
        &self,
        lease: Lease,
        room: Reservation,
        folder: AttemptFolder,
        control: watch::Receiver<Control>,
        progress: Arc<watch::Sender<Progress>>,
    ) -> (Ended, Removal) {
        let maker = Maker {
            config: self.config.clone(),
            images: self.images.clone(),
            runtime: Arc::new(lease.task.runtime.clone()),
            logs: folder.logs(),
            control,
            given_up: CancellationToken::new(),
            leftovers: Leftovers::default(),
        };
        let mut attempt = Attempt {
            runner: self.clone(),
            lease,
            room: Some(room),
            folder,
            maker,
            progress,
            times: StageTimes::default(),
            adapter: None,
            sandbox: None,
            grader: None,
            warming: None,
            proxy: None,
            evaluator: crate::evaluator::Programs::default(),
            exec_end: None,
            network: None,
            grade: crate::grade::Grade::default(),
        };
        let result = match attempt.lease.regrade {
            None => attempt.stages().await,
            Some(_) => attempt.regrade().await,
        };
        attempt.close_proxy().await;
        attempt.network = attempt.sandbox.as_ref().map(|sandbox| sandbox.network_use());
        let (remains, room) = (attempt.remains(), attempt.room.take());
        let (slot, outcome) = match result {
            // The grading slot is held until the trajectory is built and the sandbox gone.
            Ok(slot) => (Some(Arc::new(slot)), None),
            Err(Stop::Ended(outcome)) => (None, Some(outcome)),
            Err(Stop::Abandoned) => {
                return (Ended::Abandoned, Removal::start(remains, room, None));
            }
        };
        let removal = Removal::start(remains, room, slot.clone());
        let report = attempt.report(outcome).await;
        drop(slot);
        (Ended::Reported(Box::new(report)), removal)
    }
}

/// The state of one attempt.
pub(crate) struct Attempt {
    pub(crate) runner: SessionRunner,
    pub(crate) lease: Lease,
    /// Had until its sandboxes are gone.
    room: Option<Reservation>,
    pub(crate) folder: AttemptFolder,
    pub(crate) maker: Maker,
    progress: Arc<watch::Sender<Progress>>,
    pub(crate) times: StageTimes,
    pub(crate) adapter: Option<HarnessAdapter>,
    pub(crate) sandbox: Option<Box<dyn Sandbox>>,
    /// The one that its result is graded in, where that is another.
    pub(crate) grader: Option<Box<dyn Sandbox>>,
    /// The same while nothing is graded yet.
    pub(crate) warming: Option<Warming>,
    pub(crate) proxy: Option<SessionHandle>,
    pub(crate) evaluator: crate::evaluator::Programs,
    pub(crate) exec_end: Option<ExecEnd>,
    network: Option<NetworkUse>,
    pub(crate) grade: crate::grade::Grade,
}

impl Attempt {
    /// Passes the stages; the grading slot comes back.
    async fn stages(&mut self) -> Result<Slot, Stop> {
        let pools = self.runner.pools.clone();
        // Before the slot, so that an image that is slow to come holds up none but its own.
        let since = Instant::now();
        let image_id = self.get_image().await?;
        let image = since.elapsed();
        self.have_room(Stage::Prepare).await?;
        self.waits(Stage::Prepare, "a preparation slot");
        let slot = self.unless_stopped(pools.prepare()).await??;
        let since = Instant::now();
        let harness = self.prepare(image_id, image).await;
        self.times.prepare_seconds = (image + since.elapsed()).as_secs_f64();
        let harness = harness?;

        self.waits(Stage::Ready, "a run slot");
        let since = Instant::now();
        let slot = self.unless_stopped(pools.run_after(slot)).await;
        self.times.ready_seconds = since.elapsed().as_secs_f64();

        let slot = slot??;
        self.engine_is_there().await?;
        self.warm_grader();
        let since = Instant::now();
        let end = self.run(harness).await;
        self.times.run_seconds = since.elapsed().as_secs_f64();
        let slot = pools.leave_run(slot);
        let first_call = self.proxy.as_ref().and_then(SessionHandle::first_call_at);
        self.times.harness_start_seconds =
            first_call.map(|at| at.saturating_duration_since(since).as_secs_f64());
        self.exec_end = Some(end?);

        // From here on no call can come in: what is graded is what the journal holds.
        self.close_proxy().await;
        self.waits(Stage::Grade, "a grading slot");
        let slot = match slot {
            Some(slot) => slot,
            None => self.unless_stopped(pools.grade()).await??,
        };
        let since = Instant::now();
        let grade = self.grade().await;
        self.times.grade_seconds = since.elapsed().as_secs_f64();
        self.grade = grade?;
        self.waits(Stage::Grade, "its trajectory");
        Ok(slot)
    }

    /// Waits until the node has room for its sandbox.
    pub(crate) async fn have_room(&mut self, stage: Stage) -> Result<(), Stop> {
        let Some(mut room) = self.room.take() else { return Ok(()) };
        let granted = self.unless_stopped(room.granted(|lacks| self.waits(stage, lacks))).await;
        self.room = Some(room);
        granted?
    }

    pub(crate) fn pools(&self) -> Pools {
        self.runner.pools.clone()
    }

    /// Has the grader's sandbox made while the agent runs.
    fn warm_grader(&mut self) {
        let task = &self.lease.task;
        let is_needed = !matches!(task.evaluator, EvaluatorSpec::None {})
            && task.grading_sandbox() == GradingSandbox::Fresh;
        let Some(proxy) = self.proxy.clone().filter(|_| is_needed) else { return };
        let order = Order {
            maker: self.maker.clone(),
            recipe: self.grader_recipe(1),
            seconds: task.budgets.prepare_seconds,
            pools: self.runner.pools.clone(),
            room: self.runner.room.clone(),
            progress: self.progress.clone(),
        };
        self.warming = Some(Warming::start(order, proxy));
    }

    /// The harness, within its own budget, which starts now.
    async fn run(&self, harness: RenderedHarness) -> Result<ExecEnd, Stop> {
        if let Some(proxy) = &self.proxy {
            let name = format!("the harness {}", self.lease.task.harness.name);
            self.progress.send_replace(Progress::running(&name, proxy.clone()));
        }
        let budget = self.lease.task.budgets.run_seconds;
        let exec = Exec {
            argv: harness.argv,
            workdir: None,
            env: harness.env,
            stdin: Some(harness.stdin),
            timeout: Duration::from_secs_f64(budget),
            stdout: self.folder.artifact("stdout.log"),
            stderr: self.folder.artifact("stderr.log"),
            output_limit: self.runner.config.output_limit,
        };
        self.exec("running the harness", exec).await
    }

    /// Runs a command in the sandbox. A sandbox that does not keep the command's timeout
    /// is a broken one.
    pub(crate) async fn exec(&self, doing: &str, exec: Exec) -> Result<ExecEnd, Stop> {
        self.exec_in(self.open_sandbox()?, doing, exec).await
    }

    /// As [`Attempt::exec`], in one of its sandboxes.
    pub(crate) async fn exec_in(
        &self,
        sandbox: &dyn Sandbox,
        doing: &str,
        exec: Exec,
    ) -> Result<ExecEnd, Stop> {
        self.maker.exec(sandbox, doing, exec).await
    }

    /// Does set-up steps in one of its sandboxes, up to the first that fails.
    pub(crate) async fn set_up(
        &self,
        deadline: Deadline,
        sandbox: &dyn Sandbox,
        steps: &[PrepareStep],
    ) -> Result<(), Stop> {
        self.maker.set_up(deadline, sandbox, steps).await
    }

    pub(crate) async fn within<T>(
        &self,
        deadline: Deadline,
        doing: &str,
        work: impl Future<Output = T>,
    ) -> Result<T, Stop> {
        self.maker.within(deadline, doing, work).await
    }

    pub(crate) fn open_sandbox(&self) -> Result<&dyn Sandbox, Stop> {
        self.sandbox.as_deref().ok_or_else(|| {
            Stop::failed(Side::Polar, ErrorClass::Internal, "the attempt has no sandbox")
        })
    }

    pub(crate) fn waits(&self, stage: Stage, waiting_for: &str) {
        self.progress.send_replace(Progress::in_stage(stage, waiting_for));
    }

    pub(crate) fn waits_for_engine(&self, stage: Stage, waiting_for: &str) {
        self.progress.send_replace(Progress::without_engine(stage, waiting_for));
    }

    pub(crate) async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, Stop> {
        self.maker.unless_stopped(work).await
    }

    /// Ends running calls and completes the journal.
    async fn close_proxy(&mut self) {
        let Some(proxy) = self.proxy.take() else { return };
        // Writes and syncs a file.
        match tokio::task::spawn_blocking(move || proxy.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(session = %self.lease.session_id, %error, "journal not sealed");
            }
            Err(error) => {
                tracing::error!(session = %self.lease.session_id, %error, "journal not sealed");
            }
        }
    }

    fn remains(&mut self) -> Remains {
        Remains {
            sandboxes: self.sandbox.take().into_iter().chain(self.grader.take()).collect(),
            warming: self.warming.take(),
            leftovers: self.maker.leftovers.clone(),
        }
    }

    async fn report(self, outcome: Option<polar_types::Outcome>) -> SessionReport {
        let ending = match (outcome, self.exec_end, self.adapter) {
            (Some(outcome), _, _) => Ending::Stopped(outcome),
            (None, Some(end), Some(adapter)) => Ending::Ran { end, adapter: Box::new(adapter) },
            (None, _, _) if self.lease.regrade.is_some() => {
                Ending::Stopped(polar_types::Outcome::Completed)
            }
            (None, _, _) => Ending::Stopped(polar_types::Outcome::Failed {
                side: Side::Polar,
                class: ErrorClass::Internal,
                message: "the attempt ended without a run".to_owned(),
            }),
        };
        report::conclude(Facts {
            lease: self.lease,
            node_id: self.runner.config.node_id.clone(),
            folder: self.folder,
            grade: self.grade,
            network: self.network.unwrap_or_default(),
            times: self.times,
            ending,
        })
        .await
    }
}
