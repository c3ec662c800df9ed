//! `polar status` and `polar cancel`.

use crate::api::Api;
use crate::args::{Cancel, Status};
use crate::display;
use anyhow::Result;
use polar_types::{NodeList, NodeSeen, NodeTrouble, TaskPage, TaskStatus, TroubleKind};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write as _;

pub(crate) async fn status(args: Status) -> Result<()> {
    let api = Api::of(args.server)?;
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
            write!(out, "{}", display::session_table(&sessions.iter().collect::<Vec<_>>()))?;
            for session in sessions {
                if let Some(line) = display::explanation(&session) {
                    writeln!(out, "{line}")?;
                }
            }
        }
        None => {
            let tasks = api.tasks().await?;
            let nodes = api.nodes().await?;
            if args.json {
                writeln!(out, "{}", json!({"tasks": tasks.tasks, "nodes": nodes.nodes}))?;
                return Ok(());
            }
            write!(out, "{}", task_table(&tasks))?;
            writeln!(out)?;
            write!(out, "{}", node_table(&nodes))?;
            for seen in nodes.nodes.iter().filter(|seen| seen.alive) {
                for trouble in &seen.node.troubles {
                    writeln!(out, "{}: {trouble}", seen.node.node_id)?;
                }
            }
        }
    }
    Ok(())
}

pub(crate) async fn cancel(args: Cancel) -> Result<()> {
    let api = Api::of(args.server)?;
    let info = api.cancel(&args.task).await?;
    let mut out = std::io::stdout();
    match info.status {
        TaskStatus::Running => {
            let left = counts(&info.sessions);
            writeln!(
                out,
                "{}: being cancelled; its nodes end its sessions ({left})",
                info.task_id
            )?;
        }
        status => writeln!(out, "{}: {}", info.task_id, word(&status))?,
    }
    Ok(())
}

fn task_table(page: &TaskPage) -> String {
    let rows: Vec<Vec<String>> = page
        .tasks
        .iter()
        .map(|task| {
            vec![
                task.task_id.to_string(),
                word(&task.status),
                task.harness.clone(),
                counts(&task.sessions),
                task.mean_reward.map_or("-".to_owned(), |reward| format!("{reward:.3}")),
                task.created_at.clone(),
            ]
        })
        .collect();
    display::table(&["task", "status", "harness", "sessions", "reward", "created"], &rows)
}

fn node_table(list: &NodeList) -> String {
    let rows: Vec<Vec<String>> = list
        .nodes
        .iter()
        .map(|seen| {
            vec![
                seen.node.node_id.to_string(),
                state(seen).to_owned(),
                seen.node.version.clone(),
                seen.node.engine.clone(),
                counts(&seen.node.held),
            ]
        })
        .collect();
    display::table(&["node", "state", "version", "engine", "sessions held"], &rows)
}

/// In one word; what is behind it is told below the table.
fn state(seen: &NodeSeen) -> &'static str {
    match seen.node.troubles.first() {
        _ if !seen.alive => "silent",
        None => "alive",
        Some(NodeTrouble { kind: TroubleKind::Engine, .. }) => "no engine",
        Some(NodeTrouble { kind: TroubleKind::Sandbox, .. }) => "no sandboxes",
        Some(NodeTrouble { kind: TroubleKind::Disk, .. }) => "no disk",
    }
}

/// `3 running, 5 completed`.
fn counts(counts: &BTreeMap<String, u32>) -> String {
    let parts: Vec<String> = counts
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => "-".to_owned(),
    }
}
