//! Installing agent programs once per machine.
//!
//! Owns the folder `<cache>/harness`. Safe for several processes at a time: a lock file
//! per installation, and a marker written last, so that a half-made one is made anew.

mod error;
mod newest;
mod python;

use super::adapter::HarnessAdapter;
use super::recipe::InstallRecipe;
pub use error::InstallError;
use python::Interpreter;
pub(super) use python::PythonVersion;
use sha2::{Digest, Sha256};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// A finished installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    /// Its folder, to be shown read-only inside sandboxes at the same path.
    pub folder: PathBuf,
    /// The Python that runs it, when it comes from PyPI.
    pub python: Option<InstalledPython>,
}

/// The Python that an installation was made with. It runs with no other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledPython {
    /// The installation's own way to it.
    pub program: PathBuf,
    /// The folder it lies in, also to be shown read-only at the same path; absent when that
    /// is the machine's `/usr`, which a sandbox has or has not.
    pub shown: Option<PathBuf>,
}

impl Installation {
    /// All that a sandbox must be shown.
    pub fn shown(&self) -> Vec<PathBuf> {
        let python = self.python.as_ref().and_then(|python| python.shown.clone());
        [Some(self.folder.clone()), python].into_iter().flatten().collect()
    }
}

/// Installs programs under one cache folder.
#[derive(Debug, Clone)]
pub struct Installer {
    root: PathBuf,
    npm: PathBuf,
    python: Option<PathBuf>,
}

/// Written last. Its first line names the folder of the Python, empty when none is shown;
/// the others the packages.
const MARKER: &str = ".polar-installed";
const VENV_PYTHON: &str = "venv/bin/python";

impl Installer {
    /// `cache` is Polar's cache folder; installations go to `harness` in it.
    pub fn new(cache: &Path) -> Self {
        Self { root: cache.join("harness"), npm: "npm".into(), python: None }
    }

    /// Uses this npm instead of the first one in `PATH`.
    pub fn with_npm(mut self, npm: PathBuf) -> Self {
        self.npm = npm;
        self
    }

    /// Uses this Python instead of looking for one that fits.
    pub fn with_python(mut self, python: PathBuf) -> Self {
        self.python = Some(python);
        self
    }

    /// Where the adapter's program is or would be. The recipe is part of the name, so
    /// that another adapter of the same name and version cannot be mistaken for it.
    pub fn folder(&self, adapter: &HarnessAdapter, recipe: &InstallRecipe) -> PathBuf {
        let packages: Vec<_> = packages(recipe).map(String::as_str).collect();
        let digest = hex_prefix(&Sha256::digest(packages.join("\n").as_bytes()));
        self.root.join(format!("{}-{}-{digest}", adapter.name, adapter.version))
    }

    /// Whether the adapter's program is there, or needs no installation.
    pub fn is_installed(&self, adapter: &HarnessAdapter) -> bool {
        adapter
            .install
            .as_ref()
            .is_none_or(|recipe| self.installed(recipe, &self.folder(adapter, recipe)).is_some())
    }

    /// Installs the adapter's program unless it is there. `None` when it needs no
    /// installation. Dropping the future ends the installation.
    pub async fn ensure(
        &self,
        adapter: &HarnessAdapter,
    ) -> Result<Option<Installation>, InstallError> {
        let Some(recipe) = &adapter.install else { return Ok(None) };
        let folder = self.folder(adapter, recipe);
        if let Some(installation) = self.installed(recipe, &folder) {
            return Ok(Some(installation));
        }
        create_dir(&self.root)?;
        let _lock = lock(&folder.with_added_extension("lock")).await?;
        // Somebody else may have finished it while this one waited.
        if let Some(installation) = self.installed(recipe, &folder) {
            return Ok(Some(installation));
        }
        self.install(adapter, recipe, &folder).await.map(Some)
    }

    /// A finished installation, whose Python is still there.
    fn installed(&self, recipe: &InstallRecipe, folder: &Path) -> Option<Installation> {
        let marker = std::fs::read_to_string(folder.join(MARKER)).ok()?;
        let python = if recipe.pip.is_empty() {
            None
        } else {
            let program = folder.join(VENV_PYTHON);
            program.is_file().then_some(())?;
            let shown = marker.lines().next().filter(|line| !line.is_empty()).map(PathBuf::from);
            Some(InstalledPython { program, shown })
        };
        Some(Installation { folder: folder.to_owned(), python })
    }

    async fn install(
        &self,
        adapter: &HarnessAdapter,
        recipe: &InstallRecipe,
        folder: &Path,
    ) -> Result<Installation, InstallError> {
        tracing::info!(harness = adapter.name, folder = %folder.display(), "installing");
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(cache("clear", folder, error));
            }
            _ => create_dir(folder)?,
        }
        if !recipe.npm.is_empty() {
            self.npm_install(adapter, recipe, folder).await?;
        }
        let python = if recipe.pip.is_empty() {
            None
        } else {
            Some(self.pip_install(adapter, recipe, folder).await?)
        };
        for path in &recipe.expect {
            if !folder.join(path).exists() {
                return Err(InstallError::Incomplete {
                    harness: adapter.name.clone(),
                    folder: folder.to_owned(),
                    missing: path.clone(),
                });
            }
        }
        let marker = folder.join(MARKER);
        let shown = python.as_ref().and_then(|python| python.shown.as_deref());
        let mut lines = vec![shown.map(|path| path.display().to_string()).unwrap_or_default()];
        lines.extend(packages(recipe).cloned());
        std::fs::write(&marker, lines.join("\n") + "\n")
            .map_err(|error| cache("write", &marker, error))?;
        Ok(Installation { folder: folder.to_owned(), python })
    }

    async fn npm_install(
        &self,
        adapter: &HarnessAdapter,
        recipe: &InstallRecipe,
        folder: &Path,
    ) -> Result<(), InstallError> {
        let manifest = folder.join("package.json");
        std::fs::write(&manifest, "{\"private\": true}\n")
            .map_err(|error| cache("write", &manifest, error))?;
        let mut npm = self.npm_command();
        npm.args(["install", "--no-audit", "--no-fund", "--no-progress", "--save-exact", "--"])
            .args(&recipe.npm);
        let missing = |error| InstallError::NpmMissing { harness: adapter.name.clone(), error };
        logged("npm", npm, adapter, folder, missing).await
    }

    async fn pip_install(
        &self,
        adapter: &HarnessAdapter,
        recipe: &InstallRecipe,
        folder: &Path,
    ) -> Result<InstalledPython, InstallError> {
        let oldest = recipe.python.as_deref().and_then(PythonVersion::parse);
        let oldest = oldest.unwrap_or(PythonVersion::ANY);
        let python = Interpreter::find(self, &adapter.name, oldest).await?;
        let mut pip = python.make_venv(&adapter.name, &folder.join("venv")).await?;
        pip.args(["--progress-bar", "off", "--"]).args(&recipe.pip);
        let program = folder.join(VENV_PYTHON);
        let missing = |error| cache("run", &program, error);
        logged("pip", pip, adapter, folder, missing).await?;
        let shown = python.shown().map(Path::to_owned);
        Ok(InstalledPython { program: folder.join(VENV_PYTHON), shown })
    }

    fn npm_command(&self) -> Command {
        let mut npm = Command::new(&self.npm);
        npm.stdin(Stdio::null()).kill_on_drop(true);
        npm
    }
}

/// Runs a registry's client in the folder, with its output in a log there.
async fn logged(
    client: &'static str,
    mut command: Command,
    adapter: &HarnessAdapter,
    folder: &Path,
    missing: impl FnOnce(io::Error) -> InstallError,
) -> Result<(), InstallError> {
    let log = folder.join(format!("{client}.log"));
    let output = File::create(&log).map_err(|error| cache("write", &log, error))?;
    let errors = output.try_clone().map_err(|error| cache("write", &log, error))?;
    let status = command
        .current_dir(folder)
        .stdout(output)
        .stderr(errors)
        .status()
        .await
        .map_err(missing)?;
    if status.success() {
        return Ok(());
    }
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    Err(InstallError::failed(client, "install", &adapter.name, status, &text))
}

/// All packages, those of npm first.
fn packages(recipe: &InstallRecipe) -> impl Iterator<Item = &String> {
    recipe.npm.iter().chain(&recipe.pip)
}

/// The file is unlocked when it is dropped, also by the death of the process.
async fn lock(path: &Path) -> Result<File, InstallError> {
    let file = File::create(path).map_err(|error| cache("open", path, error))?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // Waited for by asking again: a blocking wait could not be given up. Whoever
            // holds it runs under a deadline, and so does the caller.
            Err(TryLockError::WouldBlock) => tokio::time::sleep(Duration::from_millis(200)).await,
            Err(TryLockError::Error(error)) => return Err(cache("lock", path, error)),
        }
    }
}

fn create_dir(path: &Path) -> Result<(), InstallError> {
    std::fs::create_dir_all(path).map_err(|error| cache("create", path, error))
}

fn cache(action: &'static str, path: &Path, error: io::Error) -> InstallError {
    InstallError::Cache { action, path: path.to_owned(), error }
}

fn hex_prefix(digest: &[u8]) -> String {
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}
