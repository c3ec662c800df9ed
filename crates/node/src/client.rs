//! What the node says to the server, over HTTP.

use crate::{NodeError, ServerAddress};
use polar_types::{
    Artifact, CancelCount, CancelWatch, EngineOrderReport, EngineOrders, LeaseRequest,
    LeaseResponse, NodeId, ReleaseItem, ReleaseRequest, ReleaseResponse, RenewRequest,
    RenewResponse, ResultAck, SessionReport, WeightOrder, WeightReport,
};
use reqwest::header::CONTENT_LENGTH;
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;

/// Why the server did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// No answer, or one that means "later".
    #[error("{0}")]
    Later(String),
    /// Not with this token. It can be mended on the server's side while sessions run; their
    /// results wait for it.
    #[error("{0}")]
    Unauthorized(String),
    /// It contradicts what the server knows: another node goes by the name.
    #[error("{0}")]
    Conflict(String),
    /// It will say the same next time.
    #[error("{0}")]
    Refused(String),
}

/// The server, as the node sees it.
pub(crate) struct ServerClient {
    client: Client,
    url: String,
    token: Option<String>,
    node_id: NodeId,
}

/// Longest time for a small question.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time for one artifact.
const UPLOAD_PATIENCE: Duration = Duration::from_secs(900);

impl ServerClient {
    pub(crate) fn new(server: &ServerAddress, node_id: NodeId) -> Result<Self, NodeError> {
        // Fails when the process has chosen one already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .connect_timeout(Duration::from_secs(10))
            // A proxy from the environment is meant for the internet, not for the cluster.
            .no_proxy()
            .build()
            .map_err(|error| NodeError::Client(error.to_string()))?;
        let url = server.url.trim_end_matches('/').to_owned();
        Ok(Self { client, url, token: server.token.clone(), node_id })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) async fn lease(&self, ask: &LeaseRequest) -> Result<LeaseResponse, ClientError> {
        let patience = PATIENCE + Duration::from_secs_f64(ask.wait_seconds);
        self.post(&format!("/api/nodes/{}/lease", self.node_id), ask, patience).await
    }

    /// Given up after `patience`, so that the next one still comes in time.
    pub(crate) async fn renew(
        &self,
        ask: &RenewRequest,
        patience: Duration,
    ) -> Result<RenewResponse, ClientError> {
        self.post(&format!("/api/nodes/{}/renew", self.node_id), ask, patience).await
    }

    pub(crate) async fn cancels(&self, watch: &CancelWatch) -> Result<CancelCount, ClientError> {
        let patience = PATIENCE + Duration::from_secs_f64(watch.wait_seconds);
        self.post(&format!("/api/nodes/{}/cancels", self.node_id), watch, patience).await
    }

    pub(crate) async fn weights(&self, report: &WeightReport) -> Result<WeightOrder, ClientError> {
        let patience = PATIENCE + Duration::from_secs_f64(report.wait_seconds);
        self.post(&format!("/api/nodes/{}/weights", self.node_id), report, patience).await
    }

    pub(crate) async fn engine_orders(
        &self,
        report: &EngineOrderReport,
    ) -> Result<EngineOrders, ClientError> {
        let patience = PATIENCE + Duration::from_secs_f64(report.wait_seconds);
        self.post(&format!("/api/nodes/{}/engines", self.node_id), report, patience).await
    }

    pub(crate) async fn release(
        &self,
        items: Vec<ReleaseItem>,
        reason: &str,
        failed: bool,
    ) -> Result<ReleaseResponse, ClientError> {
        let (node_id, reason) = (self.node_id.clone(), reason.to_owned());
        let ask = ReleaseRequest { node_id, items, reason, failed };
        self.post(&format!("/api/nodes/{}/release", self.node_id), &ask, PATIENCE).await
    }

    pub(crate) async fn report(&self, report: &SessionReport) -> Result<ResultAck, ClientError> {
        let path = format!("/api/sessions/{}/result", report.session_id);
        self.post(&path, report, PATIENCE).await
    }

    pub(crate) async fn upload(&self, artifact: &Artifact, path: &Path) -> Result<(), ClientError> {
        let file = tokio::fs::File::open(path)
            .await
            .map_err(|error| ClientError::Refused(format!("{}: {error}", path.display())))?;
        let request = self
            .request(Method::PUT, &format!("/api/blobs/{}", artifact.sha256))
            .header(CONTENT_LENGTH, artifact.size)
            .timeout(UPLOAD_PATIENCE)
            .body(file);
        send(request).await?;
        Ok(())
    }

    /// Gets a blob, which must be what its hash says.
    pub(crate) async fn download(
        &self,
        artifact: &Artifact,
        path: &Path,
    ) -> Result<(), ClientError> {
        let failed =
            |error: std::io::Error| ClientError::Later(format!("{}: {error}", path.display()));
        let request = self.request(Method::GET, &format!("/api/blobs/{}", artifact.sha256));
        let mut response = send(request.timeout(UPLOAD_PATIENCE)).await?;
        let mut file = tokio::fs::File::create(path).await.map_err(failed)?;
        let mut hasher = Sha256::new();
        while let Some(piece) =
            response.chunk().await.map_err(|error| ClientError::Later(words(error)))?
        {
            hasher.update(&piece);
            file.write_all(&piece).await.map_err(failed)?;
        }
        file.flush().await.map_err(failed)?;
        let found: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if found != artifact.sha256 {
            let name = &artifact.name;
            return Err(ClientError::Later(format!("{name} came with the hash {found}")));
        }
        Ok(())
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        patience: Duration,
    ) -> Result<T, ClientError> {
        let request = self.request(Method::POST, path).timeout(patience).json(body);
        let response = send(request).await?;
        response.json().await.map_err(|error| ClientError::Later(words(error)))
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }
}

async fn send(request: RequestBuilder) -> Result<reqwest::Response, ClientError> {
    let response = request.send().await.map_err(|error| ClientError::Later(words(error)))?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let said = in_words(&response.text().await.unwrap_or_default());
    let text = format!("the server answered {status}: {said}");
    Err(match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ClientError::Unauthorized(text),
        StatusCode::CONFLICT => ClientError::Conflict(text),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => ClientError::Later(text),
        status if status.is_server_error() => ClientError::Later(text),
        _ => ClientError::Refused(text),
    })
}

/// What a refusal says to people; all of it, within bounds, when it is not the server's.
fn in_words(body: &str) -> String {
    let known = serde_json::from_str::<serde_json::Value>(body).ok();
    let message = known.as_ref().and_then(|body| body["error"]["message"].as_str());
    message.unwrap_or(body).chars().take(500).collect()
}

/// An error with its causes: reqwest's own text leaves the reason out.
fn words(error: reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Growing waits between tries, spread so that many nodes do not come at once.
#[derive(Debug)]
pub(crate) struct Backoff {
    failures: u32,
    most: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::up_to(Duration::from_secs(15))
    }
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(250);

    /// With waits of at most `most`.
    pub(crate) fn up_to(most: Duration) -> Self {
        Self { failures: 0, most }
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    pub(crate) fn fail(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Whether the last try failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// How long to wait before the next try; not at all without a failure.
    pub(crate) fn pause(&self) -> Duration {
        if self.failures == 0 {
            return Duration::ZERO;
        }
        let doublings = (self.failures - 1).min(10);
        let wait = Self::FIRST.saturating_mul(1 << doublings).min(self.most);
        // Between half and all of it. The hasher's keys are random.
        let share = RandomState::new().hash_one(self.failures) % 1000;
        wait.mul_f64(0.5 + share as f64 / 2000.0)
    }
}
