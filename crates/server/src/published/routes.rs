//! The routes of the published Polar.

use super::translate::{renamed, translate};
use super::uploads::Uploads;
use super::{request, result, runs, tasks};
use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{Params, PathId, Whole};
use crate::problems;
use crate::routes::body_hash;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use jiff::Timestamp;
use polar_store::{NewTask, TaskQuery};
use polar_types::{ErrorClass, NodeSeen, SessionInfo, SessionStatus, TaskId, TaskInfo, TaskStatus};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Whether the server is well, and how many nodes it has.
#[utoipa::path(get, path = "/health", tag = "published", security(()),
    responses((status = 200, body = Object)))]
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let nodes = app.store.nodes(app.now()).await?;
    let alive = nodes.iter().filter(|node| node.alive).count();
    Ok(Json(json!({ "status": "ok", "nodes": alive })))
}

/// Takes a task in the published Polar's schema.
#[utoipa::path(post, path = "/rollout/task/submit", tag = "published", request_body = Object,
    responses(
        (status = 200, body = Object, description = "It is stored, and runs."),
        (status = 409, body = ErrorBody, description = "Another task of this name is running."),
        (status = 422, body = ErrorBody, description = "Names every field that is wrong, or has no equal."),
    ))]
pub(crate) async fn submit(
    State(app): State<Arc<App>>,
    Whole(body): Whole,
) -> Result<Json<Value>, ApiError> {
    let (task, ignored) = request::read(problems::parse(&body)?).map_err(ApiError::fields)?;
    let name = runs::checked(&task.task_id).map_err(|problem| ApiError::fields(vec![problem]))?;
    if app.tombstones.stands(name.as_str(), app.now()) {
        let message = format!("task {:?} was cancelled before it was submitted", name.as_str());
        return Err(ApiError::new(ErrorClass::Conflict, message));
    }
    let number = match runs::latest(&app, &name).await? {
        None => 1,
        // The same task sent again finds itself; another is refused by the store.
        Some(run) if run.task.status == TaskStatus::Running => run.number,
        Some(run) => run.number + 1,
    };
    let id = runs::id(&name, number)?;
    let folders = app.config.upload_folders.clone();
    // Reads files.
    let read = move || translate(task, &Uploads::from_folders(&folders));
    let request = tokio::task::spawn_blocking(read)
        .await
        .map_err(|error| ApiError::new(ErrorClass::Internal, error.to_string()))?
        .map_err(ApiError::fields)?;
    let body_hash = body_hash(&request);
    let resolved = request.resolve(id, &app.config.known);
    let spec = resolved.map_err(|problems| ApiError::fields(renamed(problems)))?;
    app.store.submit(vec![NewTask { spec, body_hash }], app.now()).await?;
    let mut answer = json!({ "task_id": name, "status": "running" });
    if !ignored.is_empty() {
        answer["ignored"] = json!(ignored);
    }
    Ok(Json(answer))
}

/// A task with the whole results of all sessions that have ended.
#[utoipa::path(get, path = "/rollout/task/{id}", tag = "published",
    params(("id" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = ErrorBody)))]
pub(crate) async fn read(
    State(app): State<Arc<App>>,
    PathId(name): PathId<TaskId>,
) -> Result<Response, ApiError> {
    let run = runs::found(&app, &name).await?;
    let status = tasks::status(run.task.status);
    whole(app, run.task, status).await
}

async fn whole(app: Arc<App>, task: TaskInfo, status: &str) -> Result<Response, ApiError> {
    let failed =
        |error: result::ResultError| ApiError::new(ErrorClass::Internal, error.to_string());
    let pieces = tasks::whole(app, task, status).await.map_err(failed)?;
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Ok((kind, Body::from_stream(pieces)).into_response())
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct CancelParams {
    /// Whether a task of this name that comes within five minutes is refused.
    #[serde(default)]
    register_if_missing: bool,
}

/// Cancels a task.
#[utoipa::path(delete, path = "/rollout/task/{id}", tag = "published",
    params(("id" = String, Path), CancelParams),
    responses((status = 200, body = Object), (status = 404, body = ErrorBody)))]
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    PathId(name): PathId<TaskId>,
    Params(params): Params<CancelParams>,
) -> Result<Response, ApiError> {
    let run = match runs::latest(&app, &name).await? {
        Some(run) => run,
        None if params.register_if_missing => {
            app.tombstones.set(name.as_str(), app.now());
            let nothing = json!({
                "task_id": name, "status": "cancelled", "results": [], "result_paths": [],
                "total_sessions": 0, "completed_sessions": 0,
            });
            return Ok((StatusCode::OK, Json(nothing)).into_response());
        }
        None => return Err(ApiError::not_found(format!("there is no task {:?}", name.as_str()))),
    };
    let task = app.store.cancel(&run.task.task_id, app.now()).await?;
    let status = match task.status {
        TaskStatus::Running => "cancelling",
        other => tasks::status(other),
    };
    whole(app, task, status).await
}

/// All tasks, and the nodes.
#[utoipa::path(get, path = "/rollout/status", tag = "published",
    responses((status = 200, body = Object)))]
pub(crate) async fn status(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let page = app.store.tasks(&TaskQuery { limit: MOST, ..TaskQuery::default() }).await?;
    let mut told = Map::new();
    for task in page.tasks {
        // Newest first: an earlier run of the same name has no say.
        let status = json!(tasks::status(task.status));
        told.entry(runs::name(&task.task_id)).or_insert(status);
    }
    let live = app.store.live().await?;
    let pending = live.by_status.get(&SessionStatus::Queued).copied().unwrap_or(0);
    let seconds = app.config.limits.lease_ttl.as_secs_f64() / 3.0;
    let nodes: Vec<Value> =
        app.store.nodes(app.now()).await?.iter().map(|seen| node(seen, seconds)).collect();
    Ok(Json(json!({
        "tasks": told,
        "pipeline": { "pending_sessions": pending },
        "nodes": { "nodes": nodes },
    })))
}

/// As `GatewayNodeInfo`. Nodes ask for work and are never called, so that they have no address.
fn node(seen: &NodeSeen, heartbeat_seconds: f64) -> Value {
    let slots = &seen.node.slots;
    let held = |stage: &str| seen.node.held.get(stage).copied().unwrap_or(0);
    json!({
        "node_id": seen.node.node_id,
        "gateway_url": "",
        "max_init_workers": slots.prepare,
        "max_run_workers": slots.run,
        "max_postrun_workers": slots.grade,
        "heartbeat_interval_seconds": heartbeat_seconds,
        "init_queue_depth": 0,
        "init_inflight": held("prepare"),
        "ready_depth": held("ready"),
        "run_inflight": held("run"),
        "postrun_queue_depth": 0,
        "postrun_inflight": held("grade") + held("deliver"),
        "dispatch_reservations": 0,
        "healthy": seen.alive && seen.node.troubles.is_empty(),
        "draining": false,
        "last_heartbeat": seen.last_seen_at,
    })
}

/// Most tasks in one answer.
const MOST: u32 = 1000;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Only tasks that stand so: `running`, `completed` or `cancelled`.
    status: Option<String>,
    /// Only tasks with this harness.
    harness: Option<String>,
    /// Only tasks that came at this time or later: RFC 3339, or seconds since 1970.
    since: Option<String>,
    /// At most so many, up to 1000; 200 when absent.
    limit: Option<u32>,
}

/// Lists tasks, newest first.
#[utoipa::path(get, path = "/tasks", tag = "published", params(ListParams),
    responses((status = 200, body = Object), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Params(params): Params<ListParams>,
) -> Result<Json<Value>, ApiError> {
    let limit = params.limit.unwrap_or(200);
    if limit == 0 || limit > MOST {
        return Err(ApiError::field("limit", format!("must be between 1 and {MOST}"), "200"));
    }
    let since = params.since.as_deref().map(time).transpose()?;
    let mut summaries = Vec::new();
    let mut query = TaskQuery { harness: params.harness, limit: MOST, ..TaskQuery::default() };
    loop {
        let page = app.store.tasks(&query).await?;
        for task in page.tasks {
            let came = task.created_at.parse::<Timestamp>().ok();
            if since.is_some_and(|since| came.is_some_and(|came| came < since)) {
                return Ok(Json(json!({ "tasks": summaries })));
            }
            let wanted = params.status.as_deref();
            if wanted.is_none_or(|wanted| wanted == tasks::status(task.status)) {
                summaries.push(summary(&app, task).await?);
            }
            if summaries.len() >= limit as usize {
                return Ok(Json(json!({ "tasks": summaries })));
            }
        }
        match page.next_before {
            Some(before) => query.before = Some(before),
            None => return Ok(Json(json!({ "tasks": summaries }))),
        }
    }
}

fn time(text: &str) -> Result<Timestamp, ApiError> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| seconds.is_finite());
    let found = match seconds {
        Some(seconds) => Timestamp::from_second(seconds as i64).ok(),
        None => text.parse().ok(),
    };
    let what = "must be a time as in RFC 3339, or seconds since 1970";
    found.ok_or_else(|| ApiError::field("since", what, r#""2026-01-02T03:04:05Z""#))
}

async fn summary(app: &App, task: TaskInfo) -> Result<Value, ApiError> {
    let sessions = app.store.sessions(&task.task_id).await?;
    let reports: Vec<_> = sessions.iter().filter_map(SessionInfo::report).collect();
    let mean = |sum: f64| (!reports.is_empty()).then(|| sum / reports.len() as f64);
    let count = |wanted: &[SessionStatus]| {
        sessions.iter().filter(|session| wanted.contains(&session.status)).count()
    };
    Ok(json!({
        "task_id": runs::name(&task.task_id),
        "status": tasks::status(task.status),
        "harness": task.harness,
        "model": null,
        "num_samples": task.num_samples,
        "completed_sessions": count(&[
            SessionStatus::Completed, SessionStatus::TimedOut, SessionStatus::Failed,
            SessionStatus::Cancelled,
        ]),
        "errored_sessions": count(&[SessionStatus::Failed, SessionStatus::Cancelled]),
        "mean_reward": task.mean_reward,
        "mean_traces": mean(reports.iter().map(|report| f64::from(report.traces)).sum()),
        "mean_completions": mean(reports.iter().map(|report| f64::from(report.calls)).sum()),
        "created_at": task.created_at,
        "updated_at": task.updated_at,
        "source": "live",
    }))
}

/// The sessions of a task, without traces.
#[utoipa::path(get, path = "/tasks/{id}/sessions", tag = "published",
    params(("id" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = ErrorBody)))]
pub(crate) async fn sessions(
    State(app): State<Arc<App>>,
    PathId(name): PathId<TaskId>,
) -> Result<Json<Value>, ApiError> {
    let run = runs::found(&app, &name).await?;
    let sessions = app.store.sessions(&run.task.task_id).await?;
    let told: Vec<Value> = sessions.iter().map(|session| one_session(&name, session)).collect();
    Ok(Json(json!({ "task_id": name, "sessions": told })))
}

fn one_session(name: &TaskId, session: &SessionInfo) -> Value {
    let report = session.report();
    json!({
        "session_id": session.session_id,
        "task_id": name,
        "status": result::status(session.status),
        "node_id": session.attempts.last().map(|attempt| attempt.node_id.as_str()),
        "reward": session.reward,
        "completion_count": report.map(|report| report.calls),
        "trace_count": report.map(|report| report.traces),
        "error": result::error(session),
        "created_at": session.created_at,
        "updated_at": session.updated_at,
    })
}
