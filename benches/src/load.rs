//! Sending calls and timing them.

use crate::arms::Arm;
use anyhow::{Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// One cell of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) prompt: usize,
    pub(crate) sampled: usize,
    pub(crate) concurrency: usize,
    pub(crate) stream: bool,
    /// Microseconds between the tokens that the engine streams.
    pub(crate) interval: usize,
    pub(crate) calls: usize,
}

/// Times of one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// Until the first piece of text.
    pub(crate) first: Duration,
    pub(crate) total: Duration,
}

/// The text of a sampled token.
const WORD: &[u8] = b" word";

type Http = Client<HttpConnector, Full<Bytes>>;

/// Sends the case's calls to an arm, `concurrency` at a time.
pub(crate) async fn run(arm: &Arm, case: &Case, calls: usize) -> Result<Vec<Timing>> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Http = Client::builder(TokioExecutor::new()).build(connector);
    let body = Bytes::from(arm.dialect.body(case).to_string());
    let url = format!("{}{}", arm.url, arm.dialect.path(case.stream));
    let sampled = case.sampled;
    let next = Arc::new(AtomicUsize::new(0));
    let workers = (0..case.concurrency).map(|_| {
        let (client, next, body) = (client.clone(), next.clone(), body.clone());
        let (url, key) = (url.clone(), arm.key.clone());
        tokio::spawn(async move {
            let mut timings = Vec::new();
            while next.fetch_add(1, Ordering::Relaxed) < calls {
                timings.push(one(&client, &url, &key, body.clone(), sampled).await?);
            }
            anyhow::Ok(timings)
        })
    });
    let mut timings = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        timings.extend(worker.await??);
    }
    Ok(timings)
}

async fn one(client: &Http, url: &str, key: &str, body: Bytes, sampled: usize) -> Result<Timing> {
    let request = Request::post(url)
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {key}"))
        .body(Full::new(body))?;
    let started = Instant::now();
    let response = client.request(request).await?;
    let status = response.status();
    let mut body = response.into_body();
    let mut first = None;
    let mut received = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame?.data_ref() {
            received.extend_from_slice(data);
            if first.is_none() && words(data) > 0 {
                first = Some(started.elapsed());
            }
        }
    }
    let total = started.elapsed();
    let text = String::from_utf8_lossy(&received);
    ensure!(status.is_success(), "{url} answered {status}: {text}");
    ensure!(words(&received) >= sampled, "{url} left out text: {text}");
    Ok(Timing { first: first.unwrap_or(total), total })
}

fn words(data: &[u8]) -> usize {
    data.windows(WORD.len()).filter(|window| *window == WORD).count()
}
