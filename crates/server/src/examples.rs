//! One task with every field, to take examples from when a field is wrong.

use polar_types::FieldProblem;
use serde_json::{Value, json};

/// A task request that uses every field.
pub(crate) fn task() -> Value {
    json!({
        "task_id": "fix-42",
        "instruction": "Fix the failing test.",
        "harness": {
            "name": "pi",
            "adapter": { "name": "mine", "command": "mine --print" },
            "model": "policy",
            "command": "python agent.py",
            "env": { "LANG": "C.UTF-8" },
            "settings": {}
        },
        "runtime": {
            "type": "docker",
            "image": "debian:12",
            "workdir": "/workspace",
            "prepare": [{
                "type": "write_file",
                "path": "src/main.py",
                "content": "print(1)",
                "encoding": "utf8",
                "executable": false,
                "command": "pip install -e .",
                "workdir": "/workspace",
                "env": { "LANG": "C.UTF-8" }
            }],
            "env": { "LANG": "C.UTF-8" },
            "network": "none",
            "cpus": 2.0,
            "memory_mb": 4096,
            "pids": 512,
            "user": "1000:1000"
        },
        "evaluator": {
            "type": "command",
            "command": "pytest -q",
            "workdir": "/workspace",
            "env": { "LANG": "C.UTF-8" },
            "reward": "exit_code"
        },
        "trajectory_strategy": "prefix_merging",
        "num_samples": 8,
        "sampling": {
            "temperature": 1.0,
            "top_p": 0.95,
            "top_k": -1,
            "max_tokens": 4096,
            "seed": 7,
            "stop": ["</answer>"]
        },
        "budgets": { "prepare_seconds": 600, "run_seconds": 1800, "grade_seconds": 600 },
        "timeout_seconds": 1800,
        "max_attempts": 3,
        "priority": 0,
        "callback": { "url": "http://trainer:9000/results", "secret": "s3cret" },
        "metadata": { "split": "train" }
    })
}

/// The example's value at a path such as `runtime.prepare[3].path`, as JSON text.
pub(crate) fn at<'a>(example: &'a Value, field: &str) -> Option<&'a Value> {
    field.split('.').filter(|part| !part.is_empty()).try_fold(example, |value, part| {
        let (name, index) = part.split_once('[').map_or((part, None), |(n, i)| (n, Some(i)));
        let value = if name.is_empty() { value } else { value.get(name)? };
        if index.is_some() { value.get(0) } else { Some(value) }
    })
}

/// A problem whose example is the one for this field, or the whole.
pub(crate) fn problem(
    example: &Value,
    at_prefix: &str,
    field: &str,
    what: impl Into<String>,
) -> FieldProblem {
    let shown = at(example, field).filter(|value| !value.is_null()).unwrap_or(example);
    let name = match (at_prefix, field) {
        ("", "") => "body".to_owned(),
        (prefix, "") => prefix.trim_end_matches('.').to_owned(),
        (prefix, field) => format!("{prefix}{field}"),
    };
    FieldProblem::new(name, what, shown.to_string())
}
