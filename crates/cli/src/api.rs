//! Client of the control API, as far as the command line needs it.

use crate::args::{LogName, ServerAddress};
use crate::token;
use anyhow::{Context, Result, bail};
use polar_types::{
    EngineList, EngineRequest, EventPage, NodeEngines, NodeList, RegradeList, SessionInfo,
    SessionList, TaskInfo, TaskPage, Trajectory, WeightUpdate, WeightUpdateList,
    WeightUpdateRequest,
};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// How long a server that has answered before may be away, as it is when it restarts.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a body may take that can be larger than memory.
const LONGEST_READING: Duration = Duration::from_secs(24 * 3600);

/// How long an engine may take to be checked and to get the weights that all have. Above the
/// server's own limit.
const LONGEST_ENGINE_CHANGE: Duration = Duration::from_secs(330);

/// The pauses between tries while it is.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A running server, and how to talk to it. Every request may be sent again: what changes
/// something carries an id, so that a repetition changes nothing more.
pub(crate) struct Api {
    client: Client,
    base: String,
    token: Option<String>,
    patience: Duration,
    /// Whether anything ever answered there. Until then an address that refuses is wrong.
    was_reached: AtomicBool,
}

impl Api {
    /// The server that the user named, with the token it takes.
    pub(crate) fn of(server: ServerAddress) -> Result<Self> {
        let token = token::for_server(&server.server, server.token)?;
        Self::new(&server.server, token)
    }

    /// `address` is `host:port` or a URL.
    pub(crate) fn new(address: &str, token: Option<String>) -> Result<Self> {
        let client = Client::builder()
            .connect_timeout(Duration::from_secs(10))
            .timeout(Duration::from_secs(120))
            .no_proxy()
            .build()
            .context("set up an HTTP client")?;
        Ok(Self {
            client,
            base: base_url(address),
            token,
            patience: PATIENCE,
            was_reached: AtomicBool::new(false),
        })
    }

    /// The task as it is stored, and whether that is new.
    pub(crate) async fn submit(&self, task: &Value) -> Result<(TaskInfo, bool)> {
        let response = self.send(self.request(Method::POST, "/api/tasks").json(task)).await?;
        let response = self.checked(response).await?;
        let is_new = response.status() == StatusCode::CREATED;
        Ok((response.json().await.context("read the server's answer")?, is_new))
    }

    pub(crate) async fn task(&self, task: &str) -> Result<TaskInfo> {
        self.json(self.request(Method::GET, &format!("/api/tasks/{task}"))).await
    }

    pub(crate) async fn tasks(&self) -> Result<TaskPage> {
        self.json(self.request(Method::GET, "/api/tasks")).await
    }

    pub(crate) async fn push_weights(&self, update: &WeightUpdateRequest) -> Result<WeightUpdate> {
        self.json(self.request(Method::POST, "/api/weights").json(update)).await
    }

    pub(crate) async fn weights(&self) -> Result<WeightUpdateList> {
        self.json(self.request(Method::GET, "/api/weights")).await
    }

    pub(crate) async fn engines(&self) -> Result<EngineList> {
        self.json(self.request(Method::GET, "/api/engines")).await
    }

    /// The answer comes when the node has done it.
    pub(crate) async fn change_engine(&self, change: &EngineRequest) -> Result<NodeEngines> {
        let request = self.request(Method::POST, "/api/engines").timeout(LONGEST_ENGINE_CHANGE);
        self.json(request.json(change)).await
    }

    /// Waits so many seconds for every engine to be through with it.
    pub(crate) async fn weight_update(&self, version: &str, wait: u32) -> Result<WeightUpdate> {
        let path = format!("/api/weights/{version}?wait_seconds={wait}");
        self.json(self.request(Method::GET, &path)).await
    }

    pub(crate) async fn cancel(&self, task: &str) -> Result<TaskInfo> {
        self.json(self.request(Method::DELETE, &format!("/api/tasks/{task}"))).await
    }

    pub(crate) async fn regrade(&self, task: &str, request: &Value) -> Result<RegradeList> {
        let path = format!("/api/tasks/{task}/regrade");
        self.json(self.request(Method::POST, &path).json(request)).await
    }

    pub(crate) async fn sessions(&self, task: &str) -> Result<Vec<SessionInfo>> {
        let page: SessionList =
            self.json(self.request(Method::GET, &format!("/api/tasks/{task}/sessions"))).await?;
        Ok(page.sessions)
    }

    pub(crate) async fn session(&self, session: &str) -> Result<SessionInfo> {
        self.json(self.request(Method::GET, &format!("/api/sessions/{session}"))).await
    }

    /// What was printed, byte by byte. The attempt that counts, when none is named.
    pub(crate) async fn log(
        &self,
        session: &str,
        name: LogName,
        attempt: Option<u32>,
    ) -> Result<Vec<u8>> {
        let attempt = attempt.map(|number| format!("&attempt={number}")).unwrap_or_default();
        let path = format!("/api/sessions/{session}/logs?stream={}{attempt}", name.stream());
        let response = self.send(self.request(Method::GET, &path)).await?;
        let bytes = self.checked(response).await?.bytes().await.context("read the log")?;
        Ok(bytes.to_vec())
    }

    pub(crate) async fn trajectory(&self, session: &str) -> Result<Option<Trajectory>> {
        let path = format!("/api/sessions/{session}/trajectory");
        let response = self.send(self.request(Method::GET, &path)).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        Ok(Some(self.checked(response).await?.json().await.context("read the trajectory")?))
    }

    /// A stored file by the SHA-256 of its bytes, which the caller compares.
    pub(crate) async fn blob(&self, sha256: &str) -> Result<Option<Vec<u8>>> {
        let response =
            self.send(self.request(Method::GET, &format!("/api/blobs/{sha256}"))).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let bytes = self.checked(response).await?.bytes().await.context("read a stored file")?;
        Ok(Some(bytes.to_vec()))
    }

    /// The body of `/api/tasks/{id}/trajectories`, for printing as it is.
    pub(crate) async fn trajectories(&self, task: &str, format: &str) -> Result<Response> {
        let path = format!("/api/tasks/{task}/trajectories?format={format}");
        let request = self.request(Method::GET, &path).timeout(LONGEST_READING);
        self.checked(self.send(request).await?).await
    }

    /// Waits up to `wait_seconds` for events after `cursor`.
    pub(crate) async fn events(&self, cursor: u64, wait_seconds: f64) -> Result<EventPage> {
        let path = format!("/api/events?after={cursor}&wait_seconds={wait_seconds}");
        self.json(self.request(Method::GET, &path)).await
    }

    pub(crate) async fn nodes(&self) -> Result<NodeList> {
        self.json(self.request(Method::GET, "/api/nodes")).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        let response = self.send(request).await?;
        self.checked(response).await?.json().await.context("read the server's answer")
    }

    /// Sends a request until it is answered, or the server has been away for too long.
    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let mut away_since = None;
        let mut pause = FIRST_PAUSE;
        loop {
            let copy = request.try_clone().context("a request that can be sent again")?;
            let sent = copy.send().await;
            let is_away = match &sent {
                Ok(response) => is_away(response.status()),
                // Not even one that takes connections, ever: there is nothing to wait for.
                Err(error) => !error.is_connect() || self.was_reached.load(Ordering::Relaxed),
            };
            if !matches!(&sent, Err(error) if error.is_connect()) {
                self.was_reached.store(true, Ordering::Relaxed);
            }
            let is_over = away_since.is_some_and(|since: Instant| since.elapsed() > self.patience);
            if !is_away || is_over {
                return sent.with_context(|| self.silence(away_since));
            }
            if away_since.is_none() {
                away_since = Some(Instant::now());
                self.say_away();
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// What to say when no answer came.
    fn silence(&self, away_since: Option<Instant>) -> String {
        let base = &self.base;
        match away_since {
            None => format!(
                "no answer from the rollout server at {base}; start one with `polar up`, or say \
                 where it is with --server"
            ),
            Some(since) => format!(
                "the rollout server at {base} has been away for {} seconds",
                since.elapsed().as_secs()
            ),
        }
    }

    fn say_away(&self) {
        let seconds = self.patience.as_secs();
        // Nothing is left to do when stderr is closed.
        let _ = writeln!(
            std::io::stderr(),
            "the rollout server at {} does not answer; trying again for up to {seconds} s",
            self.base
        );
    }

    /// The response, or the server's error in words.
    async fn checked(&self, response: Response) -> Result<Response> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.text().await.unwrap_or_default();
        bail!("{}", error_text(status, &body))
    }
}

/// Whether somebody else than the server answers, or the server while it cannot.
fn is_away(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

/// `localhost:50051` → `http://localhost:50051`; a URL stays as it is.
pub(crate) fn base_url(address: &str) -> String {
    let address = address.trim_end_matches('/');
    if address.contains("://") { address.to_owned() } else { format!("http://{address}") }
}

fn error_text(status: StatusCode, body: &str) -> String {
    let parsed: Value = serde_json::from_str(body).unwrap_or_default();
    let error = &parsed["error"];
    let Some(message) = error["message"].as_str() else {
        return format!("the server answered {status}: {}", body.trim());
    };
    let problems = error["problems"].as_array().map(Vec::as_slice).unwrap_or_default();
    let line = |problem: &Value| {
        let part = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
        format!("{}: {} (for example {})", part("field"), part("problem"), part("example"))
    };
    match problems {
        // Of a single wrong field the message says the same.
        [problem] if status == StatusCode::UNPROCESSABLE_ENTITY => return line(problem),
        // A conflict's message names the field, and says what to do.
        [_] => return message.to_owned(),
        _ => {}
    }
    let lines = problems.iter().map(|problem| format!("\n  {}", line(problem)));
    message.to_owned() + &lines.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_urls() {
        assert_eq!(base_url("localhost:50051"), "http://localhost:50051");
        assert_eq!(base_url("https://polar.example/"), "https://polar.example");
    }

    /// A server that drops the first connections without an answer, then answers.
    async fn dropping(first: usize) -> (String, tokio::task::JoinHandle<usize>) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move {
            let mut taken = 0;
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 4096]).await.unwrap();
                taken += 1;
                if taken > first {
                    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{\"nodes\":[]}";
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    return taken;
                }
            }
        });
        (address, server)
    }

    fn api(address: &str, patience: Duration) -> Api {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Api { patience, ..Api::new(address, None).unwrap() }
    }

    #[tokio::test]
    async fn a_server_that_comes_back_is_waited_for() {
        let (address, server) = dropping(2).await;
        let api = api(&address, PATIENCE);
        assert!(api.nodes().await.unwrap().nodes.is_empty());
        assert_eq!(server.await.unwrap(), 3);
        // Its port is closed now, as while it restarts.
        let gone = Api { patience: Duration::from_millis(300), ..api };
        let error = format!("{:#}", gone.nodes().await.unwrap_err());
        assert!(error.contains("has been away"), "{error}");
    }

    #[tokio::test]
    async fn an_address_where_nothing_ever_answered_is_refused_at_once() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let error = format!("{:#}", api(&address, PATIENCE).nodes().await.unwrap_err());
        assert!(error.contains("polar up"), "{error}");
    }

    #[test]
    fn errors_name_each_field_with_its_mend() {
        let body = r#"{"error":{"code":"invalid","message":"2 fields are wrong","problems":[
            {"field":"num_samples","problem":"must be at least 1","example":"8"},
            {"field":"weight","problem":"must be at least 1","example":"1"}]}}"#;
        let text = error_text(StatusCode::UNPROCESSABLE_ENTITY, body);
        assert_eq!(
            text,
            "2 fields are wrong\n  num_samples: must be at least 1 (for example 8)\n  \
             weight: must be at least 1 (for example 1)"
        );
        // One is said once.
        let body = r#"{"error":{"code":"invalid","message":"weight: must be at least 1",
            "problems":[{"field":"weight","problem":"must be at least 1","example":"1"}]}}"#;
        let text = error_text(StatusCode::UNPROCESSABLE_ENTITY, body);
        assert_eq!(text, "weight: must be at least 1 (for example 1)");
        // What to do about a conflict is not lost.
        let body = r#"{"error":{"code":"conflict","message":"task a differs in weight; choose another task_id",
            "problems":[{"field":"weight","problem":"is not what was stored","example":"1"}]}}"#;
        let text = error_text(StatusCode::CONFLICT, body);
        assert_eq!(text, "task a differs in weight; choose another task_id");
        let body = r#"{"error":{"code":"conflict","message":"it is taken"}}"#;
        assert_eq!(error_text(StatusCode::CONFLICT, body), "it is taken");
    }
}
