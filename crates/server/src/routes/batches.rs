//! Batches of groups for trainers.

use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{JsonBody, Params};
use crate::routes::blobs::hash_of;
use crate::routes::trajectories::{Format, joined};
use crate::waiting::Wait;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, header};
use polar_types::{Batch, BatchAnswer, BatchRequest, ErrorClass, QueueList, QueueName, Trajectory};
use serde::Deserialize;
use std::sync::Arc;

/// The batch after the trainer's cursor. Asking again with the same cursor gives the same batch,
/// so that a trainer that keeps its cursor trains each group once, over restarts of either side.
/// Groups that have ended go out oldest first; those that the filters leave out are counted in
/// the batch and come in no later one.
#[utoipa::path(post, path = "/api/batches/next", tag = "batches", request_body = BatchRequest,
    responses(
        (status = 200, body = BatchAnswer, description = "Without `batch` when there are not \
            enough groups within `wait_seconds`."),
        (status = 409, body = ErrorBody, description = "The queue never gave that cursor."),
        (status = 422, body = ErrorBody),
    ))]
pub(crate) async fn next(
    State(app): State<Arc<App>>,
    JsonBody(request): JsonBody<BatchRequest>,
) -> Result<Json<BatchAnswer>, ApiError> {
    let problems = request.problems();
    if !problems.is_empty() {
        return Err(ApiError::fields(problems));
    }
    let mut events = app.store.signals().events();
    let wait = Wait::new(request.wait_seconds, app.stop.clone());
    let mut answer = app.store.next_batch(&request, request.groups, app.now()).await?;
    while answer.batch.is_none() {
        let more = loop {
            let before = answer.state.ready;
            if !wait.change(&mut events).await {
                break false;
            }
            // Looking is cheap, and most events end no group.
            if app.store.queue(&request.queue).await?.ready != before {
                break true;
            }
        };
        let enough =
            if more { request.groups } else { request.min_groups.unwrap_or(request.groups) };
        answer = app.store.next_batch(&request, enough, app.now()).await?;
        if !more {
            break;
        }
    }
    Ok(Json(answer))
}

/// How.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct BatchFormatParams {
    /// `json` for an array, `jsonl` for one per line, `safetensors` for arrays of tokens. The
    /// header `Accept` says the same.
    #[param(inline)]
    format: Option<Format>,
}

/// A batch that was made before, as it is now.
#[utoipa::path(get, path = "/api/batches/{queue}/{number}", tag = "batches",
    params(("queue" = String, Path), ("number" = u64, Path)),
    responses((status = 200, body = Batch), (status = 404, body = ErrorBody)))]
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Path((queue, number)): Path<(String, String)>,
) -> Result<Json<Batch>, ApiError> {
    Ok(Json(find(&app, &queue, &number).await?))
}

/// The trajectories of a batch: of its usable sessions, group after group. As `safetensors` each
/// is a file of arrays that says its own length, one behind the other.
#[utoipa::path(get, path = "/api/batches/{queue}/{number}/trajectories", tag = "batches",
    params(("queue" = String, Path), ("number" = u64, Path), BatchFormatParams),
    responses(
        (status = 200, content(
            (Vec<Trajectory> = "application/json"),
            (Trajectory = "application/jsonl"),
            (Vec<u8> = "application/octet-stream"),
        )),
        (status = 404, body = ErrorBody),
    ))]
pub(crate) async fn trajectories(
    State(app): State<Arc<App>>,
    Path((queue, number)): Path<(String, String)>,
    Params(params): Params<BatchFormatParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let batch = find(&app, &queue, &number).await?;
    let format = Format::asked(params.format, &headers);
    let sessions = batch.groups.iter().flat_map(|group| &group.sessions);
    let mut blobs = Vec::new();
    for session in sessions.filter(|session| session.usable) {
        let artifact = match format {
            Format::Safetensors => session.arrays.as_ref(),
            Format::Json | Format::Jsonl => session.trajectory.as_ref(),
        };
        let Some(artifact) = artifact else {
            let (session, format) = (&session.session_id, format.content_type());
            let message = format!("session {session} has no trajectory as {format}");
            return Err(ApiError::new(ErrorClass::Internal, message));
        };
        blobs.push(hash_of(artifact)?);
    }
    let body = Body::from_stream(joined(app.blobs.clone(), blobs, format));
    Ok(([(header::CONTENT_TYPE, format.content_type())], body).into_response())
}

/// Queues, and where they stand.
#[utoipa::path(get, path = "/api/queues", tag = "batches",
    responses((status = 200, body = QueueList)))]
pub(crate) async fn queues(State(app): State<Arc<App>>) -> Result<Json<QueueList>, ApiError> {
    Ok(Json(QueueList { queues: app.store.queues().await? }))
}

async fn find(app: &App, queue: &str, number: &str) -> Result<Batch, ApiError> {
    let invalid = |what: String| ApiError::new(ErrorClass::Invalid, what);
    let queue: QueueName = queue.parse().map_err(|error| invalid(format!("{error}")))?;
    let number: u64 = number
        .parse()
        .map_err(|_| invalid(format!("{number:?} is no number of a batch; they count from 1")))?;
    Ok(app.store.batch(&queue, number).await?)
}
