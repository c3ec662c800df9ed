//! HTTP to one engine: connection pool, deadlines, and failures as [`EngineError`]s.
//!
//! Knows nothing of what is asked. Owns the connection pool; a request or body that is
//! dropped closes its connection, which is how a generation is cancelled.

use crate::EngineError;
use bytes::Bytes;
use futures_util::Stream;
use polar_types::ErrorClass;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Client, RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Instant;

/// How long to wait for an engine before giving it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection.
    pub connect: Duration,
    /// For the answer to a question that needs no sampling.
    pub question: Duration,
    /// For the first piece of a streamed reply. Covers the engine's queue and its pauses
    /// for weight updates.
    pub first_byte: Duration,
    /// Between two pieces of a streamed reply.
    pub idle: Duration,
    /// For a whole reply.
    pub call: Duration,
    /// For an engine that is found paused to go on by itself, before it is told to: an update of
    /// its weights may have broken off with the process that made it.
    pub paused: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            question: Duration::from_secs(60),
            first_byte: Duration::from_secs(1800),
            idle: Duration::from_secs(600),
            call: Duration::from_secs(7200),
            paused: Duration::from_secs(30),
        }
    }
}

/// uvicorn, which vLLM and SGLang run on, closes a connection after 5 idle seconds. Ours
/// are given up before, so that no request meets a connection being closed.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// What a call is known by outside of Polar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallNames<'a> {
    /// In the engine's logs.
    pub(crate) request_id: &'a str,
    /// To a router that keeps sessions on one replica.
    pub(crate) session: Option<&'a str>,
}

impl<'a> From<&'a str> for CallNames<'a> {
    fn from(request_id: &'a str) -> Self {
        Self { request_id, session: None }
    }
}

/// The bytes of a reply as they come.
pub(crate) type Body = Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>;

#[derive(Clone)]
pub(crate) struct Transport {
    client: Client,
    /// What requests go to; may hold a login.
    address: String,
    /// The same as it may be shown and recorded.
    base: String,
    authorization: Option<HeaderValue>,
    timeouts: Timeouts,
}

impl Transport {
    pub(crate) fn new(
        url: &str,
        api_key: Option<&str>,
        timeouts: Timeouts,
    ) -> Result<Self, EngineError> {
        let invalid = |problem: String| EngineError::new(ErrorClass::Invalid, problem);
        let mut address = base_url(url).map_err(invalid)?;
        let mut base = address.clone();
        // A login would reach harnesses with errors, and trainers with traces. Neither fails
        // for a URL that has a host.
        let _ = base.set_username("").and_then(|()| base.set_password(None));
        if api_key.is_some() {
            address = base.clone();
        }
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Losing a race against another caller leaves a provider just as well.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let mut builder = Client::builder()
            .http1_only()
            .tcp_nodelay(true)
            .connect_timeout(timeouts.connect)
            .pool_idle_timeout(POOL_IDLE)
            .pool_max_idle_per_host(usize::MAX);
        // A proxy set in the environment cannot reach this machine's loopback.
        if is_loopback(&base) {
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|error| invalid(root_cause(&error)))?;
        let authorization = api_key
            .map(|key| HeaderValue::try_from(format!("Bearer {key}")))
            .transpose()
            .map_err(|_| invalid("the engine's API key holds characters HTTP cannot send".into()))?
            .map(|mut value| {
                value.set_sensitive(true);
                value
            });
        let [address, base] =
            [address, base].map(|url| url.as_str().trim_end_matches('/').to_owned());
        Ok(Self { client, address, base, authorization, timeouts })
    }

    /// The engine's base URL without a login and without a trailing slash.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// Asks something that needs no sampling.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, EngineError> {
        let request = self.client.get(self.url(path));
        self.json(request, path, self.timeouts.question).await
    }

    /// Whether a path answers with a success, whatever it says.
    pub(crate) async fn answers(&self, path: &str) -> Result<(), EngineError> {
        let request = self.client.get(self.url(path));
        self.bytes(request, self.timeouts.question).await.map(drop)
    }

    /// The same with a body.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, EngineError> {
        let body = serde_json::to_vec(body).map_err(EngineError::malformed)?;
        let request = self.post(path, body);
        self.json(request, path, self.timeouts.question).await
    }

    /// Tells the engine to do something that may take until then; what it answers.
    pub(crate) async fn tell(
        &self,
        path: &str,
        body: &impl Serialize,
        until: Instant,
    ) -> Result<Bytes, EngineError> {
        let body = serde_json::to_vec(body).map_err(EngineError::malformed)?;
        let left = until.saturating_duration_since(Instant::now());
        self.bytes(self.post(path, body), left).await
    }

    /// Asks something, in time.
    pub(crate) async fn get_until<T: DeserializeOwned>(
        &self,
        path: &str,
        until: Instant,
    ) -> Result<T, EngineError> {
        let left = until.saturating_duration_since(Instant::now());
        self.json(self.client.get(self.url(path)), path, left).await
    }

    /// A whole reply.
    pub(crate) async fn reply(
        &self,
        path: &str,
        body: Vec<u8>,
        names: impl Into<CallNames<'_>>,
    ) -> Result<Bytes, EngineError> {
        let request = named(self.post(path, body), names.into());
        self.bytes(request, self.timeouts.call).await
    }

    /// A reply in pieces; answers when the engine has accepted the request.
    pub(crate) async fn open(
        &self,
        path: &str,
        body: Vec<u8>,
        names: impl Into<CallNames<'_>>,
    ) -> Result<Body, EngineError> {
        let request = named(self.post(path, body), names.into());
        let deadline = Instant::now() + self.timeouts.first_byte;
        let response = self.send(request, deadline, self.timeouts.first_byte).await?;
        Ok(Box::pin(response.bytes_stream()))
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    fn post(&self, path: &str, body: Vec<u8>) -> RequestBuilder {
        self.client.post(self.url(path)).header(CONTENT_TYPE, "application/json").body(body)
    }

    async fn json<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        path: &str,
        limit: Duration,
    ) -> Result<T, EngineError> {
        let bytes = self.bytes(request, limit).await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| EngineError::malformed(format_args!("{path}: {error}")))
    }

    async fn bytes(&self, request: RequestBuilder, limit: Duration) -> Result<Bytes, EngineError> {
        let deadline = Instant::now() + limit;
        let response = self.send(request, deadline, limit).await?;
        match tokio::time::timeout_at(deadline, response.bytes()).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(error)) => Err(self.broken(&error)),
            Err(_) => Err(self.late(limit)),
        }
    }

    async fn send(
        &self,
        request: RequestBuilder,
        deadline: Instant,
        limit: Duration,
    ) -> Result<Response, EngineError> {
        let request = match &self.authorization {
            Some(value) => request.header(AUTHORIZATION, value),
            None => request,
        };
        let response = match tokio::time::timeout_at(deadline, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.broken(&error)),
            Err(_) => return Err(self.late(limit)),
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.trim().parse().ok())
            .filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
        // Without its body an error still has its status.
        let body = tokio::time::timeout_at(deadline, response.bytes()).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        Err(EngineError::from_answer(status.as_u16(), retry_after, &body))
    }

    /// The connection could not be made or broke.
    pub(crate) fn broken(&self, error: &reqwest::Error) -> EngineError {
        let (base, cause) = (&self.base, root_cause(error));
        let message = if error.is_connect() {
            format!("no engine can be reached at {base} ({cause}); start it or correct the URL")
        } else {
            // Agents tell from the words "connection lost" that the call is to be made again.
            format!("connection lost to the engine at {base} ({cause}); check its log")
        };
        EngineError::new(ErrorClass::Unavailable, message)
    }

    /// A deadline passed.
    pub(crate) fn late(&self, limit: Duration) -> EngineError {
        EngineError::new(
            ErrorClass::Timeout,
            format!(
                "the engine at {} did not answer within {} s; check its load, or raise the timeout",
                self.base,
                limit.as_secs_f64()
            ),
        )
    }
}

fn named(request: RequestBuilder, names: CallNames<'_>) -> RequestBuilder {
    let request = request.header("x-request-id", names.request_id);
    match names.session {
        Some(session) => request.header("x-session-id", session),
        None => request,
    }
}

/// Takes what people write: without a scheme, with a slash or `/v1` at the end.
fn base_url(given: &str) -> Result<Url, String> {
    let given = given.trim();
    let with_scheme = match given.contains("://") {
        true => given.to_owned(),
        false => format!("http://{given}"),
    };
    let trimmed = with_scheme.trim_end_matches('/');
    let trimmed = trimmed.strip_suffix("/v1").unwrap_or(trimmed);
    let problem = |what: &str| {
        format!("`{given}` is not an engine's URL ({what}); write it like http://localhost:8000")
    };
    let url = Url::parse(trimmed).map_err(|error| problem(&error.to_string()))?;
    match (url.scheme(), url.host_str()) {
        ("http" | "https", Some(_)) => Ok(url),
        (_, None) => Err(problem("no host")),
        (scheme, _) => Err(problem(&format!("scheme {scheme}"))),
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The innermost error says what happened; the outer ones only say where.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_as_people_write_them() {
        let base = |url: &str| Transport::new(url, None, Timeouts::default()).unwrap().base;
        assert_eq!(base("localhost:8000"), "http://localhost:8000");
        assert_eq!(base("http://10.0.0.7:8000/"), "http://10.0.0.7:8000");
        assert_eq!(base("http://localhost:8000/v1"), "http://localhost:8000");
        assert_eq!(base("https://host/engine/v1/"), "https://host/engine");
        for wrong in ["", "ftp://host", "http://"] {
            let error = Transport::new(wrong, None, Timeouts::default()).err().unwrap();
            assert_eq!(error.class, ErrorClass::Invalid);
            assert!(error.message.contains("http://localhost:8000"), "{error}");
        }
    }

    #[test]
    fn loopback_needs_no_proxy() {
        let loopback = |url: &str| is_loopback(&base_url(url).unwrap());
        assert!(loopback("localhost:1") && loopback("127.0.0.1:1") && loopback("http://[::1]:1"));
        assert!(!loopback("10.0.0.1:1") && !loopback("example.org"));
    }
}
