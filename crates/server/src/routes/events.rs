//! The event log, by long-poll or as server-sent events.

use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use crate::extract::Params;
use crate::waiting::Wait;
use axum::Json;
use axum::extract::State;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use http::{HeaderMap, header};
use polar_store::{EventQuery, StoreError};
use polar_types::{Event, EventKind, EventPage, TaskId};
use serde::Deserialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const MOST: u32 = 1000;

/// Which events, and whether to wait for them.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventParams {
    /// Position of the last event read; 0 from the start.
    #[serde(default)]
    after: u64,
    /// At most so many, up to 1000; 100 when absent.
    limit: Option<u32>,
    /// How long to hold the request open while there are none; 50 seconds at most.
    #[serde(default)]
    wait_seconds: f64,
    /// Only these kinds, with commas: `session.ended,task.ended`.
    kinds: Option<String>,
    /// Only events of one task.
    task_id: Option<TaskId>,
}

/// Reads events after a cursor. With `Accept: text/event-stream` it is a stream without end
/// that `Last-Event-ID` resumes; else one page, for which `wait_seconds` waits.
#[utoipa::path(get, path = "/api/events", tag = "events", params(EventParams), responses(
    (status = 200, content((EventPage = "application/json"), (Event = "text/event-stream"))),
    (status = 422, body = ErrorBody),
))]
pub(crate) async fn read(
    State(app): State<Arc<App>>,
    Params(params): Params<EventParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let mut query = query_of(&params)?;
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if text(header::ACCEPT.as_str()).is_some_and(|accept| accept.contains("text/event-stream")) {
        if let Some(last) = text("last-event-id").and_then(|id| id.parse().ok()) {
            query.after = last;
        }
        let alive = KeepAlive::new().interval(Duration::from_secs(15));
        return Ok(Sse::new(Follower::new(app, query).stream()).keep_alive(alive).into_response());
    }
    let wait = Wait::new(params.wait_seconds, app.stop.clone());
    let mut signal = app.store.signals().events();
    Ok(Json(next_page(&app, &query, &wait, &mut signal).await?).into_response())
}

fn query_of(params: &EventParams) -> Result<EventQuery, ApiError> {
    let limit = params.limit.unwrap_or(100);
    if limit == 0 || limit > MOST {
        return Err(ApiError::field("limit", format!("must be between 1 and {MOST}"), "100"));
    }
    let words = params.kinds.as_deref().unwrap_or_default().split(',').map(str::trim);
    let kinds = words
        .filter(|word| !word.is_empty())
        .map(|word| {
            serde_json::from_value::<EventKind>(serde_json::Value::String(word.to_owned()))
                .map_err(|error| ApiError::field("kinds", error.to_string(), r#""session.ended""#))
        })
        .collect::<Result<_, _>>()?;
    Ok(EventQuery { after: params.after, limit, kinds, task_id: params.task_id.clone() })
}

/// A page with something in it, or what there is when the time is up.
async fn next_page(
    app: &App,
    query: &EventQuery,
    wait: &Wait,
    signal: &mut watch::Receiver<u64>,
) -> Result<EventPage, StoreError> {
    let mut query = query.clone();
    loop {
        signal.mark_unchanged();
        let page = app.store.events(&query).await?;
        if !page.events.is_empty() || !wait.change(signal).await {
            return Ok(page);
        }
        query.after = page.cursor;
    }
}

/// A reader that stays.
struct Follower {
    app: Arc<App>,
    query: EventQuery,
    signal: watch::Receiver<u64>,
    ready: VecDeque<Event>,
}

impl Follower {
    fn new(app: Arc<App>, query: EventQuery) -> Self {
        let signal = app.store.signals().events();
        Self { app, query, signal, ready: VecDeque::new() }
    }

    fn stream(self) -> impl Stream<Item = Result<sse::Event, axum::Error>> {
        stream::unfold(self, |mut follower| async move {
            let event = follower.next().await?;
            let sent = sse::Event::default()
                .id(event.seq.to_string())
                .event(event.kind.as_str())
                .json_data(&event);
            Some((sent, follower))
        })
    }

    /// `None` when the server ends or its store fails; the client comes back with its cursor.
    async fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() {
            if self.app.stop.is_cancelled() {
                return None;
            }
            let wait = Wait::new(f64::MAX, self.app.stop.clone());
            let page = next_page(&self.app, &self.query, &wait, &mut self.signal).await;
            let page = page.inspect_err(|error| tracing::error!(%error, "events")).ok()?;
            self.query.after = page.cursor;
            self.ready.extend(page.events);
        }
        self.ready.pop_front()
    }
}
