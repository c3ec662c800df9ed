//! The Python that runs a program from PyPI, and the program's virtual environment.
//!
//! A sandbox shows the node's `/usr` or brings one of its own. A Python elsewhere, as pyenv
//! and uv have theirs, is shown to it together with the installation.

use super::{InstallError, Installer, cache};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// `3.12`, or `3` for any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::harness) struct PythonVersion(u32, u32);

impl PythonVersion {
    pub(in crate::harness) const ANY: Self = Self(3, 0);

    /// Two numbers with a point between them.
    pub(in crate::harness) fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        Some(Self(major.parse().ok()?, minor.parse().ok()?))
    }
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// A Python of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interpreter {
    executable: PathBuf,
    version: PythonVersion,
    /// Folder with its standard library in it.
    prefix: PathBuf,
    /// It can make virtual environments that have pip.
    makes_venvs: bool,
}

/// Asked of each candidate. A Python 2 fails, and so does a shim for a version that is not there.
const QUESTION: &str = "\
import importlib.util as find, json, sys
print(json.dumps({'executable': sys.executable, 'version': sys.version_info[:2],
    'prefix': sys.base_prefix,
    'makes_venvs': bool(find.find_spec('venv') and find.find_spec('ensurepip'))}))";

#[derive(Deserialize)]
struct Answer {
    executable: PathBuf,
    version: (u32, u32),
    prefix: PathBuf,
    makes_venvs: bool,
}

/// Longest that a candidate may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

impl Interpreter {
    /// The first Python that can run packages which need `oldest`.
    pub(super) async fn find(
        installer: &Installer,
        harness: &str,
        oldest: PythonVersion,
    ) -> Result<Self, InstallError> {
        let mut found = BTreeSet::new();
        for candidate in candidates(installer) {
            let Some(python) = ask(&candidate).await else { continue };
            // What it lies in would be shown to every sandbox.
            let holds_the_cache = installer.root.starts_with(&python.prefix);
            let Interpreter { executable, version, .. } = &python;
            let place = executable.display();
            if python.version < oldest {
                found.insert(format!("{place} ({version})"));
            } else if !python.makes_venvs {
                found.insert(format!("{place} ({version}, without venv or ensurepip)"));
            } else if holds_the_cache {
                found.insert(format!("{place} ({version}, whose prefix also holds Polar's cache)"));
            } else {
                return Ok(python);
            }
        }
        let wanted = if oldest == PythonVersion::ANY {
            "3".to_owned()
        } else {
            format!("{oldest} or newer")
        };
        let found = found.into_iter().collect();
        Err(InstallError::PythonMissing { harness: harness.to_owned(), wanted, found })
    }

    /// What a sandbox must be shown so that this Python works in it.
    pub(super) fn shown(&self) -> Option<&Path> {
        (!self.prefix.starts_with("/usr") && self.prefix != Path::new("/")).then_some(&self.prefix)
    }

    /// Makes a virtual environment and gives its pip, to which arguments are to be added.
    pub(super) async fn make_venv(
        &self,
        harness: &str,
        folder: &Path,
    ) -> Result<Command, InstallError> {
        let made = quiet(&self.executable)
            .args(["-m", "venv"])
            .arg(folder)
            .output()
            .await
            .map_err(|error| cache("run", &self.executable, error))?;
        if !made.status.success() {
            let said = [made.stdout, made.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            return Err(InstallError::failed("venv", "make room for", harness, made.status, &said));
        }
        let mut pip = quiet(&folder.join("bin/python"));
        pip.args(["-m", "pip", "--no-input", "--disable-pip-version-check", "install"]);
        Ok(pip)
    }
}

/// In order: one named by the caller, what `PATH` has, and where uv and pyenv keep theirs,
/// newest first.
fn candidates(installer: &Installer) -> Vec<PathBuf> {
    if let Some(python) = &installer.python {
        return vec![python.clone()];
    }
    let mut all = vec![PathBuf::from("python3")];
    all.extend((8..=20).rev().map(|minor| PathBuf::from(format!("python3.{minor}"))));
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let of = |variable: &str, usual: &str| {
        std::env::var_os(variable).map_or_else(|| home.join(usual), PathBuf::from)
    };
    for folder in [
        of("UV_PYTHON_INSTALL_DIR", ".local/share/uv/python"),
        of("PYENV_ROOT", ".pyenv").join("versions"),
    ] {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut kept: Vec<_> =
            entries.map(|entry| entry.path().join("bin/python3")).filter(|p| p.is_file()).collect();
        kept.sort();
        all.extend(kept.into_iter().rev());
    }
    all
}

async fn ask(candidate: &Path) -> Option<Interpreter> {
    let answer = quiet(candidate).args(["-I", "-c", QUESTION]).output();
    let output = tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()?;
    let Answer { executable, version: (major, minor), prefix, makes_venvs } =
        serde_json::from_slice(&output.stdout).ok()?;
    let version = PythonVersion(major, minor);
    Some(Interpreter { executable, version, prefix, makes_venvs })
}

fn quiet(program: &Path) -> Command {
    let mut command = Command::new(program);
    // Both change which packages a Python sees, and with them what gets installed.
    command.env_remove("PYTHONPATH").env_remove("PYTHONHOME");
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}
