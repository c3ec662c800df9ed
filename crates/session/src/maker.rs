//! Makes sandboxes as a task says: image, sandbox, set-up steps, and the network taken away
//! where that is asked for.
//!
//! A maker owns nothing that it has handed out. What it could not finish lies in
//! [`Leftovers`], which whoever ends the attempt removes: no sandbox is dropped half-made.

use crate::attempt::RunnerConfig;
use crate::control::{self, Control};
use crate::failure::Stop;
use crate::hints;
use crate::images::Images;
use crate::removal::{Creation, destroy};
use polar_sandbox::{Exec, ExecEnd, Sandbox, SandboxError, SandboxProvider, SandboxSpec};
use polar_types::{ErrorClass, PrepareStep, RuntimeSpec, SandboxStart, Side};
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How much later than its own timeout a command must have ended.
const EXEC_GRACE: Duration = Duration::from_secs(60);

/// When preparing must be over.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    at: Instant,
    seconds: f64,
}

impl Deadline {
    pub(crate) fn of_preparing(seconds: f64) -> Self {
        Self { at: Instant::now() + Duration::from_secs_f64(seconds), seconds }
    }

    /// The same with `spent` of it gone.
    pub(crate) fn less(self, spent: Duration) -> Self {
        Self { at: self.at.checked_sub(spent).unwrap_or(self.at), ..self }
    }

    /// The budget that it ends.
    pub(crate) fn seconds(self) -> f64 {
        self.seconds
    }

    pub(crate) fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub(crate) fn passed(self, doing: &str) -> Stop {
        Stop::failed(
            Side::Sandbox,
            ErrorClass::Timeout,
            format!(
                "preparing took longer than budgets.prepare_seconds ({} s) while {doing}; raise \
                 it, or do less before the harness starts",
                self.seconds
            ),
        )
    }
}

/// What a sandbox is made of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Recipe {
    /// Whose it is, in words: `its`, `the grader's`.
    pub(crate) whose: &'static str,
    pub(crate) spec: SandboxSpec,
    /// What the spec's image was when it was got: names are given to other images.
    pub(crate) image_id: Option<String>,
    pub(crate) steps: Vec<PrepareStep>,
    /// Whether its network is taken away after the steps.
    pub(crate) closes: bool,
}

impl Recipe {
    /// The same for a sandbox of no name.
    pub(crate) fn anonymous(&self) -> Self {
        let mut recipe = self.clone();
        recipe.spec.name.clear();
        recipe.spec.host_dir.clear();
        recipe
    }

    /// Whether sandboxes made by either can't be told apart but by their names.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.anonymous() == other.anonymous()
    }
}

/// A sandbox that is ready, and what that took.
pub(crate) struct Made {
    pub(crate) sandbox: Box<dyn Sandbox>,
    /// Of which image it was made, where that can be told.
    pub(crate) image_id: Option<String>,
    pub(crate) start: SandboxStart,
}

/// What could not be finished, to be removed.
#[derive(Default)]
pub(crate) struct Leftover {
    /// Made, but not set up.
    pub(crate) sandboxes: Vec<Box<dyn Sandbox>>,
    /// Still being made.
    pub(crate) unfinished: Vec<Creation>,
}

/// What the makers of one attempt have left.
#[derive(Clone, Default)]
pub(crate) struct Leftovers(Arc<Mutex<Leftover>>);

impl Leftovers {
    pub(crate) fn take(&self) -> Leftover {
        std::mem::take(&mut self.lock())
    }

    pub(crate) fn is_nothing(&self) -> bool {
        let left = self.lock();
        left.sandboxes.is_empty() && left.unfinished.is_empty()
    }

    /// Removes the sandboxes that could not be set up.
    pub(crate) async fn clear(&self) {
        let made = std::mem::take(&mut self.lock().sandboxes);
        for sandbox in made {
            destroy(sandbox.as_ref()).await;
        }
    }

    pub(crate) fn keep(&self, sandbox: Box<dyn Sandbox>) {
        self.lock().sandboxes.push(sandbox);
    }

    fn keep_creation(&self, creation: Creation) {
        self.lock().unfinished.push(creation);
    }

    fn lock(&self) -> MutexGuard<'_, Leftover> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes sandboxes of one runtime. Cheap to clone; clones share what is left over.
#[derive(Clone)]
pub(crate) struct Maker {
    pub(crate) config: Arc<RunnerConfig>,
    pub(crate) images: Images,
    pub(crate) runtime: Arc<RuntimeSpec>,
    /// Where it keeps what commands print.
    pub(crate) logs: PathBuf,
    /// Ends its work, as does `given_up`.
    pub(crate) control: watch::Receiver<Control>,
    pub(crate) given_up: CancellationToken,
    pub(crate) leftovers: Leftovers,
}

impl Maker {
    /// Makes a sandbox; `tell` is told what is waited for.
    pub(crate) async fn make(
        &self,
        recipe: Recipe,
        deadline: Deadline,
        tell: impl Fn(&str),
    ) -> Result<Made, Stop> {
        let mut start = SandboxStart::default();
        let began = Instant::now();
        let Recipe { whose, spec, mut image_id, steps, closes } = recipe;
        let provider = self.provider()?;
        if let Some(image) = &spec.image {
            tell(&format!("{whose} image"));
            image_id = self.get_image(image, deadline, whose).await?;
            start.image_seconds = began.elapsed().as_secs_f64();
        }
        tell(&format!("{whose} sandbox"));
        let since = Instant::now();
        let sandbox = self.create(provider, spec, deadline, whose).await?;
        start.create_seconds = since.elapsed().as_secs_f64();
        tell(&format!("{whose} set-up steps"));
        let since = Instant::now();
        match self.furnish(sandbox.as_ref(), &steps, closes, deadline).await {
            Ok(()) => {}
            Err(stop) => {
                let refused = hints::refused_hosts(&sandbox.network_use());
                self.leftovers.keep(sandbox);
                return Err(stop.with(&refused));
            }
        }
        start.set_up_seconds = since.elapsed().as_secs_f64();
        start.waited_seconds = began.elapsed().as_secs_f64();
        Ok(Made { sandbox, image_id, start })
    }

    /// Waits until the node has an image, and says which it is.
    pub(crate) async fn get_image(
        &self,
        image: &str,
        deadline: Deadline,
        whose: &str,
    ) -> Result<Option<String>, Stop> {
        let got = self.images.get(self.provider()?, image);
        self.within(deadline, &format!("getting {whose} image"), got)
            .await?
            .map_err(|error| creation_failure(&error))
    }

    /// Creation is never dropped half-way, since that could leave a container nobody knows
    /// of: when it has to end first, what is being made is taken down as soon as it is there.
    async fn create(
        &self,
        provider: Arc<dyn SandboxProvider>,
        spec: SandboxSpec,
        deadline: Deadline,
        whose: &str,
    ) -> Result<Box<dyn Sandbox>, Stop> {
        let doing = format!("making {whose} sandbox");
        let mut creation = tokio::spawn(async move { provider.create(spec).await });
        match self.within(deadline, &doing, &mut creation).await {
            Ok(Ok(made)) => made.map_err(|error| creation_failure(&error)),
            Ok(Err(panic)) => Err(Stop::failed(
                Side::Polar,
                ErrorClass::Internal,
                format!("{doing} broke off: {panic}"),
            )),
            Err(stop) => {
                self.leftovers.keep_creation(creation);
                Err(stop)
            }
        }
    }

    async fn furnish(
        &self,
        sandbox: &dyn Sandbox,
        steps: &[PrepareStep],
        closes: bool,
        deadline: Deadline,
    ) -> Result<(), Stop> {
        self.set_up(deadline, sandbox, steps).await?;
        if closes {
            self.within(deadline, "closing its network", sandbox.close_network())
                .await?
                .map_err(|error| sandbox_failure(error.to_string()))?;
        }
        Ok(())
    }

    fn provider(&self) -> Result<Arc<dyn SandboxProvider>, Stop> {
        let kind = self.runtime.kind.as_str();
        let mut providers = self.config.providers.iter();
        providers.find(|provider| provider.kind() == kind).cloned().ok_or_else(|| {
            sandbox_failure(format!(
                "this node has no {kind} runtime; `polar doctor` on the node says what is missing"
            ))
        })
    }

    /// Runs a command. A sandbox that does not keep the command's timeout is a broken one.
    pub(crate) async fn exec(
        &self,
        sandbox: &dyn Sandbox,
        doing: &str,
        exec: Exec,
    ) -> Result<ExecEnd, Stop> {
        let limit = exec.timeout + EXEC_GRACE;
        let work = tokio::time::timeout(limit, sandbox.exec(exec));
        match self.unless_stopped(work).await? {
            Ok(Ok(end)) => Ok(end),
            Ok(Err(error)) => Err(sandbox_failure(format!("{doing}: {error}"))),
            Err(_) => Err(Stop::failed(
                Side::Sandbox,
                ErrorClass::Timeout,
                format!("{doing}: the sandbox did not end the command at its timeout"),
            )),
        }
    }

    pub(crate) async fn within<T>(
        &self,
        deadline: Deadline,
        doing: &str,
        work: impl Future<Output = T>,
    ) -> Result<T, Stop> {
        self.unless_stopped(tokio::time::timeout(deadline.left(), work))
            .await?
            .map_err(|_| deadline.passed(doing))
    }

    pub(crate) async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, Stop> {
        tokio::select! {
            biased;
            () = self.given_up.cancelled() => Err(Stop::Abandoned),
            done = control::unless_stopped(&self.control, work) => Ok(done?),
        }
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.logs.join(name)
    }
}

pub(crate) fn sandbox_failure(message: String) -> Stop {
    Stop::failed(Side::Sandbox, ErrorClass::Unavailable, message)
}

fn creation_failure(error: &SandboxError) -> Stop {
    let class = if error.retryable { ErrorClass::Unavailable } else { ErrorClass::Invalid };
    Stop::failed(Side::Sandbox, class, format!("the sandbox could not be made: {error}"))
}
