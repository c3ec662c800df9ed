//! Which sandboxes exist on this node, kept on disk.
//!
//! A sandbox is written down before anything is made for it and struck off after all of
//! it is gone, so that a process that starts later knows what an earlier one left. The
//! provider owns the folder; there is one process of a node at a time.

use crate::SandboxError;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Extension of an entry that is being written.
const UNFINISHED: &str = "new";

/// One sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The folder made for it on the host.
    pub(crate) folder: PathBuf,
}

/// What marks everything a node makes. The state folder is part of it: several processes
/// may bear one node's name on a machine, but each has a folder of its own.
pub(crate) fn owner(node: &str, state_dir: &Path) -> String {
    let folder = std::path::absolute(state_dir).unwrap_or_else(|_| state_dir.to_owned());
    format!("{node}@{}", folder.display())
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

    /// Keeps the sweep from the processes of work that is no sandbox, as long as this lives.
    pub(crate) fn hold(&self, name: String) -> Held {
        self.live().insert(name.clone());
        Held { registry: self.clone(), name }
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
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => {}
                Some(UNFINISHED) => {
                    self.remove_unfinished(&path)?;
                    continue;
                }
                _ => continue,
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
        // The name is this entry's alone (see `add`), so the file is too.
        let unfinished = self.folder.join(format!("{}.{UNFINISHED}", entry.name));
        let written = std::fs::write(&unfinished, serde_json::to_vec(entry)?)
            .and_then(|()| File::open(&unfinished)?.sync_all())
            .and_then(|()| std::fs::rename(&unfinished, self.file(&entry.name)));
        written.inspect_err(|_| {
            // What went wrong first is what is told; the sweep comes by again.
            let _ = std::fs::remove_file(&unfinished);
        })
    }

    /// Removes an entry that a process was killed while writing. Nothing was made for it.
    fn remove_unfinished(&self, path: &Path) -> std::io::Result<()> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if self.is_live(&name) {
            return Ok(());
        }
        match std::fs::remove_file(path) {
            Err(problem) if problem.kind() != std::io::ErrorKind::NotFound => Err(problem),
            _ => Ok(()),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }

    fn live(&self) -> MutexGuard<'_, HashSet<String>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name whose processes are no strays.
#[derive(Debug)]
pub(crate) struct Held {
    registry: Registry,
    name: String,
}

impl Held {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.registry.give_up(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promise_7_an_entry_that_was_never_finished_is_removed() {
        let state = tempfile::tempdir().unwrap();
        let registry = Registry::new(state.path(), "local");
        let entry = Entry { name: "kept".to_owned(), folder: state.path().join("kept") };
        registry.add(&entry).unwrap();
        let folder = state.path().join("sandboxes/local");
        // As a kill in the middle of writing leaves it.
        std::fs::write(folder.join("s1.e2.new"), r#"{"name": "s1.e"#).unwrap();

        let later = Registry::new(state.path(), "local");
        let found = later.left_behind().unwrap();

        assert_eq!(found.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["kept"]);
        let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name());
        assert_eq!(files.collect::<Vec<_>>(), ["kept.json"]);
    }

    #[test]
    fn an_entry_that_this_process_writes_is_left_alone() {
        let state = tempfile::tempdir().unwrap();
        let registry = Registry::new(state.path(), "local");
        let entry = Entry { name: "busy".to_owned(), folder: state.path().join("busy") };
        registry.add(&entry).unwrap();
        let unfinished = state.path().join("sandboxes/local/busy.new");
        std::fs::write(&unfinished, "").unwrap();

        assert!(registry.left_behind().unwrap().is_empty());
        assert!(unfinished.exists());
    }
}
