//! The node's sockets: the proxy on TCP and on a Unix socket, and the control listener.
//!
//! Proxy and control are apart: what a sandbox can reach opens no session.

use crate::capture::Captures;
use crate::metrics::Metrics;
use crate::state::StateFolder;
use crate::{NodeConfig, NodeError, capture};
use polar_gateway::{Gateway, serve_tcp, serve_unix};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) struct Listeners {
    gateway_address: SocketAddr,
    control_address: Option<SocketAddr>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Listeners {
    pub(crate) async fn open(
        config: &NodeConfig,
        state: &StateFolder,
        gateway: Arc<Gateway>,
        metrics: Metrics,
    ) -> Result<Self, NodeError> {
        let tcp = bind(config.gateway_listen).await?;
        let unix = bind_unix(&state.socket())
            .map_err(|error| NodeError::io("listen on", state.socket().display(), error))?;
        let control = match config.control_listen {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let address = |listener: &TcpListener| {
            listener.local_addr().map_err(|error| NodeError::io("listen", "socket", error))
        };
        let gateway_address = address(&tcp)?;
        let control_address = control.as_ref().map(address).transpose()?;

        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        tasks.spawn(logged("proxy", serve_tcp(gateway.router(), tcp, stop.clone())));
        tasks.spawn(logged("proxy socket", serve_unix(gateway.router(), unix, stop.clone())));
        if let Some(listener) = control {
            let captures =
                Captures::new(config, state.captures(), gateway, gateway_address, metrics);
            let router = capture::router(captures);
            tasks.spawn(logged("control", serve_tcp(router, listener, stop.clone())));
        }
        Ok(Self { gateway_address, control_address, stop, tasks })
    }

    pub(crate) fn gateway_address(&self) -> SocketAddr {
        self.gateway_address
    }

    pub(crate) fn control_address(&self) -> Option<SocketAddr> {
        self.control_address
    }

    pub(crate) async fn close(self) {
        self.stop.cancel();
        self.tasks.close();
        // Sessions are over by now; a connection that stays open must not hold the node.
        if tokio::time::timeout(std::time::Duration::from_secs(5), self.tasks.wait()).await.is_err()
        {
            tracing::warn!("connections were still open at the end");
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, NodeError> {
    TcpListener::bind(address).await.map_err(|error| NodeError::io("listen on", address, error))
}

/// Takes the place of a socket that an earlier process left. The state folder's lock says
/// that it is not in use.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    // Other users come in from containers; what opens the proxy is the session's secret.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

async fn logged(name: &'static str, serve: impl Future<Output = io::Result<()>>) {
    if let Err(error) = serve.await {
        tracing::error!(%error, "the {name} listener broke off");
    }
}
