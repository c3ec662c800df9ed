//! MCP servers and skills reach the agents they are meant for, in each program's own way.
//!
//! With the programs themselves, unmodified, from the registries, and a real server over
//! stdio. The scripted model calls the server's tool, and says whether its answer came back.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    reason = "tests fail by panicking, and share their ground with others"
)]

#[path = "../it/ground.rs"]
mod ground;

use ground::{Ground, artifact};
use polar_session::HarnessAdapter;
use polar_session::harness::Installer;
use polar_simulator::Policy;
use polar_types::{Outcome, Slots};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// Downloads may take their time.
const LONGEST_INSTALLATION: Duration = Duration::from_secs(600);

const SERVER: &str = include_str!("mcp_server.py");

/// Ground with an agent program, which is installed below the target folder or where
/// `POLAR_CACHE` says.
async fn ground_with(harness: &str) -> Ground {
    let cache = std::env::var_os("POLAR_CACHE")
        .map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
    let adapter = HarnessAdapter::shipped(harness).unwrap();
    let installer = Installer::new(&cache);
    let installed = tokio::time::timeout(LONGEST_INSTALLATION, installer.ensure(&adapter));
    installed.await.expect("installing took too long").unwrap();
    Ground::build(Slots { prepare: 1, ready: 1, run: 1, grade: 1, warm: 1 }, Some(cache)).await
}

/// Runs an agent with the server, whose tool it knows by the name `tool`.
async fn calls_a_server(harness: &str, tool: &str, settings: Value) {
    let ground = ground_with(harness).await;
    let policy = json!({
        "name": "stamp",
        "rules": [
            {
                "name": "stamp",
                "when": {"tools": [tool], "assistant_turns": 0},
                "reply": {"tool_calls": [{"name": tool, "arguments": {"word": "polar"}}]},
            },
            {
                "name": "report",
                "when": {"tool_result": "polar red blue"},
                "reply": {"text": "It came back stamped."},
            },
        ],
        "default": {"text": "The tool is not there, or no stamp came back."},
    });
    ground.simulator.set_policy(Policy::from_yaml(&policy.to_string()).unwrap());
    let (report, folder) = ground
        .run(json!({
            "instruction": "Have the word polar stamped.",
            "harness": {
                "name": harness,
                "settings": settings,
                "mcp_servers": [{
                    "name": "office",
                    "command": "python3",
                    "args": ["server.py", "red"],
                    "env": {"STAMP_SECRET": "blue"},
                }],
            },
            "runtime": {
                "type": "local",
                "prepare": [{"type": "write_file", "path": "server.py", "content": SERVER}],
            },
            "evaluator": "none",
            "budgets": {"prepare_seconds": 60.0, "run_seconds": 100.0, "grade_seconds": 60.0},
        }))
        .await;
    let said = artifact(&folder, "stdout.log");
    let offered: Vec<_> = ground.simulator.requests().into_iter().map(|seen| seen.body).collect();
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}\n{said}");
    assert!(said.contains("It came back stamped."), "{said}\n{offered:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_code_calls_an_mcp_server() {
    calls_a_server("claude_code", "mcp__office__stamp", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_calls_an_mcp_server() {
    calls_a_server("codex", "mcp__office__stamp", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gemini_cli_calls_an_mcp_server() {
    calls_a_server("gemini_cli", "mcp_office_stamp", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn qwen_code_calls_an_mcp_server() {
    calls_a_server("qwen_code", "mcp__office__stamp", json!({"tool_search": false})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_calls_an_mcp_server() {
    calls_a_server("opencode", "office_stamp", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pi_calls_an_mcp_server() {
    calls_a_server("pi", "mcp__office__stamp", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openhands_calls_an_mcp_server() {
    calls_a_server("openhands", "stamp", json!({})).await;
}

const SKILL: &str =
    "---\nname: stamping\ndescription: How words are stamped here.\n---\nStamp polar red.\n";

/// Runs an agent with a skill, which it looks up by this call.
async fn looks_a_skill_up(harness: &str, call: Value, skill: Value) {
    let ground = ground_with(harness).await;
    let policy = json!({
        "name": "skill",
        "rules": [
            {
                "name": "look it up",
                "when": {"tools": [call["name"]], "assistant_turns": 0, "any_message": "stamped here"},
                "reply": {"tool_calls": [call]},
            },
            {
                "name": "report",
                "when": {"assistant_turns": 1, "any_message": "Stamp polar red."},
                "reply": {"text": "The skill was read."},
            },
        ],
        "default": {"text": "The skill is not there, or has no text."},
    });
    ground.simulator.set_policy(Policy::from_yaml(&policy.to_string()).unwrap());
    let (report, folder) = ground
        .run(json!({
            "instruction": "Have the word polar stamped.",
            "harness": {"name": harness, "skills": [skill]},
            "runtime": {"type": "local", "prepare": [
                {"type": "write_file", "path": "/tmp/skills/stamping/SKILL.md", "content": SKILL},
            ]},
            "evaluator": "none",
            "budgets": {"prepare_seconds": 60.0, "run_seconds": 100.0, "grade_seconds": 60.0},
        }))
        .await;
    let said = artifact(&folder, "stdout.log");
    let seen: Vec<_> = ground.simulator.requests().into_iter().map(|seen| seen.body).collect();
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}\n{said}");
    assert!(said.contains("The skill was read."), "{said}\n{seen:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_code_looks_a_skill_up() {
    let call = json!({"name": "Skill", "arguments": {"skill": "stamping"}});
    looks_a_skill_up("claude_code", call, json!({"name": "stamping", "content": SKILL})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_looks_a_skill_up_that_lies_in_the_sandbox() {
    let call = json!({"name": "skill", "arguments": {"name": "stamping"}});
    let skill = json!({"name": "stamping", "path": "/tmp/skills/stamping"});
    looks_a_skill_up("opencode", call, skill).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn qwen_code_looks_a_skill_up() {
    let call = json!({"name": "skill", "arguments": {"skill": "stamping"}});
    looks_a_skill_up("qwen_code", call, json!({"name": "stamping", "content": SKILL})).await;
}
