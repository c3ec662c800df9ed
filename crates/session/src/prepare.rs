//! The first stage: a sandbox with everything in it, and a proxy session for the harness.

mod placing;
mod set_up;

use crate::attempt::Attempt;
use crate::failure::Stop;
use crate::harness::{HarnessAdapter, Installation, RenderInput, RenderedHarness};
use polar_gateway::SessionOptions;
use polar_record::SessionHeader;
use polar_sandbox::{Mount, Sandbox, SandboxError, SandboxProvider, SandboxSpec};
use polar_types::{ErrorClass, MountSpec, Side, Stage};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Window assumed when the engine does not say its own.
const USUAL_CONTEXT_WINDOW: u64 = 131_072;

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

    pub(crate) fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    fn passed(self, doing: &str) -> Stop {
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

impl Attempt {
    /// Prepares everything; what to run comes back.
    pub(crate) async fn prepare(&mut self) -> Result<RenderedHarness, Stop> {
        let seconds = self.lease.task.budgets.prepare_seconds;
        let deadline = Deadline::of_preparing(seconds);
        let adapter = self.resolve_adapter()?;

        self.waits(Stage::Prepare, "the installation of its harness");
        let install = self.runner.installer.ensure(&adapter);
        let installation = self
            .within(deadline, "installing the harness", install)
            .await?
            .map_err(|error| sandbox_failure(error.to_string()))?;

        self.waits(Stage::Prepare, "its sandbox");
        let spec = self.sandbox_spec(installation.as_ref());
        let made = self.make_sandbox(deadline, "making the sandbox", spec).await?;
        self.sandbox = Some(made.map_err(|error| creation_failure(&error))?);
        self.waits(Stage::Prepare, "its set-up steps");
        let steps = &self.lease.task.runtime.prepare;
        self.set_up(deadline, self.open_sandbox()?, steps).await?;
        self.waits(Stage::Prepare, "a look for its evaluator");
        self.evaluator = self.find_evaluator(deadline.left()).await?;

        self.open_proxy(&adapter).await?;
        let harness = self.render(&adapter, installation.as_ref())?;
        self.waits(Stage::Prepare, "its files");
        self.place(deadline, &harness, installation.as_ref()).await?;
        self.adapter = Some(adapter);
        Ok(harness)
    }

    fn resolve_adapter(&self) -> Result<HarnessAdapter, Stop> {
        let spec = &self.lease.task.harness;
        let adapter = HarnessAdapter::of_spec(spec).map_err(|error| refused(&error))?;
        adapter.resolve_settings(&spec.settings).map_err(|error| refused(&error))?;
        Ok(adapter)
    }

    /// Makes a sandbox. Creation is never dropped half-way, since that could leave a
    /// container nobody knows of: when the attempt has to end first, what is being made
    /// is taken down as soon as it is there.
    pub(crate) async fn make_sandbox(
        &mut self,
        deadline: Deadline,
        doing: &str,
        spec: SandboxSpec,
    ) -> Result<Result<Box<dyn Sandbox>, SandboxError>, Stop> {
        let provider = self.provider()?;
        let mut creation = tokio::spawn(async move { provider.create(spec).await });
        match self.within(deadline, doing, &mut creation).await {
            Ok(Ok(made)) => Ok(made),
            Ok(Err(panic)) => Err(Stop::failed(
                Side::Polar,
                ErrorClass::Internal,
                format!("{doing} broke off: {panic}"),
            )),
            Err(stop) => {
                self.unfinished.push(creation);
                Err(stop)
            }
        }
    }

    fn provider(&self) -> Result<Arc<dyn SandboxProvider>, Stop> {
        let kind = self.lease.task.runtime.kind.as_str();
        let providers = &self.runner.config.providers;
        providers.iter().find(|provider| provider.kind() == kind).cloned().ok_or_else(|| {
            sandbox_failure(format!(
                "this node has no {kind} runtime; `polar doctor` on the node says what is missing"
            ))
        })
    }

    fn sandbox_spec(&self, installation: Option<&Installation>) -> SandboxSpec {
        let config = &self.runner.config;
        let runtime = &self.lease.task.runtime;
        SandboxSpec {
            name: format!("{}.e{}", self.lease.session_id, self.lease.epoch),
            host_dir: self.folder.sandbox(),
            image: runtime.image.clone(),
            workdir: runtime.workdir.clone(),
            env: runtime.env.clone(),
            network: runtime.network,
            gateway_socket: config.gateway_socket.clone(),
            gateway_address: config.gateway_address,
            read_only: installation.map(Installation::shown).unwrap_or_default(),
            cpus: runtime.cpus,
            memory_mb: runtime.memory_mb,
            pids: runtime.pids,
            user: runtime.user.clone(),
            storage_mb: runtime.storage_mb,
            gpus: runtime.gpus,
            mounts: runtime.mounts.iter().map(mount).collect(),
        }
    }

    /// What a grader's sandbox is made of: the same as the agent's, without the harness,
    /// without a way to the gateway, and without writing where agents may write.
    pub(crate) fn grader_spec(&self) -> SandboxSpec {
        let mut spec = self.sandbox_spec(None);
        spec.mounts.iter_mut().for_each(|mount| mount.read_only = true);
        SandboxSpec {
            name: format!("{}.grader", spec.name),
            host_dir: self.folder.grader_sandbox(),
            gateway_socket: self.folder.grader_sandbox().join("no-gateway"),
            ..spec
        }
    }

    async fn open_proxy(&mut self, adapter: &HarnessAdapter) -> Result<(), Stop> {
        let options = SessionOptions {
            header: SessionHeader {
                session_id: self.lease.session_id.clone(),
                task_id: self.lease.task.task_id.clone(),
                group_id: self.lease.group_id.clone(),
                attempt: self.lease.attempt,
                epoch: self.lease.epoch.0,
                created_at_ms: jiff::Timestamp::now().as_millisecond(),
                // The gateway knows it and fills it in.
                engine: serde_json::Value::Null,
                rules: adapter.rules(&self.lease.task.harness.keep),
            },
            journal: self.folder.journal(),
            sampling: self.lease.task.sampling.clone(),
            history: self.lease.task.history,
        };
        let gateway = self.runner.config.gateway.clone();
        let opened = tokio::task::spawn_blocking(move || gateway.open_session(options)).await;
        let failure = |error: String| Stop::failed(Side::Polar, ErrorClass::Internal, error);
        match opened {
            Ok(Ok(proxy)) => {
                self.proxy = Some(proxy);
                Ok(())
            }
            Ok(Err(error)) => Err(failure(format!("the proxy session did not open: {error}"))),
            Err(error) => Err(failure(format!("the proxy session did not open: {error}"))),
        }
    }

    fn render(
        &self,
        adapter: &HarnessAdapter,
        installation: Option<&Installation>,
    ) -> Result<RenderedHarness, Stop> {
        let sandbox = self.open_sandbox()?;
        let task = &self.lease.task;
        let window = self.runner.config.gateway.engine_info().context_window;
        let window = window.unwrap_or(USUAL_CONTEXT_WINDOW);
        let secret = self.proxy.as_ref().map(|proxy| proxy.secret().to_owned());
        adapter
            .render(RenderInput {
                base_url: sandbox.gateway_url(),
                api_key: &secret.unwrap_or_default(),
                model: task.harness.model.as_deref(),
                instruction: &task.instruction,
                command: task.harness.command.as_deref().unwrap_or_default(),
                home: sandbox.home(),
                workdir: sandbox.workdir(),
                install: installation.map(|i| i.folder.as_path()),
                session_id: self.lease.session_id.as_str(),
                context_window: window,
                max_output_tokens: task.sampling.max_tokens.unwrap_or((window / 4).max(1)),
                mcp_servers: &task.harness.mcp_servers,
                skills: &task.harness.skills,
                settings: &task.harness.settings,
            })
            .map(|mut harness| {
                // What the task says goes over what the adapter says.
                harness.env.extend(task.harness.env.clone());
                harness
            })
            .map_err(|error| refused(&error))
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
}

pub(crate) fn last_output(stdout: &std::path::Path, stderr: &std::path::Path) -> String {
    let text = |path| crate::harness::tail(path).unwrap_or_default();
    format!("{}{}", text(stdout), text(stderr))
}

fn refused(error: &crate::harness::AdapterError) -> Stop {
    Stop::failed(Side::Harness, ErrorClass::Invalid, format!("the harness adapter: {error}"))
}

pub(crate) fn sandbox_failure(message: String) -> Stop {
    Stop::failed(Side::Sandbox, ErrorClass::Unavailable, message)
}

pub(crate) fn creation_failure(error: &SandboxError) -> Stop {
    let class = if error.retryable { ErrorClass::Unavailable } else { ErrorClass::Invalid };
    Stop::failed(Side::Sandbox, class, format!("the sandbox could not be made: {error}"))
}

fn mount(spec: &MountSpec) -> Mount {
    Mount {
        source: spec.source.clone().into(),
        target: spec.target().into(),
        read_only: spec.read_only,
    }
}
