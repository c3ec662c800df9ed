//! Polar's sandboxes of one runtime.

use anyhow::{Result, bail};
use polar_sandbox::{
    ApptainerConfig, ApptainerProvider, DockerConfig, DockerProvider, Exec, ExecEnd, LocalConfig,
    LocalProvider, Sandbox, SandboxProvider, SandboxSpec,
};
use polar_types::{Network, RuntimeKind};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::net::UnixListener;

const NODE: &str = "start-cost";

pub(crate) struct Sandboxes {
    provider: Box<dyn SandboxProvider>,
    image: Option<String>,
    folder: PathBuf,
    gateway: PathBuf,
    number: AtomicU32,
    /// Nobody answers, as nobody asks.
    _gateway: UnixListener,
}

impl Sandboxes {
    pub(crate) fn new(kind: RuntimeKind, image: Option<&str>, folder: &Path) -> Result<Self> {
        let state = folder.join("state");
        let provider: Box<dyn SandboxProvider> = match kind {
            RuntimeKind::Local => Box::new(LocalProvider::new(LocalConfig::new(NODE, state))?),
            RuntimeKind::Docker => Box::new(DockerProvider::new(DockerConfig::new(NODE, state))),
            RuntimeKind::Podman => Box::new(DockerProvider::new(DockerConfig::podman(NODE, state))),
            RuntimeKind::Apptainer => {
                Box::new(ApptainerProvider::new(ApptainerConfig::new(NODE, state))?)
            }
        };
        let gateway = folder.join("gateway.sock");
        let listener = UnixListener::bind(&gateway)?;
        Ok(Self {
            provider,
            image: image.map(str::to_owned),
            folder: folder.to_owned(),
            gateway,
            number: AtomicU32::new(0),
            _gateway: listener,
        })
    }

    pub(crate) async fn check(&self) -> Result<()> {
        Ok(self.provider.check().await?)
    }

    pub(crate) async fn get_image(&self) -> Result<()> {
        match &self.image {
            Some(image) => Ok(self.provider.get_image(image).await?),
            None => Ok(()),
        }
    }

    pub(crate) async fn make(&self) -> Result<Box<dyn Sandbox>> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let spec = SandboxSpec {
            name: format!("s{number}"),
            host_dir: self.folder.join(format!("s{number}")),
            image: self.image.clone(),
            workdir: "/workspace".to_owned(),
            env: BTreeMap::new(),
            network: Network::None,
            allowed_hosts: Vec::new(),
            gateway_socket: self.gateway.clone(),
            gateway_address: ([127, 0, 0, 1], 9).into(),
            read_only: Vec::new(),
            cpus: None,
            memory_mb: None,
            pids: None,
            user: None,
            storage_mb: None,
            gpus: None,
            mounts: Vec::new(),
        };
        Ok(self.provider.create(spec).await?)
    }

    pub(crate) async fn run_true(&self, sandbox: &dyn Sandbox) -> Result<()> {
        let exec = Exec {
            argv: vec!["true".to_owned()],
            workdir: None,
            env: BTreeMap::new(),
            stdin: None,
            timeout: Duration::from_secs(60),
            stdout: self.folder.join("stdout"),
            stderr: self.folder.join("stderr"),
            output_limit: 1 << 16,
        };
        match sandbox.exec(exec).await? {
            ExecEnd::Exited(0) => Ok(()),
            end => {
                let said = std::fs::read_to_string(self.folder.join("stderr"))?;
                bail!("`true` ended with {end:?}: {said}")
            }
        }
    }
}
