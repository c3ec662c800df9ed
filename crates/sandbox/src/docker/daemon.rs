//! The Docker daemon: what is asked of it, how long that may take, and what its errors
//! mean for whoever reads them.

use super::container::WITHOUT_CGROUPS;
use super::engine::ContainerEngine;
use crate::{SandboxError, processes};
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::{ContainerCreateBody, ExecConfig, ImageInspect, NetworkDisconnectRequest};
use bollard::query_parameters::{
    CreateContainerOptions, CreateImageOptions, DownloadFromContainerOptions,
    InspectContainerOptions, ListContainersOptions, RemoveContainerOptions,
    RestartContainerOptions, TopOptions, UploadToContainerOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use rustix::process::Pid;
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;
use tokio::io::AsyncWrite;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};

/// How long the daemon may take to answer. It is slow when many containers start.
const ANSWER: Duration = Duration::from_secs(120);
/// How many containers are made, started or removed at a time. More at once make the
/// daemon slower for each, until it fails.
const PLACES: usize = 8;
/// The daemon names containers itself; labels say whose they are.
const NO_OPTIONS: Option<CreateContainerOptions> = None;
/// How long getting an image may take.
const PULL: Duration = Duration::from_secs(3600);
/// How often removing is tried, and the pause after the first failure, which doubles.
const REMOVALS: u32 = 6;
const REMOVAL_PAUSE: Duration = Duration::from_millis(250);

/// A command in a container, as attached to.
pub(super) struct Attached {
    pub(super) id: String,
    pub(super) output: Pin<Box<dyn Stream<Item = Result<Output, SandboxError>> + Send>>,
    pub(super) input: Pin<Box<dyn AsyncWrite + Send>>,
}

/// A piece of what a command prints.
pub(super) enum Output {
    Stdout(Bytes),
    Stderr(Bytes),
}

/// A command to be started in a container.
pub(super) struct Start {
    pub(super) argv: Vec<String>,
    pub(super) env: Vec<String>,
    pub(super) workdir: Option<String>,
    pub(super) stdin: bool,
}

#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) engine: ContainerEngine,
    socket: PathBuf,
    places: Semaphore,
    client: OnceCell<Docker>,
}

impl Daemon {
    pub(super) fn new(engine: ContainerEngine, socket: PathBuf) -> Daemon {
        Daemon { engine, socket, places: Semaphore::new(PLACES), client: OnceCell::new() }
    }

    pub(super) async fn check(&self) -> Result<(), SandboxError> {
        let action = format!("check {}", self.engine.name());
        let client = self.client(&action).await?;
        self.ask(&action, client.ping()).await.map(drop)
    }

    /// Fields that it surely can't hold to, each with the reason. The rest is found out when a
    /// sandbox is made.
    pub(super) async fn lacking(&self) -> Result<Vec<(&'static str, String)>, SandboxError> {
        let action = format!("ask {} what it can do", self.engine.name());
        let info = self.ask(&action, self.client(&action).await?.info()).await?;
        let mut lacking = Vec::new();
        if self.engine == ContainerEngine::Podman {
            for (field, is_there) in [
                ("cpus", info.cpu_cfs_quota),
                ("memory_mb", info.memory_limit),
                ("pids", info.pids_limit),
            ] {
                if is_there == Some(false) {
                    lacking.push((field, WITHOUT_CGROUPS.to_owned()));
                }
            }
        }
        let names = info.runtimes.unwrap_or_default();
        let has_nvidia = names.keys().any(|name| name.contains("nvidia"))
            || Path::new("/dev/nvidiactl").exists();
        if self.engine == ContainerEngine::Docker && !has_nvidia {
            let why = "it has no NVIDIA GPU; use a node with one and NVIDIA's container toolkit";
            lacking.push(("gpus", why.to_owned()));
        }
        Ok(lacking)
    }

    /// Makes a container; gets its image first when it isn't on this machine.
    pub(super) async fn create(&self, body: ContainerCreateBody) -> Result<String, SandboxError> {
        let action = "make container";
        let client = self.client(action).await?;
        self.get_image(body.image.as_deref().unwrap_or_default()).await?;
        let _turn = self.turn(action).await?;
        let made = self.ask(action, client.create_container(NO_OPTIONS, body)).await?;
        Ok(made.id)
    }

    pub(super) async fn start(&self, container: &str) -> Result<(), SandboxError> {
        let action = "start container";
        let client = self.client(action).await?;
        let _turn = self.turn(action).await?;
        let started = self.ask(action, client.start_container(container, None)).await;
        started.map_err(|mut problem| {
            if problem.message.contains("/bin/sh") {
                problem.message += "; sandboxes need an image with `/bin/sh`";
                problem.retryable = false;
            }
            if problem.message.contains("device driver") {
                problem.message +=
                    "; `gpus` needs NVIDIA's container toolkit on this node; or leave it out";
                problem.retryable = false;
            }
            problem
        })
    }

    /// Ends every process of a container and starts it again, with its files.
    pub(super) async fn restart(&self, container: &str) -> Result<(), SandboxError> {
        let action = "end processes in container";
        let client = self.client(action).await?;
        let options = RestartContainerOptions { t: Some(0), ..Default::default() };
        let _turn = self.turn(action).await?;
        self.ask(action, client.restart_container(container, Some(options))).await
    }

    /// The first process, as numbered on this machine.
    pub(super) async fn first_process(&self, container: &str) -> Result<u32, SandboxError> {
        let action = "look at container";
        let client = self.client(action).await?;
        let found = self.ask(action, client.inspect_container(container, None)).await?;
        let pid = found.state.and_then(|state| u32::try_from(state.pid?).ok());
        pid.filter(|pid| *pid > 0)
            .ok_or_else(|| SandboxError::retryable(action, "it is not running"))
    }

    /// Bytes that a container's files hold beyond its image's.
    pub(super) async fn size(&self, container: &str) -> Result<u64, SandboxError> {
        let action = "measure container";
        let client = self.client(action).await?;
        let options = InspectContainerOptions { size: true };
        let found = self.ask(action, client.inspect_container(container, Some(options))).await?;
        Ok(found.size_rw.and_then(|size| u64::try_from(size).ok()).unwrap_or_default())
    }

    /// Living processes, as numbered on this machine.
    pub(super) async fn processes(&self, container: &str) -> Result<HashSet<u32>, SandboxError> {
        let action = "list processes in container";
        let client = self.client(action).await?;
        let options = TopOptions { ps_args: self.engine.process_columns().into() };
        let top = self.ask(action, client.top_processes(container, Some(options))).await?;
        let rows = top.processes.unwrap_or_default();
        let living = |row: &Vec<String>| {
            let dead = row.get(1).is_some_and(|state| state.starts_with(['Z', 'X']));
            (!dead).then(|| row.first()?.parse().ok()).flatten()
        };
        Ok(rows.iter().filter_map(living).collect())
    }

    pub(super) async fn exec(
        &self,
        container: &str,
        start: Start,
    ) -> Result<Attached, SandboxError> {
        let action = "start command";
        let client = self.client(action).await?;
        let config = ExecConfig {
            attach_stdin: Some(start.stdin),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(start.argv),
            env: Some(start.env),
            working_dir: start.workdir,
            ..Default::default()
        };
        let id = self.ask(action, client.create_exec(container, config)).await?.id;
        let options = StartExecOptions { output_capacity: Some(64 << 10), ..Default::default() };
        let started = self.ask(action, client.start_exec(&id, Some(options))).await?;
        let StartExecResults::Attached { output, input } = started else {
            return Err(SandboxError::retryable(action, "the daemon did not attach"));
        };
        let output = output.filter_map(async |piece| match piece {
            Ok(LogOutput::StdErr { message }) => Some(Ok(Output::Stderr(message))),
            Ok(LogOutput::StdOut { message } | LogOutput::Console { message }) => {
                Some(Ok(Output::Stdout(message)))
            }
            Ok(LogOutput::StdIn { .. }) => None,
            // Podman hangs up on a command that ended without reading all its input. What
            // had been printed was read before.
            Err(Error::IOError { err }) if err.kind() == ErrorKind::ConnectionReset => None,
            Err(problem) => Some(Err(explain("read output", problem))),
        });
        Ok(Attached { id, output: Box::pin(output), input })
    }

    /// The code a command ended with; none while it runs.
    pub(super) async fn exit_code(&self, exec: &str) -> Result<Option<i32>, SandboxError> {
        let action = "look at command";
        let client = self.client(action).await?;
        let found = self.ask(action, client.inspect_exec(exec)).await?;
        if found.running == Some(true) {
            return Ok(None);
        }
        Ok(found.exit_code.map(|code| i32::try_from(code).unwrap_or(i32::MAX)))
    }

    /// The process of a command, as numbered on this machine, if it still lives.
    pub(super) async fn living_process(&self, exec: &str) -> Result<Option<Pid>, SandboxError> {
        let action = "look at command";
        let client = self.client(action).await?;
        let found = self.ask(action, client.inspect_exec(exec)).await?;
        let pid = found.pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        Ok(pid.filter(|pid| processes::is_there(*pid)))
    }

    /// Unpacks an archive at the root, as root.
    pub(super) async fn upload(
        &self,
        container: &str,
        archive: Vec<u8>,
    ) -> Result<(), SandboxError> {
        let action = "put files into container";
        let client = self.client(action).await?;
        let options = UploadToContainerOptions { path: "/".into(), ..Default::default() };
        let archive = bollard::body_full(archive.into());
        self.ask(action, client.upload_to_container(container, Some(options), archive)).await
    }

    /// A folder as an archive.
    pub(super) async fn download(
        &self,
        container: &str,
        path: String,
    ) -> Result<impl Stream<Item = std::io::Result<Bytes>> + Send + 'static, SandboxError> {
        let client = self.client("read files of container").await?.clone();
        let container = container.to_owned();
        // Owns the client, since the stream outlives this call.
        let (pieces, stream) = tokio::sync::mpsc::channel(4);
        tokio::spawn(async move {
            let options = DownloadFromContainerOptions { path };
            let download = client.download_from_container(&container, Some(options));
            let mut download = std::pin::pin!(download);
            loop {
                let piece = match timeout(ANSWER, download.next()).await {
                    Ok(Some(piece)) => piece.map_err(not_read),
                    Ok(None) => return,
                    Err(problem) => Err(problem.into()),
                };
                if pieces.send(piece).await.is_err() {
                    return;
                }
            }
        });
        Ok(futures_util::stream::unfold(stream, async |mut stream| {
            Some((stream.recv().await?, stream))
        }))
    }

    /// Containers with these labels: id and name of the sandbox.
    pub(super) async fn list(
        &self,
        labels: &[(&str, &str)],
    ) -> Result<Vec<(String, String)>, SandboxError> {
        let action = "list containers";
        let client = self.client(action).await?;
        let labels = labels.iter().map(|(label, value)| format!("{label}={value}")).collect();
        let filters = Some(HashMap::from([("label".to_owned(), labels)]));
        let options = ListContainersOptions { all: true, filters, ..Default::default() };
        let found = self.ask(action, client.list_containers(Some(options))).await?;
        let named = found.into_iter().filter_map(|container| {
            Some((container.id?, container.labels?.remove(super::SANDBOX_LABEL)?))
        });
        Ok(named.collect())
    }

    /// The network that leads out.
    pub(super) async fn open_network(&self) -> Result<&'static str, SandboxError> {
        let action = "look at container engine";
        let rootless = std::fs::metadata(&self.socket).is_ok_and(|found| found.uid() != 0);
        if self.engine == ContainerEngine::Docker || !rootless {
            return Ok("bridge");
        }
        let client = self.client(action).await?;
        let version = self.ask(action, client.version()).await?.version.unwrap_or_default();
        let major = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
        Ok(if major >= 5 { "pasta" } else { "slirp4netns" })
    }

    /// Takes a container off the engine's default bridge; its own loopback stays.
    pub(super) async fn disconnect(&self, container: &str) -> Result<(), SandboxError> {
        let action = "close network of container";
        let client = self.client(action).await?;
        let request =
            NetworkDisconnectRequest { container: container.to_owned(), force: Some(true) };
        self.ask(action, client.disconnect_network("bridge", request)).await
    }

    /// Kills and removes a container with its anonymous volumes. Fine when it is gone.
    pub(super) async fn remove(&self, container: &str) -> Result<(), SandboxError> {
        let action = "remove container";
        let client = self.client(action).await?;
        let _turn = self.turn(action).await?;
        let mut pause = REMOVAL_PAUSE;
        let mut tried = 0;
        loop {
            let options = RemoveContainerOptions { force: true, v: true, link: false };
            let removal = client.remove_container(container, Some(options));
            let problem = match timeout(ANSWER, removal).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(Error::DockerResponseServerError { status_code: 404, .. })) => {
                    return Ok(());
                }
                // 409: somebody removes it already; the next try sees it gone.
                Ok(Err(problem)) => explain(action, problem),
                Err(_) => self.late(action),
            };
            tried += 1;
            if tried == REMOVALS {
                return Err(problem);
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// Waits for one of the few places for what is hard on the daemon.
    async fn turn(&self, action: &str) -> Result<SemaphorePermit<'_>, SandboxError> {
        self.places.acquire().await.map_err(|problem| SandboxError::retryable(action, problem))
    }

    /// Id of an image on this machine; nothing while it is not there.
    pub(super) async fn image_id(&self, image: &str) -> Result<Option<String>, SandboxError> {
        Ok(self.inspect_image(image).await?.and_then(|found| found.id))
    }

    async fn inspect_image(&self, image: &str) -> Result<Option<ImageInspect>, SandboxError> {
        let action = format!("look at image {image:?}");
        let client = self.client(&action).await?;
        match timeout(ANSWER, client.inspect_image(image)).await {
            Ok(Ok(found)) => Ok(Some(found)),
            Ok(Err(Error::DockerResponseServerError { status_code: 404, .. })) => Ok(None),
            Ok(Err(problem)) => Err(explain(&action, problem)),
            Err(_) => Err(self.late(&action)),
        }
    }

    /// Pulls an image unless it is on this machine.
    pub(super) async fn get_image(&self, image: &str) -> Result<(), SandboxError> {
        if self.inspect_image(image).await?.is_some() {
            return Ok(());
        }
        let action = format!("get image {image:?}");
        let client = self.client(&action).await?;
        tracing::info!(image, "image is not on this machine, pulling it");
        let tagged = image.rsplit('/').next().is_some_and(|name| name.contains([':', '@']));
        let tag = (!tagged).then(|| "latest".to_owned());
        let from_image = Some(image.to_owned());
        let options = CreateImageOptions { from_image, tag, ..Default::default() };
        let mut pull = client.create_image(Some(options), None, None);
        let pulled = async {
            while let Some(step) = pull.next().await {
                step?;
            }
            Ok::<(), Error>(())
        };
        let problem = match timeout(PULL, pulled).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(problem)) => explain(&action, problem),
            Err(_) => self.late(&action),
        };
        let message = format!(
            "it is not on this machine and could not be pulled: {}; `{program} pull {image}` where \
             the network allows it, or `{program} load --input FILE`, brings it here",
            problem.message,
            program = self.engine.kind()
        );
        Err(SandboxError { message, ..problem })
    }

    /// The client, in the version that the daemon speaks.
    async fn client(&self, action: &str) -> Result<&Docker, SandboxError> {
        let connect = async {
            let socket = self.socket.display().to_string();
            let client = Docker::connect_with_unix(&socket, ANSWER.as_secs(), API_DEFAULT_VERSION)
                .map_err(|problem| self.unreachable(action, &problem))?;
            let client = timeout(ANSWER, client.negotiate_version()).await;
            client.map_err(|_| self.late(action))?.map_err(|problem| match problem {
                Error::RequestTimeoutError => self.late(action),
                Error::DockerResponseServerError { .. } => explain(action, problem),
                _ => self.unreachable(action, &problem),
            })
        };
        self.client.get_or_try_init(|| connect).await
    }

    async fn ask<T>(
        &self,
        action: &str,
        question: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, SandboxError> {
        match timeout(ANSWER, question).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Error::RequestTimeoutError)) => Err(self.late(action)),
            Ok(Err(problem @ Error::DockerResponseServerError { .. })) => {
                Err(explain(action, problem))
            }
            Ok(Err(problem)) => Err(self.unreachable(action, &problem)),
            Err(_) => Err(self.late(action)),
        }
    }

    fn late(&self, action: &str) -> SandboxError {
        let (name, restart) = (self.engine.name(), self.engine.restart());
        let message = format!("the {name} daemon does not answer in time; {restart}");
        SandboxError::retryable(action, message)
    }

    fn unreachable(&self, action: &str, problem: &Error) -> SandboxError {
        let socket = self.socket.display();
        let denied = std::os::unix::net::UnixStream::connect(&self.socket)
            .is_err_and(|problem| problem.kind() == ErrorKind::PermissionDenied);
        let what = if denied { self.engine.allow() } else { self.engine.get() };
        let name = self.engine.name();
        let message = format!("no {name} daemon at {socket}: {}; {what}", with_causes(problem));
        SandboxError::retryable(action, message)
    }
}

/// Files that are not there are the container's own affair; all else is between it and us.
fn not_read(problem: Error) -> std::io::Error {
    match &problem {
        Error::DockerResponseServerError { status_code: 400..=499, message }
            if !message.contains("No such container") =>
        {
            std::io::Error::other(problem)
        }
        _ => std::io::Error::new(ErrorKind::ConnectionAborted, with_causes(&problem)),
    }
}

fn explain(action: &str, problem: Error) -> SandboxError {
    match problem {
        Error::DockerResponseServerError { status_code, message } => {
            // Below 500 the request is wrong, except conflicts and too many requests.
            let retryable = status_code >= 500 || matches!(status_code, 409 | 429);
            SandboxError { action: action.into(), message, retryable }
        }
        other => SandboxError::retryable(action, with_causes(&other)),
    }
}

fn with_causes(problem: &dyn std::error::Error) -> String {
    let mut text = problem.to_string();
    let mut cause = problem.source();
    while let Some(problem) = cause {
        let more = problem.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = problem.source();
    }
    text
}
