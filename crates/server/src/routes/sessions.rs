//! One session: where it stands, what was kept of it, and its result coming in.

use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use crate::explain::say_why_none_is_taken;
use crate::extract::{JsonBody, Params, PathId};
use crate::routes::blobs::hash_of;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;
use polar_types::{
    Artifact, CallSummary, FieldProblem, ResultAck, SessionId, SessionInfo, SessionReport,
    Trajectory,
};
use serde::Deserialize;
use std::sync::Arc;

/// One session, with all its attempts.
#[utoipa::path(get, path = "/api/sessions/{id}", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, body = SessionInfo), (status = 404, body = ErrorBody)))]
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    PathId(id): PathId<SessionId>,
) -> Result<Json<SessionInfo>, ApiError> {
    let mut session = app.store.session(&id).await?;
    let task = session.task_id.clone();
    say_why_none_is_taken(&app, &task, std::slice::from_mut(&mut session)).await?;
    Ok(Json(session))
}

/// Which attempt.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AttemptParams {
    /// Counted from 1; the accepted one when absent. Others are for people to look at.
    attempt: Option<u32>,
}

/// The traces of a session.
#[utoipa::path(get, path = "/api/sessions/{id}/trajectory", tag = "sessions",
    params(("id" = String, Path), AttemptParams),
    responses((status = 200, body = Trajectory), (status = 404, body = ErrorBody)))]
pub(crate) async fn trajectory(
    State(app): State<Arc<App>>,
    PathId(id): PathId<SessionId>,
    Params(params): Params<AttemptParams>,
) -> Result<Response, ApiError> {
    serve(&app, &id, params.attempt, TRAJECTORY, JSON).await
}

/// The LLM calls of a session, without their tokens.
#[utoipa::path(get, path = "/api/sessions/{id}/calls", tag = "sessions",
    params(("id" = String, Path), AttemptParams),
    responses((status = 200, body = Vec<CallSummary>), (status = 404, body = ErrorBody)))]
pub(crate) async fn calls(
    State(app): State<Arc<App>>,
    PathId(id): PathId<SessionId>,
    Params(params): Params<AttemptParams>,
) -> Result<Response, ApiError> {
    serve(&app, &id, params.attempt, "calls.json", JSON).await
}

/// Which text.
#[derive(Debug, Clone, Copy, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogStream {
    /// What the harness printed.
    #[default]
    Stdout,
    /// What the harness printed as errors.
    Stderr,
    /// What the evaluator printed.
    Grader,
    /// What changed in the work folder.
    Diff,
}

impl LogStream {
    fn artifact(self) -> &'static str {
        match self {
            Self::Stdout => "stdout.log",
            Self::Stderr => "stderr.log",
            Self::Grader => "grader.log",
            Self::Diff => "workspace.diff",
        }
    }
}

/// Which text of which attempt.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogParams {
    /// Which text; `stdout` when absent.
    #[serde(default)]
    #[param(inline)]
    stream: LogStream,
    /// Counted from 1; the accepted one when absent.
    attempt: Option<u32>,
}

/// Output of a session's harness or evaluator, or the diff of its work folder.
#[utoipa::path(get, path = "/api/sessions/{id}/logs", tag = "sessions",
    params(("id" = String, Path), LogParams),
    responses((status = 200, body = String, content_type = "text/plain"),
        (status = 404, body = ErrorBody)))]
pub(crate) async fn logs(
    State(app): State<Arc<App>>,
    PathId(id): PathId<SessionId>,
    Params(params): Params<LogParams>,
) -> Result<Response, ApiError> {
    serve(&app, &id, params.attempt, params.stream.artifact(), "text/plain; charset=utf-8").await
}

pub(super) const TRAJECTORY: &str = "trajectory.json";
pub(super) const ARRAYS: &str = "trajectory.safetensors";
const JSON: &str = "application/json";

async fn serve(
    app: &App,
    id: &SessionId,
    attempt: Option<u32>,
    name: &str,
    content_type: &'static str,
) -> Result<Response, ApiError> {
    let session = app.store.session(id).await?;
    let report = match attempt {
        None => session.report(),
        Some(number) => session
            .attempts
            .iter()
            .find(|attempt| attempt.attempt == number)
            .and_then(|attempt| attempt.report.as_ref()),
    };
    let artifact = report.and_then(|report| artifact(report, name)).ok_or_else(|| {
        ApiError::not_found(format!(
            "session {id} has no {name}; its status is {}",
            session.status.as_str()
        ))
    })?;
    let blob = app.blobs.get(hash_of(artifact)?, None).await?;
    let headers = [
        (header::CONTENT_TYPE, content_type.to_owned()),
        (header::CONTENT_LENGTH, blob.size.to_string()),
    ];
    Ok((headers, Body::from_stream(blob.bytes)).into_response())
}

/// The traces that were accepted, once the session has ended.
pub(crate) fn trajectory_artifact(session: &SessionInfo) -> Option<&Artifact> {
    let report = session.report().filter(|_| session.status.is_terminal())?;
    artifact(report, TRAJECTORY)
}

pub(super) fn artifact<'a>(report: &'a SessionReport, name: &str) -> Option<&'a Artifact> {
    report.artifacts.iter().find(|artifact| artifact.name == name)
}

/// Takes the result of an attempt. Its files are uploaded before. Sending the same result
/// again is safe: the answer says that it is stored already.
#[utoipa::path(post, path = "/api/sessions/{id}/result", tag = "nodes",
    params(("id" = String, Path)), request_body = SessionReport,
    responses(
        (status = 200, body = ResultAck),
        (status = 404, body = ErrorBody, description = "No such session, or no such epoch."),
        (status = 422, body = ErrorBody, description = "Names files that were not uploaded."),
    ))]
pub(crate) async fn result(
    State(app): State<Arc<App>>,
    PathId(id): PathId<SessionId>,
    JsonBody(report): JsonBody<SessionReport>,
) -> Result<Json<ResultAck>, ApiError> {
    if report.session_id != id {
        let what = format!("must be {id}, as in the path, not {}", report.session_id);
        return Err(ApiError::field("session_id", what, &format!("{:?}", id.as_str())));
    }
    if report.reward.is_some_and(|reward| !reward.is_finite()) {
        return Err(ApiError::field("reward", "must be a finite number", "1.0"));
    }
    check_uploaded(&app, &report).await?;
    let ack = app.store.complete(&report, app.now()).await?;
    if ack == ResultAck::Accepted {
        // What grades stored work has neither run nor called.
        if report.regrade_of.is_none() {
            app.metrics.note(&report);
        }
    } else {
        // Told again after a lost answer, or of an attempt that was given up: it is kept with it.
        tracing::info!(session = %id, epoch = %report.epoch, ?ack, "a result was not new");
    }
    Ok(Json(ack))
}

/// An accepted result must never point at files that are not there.
async fn check_uploaded(app: &App, report: &SessionReport) -> Result<(), ApiError> {
    let mut problems = Vec::new();
    for (index, artifact) in report.artifacts.iter().enumerate() {
        let stored = app.blobs.size(hash_of(artifact)?).await?;
        if stored != Some(artifact.size) {
            let what = match stored {
                None => format!("{} was not uploaded", artifact.name),
                Some(size) => format!("{} has {size} bytes, not {}", artifact.name, artifact.size),
            };
            let example = format!("PUT /api/blobs/{} first", artifact.sha256);
            problems.push(FieldProblem::new(format!("artifacts[{index}]"), what, example));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(ApiError::fields(problems)) }
}
