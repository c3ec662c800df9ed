//! One container: how it is made, what may be in it between commands, and how everything
//! else in it is ended.

use super::daemon::{Attached, Daemon, Output, Start};
use super::engine::ContainerEngine;
use super::way_in::WayIn;
use super::{DockerConfig, NODE_LABEL, OWNER_LABEL, SANDBOX_LABEL, look};
use crate::bridge::{Bridge, Way};
use crate::cgroups::Found;
use crate::limits::not_here;
use crate::{SandboxError, SandboxSpec, processes};
use bollard::models::{
    ContainerCreateBody, DeviceRequest, HostConfig, HostConfigLogConfig, Mount, MountType,
    ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};
use futures_util::StreamExt;
use polar_types::Network;
use rustix::process::Pid;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// Home folder inside.
pub(super) const HOME: &str = "/home/polar";
/// The first process. Its `sleep` may be killed, it itself can't; while it waits it reaps
/// whatever lost its parent. Images without `sleep` get one that waits for input that
/// never comes.
const HOLD: &str = "\
    if command -v sleep >/dev/null 2>&1; then \
        while :; do sleep 2147483647 & wait $!; done; \
    else \
        while :; do read -r _; done; \
    fi";
/// Why Podman leaves limits out.
pub(super) const WITHOUT_CGROUPS: &str = "Podman without root makes cgroups only with their version 2, \
     delegated to its user as by a login with systemd; docker holds to it anywhere";
/// How long the first process of a container whose others were killed may live on.
const DEATH: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);
/// How long looking around may take.
const LOOKING: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Container {
    pub(super) daemon: Arc<Daemon>,
    pub(super) id: String,
    way_in: WayIn,
    pub(super) way: Way,
    /// Commands on their way.
    running: AtomicUsize,
    /// Held while processes are ended or the container starts.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The first process.
    first: u32,
    /// It and what it started itself.
    own: HashSet<u32>,
    bridge: Option<Bridge>,
    /// Where the kernel counts what it was killed for.
    group: Found,
    /// There may be other processes.
    suspect: bool,
}

impl Container {
    /// Makes and starts it, with its folders. What is made in part is left to the caller,
    /// who finds it by its labels.
    pub(super) async fn start(
        daemon: Arc<Daemon>,
        config: &DockerConfig,
        spec: &SandboxSpec,
        way_in: WayIn,
    ) -> Result<Container, SandboxError> {
        let network = match spec.network {
            Network::None => "none",
            Network::Open => daemon.open_network().await?,
        };
        let mut body = body(config, spec, network)?;
        if let Some(mounts) = body.host_config.as_mut().and_then(|host| host.mounts.as_mut()) {
            mounts.extend(way_in.mounts());
        }
        let id = daemon.create(body).await?;
        let container = Container {
            daemon,
            id,
            way_in,
            way: Way::of(spec, config.gateway_port),
            running: AtomicUsize::new(0),
            state: Mutex::default(),
        };
        let mut state = container.state.lock().await;
        container.daemon.start(&container.id).await?;
        container.started(&mut state).await?;
        // Without root Podman leaves out what it can't do.
        if config.engine == ContainerEngine::Podman
            && let Some(field) = state.group.missing(spec)
        {
            return Err(not_here(field, WITHOUT_CGROUPS));
        }
        drop(state);
        container.make_folders(&[&spec.workdir, HOME]).await?;
        Ok(container)
    }

    /// Starts a command, after what an earlier one left is gone.
    pub(super) async fn exec(
        self: &Arc<Self>,
        start: Start,
    ) -> Result<(Attached, Command), SandboxError> {
        let mut state = self.state.lock().await;
        self.end_leftovers(&mut state).await?;
        state.suspect = true;
        let command = Command::new(self.clone());
        drop(state);
        let attached = self.daemon.exec(&self.id, start).await?;
        Ok((attached, command))
    }

    /// Ends what is there beside the container's own processes, unless a command runs:
    /// then the last of them sees to it.
    async fn end_leftovers(&self, state: &mut State) -> Result<(), SandboxError> {
        if !state.suspect || self.running.load(Ordering::Acquire) > 0 {
            return Ok(());
        }
        match self.daemon.processes(&self.id).await {
            Ok(processes) if processes.is_subset(&state.own) => {
                state.suspect = false;
                Ok(())
            }
            // Restarting also helps when it isn't running any more.
            _ => self.end_all(state).await,
        }
    }

    /// How many of its processes were killed so far for want of memory.
    pub(super) async fn memory_kills(&self) -> u64 {
        self.state.lock().await.group.memory_kills()
    }

    /// Whether its first process ends or is gone although nobody here ended it. Whoever kills
    /// processes one by one may come to it last.
    pub(super) async fn was_killed(&self) -> bool {
        let first = self.state.lock().await.first;
        let Some(first) = i32::try_from(first).ok().and_then(Pid::from_raw) else { return true };
        let ending = async {
            while !processes::is_ending(first) {
                tokio::time::sleep(PAUSE).await;
            }
        };
        timeout(DEATH, ending).await.is_ok()
    }

    /// Ends everything that commands may have left, whether others run or not.
    pub(super) async fn end_suspects(&self) -> Result<(), SandboxError> {
        let mut state = self.state.lock().await;
        if state.suspect { self.end_all(&mut state).await } else { Ok(()) }
    }

    async fn end_all(&self, state: &mut State) -> Result<(), SandboxError> {
        state.suspect = true;
        state.bridge = None;
        self.daemon.restart(&self.id).await?;
        self.started(state).await?;
        state.suspect = false;
        Ok(())
    }

    /// Learns what the container's own processes are and opens the way to the gateway.
    async fn started(&self, state: &mut State) -> Result<(), SandboxError> {
        let first = self.daemon.first_process(&self.id).await?;
        state.own = self.daemon.processes(&self.id).await?;
        state.own.insert(first);
        state.first = first;
        state.group = Found::of(first);
        let action = "connect container to gateway";
        let listener = self.way_in.listen(&self.daemon, &self.id, first, self.way.port);
        let listener = listener.await?;
        let bridge = Bridge::start(listener, self.way.clone());
        state.bridge = Some(bridge.map_err(|problem| SandboxError::retryable(action, problem))?);
        Ok(())
    }

    /// Makes folders that the image lacks, for the user that commands run as.
    async fn make_folders(&self, folders: &[&str]) -> Result<(), SandboxError> {
        let argv = ["/bin/sh", "-c", look::SCRIPT, "sh"].iter().chain(folders);
        let argv = argv.map(|argument| (*argument).to_owned()).collect();
        let start = Start { argv, env: vec![], workdir: Some("/".into()), stdin: false };
        let mut attached = self.daemon.exec(&self.id, start).await?;
        let read = async {
            let mut said = vec![];
            while let Some(piece) = attached.output.next().await {
                let (Output::Stdout(bytes) | Output::Stderr(bytes)) = piece?;
                said.extend_from_slice(&bytes);
            }
            Ok::<_, SandboxError>(String::from_utf8_lossy(&said).into_owned())
        };
        let said = timeout(LOOKING, read)
            .await
            .map_err(|_| SandboxError::retryable(look::ACTION, "no answer in time"))??;
        let look::Seen { owner, missing } = look::seen(&said, folders)?;
        if missing.is_empty() {
            return Ok(());
        }
        let archive = super::snapshot::folders(&missing, owner)
            .map_err(|problem| SandboxError::new(look::ACTION, problem))?;
        self.daemon.upload(&self.id, archive).await
    }
}

/// A command on its way in a container. Dropped before [`Command::end`], it ends
/// everything in the container.
#[derive(Debug)]
pub(super) struct Command {
    container: Option<Arc<Container>>,
}

impl Command {
    fn new(container: Arc<Container>) -> Command {
        container.running.fetch_add(1, Ordering::AcqRel);
        Command { container: Some(container) }
    }

    /// The command ended by itself: ends what it left.
    pub(super) async fn end(mut self) -> Result<(), SandboxError> {
        let Some(container) = self.container.take() else { return Ok(()) };
        container.running.fetch_sub(1, Ordering::AcqRel);
        let mut state = container.state.lock().await;
        container.end_leftovers(&mut state).await
    }

    /// The command has to end: ends everything in the container.
    pub(super) async fn kill(mut self) -> Result<(), SandboxError> {
        let Some(container) = &self.container else { return Ok(()) };
        let mut state = container.state.lock().await;
        container.end_all(&mut state).await?;
        drop(state);
        container.running.fetch_sub(1, Ordering::AcqRel);
        self.container = None;
        Ok(())
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        let Some(container) = self.container.take() else { return };
        container.running.fetch_sub(1, Ordering::AcqRel);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            if let Err(problem) = container.end_suspects().await {
                tracing::warn!(%problem, "the next command tries again");
            }
        });
    }
}

fn body(
    config: &DockerConfig,
    spec: &SandboxSpec,
    network: &str,
) -> Result<ContainerCreateBody, SandboxError> {
    let Some(image) = spec.image.clone().filter(|image| !image.is_empty()) else {
        let message = format!(
            "a {} sandbox needs an `image`; for example \"debian:12\"",
            config.engine.name()
        );
        return Err(SandboxError::new("make container", message));
    };
    if !spec.workdir.starts_with('/') || spec.workdir.split('/').any(|part| part == "..") {
        let message = format!(
            "`workdir` {:?} must be an absolute path without `..`; for example \"/workspace\"",
            spec.workdir
        );
        return Err(SandboxError::new("make container", message));
    }
    let owner = config.owner();
    let labels = [(NODE_LABEL, &config.node), (OWNER_LABEL, &owner), (SANDBOX_LABEL, &spec.name)];
    let labels = labels.map(|(label, value)| (label.to_owned(), value.clone()));
    Ok(ContainerCreateBody {
        image: Some(image),
        entrypoint: Some(vec!["/bin/sh".into(), "-c".into(), HOLD.into()]),
        cmd: Some(vec![]),
        working_dir: Some("/".into()),
        hostname: Some("sandbox".into()),
        open_stdin: Some(true),
        user: spec.user.clone(),
        labels: Some(HashMap::from(labels)),
        host_config: Some(host_config(config, spec, network)),
        ..Default::default()
    })
}

fn ulimits(spec: &SandboxSpec) -> Vec<ResourcesUlimits> {
    let limit = |name: &str, most: i64| ResourcesUlimits {
        name: Some(name.into()),
        soft: Some(most),
        hard: Some(most),
    };
    // A crash must not leave its memory in the work folder.
    let mut limits = vec![limit("core", 0)];
    // No file gets longer than all together may be.
    let bytes = spec.storage_mb.map(|mb| i64::try_from(mb.saturating_mul(1 << 20)));
    limits.extend(bytes.map(|bytes| limit("fsize", bytes.unwrap_or(i64::MAX))));
    limits
}

/// Shows a host path read-only at a path inside.
pub(super) fn read_only(host: &Path, inside: &Path) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(host.display().to_string()),
        target: Some(inside.display().to_string()),
        read_only: Some(true),
        ..Default::default()
    }
}

fn host_config(config: &DockerConfig, spec: &SandboxSpec, network: &str) -> HostConfig {
    let memory = spec.memory_mb.and_then(|mb| i64::try_from(mb.saturating_mul(1 << 20)).ok());
    let shown = spec.read_only.iter().map(|folder| read_only(folder, folder));
    let asked = spec.mounts.iter().map(|mount| Mount {
        read_only: Some(mount.read_only),
        ..read_only(&mount.source, &mount.target)
    });
    HostConfig {
        network_mode: Some(network.into()),
        mounts: Some(shown.chain(asked).collect()),
        cap_drop: Some(vec!["ALL".into()]),
        security_opt: Some(vec!["no-new-privileges".into()]),
        pids_limit: Some(i64::from(spec.pids.unwrap_or(config.pids))),
        ulimits: Some(ulimits(spec)),
        device_requests: spec.gpus.map(|count| {
            vec![DeviceRequest {
                count: Some(i64::from(count)),
                capabilities: Some(vec![vec!["gpu".into()]]),
                ..Default::default()
            }]
        }),
        memory,
        // No swap beside it.
        memory_swap: memory,
        nano_cpus: spec.cpus.map(|cpus| (cpus * 1e9) as i64),
        // It prints nothing.
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        ..Default::default()
    }
}
