//! How a session's result becomes a reward.

use super::GradingSandbox;
use super::benchmarks::{HarborEvaluator, SwebenchEvaluator};
use super::outside::{HttpEvaluator, JudgeEvaluator, PythonEvaluator};
use super::short_form::short_form;
use super::spec::{RuntimeKind, RuntimeSpec, nul};
use crate::FieldProblem;
use serde::de::{self, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// Where the reward of a command evaluator comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewardSource {
    /// 1.0 for exit code 0, else 0.0.
    #[default]
    ExitCode,
    /// The last line of stdout that is a finite number. None, or a non-zero exit, is an error.
    Stdout,
    /// What the command writes to the file that `POLAR_REPORT` names: JSON with the number
    /// `reward`, and `note` and `rewards` where there is more to say. None, or a non-zero exit, is
    /// an error. What the session did is in the file that `POLAR_CONTEXT` names.
    Report,
}

/// How a session's result becomes a reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields, remote = "Self")]
pub enum EvaluatorSpec {
    /// No reward.
    None {},
    /// A command run after the agent has ended.
    Command {
        /// Given to `sh -c`.
        command: String,
        /// Folder it runs in; the work folder when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workdir: Option<String>,
        /// Environment variables of this command only.
        #[serde(default)]
        env: BTreeMap<String, String>,
        /// Where the number comes from.
        #[serde(default)]
        reward: RewardSource,
    },
    /// Tests, each with its own result.
    Tests(TestsEvaluator),
    /// The tests of a Harbor (Terminal-Bench) task.
    Harbor(HarborEvaluator),
    /// The tests of a SWE-bench or SWE-Gym instance.
    Swebench(SwebenchEvaluator),
    /// A model with a rubric.
    Judge(JudgeEvaluator),
    /// A service.
    Http(HttpEvaluator),
    /// A function in Python.
    Python(PythonEvaluator),
    /// The weighted sum of several rewards.
    WeightedSum {
        /// The parts. Without a reward of each there is none.
        of: Vec<WeightedEvaluator>,
    },
    /// The smallest of several rewards: 1 where each is 1.
    All {
        /// The parts, in the order they are run. Without a reward of each there is none.
        #[schema(no_recursion)]
        of: Vec<EvaluatorSpec>,
    },
    /// The reward of the first that gives one.
    First {
        /// The parts, in the order they are tried.
        #[schema(no_recursion)]
        of: Vec<EvaluatorSpec>,
    },
}

/// A part of a weighted sum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WeightedEvaluator {
    /// What its reward is multiplied by.
    pub weight: f64,
    /// What gives its reward.
    #[schema(no_recursion)]
    pub evaluator: EvaluatorSpec,
}

/// A command that runs tests, and how to read what became of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TestsEvaluator {
    /// Given to `sh -c`.
    pub command: String,
    /// Folder it runs in; the work folder when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Environment variables of this command only.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// In which form the results are told.
    pub format: TestFormat,
    /// File that the command writes them to; its stdout when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<String>,
    /// Names of tests that fail without the work and must pass with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fail_to_pass: Vec<String>,
    /// Names of tests that pass without the work and must still pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pass_to_pass: Vec<String>,
    /// What the results are worth.
    #[serde(default)]
    pub reward: TestsReward,
}

/// In which form a program tells the results of its tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TestFormat {
    /// What pytest prints with `-rA` or `-v`; names as in `tests/test_a.py::test_b[1]`.
    Pytest,
    /// JUnit XML; names are `classname::name`, or the name alone where that is unambiguous.
    Junit,
    /// What `cargo test` prints; names as in `module::tests::name`.
    Cargo,
    /// What `go test -v` or `go test -json` prints; names as in `TestA/part`, with `-json` also
    /// behind their package, as in `example.org/a.TestA/part`.
    Go,
    /// Test Anything Protocol; names are the descriptions.
    Tap,
}

impl TestFormat {
    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pytest => "pytest",
            Self::Junit => "junit",
            Self::Cargo => "cargo",
            Self::Go => "go",
            Self::Tap => "tap",
        }
    }
}

/// What the results of tests are worth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TestsReward {
    /// 1.0 when all that must pass do, else 0.0.
    #[default]
    Resolved,
    /// The share that passes of those that must; 0.0 when one of `pass_to_pass` fails.
    Fraction,
}

short_form!(
    EvaluatorSpec,
    "\"none\", or an object such as {\"type\": \"command\", \"command\": \"pytest -q\"}",
    |word| match word {
        "none" => Ok(EvaluatorSpec::None {}),
        other => Err(format!(
            "unknown short form {other:?}; use \"none\" or \
             {{\"type\": \"command\", \"command\": \"pytest -q\"}}"
        )),
    }
);

impl Default for EvaluatorSpec {
    fn default() -> Self {
        Self::None {}
    }
}

/// How deep evaluators may be made of others.
const DEEPEST: usize = 4;
/// Most parts that an evaluator may be made of.
const MOST_PARTS: usize = 32;

impl EvaluatorSpec {
    /// The name used in JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::None {} => "none",
            Self::Command { .. } => "command",
            Self::Tests(_) => "tests",
            Self::Harbor(_) => "harbor",
            Self::Swebench(_) => "swebench",
            Self::Judge(_) => "judge",
            Self::Http(_) => "http",
            Self::Python(_) => "python",
            Self::WeightedSum { .. } => "weighted_sum",
            Self::All { .. } => "all",
            Self::First { .. } => "first",
        }
    }

    /// Where it runs unless the task says so: in a sandbox made anew, except where it looks at
    /// the whole system that the agent left, or where nothing of it runs in a sandbox.
    pub fn sandbox(&self) -> GradingSandbox {
        let parts = self.leaves();
        let whole = parts.iter().any(|part| matches!(part, Self::Harbor(_)));
        let outside = parts.iter().all(|part| matches!(part, Self::Judge(_) | Self::Http(_)));
        match whole || outside {
            true => GradingSandbox::Session,
            false => GradingSandbox::Fresh,
        }
    }

    /// Whether anything of it runs where the work is.
    pub fn runs_in_sandbox(&self) -> bool {
        let parts = self.leaves();
        !parts.iter().all(|part| matches!(part, Self::None {} | Self::Judge(_) | Self::Http(_)))
    }

    /// A local sandbox has few folders that can be written to.
    pub(crate) fn check_runtime(&self, runtime: &RuntimeSpec, problems: &mut Vec<FieldProblem>) {
        let writable = |path: &str| {
            let below =
                |folder: &str| path.strip_prefix(folder).is_some_and(|p| p.starts_with('/'));
            below("/tmp") || below(runtime.workdir.trim_end_matches('/'))
        };
        for part in self.leaves() {
            if let Self::Harbor(harbor) = part
                && runtime.kind == RuntimeKind::Local
                && !(writable(&harbor.script) && writable(&harbor.logs))
            {
                problems.push(FieldProblem::new(
                    "runtime.type",
                    "a local sandbox has no /tests and no /logs, where Harbor's tests are; use a \
                     container runtime",
                    r#""docker""#,
                ));
            }
        }
    }

    fn leaves(&self) -> Vec<&Self> {
        match self.parts() {
            parts if parts.is_empty() => vec![self],
            parts => parts.into_iter().flat_map(Self::leaves).collect(),
        }
    }

    /// The parts it is made of.
    pub fn parts(&self) -> Vec<&Self> {
        match self {
            Self::WeightedSum { of } => of.iter().map(|part| &part.evaluator).collect(),
            Self::All { of } | Self::First { of } => of.iter().collect(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn check(&self, problems: &mut Vec<FieldProblem>) {
        self.check_at("evaluator", 0, problems);
    }

    fn check_at(&self, at: &str, depth: usize, problems: &mut Vec<FieldProblem>) {
        match self {
            Self::None {} if depth > 0 => problems.push(FieldProblem::new(
                at,
                "gives no reward, so that nothing can be made of it",
                r#"{"type": "command", "command": "pytest -q"}"#,
            )),
            Self::None {} => {}
            Self::Command { command, .. } => {
                check_command(&format!("{at}.command"), command, problems)
            }
            Self::Tests(tests) => tests.check(at, problems),
            Self::Harbor(harbor) => harbor.check(at, problems),
            Self::Swebench(instance) => instance.check(at, problems),
            Self::Judge(judge) => judge.check(at, problems),
            Self::Http(http) => http.check(at, problems),
            Self::Python(python) => python.check(at, problems),
            Self::WeightedSum { of } => {
                for (index, part) in of.iter().enumerate() {
                    if !part.weight.is_finite() {
                        problems.push(FieldProblem::new(
                            format!("{at}.of[{index}].weight"),
                            "must be a finite number",
                            "0.5",
                        ));
                    }
                }
                self.check_parts(at, ".evaluator", depth, problems);
            }
            Self::All { .. } | Self::First { .. } => self.check_parts(at, "", depth, problems),
        }
    }

    fn check_parts(&self, at: &str, inner: &str, depth: usize, problems: &mut Vec<FieldProblem>) {
        let parts = self.parts();
        let example = r#"[{"type": "command", "command": "pytest -q"}]"#;
        if parts.is_empty() || parts.len() > MOST_PARTS {
            let said = format!("must have between 1 and {MOST_PARTS} parts, not {}", parts.len());
            problems.push(FieldProblem::new(format!("{at}.of"), said, example));
        }
        if depth >= DEEPEST {
            let said = format!("evaluators are made of others more than {DEEPEST} deep");
            problems.push(FieldProblem::new(format!("{at}.of"), said, example));
            return;
        }
        for (index, part) in parts.into_iter().enumerate() {
            part.check_at(&format!("{at}.of[{index}]{inner}"), depth + 1, problems);
        }
    }
}

impl TestsEvaluator {
    fn check(&self, at: &str, problems: &mut Vec<FieldProblem>) {
        check_command(&format!("{at}.command"), &self.command, problems);
        for (field, names) in
            [("fail_to_pass", &self.fail_to_pass), ("pass_to_pass", &self.pass_to_pass)]
        {
            for (index, name) in names.iter().enumerate() {
                if name.trim().is_empty() {
                    problems.push(FieldProblem::new(
                        format!("{at}.{field}[{index}]"),
                        "must be the name of a test",
                        r#""tests/test_fix.py::test_it_is_fixed""#,
                    ));
                }
            }
        }
        if let Some(twice) = self.fail_to_pass.iter().find(|name| self.pass_to_pass.contains(name))
        {
            problems.push(FieldProblem::new(
                format!("{at}.pass_to_pass"),
                format!("names {twice:?}, which `fail_to_pass` names too"),
                "[]",
            ));
        }
        if self.report.as_deref().is_some_and(|path| path.trim().is_empty() || path.contains('\0'))
        {
            problems.push(FieldProblem::new(
                format!("{at}.report"),
                "must be the path of the file that the command writes",
                r#""/tmp/report.xml""#,
            ));
        }
    }
}

pub(super) fn check_command(at: &str, command: &str, problems: &mut Vec<FieldProblem>) {
    if command.contains('\0') {
        problems.push(nul(at));
    }
    if command.trim().is_empty() {
        problems.push(FieldProblem::new(
            at,
            "must be a shell command",
            r#""pytest -q tests/test_fix.py""#,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn problems(evaluator: Value) -> Vec<String> {
        let evaluator: EvaluatorSpec = serde_json::from_value(evaluator).unwrap();
        let mut problems = Vec::new();
        evaluator.check(&mut problems);
        problems.into_iter().map(|problem| problem.field).collect()
    }

    #[test]
    fn a_new_sandbox_is_the_default_where_that_can_work() {
        let sandbox = |evaluator: Value| -> GradingSandbox {
            serde_json::from_value::<EvaluatorSpec>(evaluator).unwrap().sandbox()
        };
        let command = json!({"type": "command", "command": "true"});
        let http = json!({"type": "http", "url": "http://h"});
        assert_eq!(sandbox(command.clone()), GradingSandbox::Fresh);
        assert_eq!(sandbox(json!({"type": "all", "of": [http, command]})), GradingSandbox::Fresh);
        assert_eq!(sandbox(json!({"type": "all", "of": [http]})), GradingSandbox::Session);
        let harbor = json!({"type": "first", "of": [{"type": "harbor"}, command]});
        assert_eq!(sandbox(harbor), GradingSandbox::Session);
    }

    #[test]
    fn what_no_evaluator_could_be_is_named_by_its_field() {
        let good = json!({"type": "command", "command": "true"});
        let tests = |changes: Value| {
            let mut tests = json!({"type": "tests", "command": "pytest", "format": "pytest"});
            for (field, value) in changes.as_object().unwrap() {
                tests[field] = value.clone();
            }
            tests
        };
        let with = |mut base: Value, changes: Value| {
            for (field, value) in changes.as_object().unwrap() {
                base[field] = value.clone();
            }
            base
        };
        let swebench = |changes: Value| {
            let base = json!({
                "type": "swebench", "instance_id": "a__b-1", "repo": "a/b", "test_command": "pytest",
                "test_patch": "diff --git a/t b/t", "fail_to_pass": ["t::f"],
            });
            with(base, changes)
        };
        let judge = |changes: Value| {
            let base = json!({
                "type": "judge", "endpoint": "https://j/v1", "model": "m", "rubric": "1 if good",
            });
            with(base, changes)
        };
        assert!(problems(swebench(json!({"base_commit": "0123abcd"}))).is_empty());
        assert!(problems(judge(json!({"key_env": "POLAR_KEY_JUDGE"}))).is_empty());
        assert!(problems(json!({"type": "harbor"})).is_empty());
        assert!(problems(json!({"type": "python", "code": "def grade(c): return 1"})).is_empty());
        assert!(problems(json!("none")).is_empty());
        assert!(problems(tests(json!({"fail_to_pass": ["a"], "pass_to_pass": ["b"]}))).is_empty());
        assert!(problems(json!({"type": "all", "of": [good, good]})).is_empty());
        let mut deep = good.clone();
        for _ in 0..6 {
            deep = json!({"type": "first", "of": [deep]});
        }
        for (evaluator, field) in [
            (json!({"type": "command", "command": " "}), "command"),
            (tests(json!({"command": ""})), "command"),
            (tests(json!({"fail_to_pass": ["a", " "]})), "fail_to_pass[1]"),
            (tests(json!({"fail_to_pass": ["a"], "pass_to_pass": ["a"]})), "pass_to_pass"),
            (tests(json!({"report": ""})), "report"),
            (json!({"type": "harbor", "script": "tests/test.sh"}), "script"),
            (json!({"type": "harbor", "logs": "/logs/../etc"}), "logs"),
            (swebench(json!({"fail_to_pass": []})), "fail_to_pass"),
            (swebench(json!({"test_patch": "x"})), "test_patch"),
            (swebench(json!({"base_commit": "main"})), "base_commit"),
            (swebench(json!({"test_command": " "})), "test_command"),
            (judge(json!({"endpoint": "judge:80"})), "endpoint"),
            // No task may have another secret of the node sent anywhere.
            (judge(json!({"key_env": "POLAR_TOKEN"})), "key_env"),
            (judge(json!({"rubric": ""})), "rubric"),
            (judge(json!({"temperature": -1})), "temperature"),
            (json!({"type": "http", "url": "http://h", "attempts": 0}), "attempts"),
            (json!({"type": "http", "url": "file:///etc/passwd"}), "url"),
            (json!({"type": "python", "code": "def other(c): ..."}), "function"),
            (json!({"type": "all", "of": []}), "of"),
            (json!({"type": "first", "of": [good, "none"]}), "of[1]"),
            (
                json!({"type": "weighted_sum", "of": [
                    {"weight": 1, "evaluator": {"type": "all", "of": [tests(json!({"command": ""}))]}}
                ]}),
                "of[0].evaluator.of[0].command",
            ),
            (deep, "of[0].of[0].of[0].of[0].of"),
        ] {
            assert_eq!(problems(evaluator.clone()), [format!("evaluator.{field}")], "{evaluator}");
        }
        for unknown in [
            json!({"type": "tests", "command": "x", "format": "pytest", "reprt": "y"}),
            json!({"type": "tests", "command": "x", "format": "xunit"}),
            json!({"type": "command", "command": "x", "formt": "y"}),
            json!("some"),
        ] {
            assert!(serde_json::from_value::<EvaluatorSpec>(unknown.clone()).is_err(), "{unknown}");
        }
    }
}
