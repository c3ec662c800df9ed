//! From a port on a sandbox's own loopback to the gateway's socket on the host.
//!
//! The listener was made inside the sandbox's network namespace and is served from
//! here, so that a sandbox needs neither a route nor a process of its own to reach its
//! gateway, and can reach nothing else. A bridge lives as long as its value; it must not
//! look at what passes.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

/// Connections of one sandbox at a time; more wait in the listener's queue.
const MOST_CONNECTIONS: usize = 256;
/// How long connecting to the gateway may take.
const CONNECT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, which is this process running out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Ends the bridge and its connections when dropped.
#[derive(Debug)]
pub(crate) struct Bridge {
    accepting: JoinHandle<()>,
}

impl Bridge {
    /// Serves `listener` until dropped.
    pub(crate) fn start(listener: TcpListener, gateway: PathBuf) -> io::Result<Bridge> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        Ok(Bridge { accepting: tokio::spawn(accept(listener, gateway.into())) })
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: tokio::net::TcpListener, gateway: Arc<std::path::Path>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    // Connections are children of this task: aborting it ends them all.
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let gateway = gateway.clone();
                connections.spawn(async move {
                    if let Err(problem) = connect(client, &gateway).await {
                        tracing::debug!(%problem, "sandbox connection to the gateway ended");
                    }
                    drop(place);
                });
            }
            Err(problem) => {
                tracing::warn!(%problem, "cannot accept a connection of a sandbox");
                tokio::time::sleep(PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connect(mut client: TcpStream, gateway: &std::path::Path) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut gateway = tokio::time::timeout(CONNECT, UnixStream::connect(gateway)).await??;
    tokio::io::copy_bidirectional(&mut client, &mut gateway).await?;
    Ok(())
}

/// A listener on the loopback of the network that process `pid` is in. Needs
/// CAP_SYS_ADMIN, as joining another's network does.
pub(crate) async fn listen_in(pid: u32, port: u16) -> io::Result<TcpListener> {
    let (answer, listener) = tokio::sync::oneshot::channel();
    // A thread of its own, which ends right after: the network it joins is only its own,
    // but it can't go back without the right to.
    std::thread::Builder::new().name("sandbox-network".into()).spawn(move || {
        let listen = || {
            let network = std::fs::File::open(format!("/proc/{pid}/ns/net"))?;
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        };
        let _ = answer.send(listen());
    })?;
    listener.await.map_err(io::Error::other)?
}
