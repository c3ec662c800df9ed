//! The rollout server: takes tasks, hands sessions to nodes, keeps what they report, and
//! tells whoever waits.
//!
//! State lives in the task store and the blob store; this crate owns the HTTP API, the
//! reaper and the sending of callbacks. It must not look into what it stores: trajectories
//! and logs pass through as bytes, so that memory does not grow with their size. What clients
//! of the published Polar are told is spelled anew, with the same bytes in it.

mod app;
mod auth;
mod callbacks;
mod clock;
mod config;
mod engine_orders;
mod error;
mod examples;
mod explain;
mod extract;
mod metrics;
mod problems;
mod published;
mod reaper;
mod routes;
mod waiting;

pub use app::openapi;
pub use callbacks::{EVENT_ID_HEADER, SIGNATURE_HEADER, sign};
pub use clock::{Clock, SystemClock};
pub use config::{CallbackPolicy, ServerConfig};
pub use error::{ErrorBody, ErrorDetail};

use app::App;
use polar_blobs::{BlobError, BlobStore};
use polar_store::{SqliteStore, StoreError, TaskStore};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long requests in progress may take once the server is told to end.
const GRACE: Duration = Duration::from_secs(10);

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Everyone on the network could use it.
    #[error(
        "refusing to listen on {0} without a token, since whoever can reach it could run \
         commands here; set a control token, or bind 127.0.0.1"
    )]
    Open(SocketAddr),
    /// A token that protects nothing.
    #[error("the {0} token is empty; leave it out or give it at least one character")]
    EmptyToken(&'static str),
    /// The address cannot be had.
    #[error("cannot listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The database cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The blob folder cannot be used.
    #[error(transparent)]
    Blobs(#[from] BlobError),
    /// The client that sends callbacks cannot be made.
    #[error("cannot make the HTTP client for callbacks: {0}")]
    Client(#[from] reqwest::Error),
}

/// The rollout server.
pub struct Server;

impl Server {
    /// Opens the stores, binds the address and serves until told to end.
    pub async fn start(config: ServerConfig) -> Result<ServerHandle, StartError> {
        config.check()?;
        // reqwest comes without a TLS provider; an earlier installed one is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = callbacks::client(&config.callbacks)?;
        let store: Arc<dyn TaskStore> =
            Arc::new(SqliteStore::open(&config.database(), config.limits).await?);
        let blobs = BlobStore::in_folder(&config.blob_folder(), config.blob_limit)?;
        let listener = TcpListener::bind(config.bind)
            .await
            .map_err(|source| StartError::Listen { address: config.bind, source })?;
        let addr = listener
            .local_addr()
            .map_err(|source| StartError::Listen { address: config.bind, source })?;
        // The time the server was away must not cost nodes their sessions.
        let kept = store.extend_leases(config.clock.now()).await?;
        tracing::info!(%addr, leases = kept, "the rollout server listens");

        let stop = CancellationToken::new();
        let metrics = metrics::Metrics::since(*store.signals().events().borrow());
        let app = Arc::new(App {
            store,
            blobs,
            config,
            metrics,
            tombstones: published::Tombstones::default(),
            engine_orders: engine_orders::OrderDesk::default(),
            stop: stop.clone(),
        });
        let task = tokio::spawn(serve(app, listener, client));
        Ok(ServerHandle { addr, stop, task })
    }
}

async fn serve(app: Arc<App>, listener: TcpListener, client: reqwest::Client) {
    let stop = app.stop.clone();
    let reaper = tokio::spawn(reaper::run(Arc::clone(&app)));
    let sender = tokio::spawn(callbacks::run(Arc::clone(&app), client));
    let router = app::router(Arc::clone(&app));
    let signal = stop.clone();
    let listener = polar_http::sending_at_once(listener);
    let requests = axum::serve(listener, router)
        .with_graceful_shutdown(async move { signal.cancelled().await });
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        ended = requests => {
            if let Err(error) = ended {
                tracing::error!(%error, "the listener failed");
            }
        }
        () = overdue => tracing::warn!("requests did not end in time; closing them"),
    }
    stop.cancel();
    for task in [reaper, sender] {
        if let Err(error) = task.await {
            tracing::error!(%error, "a background task failed");
        }
    }
    app.store.close().await;
}

/// A running server. Dropping it leaves the server running until its process ends.
pub struct ServerHandle {
    addr: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl ServerHandle {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Ends waits, finishes requests in progress and closes the stores.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.ended().await;
    }

    /// Waits until the server has ended, for whatever reason.
    pub async fn ended(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the server failed");
        }
    }
}
