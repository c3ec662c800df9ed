//! The program itself: how it is started, and what it is told about a sandbox.

use super::folders::{Folders, HOME};
use super::image::Image;
use crate::libraries::PortableHelper;
use crate::processes::SANDBOX_MARK;
use crate::{Mount, SandboxError, SandboxSpec, helper};
use polar_types::Network;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// How to get Apptainer.
const GET: &str = "see https://apptainer.org/docs/admin/main/installation.html; an unprivileged \
     installation is enough";
/// What may keep it from working.
const MEND: &str = "it needs unprivileged user namespaces, `fuse-overlayfs` (`apt-get install \
     fuse-overlayfs`, or `dnf install fuse-overlayfs`) and a /dev/fuse that this user may write \
     to (`chmod 666 /dev/fuse`); `apptainer exec --userns` shows more";
/// Its settings, in place of the machine's. The kernel's own overlay can't be told to keep
/// its marks where a user may write them, and then no folder of an image can be removed.
pub(super) const SETTINGS: &str = "enable overlay = driver\nenable underlay = no\n";
/// Kernel settings that root may write even without any capability.
const PROC_READ_ONLY: [&str; 3] = ["/proc/sys", "/proc/fs", "/proc/sysrq-trigger"];
/// What tells about the host and no harness needs.
const HIDDEN: [&str; 4] = ["/proc/kcore", "/proc/keys", "/proc/sched_debug", "/proc/timer_list"];
/// Where the work folder is shown while an image's own is still to be seen.
pub(super) const STAGED_WORK: &str = "/.polar/work";

/// A command that is Apptainer and ends with the node, for as long as the node holds the
/// other end of its stdin. Arguments that are added are its.
pub(super) fn guarded(helper: &Path, apptainer: &Path, mark: &str) -> Command {
    let mut command = Command::new(helper);
    command.args([helper::SUBCOMMAND, helper::GUARD]).arg(apptainer);
    command.env_clear().env(SANDBOX_MARK, mark);
    // Where it finds what it mounts with.
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

/// Says that it could not be started, and how to get it.
pub(super) fn not_run(program: &Path, problem: &io::Error) -> String {
    format!("cannot run {}: {problem}; {GET}", program.display())
}

/// Says what it says against its arguments or the kernel, and what may help.
pub(super) fn refused(said: &str) -> String {
    let missing = said.contains("No such file or directory") && !said.contains("FATAL");
    format!("{}; {}", said.trim(), if missing { GET } else { MEND })
}

/// All that is shown of the host, and where.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) image: &'a Image,
    pub(super) folders: &'a Folders,
    pub(super) helper: &'a PortableHelper,
    pub(super) network: Network,
    pub(super) read_only: &'a [PathBuf],
    pub(super) mounts: &'a [Mount],
    /// The work folder, as seen inside.
    pub(super) work: &'a str,
    /// File with [`SETTINGS`].
    pub(super) settings: &'a Path,
}

impl<'a> View<'a> {
    pub(super) fn of(
        spec: &'a SandboxSpec,
        image: &'a Image,
        folders: &'a Folders,
        helper: &'a PortableHelper,
        settings: &'a Path,
    ) -> View<'a> {
        View {
            image,
            folders,
            helper,
            network: spec.network,
            read_only: &spec.read_only,
            mounts: &spec.mounts,
            work: &spec.workdir,
            settings,
        }
    }

    /// Folders that can be written to: path inside, and on the host.
    pub(super) fn writable(&self) -> [(&Path, &Path); 3] {
        [
            (Path::new("/tmp"), &self.folders.tmp),
            (Path::new(HOME), &self.folders.home),
            (Path::new(self.work), &self.folders.work),
        ]
    }

    /// What Apptainer is told to run the helper, whose own arguments may follow.
    pub(super) fn arguments(&self) -> Result<Vec<OsString>, SandboxError> {
        let mut all = Arguments::default();
        all.add(["--silent", "--config"]);
        all.add([self.settings]);
        // Never by a program with the rights of root, whoever this user is.
        all.add(["exec", "--userns", "--no-privs", "--containall", "--no-eval"]);
        all.add(["--no-home", "--no-mount", "sys,cwd,hostfs,bind-paths,tmp"]);
        all.add(["--uts", "--hostname", "sandbox", "--pwd", "/"]);
        if self.network == Network::None {
            all.add(["--net", "--network", "none"]);
        }
        all.add(["--overlay"]);
        all.add([&self.folders.overlay]);
        for path in PROC_READ_ONLY.map(Path::new).into_iter().filter(|path| path.exists()) {
            all.mount(path, path, true)?;
        }
        for path in HIDDEN.map(Path::new).into_iter().filter(|path| path.exists()) {
            all.mount(Path::new("/dev/null"), path, true)?;
        }
        all.mount(&self.folders.hosts, Path::new("/etc/hosts"), true)?;
        for (inside, host) in self.writable() {
            all.mount(host, inside, false)?;
        }
        all.mount(&self.folders.tmp, Path::new("/var/tmp"), false)?;
        for folder in self.read_only {
            all.mount(folder, folder, true)?;
        }
        for mount in self.mounts {
            all.mount(&mount.source, &mount.target, mount.read_only)?;
        }
        for (host, inside) in self.helper.mounts() {
            all.mount(&host, &inside, true)?;
        }
        all.add([&self.image.folder]);
        all.add(self.helper.command());
        Ok(all.0)
    }
}

#[derive(Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    fn add<T: Into<OsString>>(&mut self, arguments: impl IntoIterator<Item = T>) {
        self.0.extend(arguments.into_iter().map(Into::into));
    }

    /// Mounts are written as lines of comma-separated values.
    fn mount(&mut self, host: &Path, inside: &Path, read_only: bool) -> Result<(), SandboxError> {
        let value = |path: &Path| match path.to_str() {
            Some(path) => Ok(path.replace('"', "\"\"")),
            None => {
                let message = format!("the path {} is not UTF-8", path.display());
                Err(SandboxError::new("make sandbox", message))
            }
        };
        let (host, inside) = (value(host)?, value(inside)?);
        let read_only = if read_only { ",ro" } else { "" };
        let mount = format!("type=bind,\"source={host}\",\"destination={inside}\"{read_only}");
        self.add(["--mount", &mount]);
        Ok(())
    }
}
