//! Sandboxes that are made, and go away, only when the test lets them.

use async_trait::async_trait;
use polar_node::NodeConfig;
use polar_sandbox::{Exec, ExecEnd, Sandbox, SandboxError, SandboxProvider, SandboxSpec};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Semaphore;

/// Lets so many through, each once.
pub(crate) struct Gate(Semaphore);

impl Gate {
    pub(crate) fn open(&self, times: usize) {
        self.0.add_permits(times);
    }

    async fn pass(&self) {
        self.0.acquire().await.unwrap().forget();
    }
}

/// What the test holds of a node's sandboxes.
pub(crate) struct Gates {
    pub(crate) making: Gate,
    pub(crate) removing: Gate,
    /// Whether no sandbox can be made.
    broken: AtomicBool,
    /// Whether sandboxes break off inside Polar, with a journal that cannot be read.
    spoils: AtomicBool,
    live: AtomicUsize,
    most: AtomicUsize,
}

/// For a gate that nobody waits at.
pub(crate) const OPEN: usize = 1000;

impl Gates {
    /// Puts gates before the node's sandboxes, which let so many through at first.
    pub(crate) fn of(config: &mut NodeConfig, making: usize, removing: usize) -> Arc<Self> {
        let gate = |times| Gate(Semaphore::new(times));
        let gates = Arc::new(Self {
            making: gate(making),
            removing: gate(removing),
            broken: AtomicBool::new(false),
            spoils: AtomicBool::new(false),
            live: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        });
        let gated = |inner: &Arc<dyn SandboxProvider>| -> Arc<dyn SandboxProvider> {
            Arc::new(GatedProvider { inner: inner.clone(), gates: gates.clone() })
        };
        config.providers = config.providers.iter().map(gated).collect();
        gates
    }

    /// Lets no sandbox be made, or all again.
    pub(crate) fn break_down(&self, broken: bool) {
        self.broken.store(broken, Ordering::SeqCst);
    }

    /// Breaks every attempt off once it has a journal, of which nothing can be read then.
    pub(crate) fn spoil(&self) {
        self.spoils.store(true, Ordering::SeqCst);
    }

    /// Sandboxes there are now.
    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    /// The most there ever were at a time.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

struct GatedProvider {
    inner: Arc<dyn SandboxProvider>,
    gates: Arc<Gates>,
}

#[async_trait]
impl SandboxProvider for GatedProvider {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    async fn check(&self) -> Result<(), SandboxError> {
        self.inner.check().await
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        self.gates.making.pass().await;
        if self.gates.broken.load(Ordering::SeqCst) {
            return Err(SandboxError::retryable("make a sandbox", "the machine is broken"));
        }
        let attempt = spec.host_dir.parent().unwrap().to_owned();
        // Plain processes can't be held to it, and need not be.
        let inner = self.inner.create(SandboxSpec { memory_mb: None, ..spec }).await?;
        let live = self.gates.live.fetch_add(1, Ordering::SeqCst) + 1;
        self.gates.most.fetch_max(live, Ordering::SeqCst);
        Ok(Box::new(GatedSandbox { inner, attempt, gates: self.gates.clone() }))
    }

    async fn sweep(&self, keep: &HashSet<String>) -> Result<u32, SandboxError> {
        self.inner.sweep(keep).await
    }
}

struct GatedSandbox {
    inner: Box<dyn Sandbox>,
    /// The folder of the session's attempt.
    attempt: PathBuf,
    gates: Arc<Gates>,
}

#[async_trait]
impl Sandbox for GatedSandbox {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn home(&self) -> &str {
        self.inner.home()
    }

    fn workdir(&self) -> &str {
        self.inner.workdir()
    }

    fn gateway_url(&self) -> &str {
        self.inner.gateway_url()
    }

    async fn write_file(&self, path: &str, content: &[u8], run: bool) -> Result<(), SandboxError> {
        self.inner.write_file(path, content, run).await
    }

    async fn exec(&self, exec: Exec) -> Result<ExecEnd, SandboxError> {
        self.inner.exec(exec).await
    }

    async fn mark_base(&self) -> Result<(), SandboxError> {
        let journal = self.attempt.join("artifacts/journal");
        if self.gates.spoils.load(Ordering::SeqCst) && journal.exists() {
            std::fs::write(journal, "not to be read, yet somebody's").unwrap();
            panic!("broken off");
        }
        self.inner.mark_base().await
    }

    async fn diff(&self) -> Result<Vec<u8>, SandboxError> {
        self.inner.diff().await
    }

    async fn destroy(&self) -> Result<(), SandboxError> {
        self.gates.removing.pass().await;
        self.inner.destroy().await?;
        self.gates.live.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}
