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
            "adapter": {
                "name": "mine", "version": "1", "provider": "openai_chat", "model": "policy",
                "command": ["mine", "--print"]
            },
            "model": "policy",
            "command": "python agent.py",
            "env": { "LANG": "C.UTF-8" },
            "mcp_servers": [{
                "name": "database",
                "command": "python3",
                "args": ["server.py"],
                "env": { "LANG": "C.UTF-8" },
                "url": "http://localhost:3000/mcp",
                "headers": { "x-team": "a" }
            }],
            "skills": [{
                "name": "release-notes",
                "content": "---\nname: release-notes\ndescription: How to write them.\n---\n",
                "path": "/opt/skills/release-notes"
            }],
            "settings": {},
            "keep": ["billing_line"]
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
                "env": { "LANG": "C.UTF-8" },
                "attempts": 3
            }],
            "env": { "LANG": "C.UTF-8" },
            "network": "none",
            "allowed_hosts": ["pypi.org"],
            "cpus": 2.0,
            "memory_mb": 4096,
            "pids": 512,
            "user": "1000:1000",
            "storage_mb": 10240,
            "gpus": 1,
            "mounts": [{ "source": "/data/repos", "target": "/repos", "read_only": true }]
        },
        "evaluator": {
            "type": "command",
            "command": "pytest -q",
            "workdir": "/workspace",
            "env": { "LANG": "C.UTF-8" },
            "reward": "exit_code",
            "format": "pytest",
            "report": "/tmp/report.xml",
            "fail_to_pass": ["tests/test_fix.py::test_it_is_fixed"],
            "pass_to_pass": ["tests/test_fix.py::test_the_rest"],
            "of": [{ "type": "command", "command": "pytest -q" }],
            "weight": 0.5,
            "evaluator": { "type": "command", "command": "pytest -q" },
            "script": "/tests/test.sh",
            "logs": "/logs/verifier",
            "reward_key": "reward",
            "instance_id": "django__django-11099",
            "repo": "django/django",
            "base_commit": "0123456789abcdef0123456789abcdef01234567",
            "test_patch": "diff --git a/tests/test_fix.py b/tests/test_fix.py",
            "test_command": "pytest -rA tests/test_fix.py",
            "log_parser": "pytest",
            "endpoint": "https://judge.example.org/v1",
            "model": "judge-1",
            "key_env": "POLAR_KEY_JUDGE",
            "rubric": "1 when the answer is right.",
            "show": ["instruction", "diff"],
            "max_characters": 40000,
            "temperature": 0.0,
            "attempts": 3,
            "url": "https://grader.example.org/grade",
            "code": "def grade(context): return 1.0",
            "function": "grade",
            "python": "python3"
        },
        "grading": {
            "sandbox": "fresh",
            "patch": true,
            "exclude": ["build/*.log"],
            "files": ["/var/lib/app/state.db"],
            "max_mb": 64,
            "setup": [{
                "type": "write_file",
                "path": "tests/test_fix.py",
                "content": "assert True",
                "encoding": "utf8",
                "executable": false,
                "command": "pip install -e .",
                "workdir": "/workspace",
                "env": { "LANG": "C.UTF-8" },
                "attempts": 3
            }],
            "on_hack": "label"
        },
        "trajectory_strategy": "prefix_merging",
        "train_roles": ["main", "sub_agent"],
        "history": "sampled",
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
        "weight": 1,
        "queue": "default",
        "early_stop": { "usable": 1 },
        "callback": {
            "url": "http://trainer:9000/results", "secret": "s3cret", "format": "ends"
        },
        "metadata": { "split": "train" }
    })
}

/// A good value for a field such as `runtime.prepare[3].path`, in an object of this `type`; short
/// where a short one does.
pub(crate) fn value_for(example: &Value, kind: Option<&str>, field: &str) -> Option<Value> {
    if example.is_null() {
        return None;
    }
    // What goes by one name in several shapes.
    let name = field.rsplit('.').next().unwrap_or(field);
    let part =
        || json!({ "weight": 0.5, "evaluator": { "type": "command", "command": "pytest -q" } });
    match (kind, name) {
        (Some("tests"), "reward") => return Some(json!("resolved")),
        (Some("weighted_sum"), "of") => return Some(json!([part()])),
        (Some("weighted_sum"), item) if item.starts_with("of[") => return Some(part()),
        (Some("scrub_git"), "path") => return Some(json!("/testbed")),
        _ => {}
    }
    // Things of which each has some of the fields: one, or a list of one.
    let list = name.split('[').next().unwrap_or(name);
    let one = match list {
        "prepare" | "setup" => Some(json!({ "type": "exec", "command": "pip install -e ." })),
        "mcp_servers" => Some(json!({ "name": "database", "command": "python3" })),
        "skills" => Some(json!({ "name": "release-notes", "path": "/opt/skills/release-notes" })),
        _ => None,
    };
    if let Some(one) = one {
        return Some(if list == name { json!([one]) } else { one });
    }
    match field {
        "harness" => Some(json!("pi")),
        "runtime" => Some(json!("local")),
        "evaluator" => Some(json!("none")),
        _ => at(example, field).cloned(),
    }
}

fn at<'a>(example: &'a Value, field: &str) -> Option<&'a Value> {
    // Evaluators are made of others, all of one shape.
    if let Some((before, within)) = field.rsplit_once(".of[")
        && let Some((_, part)) = within.split_once("].")
    {
        let outermost = before.split_once(".of[").map_or(before, |(outermost, _)| outermost);
        let part = part.strip_prefix("evaluator.").unwrap_or(part);
        return at(example, &format!("{outermost}.{part}"));
    }
    field.split('.').filter(|part| !part.is_empty()).try_fold(example, |value, part| {
        let (name, index) = part.split_once('[').map_or((part, None), |(n, i)| (n, Some(i)));
        let value = if name.is_empty() { value } else { value.get(name)? };
        if index.is_some() { value.get(0) } else { Some(value) }
    })
}

/// A problem whose example is the one for this field, or the smallest task.
pub(crate) fn problem(
    example: &Value,
    prefix: &str,
    (kind, field): (Option<&str>, &str),
    what: impl Into<String>,
) -> FieldProblem {
    let shown = match value_for(example, kind, field).filter(|_| !field.is_empty()) {
        Some(value) => value.to_string(),
        None if example.is_null() => "see /api/openapi.json".to_owned(),
        None => SMALLEST_TASK.to_owned(),
    };
    let name = match (prefix, field) {
        ("", "") => "body".to_owned(),
        (prefix, "") => prefix.trim_end_matches('.').to_owned(),
        (prefix, field) => format!("{prefix}{field}"),
    };
    FieldProblem::new(name, what, shown)
}

/// The least that a task needs.
pub(crate) const SMALLEST_TASK: &str =
    r#"{"harness": "pi", "instruction": "Fix the failing test."}"#;
