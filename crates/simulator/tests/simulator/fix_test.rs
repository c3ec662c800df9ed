//! The shipped policy solves the shipped task, with each set of tools, for real: files,
//! commands and edits happen in a folder.

use crate::support::{Client, start, with};
use polar_simulator::{FIX_TEST_TASK, SimulatorConfig, shipped_policy};
use polar_types::{EvaluatorSpec, Known, PrepareStep, TaskRequest};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

fn task() -> TaskRequest {
    let value: Value = serde_saphyr::from_str(FIX_TEST_TASK).unwrap();
    serde_json::from_value(value).unwrap()
}

fn shell(folder: &Path, command: &str) -> (bool, String) {
    let output = Command::new("sh").args(["-c", command]).current_dir(folder).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// Does what a harness does with a tool call.
fn execute(folder: &Path, call: &Value) -> String {
    let name = call["name"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    match name {
        "exec_command" => shell(folder, &text(&arguments["cmd"])).1,
        "bash" | "Bash" | "run_shell_command" => shell(folder, &text(&arguments["command"])).1,
        "read" => std::fs::read_to_string(folder.join(text(&arguments["path"]))).unwrap(),
        "Read" => {
            let path = text(&arguments["file_path"]);
            assert!(Path::new(&path).is_absolute(), "{path}");
            let numbered = std::fs::read_to_string(path).unwrap();
            numbered.lines().enumerate().map(|(n, line)| format!("{}\t{line}\n", n + 1)).collect()
        }
        "edit" | "Edit" => {
            let (path, edit) = match name {
                "edit" => (folder.join(text(&arguments["path"])), &arguments["edits"][0]),
                _ => (text(&arguments["file_path"]).into(), &arguments),
            };
            let (old, new) = match name {
                "edit" => (&edit["oldText"], &edit["newText"]),
                _ => (&edit["old_string"], &edit["new_string"]),
            };
            let before = std::fs::read_to_string(&path).unwrap();
            assert_eq!(before.matches(&text(old)).count(), 1, "the old text must be unique");
            std::fs::write(&path, before.replace(&text(old), &text(new))).unwrap();
            "The file has been updated.".to_owned()
        }
        other => panic!("no such tool: {other}"),
    }
}

/// Plays an agent to its last word.
async fn agent(
    client: &Client,
    folder: &Path,
    tools: &[&str],
    instruction: &str,
) -> (usize, String) {
    let tools: Vec<Value> = tools
        .iter()
        .map(|name| json!({"type": "function", "function": {"name": name, "parameters": {}}}))
        .collect();
    let mut messages = vec![json!({"role": "user", "content": instruction})];
    for turn in 1..20 {
        let reply =
            client.chat(&with(&json!({"tools": tools}), &json!({"messages": messages}))).await;
        let message = reply["choices"][0]["message"].clone();
        messages.push(message.clone());
        let Some(calls) = message["tool_calls"].as_array() else {
            return (turn, message["content"].as_str().unwrap().to_owned());
        };
        for call in calls {
            let result = execute(folder, &call["function"]);
            messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": result}));
        }
    }
    panic!("the agent never ends");
}

#[tokio::test]
async fn the_fix_test_policy_solves_its_task_with_each_tool_set() {
    let policy = shipped_policy("fix-test").unwrap();
    let client = start(SimulatorConfig { policy, ..SimulatorConfig::default() }).await;
    let task = task();
    let sets: [&[&str]; 4] = [
        &["read", "bash", "edit", "write"],
        &["Bash", "Edit", "Read", "Write"],
        &["exec_command", "write_stdin", "view_image"],
        &["run_shell_command", "read_file", "replace", "write_file"],
    ];
    for tools in sets {
        let folder = tempfile::tempdir().unwrap();
        for step in &task.runtime.prepare {
            let PrepareStep::WriteFile { path, content, .. } = step else { panic!("{step:?}") };
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let EvaluatorSpec::Command { command, .. } = &task.evaluator else { panic!() };
        assert!(!shell(folder.path(), command).0, "the test must fail at first");
        let (turns, said) = agent(&client, folder.path(), tools, &task.instruction).await;
        assert_eq!(turns, 5);
        assert!(said.contains("all four tests pass"), "{said}");
        let (passed, output) = shell(folder.path(), command);
        assert!(passed, "{output}");
    }
}

#[test]
fn the_task_is_a_valid_request() {
    let known = Known { harnesses: vec!["pi".into()], ..Known::default() };
    let spec = task().resolve("t".parse().unwrap(), &known).unwrap();
    assert_eq!(spec.task_id.as_str(), "fix-test");
}

#[tokio::test]
async fn the_long_session_is_two_hundred_turns() {
    let policy = shipped_policy("long-session").unwrap();
    let client = start(SimulatorConfig { policy, ..SimulatorConfig::default() }).await;
    let folder = tempfile::tempdir().unwrap();
    let tools = json!([{"type": "function", "function": {"name": "bash", "parameters": {}}}]);
    let mut messages = vec![json!({"role": "user", "content": "go"})];
    let mut results = Vec::new();
    for turn in 0..=200 {
        let body = json!({"messages": messages, "tools": tools});
        let message = client.chat(&body).await["choices"][0]["message"].clone();
        messages.push(message.clone());
        let Some(call) = message["tool_calls"].as_array().and_then(|calls| calls.first()) else {
            assert_eq!(turn, 200);
            break;
        };
        // Every fiftieth command is run, the others stand for it.
        if turn % 50 == 0 {
            results.push(execute(folder.path(), &call["function"]));
        }
        let result = results.last().unwrap();
        messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": result}));
    }
    let last = messages.last().unwrap();
    assert_eq!(last["content"], "\n\nDone after 200 turns.");
    assert!(results.windows(2).all(|pair| pair[0].len() < pair[1].len()));
}
