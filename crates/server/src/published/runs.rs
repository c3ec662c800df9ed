//! Names of tasks that are used again.
//!
//! The published Polar runs a task anew when its name is submitted after it ended, as a trainer
//! does that goes back to a checkpoint. Here a task is kept for good, so that each further run
//! of a name is a task of its own: `NAME`, `NAME.run2`, `NAME.run3`. Clients see `NAME` only.

use crate::app::App;
use crate::error::ApiError;
use polar_store::StoreError;
use polar_types::{ErrorClass, FieldProblem, TaskId, TaskInfo};

const MARK: &str = ".run";

/// The latest run of a name.
pub(super) struct Run {
    pub(super) number: u32,
    pub(super) task: TaskInfo,
}

/// The task of a run.
pub(super) fn id(name: &TaskId, number: u32) -> Result<TaskId, ApiError> {
    if number == 1 {
        return Ok(name.clone());
    }
    let id = format!("{name}{MARK}{number}");
    id.parse().map_err(|error: polar_types::id::IdError| {
        ApiError::field("task_id", error.to_string(), r#""fix-42""#)
    })
}

/// The name that the client gave to the task.
pub(super) fn name(id: &TaskId) -> &str {
    split(id.as_str()).map_or(id.as_str(), |(name, _)| name)
}

fn split(id: &str) -> Option<(&str, u32)> {
    let (name, number) = id.rsplit_once(MARK)?;
    let number = number.parse().ok().filter(|number| *number > 1)?;
    Some((name, number))
}

/// A name that a client may give.
pub(super) fn checked(name: &str) -> Result<TaskId, FieldProblem> {
    let problem = |what: String| FieldProblem::new("task_id", what, r#""fix-42""#);
    if split(name).is_some() {
        return Err(problem(format!(
            "must not end in {MARK} and a number, which says a further run"
        )));
    }
    name.parse().map_err(|error: polar_types::id::IdError| problem(error.to_string()))
}

/// The latest run; none where nothing was ever submitted under the name.
pub(super) async fn latest(app: &App, name: &TaskId) -> Result<Option<Run>, ApiError> {
    let mut latest = None;
    for number in 1.. {
        match app.store.task(&id(name, number)?).await {
            Ok(task) => latest = Some(Run { number, task }),
            Err(StoreError::NotFound { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(latest)
}

/// As [`latest`], of a task that must be there.
pub(super) async fn found(app: &App, name: &TaskId) -> Result<Run, ApiError> {
    let found = latest(app, name).await?;
    found.ok_or_else(|| {
        ApiError::new(ErrorClass::NotFound, format!("there is no task {:?}", name.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_after_its_task() {
        let task: TaskId = "fix-42".parse().unwrap();
        for number in [1, 2, 31] {
            assert_eq!(name(&id(&task, number).unwrap()), "fix-42");
        }
        for own in ["a.run", "a.run1", "a.runs2", "a.run2b"] {
            assert_eq!(checked(own).unwrap().as_str(), own);
        }
        for taken in ["a.run2", "a b", ""] {
            assert_eq!(checked(taken).unwrap_err().field, "task_id");
        }
    }
}
