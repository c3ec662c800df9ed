//! New weights: asked for by trainers, fetched and reported by nodes.

use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{JsonBody, Params, PathId};
use crate::waiting::Wait;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use polar_types::{
    NodeId, UpdateStatus, WeightOrder, WeightReport, WeightUpdate, WeightUpdateList,
    WeightUpdateRequest,
};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// Updates in a list.
const MOST: u32 = 20;

/// How often who waits for an update looks whether a node was lost, of which no event tells.
const LOOK: Duration = Duration::from_secs(2);

/// Gives all engines of all nodes new weights. The answer comes at once; how far it is tells
/// `GET /api/weights/{version}`. The same version with the same body again is the same update.
#[utoipa::path(post, path = "/api/weights", tag = "weights",
    request_body = WeightUpdateRequest,
    responses(
        (status = 202, body = WeightUpdate, description = "Nodes are being told."),
        (status = 200, body = WeightUpdate, description = "It was asked for before."),
        (status = 409, body = ErrorBody, description = "The version is taken; names the field."),
        (status = 422, body = ErrorBody, description = "Names every field that is wrong."),
    ))]
pub(crate) async fn push(
    State(app): State<Arc<App>>,
    JsonBody(request): JsonBody<WeightUpdateRequest>,
) -> Result<Response, ApiError> {
    let problems = request.problems();
    if !problems.is_empty() {
        return Err(ApiError::fields(problems));
    }
    let pushed = app.store.push_weights(request, app.now()).await?;
    if pushed.created {
        let (version, mode) = (&pushed.update.request.version, pushed.update.request.mode.as_str());
        tracing::info!(version, mode, "new weights");
    }
    let status = if pushed.created { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok((status, Json(pushed.update)).into_response())
}

/// The newest updates, and how far each engine is with them.
#[utoipa::path(get, path = "/api/weights", tag = "weights",
    responses((status = 200, body = WeightUpdateList)))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Result<Json<WeightUpdateList>, ApiError> {
    let updates = app.store.weight_updates(MOST, app.now()).await?;
    let version = updates.first().map(|update| update.request.version.clone());
    Ok(Json(WeightUpdateList { version, updates }))
}

/// How long to wait.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitParams {
    /// Seconds to hold the answer back while engines are not through, 50 at most.
    wait_seconds: Option<f64>,
}

/// One update. With `wait_seconds` the answer comes when every engine is through with it, or the
/// time is up.
#[utoipa::path(get, path = "/api/weights/{version}", tag = "weights",
    params(("version" = String, Path), WaitParams),
    responses((status = 200, body = WeightUpdate), (status = 404, body = ErrorBody)))]
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    PathId(version): PathId<String>,
    Params(params): Params<WaitParams>,
) -> Result<Json<WeightUpdate>, ApiError> {
    let mut signal = app.store.signals().weights();
    let wait = Wait::new(params.wait_seconds.unwrap_or(0.0), app.stop.clone());
    loop {
        signal.mark_unchanged();
        let update = app.store.weight_update(&version, app.now()).await?;
        if update.status != UpdateStatus::Rolling {
            return Ok(Json(update));
        }
        let changed = tokio::time::timeout(LOOK, wait.change(&mut signal)).await;
        if changed == Ok(false) {
            return Ok(Json(update));
        }
    }
}

/// Takes how far a node's engines are, and tells it what they are to have. The request is held
/// open while that is what the node knows already, as long as the node likes (50 seconds at
/// most).
#[utoipa::path(post, path = "/api/nodes/{id}/weights", tag = "nodes",
    params(("id" = String, Path)), request_body = WeightReport,
    responses((status = 200, body = WeightOrder), (status = 422, body = ErrorBody)))]
pub(crate) async fn report(
    State(app): State<Arc<App>>,
    PathId(id): PathId<NodeId>,
    JsonBody(report): JsonBody<WeightReport>,
) -> Result<Json<WeightOrder>, ApiError> {
    super::nodes::check_name(&id, &report.node_id, "node_id")?;
    app.store.note_weights(&report, app.now()).await?;
    let mut signal = app.store.signals().weights();
    let wait = Wait::new(report.wait_seconds, app.stop.clone());
    loop {
        signal.mark_unchanged();
        let target = app.store.weight_target().await?;
        let is_news = target.as_ref().map(|target| target.ordinal) != report.known;
        if is_news || !wait.change(&mut signal).await {
            return Ok(Json(WeightOrder { target }));
        }
    }
}
