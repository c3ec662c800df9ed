//! Where a local sandbox's files lie on the host, and which path inside shows what.

use super::LocalIsolation;
use crate::{SandboxError, SandboxSpec};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

/// Home folder inside.
const HOME: &str = "/home/polar";
/// Paths inside that are the system's, or ours. A work folder can't be one of them, lie
/// in one or hold one.
const TAKEN: [&str; 14] = [
    "/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin",
    "/sys", "/usr", "/tmp", HOME,
];

/// Host folders of one sandbox and the paths its commands see them at.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// Holds all others; removed with the sandbox.
    pub(super) folder: PathBuf,
    pub(super) work: PathBuf,
    pub(super) home: PathBuf,
    pub(super) tmp: PathBuf,
    /// Files shown in place of the host's own in `/etc`.
    pub(super) etc: PathBuf,
    pub(super) inside_work: String,
    pub(super) inside_home: String,
    /// The work folder as the spec names it.
    asked_work: PathBuf,
}

impl Layout {
    pub(super) fn new(spec: &SandboxSpec, isolation: LocalIsolation) -> Result<Self, SandboxError> {
        let folder = spec.host_dir.join("sandbox");
        let inside = |host: PathBuf, inside: &str| match isolation {
            LocalIsolation::Bubblewrap => inside.to_owned(),
            LocalIsolation::Process => host.display().to_string(),
        };
        let asked_work = PathBuf::from(check_workdir(&spec.workdir, isolation)?);
        if !folder.is_absolute() {
            let message = format!("`host_dir` {} must be absolute", spec.host_dir.display());
            return Err(SandboxError::new("make sandbox", message));
        }
        Ok(Layout {
            inside_work: inside(folder.join("work"), &spec.workdir),
            inside_home: inside(folder.join("home"), HOME),
            work: folder.join("work"),
            home: folder.join("home"),
            tmp: folder.join("tmp"),
            etc: folder.join("etc"),
            folder,
            asked_work,
        })
    }

    /// Makes the folders, for this user alone.
    pub(super) fn make(&self) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        for folder in [&self.folder, &self.work, &self.home, &self.tmp, &self.etc] {
            builder.create(folder)?;
        }
        self.write_etc()
    }

    /// Path inside for a path that a caller gave: relative ones start at the work folder;
    /// without isolation, ones in the spec's work folder lead to the real one.
    pub(super) fn inside(&self, path: &str) -> String {
        let work = Path::new(&self.inside_work);
        let path = match Path::new(path).strip_prefix(&self.asked_work) {
            Ok(rest) if rest.as_os_str().is_empty() => work.to_owned(),
            Ok(rest) => work.join(rest),
            Err(_) => work.join(path),
        };
        path.display().to_string()
    }

    /// Names for the one user there is inside, and for this host.
    fn write_etc(&self) -> io::Result<()> {
        let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
        let (uid, gid) = (uid.as_raw(), gid.as_raw());
        let name = if uid == 0 { "root" } else { "polar" };
        let group = if gid == 0 { "root" } else { "polar" };
        let mut passwd = format!("{name}:x:{uid}:{gid}::{HOME}:/bin/sh\n");
        let mut groups = format!("{group}:x:{gid}:\n");
        if uid != 0 {
            passwd += "root:x:0:0::/:/bin/sh\n";
        }
        if gid != 0 {
            groups += "root:x:0:\n";
        }
        // Whatever isn't this user's shows up as this one in a user namespace.
        passwd += "nobody:x:65534:65534::/:/bin/false\n";
        groups += "nogroup:x:65534:\n";
        fs::write(self.etc.join("passwd"), passwd)?;
        fs::write(self.etc.join("group"), groups)?;
        fs::write(self.etc.join("hosts"), "127.0.0.1 localhost sandbox\n")
    }
}

fn check_workdir(workdir: &str, isolation: LocalIsolation) -> Result<&str, SandboxError> {
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
    if isolation == LocalIsolation::Bubblewrap
        && let Some(taken) = TAKEN.into_iter().find(|taken| clashes(taken))
    {
        return bad(&format!("clashes with {taken}, which local sandboxes make themselves"));
    }
    Ok(workdir)
}
