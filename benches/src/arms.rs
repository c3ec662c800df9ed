//! The processes under measurement.

use crate::dialect::Dialect;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// The replaying engine.
pub(crate) struct Engine {
    url: String,
    _child: Child,
}

pub(crate) async fn start_engine() -> Result<Engine> {
    let (url, child) = start_own(&["engine"]).await?;
    Ok(Engine { url, _child: child })
}

/// Starts a part of this program as a process; its first line is its address.
async fn start_own(arguments: &[&str]) -> Result<(String, Child)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdout = child.stdout.take().context("the process has no stdout")?;
    let url = BufReader::new(stdout)
        .lines()
        .next_line()
        .await?
        .context("the process ended before it said its address")?;
    Ok((url, child))
}

/// Where calls are sent, and the process whose cost is counted.
pub(crate) struct Arm {
    pub(crate) name: &'static str,
    /// The address before the dialect's path.
    pub(crate) url: String,
    pub(crate) dialect: Dialect,
    pub(crate) key: String,
    child: Option<Arc<Child>>,
    _state: Option<Arc<TempDir>>,
}

impl Arm {
    pub(crate) fn direct(engine: &Engine) -> Self {
        Self {
            name: "direct",
            url: engine.url.clone(),
            dialect: Dialect::Chat,
            key: "none".to_owned(),
            child: None,
            _state: None,
        }
    }

    pub(crate) async fn relay(engine: &Engine) -> Result<Self> {
        let to = engine.url.trim_start_matches("http://");
        let (url, child) = start_own(&["relay", to]).await?;
        Ok(Self {
            name: "relay",
            url,
            dialect: Dialect::Chat,
            key: "none".to_owned(),
            child: Some(Arc::new(child)),
            _state: None,
        })
    }

    /// One gateway, with a session and an arm for each dialect.
    pub(crate) async fn polar(
        engine: &Engine,
        program: &Path,
        dialects: &[Dialect],
    ) -> Result<Vec<Self>> {
        let state = tempfile::tempdir()?;
        let (port, control) = (free_port()?, free_port()?);
        let child = Command::new(program)
            .args(["gateway", "--port", &port.to_string()])
            .args(["--control-port", &control.to_string(), "--engine", &engine.url])
            .args(["--token", CONTROL_TOKEN])
            .arg("--state")
            .arg(state.path())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        wait_for(&format!("http://127.0.0.1:{port}/")).await?;
        let (child, state) = (Arc::new(child), Arc::new(state));
        let mut arms = Vec::new();
        for dialect in dialects {
            let session = post(&format!("http://127.0.0.1:{control}/sessions"), &json!({})).await?;
            let key = session["secret"].as_str().context("no secret for the session")?;
            arms.push(Self {
                name: dialect.arm(),
                url: format!("http://127.0.0.1:{port}"),
                dialect: *dialect,
                key: key.to_owned(),
                child: Some(child.clone()),
                _state: Some(state.clone()),
            });
        }
        Ok(arms)
    }

    pub(crate) async fn rllm(engine: &Engine, program: &Path) -> Result<Self> {
        let state = tempfile::tempdir()?;
        let port = free_port()?;
        let child = Command::new(program)
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["--worker", &format!("{}/v1", engine.url), "--store", "memory"])
            .args(["--log-level", "warning"])
            .current_dir(state.path())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        wait_for(&format!("http://127.0.0.1:{port}/health")).await?;
        Ok(Self {
            name: "rllm",
            url: format!("http://127.0.0.1:{port}/sessions/bench"),
            dialect: Dialect::Chat,
            key: "none".to_owned(),
            child: Some(Arc::new(child)),
            _state: Some(Arc::new(state)),
        })
    }

    /// CPU the gateway's process has used, and memory it holds. Zero for the engine
    /// called directly: there is no gateway.
    pub(crate) fn usage(&self) -> Result<Usage> {
        match self.child.as_ref().and_then(|child| child.id()) {
            None => Ok(Usage::default()),
            Some(pid) => Usage::of(pid),
        }
    }
}

/// A process's running total.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu_ms: f64,
    pub(crate) resident_kb: f64,
}

impl Usage {
    fn of(pid: u32) -> Result<Self> {
        // Nanoseconds on a CPU, summed over threads; `stat` counts in ticks of 10 ms.
        let mut nanoseconds = 0_u64;
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            nanoseconds += text
                .split_whitespace()
                .next()
                .and_then(|field| field.parse::<u64>().ok())
                .unwrap_or(0);
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .context("no VmRSS")?;
        Ok(Self { cpu_ms: nanoseconds as f64 / 1e6, resident_kb: resident })
    }
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

async fn wait_for(url: &str) -> Result<()> {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    for _ in 0..600 {
        if let Ok(response) = client.get(url.parse()?).await
            && response.status().is_success()
        {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("{url} did not answer within 30 s")
}

/// Opens the control API of the gateway under test.
const CONTROL_TOKEN: &str = "bench";

async fn post(url: &str, body: &Value) -> Result<Value> {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let request = Request::post(url)
        .header("authorization", format!("Bearer {CONTROL_TOKEN}"))
        .header("content-type", "application/json")
        .body(Full::from(body.to_string()))?;
    let response = client.request(request).await?;
    let status = response.status();
    let bytes = response.into_body().collect().await?.to_bytes();
    if !status.is_success() {
        bail!("{url} answered {status}: {}", String::from_utf8_lossy(&bytes));
    }
    Ok(serde_json::from_slice(&bytes)?)
}
