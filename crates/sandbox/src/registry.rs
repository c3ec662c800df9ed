//! Which sandboxes exist on this node, kept on disk.
//!
//! A sandbox is written down before anything is made for it and struck off after all of
//! it is gone, so that a process that starts later knows what an earlier one left. The
//! provider owns the folder; there is one process of a node at a time.

use crate::SandboxError;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The folder made for it on the host.
    pub(crate) folder: PathBuf,
}

#[derive(Debug, Clone)]
pub(crate) struct Registry {
    folder: PathBuf,
    /// Sandboxes that this process made and has not destroyed.
    live: Arc<Mutex<HashSet<String>>>,
}

impl Registry {
    /// `kind` keeps the providers of one node apart.
    pub(crate) fn new(state_dir: &Path, kind: &str) -> Registry {
        Registry { folder: state_dir.join("sandboxes").join(kind), live: Arc::default() }
    }

    /// Writes a sandbox down. Refuses names that are taken or can't be file names.
    pub(crate) fn add(&self, entry: &Entry) -> Result<(), SandboxError> {
        let action = "make sandbox";
        let allowed = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        let name = &entry.name;
        if name.is_empty() || name.starts_with('.') || !name.chars().all(allowed) {
            let message = format!(
                "the name {name:?} may have only letters, digits, `.`, `_` and `-`, \
                 and not start with `.`"
            );
            return Err(SandboxError::new(action, message));
        }
        if !self.live().insert(name.clone()) {
            return Err(SandboxError::new(action, format!("the name {name:?} is in use")));
        }
        self.write(entry).map_err(|problem| {
            self.live().remove(name);
            let message = format!("cannot write to {}: {problem}", self.folder.display());
            SandboxError::retryable(action, message)
        })
    }

    /// Strikes a sandbox off, after all of it is gone.
    pub(crate) fn remove(&self, name: &str) -> std::io::Result<()> {
        self.live().remove(name);
        match std::fs::remove_file(self.file(name)) {
            Err(problem) if problem.kind() != std::io::ErrorKind::NotFound => Err(problem),
            _ => Ok(()),
        }
    }

    /// Leaves a sandbox to the sweep.
    pub(crate) fn give_up(&self, name: &str) {
        self.live().remove(name);
    }

    /// What an earlier process left behind.
    pub(crate) fn left_behind(&self) -> std::io::Result<Vec<Entry>> {
        let files = match std::fs::read_dir(&self.folder) {
            Err(problem) if problem.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
            files => files?,
        };
        let mut entries = vec![];
        for file in files {
            let path = file?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match serde_json::from_slice::<Entry>(&std::fs::read(&path)?) {
                Ok(entry) if self.is_live(&entry.name) => {}
                Ok(entry) => entries.push(entry),
                // Never written in part (see `write`), so not one of ours.
                Err(problem) => tracing::warn!(?path, %problem, "not a sandbox entry"),
            }
        }
        Ok(entries)
    }

    /// Whether this process made it and still has it.
    pub(crate) fn is_live(&self, name: &str) -> bool {
        self.live().contains(name)
    }

    fn write(&self, entry: &Entry) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        serde_json::to_writer(&mut file, entry)?;
        file.as_file().sync_all()?;
        file.persist(self.file(&entry.name)).map_err(|problem| problem.error)?;
        Ok(())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }

    fn live(&self) -> MutexGuard<'_, HashSet<String>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
