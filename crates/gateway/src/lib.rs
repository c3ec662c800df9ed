//! The proxy a harness talks to: authentication, decoding, journal, engine, encoding.
//!
//! Owns the open sessions (secret → session) and nothing else. Knows neither tasks
//! nor sandboxes nor the server; whoever opens a session says where its journal goes.
//!
//! Invariants:
//! - A call is in its session's journal before the harness gets the end of its reply.
//! - Every call that reached the engine gets exactly one record, also when the harness
//!   hangs up, the engine fails or the session closes while it runs.
//! - A call that finds its engine away goes to another one, or waits where none takes calls, and
//!   its record says so.
//! - Hanging up drops the engine's stream, which cancels the generation.

mod auth;
mod bodies;
mod call;
mod counts;
mod generate;
mod google;
mod listen;
mod outage;
mod pages;
mod pool;
mod prompt;
mod reply;
mod session;
mod start;

pub use call::{ENGINE_MOVES, ENGINE_OUTAGE};
pub use counts::CallCounts;
pub use listen::{serve_tcp, serve_unix};
pub use outage::Outage;
pub use pool::{Disagreement, EnginePool, PoolError, WeightedEngine};
pub use session::{Activity, NotJournalled, SessionHandle, SessionOptions};

use crate::bodies::Held;
use crate::counts::Counts;
use crate::outage::Questions;
use crate::session::Session;
use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn;
use bytes::Bytes;
use polar_convo::ApiError;
use polar_engine::{Engine, EngineInfo};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// What all sessions share.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Silence on a stream after which a keep-alive is sent. Below the shortest idle
    /// limit of a known harness (15 s is common).
    pub keep_alive: Duration,
    /// How long the response headers wait for the engine to accept a streamed call.
    /// Until then an engine's refusal still becomes a proper HTTP status.
    pub header_wait: Duration,
    /// Longest a call may take from request to last token.
    pub call_timeout: Duration,
    /// How long a call waits for an engine that is away, all in all. Below the shortest time
    /// that a known harness gives a call without a token (300 s). Zero tells the harness of
    /// every failure at once.
    pub engine_wait: Duration,
    /// Time between questions whether an engine that nobody calls is there.
    pub engine_questions: Duration,
    /// Longest wait for the answer to such a question. Three in a row without one, and the engine
    /// is taken to be away.
    pub engine_answer: Duration,
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// Most bytes of one session's request bodies that are held at a time.
    pub max_held_bytes_per_session: usize,
    /// Calls of one session that may run at a time.
    pub max_calls_per_session: usize,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(5),
            header_wait: Duration::from_secs(10),
            call_timeout: Duration::from_secs(1800),
            engine_wait: Duration::from_secs(240),
            engine_questions: Duration::from_secs(10),
            engine_answer: Duration::from_secs(10),
            max_body_bytes: 64 << 20,
            max_held_bytes_per_session: 256 << 20,
            max_calls_per_session: 64,
        }
    }
}

/// Why a session could not be opened or closed.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] polar_record::JournalError),
    /// A running call could not be written when the session closed.
    #[error("a running call was not recorded: {0}")]
    Call(#[from] NotJournalled),
    /// The harness's rules cannot be used.
    #[error(transparent)]
    Rules(#[from] polar_convo::PatternError),
    /// The operating system gave no random bytes for a secret.
    #[error("no random bytes for a session secret: {0}")]
    Random(String),
}

/// The proxy.
pub struct Gateway {
    config: GatewayConfig,
    engines: Arc<EnginePool>,
    counts: Arc<Counts>,
    sessions: RwLock<HashMap<String, Arc<Session>>>,
}

impl Gateway {
    /// Makes the proxy for one engine, which says whether it is used in token mode.
    pub fn new(config: GatewayConfig, engine: Arc<dyn Engine>) -> Arc<Self> {
        let engines = EnginePool::of_one(engine, Questions::of(&config));
        Self::before(config, engines)
    }

    /// Makes the proxy for several engines of one model.
    pub fn for_engines(
        config: GatewayConfig,
        engines: Vec<WeightedEngine>,
    ) -> Result<Arc<Self>, PoolError> {
        let engines = EnginePool::new(engines, Questions::of(&config))?;
        Ok(Self::before(config, engines))
    }

    fn before(config: GatewayConfig, engines: Arc<EnginePool>) -> Arc<Self> {
        let counts = Arc::new(Counts::new());
        Arc::new(Self { config, engines, counts, sessions: RwLock::default() })
    }

    /// The harness-facing routes, to be served on TCP and on a Unix socket.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .fallback(generate::dispatch)
            .layer(from_fn(polar_http::read_to_the_end_before_refusing))
            .with_state(self.clone())
    }

    /// What the engines behind it are, as the probe described the first.
    pub fn engine_info(&self) -> &EngineInfo {
        self.engines.info()
    }

    /// What was counted of all calls so far.
    pub fn call_counts(&self) -> CallCounts {
        self.counts.now()
    }

    /// The engines behind it.
    pub fn engines(&self) -> &Arc<EnginePool> {
        &self.engines
    }

    /// Opens a session under a fresh random secret and starts its journal.
    pub fn open_session(
        self: &Arc<Self>,
        options: SessionOptions,
    ) -> Result<SessionHandle, GatewayError> {
        let counts = Arc::clone(&self.counts);
        let session = Arc::new(Session::open(options, &self.engines, counts)?);
        self.sessions
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(session.secret().to_owned(), session.clone());
        Ok(SessionHandle::new(self.clone(), session))
    }

    async fn read_body(
        &self,
        session: &Session,
        request: Request,
    ) -> Result<(Bytes, Held), ApiError> {
        let GatewayConfig { max_body_bytes, max_held_bytes_per_session, .. } = self.config;
        session.bodies.read(request, max_body_bytes, max_held_bytes_per_session).await
    }

    fn session(&self, secret: &str) -> Option<Arc<Session>> {
        self.sessions.read().unwrap_or_else(PoisonError::into_inner).get(secret).cloned()
    }

    fn forget(&self, secret: &str) {
        self.sessions.write().unwrap_or_else(PoisonError::into_inner).remove(secret);
    }
}
