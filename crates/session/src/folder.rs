//! An attempt's folder on its node: what it leaves for delivery and for a restart.
//!
//! ```text
//! <sessions>/<session>.e<epoch>/lease.json    what it was asked to do
//!                               artifacts/    what is delivered: journal, logs, diff, …
//!                               logs/         outputs that are only for error messages
//!                               sandbox/      the sandbox's own
//!                               grader-sandbox1/  that of the one it is graded in
//!                               report.json   written when it has ended
//! ```
//!
//! The folder goes when the server has the report. Whatever is found at a start is an
//! attempt that was never delivered.

use polar_record::RecordedSession;
use polar_types::{Lease, SessionReport, WORK};
use serde::Serialize;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Names of the files that are delivered, in order.
pub const ARTIFACTS: [&str; 9] = [
    "trajectory.json",
    "trajectory.safetensors",
    "calls.json",
    "journal",
    "stdout.log",
    "stderr.log",
    "grader.log",
    "workspace.diff",
    WORK,
];

/// The folder of one attempt.
#[derive(Debug, Clone)]
pub struct AttemptFolder {
    root: PathBuf,
}

impl AttemptFolder {
    /// Makes the folder of a leased session under `sessions`, and notes the lease in it. One that
    /// cannot be made whole, as on a full disk, is not left in part.
    pub fn create(sessions: &Path, lease: &Lease) -> io::Result<Self> {
        let folder = Self { root: sessions.join(format!("{}.e{}", lease.session_id, lease.epoch)) };
        match folder.make(lease) {
            Ok(()) => Ok(folder),
            Err(error) => {
                // Why it could not be made is what is told.
                let _ = fs::remove_dir_all(&folder.root);
                Err(error)
            }
        }
    }

    fn make(&self, lease: &Lease) -> io::Result<()> {
        // Only the owner may look: the lease can hold a callback's secret.
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&self.root)?;
        for part in ["artifacts", "logs"] {
            builder.create(self.root.join(part))?;
        }
        save(&self.root, "lease.json", lease)
    }

    /// The folders under `sessions`, each with its lease. One without a lease never started
    /// anything and is removed; one whose lease cannot be read is left for people.
    pub fn left_behind(sessions: &Path) -> io::Result<Vec<(Self, Lease)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(sessions)? {
            let folder = Self { root: entry?.path() };
            let lease = folder.root.join("lease.json");
            match load(&lease) {
                Some(lease) => found.push((folder, lease)),
                None if lease.exists() => {
                    tracing::error!(
                        lease = %lease.display(),
                        "cannot be read, perhaps it is of another version; its calls are in \
                         artifacts/journal beside it"
                    );
                }
                None => folder.remove()?,
            }
        }
        Ok(found)
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Where the gateway writes the calls.
    pub fn journal(&self) -> PathBuf {
        self.artifact("journal")
    }

    /// Whether nothing recorded would be lost with it. A journal that cannot be read may hold
    /// calls all the same.
    pub fn has_no_calls(&self) -> bool {
        let journal = self.journal();
        !journal.exists()
            || RecordedSession::read(&journal).is_ok_and(|session| session.calls().is_empty())
    }

    /// Where the artifact of this name lies.
    pub fn artifact(&self, name: &str) -> PathBuf {
        self.root.join("artifacts").join(name)
    }

    /// A file that is kept for error messages only.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.logs().join(name)
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The sandbox's own folder.
    pub(crate) fn sandbox(&self) -> PathBuf {
        self.root.join("sandbox")
    }

    /// The folder of a sandbox that the result is graded in.
    pub(crate) fn grader_sandbox(&self, number: u32) -> PathBuf {
        self.root.join(format!("grader-sandbox{number}"))
    }

    /// Keeps the report over a restart.
    pub fn save_report(&self, report: &SessionReport) -> io::Result<()> {
        save(&self.root, "report.json", report)
    }

    /// The report, when the attempt has ended.
    pub fn report(&self) -> Option<SessionReport> {
        load(&self.root.join("report.json"))
    }

    /// Removes the folder with everything in it.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Whole or not at all, also when the machine loses power.
fn save(folder: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer(&mut file, value)?;
    file.flush()?;
    file.as_file().sync_all()?;
    file.persist(folder.join(name))?;
    Ok(())
}

fn load<T: for<'de> serde::Deserialize<'de>>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}
