//! `polar engines`.

use crate::api::Api;
use crate::args::{EngineChange, EngineOf, EngineWeigh, Engines};
use crate::display;
use anyhow::{Context, Result};
use polar_types::{EngineAction, EngineList, EngineRequest, EngineStatus, NodeEngines};
use std::io::Write as _;

pub(crate) async fn engines(args: Engines) -> Result<()> {
    let Some(change) = args.change else {
        let list = Api::of(args.server)?.engines().await?;
        let json = args.json.then(|| serde_json::to_string(&list)).transpose()?;
        return show(json, &list);
    };
    let (action, of, weight) = match change {
        EngineChange::Add(EngineWeigh { of, weight }) => (EngineAction::Add, of, Some(weight)),
        EngineChange::Weight(EngineWeigh { of, weight }) => {
            (EngineAction::Weight, of, Some(weight))
        }
        EngineChange::Drain(of) => (EngineAction::Drain, of, None),
        EngineChange::Resume(of) => (EngineAction::Resume, of, None),
        EngineChange::Remove(of) => (EngineAction::Remove, of, None),
    };
    let EngineOf { engine, node, json, server } = of;
    let node_id = node.map(|node| node.parse()).transpose().context("--node")?;
    let request = EngineRequest { action, engine, weight, node_id };
    let node = Api::of(server)?.change_engine(&request).await?;
    let json = json.then(|| serde_json::to_string(&node)).transpose()?;
    show(json, &EngineList { nodes: vec![node] })
}

fn show(json: Option<String>, list: &EngineList) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match json {
        Some(json) => writeln!(out, "{json}")?,
        None => write!(out, "{}", shown(list))?,
    }
    Ok(())
}

fn shown(list: &EngineList) -> String {
    let rows: Vec<Vec<String>> = list
        .nodes
        .iter()
        .flat_map(|node| node.engines.iter().map(move |engine| row(node, engine)))
        .collect();
    if rows.is_empty() {
        return "no node has told of an engine\n".to_owned();
    }
    let columns = [
        "node",
        "engine",
        "kind",
        "state",
        "weight",
        "sessions",
        "in flight",
        "calls",
        "failed",
        "moved away",
        "weights",
    ];
    let reasons = list
        .nodes
        .iter()
        .flat_map(|node| &node.engines)
        .filter_map(|engine| Some(format!("{}: {}\n", engine.engine, engine.reason.as_ref()?)));
    display::table(&columns, &rows) + &reasons.collect::<String>()
}

fn row(node: &NodeEngines, engine: &EngineStatus) -> Vec<String> {
    let state = if node.alive { engine.state.as_str() } else { "node silent" };
    vec![
        node.node_id.to_string(),
        engine.engine.clone(),
        engine.kind.clone(),
        state.to_owned(),
        engine.weight.to_string(),
        engine.sessions.to_string(),
        engine.in_flight.to_string(),
        engine.calls.to_string(),
        engine.errors.to_string(),
        engine.moved_away.to_string(),
        engine.weight_version.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}
