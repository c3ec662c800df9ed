//! Evaluators whose verdict comes from elsewhere: a model, a service, a user's function.

use crate::FieldProblem;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How the names of the node's variables begin that tasks may send to a service as a key, so
/// that no task can have another secret of the node sent anywhere.
pub const KEY_PREFIX: &str = "POLAR_KEY_";

/// A model that judges the work by a rubric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JudgeEvaluator {
    /// Base URL of an API as OpenAI's, such as `https://api.example.org/v1`. Asked by the node;
    /// never the policy's own engine by way of the session.
    pub endpoint: String,
    /// Model to ask.
    pub model: String,
    /// Environment variable of the node that has the key; its name begins with `POLAR_KEY_`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_env: Option<String>,
    /// What good work is, in words.
    pub rubric: String,
    /// What of the session is shown to the judge.
    #[serde(default = "JudgeInput::usual")]
    pub show: Vec<JudgeInput>,
    /// Most characters shown of each; the middle is left out of what is longer.
    #[serde(default = "most_characters")]
    pub max_characters: u32,
    /// Sampling temperature of the judge.
    #[serde(default)]
    pub temperature: f64,
    /// Times that it is asked before there is no reward.
    #[serde(default = "attempts")]
    pub attempts: u32,
}

/// A part of what a session leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JudgeInput {
    /// What the agent was asked to do.
    Instruction,
    /// What it changed in its work folder.
    Diff,
    /// What it printed.
    Output,
}

impl JudgeInput {
    fn usual() -> Vec<Self> {
        vec![Self::Instruction, Self::Diff, Self::Output]
    }
}

fn most_characters() -> u32 {
    40_000
}

fn attempts() -> u32 {
    3
}

/// A service that is told of the work and answers with a reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpEvaluator {
    /// Gets a POST from the node.
    pub url: String,
    /// Environment variable of the node with a bearer token; its name begins with `POLAR_KEY_`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_env: Option<String>,
    /// Times that it is asked before there is no reward.
    #[serde(default = "attempts")]
    pub attempts: u32,
}

/// A function in Python, called where the work is graded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PythonEvaluator {
    /// Source of a module that has the function.
    pub code: String,
    /// Its name. It gets a mapping with `instruction`, `metadata`, `session_id`, `task_id` and
    /// `workdir`, and gives a number.
    #[serde(default = "function")]
    pub function: String,
    /// Program to run it with.
    #[serde(default = "python")]
    pub python: String,
    /// Environment variables of it.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

fn function() -> String {
    "grade".to_owned()
}

fn python() -> String {
    "python3".to_owned()
}

impl JudgeEvaluator {
    pub(super) fn check(&self, at: &str, problems: &mut Vec<FieldProblem>) {
        check_url(&format!("{at}.endpoint"), &self.endpoint, problems);
        check_key(at, self.key_env.as_deref(), problems);
        check_attempts(at, self.attempts, problems);
        let mut problem = |field: &str, what: &str, example: &str| {
            problems.push(FieldProblem::new(format!("{at}.{field}"), what, example));
        };
        if self.rubric.trim().is_empty() {
            problem("rubric", "must say what good work is", r#""1 when the answer is right.""#);
        }
        if self.model.trim().is_empty() {
            problem("model", "must name the model to ask", r#""judge-1""#);
        }
        if self.show.is_empty() {
            problem("show", "must have something to judge by", r#"["instruction", "diff"]"#);
        }
        if !self.temperature.is_finite() || !(0.0..=2.0).contains(&self.temperature) {
            problem("temperature", "must be between 0 and 2", "0");
        }
        if self.max_characters < 100 {
            problem("max_characters", "must be at least 100", "40000");
        }
    }
}

impl HttpEvaluator {
    pub(super) fn check(&self, at: &str, problems: &mut Vec<FieldProblem>) {
        check_url(&format!("{at}.url"), &self.url, problems);
        check_key(at, self.key_env.as_deref(), problems);
        check_attempts(at, self.attempts, problems);
    }
}

impl PythonEvaluator {
    pub(super) fn check(&self, at: &str, problems: &mut Vec<FieldProblem>) {
        let name = &self.function;
        let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let is_name = !name.is_empty()
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name.bytes().all(letters);
        if !is_name || !self.code.contains(name.as_str()) {
            problems.push(FieldProblem::new(
                format!("{at}.function"),
                "must be the name of a function in `code`",
                r#""grade""#,
            ));
        }
        if self.python.trim().is_empty() || self.python.contains('\0') {
            problems.push(FieldProblem::new(
                format!("{at}.python"),
                "must be the program to run it with",
                r#""python3""#,
            ));
        }
    }
}

fn check_url(at: &str, url: &str, problems: &mut Vec<FieldProblem>) {
    if !(url.starts_with("http://") || url.starts_with("https://")) {
        problems.push(FieldProblem::new(
            at,
            "must start with http:// or https://",
            r#""https://grader.example.org/v1""#,
        ));
    }
}

fn check_key(at: &str, name: Option<&str>, problems: &mut Vec<FieldProblem>) {
    let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let fits = |name: &str| {
        name.strip_prefix(KEY_PREFIX)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(letters))
    };
    if name.is_some_and(|name| !fits(name)) {
        problems.push(FieldProblem::new(
            format!("{at}.key_env"),
            format!("must name a variable of the node's environment that begins with {KEY_PREFIX}"),
            r#""POLAR_KEY_JUDGE""#,
        ));
    }
}

fn check_attempts(at: &str, attempts: u32, problems: &mut Vec<FieldProblem>) {
    if attempts == 0 || attempts > 10 {
        problems.push(FieldProblem::new(
            format!("{at}.attempts"),
            format!("must be between 1 and 10, not {attempts}"),
            "3",
        ));
    }
}
