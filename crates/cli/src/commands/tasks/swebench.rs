//! Instances of SWE-bench and SWE-Gym.
//!
//! The agent gets the problem and the repository at its base commit, without its future; the
//! test patch is the evaluator's alone.

use super::{image, read, task_id, template};
use crate::args::ImportSwebench;
use anyhow::{Context, Result, bail, ensure};
use polar_types::{EvaluatorSpec, InstanceTests, SwebenchEvaluator};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Where the benchmark's images have the repository.
const REPOSITORY: &str = "/testbed";
/// Where an instance's own patch lies for `--oracle`.
const GOLD: &str = "/tmp/gold.patch";

pub(super) fn import(args: &ImportSwebench) -> Result<Vec<Value>> {
    let template = template(&args.common)?;
    let mut tasks = Vec::new();
    for (number, instance) in instances(&args.file)?.into_iter().enumerate() {
        let id = text(&instance, "instance_id").with_context(|| format!("instance {number}"))?;
        if !args.only.is_empty() && !args.only.contains(&id) {
            continue;
        }
        let task = task(&id, &instance, args, template.clone())
            .with_context(|| format!("instance {id}"))?;
        tasks.push(task);
    }
    let missing: Vec<_> = args
        .only
        .iter()
        .filter(|id| tasks.iter().all(|task| task["evaluator"]["instance_id"] != **id))
        .collect();
    ensure!(missing.is_empty(), "there is no instance {missing:?} in {}", args.file.display());
    Ok(tasks)
}

/// A JSON array, or an object in each line.
fn instances(file: &Path) -> Result<Vec<Value>> {
    let content = read(file)?;
    if content.trim_start().starts_with('[') {
        return serde_json::from_str(&content).with_context(|| file.display().to_string());
    }
    let lines = content.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| {
            serde_json::from_str(line)
                .with_context(|| format!("{}, line {}: not JSON", file.display(), index + 1))
        })
        .collect()
}

fn task(
    id: &str,
    instance: &Value,
    args: &ImportSwebench,
    mut task: Map<String, Value>,
) -> Result<Value> {
    let own_runtime = task.contains_key("runtime");
    // A repository of a template's own making has other commits, and its programs elsewhere.
    let tests = InstanceTests { command: args.test_command.as_deref(), in_own_image: !own_runtime };
    let evaluator = SwebenchEvaluator::of_instance(instance, tests)?;
    let repo = evaluator.repo.clone();
    if !own_runtime {
        let own = ["image_name", "docker_image", "image"]
            .iter()
            .find_map(|field| instance[*field].as_str())
            .map_or_else(|| published_image(id), str::to_owned);
        task.insert(
            "runtime".to_owned(),
            json!({
                "type": "docker",
                "image": image(&args.common, id, Some(own)),
                "workdir": REPOSITORY,
                "prepare": [{"type": "scrub_git", "path": REPOSITORY}],
            }),
        );
    }
    task.insert("task_id".to_owned(), json!(task_id(id)?));
    task.insert("instruction".to_owned(), json!(text(instance, "problem_statement")?.trim()));
    task.insert("evaluator".to_owned(), serde_json::to_value(EvaluatorSpec::Swebench(evaluator))?);
    let metadata = task.entry("metadata").or_insert_with(|| json!({}));
    metadata["instance_id"] = json!(id);
    metadata["repo"] = json!(repo);
    if args.oracle {
        be_the_oracle(instance, &mut task)?;
    }
    Ok(Value::Object(task))
}

/// The images that the benchmark's makers publish.
fn published_image(id: &str) -> String {
    format!("swebench/sweb.eval.x86_64.{}:latest", id.to_lowercase().replace("__", "_1776_"))
}

/// The instance's own patch, as if an agent had made it.
fn be_the_oracle(instance: &Value, task: &mut Map<String, Value>) -> Result<()> {
    let patch = text(instance, "patch")?;
    task.insert(
        "harness".to_owned(),
        json!({"name": "shell", "command": format!("git apply -v {GOLD}")}),
    );
    let runtime = task.entry("runtime").or_insert_with(|| json!({"type": "local"}));
    if let Value::String(kind) = runtime {
        *runtime = json!({"type": kind});
    }
    let step = json!({"type": "write_file", "path": GOLD, "content": patch});
    match &mut runtime["prepare"] {
        Value::Array(steps) => steps.push(step),
        other => *other = json!([step]),
    }
    Ok(())
}

fn text(instance: &Value, field: &str) -> Result<String> {
    match &instance[field] {
        Value::String(text) => Ok(text.clone()),
        Value::Null => bail!("it has no `{field}`"),
        _ => bail!("its `{field}` is no text"),
    }
}
