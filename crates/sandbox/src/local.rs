//! Sandboxes on this machine, without a container engine.
//!
//! With bubblewrap each command gets namespaces of its own: users, processes, mounts,
//! IPC, host name and, unless the network is open, network. What commands of one sandbox
//! share is their files, which lie in the sandbox's folder on the host. Chosen over one
//! set of namespaces that lives as long as the sandbox, because then
//!
//! * the end of a command is the end of its process namespace, and the kernel leaves
//!   nothing of it alive, whatever it forked, hid or detached;
//! * between commands a sandbox is a folder: no process to watch, lose or sweep;
//! * nothing has to enter a namespace from outside, which unprivileged users can't
//!   always do.
//!
//! The price is that a service started by one command isn't there for the next.
//!
//! Without bubblewrap, and only where the operator says so, commands are plain processes:
//! files and network are the node's own, and a process that hides both its parent and
//! its environment outlives its command until the sandbox is destroyed or longer.

mod bubblewrap;
mod check;
mod commands;
mod layout;
mod process;

pub use commands::PATH as LOCAL_PATH;

use crate::cgroups::{self, Group};
use crate::folder_sandbox::FolderSandbox;
use crate::holdings::Holdings;
use crate::limits::Runtime;
use crate::mounts::{self, AllowedMount};
use crate::program::Program;
use crate::registry::Entry;
use crate::spawner::Spawner;
use crate::{Sandbox, SandboxError, SandboxProvider, SandboxSpec, helper};
use async_trait::async_trait;
use commands::LocalCommands;
use layout::Layout;
use polar_types::RuntimeOffer;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

/// What keeps commands apart from the machine and each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LocalIsolation {
    /// Namespaces made by bubblewrap, without privileges.
    Bubblewrap,
    /// Nothing: plain processes of this user. For machines where the operator has
    /// decided that harnesses may do what this user may.
    Process,
}

/// How to make local sandboxes.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// Name of the node. Sweeping touches only what carries this name and `state_dir`.
    pub node: String,
    /// Folder for what the provider must remember across restarts. One process's at a
    /// time.
    pub state_dir: PathBuf,
    /// What keeps commands apart.
    pub isolation: LocalIsolation,
    /// The bubblewrap program; looked for in `PATH` when it is a mere name.
    pub bubblewrap: PathBuf,
    /// A binary that calls [`helper::run_if_called`] first in its `main`, such as
    /// `polar`. When absent: this program if it is `polar`, or else a
    /// `polar-sandbox-helper` or `polar` beside it or one folder up.
    pub helper: Option<PathBuf>,
    /// Port on a sandbox's own loopback that leads to the gateway.
    pub gateway_port: u16,
    /// What tasks may have shown of this machine.
    pub allowed_mounts: Vec<AllowedMount>,
}

impl LocalConfig {
    /// Port that few programs use and the kernel doesn't hand out by itself.
    pub const GATEWAY_PORT: u16 = 28_417;

    /// Bubblewrap, with everything else as usual.
    pub fn new(node: impl Into<String>, state_dir: impl Into<PathBuf>) -> LocalConfig {
        LocalConfig {
            node: node.into(),
            state_dir: state_dir.into(),
            isolation: LocalIsolation::Bubblewrap,
            bubblewrap: "bwrap".into(),
            helper: None,
            gateway_port: LocalConfig::GATEWAY_PORT,
            allowed_mounts: vec![],
        }
    }
}

/// Makes local sandboxes.
#[derive(Debug)]
pub struct LocalProvider {
    config: LocalConfig,
    helper: Option<Arc<Program>>,
    holdings: Holdings,
    spawner: Spawner,
}

impl LocalProvider {
    /// Starts nothing but the thread that will start commands.
    pub fn new(mut config: LocalConfig) -> Result<LocalProvider, SandboxError> {
        let spawner = Spawner::start()
            .map_err(|problem| SandboxError::retryable("start local sandboxes", problem))?;
        config.helper = config.helper.or_else(helper::find);
        let copy = config.state_dir.join("sandboxes").join("helper-of-local");
        // One that is not there is told by the check, and whenever it is needed.
        let helper = config.helper.as_deref().and_then(|path| Program::open(path, copy).ok());
        let holdings = Holdings::new(&config.node, &config.state_dir, "local");
        Ok(LocalProvider { config, helper: helper.map(Arc::new), holdings, spawner })
    }
}

impl LocalProvider {
    fn runtime(&self) -> Runtime {
        match self.config.isolation {
            LocalIsolation::Bubblewrap => Runtime::Bubblewrap,
            LocalIsolation::Process => Runtime::Process,
        }
    }
}

#[async_trait]
impl SandboxProvider for LocalProvider {
    fn kind(&self) -> &'static str {
        "local"
    }

    async fn check(&self) -> Result<(), SandboxError> {
        check::check(&self.config, self.helper.as_deref(), &self.spawner).await
    }

    async fn offer(&self) -> Option<RuntimeOffer> {
        let lacks = match self.config.isolation {
            LocalIsolation::Bubblewrap => cgroups::lacking(),
            LocalIsolation::Process => Vec::new(),
        };
        Some(self.runtime().offer(lacks, &self.config.allowed_mounts))
    }

    async fn create(&self, mut spec: SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        self.runtime().refuse(&spec)?;
        spec.mounts = mounts::resolve(&spec.mounts, &self.config.allowed_mounts)?;
        let layout = Layout::new(&spec, self.config.isolation)?;
        let entry = Entry { name: spec.name.clone(), folder: layout.folder.clone() };
        self.holdings.registry.add(&entry)?;
        if let Err(problem) = layout.make() {
            let message = format!("{}: {problem}", layout.folder.display());
            self.holdings.clear_or_leave(&entry).await;
            return Err(SandboxError::retryable("make sandbox folder", message));
        }
        let mark = self.holdings.mark(&spec.name);
        let group = match Group::make(&spec, &mark) {
            Ok(group) => group.map(Arc::new),
            Err(problem) => {
                self.holdings.clear_or_leave(&entry).await;
                return Err(problem);
            }
        };
        let (commands, place) = LocalCommands::new(self, spec, layout, mark, group);
        let dying = commands.dying.clone();
        Ok(Box::new(FolderSandbox::new(commands, place, self.holdings.registry.clone(), dying)))
    }

    async fn sweep(&self, keep: &HashSet<String>) -> Result<u32, SandboxError> {
        self.holdings.sweep(keep).await
    }
}
