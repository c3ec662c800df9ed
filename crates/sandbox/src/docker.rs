//! Sandboxes that are containers of a Docker daemon on this machine, or of Podman, which
//! speaks Docker's language.
//!
//! A container's first process is a shell that only waits and reaps. It can't be killed
//! from inside, and it is the only thing that may be there between commands: when a
//! command ends, the daemon is asked which processes the container has, and if there are
//! others, the container is restarted, which ends them all and keeps its files. That
//! works whatever the processes did to hide, on every image that has `/bin/sh`, and
//! needs no right to signal anything. `docker exec` alone wouldn't do: ending its client
//! leaves the command running.
//!
//! So commands that run at the same time in one container share their fate in one case:
//! when one of them is cut off by its timeout, or dropped, the others are ended as well.
//!
//! The network is the container's own loopback, bridged to the gateway, and with an open
//! network the engine's default bridge beside it.

mod container;
mod daemon;
mod engine;
mod look;
mod sandbox;
mod snapshot;
mod way_in;

pub use engine::ContainerEngine;

use crate::mounts::{self, AllowedMount};
use crate::program::Program;
use crate::registry::{Entry, Registry, owner};
use crate::{Sandbox, SandboxError, SandboxProvider, SandboxSpec};
use async_trait::async_trait;
use container::Container;
use daemon::Daemon;
use polar_types::RuntimeOffer;
use sandbox::DockerSandbox;
use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use way_in::WayIn;

/// Label with the name of the node that made a container.
pub(crate) const NODE_LABEL: &str = "polar.node";
/// Label that keeps nodes of one name apart: the name with the node's state folder.
pub(crate) const OWNER_LABEL: &str = "polar.owner";
/// Label with the name of the sandbox that a container is.
pub(crate) const SANDBOX_LABEL: &str = "polar.sandbox";

/// How to make Docker sandboxes, or Podman's.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// Who makes the containers.
    pub engine: ContainerEngine,
    /// Name of the node. Sweeping touches only what carries this name and `state_dir`.
    pub node: String,
    /// Folder for what the provider must remember across restarts. One process's at a
    /// time.
    pub state_dir: PathBuf,
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Port on a container's own loopback that leads to the gateway.
    pub gateway_port: u16,
    /// A binary that calls [`helper::run_if_called`](crate::helper::run_if_called) first in
    /// its `main`, such as `polar`, to be run in containers to reach their network. Root
    /// needs none, since it can enter a network itself. Found by itself when it is this
    /// program, or a `polar-sandbox-helper` or `polar` beside it or one folder up.
    pub helper: Option<PathBuf>,
    /// Whether to use the helper; it is, unless this process is root.
    pub use_helper: bool,
    /// Most processes of a container whose spec says nothing.
    pub pids: u32,
    /// What tasks may have shown of this machine.
    pub allowed_mounts: Vec<AllowedMount>,
}

impl DockerConfig {
    /// The daemon that the `docker` command of this user speaks to, if it is on this
    /// machine, with everything else as usual.
    pub fn new(node: impl Into<String>, state_dir: impl Into<PathBuf>) -> DockerConfig {
        DockerConfig::of(ContainerEngine::Docker, node, state_dir)
    }

    /// The service that the `podman` command of this user speaks to, without root unless
    /// this user is root, with everything else as usual.
    pub fn podman(node: impl Into<String>, state_dir: impl Into<PathBuf>) -> DockerConfig {
        DockerConfig::of(ContainerEngine::Podman, node, state_dir)
    }

    fn of(
        engine: ContainerEngine,
        node: impl Into<String>,
        state_dir: impl Into<PathBuf>,
    ) -> DockerConfig {
        DockerConfig {
            engine,
            node: node.into(),
            state_dir: state_dir.into(),
            socket: engine.usual_socket(),
            gateway_port: crate::LocalConfig::GATEWAY_PORT,
            helper: crate::helper::find(),
            use_helper: !rustix::process::geteuid().is_root(),
            pids: 8192,
            allowed_mounts: vec![],
        }
    }

    fn owner(&self) -> String {
        let owner = owner(&self.node, &self.state_dir);
        match self.engine {
            ContainerEngine::Docker => owner,
            // One socket may be taken for both.
            ContainerEngine::Podman => format!("{owner}+podman"),
        }
    }
}

/// Makes Docker sandboxes, or Podman's.
#[derive(Debug)]
pub struct DockerProvider {
    config: DockerConfig,
    helper: Option<Program>,
    registry: Registry,
    daemon: Arc<Daemon>,
}

impl DockerProvider {
    /// Speaks to nobody yet.
    pub fn new(config: DockerConfig) -> DockerProvider {
        let registry = Registry::new(&config.state_dir, config.engine.kind());
        let daemon = Arc::new(Daemon::new(config.engine, config.socket.clone()));
        let copy =
            config.state_dir.join("sandboxes").join(format!("helper-of-{}", config.engine.kind()));
        // One that is not there is told by the check, and whenever it is needed.
        let helper = config.helper.as_deref().filter(|_| config.use_helper);
        let helper = helper.and_then(|path| Program::open(path, copy).ok());
        DockerProvider { config, helper, registry, daemon }
    }

    async fn make(&self, spec: SandboxSpec, entry: &Entry) -> Result<DockerSandbox, SandboxError> {
        let way_in = WayIn::new(&self.config, self.helper.as_ref(), &entry.folder).await?;
        let daemon = self.daemon.clone();
        let container = Container::start(daemon, &self.config, &spec, way_in).await?;
        let folder = entry.folder.clone();
        Ok(DockerSandbox::new(Arc::new(container), self.registry.clone(), spec, folder))
    }

    /// Removes all that was made under a name.
    async fn clear(&self, entry: &Entry) -> Result<(), SandboxError> {
        let labels = [(OWNER_LABEL, &*self.config.owner()), (SANDBOX_LABEL, &*entry.name)];
        for (id, _) in self.daemon.list(&labels).await? {
            self.daemon.remove(&id).await?;
        }
        sandbox::forget(&self.registry, &entry.name, &entry.folder)
    }
}

#[async_trait]
impl SandboxProvider for DockerProvider {
    fn kind(&self) -> &'static str {
        self.config.engine.kind()
    }

    async fn check(&self) -> Result<(), SandboxError> {
        WayIn::check(&self.config, self.helper.as_ref())?;
        self.daemon.check().await
    }

    async fn offer(&self) -> Option<RuntimeOffer> {
        let lacks = match self.daemon.lacking().await {
            Ok(lacks) => lacks,
            Err(problem) => {
                tracing::warn!(kind = self.kind(), %problem, "what it can hold to is not known");
                return None;
            }
        };
        Some(self.config.engine.runtime().offer(lacks, &self.config.allowed_mounts))
    }

    async fn get_image(&self, image: &str) -> Result<(), SandboxError> {
        self.daemon.get_image(image).await
    }

    async fn image_id(&self, image: &str) -> Result<Option<String>, SandboxError> {
        self.daemon.image_id(image).await
    }

    async fn create(&self, mut spec: SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        self.config.engine.runtime().refuse(&spec)?;
        spec.mounts = mounts::resolve(&spec.mounts, &self.config.allowed_mounts)?;
        let entry = Entry { name: spec.name.clone(), folder: spec.host_dir.join("sandbox") };
        self.registry.add(&entry)?;
        match self.make(spec, &entry).await {
            Ok(sandbox) => Ok(Box::new(sandbox)),
            Err(problem) => {
                if let Err(problem) = self.clear(&entry).await {
                    tracing::warn!(name = entry.name, %problem, "left to the sweep");
                    self.registry.give_up(&entry.name);
                }
                Err(problem)
            }
        }
    }

    async fn sweep(&self, keep: &HashSet<String>) -> Result<u32, SandboxError> {
        let left = self
            .registry
            .left_behind()
            .map_err(|problem| SandboxError::retryable("find earlier sandboxes", problem))?;
        let old = |name: &String| !keep.contains(name) && !self.registry.is_live(name);
        let mut removed = BTreeSet::new();
        let mut failed = None;
        // By label too: the state folder may be emptied, the containers are still ours.
        for (id, name) in self.daemon.list(&[(OWNER_LABEL, &self.config.owner())]).await? {
            if old(&name) {
                // One that can't be removed must not keep the others.
                match self.daemon.remove(&id).await {
                    Ok(()) => drop(removed.insert(name)),
                    Err(problem) => failed = Some(problem),
                }
            }
        }
        for entry in left.iter().filter(|entry| old(&entry.name)) {
            match self.clear(entry).await {
                Ok(()) => drop(removed.insert(entry.name.clone())),
                Err(problem) => failed = Some(problem),
            }
        }
        if let Some(problem) = failed {
            return Err(problem);
        }
        Ok(u32::try_from(removed.len()).unwrap_or(u32::MAX))
    }
}
