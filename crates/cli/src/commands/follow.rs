//! Submitting tasks and following them to their end.

use crate::api::Api;
use crate::args::LogName;
use crate::commands::logs;
use crate::display;
use crate::progress::Progress;
use anyhow::{Result, bail};
use polar_types::{
    AttemptInfo, Outcome, SessionInfo, SessionStatus, Side, TaskInfo, TaskStatus, TokenCounts,
    TrainingSizes, TranslationCounts,
};
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
        infos.push(submit(api, task).await?);
    }
    follow(api, infos).await
}

/// Submits a task, and says so when nothing will run for it.
pub(crate) async fn submit(api: &Api, task: &Value) -> Result<TaskInfo> {
    let (info, is_new) = api.submit(task).await?;
    if !is_new {
        writeln!(
            std::io::stderr(),
            "task {} was submitted before, with the same content: what follows is that run. \
             Give it another `task_id`, or none, to run it again",
            info.task_id
        )?;
    }
    Ok(info)
}

/// Returns when every one of the tasks has ended.
pub(crate) async fn follow(api: &Api, mut infos: Vec<TaskInfo>) -> Result<Vec<Followed>> {
    let total = infos.iter().map(|task| u64::from(task.num_samples)).sum();
    let mut progress = Progress::new(total);
    let mut cursor = 0;
    loop {
        for info in &mut infos {
            *info = api.task(info.task_id.as_str()).await?;
        }
        progress.update(&infos);
        if infos.iter().all(|task| task.status != TaskStatus::Running) {
            break;
        }
        if progress.is_quiet() {
            let mut waiting = Vec::new();
            for task in infos.iter().filter(|task| task.status == TaskStatus::Running) {
                waiting.append(&mut api.sessions(task.task_id.as_str()).await?);
            }
            progress.explain(&waiting);
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

/// Prints the table of sessions, the balance of tokens and every failure, with the end of
/// the log that tells of it.
pub(crate) async fn print_summary(api: &Api, followed: &[Followed]) -> Result<()> {
    let sessions: Vec<&SessionInfo> = sessions(followed).collect();
    let (mut tokens, mut translation) = (TokenCounts::default(), TranslationCounts::default());
    let mut sizes: Option<TrainingSizes> = None;
    for report in sessions.iter().filter_map(|session| session.report()) {
        tokens.add(&report.tokens);
        translation.add(&report.translation);
        if let Some(size) = &report.sizes {
            sizes = Some(sizes.map_or_else(|| size.clone(), |sum| sum.plus(size)));
        }
    }
    let mut text = display::session_table(&sessions);
    text.push_str(&format!("\ntokens: {}\n", display::conservation(&tokens)));
    if let Some(sizes) = sizes.filter(|sizes| sizes.per_request.samples > 0) {
        text.push_str(&format!("to train: {}\n", display::sizes(&sizes)));
    }
    text.push_str(&display::translation(&translation));
    for Followed { task, .. } in followed {
        if let Some(reward) = task.mean_reward {
            text.push_str(&format!("mean reward of {}: {reward:.3}\n", task.task_id));
        }
    }
    for session in &sessions {
        for failure in failures(session) {
            text.push_str(&format!("{}: {}\n", session.session_id, failure.text()));
            let tail = logs::tail(api, session, failure.attempt, failure.logs).await;
            text.push_str(&tail.unwrap_or_default());
        }
    }
    std::io::stdout().lock().write_all(display::spelled_out(&text).as_bytes())?;
    warn_of_silent_agents(&sessions)
}

/// A session without a call has nothing to train on, however well it ended.
fn warn_of_silent_agents(sessions: &[&SessionInfo]) -> Result<()> {
    for session in sessions {
        // One that failed has said why.
        let ended = session.report().filter(|report| report.outcome.detail().is_none());
        if ended.is_some_and(|report| report.calls == 0) {
            writeln!(
                std::io::stderr(),
                "warning: the agent of {} never called the model, so that there is nothing to \
                 train on; it must use OPENAI_BASE_URL or ANTHROPIC_BASE_URL",
                session.session_id
            )?;
        }
    }
    Ok(())
}

/// Something that went wrong in an attempt, and which logs may say why, the likeliest first.
struct Failure<'a> {
    attempt: &'a AttemptInfo,
    /// The first attempt of which the same is to be said.
    first: u32,
    /// Goes on from "attempt 1" or "attempts 1 to 3".
    what: String,
    logs: &'static [LogName],
}

impl Failure<'_> {
    fn text(&self) -> String {
        match self.attempt.attempt {
            last if last == self.first => format!("attempt {last}{}", self.what),
            last => format!("attempts {} to {last}{}", self.first, self.what),
        }
    }
}

/// What went wrong in a session, over all its attempts. What is to be said of attempts in a row
/// in the same words is said once, with the logs of the last of them.
fn failures(session: &SessionInfo) -> Vec<Failure<'_>> {
    let mut found: Vec<Failure<'_>> = Vec::new();
    for attempt in &session.attempts {
        let mut failures = failures_of(attempt);
        if let ([failure], Some(last)) = (failures.as_mut_slice(), found.last())
            && failure.what == last.what
            && failure.attempt.attempt == last.attempt.attempt + 1
        {
            failure.first = last.first;
            found.pop();
        }
        found.append(&mut failures);
    }
    found
}

fn failures_of(attempt: &AttemptInfo) -> Vec<Failure<'_>> {
    let mut found = Vec::new();
    let mut note = |what: String, logs: &'static [LogName]| {
        found.push(Failure { attempt, first: attempt.attempt, what, logs });
    };
    if let Some(lost) = &attempt.lost {
        note(format!(" on {}: {lost}", attempt.node_id), &[]);
    }
    let Some(report) = &attempt.report else { return found };
    if let Outcome::Failed { message, side, .. } = &report.outcome {
        let reason = report.reason.map(|reason| format!(" ({})", reason.as_str()));
        let logs: &[LogName] = match side {
            Side::Grader => &[LogName::Grader],
            _ => &[LogName::Stderr, LogName::Stdout],
        };
        note(format!(" failed{}: {message}", reason.unwrap_or_default()), logs);
    }
    if let Some(error) = &report.grade_error {
        note(format!(" was not graded: {error}"), &[LogName::Grader]);
    }
    for label in &report.hack_labels {
        note(format!(": {} ({:?})", label.pattern.words(), label.place), &[]);
    }
    let refused: Vec<_> = report.network.refused().map(ToString::to_string).collect();
    if !refused.is_empty() {
        let refused = refused.join(", ");
        note(format!(": its agent asked for hosts that it may not reach: {refused}"), &[]);
    }
    if let Some(said) = &report.grade_note {
        note(format!(": {said}"), &[LogName::Grader]);
    }
    found
}

fn sessions(followed: &[Followed]) -> impl Iterator<Item = &SessionInfo> {
    followed.iter().flat_map(|task| &task.sessions)
}

/// An error unless every session came to its end or the end of its time, and was graded if
/// that was asked for.
pub(crate) fn require_success(followed: &[Followed]) -> Result<()> {
    let is_failed = |session: &SessionInfo| {
        !matches!(session.status, SessionStatus::Completed | SessionStatus::TimedOut)
    };
    let failed = sessions(followed).filter(|session| is_failed(session)).count();
    let is_ungraded =
        |session: &SessionInfo| session.report().is_some_and(|report| report.grade_error.is_some());
    let ungraded = sessions(followed).filter(|session| is_ungraded(session)).count();
    let all = sessions(followed).count();
    match (failed, ungraded) {
        (0, 0) => Ok(()),
        (0, ungraded) => bail!("{ungraded} of {all} sessions could not be graded"),
        (failed, 0) => bail!("{failed} of {all} sessions did not complete"),
        (failed, ungraded) => {
            bail!("{failed} of {all} sessions did not complete, and {ungraded} could not be graded")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn attempts_that_were_lost_in_the_same_way_are_told_of_once() {
        let attempt = |number: u32, lost: &str| {
            json!({"attempt": number, "epoch": number, "node_id": "node-1",
                "started_at": "2026-01-01T00:00:00Z", "lost": lost})
        };
        let session: SessionInfo = serde_json::from_value(json!({
            "session_id": "a-s0", "task_id": "a", "group_id": "a", "sample_index": 0,
            "status": "failed", "created_at": "2026-01-01T00:00:00Z",
            "updated_at": "2026-01-01T00:00:00Z",
            "attempts": [attempt(1, "overdue"), attempt(2, "released"), attempt(3, "released")],
        }))
        .unwrap();
        let said: Vec<_> = failures(&session).iter().map(Failure::text).collect();
        assert_eq!(said, ["attempt 1 on node-1: overdue", "attempts 2 to 3 on node-1: released"]);
    }
}
