//! How a published task is graded.

use super::request::Evaluator;
use super::translate::{Problems, in_login_shell, no_equal, quoted};
use super::uploads::Budget;
use polar_types::{
    EvaluatorSpec, FieldProblem, GradingSandbox, GradingSpec, HarborEvaluator, InstanceTests,
    PrepareStep, RewardSource, RuntimeSpec, SwebenchEvaluator, TestFormat, TestsEvaluator,
    TestsReward,
};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What an evaluator has a say in beside itself.
pub(super) struct Rest<'a> {
    pub(super) runtime: &'a mut RuntimeSpec,
    pub(super) grading: &'a mut GradingSpec,
    pub(super) grade_seconds: &'a mut f64,
}

/// The same evaluator in our terms.
pub(super) fn translate(
    asked: Evaluator,
    rest: &mut Rest<'_>,
    budget: &mut Budget<'_>,
    problems: &mut Problems,
) -> EvaluatorSpec {
    let mut config = Config { fields: asked.config, problems };
    rest.grading.sandbox = Some(match asked.refresh_runtime {
        true => GradingSandbox::Fresh,
        false => GradingSandbox::Session,
    });
    let spec = match asked.strategy.as_str() {
        "session_completed" => session_completed(rest),
        "test_on_output" => test_on_output(&mut config, rest, asked.env),
        "swebench_harness" => swebench(&mut config, rest, asked.env),
        "harbor" => harbor(&mut config, rest, asked.env, budget),
        other => {
            config.problems.push(no_equal(
                "evaluator.strategy",
                &format!(
                    "{other:?} is none of session_completed, test_on_output, swebench_harness and \
                     harbor; POST /api/tasks has command, tests, judge, http and python beside"
                ),
            ));
            return EvaluatorSpec::None {};
        }
    };
    config.refuse_the_rest();
    spec
}

/// By the harness's exit code. It is told by the node, and needs nothing of the work.
fn session_completed(rest: &mut Rest<'_>) -> EvaluatorSpec {
    rest.grading.sandbox = Some(GradingSandbox::Session);
    EvaluatorSpec::Command {
        command: r#"test "$POLAR_AGENT_EXIT_CODE" = 0"#.to_owned(),
        workdir: None,
        env: BTreeMap::new(),
        reward: RewardSource::ExitCode,
    }
}

/// The keys of those that grade a patch. Work crosses here as whole files, so that how a patch
/// of it would be made and put on is of no interest.
fn take_patch_keys(config: &mut Config<'_>, rest: &mut Rest<'_>) {
    let repository = config.text("repo_dir").unwrap_or_else(|| "/testbed".to_owned());
    let is_chosen = rest.runtime.workdir != RuntimeSpec::default().workdir;
    if is_chosen && rest.runtime.workdir != repository {
        config.problems.push(no_equal(
            "evaluator.config.repo_dir",
            "what changed in `runtime.workdir` is graded, so the two must be the same folder",
        ));
    }
    rest.runtime.workdir = repository;
    if let Some(command) = config.text("patch_command") {
        let known = ["git add", "git diff", "git -C", "cd "];
        let parts = command.split("&&").map(str::trim);
        if !parts.clone().all(|part| known.iter().any(|start| part.starts_with(start))) {
            config.problems.push(no_equal(
                "evaluator.config.patch_command",
                "all that changed in the work folder is graded; leave it out",
            ));
        }
    }
    config.number("apply_timeout");
    *rest.grade_seconds = config.number("test_timeout").unwrap_or(1200.0);
    rest.grading.exclude = config.texts("exclude_patterns");
}

fn test_on_output(
    config: &mut Config<'_>,
    rest: &mut Rest<'_>,
    env: BTreeMap<String, String>,
) -> EvaluatorSpec {
    take_patch_keys(config, rest);
    let command = config.required_text("test_command");
    let expected = match config.take("expected_output_json") {
        Some(Value::String(text)) => serde_json::from_str(&text).unwrap_or_default(),
        other => other.unwrap_or_default(),
    };
    let mut fail_to_pass = Vec::new();
    for (name, status) in expected.as_object().into_iter().flatten() {
        if status.as_str() == Some("PASSED") && name.contains("::") && name.contains('/') {
            fail_to_pass.push(name.clone());
        }
    }
    let told = expected.as_object().map_or(0, Map::len);
    if fail_to_pass.is_empty() || fail_to_pass.len() < told {
        config.problems.push(no_equal(
            "evaluator.config.expected_output_json",
            "tests are named whole and must pass, as {\"tests/test_a.py::test_b\": \"PASSED\"}; for \
             other outcomes use `tests` or `command` of POST /api/tasks",
        ));
    }
    EvaluatorSpec::Tests(TestsEvaluator {
        command: in_login_shell(&command),
        workdir: None,
        env,
        format: TestFormat::Pytest,
        report: None,
        fail_to_pass,
        pass_to_pass: Vec::new(),
        reward: TestsReward::Resolved,
    })
}

fn swebench(
    config: &mut Config<'_>,
    rest: &mut Rest<'_>,
    env: BTreeMap<String, String>,
) -> EvaluatorSpec {
    take_patch_keys(config, rest);
    let instance = config.take("instance").unwrap_or_default();
    let tests = InstanceTests { command: None, in_own_image: true };
    match SwebenchEvaluator::of_instance(&instance, tests) {
        Ok(evaluator) => EvaluatorSpec::Swebench(SwebenchEvaluator { env, ..evaluator }),
        Err(error) => {
            let what = format!("is no instance of SWE-bench: {error}");
            let example = r#"{"instance_id": "a__b-1", "repo": "a/b", "test_patch": "…"}"#;
            config.problems.push(FieldProblem::new("evaluator.config.instance", what, example));
            EvaluatorSpec::None {}
        }
    }
}

fn harbor(
    config: &mut Config<'_>,
    rest: &mut Rest<'_>,
    env: BTreeMap<String, String>,
    budget: &mut Budget<'_>,
) -> EvaluatorSpec {
    let tests_dir = config.required_text("tests_dir");
    let target = config.text("tests_target").unwrap_or_else(|| "/tests".to_owned());
    let logs = config.text("verifier_dir").unwrap_or_else(|| "/logs/verifier".to_owned());
    let command = config.text("test_command").unwrap_or_else(|| "bash /tests/test.sh".to_owned());
    *rest.grade_seconds = config.number("verifier_timeout").unwrap_or(120.0);
    // How often an upload is tried; here the files come with the task.
    config.number("upload_attempts");
    config.number("upload_retry_backoff_seconds");
    let script = command
        .trim()
        .strip_prefix("bash ")
        .map(str::trim)
        .filter(|path| path.starts_with('/') && !path.contains(char::is_whitespace));
    if script.is_none() {
        config.problems.push(no_equal(
            "evaluator.config.test_command",
            "the tests are a script that is given to bash, as in `bash /tests/test.sh`",
        ));
    }
    let clean = format!("rm -rf {0} && mkdir -p {0}", quoted(&target));
    rest.grading.setup.push(PrepareStep::Exec {
        command: clean,
        workdir: Some("/".to_owned()),
        env: BTreeMap::new(),
        attempts: 1,
    });
    if !tests_dir.is_empty() {
        match budget.steps("evaluator.config.tests_dir", &tests_dir, &target, true) {
            Ok(steps) => rest.grading.setup.extend(steps),
            Err(problem) => config.problems.push(problem),
        }
    }
    EvaluatorSpec::Harbor(HarborEvaluator {
        script: script.unwrap_or("/tests/test.sh").to_owned(),
        logs,
        workdir: None,
        env,
        reward_key: None,
    })
}

/// An evaluator's settings. What is not taken was not known.
struct Config<'a> {
    fields: Map<String, Value>,
    problems: &'a mut Problems,
}

impl Config<'_> {
    fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    fn wrong(&mut self, name: &str, what: &str, example: &str) {
        self.problems.push(FieldProblem::new(format!("evaluator.config.{name}"), what, example));
    }

    fn text(&mut self, name: &str) -> Option<String> {
        match self.take(name) {
            Some(Value::String(text)) => Some(text),
            Some(_) => {
                self.wrong(name, "must be a text", "\"…\"");
                None
            }
            None => None,
        }
    }

    fn required_text(&mut self, name: &str) -> String {
        let before = self.problems.len();
        match self.text(name) {
            Some(text) => text,
            None => {
                if self.problems.len() == before {
                    self.wrong(name, "is missing", "\"…\"");
                }
                String::new()
            }
        }
    }

    fn number(&mut self, name: &str) -> Option<f64> {
        let value = self.take(name)?;
        let number = value.as_f64();
        if number.is_none() {
            self.wrong(name, "must be a number", "120");
        }
        number
    }

    fn texts(&mut self, name: &str) -> Vec<String> {
        let Some(value) = self.take(name) else { return Vec::new() };
        serde_json::from_value(value).unwrap_or_else(|_| {
            self.wrong(name, "must be a list of texts", r#"["build/*"]"#);
            Vec::new()
        })
    }

    fn refuse_the_rest(self) {
        for name in self.fields.keys() {
            self.problems.push(FieldProblem::new(
                format!("evaluator.config.{name}"),
                "is not a setting of this strategy",
                "{}",
            ));
        }
    }
}
