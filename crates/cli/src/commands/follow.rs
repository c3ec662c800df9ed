//! Submitting tasks and following them to their end.

use crate::api::Api;
use crate::display::{self, Progress};
use anyhow::Result;
use polar_types::{SessionInfo, TaskInfo, TaskStatus, TokenCounts};
use serde_json::Value;
use std::io::Write as _;

/// A task that has ended, with its sessions.
pub(crate) struct Followed {
    pub(crate) task: TaskInfo,
    pub(crate) sessions: Vec<SessionInfo>,
}

/// How long one long-poll for events may stay open.
const WAIT_SECONDS: f64 = 20.0;

/// Submits the tasks and returns when every one of them has ended.
pub(crate) async fn submit_and_follow(api: &Api, tasks: &[Value]) -> Result<Vec<Followed>> {
    let mut infos = Vec::with_capacity(tasks.len());
    for task in tasks {
        infos.push(api.submit(task).await?);
    }
    follow(api, infos).await
}

/// Returns when every one of the tasks has ended.
pub(crate) async fn follow(api: &Api, mut infos: Vec<TaskInfo>) -> Result<Vec<Followed>> {
    let total = infos.iter().map(|task| u64::from(task.num_samples)).sum();
    let progress = Progress::new(total);
    let mut cursor = 0;
    loop {
        for info in &mut infos {
            *info = api.task(info.task_id.as_str()).await?;
        }
        progress.update(&infos);
        if infos.iter().all(|task| task.status != TaskStatus::Running) {
            break;
        }
        cursor = api.events(cursor, WAIT_SECONDS).await?.cursor;
    }
    progress.finish();
    let mut followed = Vec::with_capacity(infos.len());
    for task in infos {
        let sessions = api.sessions(task.task_id.as_str()).await?;
        followed.push(Followed { task, sessions });
    }
    Ok(followed)
}

/// Prints the table of sessions, the balance of tokens and every failure.
pub(crate) fn print_summary(followed: &[Followed]) -> Result<()> {
    let sessions: Vec<SessionInfo> =
        followed.iter().flat_map(|task| task.sessions.iter().cloned()).collect();
    let mut tokens = TokenCounts::default();
    for report in sessions.iter().filter_map(SessionInfo::report) {
        tokens.add(&report.tokens);
    }
    let mut out = std::io::stdout().lock();
    write!(out, "{}", display::session_table(&sessions))?;
    writeln!(out, "\ntokens: {}", display::conservation(&tokens))?;
    for task in followed {
        if let Some(reward) = task.task.mean_reward {
            writeln!(out, "mean reward of {}: {reward:.3}", task.task.task_id)?;
        }
    }
    for session in &sessions {
        for failure in failures(session) {
            writeln!(out, "{}: {failure}", session.session_id)?;
        }
    }
    Ok(())
}

/// What went wrong in a session, over all its attempts.
fn failures(session: &SessionInfo) -> Vec<String> {
    let mut found = Vec::new();
    for attempt in &session.attempts {
        if let Some(lost) = &attempt.lost {
            found.push(format!("attempt {} on {}: {lost}", attempt.attempt, attempt.node_id));
        }
        let Some(report) = &attempt.report else { continue };
        if let polar_types::Outcome::Failed { message, .. } = &report.outcome {
            found.push(format!("attempt {} failed: {message}", attempt.attempt));
        }
        if let Some(error) = &report.grade_error {
            found.push(format!("attempt {} was not graded: {error}", attempt.attempt));
        }
        if let Some(note) = &report.grade_note {
            found.push(format!("attempt {}: {note}", attempt.attempt));
        }
    }
    found
}

/// Whether every session came to a graded or otherwise clean end.
pub(crate) fn all_completed(followed: &[Followed]) -> bool {
    followed.iter().all(|task| task.task.status == TaskStatus::Completed)
}
