//! What a provider of sandboxes in folders has on this machine, and how it is got rid of
//! when a sandbox could not be made, or when an earlier process left it.

use crate::SandboxError;
use crate::folder_sandbox;
use crate::processes::{SANDBOX_MARK, end_all, marked};
use crate::registry::{Entry, Registry, owner};
use std::collections::HashSet;
use std::path::Path;

#[derive(Debug)]
pub(crate) struct Holdings {
    pub(crate) registry: Registry,
    /// How the marks of all its processes begin.
    prefix: String,
}

impl Holdings {
    /// `kind` keeps the providers of one node apart.
    pub(crate) fn new(node: &str, state_dir: &Path, kind: &str) -> Holdings {
        let prefix = format!("{}+{kind}/", owner(node, state_dir));
        Holdings { registry: Registry::new(state_dir, kind), prefix }
    }

    /// What all processes of a sandbox carry.
    pub(crate) fn mark(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Ends all processes of a sandbox, then removes its files.
    pub(crate) async fn clear(&self, entry: &Entry) -> Result<(), SandboxError> {
        folder_sandbox::clear(&self.mark(&entry.name), &entry.folder).await?;
        self.registry.remove(&entry.name).map_err(|problem| {
            SandboxError::retryable("forget sandbox", format!("{}: {problem}", entry.name))
        })
    }

    /// Clears what was made in part. What can't be cleared is the sweep's.
    pub(crate) async fn clear_or_leave(&self, entry: &Entry) {
        if let Err(problem) = self.clear(entry).await {
            tracing::warn!(name = entry.name, %problem, "left to the sweep");
            self.registry.give_up(&entry.name);
        }
    }

    /// Removes what earlier processes left, except what is named in `keep`.
    pub(crate) async fn sweep(&self, keep: &HashSet<String>) -> Result<u32, SandboxError> {
        let left = self
            .registry
            .left_behind()
            .map_err(|problem| SandboxError::retryable("find earlier sandboxes", problem))?;
        let mut removed = 0;
        let mut failed = None;
        for entry in left.iter().filter(|entry| !keep.contains(&entry.name)) {
            // One that can't be removed must not keep the others.
            match self.clear(entry).await {
                Ok(()) => removed += 1,
                Err(problem) => failed = Some(problem),
            }
        }
        // Processes whose entry is lost, as when the state folder was emptied by hand.
        let strays = || {
            marked(SANDBOX_MARK, |mark| {
                let name = mark.strip_prefix(&self.prefix);
                name.is_some_and(|name| !keep.contains(name) && !self.registry.is_live(name))
            })
        };
        if !end_all(strays).await {
            return Err(SandboxError::retryable(
                "end processes of earlier sandboxes",
                "some could not be killed; see `ps` for processes in state D",
            ));
        }
        failed.map_or(Ok(removed), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    #[tokio::test]
    async fn promise_7_the_sweep_ends_strays_and_leaves_work_that_goes_on() {
        let state = tempfile::tempdir().unwrap();
        let holdings = Holdings::new("node", state.path(), "test");
        let start = |name: &str| {
            let mut command = Command::new("sleep");
            command.arg("600").env(SANDBOX_MARK, holdings.mark(name)).spawn().unwrap()
        };
        let runs = |child: &mut Child| child.try_wait().unwrap().is_none();
        let (mut stray, mut work) = (start("image-0"), start("image-1"));
        let held = holdings.registry.hold("image-1".to_owned());

        holdings.sweep(&HashSet::new()).await.unwrap();
        assert!(!runs(&mut stray) && runs(&mut work));

        drop(held);
        holdings.sweep(&HashSet::new()).await.unwrap();
        assert!(!runs(&mut work));
    }
}
