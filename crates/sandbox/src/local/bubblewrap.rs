//! What bubblewrap is told, so that a command gets namespaces of its own. Its monitor dies
//! with the node, and its child is the first process of the namespace.

use super::layout::Layout;
use crate::bridge::Way;
use crate::cgroups::Group;
use crate::lookup;
use crate::mount_points::prepare_mount_points;
use crate::namespaces::{self, Dying, Launch};
use crate::processes::SANDBOX_MARK;
use crate::spawner::Spawner;
use crate::{Exec, ExecEnd, SandboxError, SandboxSpec, helper};
use polar_types::Network;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the helper is shown inside.
const HELPER: &str = "/run/polar/helper";
/// Shown read-only when the host has it.
const SYSTEM: [&str; 20] = [
    "/usr",
    "/nix/store",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/inputrc",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/pki",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl",
    "/etc/terminfo",
];
/// Links into `/usr` on most machines, folders on others.
const USR_LINKS: [&str; 6] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Kernel settings that root may write even without any capability. Bubblewrap leaves
/// them writable when it is run by root.
const PROC_READ_ONLY: [&str; 3] = ["/proc/sys", "/proc/fs", "/proc/sysrq-trigger"];
/// What tells about the host and no harness needs.
const HIDDEN: [&str; 8] = [
    // Keys of the host, which root inside may read as their owner.
    "/etc/pki/tls/private",
    "/etc/ssl/private",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/scsi",
    "/proc/sched_debug",
    "/proc/timer_list",
];

/// All that a command needs to be run.
#[derive(Debug)]
pub(super) struct Jail<'a> {
    pub(super) spec: &'a SandboxSpec,
    /// That of this command.
    pub(super) network: Network,
    pub(super) layout: &'a Layout,
    pub(super) bubblewrap: &'a Path,
    pub(super) helper: &'a Path,
    pub(super) way: Way,
    pub(super) mark: &'a str,
    pub(super) group: Option<&'a Group>,
    pub(super) spawner: &'a Spawner,
    pub(super) dying: &'a Arc<Dying>,
}

/// Runs a command, whose `env` and `workdir` are complete, to the end of its whole tree.
pub(super) async fn run(jail: Jail<'_>, exec: &Exec) -> Result<ExecEnd, SandboxError> {
    // Nothing that was given up may still change what the mounts are made in.
    jail.dying.gone().await?;
    prepare_mount_points(&writable(jail.layout), jail.spec)
        .map_err(|problem| SandboxError::new("start command", problem))?;
    let path = std::env::var_os("PATH");
    let mut monitor = lookup::command(jail.bubblewrap.as_os_str(), path.as_deref());
    monitor.args(arguments(&jail)).env_clear().env(SANDBOX_MARK, jail.mark);
    let request = helper::Request {
        port: (jail.network == Network::None).then_some(jail.way.port),
        argv: exec.argv.clone(),
        env: exec.env.clone(),
        workdir: exec.workdir.clone().unwrap_or_else(|| jail.layout.inside_work.clone()),
        file_size: jail.spec.storage_mb.map(|mb| mb.saturating_mul(1 << 20)),
    };
    let launch = Launch {
        monitor,
        request,
        way: jail.way.clone(),
        group: jail.group,
        spawner: jail.spawner,
        dying: jail.dying,
        not_run: &|problem| super::check::not_run(jail.bubblewrap, problem),
        refused: &super::check::refused,
    };
    namespaces::run(launch, exec).await
}

fn writable(layout: &Layout) -> [(&Path, &Path); 3] {
    [
        (Path::new("/tmp"), &layout.tmp),
        (Path::new(&layout.inside_home), &layout.home),
        (Path::new(&layout.inside_work), &layout.work),
    ]
}

fn arguments(jail: &Jail<'_>) -> Vec<OsString> {
    let mut all = Arguments::default();
    all.add(["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]);
    all.add(["--unshare-cgroup-try", "--hostname", "sandbox"]);
    all.add(["--die-with-parent", "--new-session", "--cap-drop", "ALL"]);
    if jail.network == Network::None {
        all.add(["--unshare-net"]);
    }
    all.add(system());
    let etc = &jail.layout.etc;
    for name in ["passwd", "group", "hosts"] {
        all.mount("--ro-bind", &etc.join(name), &Path::new("/etc").join(name));
    }
    // Often a link to where a resolver keeps it.
    if let (Network::Open, Ok(resolver)) =
        (jail.network, Path::new("/etc/resolv.conf").canonicalize())
    {
        all.mount("--ro-bind", &resolver, Path::new("/etc/resolv.conf"));
    }
    for (inside, host) in writable(jail.layout) {
        all.mount("--bind", host, inside);
    }
    all.add(["--dir", "/var", "--symlink", "../tmp", "/var/tmp"]);
    for folder in &jail.spec.read_only {
        all.mount("--ro-bind", folder, folder);
    }
    for mount in &jail.spec.mounts {
        let how = if mount.read_only { "--ro-bind" } else { "--bind" };
        all.mount(how, &mount.source, &mount.target);
    }
    all.mount("--ro-bind", jail.helper, Path::new(HELPER));
    // What isn't one of the sandbox's folders would be kept in memory.
    all.add(["--remount-ro", "/", "--", HELPER, helper::SUBCOMMAND]);
    all.0
}

/// What every sandbox has of the machine.
pub(super) fn system() -> Vec<OsString> {
    let mut all = Arguments::default();
    add_system(&mut all);
    add_proc(&mut all);
    all.add(["--dev", "/dev"]);
    all.0
}

fn add_system(all: &mut Arguments) {
    for path in SYSTEM {
        all.mount("--ro-bind-try", Path::new(path), Path::new(path));
    }
    for path in USR_LINKS.map(Path::new) {
        match std::fs::read_link(path) {
            Ok(target) => all.mount("--symlink", &target, path),
            Err(_) => all.mount("--ro-bind-try", path, path),
        }
    }
}

fn add_proc(all: &mut Arguments) {
    all.add(["--proc", "/proc"]);
    for path in PROC_READ_ONLY.map(Path::new) {
        all.mount("--ro-bind-try", path, path);
    }
    for path in HIDDEN.map(Path::new) {
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => {
                let path = path.as_os_str();
                all.add([OsStr::new("--tmpfs"), path, OsStr::new("--remount-ro"), path]);
            }
            Ok(_) => all.mount("--ro-bind", Path::new("/dev/null"), path),
            Err(_) => {}
        }
    }
}

#[derive(Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    fn add<T: Into<OsString>>(&mut self, arguments: impl IntoIterator<Item = T>) {
        self.0.extend(arguments.into_iter().map(Into::into));
    }

    fn mount(&mut self, how: &str, from: &Path, to: &Path) {
        self.add([PathBuf::from(how), from.to_owned(), to.to_owned()]);
    }
}
