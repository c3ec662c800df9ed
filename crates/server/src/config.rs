//! What the server is told at start.

use crate::{Clock, StartError, SystemClock};
use polar_store::Limits;
use polar_types::Known;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Everything the server is told at start.
#[derive(Clone)]
pub struct ServerConfig {
    /// Where to listen. Addresses other than loopback need a control token.
    pub bind: SocketAddr,
    /// Folder of the database and the blobs, on a local disk.
    pub data: PathBuf,
    /// Bearer token of the control API. Without one it is open to whoever can reach it.
    pub control_token: Option<String>,
    /// Where a caller finds the control token, in words, for refusals; absent when only
    /// whoever set it knows.
    pub control_token_place: Option<String>,
    /// Bearer token of nodes; the control token when absent.
    pub node_token: Option<String>,
    /// Folders of this machine from which tasks of the published API may have files.
    pub upload_folders: Vec<PathBuf>,
    /// What task requests may name.
    pub known: Known,
    /// Terms of leases and waits.
    pub limits: Limits,
    /// Most bytes of one blob.
    pub blob_limit: u64,
    /// Most bytes of any other request body.
    pub body_limit: usize,
    /// How long a request's body may bring nothing before it is given up.
    pub body_idle: Duration,
    /// How callbacks are sent.
    pub callbacks: CallbackPolicy,
    /// How often deadlines are looked at.
    pub tick: Duration,
    /// The server's clock.
    pub clock: Arc<dyn Clock>,
}

impl ServerConfig {
    /// The default port of the rollout server.
    pub const PORT: u16 = 50051;

    /// Listens on loopback, keeps its state in `data`.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self {
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, Self::PORT)),
            data: data.into(),
            control_token: None,
            control_token_place: None,
            node_token: None,
            upload_folders: Vec::new(),
            known: Known::default(),
            limits: Limits::default(),
            blob_limit: 4 << 30,
            body_limit: 64 << 20,
            body_idle: Duration::from_secs(60),
            callbacks: CallbackPolicy::default(),
            tick: Duration::from_secs(1),
            clock: Arc::new(SystemClock),
        }
    }

    /// The SQLite file.
    pub fn database(&self) -> PathBuf {
        self.data.join("polar.db")
    }

    /// The folder of blobs.
    pub fn blob_folder(&self) -> PathBuf {
        self.data.join("blobs")
    }

    pub(crate) fn check(&self) -> Result<(), StartError> {
        for (name, token) in [("control", &self.control_token), ("node", &self.node_token)] {
            if token.as_ref().is_some_and(String::is_empty) {
                return Err(StartError::EmptyToken(name));
            }
        }
        if self.control_token.is_none() && !self.bind.ip().is_loopback() {
            return Err(StartError::Open(self.bind));
        }
        Ok(())
    }
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig")
            .field("bind", &self.bind)
            .field("data", &self.data)
            .field("has_control_token", &self.control_token.is_some())
            .field("has_node_token", &self.node_token.is_some())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// How callbacks are sent: tried again with doubling pauses until they are taken or it has
/// gone on for too long.
#[derive(Debug, Clone, Copy)]
pub struct CallbackPolicy {
    /// How long one request may take.
    pub timeout: Duration,
    /// Pause after the first failure.
    pub first_pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
    /// Given up so long after the end it tells of.
    pub give_up_after: Duration,
    /// Requests in progress at a time.
    pub at_a_time: usize,
}

impl Default for CallbackPolicy {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(300),
            give_up_after: Duration::from_secs(24 * 3600),
            at_a_time: 16,
        }
    }
}
