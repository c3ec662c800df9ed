//! MCP servers and skills reach the agents they are meant for, in each program's own way.
//!
//! With the programs themselves, unmodified, from the registries, and a real server over
//! stdio. The scripted model calls the server's tool, and says whether its answer came back.

use crate::ground::{Ground, artifact};
use polar_simulator::Policy;
use polar_types::Outcome;
use serde_json::{Value, json};

const SERVER: &str = include_str!("mcp_server.py");

/// Runs an agent with the server, whose tool it knows by the name `tool`.
async fn calls_a_server(harness: &str, tool: &str, settings: Value) {
    let ground = Ground::with_program(harness).await;
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
