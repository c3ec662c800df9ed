//! Isolation for harness and grader, behind one trait.
//!
//! A provider makes sandboxes of one kind and can find the ones it made again after a
//! crash. Nothing it starts outlives the sandbox: every process belongs to it, every
//! file lies in its own folder or container.
//!
//! The end of a command is the end of everything it started, in every provider: a
//! process that a harness left in the background must not go on working, or calling the
//! model, while its result is graded. A service that a command needs is started by that
//! same command.

mod apptainer;
mod bridge;
mod cgroups;
mod descriptors;
mod docker;
mod egress;
mod exec;
mod folder_sandbox;
pub mod helper;
mod holdings;
mod libraries;
mod limits;
mod local;
mod lookup;
mod mount_points;
mod mounts;
mod namespaces;
mod output;
mod processes;
mod program;
mod registry;
mod snapshot;
mod spawner;
mod storage;
mod write;

pub use apptainer::{ApptainerConfig, ApptainerProvider};
pub use docker::{ContainerEngine, DockerConfig, DockerProvider};
pub use limits::limits_table;
pub use local::{LOCAL_PATH, LocalConfig, LocalIsolation, LocalProvider};
pub use mounts::{AllowedMount, Mount};

use async_trait::async_trait;
use polar_types::{AllowedHost, Network, NetworkUse, RuntimeOffer};
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

/// What to make.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxSpec {
    /// Name, unique on the node: session id and attempt. Labels everything made for it.
    pub name: String,
    /// Host folder that belongs to this sandbox alone; may be used for its files.
    pub host_dir: PathBuf,
    /// Container image.
    pub image: Option<String>,
    /// Folder commands run in by default, as seen inside. Created when missing.
    pub workdir: String,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
    /// What may be reached.
    pub network: Network,
    /// Hosts that a closed network leads to all the same, by a proxy at the gateway's port.
    pub allowed_hosts: Vec<AllowedHost>,
    /// Unix socket of the gateway on the host; bridged to a port on the sandbox's own
    /// loopback when its network is closed.
    pub gateway_socket: PathBuf,
    /// TCP address of the gateway on the host, for local sandboxes with an open network.
    pub gateway_address: std::net::SocketAddr,
    /// Host folders shown read-only inside at the same path (harness installations).
    pub read_only: Vec<PathBuf>,
    /// CPU cores.
    pub cpus: Option<f64>,
    /// Memory limit in MiB.
    pub memory_mb: Option<u64>,
    /// Most processes.
    pub pids: Option<u32>,
    /// User inside a container.
    pub user: Option<String>,
    /// Most that its files may hold, in MiB.
    pub storage_mb: Option<u64>,
    /// GPUs.
    pub gpus: Option<u32>,
    /// Folders of the node shown inside, which the node has to allow.
    pub mounts: Vec<Mount>,
}

impl SandboxSpec {
    /// One that asks for nothing, and whose gateway is nowhere.
    pub(crate) fn bare(name: String, host_dir: PathBuf) -> Self {
        Self {
            name,
            host_dir,
            image: None,
            workdir: "/workspace".to_owned(),
            env: BTreeMap::new(),
            network: Network::None,
            allowed_hosts: Vec::new(),
            gateway_socket: PathBuf::new(),
            gateway_address: ([127, 0, 0, 1], 0).into(),
            read_only: Vec::new(),
            cpus: None,
            memory_mb: None,
            pids: None,
            user: None,
            storage_mb: None,
            gpus: None,
            mounts: Vec::new(),
        }
    }
}

/// A command run inside.
#[derive(Debug, Clone)]
pub struct Exec {
    /// Program and arguments; no shell is added.
    pub argv: Vec<String>,
    /// Folder; the work folder when absent.
    pub workdir: Option<String>,
    /// Added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// Given on stdin, then closed.
    pub stdin: Option<Vec<u8>>,
    /// Ends the whole process tree when it passes.
    pub timeout: Duration,
    /// Where stdout is kept on the host.
    pub stdout: PathBuf,
    /// Where stderr is kept on the host.
    pub stderr: PathBuf,
    /// Bytes kept of each, of its beginning and its end; what is between is dropped and the
    /// file says so.
    pub output_limit: u64,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecEnd {
    /// By itself, with this code (128 + signal when a signal ended it).
    Exited(i32),
    /// Its timeout passed; the whole tree was killed.
    TimedOut,
}

/// A path of the work folder that is not as it was at the base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Bytes of the path, relative to the work folder.
    pub path: Vec<u8>,
    /// Whether it was there at the base.
    pub existed: bool,
    /// What is there now; nothing where it was removed.
    pub now: Option<Content>,
}

/// What lies at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A file.
    File {
        /// Its bytes.
        bytes: Vec<u8>,
        /// Whether its owner may execute it.
        executable: bool,
    },
    /// A symbolic link, with the bytes of its target.
    Link(Vec<u8>),
}

/// Why something could not be done.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{action}: {message}")]
pub struct SandboxError {
    /// What was being done, for example `start container`.
    pub action: String,
    /// What went wrong and what to do about it.
    pub message: String,
    /// Whether the same may succeed later or on another node.
    pub retryable: bool,
}

impl SandboxError {
    /// Something that will fail again when tried again.
    pub fn new(action: impl Into<String>, message: impl std::fmt::Display) -> Self {
        SandboxError { action: action.into(), message: message.to_string(), retryable: false }
    }

    /// Something that may succeed later or elsewhere.
    pub fn retryable(action: impl Into<String>, message: impl std::fmt::Display) -> Self {
        SandboxError { action: action.into(), message: message.to_string(), retryable: true }
    }
}

/// Makes sandboxes of one kind.
#[async_trait]
pub trait SandboxProvider: Send + Sync {
    /// `local`, `docker`, `podman` or `apptainer`.
    fn kind(&self) -> &'static str;

    /// Whether it works on this machine; the error says what is missing and how to get it.
    async fn check(&self) -> Result<(), SandboxError>;

    /// What it can be asked for here; nothing where it cannot say.
    async fn offer(&self) -> Option<RuntimeOffer> {
        None
    }

    /// Gets an image onto this machine, so that making a sandbox of it need not. Does nothing
    /// when it is there, or where there are no images.
    async fn get_image(&self, image: &str) -> Result<(), SandboxError> {
        let _ = image;
        Ok(())
    }

    /// What the image of this name is on this machine now, where a name may come to mean
    /// another: sandboxes of two ids are not of one image. Nothing where it cannot be told.
    async fn image_id(&self, image: &str) -> Result<Option<String>, SandboxError> {
        let _ = image;
        Ok(None)
    }

    /// Makes a sandbox and leaves it running, ready for [`Sandbox::exec`].
    async fn create(&self, spec: SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError>;

    /// Removes whatever an earlier process of this node left behind, except sandboxes
    /// named in `keep`. Returns how many were removed.
    async fn sweep(&self, keep: &HashSet<String>) -> Result<u32, SandboxError>;
}

/// A running sandbox. Dropping it without [`Sandbox::destroy`] may leave it to the sweep.
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// The name it was made with.
    fn name(&self) -> &str;

    /// Home folder of commands inside.
    fn home(&self) -> &str;

    /// Folder that commands run in by default, as seen inside. It is the spec's, except
    /// where there is no isolation that could show a folder at another path.
    fn workdir(&self) -> &str;

    /// Base URL of the gateway as seen inside, without a path: `http://127.0.0.1:PORT`.
    fn gateway_url(&self) -> &str;

    /// Writes a file; parents are created. Relative paths start at the work folder. A link, pipe or
    /// device in its place is replaced, and never written through.
    async fn write_file(
        &self,
        path: &str,
        content: &[u8],
        executable: bool,
    ) -> Result<(), SandboxError>;

    /// Runs a command to its end, and ends whatever it left running: when this returns,
    /// nothing of it lives. Dropping the future kills the command's tree as well; the
    /// next command, or the end of the sandbox, waits until it is gone.
    async fn exec(&self, exec: Exec) -> Result<ExecEnd, SandboxError>;

    /// Remembers the work folder as it is now, as the base of [`Sandbox::diff`].
    async fn mark_base(&self) -> Result<(), SandboxError>;

    /// What changed in the work folder since [`Sandbox::mark_base`], as a git patch with
    /// binary files, renames and modes.
    async fn diff(&self) -> Result<Vec<u8>, SandboxError>;

    /// The same changes as whole files, as they were at the last [`Sandbox::diff`]; `most`
    /// bounds the bytes of all their contents together.
    async fn changes(&self, most: u64) -> Result<Vec<Change>, SandboxError> {
        let _ = most;
        Err(SandboxError::new("list changes", "this kind of sandbox cannot tell whole files"))
    }

    /// Takes an open network away, and the hosts that a closed one leads to, for all commands
    /// from now on.
    async fn close_network(&self) -> Result<(), SandboxError> {
        Err(SandboxError::new("close network", "this kind of sandbox keeps the network it has"))
    }

    /// What its commands asked the proxy of its allowed hosts for.
    fn network_use(&self) -> NetworkUse {
        NetworkUse::default()
    }

    /// Ends everything inside and removes all of it. Safe to call again.
    async fn destroy(&self) -> Result<(), SandboxError>;
}
