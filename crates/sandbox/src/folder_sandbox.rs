//! A sandbox whose files lie in a folder on the host, and the commands that run in it.
//!
//! What runs commands, and what keeps them apart, is the provider's ([`Commands`]). This
//! has what is the same for all: that destroying waits for them, and that nothing of the
//! sandbox stays.

use crate::cgroups::{self, Group};
use crate::egress::Egress;
use crate::limits;
use crate::namespaces::Dying;
use crate::output::create_empty;
use crate::processes::{SANDBOX_MARK, end_all, marked};
use crate::registry::Registry;
use crate::snapshot::{Limits, Snapshots, tree};
use crate::storage;
use crate::{Change, Exec, ExecEnd, Sandbox, SandboxError, write};
use async_trait::async_trait;
use polar_types::NetworkUse;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::RwLock;
use tokio_util::sync::CancellationToken;

/// How long running commands may take to end when the sandbox is destroyed.
const END: Duration = Duration::from_secs(60);
/// As a command ends that was killed.
const KILLED: ExecEnd = ExecEnd::Exited(137);

/// Runs the commands of one sandbox.
#[async_trait]
pub(crate) trait Commands: Send + Sync {
    /// Runs a command to the end of all it started, `closed` without any network but the
    /// way to the gateway, whatever the spec says.
    async fn run(&self, exec: Exec, closed: bool) -> Result<ExecEnd, SandboxError>;

    /// Path inside for a path that a caller gave; relative ones start at the work folder.
    fn inside(&self, path: &str) -> String;
}

/// What a sandbox is called and where it is.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) name: String,
    /// What all its processes carry.
    pub(crate) mark: String,
    /// On the host; holds all its files, and is removed with it.
    pub(crate) folder: PathBuf,
    /// The work folder on the host.
    pub(crate) work: PathBuf,
    pub(crate) inside_work: String,
    pub(crate) inside_home: String,
    pub(crate) gateway_url: String,
    /// What holds its processes to limits.
    pub(crate) group: Option<Arc<Group>>,
    pub(crate) memory_mb: Option<u64>,
    pub(crate) storage_mb: Option<u64>,
    /// Hosts that its commands may reach.
    pub(crate) egress: Arc<Egress>,
}

pub(crate) struct FolderSandbox<C> {
    commands: C,
    place: Place,
    registry: Registry,
    snapshots: Snapshots,
    /// What the commands give up is waited for here.
    dying: Arc<Dying>,
    /// Held for reading by every command, so that destroying can wait for them.
    running: RwLock<()>,
    /// Ends every command.
    ending: CancellationToken,
    /// Whether an open network was taken away.
    closed: AtomicBool,
    destroyed: AtomicBool,
}

impl<C> FolderSandbox<C> {
    pub(crate) fn new(commands: C, place: Place, registry: Registry, dying: Arc<Dying>) -> Self {
        FolderSandbox {
            snapshots: Snapshots::new(place.folder.join("snapshots"), Limits::default()),
            commands,
            place,
            registry,
            dying,
            running: RwLock::new(()),
            ending: CancellationToken::new(),
            closed: AtomicBool::new(false),
            destroyed: AtomicBool::new(false),
        }
    }

    fn memory_kills(&self) -> u64 {
        self.place.group.as_deref().map(Group::memory_kills).unwrap_or_default()
    }

    /// Returns when its files hold more than they may, with what that is.
    async fn full(&self) -> u64 {
        let Some(limit) = self.place.storage_mb else { return std::future::pending().await };
        let bytes = limit.saturating_mul(1 << 20);
        storage::wait_until_full(self.place.folder.clone(), c"snapshots", bytes).await;
        limit
    }

    async fn take_snapshot(&self, name: &'static str) -> Result<(), SandboxError> {
        let work = self.place.work.clone();
        self.snapshots.take(name, move |sink| tree::read(&work, sink)).await
    }
}

#[async_trait]
impl<C: Commands> Sandbox for FolderSandbox<C> {
    fn name(&self) -> &str {
        &self.place.name
    }

    fn home(&self) -> &str {
        &self.place.inside_home
    }

    fn workdir(&self) -> &str {
        &self.place.inside_work
    }

    fn gateway_url(&self) -> &str {
        &self.place.gateway_url
    }

    async fn write_file(
        &self,
        path: &str,
        content: &[u8],
        executable: bool,
    ) -> Result<(), SandboxError> {
        let path = self.commands.inside(path);
        write::write_file(self, &self.place.folder, &path, content, executable).await
    }

    async fn exec(&self, exec: Exec) -> Result<ExecEnd, SandboxError> {
        let _running = self.running.read().await;
        let closed = self.closed.load(Ordering::Acquire);
        create_empty(&exec).await?;
        let stderr = exec.stderr.clone();
        let kills = self.memory_kills();
        let end = tokio::select! {
            biased;
            () = self.ending.cancelled() => {
                return Err(SandboxError::new("run command", "the sandbox is destroyed"));
            }
            end = self.commands.run(exec, closed) => end?,
            limit = self.full() => {
                self.dying.gone().await?;
                note(&stderr, &storage::words(limit))?;
                KILLED
            }
        };
        match self.memory_kills() - kills {
            0 => {}
            killed => note(&stderr, &limits::out_of_memory(self.place.memory_mb, killed))?,
        }
        Ok(end)
    }

    async fn mark_base(&self) -> Result<(), SandboxError> {
        self.take_snapshot("base").await
    }

    async fn diff(&self) -> Result<Vec<u8>, SandboxError> {
        self.take_snapshot("now").await?;
        self.snapshots.patch("base", "now").await
    }

    async fn changes(&self, most: u64) -> Result<Vec<Change>, SandboxError> {
        self.snapshots.changes("base", "now", most).await
    }

    fn network_use(&self) -> NetworkUse {
        self.place.egress.seen()
    }

    async fn close_network(&self) -> Result<(), SandboxError> {
        // Each command is in a network of its own, made when it starts.
        self.place.egress.close();
        self.closed.store(true, Ordering::Release);
        Ok(())
    }

    async fn destroy(&self) -> Result<(), SandboxError> {
        self.ending.cancel();
        let waited = tokio::time::timeout(END, self.running.write()).await;
        let Ok(_none_running) = waited else {
            return Err(SandboxError::retryable("destroy sandbox", "a command does not end"));
        };
        if self.destroyed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.dying.gone().await?;
        clear(&self.place.mark, &self.place.folder).await?;
        self.registry
            .remove(&self.place.name)
            .map_err(|problem| SandboxError::retryable("forget sandbox", problem))?;
        self.destroyed.store(true, Ordering::Release);
        Ok(())
    }
}

impl<C> Drop for FolderSandbox<C> {
    fn drop(&mut self) {
        // From now on it is the sweep's.
        if !self.destroyed.load(Ordering::Acquire) {
            self.registry.give_up(&self.place.name);
        }
    }
}

/// Adds words of ours to what a command printed as errors.
fn note(stderr: &Path, words: &str) -> Result<(), SandboxError> {
    let add = || fs::File::options().append(true).open(stderr)?.write_all(words.as_bytes());
    add().map_err(|problem: io::Error| SandboxError::retryable("keep output", problem))
}

/// Ends all processes with this mark and removes the folder.
pub(crate) async fn clear(mark: &str, folder: &Path) -> Result<(), SandboxError> {
    let action = "destroy sandbox";
    if !end_all(|| marked(SANDBOX_MARK, |found| found == mark)).await {
        return Err(SandboxError::retryable(action, "its processes cannot be killed"));
    }
    let (owned, mark) = (folder.to_owned(), mark.to_owned());
    let removed = tokio::task::spawn_blocking(move || {
        cgroups::remove(&mark)?;
        remove(&owned)
    })
    .await;
    removed.map_err(io::Error::other).and_then(|outcome| outcome).map_err(|problem| {
        SandboxError::retryable(action, format!("cannot remove {}: {problem}", folder.display()))
    })
}

/// Removes everything, read-only folders included, and the folder it is in when that is
/// empty then. Nothing may run any more.
fn remove(folder: &Path) -> io::Result<()> {
    remove_tree(folder)?;
    if let Some(above) = folder.parent() {
        // Not empty is not ours to remove.
        let _ = fs::remove_dir(above);
    }
    Ok(())
}

/// Removes a folder with everything in it, read-only folders included.
pub(crate) fn remove_tree(folder: &Path) -> io::Result<()> {
    let remove = || match fs::remove_dir_all(folder) {
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    };
    remove().or_else(|_| {
        open_up(folder);
        remove()
    })
}

/// Gives this user all rights on all folders, as module caches take them away.
fn open_up(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    // What fails here shows again when the folder is removed.
    let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}
