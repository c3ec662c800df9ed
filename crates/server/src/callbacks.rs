//! Telling the client's URL of each end, from the store's outbox, until it has been taken.
//!
//! A callback is stored in the same transaction as the end it tells of, so a restart of the
//! server at any moment sends it still. It may therefore arrive twice: every sending of one
//! end carries the same `polar-event-id`.

use crate::app::App;
use crate::config::CallbackPolicy;
use crate::published;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hmac::{Hmac, KeyInit, Mac};
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use polar_store::{CallbackDue, CallbackResult, StoreError};
use polar_types::{CallbackFormat, Event, SessionInfo, TaskInfo};
use serde::Serialize;
use sha2::Sha256;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// Names the end that is told of, the same for every sending.
pub const EVENT_ID_HEADER: &str = "polar-event-id";
/// `t=<Unix seconds>,v1=<hex>`: HMAC-SHA256 over `<Unix seconds>.<body>` with the secret.
pub const SIGNATURE_HEADER: &str = "polar-signature";

/// Body of a callback.
#[derive(Debug, Serialize)]
struct CallbackBody {
    event: Event,
    /// With the client's metadata.
    task: TaskInfo,
    /// Absent when it is the task that ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionInfo>,
}

/// The client that sends them.
pub(crate) fn client(policy: &CallbackPolicy) -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder()
        .timeout(policy.timeout)
        // A redirect could lead a signed body elsewhere.
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("polar/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Sends what is due until the server ends.
pub(crate) async fn run(app: Arc<App>, client: reqwest::Client) {
    let mut signal = app.store.signals().events();
    let mut sending = FuturesUnordered::new();
    let mut in_progress: HashSet<String> = HashSet::new();
    loop {
        signal.mark_unchanged();
        let room = app.config.callbacks.at_a_time.saturating_sub(in_progress.len());
        let due = if room == 0 { Vec::new() } else { due(&app, &in_progress, room).await };
        for callback in due {
            in_progress.insert(callback.callback_id.clone());
            sending.push(deliver(&app, &client, callback));
        }
        tokio::select! {
            Some(sent) = sending.next(), if !sending.is_empty() => {
                in_progress.remove(&sent);
            }
            changed = signal.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(app.config.tick) => {}
            // What was being sent is still in the outbox, for the next start.
            () = app.stop.cancelled() => return,
        }
    }
}

async fn due(app: &App, in_progress: &HashSet<String>, room: usize) -> Vec<CallbackDue> {
    let limit = u32::try_from(in_progress.len() + room).unwrap_or(u32::MAX);
    match app.store.due_callbacks(app.now(), limit).await {
        Ok(due) => due
            .into_iter()
            .filter(|callback| !in_progress.contains(&callback.callback_id))
            .take(room)
            .collect(),
        Err(error) => {
            tracing::error!(%error, "could not read due callbacks");
            Vec::new()
        }
    }
}

/// Sends one and notes what became of it. Returns its id.
async fn deliver(app: &Arc<App>, client: &reqwest::Client, callback: CallbackDue) -> String {
    let id = callback.callback_id.clone();
    let sent = send(app, client, &callback).await;
    if let Err(failure) = &sent {
        tracing::warn!(callback = %id, error = %failure.error, "a callback was not taken");
    }
    let result = judge(&app.config.callbacks, &callback, sent, app.now());
    if let Err(error) = app.store.settle_callback(&id, result).await {
        tracing::error!(%error, callback = %id, "could not note a callback");
    }
    id
}

struct Failure {
    error: String,
    /// The receiver wants no more of them.
    for_good: bool,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self { error: error.to_string(), for_good: false }
    }
}

async fn send(
    app: &Arc<App>,
    client: &reqwest::Client,
    callback: &CallbackDue,
) -> Result<(), Failure> {
    let lasting = |error: String| Failure { error, for_good: false };
    let mut request = client
        .post(&callback.url)
        .header("content-type", "application/json")
        .header(EVENT_ID_HEADER, &callback.callback_id);
    request = match callback.format {
        CallbackFormat::Ends => {
            let body = end(app, &callback.event).await?;
            if let Some(secret) = &callback.secret {
                let seconds = app.now().as_second();
                request = request.header(SIGNATURE_HEADER, sign(secret, seconds, &body));
            }
            request.body(body)
        }
        CallbackFormat::TaskResult => {
            let whole = published::callback(app, &callback.event.task_id).await;
            let (length, pieces) = whole.map_err(|error| lasting(error.to_string()))?;
            // Otherwise it would go in chunks, which simple receivers do not read.
            request.header("content-length", length).body(reqwest::Body::wrap_stream(pieces))
        }
    };
    let answer = request.send().await.map_err(|error| lasting(in_words(&error)))?;
    match answer.status() {
        status if status.is_success() => Ok(()),
        status => Err(Failure {
            error: format!("the receiver answered {status}"),
            for_good: status == StatusCode::GONE,
        }),
    }
}

/// The body that tells of one end.
async fn end(app: &App, event: &Event) -> Result<Vec<u8>, Failure> {
    let event = event.clone();
    let session = match &event.session_id {
        Some(id) => Some(app.store.session(id).await?),
        None => None,
    };
    let body = CallbackBody { task: app.store.task(&event.task_id).await?, event, session };
    serde_json::to_vec(&body).map_err(|error| Failure { error: error.to_string(), for_good: false })
}

/// The value of the signature header.
pub fn sign(secret: &str, unix_seconds: i64, body: &[u8]) -> String {
    // HMAC takes keys of every length; there is no error to have.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else {
        return String::new();
    };
    mac.update(format!("{unix_seconds}.").as_bytes());
    mac.update(body);
    format!("t={unix_seconds},v1={}", hex::encode(mac.finalize().into_bytes()))
}

fn judge(
    policy: &CallbackPolicy,
    callback: &CallbackDue,
    sent: Result<(), Failure>,
    now: Timestamp,
) -> CallbackResult {
    let Err(Failure { error, for_good }) = sent else { return CallbackResult::Delivered };
    let at = later(now, pause(policy, callback.attempts));
    if for_good || at > later(callback.created_at, policy.give_up_after) {
        return CallbackResult::Failed { error };
    }
    CallbackResult::Retry { at, error }
}

/// Doubles with each failure, up to the longest.
fn pause(policy: &CallbackPolicy, failures_before: u32) -> Duration {
    let factor = 2_u32.saturating_pow(failures_before);
    policy.first_pause.saturating_mul(factor).min(policy.longest_pause)
}

fn later(at: Timestamp, span: Duration) -> Timestamp {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    at.saturating_add(span).unwrap_or(Timestamp::MAX)
}

/// reqwest's own text names the URL only; the reason is in its sources.
fn in_words(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
