//! One command in namespaces of its own, whatever program makes them.
//!
//! ```text
//! node ── monitor … ──┬── first process of the namespace … ── helper → command
//!                     └── whatever serves its files
//! ```
//!
//! The monitor ends with the node and the first process with the monitor, and when the first process dies the kernel kills all the rest. That is the
//! only way a command is ended here: the first process is killed and its end awaited, so
//! that the command's tree is gone, not only going, when [`run`] returns. Dropping it kills
//! as surely, but can't wait.

use crate::bridge::{Bridge, Way};
use crate::cgroups::Group;
use crate::exec::{Outputs, exit_code, stdin_file};
use crate::processes::{depth, is_first_of_namespace, quiet_descendants};
use crate::spawner::Spawner;
use crate::{Exec, ExecEnd, SandboxError, descriptors, helper};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout, timeout_at};

/// How long the way to a command's start may take.
const START: Duration = Duration::from_secs(30);
const START_ACTION: &str = "start command";
const END_ACTION: &str = "end command";
/// How long a killed tree may take to be gone.
const END: Duration = Duration::from_secs(20);

/// How a command is started.
pub(crate) struct Launch<'a> {
    /// Makes the namespaces and runs the helper in them as their first process.
    pub(crate) monitor: Command,
    pub(crate) request: helper::Request,
    /// What its port leads to.
    pub(crate) way: Way,
    /// What holds the command to its limits.
    pub(crate) group: Option<&'a Group>,
    pub(crate) spawner: &'a Spawner,
    pub(crate) dying: &'a Arc<Dying>,
    /// Says what to do about a monitor that could not be run.
    pub(crate) not_run: &'a (dyn Fn(&io::Error) -> String + Sync),
    /// Makes a message of what the monitor said before it ended.
    pub(crate) refused: &'a (dyn Fn(&str) -> String + Sync),
}

/// Runs a command to the end of its whole tree.
pub(crate) async fn run(launch: Launch<'_>, exec: &Exec) -> Result<ExecEnd, SandboxError> {
    let deadline = Instant::now() + exec.timeout;
    // Those that were given up must be gone, not only going, before anything new starts.
    launch.dying.gone().await?;
    let Ok(started) = timeout_at(deadline, start(launch, exec)).await else {
        return Ok(ExecEnd::TimedOut);
    };
    let mut running = started?;
    let end = match timeout_at(deadline, running.monitor.wait()).await {
        Ok(status) => status.and_then(end_of),
        Err(_) => Ok(ExecEnd::TimedOut),
    };
    running.end().await?;
    end.map_err(|problem| SandboxError::retryable("run command", problem))
}

/// A monitor tells by its own exit code how the command ended, whatever that was.
fn end_of(monitor: ExitStatus) -> io::Result<ExecEnd> {
    match monitor.signal() {
        None => Ok(ExecEnd::Exited(exit_code(monitor))),
        Some(signal) => Err(io::Error::other(format!(
            "what holds its namespaces was killed by somebody else (signal {signal})"
        ))),
    }
}

/// A command on its way. Dropping it kills its tree.
#[derive(Debug)]
struct Running {
    monitor: Child,
    tree: Tree,
    outputs: Outputs,
    /// Lives as long as the command.
    _bridge: Option<Bridge>,
    /// What the monitor may know by that the node lives.
    _socket: UnixStream,
}

impl Running {
    /// Kills what is left and returns when all of it is gone and its output kept.
    async fn end(mut self) -> Result<(), SandboxError> {
        let failed = |problem: io::Error| SandboxError::retryable(END_ACTION, problem);
        self.tree.kill_command();
        self.tree.command_gone().await.map_err(failed)?;
        // Takes its mounts down before it ends.
        match timeout(END, self.monitor.wait()).await {
            Ok(Ok(_)) => {}
            Ok(Err(problem)) => return Err(failed(problem)),
            Err(_) => {
                let problem = format!("its processes are still there after {END:?}");
                return Err(SandboxError::retryable(END_ACTION, problem));
            }
        }
        self.tree.gone().await.map_err(failed)?;
        self.outputs.finish().await
    }
}

/// Processes that were killed without waiting for their end.
#[derive(Debug, Default)]
pub(crate) struct Dying {
    processes: Mutex<Vec<OwnedFd>>,
    /// Whoever waits for them; others wait for the same.
    waiting: tokio::sync::Mutex<()>,
}

impl Dying {
    /// Returns when all of them, and with them their namespaces, are gone.
    pub(crate) async fn gone(&self) -> Result<(), SandboxError> {
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

/// The processes below the monitor.
#[derive(Debug)]
struct Tree {
    /// The first process of the command's namespace.
    first: Option<OwnedFd>,
    /// Those outside of it, such as what serves its files: they may outlive a monitor that
    /// is killed.
    outside: Vec<OwnedFd>,
    dying: Arc<Dying>,
}

impl Tree {
    /// Gives those inside of the namespace as well.
    fn of(monitor: &Child, dying: &Arc<Dying>) -> io::Result<(Tree, Vec<Pid>)> {
        let monitor = monitor.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let depth_of_monitor = monitor.map(depth).unwrap_or_default();
        let mut tree = Tree { first: None, outside: vec![], dying: dying.clone() };
        let mut inside = vec![];
        for process in monitor.map(quiet_descendants).unwrap_or_default() {
            let opened = pidfd_open(process, PidfdFlags::empty());
            if depth(process) == depth_of_monitor {
                tree.outside.push(opened?);
                continue;
            }
            inside.push(process);
            if is_first_of_namespace(process) {
                tree.first = Some(opened?);
            }
        }
        match tree.first {
            Some(_) => Ok((tree, inside)),
            None => Err(io::Error::other("it has no process namespace")),
        }
    }

    fn kill_command(&self) {
        if let Some(process) = &self.first {
            // Gone already is as good.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }

    fn kill_outside(&self) {
        for process in &self.outside {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }

    /// Returns when the first process is gone, and with it all others of its namespace.
    async fn command_gone(&mut self) -> io::Result<()> {
        if let Some(process) = &self.first {
            gone(process.try_clone()?).await?;
        }
        self.first = None;
        Ok(())
    }

    /// Returns when the others are gone as well, which the monitor should have seen to.
    async fn gone(&mut self) -> io::Result<()> {
        self.kill_outside();
        for process in &self.outside {
            gone(process.try_clone()?).await?;
        }
        self.outside.clear();
        Ok(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.kill_command();
        self.kill_outside();
        self.dying.list().extend(self.first.take().into_iter().chain(self.outside.drain(..)));
    }
}

/// Returns when a process is gone; of a first process, when its whole namespace is.
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

async fn start(launch: Launch<'_>, exec: &Exec) -> Result<Running, SandboxError> {
    let failed = |problem: io::Error| SandboxError::retryable(START_ACTION, problem);
    let Launch { monitor: mut command, request, way, group, .. } = launch;
    let Launch { spawner, dying, not_run, refused, .. } = launch;
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let monitor = spawner.spawn(command).await;
    let mut monitor =
        monitor.map_err(|problem| SandboxError::new(START_ACTION, not_run(&problem)))?;
    let stdin = exec.stdin.as_deref().map(stdin_file).transpose().map_err(failed)?;
    let stdin = stdin.map(OwnedFd::from);
    let ready = blocking(move || ready(ours, &request, stdin)).await.map_err(failed)?;
    let Some((socket, listener)) = ready else {
        return Err(SandboxError::new(START_ACTION, refused(&complaint(&mut monitor).await)));
    };
    let (tree, inside) = Tree::of(&monitor, dying).map_err(failed)?;
    if let Some(group) = group {
        inside.into_iter().try_for_each(|process| group.add(process)).map_err(failed)?;
    }
    let bridge = listener.map(|listener| Bridge::start(listener, way));
    let bridge = bridge.transpose().map_err(failed)?;
    let pipes = monitor.stdout.take().zip(monitor.stderr.take());
    let (stdout, stderr) = pipes.ok_or_else(|| failed(io::Error::other("no pipes")))?;
    let outputs = Outputs::keep(stdout, stderr, exec);
    descriptors::send(&socket, b"go", None).map_err(failed)?;
    Ok(Running { monitor, tree, outputs, _bridge: bridge, _socket: socket })
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

/// What the monitor or the helper said before it ended.
async fn complaint(monitor: &mut Child) -> String {
    let mut said = vec![];
    if let Some(stderr) = monitor.stderr.take() {
        let read = stderr.take(4096);
        let mut read = Box::pin(read);
        let _ = timeout(Duration::from_secs(5), read.read_to_end(&mut said)).await;
    }
    String::from_utf8_lossy(&said).into_owned()
}
