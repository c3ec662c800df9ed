//! Client of the control API, as far as the command line needs it.

use crate::args::ServerAddress;
use crate::token;
use anyhow::{Context, Result, bail};
use polar_types::{EventPage, NodeList, SessionInfo, SessionList, TaskInfo, TaskPage, Trajectory};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// A running server, and how to talk to it.
pub(crate) struct Api {
    client: Client,
    base: String,
    token: Option<String>,
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
        Ok(Self { client, base: base_url(address), token })
    }

    pub(crate) async fn submit(&self, task: &Value) -> Result<TaskInfo> {
        self.json(self.request(Method::POST, "/api/tasks").json(task)).await
    }

    pub(crate) async fn task(&self, task: &str) -> Result<TaskInfo> {
        self.json(self.request(Method::GET, &format!("/api/tasks/{task}"))).await
    }

    pub(crate) async fn tasks(&self) -> Result<TaskPage> {
        self.json(self.request(Method::GET, "/api/tasks")).await
    }

    pub(crate) async fn cancel(&self, task: &str) -> Result<TaskInfo> {
        self.json(self.request(Method::DELETE, &format!("/api/tasks/{task}"))).await
    }

    pub(crate) async fn sessions(&self, task: &str) -> Result<Vec<SessionInfo>> {
        let page: SessionList =
            self.json(self.request(Method::GET, &format!("/api/tasks/{task}/sessions"))).await?;
        Ok(page.sessions)
    }

    pub(crate) async fn trajectory(&self, session: &str) -> Result<Option<Trajectory>> {
        let path = format!("/api/sessions/{session}/trajectory");
        let response = self.send(self.request(Method::GET, &path)).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        Ok(Some(self.checked(response).await?.json().await.context("read the trajectory")?))
    }

    /// The body of `/api/tasks/{id}/trajectories`, for printing as it is.
    pub(crate) async fn trajectories(&self, task: &str, format: &str) -> Result<Response> {
        let path = format!("/api/tasks/{task}/trajectories?format={format}");
        let response = self.send(self.request(Method::GET, &path)).await?;
        self.checked(response).await
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

    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        request.send().await.with_context(|| {
            format!(
                "no answer from the rollout server at {}; start one with `polar up`, or say \
                 where it is with --server",
                self.base
            )
        })
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
    let mut text = message.to_owned();
    for problem in error["problems"].as_array().into_iter().flatten() {
        let part = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
        text.push_str(&format!(
            "\n  {}: {} (for example {})",
            part("field"),
            part("problem"),
            part("example")
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_urls() {
        assert_eq!(base_url("localhost:50051"), "http://localhost:50051");
        assert_eq!(base_url("https://polar.example/"), "https://polar.example");
    }

    #[test]
    fn errors_name_each_field_with_its_mend() {
        let body = r#"{"error":{"code":"invalid","message":"the task is not valid","problems":[
            {"field":"num_samples","problem":"must be at least 1","example":"8"}]}}"#;
        let text = error_text(StatusCode::UNPROCESSABLE_ENTITY, body);
        assert_eq!(
            text,
            "the task is not valid\n  num_samples: must be at least 1 (for example 8)"
        );
    }
}
