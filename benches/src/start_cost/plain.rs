//! The runtimes' own commands.

use anyhow::{Context, Result, ensure};
use polar_types::RuntimeKind;
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// A runtime without Polar, with a container of it that goes on where there is such a thing.
pub(crate) struct Plain {
    kind: RuntimeKind,
    image: String,
    /// A container's name.
    standing: String,
    /// A work folder.
    folder: PathBuf,
}

impl Plain {
    pub(crate) async fn start(
        kind: RuntimeKind,
        image: Option<&str>,
        folder: &Path,
    ) -> Result<Self> {
        let folder = folder.join("plain");
        std::fs::create_dir_all(&folder)?;
        let standing = format!("polar-start-cost-{}", std::process::id());
        let image = image.unwrap_or_default().to_owned();
        let plain = Self { kind, image, standing, folder };
        if let RuntimeKind::Docker | RuntimeKind::Podman = kind {
            let hold = ["/bin/sh", "-c", "while :; do sleep 1000; done"];
            let run = ["run", "-d", "--name", &plain.standing, "--network", "none"];
            let argv = run.into_iter().chain([plain.image.as_str()]).chain(hold);
            done(plain.program(), argv).await?;
        }
        Ok(plain)
    }

    /// Starts, runs `true`, removes.
    pub(crate) async fn start_and_remove(&self) -> Result<()> {
        match self.kind {
            RuntimeKind::Docker | RuntimeKind::Podman => {
                let run = ["run", "--rm", "--network", "none", &self.image, "true"];
                done(self.program(), run).await
            }
            // Where there is nothing between commands, the start is the command's own.
            RuntimeKind::Local | RuntimeKind::Apptainer => self.exec().await,
        }
    }

    /// Runs `true` in what goes on.
    pub(crate) async fn exec(&self) -> Result<()> {
        let folder = self.folder.display().to_string();
        match self.kind {
            RuntimeKind::Docker | RuntimeKind::Podman => {
                done(self.program(), ["exec", &self.standing, "true"]).await
            }
            RuntimeKind::Apptainer => {
                let argv = [
                    "--silent",
                    "exec",
                    "--userns",
                    "--containall",
                    "--net",
                    "--network",
                    "none",
                    "--no-home",
                    "--bind",
                ];
                let bind = format!("{folder}:/workspace");
                let rest = [bind.as_str(), &self.image, "true"];
                done("apptainer", argv.into_iter().chain(rest)).await
            }
            RuntimeKind::Local => {
                let argv = [
                    "--unshare-all",
                    "--die-with-parent",
                    "--proc",
                    "/proc",
                    "--dev",
                    "/dev",
                    "--tmpfs",
                    "/tmp",
                    "--ro-bind",
                    "/usr",
                    "/usr",
                    "--symlink",
                    "usr/bin",
                    "/bin",
                    "--symlink",
                    "usr/lib",
                    "/lib",
                    "--symlink",
                    "usr/lib64",
                    "/lib64",
                    "--bind",
                ];
                done("bwrap", argv.into_iter().chain([&*folder, "/workspace", "true"])).await
            }
        }
    }

    pub(crate) async fn end(&self) -> Result<()> {
        match self.kind {
            RuntimeKind::Docker | RuntimeKind::Podman => {
                done(self.program(), ["rm", "-f", &self.standing]).await
            }
            RuntimeKind::Local | RuntimeKind::Apptainer => Ok(()),
        }
    }

    fn program(&self) -> &'static str {
        self.kind.as_str()
    }
}

async fn done<'a>(program: &str, argv: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let output = Command::new(program).args(argv).output().await;
    let output = output.with_context(|| format!("run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} ended with {}: {said}", output.status);
    Ok(())
}
