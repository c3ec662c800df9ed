//! `polar status` and `polar cancel`.

use crate::api::Api;
use crate::args::{Cancel, Status};
use crate::display;
use anyhow::Result;
use serde_json::{Value, json};
use std::io::Write as _;

pub(crate) async fn status(args: Status) -> Result<()> {
    let api = Api::new(&args.server.server, args.server.token)?;
    let mut out = std::io::stdout().lock();
    match args.task {
        Some(task) => {
            let info = api.task(&task).await?;
            let sessions = api.sessions(&task).await?;
            if args.json {
                writeln!(out, "{}", json!({"task": info, "sessions": sessions}))?;
                return Ok(());
            }
            writeln!(out, "{}: {}", info.task_id, word(&info.status))?;
            write!(out, "{}", display::session_table(&sessions))?;
            for session in sessions {
                if let Some(waiting) = &session.waiting_for {
                    writeln!(out, "{} waits for {waiting}", session.session_id)?;
                }
            }
        }
        None => {
            let tasks = api.tasks().await?;
            let nodes = api.nodes().await?;
            if args.json {
                writeln!(out, "{}", json!({"tasks": tasks["tasks"], "nodes": nodes["nodes"]}))?;
                return Ok(());
            }
            write!(out, "{}", task_table(&tasks))?;
            writeln!(out)?;
            write!(out, "{}", node_table(&nodes))?;
        }
    }
    Ok(())
}

pub(crate) async fn cancel(args: Cancel) -> Result<()> {
    let api = Api::new(&args.server.server, args.server.token)?;
    let info = api.cancel(&args.task).await?;
    writeln!(std::io::stdout(), "{}: {}", info.task_id, word(&info.status))?;
    Ok(())
}

fn task_table(tasks: &Value) -> String {
    let rows: Vec<Vec<String>> = tasks["tasks"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|task| {
            let sessions = task["sessions"].as_object();
            let counts: Vec<String> = sessions
                .into_iter()
                .flatten()
                .map(|(status, count)| format!("{count} {status}"))
                .collect();
            vec![
                text(&task["task_id"]),
                text(&task["status"]),
                text(&task["harness"]),
                counts.join(", "),
                task["mean_reward"].as_f64().map_or("-".to_owned(), |r| format!("{r:.3}")),
                text(&task["created_at"]),
            ]
        })
        .collect();
    display::table(&["task", "status", "harness", "sessions", "reward", "created"], &rows)
}

fn node_table(nodes: &Value) -> String {
    let rows: Vec<Vec<String>> = nodes["nodes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|node| {
            let held: Vec<String> = node["held"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(stage, count)| format!("{count} {stage}"))
                .collect();
            vec![
                text(&node["node_id"]),
                text(&node["version"]),
                text(&node["engine"]),
                if held.is_empty() { "-".to_owned() } else { held.join(", ") },
            ]
        })
        .collect();
    display::table(&["node", "version", "engine", "sessions held"], &rows)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

fn word<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_value(value).map_or_else(|_| "-".to_owned(), |value| text(&value))
}
