//! Submitting, listing and cancelling tasks.

use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use crate::examples::SMALLEST_TASK;
use crate::explain::{say_why_none_is_taken, why_nobody_can};
use crate::extract::{Params, PathId, Whole};
use crate::problems;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use polar_store::{NewTask, StoreError, TaskQuery};
use polar_types::{
    Demand, FieldProblem, SessionList, TaskId, TaskInfo, TaskPage, TaskRequest, TaskStatus,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Most tasks in one request and on one page.
const MOST: u32 = 1000;

/// Most sessions in one request: they are stored at once, while other writes wait.
const MOST_SESSIONS: u64 = 65_536;

/// One task or several.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "names the two shapes in the OpenAPI document")]
pub(crate) enum OneOrMany<T> {
    /// One object.
    One(T),
    /// An array: all are stored, or none.
    Many(Vec<T>),
}

/// Submits a task, or several of them at once. Submitting the same `task_id` with the same
/// body again returns the stored task. Needs no content type.
#[utoipa::path(post, path = "/api/tasks", tag = "tasks",
    request_body(content = OneOrMany<TaskRequest>, content_type = "application/json"),
    responses(
        (status = 201, body = OneOrMany<TaskInfo>, description = "Stored."),
        (status = 200, body = OneOrMany<TaskInfo>, description = "All were stored before."),
        (status = 409, body = ErrorBody, description = "A `task_id` is taken by another body."),
        (status = 413, body = ErrorBody),
        (status = 422, body = ErrorBody, description = "Names every field that is wrong."),
    ))]
pub(crate) async fn submit(
    State(app): State<Arc<App>>,
    Whole(body): Whole,
) -> Result<Response, ApiError> {
    let (tasks, batch) = match problems::parse(&body)? {
        Value::Array(items) => (read_batch(items, &app)?, true),
        one => (vec![read(one, "", &app).map_err(ApiError::fields)?], false),
    };
    check_nodes(&app, &tasks, batch).await?;
    let stored = app.store.submit(tasks, app.now()).await?;
    let created = stored.iter().any(|task| task.created);
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    let mut infos: Vec<TaskInfo> = stored.into_iter().map(|task| task.task).collect();
    Ok(match infos.pop() {
        Some(one) if !batch => (status, Json(one)).into_response(),
        last => {
            infos.extend(last);
            (status, Json(infos)).into_response()
        }
    })
}

fn read_batch(items: Vec<Value>, app: &App) -> Result<Vec<NewTask>, ApiError> {
    if items.is_empty() || items.len() > MOST as usize {
        let what = format!("must hold 1 to {MOST} tasks, not {}", items.len());
        return Err(ApiError::field("body", what, &format!("[{SMALLEST_TASK}]")));
    }
    let mut tasks = Vec::with_capacity(items.len());
    let mut wrong = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        match read(item, &format!("tasks[{index}]."), app) {
            Ok(task) => tasks.push(task),
            Err(problems) => wrong.extend(problems),
        }
    }
    if !wrong.is_empty() {
        return Err(ApiError::fields(wrong));
    }
    let sessions: u64 = tasks.iter().map(|task| u64::from(task.spec.num_samples)).sum();
    if sessions > MOST_SESSIONS {
        let what = format!("must ask for at most {MOST_SESSIONS} sessions in all, not {sessions}");
        return Err(ApiError::field("body", what, &format!("[{SMALLEST_TASK}]")));
    }
    Ok(tasks)
}

/// Refuses tasks that no node can run, unless they are stored already.
async fn check_nodes(app: &App, tasks: &[NewTask], batch: bool) -> Result<(), ApiError> {
    let nodes = app.store.nodes(app.now()).await?;
    let mut wrong = Vec::new();
    for (index, task) in tasks.iter().enumerate() {
        let Some(problem) = why_nobody_can(&Demand::of(&task.spec), &nodes) else { continue };
        match app.store.task(&task.spec.task_id).await {
            Ok(_) => {}
            Err(StoreError::NotFound { .. }) => {
                let prefix = if batch { format!("tasks[{index}].") } else { String::new() };
                wrong.push(FieldProblem { field: format!("{prefix}{}", problem.field), ..problem });
            }
            Err(error) => return Err(error.into()),
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(ApiError::fields(wrong)) }
}

fn read(value: Value, prefix: &str, app: &App) -> Result<NewTask, Vec<FieldProblem>> {
    let minted = mint(prefix)?;
    let (request, spec) = problems::read_task(value, prefix, minted, &app.config.known)?;
    Ok(NewTask { spec, body_hash: body_hash(&request) })
}

/// A name for a task whose client gave none. Sorts by time.
fn mint(prefix: &str) -> Result<TaskId, Vec<FieldProblem>> {
    let name = format!("task-{}", uuid::Uuid::now_v7().simple());
    name.parse().map_err(|error: polar_types::id::IdError| {
        vec![FieldProblem::new(format!("{prefix}task_id"), error.to_string(), r#""fix-42""#)]
    })
}

/// The same for two spellings of one request: short and long forms, any order of fields.
pub(crate) fn body_hash(request: &TaskRequest) -> String {
    let named_apart = TaskRequest { task_id: None, ..request.clone() };
    let value = serde_json::to_value(&named_apart).unwrap_or_default();
    hex::encode(Sha256::digest(sorted(value).to_string()))
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.into_iter().map(|(k, v)| (k, sorted(v))).collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(fields.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

/// Which tasks to list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Only tasks that stand so.
    status: Option<TaskStatus>,
    /// Only tasks with this harness.
    harness: Option<String>,
    /// At most so many, up to 1000; 100 when absent.
    limit: Option<u32>,
    /// `next_before` of the page before.
    before: Option<u64>,
}

/// Lists tasks, newest first.
#[utoipa::path(get, path = "/api/tasks", tag = "tasks", params(ListParams), responses(
    (status = 200, body = TaskPage),
    (status = 422, body = ErrorBody),
))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Params(params): Params<ListParams>,
) -> Result<Json<TaskPage>, ApiError> {
    let limit = params.limit.unwrap_or(100);
    if limit == 0 || limit > MOST {
        return Err(ApiError::field("limit", format!("must be between 1 and {MOST}"), "100"));
    }
    let query =
        TaskQuery { status: params.status, harness: params.harness, before: params.before, limit };
    Ok(Json(app.store.tasks(&query).await?))
}

/// One task.
#[utoipa::path(get, path = "/api/tasks/{id}", tag = "tasks", params(("id" = String, Path)),
    responses((status = 200, body = TaskInfo), (status = 404, body = ErrorBody)))]
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    PathId(id): PathId<TaskId>,
) -> Result<Json<TaskInfo>, ApiError> {
    Ok(Json(app.store.task(&id).await?))
}

/// Cancels a task: queued sessions end now, the others as soon as their nodes hear of it.
#[utoipa::path(delete, path = "/api/tasks/{id}", tag = "tasks", params(("id" = String, Path)),
    responses((status = 200, body = TaskInfo), (status = 404, body = ErrorBody)))]
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    PathId(id): PathId<TaskId>,
) -> Result<Json<TaskInfo>, ApiError> {
    Ok(Json(app.store.cancel(&id, app.now()).await?))
}

/// The sessions of a task.
#[utoipa::path(get, path = "/api/tasks/{id}/sessions", tag = "tasks",
    params(("id" = String, Path)),
    responses((status = 200, body = SessionList), (status = 404, body = ErrorBody)))]
pub(crate) async fn sessions(
    State(app): State<Arc<App>>,
    PathId(id): PathId<TaskId>,
) -> Result<Json<SessionList>, ApiError> {
    let mut sessions = app.store.sessions(&id).await?;
    say_why_none_is_taken(&app, &id, &mut sessions).await?;
    Ok(Json(SessionList { task_id: id, sessions }))
}
