//! Installing agent programs once per machine.
//!
//! Owns the folder `<cache>/harness`. Safe for several processes at a time: a lock file
//! per installation, and a marker written last, so that a half-made one is made anew.

use super::adapter::{HarnessAdapter, InstallRecipe};
use sha2::{Digest, Sha256};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

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
    /// npm failed.
    #[error("npm could not install {harness} ({status}); its last words: {tail}")]
    NpmFailed {
        /// Which adapter.
        harness: String,
        /// Exit status.
        status: String,
        /// End of its output.
        tail: String,
    },
    /// npm succeeded, yet a file the adapter expects is missing.
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

/// A finished installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    /// Its folder, to be shown read-only inside sandboxes at the same path.
    pub folder: PathBuf,
}

/// Installs programs under one cache folder.
#[derive(Debug, Clone)]
pub struct Installer {
    root: PathBuf,
    npm: PathBuf,
}

const MARKER: &str = ".polar-installed";

impl Installer {
    /// `cache` is Polar's cache folder; installations go to `harness` in it.
    pub fn new(cache: &Path) -> Self {
        Self { root: cache.join("harness"), npm: "npm".into() }
    }

    /// Uses this npm instead of the first one in `PATH`.
    pub fn with_npm(mut self, npm: PathBuf) -> Self {
        self.npm = npm;
        self
    }

    /// Where the adapter's program is or would be. The recipe is part of the name, so
    /// that another adapter of the same name and version cannot be mistaken for it.
    pub fn folder(&self, adapter: &HarnessAdapter, recipe: &InstallRecipe) -> PathBuf {
        let digest = hex_prefix(&Sha256::digest(recipe.npm.join("\n").as_bytes()));
        self.root.join(format!("{}-{}-{digest}", adapter.name, adapter.version))
    }

    /// Whether the adapter's program is there, or needs no installation.
    pub fn is_installed(&self, adapter: &HarnessAdapter) -> bool {
        adapter
            .install
            .as_ref()
            .is_none_or(|recipe| self.folder(adapter, recipe).join(MARKER).is_file())
    }

    /// Installs the adapter's program unless it is there. `None` when it needs no
    /// installation. Dropping the future ends the installation.
    pub async fn ensure(
        &self,
        adapter: &HarnessAdapter,
    ) -> Result<Option<Installation>, InstallError> {
        let Some(recipe) = &adapter.install else { return Ok(None) };
        let folder = self.folder(adapter, recipe);
        if !folder.join(MARKER).is_file() {
            create_dir(&self.root)?;
            let _lock = lock(&folder.with_added_extension("lock")).await?;
            // Somebody else may have finished it while this one waited.
            if !folder.join(MARKER).is_file() {
                self.install(adapter, recipe, &folder).await?;
            }
        }
        Ok(Some(Installation { folder }))
    }

    async fn install(
        &self,
        adapter: &HarnessAdapter,
        recipe: &InstallRecipe,
        folder: &Path,
    ) -> Result<(), InstallError> {
        tracing::info!(harness = adapter.name, folder = %folder.display(), "installing");
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(cache("clear", folder, error));
            }
            _ => create_dir(folder)?,
        }
        let manifest = folder.join("package.json");
        std::fs::write(&manifest, "{\"private\": true}\n")
            .map_err(|error| cache("write", &manifest, error))?;
        self.npm_install(adapter, recipe, folder).await?;
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
        std::fs::write(&marker, recipe.npm.join("\n") + "\n")
            .map_err(|error| cache("write", &marker, error))
    }

    async fn npm_install(
        &self,
        adapter: &HarnessAdapter,
        recipe: &InstallRecipe,
        folder: &Path,
    ) -> Result<(), InstallError> {
        let log = folder.join("install.log");
        let output = File::create(&log).map_err(|error| cache("write", &log, error))?;
        let errors = output.try_clone().map_err(|error| cache("write", &log, error))?;
        let status = Command::new(&self.npm)
            .args(["install", "--no-audit", "--no-fund", "--no-progress", "--save-exact", "--"])
            .args(&recipe.npm)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .kill_on_drop(true)
            .status()
            .await
            .map_err(|error| InstallError::NpmMissing { harness: adapter.name.clone(), error })?;
        if status.success() {
            return Ok(());
        }
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(6).collect();
        let tail = lines.into_iter().rev().collect::<Vec<_>>().join(" | ");
        Err(InstallError::NpmFailed {
            harness: adapter.name.clone(),
            status: status.to_string(),
            tail,
        })
    }
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
