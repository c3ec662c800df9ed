//! From a port on a sandbox's own loopback to the gateway's socket on the host.
//!
//! The listener was made inside the sandbox's network namespace and is served from
//! here, so that a sandbox needs neither a route nor a process of its own to reach its
//! gateway, and can reach nothing else but the hosts that its task allows. A bridge lives as
//! long as its value; where no hosts are allowed it does not look at what passes.

use crate::SandboxSpec;
use crate::egress::{Aim, Egress, aim};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

/// Connections of one sandbox at a time; more wait in the listener's queue.
const MOST_CONNECTIONS: usize = 256;
/// How long connecting to the gateway may take.
const CONNECT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, which is this process running out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What a sandbox's port leads to.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    /// Unix socket of the gateway on the host.
    pub(crate) gateway: PathBuf,
    /// The port itself.
    pub(crate) port: u16,
    /// What else may be reached.
    pub(crate) egress: Arc<Egress>,
}

impl Way {
    /// That of a sandbox, for all its commands.
    pub(crate) fn of(spec: &SandboxSpec, port: u16) -> Self {
        let egress = Egress::to(spec.allowed_hosts.clone());
        Self { gateway: spec.gateway_socket.clone(), port, egress: Arc::new(egress) }
    }

    /// What commands find in their environment, beside what the task says.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        self.egress.variables(self.port)
    }
}

/// Ends the bridge and its connections when dropped.
#[derive(Debug)]
pub(crate) struct Bridge {
    accepting: JoinHandle<()>,
}

impl Bridge {
    /// Serves `listener` until dropped.
    pub(crate) fn start(listener: TcpListener, way: Way) -> io::Result<Bridge> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        Ok(Bridge { accepting: tokio::spawn(accept(listener, way.into())) })
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: tokio::net::TcpListener, way: Arc<Way>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    // Connections are children of this task: aborting it ends them all.
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let way = way.clone();
                connections.spawn(async move {
                    if let Err(problem) = serve(client, &way).await {
                        tracing::debug!(%problem, "connection of a sandbox ended");
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

async fn serve(mut client: TcpStream, way: &Way) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut first = Vec::new();
    if !way.egress.is_empty() {
        let aim = loop {
            let ended = client.read_buf(&mut first).await? == 0;
            match aim(&first) {
                Some(aim) => break aim,
                None if ended => break Aim::Gateway,
                None => {}
            }
        };
        if aim == Aim::Elsewhere {
            match way.egress.serve(client, first, way.port).await? {
                Some(for_gateway) => (client, first) = for_gateway,
                None => return Ok(()),
            }
        }
    }
    let connecting = UnixStream::connect(&way.gateway);
    let mut gateway = tokio::time::timeout(CONNECT, connecting).await??;
    gateway.write_all(&first).await?;
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
