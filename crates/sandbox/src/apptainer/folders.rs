//! Where an Apptainer sandbox's files lie on the host, and which path inside shows what.

use crate::{SandboxError, SandboxSpec};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

/// Home folder inside.
pub(super) const HOME: &str = "/home/polar";
/// Paths inside that are the kernel's, or ours. A work folder can't be one of them or lie
/// in one.
const TAKEN: [&str; 6] = ["/dev", "/proc", "/sys", "/tmp", "/.polar", HOME];

/// Host folders of one sandbox.
#[derive(Debug, Clone)]
pub(super) struct Folders {
    /// Holds all others; removed with the sandbox.
    pub(super) all: PathBuf,
    pub(super) work: PathBuf,
    pub(super) home: PathBuf,
    pub(super) tmp: PathBuf,
    /// What is written to the image's files.
    pub(super) overlay: PathBuf,
    /// Shown in place of the image's own.
    pub(super) hosts: PathBuf,
}

impl Folders {
    pub(super) fn of(spec: &SandboxSpec) -> Result<Folders, SandboxError> {
        let all = spec.host_dir.join("sandbox");
        if !all.is_absolute() {
            let message = format!("`host_dir` {} must be absolute", spec.host_dir.display());
            return Err(SandboxError::new("make sandbox", message));
        }
        check_workdir(&spec.workdir)?;
        Ok(Folders::below(all))
    }

    pub(super) fn below(all: PathBuf) -> Folders {
        Folders {
            work: all.join("work"),
            home: all.join("home"),
            tmp: all.join("tmp"),
            overlay: all.join("overlay"),
            hosts: all.join("hosts"),
            all,
        }
    }

    /// Makes the folders, for this user alone.
    pub(super) fn make(&self) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        for folder in [&self.all, &self.work, &self.home, &self.tmp, &self.overlay] {
            builder.create(folder)?;
        }
        fs::write(&self.hosts, "127.0.0.1 localhost sandbox\n")
    }
}

fn check_workdir(workdir: &str) -> Result<(), SandboxError> {
    let path = Path::new(workdir);
    let plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    let bad = |why: &str| {
        let message = format!("`workdir` {workdir:?} {why}; use for example \"/workspace\"");
        Err(SandboxError::new("make sandbox", message))
    };
    if !path.is_absolute() || !plain || path == Path::new("/") {
        return bad("must be an absolute path without `..`, and not `/`");
    }
    let clashes = |taken: &str| path.starts_with(taken) || Path::new(taken).starts_with(path);
    match TAKEN.into_iter().find(|taken| clashes(taken)) {
        Some(taken) => {
            bad(&format!("clashes with {taken}, which Apptainer sandboxes make themselves"))
        }
        None => Ok(()),
    }
}
