//! The proxy a harness talks to: authentication, decoding, journal, engine, encoding.
//!
//! Owns the open sessions (secret → session) and nothing else. Knows neither tasks
//! nor sandboxes nor the server; whoever opens a session says where its journal goes.

use polar_engine::Engine;
use polar_record::SessionHeader;
use polar_types::SamplingPins;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What all sessions share.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Silence on a stream after which a keep-alive is sent.
    pub keep_alive: Duration,
    /// Longest a call may take from request to last token.
    pub call_timeout: Duration,
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// Calls of one session that may run at a time.
    pub max_calls_per_session: usize,
}

/// How to open a session.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Goes to the front of the journal; its `engine` is filled in by the gateway.
    pub header: SessionHeader,
    /// File the calls are written to; made new.
    pub journal: PathBuf,
    /// Replace what the harness sends.
    pub sampling: SamplingPins,
}

/// The proxy.
pub struct Gateway {
    _engine: Arc<dyn Engine>,
}

/// An open session. Closing is explicit: dropping it leaves the secret valid.
pub struct SessionHandle {
    _private: (),
}

/// Why a session could not be opened or closed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct GatewayError(pub String);

impl Gateway {
    /// Makes the proxy for one engine.
    pub fn new(_config: GatewayConfig, engine: Arc<dyn Engine>) -> Arc<Self> {
        Arc::new(Self { _engine: engine })
    }

    /// The harness-facing routes, to be served on TCP and on a Unix socket.
    pub fn router(self: &Arc<Self>) -> axum::Router {
        axum::Router::new()
    }

    /// Opens a session under a fresh random secret.
    pub fn open_session(&self, _options: SessionOptions) -> Result<SessionHandle, GatewayError> {
        Ok(SessionHandle { _private: () })
    }
}

impl SessionHandle {
    /// The session's secret: the API key of its harness and the `/s/<secret>` path.
    pub fn secret(&self) -> &str {
        ""
    }

    /// Calls recorded so far, for progress displays.
    pub fn calls(&self) -> u32 {
        0
    }

    /// Refuses new calls, cancels running ones, waits until each is in the journal and
    /// seals it. The journal is complete when this returns.
    pub async fn close(&self) -> Result<(), GatewayError> {
        Ok(())
    }
}
