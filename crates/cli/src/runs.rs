//! Folders of runs that keep nothing: `polar run`, `polar quickstart`, `polar harness check`.
//!
//! ```text
//! <parent>/lock              held while a folder is made, or looked for
//!          run-XXXXXX/lock   held by the run's process
//!                     node_id
//!                     server/ node/
//! ```
//!
//! All of a user lie in one place, so that a run finds those whose process was killed, by
//! their locks, and removes their sandboxes and files before it begins.

use crate::args::Isolation;
use crate::interrupt::Interrupted;
use crate::{paths, stack};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

const LOCK: &str = "lock";
const NODE_ID: &str = "node_id";

/// The folder of one run, which nobody else removes while this lives.
pub(crate) struct RunFolder {
    path: PathBuf,
    // Unlocked by the kernel when the process ends, however it ends.
    _lock: File,
}

impl RunFolder {
    /// Removes what killed runs left, then makes a folder for a node of this name.
    pub(crate) async fn create(node_id: &str) -> Result<Self> {
        let parent = parent()?;
        let (own, left) = own_and_left(&parent, node_id)
            .with_context(|| format!("make a folder for the run in {}", parent.display()))?;
        for folder in left {
            let path = folder.path.clone();
            match folder.remove().await {
                Ok(()) => tracing::warn!(folder = %path.display(), "removed a killed run"),
                // It is tried again by the next run.
                Err(error) => {
                    tracing::error!(folder = %path.display(), "a killed run stays: {error:#}");
                }
            }
        }
        Ok(own)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The node's part, where its sandboxes are written down.
    pub(crate) fn node(&self) -> PathBuf {
        stack::node_folder(&self.path)
    }

    /// Removes sandboxes that are still there, then the folder. When a sandbox cannot be
    /// removed, all of it stays for the next run.
    pub(crate) async fn remove(self) -> Result<()> {
        if let Some(node_id) = present(fs::read_to_string(self.path.join(NODE_ID)))? {
            self.sweep(&node_id).await?;
        }
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            // Last of all: a folder without a lock counts as empty.
            if entry.file_name() == LOCK {
                continue;
            }
            let is_folder = entry.file_type()?.is_dir();
            let path = entry.path();
            if is_folder { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
        fs::remove_dir_all(&self.path).context("remove the run's folder")
    }

    /// The same once what was done there is over. Where that fails, the next run sees to it.
    pub(crate) async fn remove_after<T>(self, done: Result<T>) -> Result<T> {
        let interrupted = done.as_ref().err().and_then(|error| error.downcast_ref::<Interrupted>());
        if interrupted.is_some_and(|interrupted| interrupted.is_again()) {
            return done;
        }
        let path = self.path.clone();
        if let Err(error) = self.remove().await {
            tracing::error!(folder = %path.display(), "left to the next run: {error:#}");
        }
        done
    }

    async fn sweep(&self, node_id: &str) -> Result<()> {
        // Sandboxes are found whichever way they were isolated.
        for provider in stack::providers(Isolation::Process, node_id, &self.node(), &[]).await? {
            let kind = provider.kind();
            match provider.check().await {
                Ok(()) => drop(provider.sweep(&Default::default()).await?),
                Err(error) if self.has_sandboxes(kind) => bail!(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Whether some of a kind are written down.
    fn has_sandboxes(&self, kind: &str) -> bool {
        let written_down = fs::read_dir(self.node().join("sandboxes").join(kind));
        written_down.is_ok_and(|mut entries| entries.next().is_some())
    }
}

fn own_and_left(parent: &Path, node_id: &str) -> Result<(RunFolder, Vec<RunFolder>)> {
    let lock = File::create(parent.join(LOCK))?;
    lock.lock()?;
    let mut left = Vec::new();
    for entry in fs::read_dir(parent)? {
        let path = entry?.path();
        if path.is_dir() {
            left.extend(abandoned(path)?);
        }
    }
    let path = tempfile::Builder::new().prefix("run-").tempdir_in(parent)?.keep();
    let own = File::create(path.join(LOCK))?;
    own.lock()?;
    fs::write(path.join(NODE_ID), node_id)?;
    Ok((RunFolder { path, _lock: own }, left))
}

/// The folder, when no process holds it.
fn abandoned(path: PathBuf) -> io::Result<Option<RunFolder>> {
    let Some(lock) = present(File::open(path.join(LOCK)))? else {
        // Killed before it was locked, or while it was removed. In use by nobody, since
        // that is done under the parent's lock or by whoever holds its own; and so is gone
        // or empty.
        let _ = fs::remove_dir(&path);
        return Ok(None);
    };
    match lock.try_lock() {
        Ok(()) => Ok(Some(RunFolder { path, _lock: lock })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// The user's state folder, or, where that would not do, one beside the system's temporary
/// files.
fn parent() -> Result<PathBuf> {
    if let Some(own) = paths::state(None).ok().and_then(|state| usable(&state.join("runs"))) {
        return Ok(own);
    }
    let user = rustix::process::getuid().as_raw();
    let shared = std::env::temp_dir().join(format!("polar-runs-{user}"));
    let folder = usable(&shared).with_context(|| {
        format!("{} cannot hold a run's state; name a folder with --state", shared.display())
    })?;
    // Anybody may have made it.
    let found = fs::symlink_metadata(&shared)?;
    let own = found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0;
    ensure!(own, "{} is not this user's alone; remove it", shared.display());
    Ok(folder)
}

/// Where a run could keep its state: on a local disk, and with a path that leaves room for
/// its socket. Written in one way, since sandboxes are known by it.
fn usable(folder: &Path) -> Option<PathBuf> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).ok()?;
    let folder = folder.canonicalize().ok()?;
    let node = stack::node_folder(&folder.join("run-XXXXXX"));
    let fits = node.as_os_str().len() <= polar_node::LONGEST_STATE_PATH;
    let is_local = polar_store::refuse_network_filesystem(&folder).is_ok();
    (fits && is_local && tempfile::tempfile_in(&folder).is_ok()).then_some(folder)
}
