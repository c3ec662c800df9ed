//! The first stage: a sandbox with everything in it, and a proxy session for the harness.

mod placing;

use crate::attempt::Attempt;
use crate::failure::Stop;
use crate::harness::{HarnessAdapter, Installation, RenderInput, RenderedHarness};
use crate::hints;
use crate::report::clip_end;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use polar_gateway::SessionOptions;
use polar_record::SessionHeader;
use polar_sandbox::{Exec, ExecEnd, SandboxError, SandboxProvider, SandboxSpec};
use polar_types::{Encoding, ErrorClass, PrepareStep, RuntimeKind, Side, Stage};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Window assumed when the engine does not say its own.
const USUAL_CONTEXT_WINDOW: u64 = 131_072;

/// When preparing must be over.
#[derive(Clone, Copy)]
struct Deadline {
    at: Instant,
    seconds: f64,
}

impl Deadline {
    fn left(self) -> Duration {
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
        let deadline = Deadline { at: Instant::now() + Duration::from_secs_f64(seconds), seconds };
        let adapter = self.resolve_adapter()?;

        self.waits(Stage::Prepare, "the installation of its harness");
        let install = self.runner.installer.ensure(&adapter);
        let installation = self
            .within(deadline, "installing the harness", install)
            .await?
            .map_err(|error| sandbox_failure(error.to_string()))?;

        self.waits(Stage::Prepare, "its sandbox");
        self.create_sandbox(deadline, installation.as_ref()).await?;
        self.waits(Stage::Prepare, "its set-up steps");
        self.set_up(deadline).await?;
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

    /// Makes the sandbox. Creation is never dropped half-way, since that could leave a
    /// container nobody knows of: when the attempt has to end first, what is being made
    /// is taken down as soon as it is there.
    async fn create_sandbox(
        &mut self,
        deadline: Deadline,
        installation: Option<&Installation>,
    ) -> Result<(), Stop> {
        let provider = self.provider()?;
        let spec = self.sandbox_spec(installation);
        let mut creation = tokio::spawn(async move { provider.create(spec).await });
        match self.within(deadline, "making the sandbox", &mut creation).await {
            Ok(Ok(Ok(sandbox))) => {
                self.sandbox = Some(sandbox);
                Ok(())
            }
            Ok(Ok(Err(error))) => Err(creation_failure(&error)),
            Ok(Err(panic)) => Err(Stop::failed(
                Side::Polar,
                ErrorClass::Internal,
                format!("making the sandbox broke off: {panic}"),
            )),
            Err(stop) => {
                self.unfinished = Some(creation);
                Err(stop)
            }
        }
    }

    fn provider(&self) -> Result<Arc<dyn SandboxProvider>, Stop> {
        let kind = match self.lease.task.runtime.kind {
            RuntimeKind::Local => "local",
            RuntimeKind::Docker => "docker",
        };
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
        }
    }

    async fn set_up(&self, deadline: Deadline) -> Result<(), Stop> {
        for (index, step) in self.lease.task.runtime.prepare.iter().enumerate() {
            let doing = format!("set-up step {}", index + 1);
            match step {
                PrepareStep::WriteFile { path, content, encoding, executable } => {
                    let bytes = decode(content, *encoding)
                        .map_err(|error| sandbox_failure(format!("{doing}, {path}: {error}")))?;
                    let sandbox = self.open_sandbox()?;
                    let write = sandbox.write_file(path, &bytes, *executable);
                    self.within(deadline, &doing, write)
                        .await?
                        .map_err(|error| sandbox_failure(format!("{doing}: {error}")))?;
                }
                PrepareStep::Exec { command, workdir, env } => {
                    self.set_up_command(deadline, &doing, command, workdir.clone(), env).await?;
                }
            }
        }
        Ok(())
    }

    async fn set_up_command(
        &self,
        deadline: Deadline,
        doing: &str,
        command: &str,
        workdir: Option<String>,
        env: &BTreeMap<String, String>,
    ) -> Result<(), Stop> {
        let (stdout, stderr) = (self.folder.log("prepare.out"), self.folder.log("prepare.err"));
        let exec = Exec {
            argv: vec!["sh".to_owned(), "-c".to_owned(), command.to_owned()],
            workdir,
            env: env.clone(),
            stdin: None,
            timeout: deadline.left(),
            stdout: stdout.clone(),
            stderr: stderr.clone(),
            output_limit: self.runner.config.output_limit,
        };
        match self.exec(doing, exec).await? {
            ExecEnd::Exited(0) => Ok(()),
            ExecEnd::Exited(code) => {
                let said = last_output(&stdout, &stderr);
                Err(Stop::failed(
                    Side::Sandbox,
                    ErrorClass::Invalid,
                    format!(
                        "{doing}, `{}`, ended with exit code {code}: {}{}",
                        clip_end(command, 200),
                        clip_end(&said, 1000),
                        hints::failed_command(&self.lease.task.runtime, code, &said)
                    ),
                ))
            }
            ExecEnd::TimedOut => Err(deadline.passed(doing)),
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

    async fn within<T>(
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

fn decode(content: &str, encoding: Encoding) -> Result<Vec<u8>, String> {
    match encoding {
        Encoding::Utf8 => Ok(content.as_bytes().to_vec()),
        Encoding::Base64 => BASE64_STANDARD
            .decode(content.trim())
            .map_err(|error| format!("`content` is not base64 ({error}); encode it with padding")),
    }
}

fn last_output(stdout: &std::path::Path, stderr: &std::path::Path) -> String {
    let text = |path| crate::harness::tail(path).unwrap_or_default();
    format!("{}{}", text(stdout), text(stderr))
}

fn refused(error: &crate::harness::AdapterError) -> Stop {
    Stop::failed(Side::Harness, ErrorClass::Invalid, format!("the harness adapter: {error}"))
}

fn sandbox_failure(message: String) -> Stop {
    Stop::failed(Side::Sandbox, ErrorClass::Unavailable, message)
}

fn creation_failure(error: &SandboxError) -> Stop {
    let class = if error.retryable { ErrorClass::Unavailable } else { ErrorClass::Invalid };
    Stop::failed(Side::Sandbox, class, format!("the sandbox could not be made: {error}"))
}
