//! One thread that starts all processes of a provider.
//!
//! A process that asks to die with its parent dies with the *thread* that started it.
//! Threads of an async runtime come and go, so children are started by a thread that
//! lives as long as any sandbox of the provider, and ends with this process.

use std::io;
use std::sync::mpsc;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

struct Job {
    command: Command,
    runtime: Handle,
    answer: oneshot::Sender<io::Result<Child>>,
}

/// Handle to the thread; the thread ends when the last one is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Spawner {
    jobs: mpsc::Sender<Job>,
}

impl Spawner {
    pub(crate) fn start() -> io::Result<Spawner> {
        let (jobs, todo) = mpsc::channel::<Job>();
        std::thread::Builder::new().name("sandbox-spawner".into()).spawn(move || {
            for Job { mut command, runtime, answer } in todo {
                let _context = runtime.enter();
                // An asker that is gone drops the child, which kills it.
                let _ = answer.send(command.spawn());
            }
        })?;
        Ok(Spawner { jobs })
    }

    /// Starts a process. It is killed when its handle is dropped.
    pub(crate) async fn spawn(&self, mut command: Command) -> io::Result<Child> {
        command.kill_on_drop(true);
        let (answer, child) = oneshot::channel();
        let job = Job { command, runtime: Handle::current(), answer };
        let gone = || io::Error::other("the thread that starts processes is gone");
        self.jobs.send(job).map_err(|_| gone())?;
        child.await.map_err(|_| gone())?
    }
}
