//! Images: what a task may name, and the folder that each is unpacked to.
//!
//! An image is unpacked once, into a cache, and shared by all sandboxes as the folder
//! below what they write. A mounted SIF file would spare the space, but its files belong
//! to root, whom a sandbox without privileges doesn't have: nothing of it could be changed
//! or removed. In the folder everything belongs to this user.
//!
//! Several processes may use one cache. Each holds a lock on what it uses, an image appears
//! under its name only when it is whole, and what is outdated or was never finished goes
//! when nobody holds it any more.

use super::ApptainerConfig;
use super::program::guarded;
use crate::SandboxError;
use crate::folder_sandbox::remove_tree;
use rustix::fs::{FlockOperation, flock};
use std::collections::HashMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

const ACTION: &str = "get image";
/// How long unpacking may take, getting it from a registry included.
const UNPACK: Duration = Duration::from_secs(3600);
/// How many are unpacked at a time.
const PLACES: usize = 2;
/// Where images come from over the network.
const REMOTE: [&str; 4] = ["docker://", "oras://", "library://", "https://"];
/// What every image of Apptainer's has, and no folder that is not meant as one.
const MARK: &str = ".singularity.d";
pub(super) const EXAMPLE: &str = "for example \"/images/debian.sif\", \"docker-archive:/images/debian.tar\" or \
     \"docker://debian:12\"";

/// An image as a folder. It stays as long as somebody has this.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) folder: PathBuf,
    /// Locked for sharing; none of a folder that isn't ours.
    _lock: Option<File>,
}

impl Image {
    pub(super) fn of_folder(folder: PathBuf) -> Image {
        Image { folder, _lock: None }
    }
}

/// Images of this machine.
#[derive(Debug)]
pub(super) struct Images {
    cache: PathBuf,
    places: tokio::sync::Semaphore,
    known: Mutex<HashMap<String, Arc<Known>>>,
}

/// An image that this process has, or is about to.
type Known = tokio::sync::Mutex<Option<Arc<Image>>>;

impl Images {
    pub(super) fn new(cache: PathBuf) -> Images {
        let places = tokio::sync::Semaphore::new(PLACES);
        Images { cache, places, known: Mutex::default() }
    }

    /// The folder of an image, unpacked when it is not yet. `mark` is what processes that
    /// unpack it carry.
    pub(super) async fn get(
        &self,
        config: &ApptainerConfig,
        helper: &Path,
        named: &str,
        mark: &str,
    ) -> Result<Arc<Image>, SandboxError> {
        let source = blocking({
            let named = named.to_owned();
            move || Source::of(&named)
        })
        .await?;
        let (uri, name) = match source {
            Source::Folder(folder) => return Ok(Arc::new(Image::of_folder(folder))),
            Source::Packed { uri, name } => (uri, name),
        };
        let known = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.entry(name.clone()).or_default().clone()
        };
        // Others that want the same image wait here.
        let mut known = known.lock().await;
        if let Some(image) = &*known {
            return Ok(image.clone());
        }
        let image = match self.cached(&name)? {
            Some(image) => image,
            None => {
                let _place = self.places.acquire().await;
                self.unpack(config, helper, &uri, &name, mark).await?
            }
        };
        Ok(known.insert(Arc::new(image)).clone())
    }

    fn cached(&self, name: &str) -> Result<Option<Image>, SandboxError> {
        let folder = self.cache.join(name);
        let look = || {
            if !folder.is_dir() {
                return Ok(None);
            }
            let lock = lock_file(&folder)?;
            flock(&lock, FlockOperation::LockShared)?;
            // Somebody may have removed it before the lock was had.
            Ok(folder.is_dir().then(|| Image { folder: folder.clone(), _lock: Some(lock) }))
        };
        look().map_err(|problem: io::Error| cannot_write(&folder, &problem))
    }

    async fn unpack(
        &self,
        config: &ApptainerConfig,
        helper: &Path,
        uri: &str,
        name: &str,
        mark: &str,
    ) -> Result<Image, SandboxError> {
        let failed = |problem: io::Error| cannot_write(&self.cache, &problem);
        fs::create_dir_all(&self.cache).map_err(failed)?;
        let unfinished = tempfile::Builder::new()
            .prefix("unfinished-")
            .tempdir_in(&self.cache)
            .map_err(failed)?;
        let lock = lock_file(unfinished.path()).map_err(failed)?;
        flock(&lock, FlockOperation::LockShared).map_err(|problem| failed(problem.into()))?;
        let folder = unfinished.path().join("image");
        tracing::info!(image = uri, "unpacking an image");
        let built = build(config, helper, uri, unfinished.path(), &folder, mark).await;
        let target = self.cache.join(name);
        let kept = built.and_then(|()| match fs::rename(&folder, &target) {
            // Somebody else may have been faster, with the same result.
            Err(problem) if !target.is_dir() => Err(cannot_write(&target, &problem)),
            _ => Ok(()),
        });
        let lock_path = lock_path(unfinished.path());
        let left = unfinished.keep();
        let removed =
            blocking(move || remove_tree(&left).map_err(|problem| cannot_write(&left, &problem)));
        if let Err(problem) = removed.await {
            tracing::warn!(%problem, "left to the sweep");
        }
        let _ = fs::remove_file(lock_path);
        kept?;
        self.cached(name)?.ok_or_else(|| {
            SandboxError::retryable(ACTION, "what was unpacked was removed meanwhile")
        })
    }

    /// Removes what was never finished, and images whose file has changed since. Thousands of
    /// files may lie in each.
    pub(super) async fn sweep(&self) -> Result<(), SandboxError> {
        let cache = self.cache.clone();
        blocking(move || {
            sweep(&cache)
                .map_err(|problem| SandboxError::retryable("remove outdated images", problem))
        })
        .await
    }

    /// Which of the versions of an image file is there now; nothing of what has no versions.
    pub(super) async fn id(&self, named: &str) -> Result<Option<String>, SandboxError> {
        let named = named.to_owned();
        blocking(move || match Source::of(&named)? {
            Source::Packed { name, uri } if !is_remote(&uri) => Ok(Some(name)),
            Source::Packed { .. } | Source::Folder(_) => Ok(None),
        })
        .await
    }
}

fn sweep(cache: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(cache) {
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let folders: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    for folder in &folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("unfinished-") || is_outdated(folder, &folders) {
            remove_unless_held(folder)?;
        }
    }
    Ok(())
}

fn is_remote(named: &str) -> bool {
    REMOTE.iter().any(|scheme| named.starts_with(scheme))
}

/// What a task names.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    /// A folder that is an image.
    Folder(PathBuf),
    /// Anything else: how Apptainer is told, and the name in the cache.
    Packed { uri: String, name: String },
}

impl Source {
    fn of(named: &str) -> Result<Source, SandboxError> {
        if is_remote(named) {
            let name = format!("{:016x}", hash(&named));
            return Ok(Source::Packed { uri: named.to_owned(), name });
        }
        let (scheme, path) = match named.split_once(':') {
            Some((scheme @ ("docker-archive" | "oci-archive"), path)) => (Some(scheme), path),
            _ => (None, named),
        };
        let path = Path::new(path);
        if !path.is_absolute() {
            let message = format!(
                "`image` {named:?} is neither an absolute path nor one of {}; {EXAMPLE}",
                REMOTE.join(", ")
            );
            return Err(SandboxError::new(ACTION, message));
        }
        let found = fs::metadata(path).map_err(|problem| {
            let message = format!("`image` {named:?} cannot be read on this node: {problem}");
            SandboxError::new(ACTION, message)
        })?;
        if found.is_dir() {
            return Source::of_folder(path);
        }
        let kind = match scheme {
            Some(scheme) => Some(scheme),
            None => kind_of(path).map_err(|problem| {
                SandboxError::new(ACTION, format!("`image` {named:?}: {problem}"))
            })?,
        };
        let place = path.display();
        let uri = match kind {
            Some(scheme) => format!("{scheme}:{place}"),
            None => place.to_string(),
        };
        let version = hash(&(found.len(), found.mtime(), found.mtime_nsec(), found.ino()));
        Ok(Source::Packed { name: format!("{:016x}-{version:016x}", hash(&uri)), uri })
    }

    fn of_folder(path: &Path) -> Result<Source, SandboxError> {
        // Else a task could have any folder of the node shown.
        if path.join(MARK).is_dir() {
            return Ok(Source::Folder(path.to_owned()));
        }
        let message = format!(
            "`image` {path:?} is a folder, but no image: it has no {MARK}; \
             `apptainer build --sandbox FOLDER IMAGE` makes one"
        );
        Err(SandboxError::new(ACTION, message))
    }
}

/// The scheme of an archive; none of a file that Apptainer knows by itself.
fn kind_of(path: &Path) -> io::Result<Option<&'static str>> {
    let mut file = File::open(path)?;
    let mut start = [0; 512];
    let mut length = 0;
    while length < start.len() {
        match file.read(&mut start[length..])? {
            0 => break,
            more => length += more,
        }
    }
    if start[32..].starts_with(b"SIF_MAGIC") || start.starts_with(b"hsqs") {
        return Ok(None);
    }
    let unknown = || {
        let message = "it is neither a SIF file nor an archive of `docker save` or of OCI; name a \
             compressed archive as \"docker-archive:PATH\" or \"oci-archive:PATH\"";
        io::Error::other(message)
    };
    if !start[257..].starts_with(b"ustar") {
        return Err(unknown());
    }
    file.rewind()?;
    let mut oci = false;
    for entry in tar::Archive::new(file).entries_with_seek()? {
        match &*entry?.path_bytes() {
            // Newer archives of Docker are both.
            b"manifest.json" | b"./manifest.json" => return Ok(Some("docker-archive")),
            b"oci-layout" | b"./oci-layout" => oci = true,
            _ => {}
        }
    }
    if oci { Ok(Some("oci-archive")) } else { Err(unknown()) }
}

async fn build(
    config: &ApptainerConfig,
    helper: &Path,
    uri: &str,
    temporary: &Path,
    folder: &Path,
    mark: &str,
) -> Result<(), SandboxError> {
    // Root's own way of unpacking keeps owners, whom a sandbox hasn't, and needs rights that
    // root may lack in a container. So root does it as anybody does.
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = guarded(helper, Path::new("unshare"), mark);
        command.args(["--user", "--map-user=65534", "--map-group=65534", "--"]);
        command.arg(&config.apptainer);
        command
    } else {
        guarded(helper, &config.apptainer, mark)
    };
    // How registries are reached is the user's own to say.
    command.envs(std::env::vars_os()).env("APPTAINER_TMPDIR", temporary);
    command.args(["--silent", "build", "--disable-cache", "--fix-perms", "--sandbox"]);
    command.arg(folder).arg(uri).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let not_run = |problem: io::Error| {
        SandboxError::new(ACTION, super::program::not_run(&config.apptainer, &problem))
    };
    let mut child = command.spawn().map_err(not_run)?;
    // Its guard lives as long as this.
    let _held = child.stdin.take();
    let output = match timeout(UNPACK, child.wait_with_output()).await {
        Ok(output) => output.map_err(not_run)?,
        Err(_) => return Err(SandboxError::retryable(ACTION, format!("no end after {UNPACK:?}"))),
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let message = format!("`image` {uri:?} could not be unpacked: {}", said.trim());
    Err(SandboxError { action: ACTION.into(), message, retryable: is_remote(uri) })
}

/// Whether there is a younger one of the same source.
fn is_outdated(folder: &Path, all: &[PathBuf]) -> bool {
    let Some(source) = source(folder) else { return false };
    let mut same = all.iter().filter(|other| self::source(other).as_ref() == Some(&source));
    // One that is gone is no reason.
    same.any(|other| changed(other).ok() > changed(folder).ok())
}

/// The part of a name in the cache that says what was unpacked; none of what has no version.
fn source(folder: &Path) -> Option<String> {
    Some(folder.file_name()?.to_str()?.split_once('-')?.0.to_owned())
}

/// When a folder got its name.
fn changed(folder: &Path) -> io::Result<(i64, i64)> {
    let found = fs::metadata(folder)?;
    Ok((found.ctime(), found.ctime_nsec()))
}

fn remove_unless_held(folder: &Path) -> io::Result<()> {
    let lock = lock_file(folder)?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(());
    }
    remove_tree(folder)?;
    fs::remove_file(lock_path(folder))
}

fn lock_path(folder: &Path) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    folder.with_file_name(name)
}

fn lock_file(folder: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(lock_path(folder))
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

fn cannot_write(path: &Path, problem: &io::Error) -> SandboxError {
    SandboxError::retryable(ACTION, format!("{}: {problem}", path.display()))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|problem| SandboxError::retryable(ACTION, problem))?
}
