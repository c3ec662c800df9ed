//! A Docker sandbox: commands, files and changes of one container.

use super::container::{Container, HOME};
use super::daemon::{Attached, Output, Start};
use super::engine::ContainerEngine;
use crate::output::{LimitedFile, create_empty};
use crate::registry::Registry;
use crate::snapshot::{Limits, Snapshots};
use crate::{Change, Exec, ExecEnd, Sandbox, SandboxError, SandboxSpec, write};
use crate::{limits, storage};
use async_trait::async_trait;
use futures_util::StreamExt;
use polar_types::{Network, NetworkUse};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::RwLock;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use tokio_util::io::{StreamReader, SyncIoBridge};
use tokio_util::sync::CancellationToken;

/// Becomes the command, as a shell would start it.
const BECOME: &str = r#"exec "$@""#;
/// The same with no file longer than so many blocks of 512 bytes: Podman's API for Docker's clients
/// takes limits of resources and does not set them.
const BECOME_WITHIN: &str = r#"ulimit -f "$0"; exec "$@""#;
/// How often to ask whether a command has ended whose output stays open.
const ASK: Duration = Duration::from_millis(500);
/// How long the output of a dead command may take to be read to its end, and the daemon
/// to notice that it ended.
const DRAIN: Duration = Duration::from_secs(30);
/// How long commands may take to end when the sandbox is destroyed.
const END: Duration = Duration::from_secs(180);
/// What Docker says of a command whose output it could not pass on, beside a shell of a program
/// that it may not run.
const NOT_RUN: i32 = 126;
const KILLED_FROM_OUTSIDE: &str = "its container was killed by somebody else";
/// The code of a command that was killed.
const KILLED: i32 = 137;

#[derive(Debug)]
pub(super) struct DockerSandbox {
    container: Arc<Container>,
    registry: Registry,
    spec: SandboxSpec,
    /// On the host.
    folder: PathBuf,
    gateway_url: String,
    snapshots: Snapshots,
    /// Held for reading by every command, so that destroying can wait for them.
    commands: RwLock<()>,
    /// Ends every command.
    ending: CancellationToken,
    destroyed: AtomicBool,
}

impl DockerSandbox {
    pub(super) fn new(
        container: Arc<Container>,
        registry: Registry,
        spec: SandboxSpec,
        folder: PathBuf,
    ) -> DockerSandbox {
        DockerSandbox {
            gateway_url: format!("http://127.0.0.1:{}", container.way.port),
            snapshots: Snapshots::new(folder.join("snapshots"), Limits::default()),
            container,
            registry,
            spec,
            folder,
            commands: RwLock::new(()),
            ending: CancellationToken::new(),
            destroyed: AtomicBool::new(false),
        }
    }

    async fn run(&self, exec: Exec) -> Result<ExecEnd, SandboxError> {
        let deadline = Instant::now() + exec.timeout;
        let start = self.start_of(&exec);
        let Ok(started) = timeout_at(deadline, self.container.exec(start)).await else {
            // It may have started all the same.
            return self.container.end_suspects().await.map(|()| ExecEnd::TimedOut);
        };
        let (Attached { id, mut output, mut input }, command) = started?;
        let content = exec.stdin.unwrap_or_default();
        let feed = async {
            // A command that doesn't read it is no problem.
            let _ = input.write_all(&content).await;
            let _ = input.shutdown().await;
            std::future::pending::<()>().await
        };
        let mut files = Files::create(&exec.stdout, &exec.stderr, exec.output_limit).await?;
        let kills = self.container.memory_kills().await;
        let (ended, words) = tokio::select! {
            ended = self.follow(&id, &mut output, &mut files) => (Some(ended), None),
            () = feed => (None, None),
            () = tokio::time::sleep_until(deadline) => (None, None),
            limit = self.full() => (Some(Ok(KILLED)), Some(storage::words(limit))),
        };
        let killed = self.container.memory_kills().await.saturating_sub(kills);
        // The daemon forgets the commands of a container that has ended.
        let no_end_of_its_own = matches!(ended, Some(Ok(KILLED) | Err(_)));
        if no_end_of_its_own && killed == 0 && words.is_none() && self.container.was_killed().await
        {
            // It is there again for the next command, which the daemon, late to learn of the
            // end, may otherwise send into what is gone.
            if let Err(problem) = command.kill().await {
                tracing::warn!(%problem, "the next command tries again");
            }
            return Err(SandboxError::retryable("run command", KILLED_FROM_OUTSIDE));
        }
        let ended = ended.transpose()?;
        let code = match ended {
            Some(code) if words.is_none() => command.end().await.map(|()| ExecEnd::Exited(code)),
            Some(code) => command.kill().await.map(|()| ExecEnd::Exited(code)),
            None => command.kill().await.map(|()| ExecEnd::TimedOut),
        }?;
        let drained = timeout(DRAIN, files.keep_all(&mut output)).await;
        drained.map_err(|_| SandboxError::retryable("keep output", "it has no end"))??;
        let out_of_memory = limits::out_of_memory(self.spec.memory_mb, killed);
        let words = words.into_iter().chain((killed > 0).then_some(out_of_memory));
        for words in words {
            files.keep(Output::Stderr(words.into())).await?;
        }
        files.finish().await?;
        Ok(code)
    }

    /// Returns when its files hold more than they may, with what that is.
    async fn full(&self) -> u64 {
        let Some(limit) = self.spec.storage_mb else { return std::future::pending().await };
        let bytes = limit.saturating_mul(1 << 20);
        let mut most = None;
        loop {
            let started = std::time::Instant::now();
            match self.container.daemon.size(&self.container.id).await {
                Ok(held) => {
                    let most = *most.get_or_insert_with(|| storage::most_for_command(held, bytes));
                    if held > most {
                        return limit;
                    }
                    storage::pause(started, most - held).await;
                }
                Err(problem) => {
                    tracing::warn!(%problem, "measured again");
                    storage::pause(started, bytes).await;
                }
            }
        }
    }

    /// Keeps output until the command has ended; gives its code.
    async fn follow(
        &self,
        id: &str,
        output: &mut Pieces,
        files: &mut Files,
    ) -> Result<i32, SandboxError> {
        let daemon = &self.container.daemon;
        let mut ask = interval(ASK);
        ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut open = true;
        let mut closed_at = None;
        let mut broken = false;
        loop {
            tokio::select! {
                biased;
                piece = output.next(), if open => match piece {
                    Some(piece) => files.keep(piece?).await?,
                    None => {
                        open = false;
                        broken = daemon.living_process(id).await?.is_some();
                        closed_at = Some(Instant::now());
                        ask = interval(ASK / 20);
                    }
                },
                _ = ask.tick() => {
                    match daemon.exit_code(id).await? {
                        Some(NOT_RUN) if broken => return Err(let_go()),
                        Some(code) => return Ok(code),
                        None => {}
                    }
                    if closed_at.is_some_and(|at: Instant| at.elapsed() > DRAIN) {
                        return Err(let_go());
                    }
                }
            }
        }
    }

    fn start_of(&self, exec: &Exec) -> Start {
        let mut env = BTreeMap::from([("HOME", HOME), ("LANG", "C.UTF-8"), ("TERM", "dumb")]);
        let proxy = self.container.way.variables();
        env.extend(proxy.iter().map(|(name, value)| (&**name, &**value)));
        env.extend(self.spec.env.iter().map(|(name, value)| (&**name, &**value)));
        env.extend(exec.env.iter().map(|(name, value)| (&**name, &**value)));
        let blocks = self.spec.storage_mb.map(|mb| mb.saturating_mul(2048).to_string());
        let (script, zeroth) = match blocks {
            Some(blocks) => (BECOME_WITHIN, blocks),
            None => (BECOME, "sh".to_owned()),
        };
        let argv = ["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned(), zeroth];
        Start {
            argv: argv.into_iter().chain(exec.argv.iter().cloned()).collect(),
            env: env.into_iter().map(|(name, value)| format!("{name}={value}")).collect(),
            workdir: Some(self.inside(exec.workdir.as_deref().unwrap_or_default())),
            stdin: true,
        }
    }

    fn inside(&self, path: &str) -> String {
        Path::new(&self.spec.workdir).join(path).display().to_string()
    }

    async fn take_snapshot(&self, name: &'static str) -> Result<(), SandboxError> {
        std::fs::create_dir_all(&self.folder)
            .map_err(|problem| SandboxError::retryable("compare work folder", problem))?;
        let path = format!("{}/.", self.spec.workdir.trim_end_matches('/'));
        let daemon = &self.container.daemon;
        let archive = daemon.download(&self.container.id, path).await?;
        let archive = SyncIoBridge::new(StreamReader::new(Box::pin(archive)));
        self.snapshots.take(name, move |sink| super::snapshot::read(archive, sink)).await
    }
}

fn let_go() -> SandboxError {
    SandboxError::retryable("run command", "the daemon let go of it; was it restarted?")
}

#[async_trait]
impl Sandbox for DockerSandbox {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn home(&self) -> &str {
        HOME
    }

    fn workdir(&self) -> &str {
        &self.spec.workdir
    }

    fn gateway_url(&self) -> &str {
        &self.gateway_url
    }

    async fn write_file(
        &self,
        path: &str,
        content: &[u8],
        executable: bool,
    ) -> Result<(), SandboxError> {
        std::fs::create_dir_all(&self.folder)
            .map_err(|problem| SandboxError::retryable("write file", problem))?;
        write::write_file(self, &self.folder, &self.inside(path), content, executable).await
    }

    async fn exec(&self, exec: Exec) -> Result<ExecEnd, SandboxError> {
        let _running = self.commands.read().await;
        create_empty(&exec).await?;
        tokio::select! {
            biased;
            () = self.ending.cancelled() => {
                Err(SandboxError::new("run command", "the sandbox is destroyed"))
            }
            end = self.run(exec) => end,
        }
    }

    async fn mark_base(&self) -> Result<(), SandboxError> {
        self.take_snapshot("base").await
    }

    async fn diff(&self) -> Result<Vec<u8>, SandboxError> {
        self.take_snapshot("now").await?;
        self.snapshots.patch("base", "now").await
    }

    async fn changes(&self, most: u64) -> Result<Vec<Change>, SandboxError> {
        self.snapshots.changes("base", "now", most).await
    }

    fn network_use(&self) -> NetworkUse {
        self.container.way.egress.seen()
    }

    async fn close_network(&self) -> Result<(), SandboxError> {
        self.container.way.egress.close();
        match self.spec.network {
            Network::None => Ok(()),
            Network::Open if self.container.daemon.engine == ContainerEngine::Podman => {
                let message = "a Podman container without root keeps the network that it was \
                     made with; make it with `network` \"none\", or use docker";
                Err(SandboxError::new("close network of container", message))
            }
            Network::Open => self.container.daemon.disconnect(&self.container.id).await,
        }
    }

    async fn destroy(&self) -> Result<(), SandboxError> {
        self.ending.cancel();
        let waited = timeout(END, self.commands.write()).await;
        let Ok(_none_running) = waited else {
            return Err(SandboxError::retryable("destroy sandbox", "a command does not end"));
        };
        if self.destroyed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.container.daemon.remove(&self.container.id).await?;
        forget(&self.registry, &self.spec.name, &self.folder)?;
        self.destroyed.store(true, Ordering::Release);
        Ok(())
    }
}

impl Drop for DockerSandbox {
    fn drop(&mut self) {
        // From now on it is the sweep's.
        if !self.destroyed.load(Ordering::Acquire) {
            self.registry.give_up(&self.spec.name);
        }
    }
}

/// Removes what is on the host and strikes the sandbox off.
pub(super) fn forget(registry: &Registry, name: &str, folder: &Path) -> Result<(), SandboxError> {
    let removed = match std::fs::remove_dir_all(folder) {
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    if let Some(above) = folder.parent() {
        // Not empty is not ours to remove.
        let _ = std::fs::remove_dir(above);
    }
    removed.and_then(|()| registry.remove(name)).map_err(|problem| {
        let message = format!("cannot remove {}: {problem}", folder.display());
        SandboxError::retryable("forget sandbox", message)
    })
}

type Pieces =
    std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<Output, SandboxError>> + Send>>;

/// Both outputs of a command.
struct Files {
    stdout: LimitedFile,
    stderr: LimitedFile,
}

impl Files {
    async fn create(stdout: &Path, stderr: &Path, limit: u64) -> Result<Files, SandboxError> {
        let create = async || {
            let stdout = LimitedFile::create(stdout, limit).await?;
            Ok(Files { stdout, stderr: LimitedFile::create(stderr, limit).await? })
        };
        create().await.map_err(not_kept)
    }

    async fn keep(&mut self, piece: Output) -> Result<(), SandboxError> {
        let kept = match piece {
            Output::Stdout(bytes) => self.stdout.write(&bytes).await,
            Output::Stderr(bytes) => self.stderr.write(&bytes).await,
        };
        kept.map_err(not_kept)
    }

    async fn keep_all(&mut self, output: &mut Pieces) -> Result<(), SandboxError> {
        while let Some(piece) = output.next().await {
            self.keep(piece?).await?;
        }
        Ok(())
    }

    async fn finish(self) -> Result<(), SandboxError> {
        self.stdout.finish().await.map_err(not_kept)?;
        self.stderr.finish().await.map_err(not_kept)
    }
}

fn not_kept(problem: io::Error) -> SandboxError {
    SandboxError::retryable("keep output", problem)
}
