//! The commands of an Apptainer sandbox.

use super::folders::{Folders, HOME};
use super::image::Image;
use super::program::{self, STAGED_WORK, View};
use super::{ApptainerConfig, ApptainerProvider};
use crate::bridge::Way;
use crate::cgroups::Group;
use crate::folder_sandbox::{Commands, Place};
use crate::helper::{self, Settled};
use crate::libraries::PortableHelper;
use crate::local::LOCAL_PATH;
use crate::mount_points::prepare_mount_points;
use crate::namespaces::{self, Dying, Launch};
use crate::spawner::Spawner;
use crate::{Exec, ExecEnd, SandboxError, SandboxSpec};
use async_trait::async_trait;
use polar_types::Network;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// How long taking over from an image may take.
const SETTLE: Duration = Duration::from_secs(600);
const ACTION: &str = "make sandbox";

#[derive(Debug)]
pub(super) struct ApptainerCommands {
    config: ApptainerConfig,
    spawner: Spawner,
    /// On the host.
    program: PathBuf,
    helper: PortableHelper,
    settings: PathBuf,
    image: Arc<Image>,
    spec: SandboxSpec,
    folders: Folders,
    mark: String,
    env_of_image: BTreeMap<String, String>,
    way: Way,
    group: Option<Arc<Group>>,
    pub(super) dying: Arc<Dying>,
}

impl ApptainerCommands {
    /// Takes the work folder over from the image.
    pub(super) async fn new(
        provider: &ApptainerProvider,
        image: Arc<Image>,
        spec: SandboxSpec,
        folders: Folders,
        mark: String,
    ) -> Result<ApptainerCommands, SandboxError> {
        let program = provider.helper_path()?.to_owned();
        let helper = PortableHelper::of(&program).await;
        let way = Way::of(&spec, provider.config.gateway_port);
        let mut commands = ApptainerCommands {
            helper: helper.map_err(|problem| SandboxError::retryable(ACTION, problem))?,
            config: provider.config.clone(),
            spawner: provider.spawner.clone(),
            settings: provider.settings()?,
            program,
            image,
            spec,
            folders,
            mark,
            env_of_image: BTreeMap::new(),
            way,
            group: None,
            dying: Arc::default(),
        };
        commands.env_of_image = commands.settle().await?;
        commands.group = Group::make(&commands.spec, &commands.mark)?.map(Arc::new);
        Ok(commands)
    }

    pub(super) fn place(&self) -> Place {
        let gateway_url = match self.spec.network {
            Network::None => format!("http://127.0.0.1:{}", self.config.gateway_port),
            Network::Open => format!("http://{}", self.spec.gateway_address),
        };
        Place {
            name: self.spec.name.clone(),
            mark: self.mark.clone(),
            folder: self.folders.all.clone(),
            work: self.folders.work.clone(),
            inside_work: self.spec.workdir.clone(),
            inside_home: HOME.to_owned(),
            gateway_url,
            group: self.group.clone(),
            memory_mb: self.spec.memory_mb,
            storage_mb: self.spec.storage_mb,
            egress: self.way.egress.clone(),
        }
    }

    /// Copies what the image has in the work folder; gives the environment that it sets.
    /// No code of the image is run.
    async fn settle(&self) -> Result<BTreeMap<String, String>, SandboxError> {
        let staged = View { work: STAGED_WORK, read_only: &[], mounts: &[], ..self.view() };
        let mut command = self.monitor(&staged)?;
        command.args([helper::SETTLE, &self.spec.workdir, STAGED_WORK]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.spawner.spawn(command).await;
        let mut child =
            child.map_err(|problem| SandboxError::new(ACTION, self.not_run(&problem)))?;
        // Its guard lives as long as this.
        let _held = child.stdin.take();
        let said = match timeout(SETTLE, child.wait_with_output()).await {
            Ok(said) => said.map_err(|problem| SandboxError::retryable(ACTION, problem))?,
            Err(_) => return Err(SandboxError::retryable(ACTION, format!("no end in {SETTLE:?}"))),
        };
        let refused = || {
            let said = String::from_utf8_lossy(&said.stderr);
            SandboxError::new(ACTION, program::refused(&said))
        };
        if !said.status.success() {
            return Err(refused());
        }
        let settled: Settled = serde_json::from_slice(&said.stdout).map_err(|_| refused())?;
        Ok(settled.env)
    }

    fn view(&self) -> View<'_> {
        View::of(&self.spec, &self.image, &self.folders, &self.helper, &self.settings)
    }

    fn monitor(&self, view: &View<'_>) -> Result<Command, SandboxError> {
        let mut monitor = program::guarded(&self.program, &self.config.apptainer, &self.mark);
        monitor.args(view.arguments()?);
        Ok(monitor)
    }

    fn not_run(&self, problem: &std::io::Error) -> String {
        program::not_run(&self.config.apptainer, problem)
    }
}

#[async_trait]
impl Commands for ApptainerCommands {
    async fn run(&self, exec: Exec, closed: bool) -> Result<ExecEnd, SandboxError> {
        // Nothing that was given up may still change what the mounts are made in.
        self.dying.gone().await?;
        let network = if closed { Network::None } else { self.spec.network };
        let view = View { network, ..self.view() };
        prepare_mount_points(&view.writable(), &self.spec)
            .map_err(|problem| SandboxError::new("start command", problem))?;
        let mut env = BTreeMap::from([("PATH".to_owned(), LOCAL_PATH.to_owned())]);
        env.extend(self.env_of_image.clone());
        let usual = [("HOME", HOME), ("LANG", "C.UTF-8"), ("TERM", "dumb")];
        env.extend(usual.map(|(name, value)| (name.to_owned(), value.to_owned())));
        env.extend(self.way.variables());
        env.extend(self.spec.env.clone());
        env.extend(exec.env.clone());
        let request = helper::Request {
            port: (network == Network::None).then_some(self.way.port),
            argv: exec.argv.clone(),
            env,
            workdir: self.inside(exec.workdir.as_deref().unwrap_or_default()),
            file_size: self.spec.storage_mb.map(|mb| mb.saturating_mul(1 << 20)),
        };
        let launch = Launch {
            monitor: self.monitor(&view)?,
            request,
            way: self.way.clone(),
            group: self.group.as_deref(),
            spawner: &self.spawner,
            dying: &self.dying,
            not_run: &|problem| self.not_run(problem),
            refused: &program::refused,
        };
        namespaces::run(launch, &exec).await
    }

    fn inside(&self, path: &str) -> String {
        Path::new(&self.spec.workdir).join(path).display().to_string()
    }
}
