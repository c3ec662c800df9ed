//! A node: the proxy, the session stages, and the loop that gets work from the server.
//!
//! The node asks and the server answers, so that it works behind firewalls and outlives
//! server restarts. It never opens the database and holds no task that is not leased to
//! it.
//!
//! Invariants:
//! - One process per state folder, by a lock that dies with the process.
//! - A session's calls are on disk before its harness sees them, and its folder stays
//!   until the server has the report: whatever kills the node, the next start delivers.
//! - A lease that is lost is given up at once. The calls recorded under it are reported
//!   as those of a lost attempt, which the server keeps apart from results.
//! - While all its engines are away a node takes no session and begins none that it has, and the
//!   server is told. A machine that breaks session after session takes one at a time.
//! - A session is renewed until nothing of it runs any more, also when it is to be given
//!   back; what a session leaves to be cleared counts against the node's places.

mod brake;
mod capture;
mod client;
mod delivery;
mod disk;
mod dispatcher;
mod engine_orders;
mod holder;
mod introduction;
mod lack;
mod listeners;
mod memory;
mod metrics;
mod salvage;
mod state;
mod weights;

pub use dispatcher::HeldSession;
pub use state::{LONGEST_STATE_PATH, instance_id};

use client::ServerClient;
use delivery::Courier;
use disk::Disk;
use dispatcher::{Dispatcher, Shown};
use engine_orders::EngineOrderTaker;
use listeners::Listeners;
use metrics::{Ends, Metrics};
use polar_engine::{EngineOptions, OtherPrompts};
use polar_gateway::{Gateway, GatewayConfig, PoolError, WeightedEngine};
use polar_sandbox::SandboxProvider;
use polar_session::{RoomLimits, RunnerConfig, SessionRunner};
pub use polar_session::{RuntimeImage, WarmImage};
use polar_types::{NodeId, NodeInfo, NodeRoom, RuntimeOffer, Slots};
use salvage::Sweeping;
use state::StateFolder;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use weights::WeightFollower;

/// How long a runtime may take to say what it can be asked for.
const OFFER: Duration = Duration::from_secs(10);

/// Where the server is.
#[derive(Clone)]
pub struct ServerAddress {
    /// `http://host:port`, without a path.
    pub url: String,
    /// Bearer token for nodes, when the server asks for one.
    pub token: Option<String>,
}

/// Everything a node is told at start.
#[derive(Clone)]
pub struct NodeConfig {
    /// Its name, stable over restarts.
    pub node_id: NodeId,
    /// Who hands out work; without one the node is a proxy for sessions opened by hand.
    pub server: Option<ServerAddress>,
    /// Folder for sessions, on a local disk. One node per folder.
    pub state_dir: PathBuf,
    /// Folder for harness installations; may be shared by nodes of one machine.
    pub cache_dir: PathBuf,
    /// Places per stage.
    pub slots: Slots,
    /// Images that are got at the start, before a session wants them.
    pub prepull: Vec<RuntimeImage>,
    /// Images of which sandboxes are kept ready.
    pub warm: Vec<WarmImage>,
    /// Where the proxy listens, for sandboxes with a network.
    pub gateway_listen: SocketAddr,
    /// Where sessions are opened by hand; nowhere when absent.
    pub control_listen: Option<SocketAddr>,
    /// Bearer token of that listener.
    pub control_token: Option<String>,
    /// The proxy's limits.
    pub gateway: GatewayConfig,
    /// The engines behind the proxy, all of one model.
    pub engines: Vec<WeightedEngine>,
    /// How engines are connected to that come later.
    pub engine_options: EngineOptions,
    /// Kinds of sandbox that work here.
    pub providers: Vec<Arc<dyn SandboxProvider>>,
    /// MiB that are to stay free on the disk of `state_dir`: with less no session is taken. 1024 when
    /// absent, or a twentieth of a smaller disk.
    pub keep_free_mb: Option<u64>,
    /// MiB of memory that all sandboxes with a `memory_mb` together may be given. That of the
    /// machine or of its cgroup when absent, less 2048 or a quarter of a smaller one.
    pub sandbox_memory_mb: Option<u64>,
    /// Bytes kept of each output of a command.
    pub output_limit: u64,
}

/// Why a node does not start, or ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A stage without places.
    #[error("slots.{0} is 0, so that no session could pass; make it at least 1")]
    NoSlots(&'static str),
    /// Another process has the state folder.
    #[error("{} is used by another node; give each node its own state folder", .0.display())]
    Busy(PathBuf),
    /// The Unix socket's path does not fit.
    #[error(
        "{} is too long for a Unix socket (more than 100 bytes); use a state folder with a \
         shorter path", .0.display()
    )]
    PathTooLong(PathBuf),
    /// The engines cannot be behind one node.
    #[error(transparent)]
    Engines(#[from] PoolError),
    /// They make different prompts.
    #[error(transparent)]
    Prompts(#[from] OtherPrompts),
    /// A folder or socket cannot be used.
    #[error("{action} {target}: {error}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// With which path or address.
        target: String,
        /// What the operating system said.
        error: io::Error,
    },
    /// The control listener would be open to everyone.
    #[error("the control listener on {0} needs a token; only loopback may go without")]
    Open(SocketAddr),
    /// The server does not take the node's token.
    #[error("the rollout server at {url} does not let this node in: {answer}")]
    Unauthorized {
        /// The server.
        url: String,
        /// What it said.
        answer: String,
    },
    /// Another running node goes by the name.
    #[error("the rollout server at {url} refuses this node: {answer}")]
    NameInUse {
        /// The server.
        url: String,
        /// What it said.
        answer: String,
    },
    /// The client for the server could not be made.
    #[error("set up the connection to the server: {0}")]
    Client(String),
}

impl NodeError {
    pub(crate) fn io(action: &'static str, target: impl ToString, error: io::Error) -> Self {
        Self::Io { action, target: target.to_string(), error }
    }
}

/// A running node.
pub struct Node {
    gateway_address: SocketAddr,
    control_address: Option<SocketAddr>,
    held: watch::Receiver<Vec<HeldSession>>,
    /// Told once, with how long running sessions may go on.
    drain: watch::Sender<Option<Duration>>,
    work: JoinHandle<()>,
    refusal: watch::Receiver<Option<Arc<NodeError>>>,
    listeners: Listeners,
    // Unlocked when dropped, which is the last thing that happens.
    _state: StateFolder,
}

impl Node {
    /// Locks the state folder, opens the listeners, removes what an earlier process left,
    /// delivers what it recorded, and starts asking for work.
    pub async fn start(config: NodeConfig) -> Result<Self, NodeError> {
        check(&config)?;
        let state = StateFolder::open(&config.state_dir)?;
        same_prompts(&config.engines).await?;
        let gateway = Gateway::for_engines(config.gateway.clone(), config.engines.clone())?;
        let (shown, held) = watch::channel(Vec::new());
        let (troubled, troubles) = watch::channel(Vec::new());
        let ends = Arc::new(Ends::default());
        let metrics = Metrics {
            gateway: gateway.clone(),
            ends: ends.clone(),
            held: held.clone(),
            troubles,
            slots: config.slots,
        };
        let listeners = Listeners::open(&config, &state, gateway.clone(), metrics).await?;
        let gateway_address = listeners.gateway_address();
        let control_address = listeners.control_address();

        let engines = gateway.engines().clone();
        let runner = SessionRunner::new(RunnerConfig {
            node_id: config.node_id.clone(),
            slots: config.slots,
            gateway,
            gateway_socket: state.socket(),
            gateway_address: reachable(gateway_address),
            providers: config.providers.clone(),
            cache: config.cache_dir.clone(),
            room: room_limits(&config, &state),
            warm: config.warm.clone(),
            warm_folder: state.warm(),
            output_limit: config.output_limit,
        });
        let (drain, draining) = watch::channel(None);
        let offers = offers(&config.providers).await;
        let info = NodeInfo { offers, room: runner.room(), ..node_info(&config)? };
        let (refused, refusal) = watch::channel(None);
        let work = match &config.server {
            None => {
                salvage::sweep(&config.providers).await;
                tokio::spawn(until_drained(draining))
            }
            Some(server) => {
                let client = Arc::new(ServerClient::new(server, info.node_id.clone())?);
                let stopping = CancellationToken::new();
                let courier = Courier::new(client.clone(), state.undelivered(), stopping);
                let sessions = state.sessions();
                let providers = config.providers.clone();
                let mut dispatcher = Dispatcher::new(
                    info.clone(),
                    client.clone(),
                    courier.clone(),
                    runner.clone(),
                    engines.clone(),
                    Disk::new(sessions.clone(), config.keep_free_mb),
                    Shown { held: shown, troubles: troubled, ends },
                );
                let prepull = config.prepull.clone();
                let node_id = info.node_id.clone();
                let weights =
                    WeightFollower::start(client.clone(), node_id.clone(), engines.clone());
                let orders = EngineOrderTaker {
                    client: client.clone(),
                    node_id,
                    engines: engines.clone(),
                    options: config.engine_options.clone(),
                    target: weights.target(),
                };
                tokio::spawn(async move {
                    salvage::sweep(&providers).await;
                    for image in prepull {
                        let runner = runner.clone();
                        tokio::spawn(async move { runner.prepull(&image).await });
                    }
                    let node = info.node_id.clone();
                    let done = match introduction::introduce(&client, info, &draining).await {
                        Ok(()) => {
                            salvage::deliver_left_behind(&sessions, &node, &courier, &draining)
                                .await;
                            let sweeping = Sweeping::start(&providers);
                            let mut ending = draining.clone();
                            let work = async {
                                // No session is to be sampled by weights that are none by now.
                                tokio::select! {
                                    () = weights.learned() => {}
                                    _ = ending.wait_for(Option::is_some) => {}
                                }
                                dispatcher.run(draining).await
                            };
                            let done = tokio::select! {
                                done = work => done,
                                never = engines.ask_regularly() => match never {},
                                never = weights.follow() => match never {},
                                never = orders.follow() => match never {},
                            };
                            sweeping.end().await;
                            done
                        }
                        Err(error) => Err(error),
                    };
                    weights.end().await;
                    runner.close().await;
                    salvage::sweep(&providers).await;
                    if let Err(error) = done {
                        refused.send_replace(Some(Arc::new(error)));
                    }
                })
            }
        };
        Ok(Self {
            gateway_address,
            control_address,
            held,
            drain,
            work,
            refusal,
            listeners,
            _state: state,
        })
    }

    /// Where the proxy listens.
    pub fn gateway_address(&self) -> SocketAddr {
        self.gateway_address
    }

    /// Where sessions are opened by hand.
    pub fn control_address(&self) -> Option<SocketAddr> {
        self.control_address
    }

    /// The sessions it holds, kept up to date.
    pub fn held(&self) -> watch::Receiver<Vec<HeldSession>> {
        self.held.clone()
    }

    /// Returns when the server has refused the node for good, which has given up all its
    /// sessions by then; does not return otherwise.
    pub async fn refused(&self) -> Arc<NodeError> {
        let mut refusal = self.refusal.clone();
        let refused = refusal.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
        match refused {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }

    /// Takes no more work; gives back what has not started to run, lets the rest go on
    /// for `grace` and gives back what is left then. May be said again, with less.
    pub fn drain(&self, grace: Duration) {
        self.drain.send_replace(Some(grace));
    }

    /// Drains, and ends when nothing is left. Results that cannot be delivered any more
    /// stay on disk for the next start.
    pub async fn shutdown(self, grace: Duration) {
        self.drain(grace);
        if let Err(error) = self.work.await {
            tracing::error!(%error, "the node's work broke off");
        }
        self.listeners.close().await;
    }
}

fn check(config: &NodeConfig) -> Result<(), NodeError> {
    let slots = config.slots;
    if slots.run == 0 {
        return Err(NodeError::NoSlots("run"));
    }
    match config.control_listen {
        Some(address) if config.control_token.is_none() && !address.ip().is_loopback() => {
            Err(NodeError::Open(address))
        }
        _ => Ok(()),
    }
}

fn node_info(config: &NodeConfig) -> Result<NodeInfo, NodeError> {
    let named = |one: &WeightedEngine| {
        let info = one.engine.info();
        format!("{} {} ({})", info.kind.name(), info.url, info.model)
    };
    let engine: Vec<String> = config.engines.iter().map(named).collect();
    Ok(NodeInfo {
        node_id: config.node_id.clone(),
        boot_id: uuid::Uuid::now_v7().to_string(),
        instance_id: instance_id(&config.state_dir)?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        slots: config.slots,
        runtimes: config.providers.iter().map(|provider| provider.kind().to_owned()).collect(),
        offers: Vec::new(),
        room: NodeRoom::default(),
        engine: engine.join(", "),
        engines: Vec::new(),
        held: BTreeMap::new(),
        troubles: Vec::new(),
        engine_errors: 0,
    })
}

fn room_limits(config: &NodeConfig, state: &StateFolder) -> RoomLimits {
    let disk = Disk::new(state.sessions(), config.keep_free_mb);
    RoomLimits {
        memory_mb: config.sandbox_memory_mb.or_else(memory::for_sandboxes),
        disk: Some(Arc::new(move || disk.room())),
    }
}

/// What the runtimes can be asked for here. One that gives no answer, as while its daemon is
/// away, is taken to hold to everything, and refuses later what it can't.
async fn offers(providers: &[Arc<dyn SandboxProvider>]) -> Vec<RuntimeOffer> {
    let mut offers = Vec::new();
    for provider in providers {
        match tokio::time::timeout(OFFER, provider.offer()).await {
            Ok(offer) => offers.extend(offer),
            Err(_) => tracing::warn!(kind = provider.kind(), "it does not say what it can do"),
        }
    }
    offers
}

/// The address as sandboxes of this machine reach it.
fn reachable(mut listening: SocketAddr) -> SocketAddr {
    if listening.ip().is_unspecified() {
        listening.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    listening
}

/// Whether engines that take the same messages make the same prompt of them.
async fn same_prompts(engines: &[WeightedEngine]) -> Result<(), OtherPrompts> {
    let Some((first, others)) = engines.split_first() else { return Ok(()) };
    for other in others {
        polar_engine::same_prompts(first.engine.as_ref(), other.engine.as_ref()).await?;
    }
    Ok(())
}

async fn until_drained(mut draining: watch::Receiver<Option<Duration>>) {
    // An error means that the node was dropped, which ends it as well.
    let _ = draining.wait_for(Option::is_some).await;
}
