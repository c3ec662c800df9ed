//! Lines of JSON: fields that a task has are the task's, the others its metadata.

use super::{image, read, task_id, template};
use crate::args::ImportJsonl;
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

/// Fields of a task that a line may set.
const FIELDS: [&str; 14] = [
    "harness",
    "runtime",
    "evaluator",
    "grading",
    "trajectory_strategy",
    "train_roles",
    "num_samples",
    "sampling",
    "history",
    "budgets",
    "timeout_seconds",
    "max_attempts",
    "priority",
    "callback",
];

pub(super) fn import(args: &ImportJsonl) -> Result<Vec<Value>> {
    let text = read(&args.file)?;
    let template = template(&args.common)?;
    let mut tasks = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let number = index + 1;
        let line: Value = serde_json::from_str(line)
            .with_context(|| format!("{}, line {number}: not JSON", args.file.display()))?;
        let Value::Object(line) = line else {
            bail!("{}, line {number}: not a JSON object", args.file.display());
        };
        let task = task(line, number, args, template.clone())
            .with_context(|| format!("{}, line {number}", args.file.display()))?;
        tasks.push(task);
    }
    Ok(tasks)
}

fn task(
    mut line: Map<String, Value>,
    number: usize,
    args: &ImportJsonl,
    mut task: Map<String, Value>,
) -> Result<Value> {
    let instruction = match line.remove(&args.instruction) {
        Some(Value::String(text)) => text,
        Some(_) => bail!("`{}` is no text", args.instruction),
        None => bail!(
            "there is no `{}`; --instruction names the field that is the instruction",
            args.instruction
        ),
    };
    let name = match line.remove(&args.id) {
        Some(Value::String(name)) => name,
        Some(Value::Number(number)) => format!("task-{number}"),
        _ => format!("task-{number}"),
    };
    task.insert("task_id".to_owned(), json!(task_id(&name)?));
    task.insert("instruction".to_owned(), json!(instruction));
    let mut metadata = match task.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        _ => Map::new(),
    };
    if let Some(Value::Object(own)) = line.remove("metadata") {
        metadata.extend(own);
    }
    for (field, value) in line {
        match FIELDS.contains(&field.as_str()) {
            true => task.insert(field, value),
            false => metadata.insert(field, value),
        };
    }
    task.insert("metadata".to_owned(), Value::Object(metadata));
    if let Some(image) = image(&args.common, &name, None) {
        let runtime = task.entry("runtime").or_insert_with(|| json!({"type": "docker"}));
        if let Value::String(kind) = runtime {
            *runtime = json!({"type": kind});
        }
        runtime["image"] = json!(image);
    }
    Ok(Value::Object(task))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::ImportArgs;

    #[test]
    fn fields_of_a_task_are_told_from_metadata() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("in.jsonl");
        std::fs::write(
            &file,
            "{\"question\": \"1+1?\", \"answer\": 2, \"id\": \"a/b\", \"num_samples\": 3}\n\n\
             {\"question\": \"2+2?\", \"answer\": 4}\n",
        )
        .unwrap();
        let args = |instruction: &str| ImportJsonl {
            file: file.clone(),
            instruction: instruction.to_owned(),
            id: "id".to_owned(),
            common: ImportArgs {
                out: None,
                template: None,
                harness: Some("codex".to_owned()),
                image: Some("base:{name}".to_owned()),
            },
        };
        let tasks = import(&args("question")).unwrap();
        assert_eq!(
            tasks[0],
            json!({
                "harness": {"name": "codex"}, "task_id": "a-b", "instruction": "1+1?",
                "num_samples": 3, "metadata": {"answer": 2},
                "runtime": {"type": "docker", "image": "base:a/b"},
            })
        );
        assert_eq!(tasks[1]["task_id"], "task-3");
        let said = format!("{:#}", import(&args("prompt")).unwrap_err());
        assert!(said.contains("line 1") && said.contains("--instruction"), "{said}");
    }
}
