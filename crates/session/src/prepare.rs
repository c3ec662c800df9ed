//! The first stage: a sandbox with everything in it, and a proxy session for the harness.

mod placing;
mod set_up;

use crate::attempt::Attempt;
use crate::failure::Stop;
use crate::harness::{HarnessAdapter, Installation, RenderInput, RenderedHarness};
use crate::maker::{Deadline, Recipe, sandbox_failure};
use polar_gateway::SessionOptions;
use polar_record::SessionHeader;
use polar_sandbox::{Mount, SandboxSpec};
use polar_types::{ErrorClass, MountSpec, Side, Stage};
use std::time::Duration;

/// Window assumed when the engine does not say its own.
const USUAL_CONTEXT_WINDOW: u64 = 131_072;

impl Attempt {
    /// Waits until the node has its image, and says which it is.
    pub(crate) async fn get_image(&self) -> Result<Option<String>, Stop> {
        let task = &self.lease.task;
        let Some(image) = &task.runtime.image else { return Ok(None) };
        self.waits(Stage::Prepare, "its image");
        let deadline = Deadline::of_preparing(task.budgets.prepare_seconds);
        self.maker.get_image(image, deadline, "its").await
    }

    /// Prepares everything; what to run comes back. Getting the image, which is the one of this
    /// id, has taken so much of the budget.
    pub(crate) async fn prepare(
        &mut self,
        image_id: Option<String>,
        image: Duration,
    ) -> Result<RenderedHarness, Stop> {
        let deadline = Deadline::of_preparing(self.lease.task.budgets.prepare_seconds).less(image);
        let adapter = self.resolve_adapter()?;

        self.waits(Stage::Prepare, "the installation of its harness");
        let install = self.runner.installer.ensure(&adapter);
        let installation = self
            .within(deadline, "installing the harness", install)
            .await?
            .map_err(|error| sandbox_failure(error.to_string()))?;

        let recipe = Recipe { image_id, ..self.recipe(installation.as_ref()) };
        let taken = self.runner.warm.take(&self.maker, &recipe, deadline).await?;
        self.runner.warm.make_way().await;
        let mut made = match taken {
            Some(made) => made,
            None => {
                let tell = |what: &str| self.waits(Stage::Prepare, what);
                self.maker.make(recipe, deadline, tell).await?
            }
        };
        made.start.image_seconds += image.as_secs_f64();
        made.start.waited_seconds += image.as_secs_f64();
        self.times.sandbox = Some(made.start);
        self.sandbox = Some(made.sandbox);
        self.waits(Stage::Prepare, "a look for its evaluator");
        self.evaluator = self.find_evaluator(self.open_sandbox()?, deadline.left()).await?;

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

    /// What the agent's sandbox is made of.
    fn recipe(&self, installation: Option<&Installation>) -> Recipe {
        Recipe {
            whose: "its",
            spec: self.sandbox_spec(installation),
            image_id: None,
            steps: self.lease.task.runtime.prepare.clone(),
            closes: false,
        }
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
            allowed_hosts: runtime.hosts(),
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
    /// without a way to the gateway, and without writing where agents may write. Each that is
    /// made has a name of its own, so that none waits for the removal of another.
    pub(crate) fn grader_recipe(&self, number: u32) -> Recipe {
        let mut spec = self.sandbox_spec(None);
        spec.mounts.iter_mut().for_each(|mount| mount.read_only = true);
        let folder = self.folder.grader_sandbox(number);
        Recipe {
            whose: "the grader's",
            spec: SandboxSpec {
                name: format!("{}.grader{number}", spec.name),
                gateway_socket: folder.join("no-gateway"),
                storage_mb: spec.storage_mb.map(with_room_to_grade),
                host_dir: folder,
                ..spec
            },
            image_id: None,
            steps: self.lease.task.runtime.prepare.clone(),
            closes: self.lease.task.runtime.leads_out(),
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
}

pub(crate) fn last_output(stdout: &std::path::Path, stderr: &std::path::Path) -> String {
    let text = |path| crate::harness::tail(path).unwrap_or_default();
    format!("{}{}", text(stdout), text(stderr))
}

fn refused(error: &crate::harness::AdapterError) -> Stop {
    Stop::failed(Side::Harness, ErrorClass::Invalid, format!("the harness adapter: {error}"))
}

/// A grader's sandbox holds the work, which may have filled the agent's to the brim, and what
/// evaluating writes besides.
fn with_room_to_grade(storage_mb: u64) -> u64 {
    storage_mb.saturating_add(storage_mb.div_ceil(4))
}

fn mount(spec: &MountSpec) -> Mount {
    Mount {
        source: spec.source.clone().into(),
        target: spec.target().into(),
        read_only: spec.read_only,
    }
}
