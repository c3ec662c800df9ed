//! A task with the results of its sessions, as `TaskStatus` and as the callback's `TaskResult`.

use super::result::{self, ResultError};
use super::runs;
use crate::app::App;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use polar_types::{SessionInfo, TaskId, TaskInfo, TaskStatus};
use serde_json::json;
use std::sync::Arc;

/// A task's status. One whose sessions all failed has completed there.
pub(super) fn status(status: TaskStatus) -> &'static str {
    match status {
        TaskStatus::Running => "running",
        TaskStatus::Completed | TaskStatus::Failed => "completed",
        TaskStatus::Cancelled => "cancelled",
    }
}

pub(super) fn ended(session: &SessionInfo) -> bool {
    session.status.is_terminal()
}

/// A body in pieces, of which only one session's is in memory at a time.
pub(crate) type Pieces = BoxStream<'static, Result<Bytes, ResultError>>;

/// `TaskStatus`: everything there is of a task so far.
pub(super) async fn whole(
    app: Arc<App>,
    task: TaskInfo,
    status: &str,
) -> Result<Pieces, ResultError> {
    let sessions = app.store.sessions(&task.task_id).await?;
    let completed = sessions.iter().filter(|session| ended(session)).count();
    let counts = json!({ "total_sessions": sessions.len(), "completed_sessions": completed });
    Ok(pieces(app, task, status, sessions, Some(counts)))
}

/// `TaskResult` of an ended task, for its callback, and how many bytes it has. Receivers that
/// were written for a body of known length get one.
pub(crate) async fn callback(app: &Arc<App>, task: &TaskId) -> Result<(u64, Pieces), ResultError> {
    let task = app.store.task(task).await?;
    let sessions = app.store.sessions(&task.task_id).await?;
    let told = status(task.status);
    let body = || pieces(Arc::clone(app), task.clone(), told, sessions.clone(), None);
    // Made twice, so that it need not be held.
    let length = body()
        .try_fold(0_u64, |length, piece| async move { Ok(length + piece.len() as u64) })
        .await?;
    Ok((length, body()))
}

fn pieces(
    app: Arc<App>,
    task: TaskInfo,
    status: &str,
    sessions: Vec<SessionInfo>,
    counts: Option<serde_json::Value>,
) -> Pieces {
    let name = runs::name(&task.task_id).to_owned();
    let head = json!({ "task_id": name, "status": status });
    let mut tail = json!({ "result_paths": [] });
    if let (Some(tail), Some(counts)) = (tail.as_object_mut(), counts) {
        tail.extend(counts.as_object().cloned().unwrap_or_default());
    }
    // The two objects become one, with the results between them.
    let head = format!("{},\"results\":[", head.to_string().trim_end_matches('}'));
    let tail = format!("],{}", tail.to_string().trim_start_matches('{'));
    let fixed = |text: String| stream::iter([Ok(Bytes::from(text))]);
    let told = sessions.into_iter().filter(ended).enumerate();
    let shared = Arc::new((app, name, task));
    let results = stream::iter(told).then(move |(index, session)| {
        let shared = Arc::clone(&shared);
        async move {
            let (app, name, task) = &*shared;
            let comma: &'static [u8] = if index == 0 { b"" } else { b"," };
            let result = result::of_session(app, name, task, &session).await;
            stream::iter([Ok(Bytes::from_static(comma)), result])
        }
    });
    fixed(head).chain(results.flatten()).chain(fixed(tail)).boxed()
}
