//! Having the stored work of sessions graded again.

use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{PathId, Whole};
use crate::problems;
use axum::Json;
use axum::extract::State;
use polar_store::NewRegrade;
use polar_types::{
    FieldProblem, RegradeList, RegradeRequest, RegradeSkipped, SessionId, SessionInfo, TaskId,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Grades the stored work of a task's sessions again, by its own evaluator or by another one. The
/// agent does not run. When it is done a session has another revision of its result, which the
/// event `session.regraded` tells; its tokens stay as they are. Asking for the same again while
/// it is on its way changes nothing.
#[utoipa::path(post, path = "/api/tasks/{id}/regrade", tag = "tasks",
    params(("id" = String, Path)),
    request_body(content = RegradeRequest, content_type = "application/json"),
    responses(
        (status = 200, body = RegradeList),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "It is being graded by another evaluator."),
        (status = 422, body = ErrorBody, description = "Names every field that is wrong."),
    ))]
pub(crate) async fn regrade(
    State(app): State<Arc<App>>,
    PathId(id): PathId<TaskId>,
    Whole(body): Whole,
) -> Result<Json<RegradeList>, ApiError> {
    let request = read(&body)?;
    let spec = app.store.spec(&id).await?;
    let evaluator = request.evaluator_for(&spec).map_err(ApiError::fields)?;
    let sessions = app.store.sessions(&id).await?;
    let mut skipped = Vec::new();
    let chosen = match &request.sessions {
        Some(named) => named_ones(named, &sessions).map_err(ApiError::fields)?,
        None => all_that_can_be(sessions, &mut skipped),
    };
    let new = |session: SessionId| NewRegrade { session, evaluator: evaluator.clone() };
    let new: Vec<_> = chosen.into_iter().map(new).collect();
    if new.is_empty() {
        let why =
            skipped.first().map(|skipped| format!(" ({}: {})", skipped.session_id, skipped.reason));
        let what = format!("names none that can be graded again{}", why.unwrap_or_default());
        return Err(ApiError::field("sessions", what, &format!("[\"{id}-s0\"]")));
    }
    let sessions = app.store.regrade(new, app.now()).await?;
    let regrades = sessions.into_iter().filter_map(|session| session.regrade).collect();
    Ok(Json(RegradeList { task_id: id, regrades, skipped }))
}

fn read(body: &[u8]) -> Result<RegradeRequest, ApiError> {
    let value = match body.iter().all(u8::is_ascii_whitespace) {
        true => json!({}),
        false => problems::parse(body)?,
    };
    let example = json!({
        "sessions": ["fix-42-s0"],
        "evaluator": {"type": "command", "command": "pytest -q"},
    });
    let read = problems::read::<RegradeRequest>(value, &example, "");
    match read.value.filter(|_| read.problems.is_empty()) {
        Some(request) => Ok(request),
        None => Err(ApiError::fields(read.problems)),
    }
}

fn named_ones(
    named: &[SessionId],
    sessions: &[SessionInfo],
) -> Result<Vec<SessionId>, Vec<FieldProblem>> {
    let mut chosen: Vec<SessionId> = Vec::new();
    let mut wrong = Vec::new();
    for (index, id) in named.iter().enumerate() {
        let session = sessions.iter().find(|session| session.session_id == *id);
        let why = match session {
            None => Some("is no session of this task".to_owned()),
            Some(session) => {
                session.why_not_regraded().map(|why| format!("cannot be graded again: {why}"))
            }
        };
        match why {
            Some(why) => {
                let example = sessions.first().map(|first| Value::from(first.session_id.as_str()));
                let example = example.unwrap_or_default().to_string();
                wrong.push(FieldProblem::new(format!("sessions[{index}]"), why, example));
            }
            None if chosen.contains(id) => {}
            None => chosen.push(id.clone()),
        }
    }
    if wrong.is_empty() { Ok(chosen) } else { Err(wrong) }
}

fn all_that_can_be(
    sessions: Vec<SessionInfo>,
    skipped: &mut Vec<RegradeSkipped>,
) -> Vec<SessionId> {
    let mut chosen = Vec::new();
    for session in sessions {
        match session.why_not_regraded() {
            None => chosen.push(session.session_id),
            Some(reason) => {
                skipped.push(RegradeSkipped { session_id: session.session_id, reason });
            }
        }
    }
    chosen
}
