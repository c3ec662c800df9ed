//! One command in namespaces of its own, made by bubblewrap.
//!
//! ```text
//! node ── bwrap (monitor) ── bwrap (first process of the namespace) ── helper → command
//! ```
//!
//! The monitor dies with the node and the first process with the monitor, and when the
//! first process dies the kernel kills all the rest. That is the only way a command is
//! ended here: the first process is killed and its end awaited, so that the command's
//! tree is gone, not only going, when [`run`] returns. Dropping it kills as surely, but
//! can't wait.

use super::layout::Layout;
use crate::bridge::Bridge;
use crate::exec::{Outputs, exit_code, stdin_file};
use crate::processes::{SANDBOX_MARK, children};
use crate::spawner::Spawner;
use crate::{Exec, ExecEnd, SandboxError, SandboxSpec, descriptors, helper};
use polar_types::Network;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout, timeout_at};

/// Where the helper is shown inside.
const HELPER: &str = "/run/polar/helper";
/// How long the way to a command's start may take.
const START: Duration = Duration::from_secs(30);
const END_ACTION: &str = "end command";
/// How long a killed tree may take to be gone.
const END: Duration = Duration::from_secs(20);

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
    pub(super) gateway_port: u16,
    pub(super) mark: &'a str,
    pub(super) spawner: &'a Spawner,
    pub(super) dying: &'a Arc<Dying>,
}

/// Runs a command, whose `env` and `workdir` are complete, to the end of its whole tree.
pub(super) async fn run(jail: Jail<'_>, exec: &Exec) -> Result<ExecEnd, SandboxError> {
    let deadline = Instant::now() + exec.timeout;
    // Those that were given up must be gone, not only going, before anything new starts.
    jail.dying.gone().await?;
    let Ok(started) = timeout_at(deadline, start(&jail, exec)).await else {
        return Ok(ExecEnd::TimedOut);
    };
    let mut running = started?;
    let end = match timeout_at(deadline, running.monitor.wait()).await {
        Ok(status) => status.map(|status| ExecEnd::Exited(exit_code(status))),
        Err(_) => Ok(ExecEnd::TimedOut),
    };
    running.end().await?;
    end.map_err(|problem| SandboxError::retryable("run command", problem))
}

/// A command on its way. Dropping it kills its tree.
#[derive(Debug)]
struct Running {
    monitor: Child,
    first: FirstProcess,
    outputs: Outputs,
    /// Lives as long as the command.
    _bridge: Option<Bridge>,
}

impl Running {
    /// Kills what is left and returns when all of it is gone and its output kept.
    async fn end(mut self) -> Result<(), SandboxError> {
        self.first.kill();
        self.first.gone().await.map_err(|problem| SandboxError::retryable(END_ACTION, problem))?;
        let problem = match timeout(END, self.monitor.wait()).await {
            Ok(Ok(_)) => return self.outputs.finish().await,
            Ok(Err(problem)) => problem.to_string(),
            Err(_) => format!("its processes are still there after {END:?}"),
        };
        Err(SandboxError::retryable(END_ACTION, problem))
    }
}

/// First processes that were killed without waiting for their end.
#[derive(Debug, Default)]
pub(super) struct Dying {
    processes: Mutex<Vec<OwnedFd>>,
    /// Whoever waits for them; others wait for the same.
    waiting: tokio::sync::Mutex<()>,
}

impl Dying {
    /// Returns when all of them, and with them their namespaces, are gone.
    pub(super) async fn gone(&self) -> Result<(), SandboxError> {
        let _waiting = self.waiting.lock().await;
        let all = std::mem::take(&mut *self.list());
        for process in all {
            gone(process).await.map_err(|problem| SandboxError::retryable(END_ACTION, problem))?;
        }
        Ok(())
    }

    fn list(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first process of the command's namespace.
#[derive(Debug)]
struct FirstProcess {
    process: Option<OwnedFd>,
    dying: Arc<Dying>,
}

impl FirstProcess {
    fn of(monitor: &Child, dying: &Arc<Dying>) -> io::Result<FirstProcess> {
        let monitor = monitor.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let first = monitor.and_then(|monitor| children(monitor).into_iter().next());
        let first = first.ok_or_else(|| io::Error::other("bubblewrap has no child process"))?;
        let process = Some(pidfd_open(first, PidfdFlags::empty())?);
        Ok(FirstProcess { process, dying: dying.clone() })
    }

    fn kill(&self) {
        if let Some(process) = &self.process {
            // Gone already is as good.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }

    /// Returns when it is gone, and with it all others of its namespace.
    async fn gone(&mut self) -> io::Result<()> {
        if let Some(process) = &self.process {
            gone(process.try_clone()?).await?;
        }
        self.process = None;
        Ok(())
    }
}

impl Drop for FirstProcess {
    fn drop(&mut self) {
        self.kill();
        self.dying.list().extend(self.process.take());
    }
}

/// Returns when a first process, and so every other of its namespace, is gone.
async fn gone(process: OwnedFd) -> io::Result<()> {
    blocking(move || {
        let limit = Timespec::try_from(END).map_err(io::Error::other)?;
        let poll = || poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit));
        match retry_on_intr(poll)? {
            0 => Err(io::Error::other(format!("processes are still there after {END:?}"))),
            _ => Ok(()),
        }
    })
    .await
}

async fn start(jail: &Jail<'_>, exec: &Exec) -> Result<Running, SandboxError> {
    let action = "start command";
    let failed = |problem: io::Error| SandboxError::retryable(action, problem);
    prepare_mount_points(jail).map_err(|problem| SandboxError::new(action, problem))?;
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut command = Command::new(jail.bubblewrap);
    command.args(arguments(jail)).env_clear().env(SANDBOX_MARK, jail.mark);
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut monitor = jail.spawner.spawn(command).await.map_err(|problem| {
        SandboxError::new(action, super::check::not_run(jail.bubblewrap, &problem))
    })?;
    let request = helper::Request {
        port: (jail.network == Network::None).then_some(jail.gateway_port),
        argv: exec.argv.clone(),
        env: exec.env.clone(),
        workdir: exec.workdir.clone().unwrap_or_else(|| jail.layout.inside_work.clone()),
    };
    let stdin = exec.stdin.as_deref().map(stdin_file).transpose().map_err(failed)?;
    let stdin = stdin.map(OwnedFd::from);
    let ready = blocking(move || ready(ours, &request, stdin)).await.map_err(failed)?;
    let Some((socket, listener)) = ready else {
        return Err(SandboxError::new(action, complaint(&mut monitor).await));
    };
    let first = FirstProcess::of(&monitor, jail.dying).map_err(failed)?;
    let gateway = jail.spec.gateway_socket.clone();
    let bridge = listener.map(|listener| Bridge::start(listener, gateway));
    let bridge = bridge.transpose().map_err(failed)?;
    let pipes = monitor.stdout.take().zip(monitor.stderr.take());
    let (stdout, stderr) = pipes.ok_or_else(|| failed(io::Error::other("no pipes")))?;
    let outputs = Outputs::keep(stdout, stderr, exec);
    descriptors::send(&socket, b"go", None).map_err(failed)?;
    Ok(Running { monitor, first, outputs, _bridge: bridge })
}

/// Asks the helper to get ready; gives its socket and listener. `None` when it is gone.
fn ready(
    socket: UnixStream,
    request: &helper::Request,
    stdin: Option<OwnedFd>,
) -> io::Result<Option<(UnixStream, Option<TcpListener>)>> {
    socket.set_read_timeout(Some(START))?;
    socket.set_write_timeout(Some(START))?;
    let request = serde_json::to_vec(request)?;
    let stdin = stdin.as_ref().map(|file| file as &dyn AsFd);
    match descriptors::send(&socket, &request, stdin) {
        Err(problem) if problem.kind() == io::ErrorKind::BrokenPipe => return Ok(None),
        outcome => outcome?,
    }
    match descriptors::receive(&socket) {
        Ok(Some((_, listener))) => Ok(Some((socket, listener.map(TcpListener::from)))),
        Ok(None) => Ok(None),
        Err(problem) if problem.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        Err(problem) => Err(problem),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// What bubblewrap or the helper said before it ended.
async fn complaint(monitor: &mut Child) -> String {
    let mut said = vec![];
    if let Some(stderr) = monitor.stderr.take() {
        let read = stderr.take(4096);
        let mut read = Box::pin(read);
        let _ = timeout(Duration::from_secs(5), read.read_to_end(&mut said)).await;
    }
    super::check::refused(&String::from_utf8_lossy(&said))
}

/// Makes the folders that bubblewrap would make inside folders the sandbox can write to,
/// and refuses links there: a link could lead outside while mounts are made.
fn prepare_mount_points(jail: &Jail<'_>) -> io::Result<()> {
    for folder in &jail.spec.read_only {
        for (inside, host) in writable(jail.layout) {
            let Ok(rest) = folder.strip_prefix(inside) else { continue };
            let mut place = host.to_owned();
            for part in rest {
                place.push(part);
                match std::fs::symlink_metadata(&place) {
                    Ok(found) if found.is_dir() => {}
                    Ok(_) => {
                        let message = format!(
                            "{} is in the way of a read-only folder",
                            inside.join(rest).display()
                        );
                        return Err(io::Error::other(message));
                    }
                    Err(_) => std::fs::create_dir(&place)?,
                }
            }
        }
    }
    Ok(())
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
    add_system(&mut all);
    add_proc(&mut all);
    all.add(["--dev", "/dev"]);
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
    all.mount("--ro-bind", jail.helper, Path::new(HELPER));
    // What isn't one of the sandbox's folders would be kept in memory.
    all.add(["--remount-ro", "/", "--", HELPER, helper::SUBCOMMAND]);
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
