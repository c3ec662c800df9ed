//! `polar weights`.

use crate::api::Api;
use crate::args::{Weights, WeightsPush, WeightsStatus};
use crate::display;
use anyhow::{Context, Result, bail};
use polar_types::{
    EngineWeights, UpdateStatus, WeightSource, WeightState, WeightUpdate, WeightUpdateRequest,
};
use std::io::Write as _;

/// How long the server is asked to wait at a time.
const WAIT_SECONDS: u32 = 30;

pub(crate) async fn weights(args: Weights) -> Result<()> {
    match args {
        Weights::Push(args) => push(args).await,
        Weights::Status(args) => status(args).await,
    }
}

async fn push(args: WeightsPush) -> Result<()> {
    let source = source(&args)?;
    let request = WeightUpdateRequest {
        version: args.version,
        source,
        mode: args.mode.into(),
        deadline_seconds: args.deadline,
    };
    let api = Api::of(args.server)?;
    let mut update = api.push_weights(&request).await?;
    if args.wait && update.status == UpdateStatus::Rolling && update.engines.is_empty() {
        let version = &request.version;
        writeln!(std::io::stderr(), "no node is there to take weights {version}; waiting for one")?;
    }
    while args.wait && update.status == UpdateStatus::Rolling {
        update = api.weight_update(&request.version, WAIT_SECONDS).await?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&update)?)?;
    } else {
        write!(out, "{}", shown(&update))?;
    }
    if args.wait && update.status != UpdateStatus::Current {
        bail!("not every engine serves weights {}", request.version);
    }
    Ok(())
}

fn source(args: &WeightsPush) -> Result<WeightSource> {
    let chosen = &args.source;
    Ok(match (&chosen.disk, &chosen.lora) {
        (Some(path), _) => WeightSource::Disk { path: path.clone() },
        (None, Some(lora)) => {
            let (name, path) =
                lora.split_once('=').context("--lora: write NAME=PATH, as in policy=/lora/17")?;
            WeightSource::Lora { name: name.to_owned(), path: path.to_owned() }
        }
        (None, None) => WeightSource::Label {},
    })
}

async fn status(args: WeightsStatus) -> Result<()> {
    let list = Api::of(args.server)?.weights().await?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&list)?)?;
        return Ok(());
    }
    match list.updates.first() {
        Some(newest) => write!(out, "{}", shown(newest))?,
        None => writeln!(out, "no weights were pushed; engines serve what they were started with")?,
    }
    for older in list.updates.iter().skip(1) {
        write!(out, "{}: {}\n{}", older.request.version, summary(older), failures(older))?;
    }
    Ok(())
}

/// What became of older weights where an engine did not take them: they are in no table any more.
fn failures(update: &WeightUpdate) -> String {
    let failed = update.engines.iter().filter(|engine| engine.state != WeightState::Current);
    let lines = failed.map(|engine| {
        let node = engine.node_id.as_ref().map(|node| format!("{node}, ")).unwrap_or_default();
        format!("  {node}{}: {engine}\n", engine.engine)
    });
    lines.collect()
}

fn shown(update: &WeightUpdate) -> String {
    let rows: Vec<Vec<String>> = update.engines.iter().map(row).collect();
    let columns =
        ["node", "engine", "weights", "state", "held s", "in flight", "continued", "wasted"];
    let table = match rows.is_empty() {
        true => "no node is there to take them\n".to_owned(),
        false => display::table(&columns, &rows),
    };
    let reasons = update
        .engines
        .iter()
        .filter_map(|engine| Some(format!("{}: {}\n", engine.engine, engine.reason.as_ref()?)));
    let reasons: String = reasons.collect();
    format!("{}: {}\n{table}{reasons}", update.request.version, summary(update))
}

fn row(engine: &EngineWeights) -> Vec<String> {
    let node = engine.node_id.as_ref().map(ToString::to_string).unwrap_or_default();
    vec![
        node,
        engine.engine.clone(),
        engine.version.clone().unwrap_or_else(|| "-".to_owned()),
        engine.state.as_str().to_owned(),
        engine.held_seconds.map_or("-".to_owned(), |seconds| format!("{seconds:.2}")),
        engine.calls.in_flight.to_string(),
        engine.calls.continued.to_string(),
        engine.calls.tokens_wasted.to_string(),
    ]
}

fn summary(update: &WeightUpdate) -> String {
    let status = match update.status {
        UpdateStatus::Rolling => "rolling",
        UpdateStatus::Current => "every engine serves it",
        UpdateStatus::Partial => "some engines do not serve it",
        UpdateStatus::Superseded => {
            "superseded by newer weights; to go back to these, push them again"
        }
    };
    match update.seconds {
        Some(seconds) => {
            format!("{status}, after {seconds:.2} s ({})", update.request.mode.as_str())
        }
        None => format!("{status} ({})", update.request.mode.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_became_of_older_weights_is_told_where_an_engine_did_not_take_them() {
        let engine = |url: &str, state: &str, reason: Option<&str>| json!({"node_id": "a", "engine": url, "state": state, "reason": reason});
        let update = json!({
            "version": "17", "source": {"label": {}}, "ordinal": 1, "status": "superseded",
            "requested_at": "2026-01-01T00:00:00Z", "engines": [
                engine("http://one", "current", None),
                engine("http://two", "fenced", Some("it failed to load")),
            ],
        });
        let update: WeightUpdate = serde_json::from_value(update).unwrap();
        assert_eq!(failures(&update), "  a, http://two: fenced: it failed to load\n");
        assert!(summary(&update).contains("push them again"), "{}", summary(&update));
    }
}
