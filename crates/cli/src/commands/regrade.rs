//! `polar regrade`: has stored work graded again, and waits for it.

use crate::api::Api;
use crate::args::Regrade;
use crate::task_file;
use anyhow::{Result, bail};
use polar_types::{RegradeInfo, SessionInfo, SessionStatus};
use serde_json::{Map, Value, json};
use std::io::Write as _;

/// How long one long-poll for events may stay open.
const WAIT_SECONDS: f64 = 20.0;

pub(crate) async fn regrade(args: Regrade) -> Result<()> {
    let api = Api::of(args.server)?;
    let mut request = Map::new();
    if !args.sessions.is_empty() {
        request.insert("sessions".to_owned(), json!(args.sessions));
    }
    if let Some(file) = &args.evaluator {
        request.insert("evaluator".to_owned(), task_file::read_evaluator(file)?);
    }
    let asked = api.regrade(&args.task, &Value::Object(request)).await?;
    for skipped in &asked.skipped {
        let (session, reason) = (&skipped.session_id, &skipped.reason);
        writeln!(std::io::stderr(), "{session} is left as it is: {reason}")?;
    }
    let sessions = until_done(&api, &args.task, &asked.regrades).await?;
    if args.json {
        writeln!(std::io::stdout(), "{}", json!({ "sessions": sessions }))?;
    }
    let mut failed = 0;
    for (session, order) in sessions.iter().zip(&asked.regrades) {
        let line = match failure(session, order) {
            None => changed(session),
            Some(why) => {
                failed += 1;
                format!("not graded, and left as it was: {why}")
            }
        };
        if !args.json {
            writeln!(std::io::stdout(), "{}: {line}", session.session_id)?;
        }
    }
    match failed {
        0 => Ok(()),
        failed => bail!("{failed} of {} sessions could not be graded again", sessions.len()),
    }
}

/// The sessions of these orders, once each of them has ended.
async fn until_done(api: &Api, task: &str, orders: &[RegradeInfo]) -> Result<Vec<SessionInfo>> {
    let mut cursor = 0;
    loop {
        let mut sessions = api.sessions(task).await?;
        let is_meant = |session: &SessionInfo| {
            orders.iter().any(|order| order.session_id == session.session_id)
        };
        sessions.retain(is_meant);
        let is_over = |session: &SessionInfo| {
            session.regrade.as_ref().is_none_or(|regrade| regrade.status.is_terminal())
        };
        if sessions.iter().all(is_over) {
            return Ok(sessions);
        }
        cursor = api.events(cursor, WAIT_SECONDS).await?.cursor;
    }
}

/// Why an order came to nothing.
fn failure(session: &SessionInfo, order: &RegradeInfo) -> Option<String> {
    let ended = session.regrade.as_ref().filter(|ended| ended.revision == order.revision)?;
    let is_done = ended.status == SessionStatus::Completed;
    (!is_done).then(|| ended.error.clone().unwrap_or_else(|| "no reason is known".to_owned()))
}

fn changed(session: &SessionInfo) -> String {
    let reward = |reward: Option<f64>| reward.map_or("none".to_owned(), |it| it.to_string());
    let before = session.gradings.iter().rev().nth(1).and_then(|grading| grading.reward);
    let version = session.gradings.last().and_then(|grading| grading.grade.as_ref());
    let version = version.map(|grade| format!(", by {}", grade.version)).unwrap_or_default();
    let (before, now) = (reward(before), reward(session.reward));
    format!("reward {before} → {now} (revision {}{version})", session.revision)
}
