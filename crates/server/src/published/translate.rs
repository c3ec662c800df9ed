//! A published task as one of ours.
//!
//! What has an equal is that; what has none is refused by the name of its field, with what to
//! use instead. Nothing is left out silently. Where two things are equal only in part,
//! `docs/published-api.md` says in which.

use super::request::{Agent, Command, McpServer, Strategy, Task};
use super::{evaluator, runtime, uploads::Uploads};
use polar_types::{
    Budgets, Callback, CallbackFormat, EarlyStop, EvaluatorSpec, FieldProblem, GradingSpec,
    HarnessSpec, RuntimeSpec, TaskRequest, TrajectoryStrategy,
};
use serde_json::{Map, Value, json};

/// What is found on the way, all of it.
pub(super) type Problems = Vec<FieldProblem>;

/// The same task in our terms.
pub(super) fn translate(task: Task, uploads: &Uploads) -> Result<TaskRequest, Problems> {
    let mut problems = Problems::new();
    let mut budget = uploads.budget();
    let run_seconds = agent_timeout(&task, &mut problems);
    let harness = harness(task.agent, &mut problems);
    let mut runtime = match task.runtime {
        Some(runtime) => runtime::translate(runtime, &mut budget, &mut problems),
        None => RuntimeSpec::default(),
    };
    let mut grading = GradingSpec::default();
    let mut budgets = Budgets {
        prepare_seconds: task.timeout_seconds,
        run_seconds,
        grade_seconds: task.timeout_seconds,
    };
    let evaluator = match task.evaluator {
        None => EvaluatorSpec::None {},
        Some(asked) => {
            let mut rest = evaluator::Rest {
                runtime: &mut runtime,
                grading: &mut grading,
                grade_seconds: &mut budgets.grade_seconds,
            };
            evaluator::translate(asked, &mut rest, &mut budget, &mut problems)
        }
    };
    let trajectory_strategy = strategy(task.builder, &mut problems);
    if !(0..=100).contains(&task.dispatch_priority) {
        problems.push(FieldProblem::new("dispatch_priority", "must be between 0 and 100", "0"));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    // All that is not said of a task is as `POST /api/tasks` has it.
    let mut request: TaskRequest = serde_json::from_value(json!({"harness": "shell"}))
        .map_err(|error| vec![FieldProblem::new("agent", error.to_string(), "{}")])?;
    request.instruction = task.instruction;
    request.harness = harness;
    request.runtime = runtime;
    request.evaluator = evaluator;
    request.grading = grading;
    request.trajectory_strategy = trajectory_strategy;
    request.num_samples = task.num_samples;
    request.budgets = budgets;
    request.early_stop = task.early_stop_min_usable_sessions.map(|usable| EarlyStop { usable });
    request.priority = task.dispatch_priority;
    request.callback = task.callback_url.map(|url| Callback {
        url,
        secret: None,
        format: CallbackFormat::TaskResult,
    });
    request.metadata = task.metadata;
    Ok(request)
}

/// A field without an equal.
pub(super) fn no_equal(field: impl Into<String>, instead: &str) -> FieldProblem {
    FieldProblem::new(field, format!("has no equal here: {instead}"), "null")
}

/// `metadata.agent_timeout` is the agent's alone, within the whole of `timeout_seconds`.
fn agent_timeout(task: &Task, problems: &mut Problems) -> f64 {
    match task.metadata.get("agent_timeout") {
        None | Some(Value::Null) => task.timeout_seconds,
        Some(said) => match said.as_f64().filter(|seconds| seconds.is_finite() && *seconds > 0.0) {
            Some(seconds) => seconds.min(task.timeout_seconds),
            None => {
                let what = "must be a number of seconds above 0";
                problems.push(FieldProblem::new("metadata.agent_timeout", what, "600"));
                task.timeout_seconds
            }
        },
    }
}

fn strategy(builder: Option<Strategy>, problems: &mut Problems) -> TrajectoryStrategy {
    let Some(Strategy { strategy, config }) = builder else {
        return TrajectoryStrategy::PerRequest;
    };
    for name in config.keys() {
        problems.push(no_equal(
            format!("builder.config.{name}"),
            "a strategy has no settings; what is merged is decided token by token",
        ));
    }
    match strategy.as_str() {
        "per_request" => TrajectoryStrategy::PerRequest,
        "prefix_merging" => TrajectoryStrategy::PrefixMerging,
        _ => {
            problems.push(FieldProblem::new(
                "builder.strategy",
                format!("is {strategy:?}, and there are per_request and prefix_merging"),
                r#""prefix_merging""#,
            ));
            TrajectoryStrategy::PerRequest
        }
    }
}

/// Published names of presets, and ours.
const PRESETS: [(&str, &str); 10] = [
    ("claude_code", "claude_code"),
    ("codex", "codex"),
    ("gemini_cli", "gemini_cli"),
    ("qwen_code", "qwen_code"),
    ("opencode", "opencode"),
    ("pi", "pi"),
    ("mini_swe_agent", "mini_swe_agent"),
    ("openhands_sdk", "openhands"),
    ("openhands", "openhands"),
    ("shell", "shell"),
];

/// Programs that are told `provider/model` there, and the model here.
const WITH_PROVIDER: [&str; 4] = ["codex", "opencode", "pi", "mini_swe_agent"];

fn harness(agent: Agent, problems: &mut Problems) -> HarnessSpec {
    let said = agent.harness.unwrap_or_default();
    let known = PRESETS.iter().find(|(theirs, _)| *theirs == said).map(|(_, ours)| *ours);
    match (&agent.import_path, known) {
        (Some(_), _) => problems.push(no_equal(
            "agent.import_path",
            "a harness is no Python class but an adapter file, which POST /api/tasks takes in \
             `harness.adapter`; or run the program with harness \"shell\"",
        )),
        (None, Some(_)) => {}
        (None, None) => {
            let names = PRESETS.map(|(theirs, _)| theirs).join(", ");
            problems.push(FieldProblem::new(
                "agent.harness",
                format!("no harness is called {said:?}; there are {names}"),
                r#""codex""#,
            ));
        }
    }
    if agent.skills_path.is_some() {
        problems.push(no_equal(
            "agent.skills_path",
            "skills are named one by one, in `harness.skills` of POST /api/tasks",
        ));
    }
    let mut harness = HarnessSpec::named(known.unwrap_or("shell"));
    harness.model = agent.model_name.map(|model| match model.split_once('/') {
        Some((_, model)) if WITH_PROVIDER.contains(&said.as_str()) => model.to_owned(),
        _ => model,
    });
    harness.env = agent.env;
    harness.settings = settings(known.unwrap_or("shell"), agent.settings);
    let servers = agent.mcp_servers.into_iter().enumerate();
    harness.mcp_servers =
        servers.filter_map(|(index, server)| mcp_server(index, server, problems)).collect();
    match (said == "shell", agent.custom_shell) {
        (true, Some(command)) => give_command(&mut harness, command),
        (true, None) => problems.push(FieldProblem::new(
            "agent.custom_shell",
            "is needed by the shell harness",
            r#"{"command": "python agent.py"}"#,
        )),
        (false, Some(_)) => problems.push(FieldProblem::new(
            "agent.custom_shell",
            "is for the shell harness only",
            "null",
        )),
        (false, None) => {}
    }
    harness
}

/// Settings that have another name here. One that no adapter has is refused by the adapter.
fn settings(harness: &str, said: Map<String, Value>) -> Map<String, Value> {
    said.into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| match (harness, name.as_str()) {
            ("pi", "thinking") => ("reasoning_effort".to_owned(), value),
            ("pi", "max_tokens") => ("max_output_tokens".to_owned(), value),
            ("mini_swe_agent", "step_limit") => ("max_turns".to_owned(), value),
            _ => (name, value),
        })
        .collect()
}

fn mcp_server(
    index: usize,
    server: McpServer,
    problems: &mut Problems,
) -> Option<polar_types::McpServer> {
    let McpServer { name, transport, command, args, url } = server;
    match transport.as_str() {
        "stdio" => Some(polar_types::McpServer { name, command, args, ..Default::default() }),
        "streamable-http" => Some(polar_types::McpServer { name, url, ..Default::default() }),
        _ => {
            problems.push(FieldProblem::new(
                format!("agent.mcp_servers[{index}].transport"),
                format!("is {transport:?}, and agents reach servers by stdio or streamable-http"),
                r#""streamable-http""#,
            ));
            None
        }
    }
}

fn give_command(harness: &mut HarnessSpec, command: Command) {
    harness.env.extend(command.env.unwrap_or_default());
    let login = in_login_shell(&command.command);
    harness.command = Some(match command.cwd {
        Some(folder) => format!("cd {} && exec {login}", quoted(&folder)),
        None => format!("exec {login}"),
    });
}

/// Commands of the published API are for bash, as at a login; ours are for `sh`.
pub(super) fn in_login_shell(command: &str) -> String {
    format!("bash -lc {}", quoted(command))
}

/// One word of a shell's command line.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Our names of fields, as a client of the published API knows them. The first that fits.
const FIELDS: [(&str, &str); 13] = [
    ("early_stop.usable", "early_stop_min_usable_sessions"),
    ("harness.command", "agent.custom_shell.command"),
    ("harness.name", "agent.harness"),
    ("harness.model", "agent.model_name"),
    ("harness", "agent"),
    ("runtime.type", "runtime.backend"),
    ("runtime.mounts", "runtime.kwargs.volumes"),
    ("budgets", "timeout_seconds"),
    ("callback.url", "callback_url"),
    ("trajectory_strategy", "builder.strategy"),
    ("priority", "dispatch_priority"),
    ("evaluator", "evaluator.config"),
    ("grading", "evaluator.config"),
];

/// What was found wrong with our task, as of the task that was sent.
pub(super) fn renamed(problems: Problems) -> Problems {
    let mut found: Problems = problems.into_iter().map(renamed_one).collect();
    // Several fields of ours are of one of theirs.
    found.dedup();
    found
}

fn renamed_one(problem: FieldProblem) -> FieldProblem {
    let found = FIELDS.iter().find_map(|(ours, theirs)| {
        let rest = problem.field.strip_prefix(ours)?;
        let ends = rest.is_empty() || rest.starts_with(['.', '[']);
        ends.then(|| match *theirs {
            "timeout_seconds" | "evaluator.config" => (*theirs).to_owned(),
            theirs => format!("{theirs}{rest}"),
        })
    });
    FieldProblem { field: found.unwrap_or(problem.field), ..problem }
}
