//! What the fuzz targets begin with, from the tests' fixtures.

use crate::parsers;
use polar_record::{CallRecord, JournalWriter, SessionHeader};
use polar_tokens::parse::{ParserFamily, ReplyStart};
use serde_json::{Value, json};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Writes a target's seeds into the folder that `$POLAR_FUZZ_SEEDS` names, if there is one. To be
/// called before the fuzzer reads its inputs.
pub fn write(target: &str) {
    if let Some(folder) = env::var_os("POLAR_FUZZ_SEEDS") {
        write_into(Path::new(&folder), target).unwrap();
    }
}

fn write_into(folder: &Path, target: &str) -> Result<()> {
    fs::create_dir_all(folder)?;
    let seeds = match target {
        "journal" => return journal(&folder.join("seed")),
        "parsers" => replies()?,
        "sse" => files("crates/convo/tests/grid/snapshots", |name| name.contains("-stream"))?,
        dialect => requests(dialect)?,
    };
    for (number, seed) in seeds.iter().enumerate() {
        fs::write(folder.join(format!("seed-{number}")), seed)?;
    }
    Ok(())
}

fn at_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn files(folder: &str, wanted: impl Fn(&str) -> bool) -> Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(at_root(folder))? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(&wanted) {
            found.push(fs::read(entry.path())?);
        }
    }
    Ok(found)
}

/// Whole requests of real clients, and conversations that have each feature once.
fn requests(dialect: &str) -> Result<Vec<Vec<u8>>> {
    let of_clients = format!("{dialect}.json");
    let mut seeds = files("crates/convo/tests/fixtures", |name| name.ends_with(&of_clients))?;
    for fixture in files("crates/convo/tests/grid/requests", |_| true)? {
        let fixture: Value = serde_json::from_slice(&fixture)?;
        if let Some(body) = fixture.get(dialect).and_then(Value::as_object) {
            let mut body = body.clone();
            body.insert("model".to_owned(), json!("m"));
            if dialect == "messages" {
                body.insert("max_tokens".to_owned(), json!(1000));
            }
            seeds.push(Value::Object(body).to_string().into_bytes());
        }
    }
    Ok(seeds)
}

/// Turns as models' templates write them, each behind the bytes that choose its family.
fn replies() -> Result<Vec<Vec<u8>>> {
    let rendered = fs::read(at_root("crates/tokens/tests/parsers/rendered.json"))?;
    let rendered: Value = serde_json::from_slice(&rendered)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut seeds = Vec::new();
    for model in list(&rendered["models"]) {
        let marks: String =
            list(&model["marks"]).iter().filter_map(Value::as_str).map(str::to_owned).collect();
        let Some(family) = ParserFamily::from_template(&marks) else { continue };
        for case in list(&model["cases"]) {
            let start = match case["in_reasoning"] == true {
                true => ReplyStart::InReasoning,
                false => ReplyStart::Fresh,
            };
            let chosen = parsers::chosen_by(family, start).ok_or("a family cannot be chosen")?;
            let text = case["text"].as_str().unwrap_or_default();
            seeds.push([&chosen[..], text.as_bytes()].concat());
        }
    }
    Ok(seeds)
}

/// A conversation of three calls, the second with holes in its logprobs, the last without ids.
fn journal(path: &Path) -> Result<()> {
    let header: SessionHeader = serde_json::from_value(json!({
        "session_id": "fix-s0", "task_id": "fix", "group_id": "fix", "attempt": 1, "epoch": 3,
        "created_at_ms": 1, "engine": {"name": "simulator"},
    }))?;
    if path.exists() {
        fs::remove_file(path)?;
    }
    let mut writer = JournalWriter::create(path, &header)?;
    for call in 0..3 {
        let index = writer.append_call(&record(call)?)?;
        writer.append_delivery(index, index == 0)?;
    }
    writer.seal()?;
    Ok(())
}

fn record(call: u32) -> Result<CallRecord> {
    let meta = json!({
        "call_id": "call-0", "dialect": "chat", "stream": true, "model": "m", "started_at_ms": 1,
        "duration_ms": 2, "sampled_tokens": 3, "prompt_tokens": 4, "finish_reason": "stop",
        "engine_finish": "stop", "sampling": {"temperature": 1.0}, "logprob_mode": "raw",
        "weight_versions": [{"version": "1", "start": 0, "end": 2}],
    });
    let message = |turn: u32| {
        let role = if turn.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": format!("turn {turn}")})
    };
    let with_ids = call < 2;
    Ok(CallRecord {
        meta: serde_json::from_value(meta)?,
        messages: (0..=2 * call).map(message).collect(),
        tools: (call > 0).then(|| json!([{"type": "function", "function": {"name": "bash"}}])),
        reply: message(2 * call + 1),
        prompt_ids: with_ids.then(|| (0..10 * (call + 1)).collect()),
        sampled_ids: with_ids.then(|| vec![900 + call, 901]),
        logprobs: if with_ids { vec![Some(-0.5), (call == 0).then_some(-1.0)] } else { Vec::new() },
    })
}
