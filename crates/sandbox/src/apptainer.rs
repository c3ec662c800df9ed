//! Sandboxes that are Apptainer containers, without any rights of root.
//!
//! Each command is an `apptainer exec` of its own, with namespaces of its own, for the
//! reasons that local sandboxes do the same: the end of a command is the end of its process
//! namespace, and between commands a sandbox is a folder. What commands of one sandbox
//! share is their files: the work folder, the home folder and `/tmp` lie in the sandbox's
//! folder on the host, and what is written elsewhere in the image's files goes to an overlay
//! there. Commands that run at the same time see each other's files in those three at once;
//! elsewhere, what one has looked at may stay as it was then until the command ends.
//!
//! Everything inside belongs to the user that the node runs as, whoever the image had it
//! belong to.

mod commands;
mod folders;
mod image;
mod program;

use crate::cgroups;
use crate::folder_sandbox::{self, FolderSandbox};
use crate::holdings::Holdings;
use crate::limits::Runtime;
use crate::mounts::{self, AllowedMount};
use crate::program::Program;
use crate::registry::Entry;
use crate::spawner::Spawner;
use crate::{LocalConfig, Sandbox, SandboxError, SandboxProvider, SandboxSpec};
use async_trait::async_trait;
use commands::ApptainerCommands;
use folders::Folders;
use image::{Image, Images};
use polar_types::RuntimeOffer;
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const CHECK: &str = "check Apptainer";

/// How to make Apptainer sandboxes.
#[derive(Debug, Clone)]
pub struct ApptainerConfig {
    /// Name of the node. Sweeping touches only what carries this name and `state_dir`.
    pub node: String,
    /// Folder for what the provider must remember across restarts. One process's at a
    /// time.
    pub state_dir: PathBuf,
    /// Folder for unpacked images, which several processes may share.
    pub image_cache: PathBuf,
    /// The program; looked for in `PATH` when it is a mere name.
    pub apptainer: PathBuf,
    /// A binary that calls [`helper::run_if_called`](crate::helper::run_if_called) first in
    /// its `main`, such as `polar`. When absent: this program if it is `polar`, or else a
    /// `polar-sandbox-helper` or `polar` beside it or one folder up.
    pub helper: Option<PathBuf>,
    /// Port on a sandbox's own loopback that leads to the gateway.
    pub gateway_port: u16,
    /// What tasks may have shown of this machine.
    pub allowed_mounts: Vec<AllowedMount>,
}

impl ApptainerConfig {
    /// The `apptainer` in `PATH`, with everything else as usual.
    pub fn new(node: impl Into<String>, state_dir: impl Into<PathBuf>) -> ApptainerConfig {
        let state_dir = state_dir.into();
        ApptainerConfig {
            node: node.into(),
            image_cache: state_dir.join("images"),
            state_dir,
            apptainer: "apptainer".into(),
            helper: None,
            gateway_port: LocalConfig::GATEWAY_PORT,
            allowed_mounts: vec![],
        }
    }
}

/// Makes Apptainer sandboxes.
#[derive(Debug)]
pub struct ApptainerProvider {
    config: ApptainerConfig,
    helper: Option<Program>,
    holdings: Holdings,
    spawner: Spawner,
    images: Images,
    /// Images that were asked for, so that each build has a name of its own.
    builds: AtomicU64,
}

impl ApptainerProvider {
    /// Starts nothing but the thread that will start commands.
    pub fn new(mut config: ApptainerConfig) -> Result<ApptainerProvider, SandboxError> {
        let spawner = Spawner::start()
            .map_err(|problem| SandboxError::retryable("start Apptainer sandboxes", problem))?;
        config.helper = config.helper.or_else(crate::helper::find);
        let copy = config.state_dir.join("sandboxes").join("helper-of-apptainer");
        // One that is not there is told by the check, and whenever it is needed.
        let helper = config.helper.as_deref().and_then(|path| Program::open(path, copy).ok());
        let holdings = Holdings::new(&config.node, &config.state_dir, "apptainer");
        let images = Images::new(config.image_cache.clone());
        Ok(ApptainerProvider {
            config,
            helper,
            holdings,
            spawner,
            images,
            builds: AtomicU64::new(0),
        })
    }

    async fn make(
        &self,
        spec: SandboxSpec,
        folders: Folders,
    ) -> Result<Box<dyn Sandbox>, SandboxError> {
        let mark = self.holdings.mark(&spec.name);
        let named = spec.image.as_deref().filter(|image| !image.is_empty()).ok_or_else(|| {
            let message = format!("an Apptainer sandbox needs an `image`; {}", image::EXAMPLE);
            SandboxError::new("make sandbox", message)
        })?;
        let image = self.images.get(&self.config, self.helper_path()?, named, &mark).await?;
        self.make_on(image, spec, folders, mark).await
    }

    async fn make_on(
        &self,
        image: Arc<Image>,
        spec: SandboxSpec,
        folders: Folders,
        mark: String,
    ) -> Result<Box<dyn Sandbox>, SandboxError> {
        folders.make().map_err(|problem| {
            let message = format!("{}: {problem}", folders.all.display());
            SandboxError::retryable("make sandbox folder", message)
        })?;
        let commands = ApptainerCommands::new(self, image, spec, folders, mark).await?;
        let (place, dying) = (commands.place(), commands.dying.clone());
        Ok(Box::new(FolderSandbox::new(commands, place, self.holdings.registry.clone(), dying)))
    }

    /// Makes a sandbox without any image, as far as it goes without one.
    async fn try_out(&self, folder: &Path) -> Result<(), SandboxError> {
        let failed = |problem: io::Error| SandboxError::retryable(CHECK, problem);
        let image = folder.join("image");
        for needed in ["dev", "etc", "proc", "sys", "tmp"] {
            std::fs::create_dir_all(image.join(needed)).map_err(failed)?;
        }
        let spec = SandboxSpec::bare("check".into(), folder.to_owned());
        let folders = Folders::of(&spec)?;
        folders.make().map_err(failed)?;
        let image = Arc::new(Image::of_folder(image));
        let mark = self.holdings.mark(&format!("check-{}", folder.display()));
        let tried = ApptainerCommands::new(self, image, spec, folders, mark.clone()).await;
        // What is left when it fails half-way.
        folder_sandbox::clear(&mark, &folder.join("sandbox")).await?;
        let explain = |problem: SandboxError| SandboxError { action: CHECK.into(), ..problem };
        tried.map(drop).map_err(explain)
    }

    /// The file with Apptainer's settings.
    fn settings(&self) -> Result<PathBuf, SandboxError> {
        let file = self.config.state_dir.join("sandboxes").join("apptainer.conf");
        let write = || {
            if std::fs::read_to_string(&file).is_ok_and(|found| found == program::SETTINGS) {
                return Ok(());
            }
            let folder = file.parent().unwrap_or(Path::new("/"));
            std::fs::create_dir_all(folder)?;
            let mut new = tempfile::NamedTempFile::new_in(folder)?;
            io::Write::write_all(&mut new, program::SETTINGS.as_bytes())?;
            new.persist(&file)?;
            Ok(())
        };
        let written: io::Result<()> = write();
        written.map_err(|problem| {
            SandboxError::retryable("make sandbox", format!("{}: {problem}", file.display()))
        })?;
        Ok(file)
    }

    fn helper_path(&self) -> Result<&Path, SandboxError> {
        let helper = self.helper.as_ref().ok_or_else(|| {
            let message = "Apptainer sandboxes are reached through a helper, and no `polar` \
                 binary is beside this program; name one as `helper`";
            SandboxError::new(CHECK, message)
        })?;
        helper.path().map_err(|problem| {
            let message = format!("cannot keep the `polar` that was replaced: {problem}");
            SandboxError::retryable(CHECK, message)
        })
    }
}

/// Removes a folder, which need not be there.
fn remove(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[async_trait]
impl SandboxProvider for ApptainerProvider {
    fn kind(&self) -> &'static str {
        "apptainer"
    }

    async fn check(&self) -> Result<(), SandboxError> {
        // Always the same, so that what a killed check left is removed by the next one.
        let folder = self.config.state_dir.join("check");
        let failed = |problem: io::Error| SandboxError::retryable(CHECK, problem);
        remove(&folder).map_err(failed)?;
        let tried = self.try_out(&folder).await;
        remove(&folder).map_err(failed)?;
        tried
    }

    async fn offer(&self) -> Option<RuntimeOffer> {
        Some(Runtime::Apptainer.offer(cgroups::lacking(), &self.config.allowed_mounts))
    }

    async fn get_image(&self, image: &str) -> Result<(), SandboxError> {
        let number = self.builds.fetch_add(1, Ordering::Relaxed);
        let held = self.holdings.registry.hold(format!("image-{number}"));
        let mark = self.holdings.mark(held.name());
        self.images.get(&self.config, self.helper_path()?, image, &mark).await.map(drop)
    }

    async fn image_id(&self, image: &str) -> Result<Option<String>, SandboxError> {
        self.images.id(image).await
    }

    async fn create(&self, mut spec: SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        Runtime::Apptainer.refuse(&spec)?;
        spec.mounts = mounts::resolve(&spec.mounts, &self.config.allowed_mounts)?;
        let folders = Folders::of(&spec)?;
        let entry = Entry { name: spec.name.clone(), folder: folders.all.clone() };
        self.holdings.registry.add(&entry)?;
        let made = self.make(spec, folders).await;
        if made.is_err() {
            self.holdings.clear_or_leave(&entry).await;
        }
        made
    }

    async fn sweep(&self, keep: &HashSet<String>) -> Result<u32, SandboxError> {
        let removed = self.holdings.sweep(keep).await?;
        self.images.sweep().await?;
        Ok(removed)
    }
}
