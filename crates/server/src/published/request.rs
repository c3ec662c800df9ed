//! A task as clients of the published Polar send it.
//!
//! Shapes and defaults alone: what a field means here is for [`super::translate`] to say.

use crate::problems;
use polar_types::FieldProblem;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What `POST /rollout/task/submit` takes.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Task {
    pub(super) task_id: String,
    pub(super) instruction: String,
    #[serde(default = "one")]
    pub(super) num_samples: u32,
    #[serde(default = "ten_minutes")]
    pub(super) timeout_seconds: f64,
    pub(super) runtime: Option<Runtime>,
    pub(super) agent: Agent,
    pub(super) builder: Option<Strategy>,
    pub(super) evaluator: Option<Evaluator>,
    pub(super) callback_url: Option<String>,
    #[serde(default)]
    pub(super) metadata: Map<String, Value>,
    #[serde(default)]
    pub(super) dispatch_priority: i32,
    pub(super) early_stop_min_usable_sessions: Option<u32>,
}

fn one() -> u32 {
    1
}

fn ten_minutes() -> f64 {
    600.0
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Agent {
    pub(super) harness: Option<String>,
    pub(super) import_path: Option<String>,
    pub(super) model_name: Option<String>,
    pub(super) settings: Map<String, Value>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) mcp_servers: Vec<McpServer>,
    pub(super) skills_path: Option<String>,
    pub(super) custom_shell: Option<Command>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct McpServer {
    pub(super) name: String,
    pub(super) transport: String,
    pub(super) command: Option<String>,
    #[serde(default)]
    pub(super) args: Vec<String>,
    pub(super) url: Option<String>,
}

/// A shell command.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Command {
    pub(super) command: String,
    pub(super) cwd: Option<String>,
    pub(super) env: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Runtime {
    #[serde(default = "docker")]
    pub(super) backend: String,
    pub(super) image: String,
    #[serde(default)]
    pub(super) prepare: Vec<Step>,
    pub(super) eval_prepare: Option<Vec<Step>>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// Absent means `host`, null means the container program's own default.
    #[serde(default = "host")]
    pub(super) network: Option<String>,
    pub(super) workdir: Option<String>,
    pub(super) cpus: Option<f64>,
    pub(super) memory_mb: Option<u64>,
    pub(super) storage_mb: Option<u64>,
    #[serde(default)]
    pub(super) gpus: u32,
    #[serde(default = "yes")]
    pub(super) allow_internet: bool,
    pub(super) import_path: Option<String>,
    #[serde(default)]
    pub(super) kwargs: Map<String, Value>,
    pub(super) direct_exec_init_command: Option<String>,
    #[serde(default)]
    pub(super) internet_volumes: Vec<String>,
}

fn docker() -> String {
    "docker".to_owned()
}

fn host() -> Option<String> {
    Some("host".to_owned())
}

fn yes() -> bool {
    true
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Step {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) source: Option<String>,
    pub(super) target: Option<String>,
    pub(super) command: Option<String>,
    pub(super) cwd: Option<String>,
    pub(super) env: Option<BTreeMap<String, String>>,
    #[serde(default = "one")]
    pub(super) max_attempts: u32,
    #[serde(default)]
    pub(super) retry_backoff_seconds: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Strategy {
    pub(super) strategy: String,
    #[serde(default)]
    pub(super) config: Map<String, Value>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Evaluator {
    pub(super) strategy: String,
    #[serde(default)]
    pub(super) config: Map<String, Value>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) refresh_runtime: bool,
}

/// Reads a task, with every wrong field named, and the fields that nobody knows.
pub(super) fn read(body: Value) -> Result<(Task, Vec<String>), Vec<FieldProblem>> {
    let problems::Read { value, problems } = problems::read::<Task>(body.clone(), &example(), "");
    let Some(task) = value.filter(|_| problems.is_empty()) else { return Err(problems) };
    let mut ignored = Vec::new();
    let read: Result<Task, _> =
        serde_ignored::deserialize(body, |path| ignored.push(path.to_string()));
    // It was read above; here only what was left over is of interest.
    drop(read);
    Ok((task, ignored))
}

/// A task with every field, to take examples from when one is wrong.
fn example() -> Value {
    json!({
        "task_id": "fix-42",
        "instruction": "Fix the failing test.",
        "num_samples": 8,
        "timeout_seconds": 600.0,
        "runtime": {
            "backend": "docker",
            "image": "debian:12",
            "prepare": [{"type": "exec", "command": "pip install -e .", "cwd": "/workspace"}],
            "network": "host",
            "workdir": "/workspace",
        },
        "agent": {
            "harness": "codex",
            "model_name": "policy",
            "settings": {},
            "env": {},
            "mcp_servers": [{"name": "db", "transport": "stdio", "command": "db-mcp"}],
            "custom_shell": {"command": "python agent.py"},
        },
        "builder": {"strategy": "prefix_merging", "config": {}},
        "evaluator": {"strategy": "session_completed", "config": {}},
        "callback_url": "http://trainer:9000/callback/task_result",
        "metadata": {},
        "dispatch_priority": 0,
    })
}
