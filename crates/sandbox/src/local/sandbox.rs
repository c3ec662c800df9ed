//! A local sandbox: a folder, and the commands that run in it.

use super::bubblewrap::{self, Dying, Jail};
use super::layout::Layout;
use super::{LocalConfig, LocalIsolation, LocalProvider, check, process};
use crate::output::create_empty;
use crate::processes::{SANDBOX_MARK, end_all, marked};
use crate::program::Program;
use crate::registry::Registry;
use crate::snapshot::{Limits, Snapshots, tree};
use crate::spawner::Spawner;
use crate::{Change, Exec, ExecEnd, Sandbox, SandboxError, SandboxSpec, write};
use async_trait::async_trait;
use polar_types::Network;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::RwLock;
use tokio_util::sync::CancellationToken;

/// How long running commands may take to end when the sandbox is destroyed.
const END: Duration = Duration::from_secs(60);
/// Where programs are looked for, unless the spec says otherwise.
/// Where commands inside are looked for.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug)]
pub(super) struct LocalSandbox {
    config: LocalConfig,
    helper: Option<Arc<Program>>,
    registry: Registry,
    spawner: Spawner,
    spec: SandboxSpec,
    layout: Layout,
    mark: String,
    gateway_url: String,
    snapshots: Snapshots,
    dying: Arc<Dying>,
    /// Held for reading by every command, so that destroying can wait for them.
    commands: RwLock<()>,
    /// Ends every command.
    ending: CancellationToken,
    /// Whether an open network was taken away.
    closed: AtomicBool,
    destroyed: AtomicBool,
}

impl LocalSandbox {
    pub(super) fn new(
        provider: &LocalProvider,
        spec: SandboxSpec,
        layout: Layout,
        mark: String,
    ) -> Self {
        let config = provider.config.clone();
        let open = spec.network == Network::Open || config.isolation == LocalIsolation::Process;
        let gateway_url = if open {
            format!("http://{}", spec.gateway_address)
        } else {
            format!("http://127.0.0.1:{}", config.gateway_port)
        };
        LocalSandbox {
            helper: provider.helper.clone(),
            registry: provider.registry.clone(),
            spawner: provider.spawner.clone(),
            snapshots: Snapshots::new(layout.snapshots.clone(), Limits::default()),
            config,
            spec,
            layout,
            mark,
            gateway_url,
            dying: Arc::default(),
            commands: RwLock::new(()),
            ending: CancellationToken::new(),
            closed: AtomicBool::new(false),
            destroyed: AtomicBool::new(false),
        }
    }

    async fn run(&self, mut exec: Exec) -> Result<ExecEnd, SandboxError> {
        let mut env = self.base_env();
        env.extend(self.spec.env.clone());
        env.append(&mut exec.env);
        exec.env = env;
        exec.workdir = Some(self.layout.inside(exec.workdir.as_deref().unwrap_or_default()));
        if self.config.isolation == LocalIsolation::Process {
            return process::run(&self.mark, &self.spawner, &exec).await;
        }
        let closed = self.closed.load(Ordering::Acquire);
        let jail = Jail {
            spec: &self.spec,
            network: if closed { Network::None } else { self.spec.network },
            layout: &self.layout,
            bubblewrap: &self.config.bubblewrap,
            helper: check::helper(&self.config, self.helper.as_deref())?,
            gateway_port: self.config.gateway_port,
            mark: &self.mark,
            spawner: &self.spawner,
            dying: &self.dying,
        };
        bubblewrap::run(jail, &exec).await
    }

    fn base_env(&self) -> std::collections::BTreeMap<String, String> {
        let mut env = std::collections::BTreeMap::new();
        let mut set = |name: &str, value: &str| env.insert(name.to_owned(), value.to_owned());
        set("PATH", PATH);
        set("HOME", &self.layout.inside_home);
        set("LANG", "C.UTF-8");
        set("TERM", "dumb");
        if self.config.isolation == LocalIsolation::Process {
            set("TMPDIR", &self.layout.tmp.display().to_string());
        }
        env
    }

    async fn take_snapshot(&self, name: &'static str) -> Result<(), SandboxError> {
        let work = self.layout.work.clone();
        self.snapshots.take(name, move |sink| tree::read(&work, sink)).await
    }
}

#[async_trait]
impl Sandbox for LocalSandbox {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn home(&self) -> &str {
        &self.layout.inside_home
    }

    fn workdir(&self) -> &str {
        &self.layout.inside_work
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
        let path = self.layout.inside(path);
        write::write_file(self, &self.layout.folder, &path, content, executable).await
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

    async fn close_network(&self) -> Result<(), SandboxError> {
        // Each command is in a network of its own, made when it starts.
        self.closed.store(true, Ordering::Release);
        Ok(())
    }

    async fn destroy(&self) -> Result<(), SandboxError> {
        self.ending.cancel();
        let waited = tokio::time::timeout(END, self.commands.write()).await;
        let Ok(_none_running) = waited else {
            return Err(SandboxError::retryable("destroy sandbox", "a command does not end"));
        };
        if self.destroyed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.dying.gone().await?;
        clear(&self.mark, &self.layout.folder).await?;
        self.registry
            .remove(&self.spec.name)
            .map_err(|problem| SandboxError::retryable("forget sandbox", problem))?;
        self.destroyed.store(true, Ordering::Release);
        Ok(())
    }
}

impl Drop for LocalSandbox {
    fn drop(&mut self) {
        // From now on it is the sweep's.
        if !self.destroyed.load(Ordering::Acquire) {
            self.registry.give_up(&self.spec.name);
        }
    }
}

/// Ends all processes with this mark and removes the folder.
pub(super) async fn clear(mark: &str, folder: &Path) -> Result<(), SandboxError> {
    let action = "destroy sandbox";
    if !end_all(|| marked(SANDBOX_MARK, |found| found == mark)).await {
        return Err(SandboxError::retryable(action, "its processes cannot be killed"));
    }
    let owned = folder.to_owned();
    let removed = tokio::task::spawn_blocking(move || Layout::remove(&owned)).await;
    removed.map_err(std::io::Error::other).and_then(|outcome| outcome).map_err(|problem| {
        SandboxError::retryable(action, format!("cannot remove {}: {problem}", folder.display()))
    })
}
