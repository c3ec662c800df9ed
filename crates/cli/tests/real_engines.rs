//! A real agent CLI on a real engine, from `polar up` to `polar verify --rescore`.
//!
//! The engine's tiny model calls tools as it likes, so that each run has other turns: what is held is what is true of
//! all of them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking and show what they measured"
)]

#[allow(dead_code, reason = "shared with the tests of the command line, which use all of it")]
#[path = "cli/support.rs"]
mod support;

use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use support::{User, shown};

/// A sequence is scored in another order of additions than it was sampled in.
const ROUNDING: f64 = 2e-5;

const SESSIONS: u32 = 4;

/// Its prompts are the shortest, and fit into the tiny model's context.
const HARNESS: &str = "pi";

/// The model calls a tool in a quarter of its replies.
const MOST_TASKS: usize = 10;

/// A user with a server.
struct Serving {
    user: User,
    server: String,
    engine: String,
    _up: support::Running,
}

impl Serving {
    fn on(engine: &str, mode: &[&str]) -> Self {
        let mut user = User::new();
        user.cache = Some(cache());
        let engine = variable(engine);
        let up = ["up", "--port=0", "--proxy-port=0", "--local-isolation=process"];
        let at = ["--engine", &engine];
        let (up, [server]) = user.start(&[&up[..], &at, mode].concat(), ["control API"]);
        Self { user, server, engine, _up: up }
    }

    /// Runs a task and gives what `polar verify` says of it.
    fn run(&self, name: &str) -> Value {
        let task = self.user.path("task.json");
        let asked = json!({
            "task_id": name, "instruction": "How is the weather in Oslo?", "harness": HARNESS,
            "runtime": "local", "num_samples": SESSIONS,
        });
        fs::write(&task, asked.to_string()).unwrap();
        let run = ["run", task.to_str().unwrap(), "--server", &self.server];
        println!("{}", shown(&self.user.run(&run)));
        self.ask(&["verify", name, "--rescore=1", "--engine", &self.engine])
    }

    fn ask(&self, arguments: &[&str]) -> Value {
        let output = self.user.run(&[arguments, &["--json", "--server", &self.server]].concat());
        parsed(&output)
    }
}

/// Agent programs are installed where the real user has them.
fn cache() -> OsString {
    std::env::var_os("POLAR_CACHE").unwrap_or_else(|| {
        let home = PathBuf::from(std::env::var_os("HOME").unwrap());
        home.join(".cache/polar").into()
    })
}

fn parsed(output: &Output) -> Value {
    assert!(output.status.success(), "{}", shown(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn variable(name: &str) -> String {
    match std::env::var(name) {
        Ok(value) => value,
        Err(_) => panic!("{name} is not set: run this test through tests/engines/engines.py"),
    }
}

fn sum(found: &Value, name: &str) -> u64 {
    let sessions = found["sessions"].as_array().unwrap();
    sessions.iter().map(|session| session[name].as_u64().unwrap()).sum()
}

/// Every call of an agent's own is behind the one before, and the engine gives the whole trace the
/// logprobs that it gives the calls alone.
fn an_agents_traces_score_as_its_calls_do(engine: &str) {
    let files = variable("POLAR_TEST_MODEL");
    let serving = Serving::on(engine, &["--token-mode", "--model-files", &files]);
    let mut tasks = (0..MOST_TASKS).map(|number| format!("weather-{number}"));
    let has_turns = |found: &Value| sum(found, "calls") > sum(found, "traces");
    let (task, found) = tasks
        .by_ref()
        .map(|task| (task.clone(), serving.run(&task)))
        .find(|(_, found)| has_turns(found))
        .expect("a session with a second call");
    let rescored = &found["rescored"];
    println!("{rescored:#}");
    assert_eq!(found["checked"], SESSIONS, "{found:#}");
    assert_eq!(sum(&found, "sampled"), sum(&found, "trained"), "{found:#}");
    assert_eq!(rescored["traces"], sum(&found, "traces"), "{found:#}");
    let number = |part: &str, name: &str| rescored[part][name].as_f64().unwrap();
    for name in ["max", "mean"] {
        let bound = number("single", name).max(ROUNDING);
        assert!(number("merged", name) <= bound, "{rescored:#}");
    }
    let drift = serving.ask(&["drift", &task]);
    assert_eq!(drift["causes"], json!({"new_lineage": SESSIONS}), "{drift:#}");
}

/// Chat mode is as true, in more traces.
fn in_chat_mode_every_trace_is_true_as_well(engine: &str) {
    let found = Serving::on(engine, &[]).run("weather");
    let rescored = &found["rescored"];
    println!("{rescored:#}");
    let number = |part: &str| rescored[part]["max"].as_f64().unwrap();
    assert!(number("merged") <= number("single").max(ROUNDING), "{rescored:#}");
}

macro_rules! on {
    ($engine:ident, $variable:literal) => {
        mod $engine {
            #[test]
            fn promise_2_an_agents_traces_score_as_its_calls_do() {
                super::an_agents_traces_score_as_its_calls_do($variable);
            }

            #[test]
            fn promise_2_in_chat_mode_every_trace_is_true_as_well() {
                super::in_chat_mode_every_trace_is_true_as_well($variable);
            }
        }
    };
}

on!(vllm, "POLAR_TEST_VLLM");
on!(sglang, "POLAR_TEST_SGLANG");
