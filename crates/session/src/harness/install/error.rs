//! Why a program could not be installed, and what to do about it.

use std::io;
use std::path::PathBuf;

/// Why a program could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// npm is not there.
    #[error(
        "npm is needed to install {harness} and was not found ({error}); install Node.js 20 or \
         newer, or use an image that has the program and an adapter without `install`"
    )]
    NpmMissing {
        /// Which adapter.
        harness: String,
        /// What the operating system said.
        error: io::Error,
    },
    /// No Python can run it.
    #[error(
        "{harness} needs Python {wanted} with its `venv` module, and this machine has none in \
         PATH, pyenv or uv (there {}); install one, for example with `uv python install {}` or \
         `apt install python3-venv`, or use an image that has the program and an adapter \
         without `install`",
        listed(.found), .wanted.trim_end_matches(" or newer")
    )]
    PythonMissing {
        /// Which adapter.
        harness: String,
        /// For example `3.12 or newer`.
        wanted: String,
        /// The ones that don't do, and why.
        found: Vec<String>,
    },
    /// The registry's client failed.
    #[error("{client} could not {doing} {harness} ({status}); its last words: {tail}")]
    Failed {
        /// `npm`, `pip` or `venv`.
        client: &'static str,
        /// What it was asked for.
        doing: &'static str,
        /// Which adapter.
        harness: String,
        /// Exit status.
        status: String,
        /// End of its output.
        tail: String,
    },
    /// It succeeded, yet a file the adapter expects is missing.
    #[error(
        "{harness} is installed in {folder}, yet {missing} is missing; correct `install.expect` \
         of the adapter, or delete the folder to install it again",
        folder = .folder.display()
    )]
    Incomplete {
        /// Which adapter.
        harness: String,
        /// The installation.
        folder: PathBuf,
        /// The path that is missing.
        missing: String,
    },
    /// The newest version cannot be told.
    #[error("the newest version of {harness} cannot be told: {problem}")]
    NoNewest {
        /// Which adapter.
        harness: String,
        /// Why, and what to do.
        problem: String,
    },
    /// The cache folder cannot be used.
    #[error("{action} {path}: {error}; check that the harness cache can be written", path = .path.display())]
    Cache {
        /// What was being done.
        action: &'static str,
        /// With which path.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
}

fn listed(found: &[String]) -> String {
    match found {
        [] => "is no Python at all".to_owned(),
        some => format!("are {}", some.join(", ")),
    }
}

impl InstallError {
    pub(super) fn failed(
        client: &'static str,
        doing: &'static str,
        harness: &str,
        status: std::process::ExitStatus,
        output: &str,
    ) -> Self {
        let lines: Vec<_> = output.lines().rev().take(6).collect();
        let tail = lines.into_iter().rev().collect::<Vec<_>>().join(" | ");
        Self::Failed {
            client,
            doing,
            harness: harness.to_owned(),
            status: status.to_string(),
            tail,
        }
    }
}
