//! Sessions opened by hand: point any program at the proxy and get its trajectory.
//!
//! Owns the folder of captured journals and the sessions opened through it. Needs no
//! server. A journal stays on disk after its session is closed; who made it removes it.

use crate::NodeConfig;
use crate::metrics::Metrics;
use axum::extract::{DefaultBodyLimit, Path as UrlPath, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use polar_gateway::{Gateway, SessionHandle, SessionOptions};
use polar_record::SessionHeader;
use polar_session::{BuildOptions, HarnessAdapter};
use polar_types::{
    CallRole, CallSummary, HarnessRules, HistoryPolicy, SamplingPins, SessionId, Trajectory,
    TrajectoryStrategy,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// State of the control listener.
pub(crate) struct Captures {
    folder: PathBuf,
    gateway: Arc<Gateway>,
    gateway_address: SocketAddr,
    token: Option<String>,
    open: Mutex<BTreeMap<SessionId, SessionHandle>>,
    metrics: Metrics,
}

impl Captures {
    pub(crate) fn new(
        config: &NodeConfig,
        folder: PathBuf,
        gateway: Arc<Gateway>,
        gateway_address: SocketAddr,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new(Self {
            folder,
            gateway,
            gateway_address,
            token: config.control_token.clone(),
            open: Mutex::default(),
            metrics,
        })
    }

    fn open(&self) -> std::sync::MutexGuard<'_, BTreeMap<SessionId, SessionHandle>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn journal(&self, session: &SessionId) -> PathBuf {
        self.folder.join(format!("{session}.journal"))
    }
}

pub(crate) fn router(captures: Arc<Captures>) -> Router {
    Router::new()
        .route("/sessions", post(open_session).get(list_sessions))
        .route("/sessions/{id}", delete(close_session))
        .route("/metrics", get(metrics))
        .route_layer(from_fn_with_state(captures.clone(), authorise))
        .route("/health", get(health))
        .layer(DefaultBodyLimit::max(1 << 20))
        .layer(from_fn(polar_http::read_to_the_end_before_refusing))
        .with_state(captures)
}

/// `POST /sessions`; all of it may be left out.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OpenRequest {
    /// Name of the session; minted when absent.
    session_id: Option<SessionId>,
    /// Replace what the program sends.
    sampling: SamplingPins,
    /// What the engine gets of turns that the program has dropped parts of.
    history: HistoryPolicy,
    /// A shipped adapter's name, by whose rules calls get roles and prompts are normalised.
    harness: Option<String>,
}

#[derive(Debug, Serialize)]
struct OpenReply {
    session_id: SessionId,
    /// The API key for the program.
    secret: String,
    /// Base URL for OpenAI clients; the API key is the secret.
    openai_base_url: String,
    /// Base URL for Anthropic clients; the API key is the secret.
    anthropic_base_url: String,
    /// The same with the secret in the path, for programs that take no API key.
    secret_base_url: String,
}

#[derive(Debug, Serialize)]
struct CaptureInfo {
    session_id: SessionId,
    calls: u32,
    sampled_tokens: u64,
    running: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CloseQuery {
    #[serde(default)]
    strategy: TrajectoryStrategy,
    /// Roles to train, with commas between them.
    #[serde(default)]
    train_roles: Option<String>,
}

impl CloseQuery {
    fn roles(&self) -> Result<Vec<CallRole>, String> {
        let Some(list) = &self.train_roles else { return Ok(CallRole::trained_by_default()) };
        let read = |word: &str| {
            let word = serde_json::Value::from(word.trim());
            serde_json::from_value(word).map_err(|error| format!("train_roles: {error}"))
        };
        list.split(',').map(read).collect()
    }
}

#[derive(Debug, Serialize)]
struct CloseReply {
    session_id: SessionId,
    trajectory: Trajectory,
    calls: Vec<CallSummary>,
    /// Where the journal is kept on the node.
    journal: PathBuf,
}

struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, message) = self;
        (status, Json(serde_json::json!({"error": {"message": message}}))).into_response()
    }
}

async fn authorise(
    State(captures): State<Arc<Captures>>,
    request: Request,
    next: Next,
) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer "));
    let refused = captures
        .token
        .as_deref()
        .is_some_and(|token| !same(token.as_bytes(), given.unwrap_or_default().as_bytes()));
    if refused {
        let message = "give the node's token as `Authorization: Bearer TOKEN`: the one it was \
                       started with, or else the one in the file it named at its start";
        let message = message.to_owned();
        return Refusal(StatusCode::UNAUTHORIZED, message).into_response();
    }
    next.run(request).await
}

/// Takes the same time wherever the first difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (x, y)| differs | (x ^ y)) == 0
}

async fn metrics(State(captures): State<Arc<Captures>>) -> polar_http::metrics::Page {
    captures.metrics.page()
}

async fn health(State(captures): State<Arc<Captures>>) -> Json<serde_json::Value> {
    let (engine, engines) = (captures.gateway.engine_info(), captures.gateway.engines().status());
    let open = captures.open().len();
    Json(
        serde_json::json!({"status": "ok", "engine": engine, "engines": engines, "captures": open}),
    )
}

async fn open_session(
    State(captures): State<Arc<Captures>>,
    body: axum::body::Bytes,
) -> Result<(StatusCode, Json<OpenReply>), Refusal> {
    // Works for `curl -X POST` without body and content type.
    let ask: OpenRequest = match body.is_empty() {
        true => OpenRequest::default(),
        false => serde_json::from_slice(&body)
            .map_err(|error| Refusal(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))?,
    };
    if let Some(problem) = ask.sampling.problems("sampling").first() {
        return Err(Refusal(StatusCode::UNPROCESSABLE_ENTITY, problem.to_string()));
    }
    let session_id = match ask.session_id {
        Some(id) => id,
        None => mint()?,
    };
    let rules =
        match &ask.harness {
            Some(name) => HarnessAdapter::shipped(name).map(|adapter| adapter.rules(&[])).map_err(
                |error| Refusal(StatusCode::UNPROCESSABLE_ENTITY, format!("harness: {error}")),
            )?,
            None => HarnessRules::default(),
        };
    let journal = captures.journal(&session_id);
    if journal.exists() {
        let message = format!("there is a session {session_id} already; choose another name");
        return Err(Refusal(StatusCode::CONFLICT, message));
    }
    let options = SessionOptions {
        header: header_of(&session_id, rules)?,
        journal,
        sampling: ask.sampling,
        history: ask.history,
    };
    let gateway = captures.gateway.clone();
    let handle = blocking(move || gateway.open_session(options)).await?.map_err(internal)?;
    let base = format!("http://{}", captures.gateway_address);
    let reply = OpenReply {
        session_id: session_id.clone(),
        secret: handle.secret().to_owned(),
        openai_base_url: format!("{base}/v1"),
        secret_base_url: format!("{base}/s/{}", handle.secret()),
        anthropic_base_url: base,
    };
    captures.open().insert(session_id, handle);
    Ok((StatusCode::CREATED, Json(reply)))
}

async fn list_sessions(State(captures): State<Arc<Captures>>) -> Json<Vec<CaptureInfo>> {
    let open = captures.open();
    let info = |(session_id, handle): (&SessionId, &SessionHandle)| {
        let activity = handle.activity();
        CaptureInfo {
            session_id: session_id.clone(),
            calls: activity.calls,
            sampled_tokens: activity.sampled_tokens,
            running: activity.running,
        }
    };
    Json(open.iter().map(info).collect())
}

/// Closes a session and builds its trajectory. Asking again gives the same once more, also
/// after a restart of the node.
async fn close_session(
    State(captures): State<Arc<Captures>>,
    UrlPath(session_id): UrlPath<SessionId>,
    axum::extract::Query(query): axum::extract::Query<CloseQuery>,
) -> Result<Json<CloseReply>, Refusal> {
    // Before the session is taken out: one that is refused stays open and listed.
    let options = BuildOptions {
        strategy: query.strategy,
        train_roles: query
            .roles()
            .map_err(|error| Refusal(StatusCode::UNPROCESSABLE_ENTITY, error))?,
    };
    let handle = captures.open().remove(&session_id);
    let journal = captures.journal(&session_id);
    if handle.is_none() && !journal.exists() {
        let message = format!("no session {session_id}; GET /sessions lists the open ones");
        return Err(Refusal(StatusCode::NOT_FOUND, message));
    }
    let path = journal.clone();
    let rebuilt = blocking(move || {
        if let Some(handle) = handle {
            handle.close().map_err(|error| error.to_string())?;
        }
        polar_session::rebuild(&path, options)
    })
    .await?
    .map_err(internal)?;
    let (trajectory, calls) = (rebuilt.trajectory, rebuilt.calls);
    Ok(Json(CloseReply { session_id, trajectory, calls, journal }))
}

fn header_of(session_id: &SessionId, rules: HarnessRules) -> Result<SessionHeader, Refusal> {
    let name = session_id.as_str();
    Ok(SessionHeader {
        session_id: session_id.clone(),
        task_id: name.parse().map_err(internal)?,
        group_id: name.parse().map_err(internal)?,
        attempt: 1,
        epoch: 0,
        created_at_ms: jiff::Timestamp::now().as_millisecond(),
        engine: serde_json::Value::Null,
        rules,
    })
}

fn mint() -> Result<SessionId, Refusal> {
    format!("capture-{}", uuid::Uuid::now_v7().simple()).parse().map_err(internal)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work).await.map_err(internal)
}

fn internal(error: impl ToString) -> Refusal {
    Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}
