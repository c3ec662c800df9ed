//! How the node gets a listener on a container's own loopback.
//!
//! Root enters the container's network for a moment. Anybody else who may use the daemon
//! has the helper run in the container, where it opens the listener and hands it out
//! through a socket in a folder shown inside.

use super::DockerConfig;
use super::container::read_only;
use super::daemon::{Daemon, Output, Start};
use crate::libraries::{INSIDE, PortableHelper};
use crate::program::Program;
use crate::{SandboxError, bridge, descriptors, helper};
use bollard::models::Mount;
use futures_util::StreamExt;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout;

/// How long the helper may take. Starting a command in a container is slow under load.
const LONGEST: Duration = Duration::from_secs(60);
const ACTION: &str = "connect container to gateway";
const SOCKET: &str = "socket";

#[derive(Debug)]
pub(super) enum WayIn {
    /// Enter the network.
    Namespace,
    /// Have the helper hand a listener out.
    Helper(Helper),
}

#[derive(Debug)]
pub(super) struct Helper {
    program: PortableHelper,
    /// On the host, shown inside.
    folder: PathBuf,
}

impl WayIn {
    pub(super) fn check(
        config: &DockerConfig,
        helper: Option<&Program>,
    ) -> Result<(), SandboxError> {
        if config.use_helper { path_of(helper).map(drop) } else { Ok(()) }
    }

    /// `folder` is the sandbox's on the host.
    pub(super) async fn new(
        config: &DockerConfig,
        helper: Option<&Program>,
        folder: &Path,
    ) -> Result<WayIn, SandboxError> {
        if !config.use_helper {
            return Ok(WayIn::Namespace);
        }
        let failed = |problem: io::Error| SandboxError::retryable(ACTION, problem);
        let program = PortableHelper::of(path_of(helper)?).await.map_err(failed)?;
        let folder = folder.join("gateway");
        let open = || {
            fs::create_dir_all(&folder)?;
            // The user inside is another one.
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))
        };
        open().map_err(failed)?;
        Ok(WayIn::Helper(Helper { program, folder }))
    }

    /// What has to be shown inside.
    pub(super) fn mounts(&self) -> Vec<Mount> {
        let WayIn::Helper(helper) = self else { return vec![] };
        let shown = helper.program.mounts();
        let mut mounts: Vec<Mount> =
            shown.iter().map(|(host, inside)| read_only(host, inside)).collect();
        let inside = Path::new(INSIDE);
        mounts.push(read_only(&helper.folder, &inside.join("gateway")));
        mounts
    }

    /// A listener on the loopback of a container that has just been started.
    pub(super) async fn listen(
        &self,
        daemon: &Daemon,
        container: &str,
        first_process: u32,
        port: u16,
    ) -> Result<TcpListener, SandboxError> {
        match self {
            WayIn::Namespace => bridge::listen_in(first_process, port).await.map_err(|problem| {
                let message = format!(
                    "cannot enter the container's network: {problem}; this needs CAP_SYS_ADMIN, \
                     and the daemon on this machine; `use_helper` does without"
                );
                SandboxError::new(ACTION, message)
            }),
            WayIn::Helper(helper) => helper.listen(daemon, container, port).await,
        }
    }
}

impl Helper {
    async fn listen(
        &self,
        daemon: &Daemon,
        container: &str,
        port: u16,
    ) -> Result<TcpListener, SandboxError> {
        let failed = |problem: io::Error| SandboxError::retryable(ACTION, problem);
        let socket = self.socket().map_err(failed)?;
        let start = Start {
            argv: self.command(port),
            env: vec![],
            workdir: Some("/".into()),
            stdin: false,
        };
        let mut attached = daemon.exec(container, start).await?;
        let mut said = vec![];
        let ended = timeout(LONGEST, async {
            while let Some(piece) = attached.output.next().await {
                let (Output::Stdout(bytes) | Output::Stderr(bytes)) = piece?;
                said.extend_from_slice(&bytes);
            }
            Ok::<(), SandboxError>(())
        });
        ended.await.map_err(|_| SandboxError::retryable(ACTION, "no answer in time"))??;
        let listener = receive(&socket);
        let _ = fs::remove_file(self.folder.join(SOCKET));
        listener.map_err(|problem| {
            let said = String::from_utf8_lossy(&said);
            let message = format!("the helper hands nothing out: {problem}: {}", said.trim());
            SandboxError::retryable(ACTION, message)
        })
    }

    /// Listens in the folder, for anybody. Nobody else is there yet.
    fn socket(&self) -> io::Result<UnixListener> {
        let path = self.folder.join(SOCKET);
        match fs::remove_file(&path) {
            Err(problem) if problem.kind() != io::ErrorKind::NotFound => return Err(problem),
            _ => {}
        }
        // The path of a socket may have 107 bytes, which the folder's alone may exceed.
        let folder = fs::File::open(&self.folder)?;
        let short = format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd());
        let listener = UnixListener::bind(short)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    fn command(&self, port: u16) -> Vec<String> {
        let mut command = self.program.command();
        let socket = format!("{INSIDE}/gateway/{SOCKET}");
        command.extend([helper::LISTEN.into(), port.to_string(), socket]);
        command
    }
}

/// Takes what the helper, which has ended, left in the socket.
fn receive(socket: &UnixListener) -> io::Result<TcpListener> {
    let (stream, _) = socket.accept()?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let listener = descriptors::receive(&stream)?.and_then(|(_, listener)| listener);
    listener.map(TcpListener::from).ok_or_else(|| io::Error::other("no listener"))
}

fn path_of(helper: Option<&Program>) -> Result<&Path, SandboxError> {
    let helper = helper.ok_or_else(|| {
        let message = "without root, containers reach the gateway through a helper, and no \
             `polar` binary is beside this program; name one as `helper`";
        SandboxError::new("check container engine", message)
    })?;
    helper.path().map_err(|problem| {
        let message = format!("cannot keep the `polar` that was replaced: {problem}");
        SandboxError::retryable(ACTION, message)
    })
}
