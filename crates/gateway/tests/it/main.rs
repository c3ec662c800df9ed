//! The gateway over real sockets, with an engine that the test plays by hand.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod auth;
mod capture;
mod chat;
mod cut_calls;
mod edited_history;
mod engines;
mod hand_engine;
mod hang_ups;
mod history;
mod limits;
mod lost_turns;
mod outage;
mod raw_text;
mod responses;
mod stream;
mod token_mode;
mod weights;

use hand_engine::{HandEngine, HandedCall};
use polar_engine::{Engine, EngineOptions, ModelFiles, TokenModeOptions};
use polar_gateway::{Gateway, GatewayConfig, SessionHandle, SessionOptions};
use polar_record::{RecordedSession, SessionHeader};
use polar_simulator::{SimulatorConfig, SimulatorHandle};
use polar_types::{HarnessRules, HistoryPolicy, SamplingPins};
use serde_json::{Value, json};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Longest any wait of a test may take. Reached only when a test fails.
const DEADLINE: Duration = Duration::from_secs(20);

async fn within<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} did not happen within {DEADLINE:?}"),
    }
}

struct Rig {
    gateway: Arc<Gateway>,
    engine: Arc<HandEngine>,
    client: reqwest::Client,
    base: String,
    folder: tempfile::TempDir,
    shutdown: CancellationToken,
}

impl Rig {
    async fn start() -> Self {
        Self::with(GatewayConfig::default()).await
    }

    async fn with(config: GatewayConfig) -> Self {
        let engine = Arc::new(HandEngine::default());
        Self::before(config, engine.clone(), engine).await
    }

    /// A gateway before an engine; `by_hand` is the one the test plays, should it play one.
    async fn before(
        config: GatewayConfig,
        engine: Arc<dyn Engine>,
        by_hand: Arc<HandEngine>,
    ) -> Self {
        Self::serve(Gateway::new(config, engine), by_hand).await
    }

    async fn serve(gateway: Arc<Gateway>, by_hand: Arc<HandEngine>) -> Self {
        // Another test may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        tokio::spawn(polar_gateway::serve_tcp(gateway.router(), listener, shutdown.clone()));
        Self {
            gateway,
            engine: by_hand,
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            base,
            folder: tempfile::tempdir().unwrap(),
            shutdown,
        }
    }

    async fn before_simulator(
        config: SimulatorConfig,
        options: EngineOptions,
    ) -> (Self, SimulatorHandle) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let simulator = polar_simulator::serve(config).await.unwrap();
        let engine = polar_engine::connect(&simulator.url(), options).await.unwrap();
        let by_hand = Arc::new(HandEngine::default());
        (Self::before(GatewayConfig::default(), engine, by_hand).await, simulator)
    }

    fn journal(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self, name: &str) -> SessionHandle {
        self.open_pinned(name, SamplingPins::default())
    }

    fn open_pinned(&self, name: &str, sampling: SamplingPins) -> SessionHandle {
        self.open_with(name, sampling, HistoryPolicy::default(), HarnessRules::default())
    }

    fn open_with(
        &self,
        name: &str,
        sampling: SamplingPins,
        history: HistoryPolicy,
        rules: HarnessRules,
    ) -> SessionHandle {
        let header = SessionHeader {
            session_id: name.parse().unwrap(),
            task_id: "task".parse().unwrap(),
            group_id: "task".parse().unwrap(),
            attempt: 1,
            epoch: 1,
            created_at_ms: 0,
            engine: Value::Null,
            rules,
        };
        let journal = self.journal(name);
        self.gateway.open_session(SessionOptions { header, journal, sampling, history }).unwrap()
    }

    fn post(&self, path: &str, secret: &str, body: &Value) -> reqwest::RequestBuilder {
        self.client.post(format!("{}{path}", self.base)).bearer_auth(secret).json(body)
    }

    /// Sends a request in the background and hands over the engine's side of it.
    async fn call(
        &self,
        path: &str,
        secret: &str,
        body: &Value,
    ) -> (tokio::task::JoinHandle<reqwest::Response>, HandedCall) {
        let request = self.post(path, secret, body);
        let response = tokio::spawn(async move { request.send().await.unwrap() });
        let call = within("the engine call", self.engine.next_call()).await;
        (response, call)
    }

    fn recorded(&self, name: &str) -> RecordedSession {
        RecordedSession::read(self.journal(name)).unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// The files of the model that the simulator plays.
fn simulated_model() -> TokenModeOptions {
    let folder = tempfile::tempdir().unwrap();
    polar_simulator::write_model_files(folder.path()).unwrap();
    TokenModeOptions { files: Some(ModelFiles::read(folder.path()).unwrap()) }
}

fn chat(stream: bool) -> Value {
    json!({
        "model": "m",
        "stream": stream,
        "messages": [{"role": "user", "content": "hello"}],
    })
}

fn messages(stream: bool) -> Value {
    json!({
        "model": "m",
        "max_tokens": 64,
        "stream": stream,
        "messages": [{"role": "user", "content": "hello"}],
    })
}

fn responses(stream: bool) -> Value {
    json!({"model": "m", "max_output_tokens": 64, "stream": stream, "input": "hello"})
}

fn google() -> Value {
    json!({
        "contents": [{"role": "user", "parts": [{"text": "hello"}]}],
        "generationConfig": {"maxOutputTokens": 64},
    })
}

/// Path and body of a generation in each dialect. In Google's the path says whether as a stream.
fn dialects(stream: bool) -> [(&'static str, Value); 4] {
    let google_path = match stream {
        true => "/v1beta/models/m:streamGenerateContent?alt=sse",
        false => "/v1beta/models/m:generateContent",
    };
    [
        (google_path, google()),
        ("/v1/chat/completions", chat(stream)),
        ("/v1/messages", messages(stream)),
        ("/v1/responses", responses(stream)),
    ]
}

/// Says another text in a body of [`dialects`].
fn say(body: &mut Value, text: String) {
    if body.get("input").is_some() {
        body["input"] = text.into();
    } else if body.get("contents").is_some() {
        body["contents"][0]["parts"][0]["text"] = text.into();
    } else {
        body["messages"][0]["content"] = text.into();
    }
}

/// Asks for another number of tokens in a body of [`dialects`].
fn limit(body: &mut Value, tokens: u64) {
    if body.get("contents").is_some() {
        body["generationConfig"]["maxOutputTokens"] = tokens.into();
        return;
    }
    let field = if body.get("input").is_some() { "max_output_tokens" } else { "max_tokens" };
    body[field] = tokens.into();
}

/// What stands at the end of a whole stream of a dialect, and of no other.
fn end_mark(path: &str) -> &'static str {
    match path {
        "/v1/messages" => "message_stop",
        "/v1/responses" => "response.completed",
        google if google.contains("GenerateContent") => "\"finishReason\"",
        _ => "[DONE]",
    }
}
