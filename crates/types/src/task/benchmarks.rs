//! Evaluators that follow the rules of published benchmarks.

use super::evaluator::check_command;
use crate::FieldProblem;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The tests of a Harbor (Terminal-Bench) task, which tell their reward in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HarborEvaluator {
    /// The script that the tests begin with, as seen inside.
    #[serde(default = "harbor_script")]
    pub script: String,
    /// Folder in which the script leaves `reward.txt` or `reward.json`. It is emptied first.
    #[serde(default = "harbor_logs")]
    pub logs: String,
    /// Folder it runs in; the work folder when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Environment variables of the script.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Which number of a `reward.json` counts; `reward`, or the mean of all, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward_key: Option<String>,
}

fn harbor_script() -> String {
    "/tests/test.sh".to_owned()
}

fn harbor_logs() -> String {
    "/logs/verifier".to_owned()
}

impl HarborEvaluator {
    pub(super) fn check(&self, at: &str, problems: &mut Vec<FieldProblem>) {
        for (field, path, example) in [
            ("script", &self.script, r#""/tests/test.sh""#),
            ("logs", &self.logs, r#""/logs/verifier""#),
        ] {
            let leads_up = path.split('/').any(|part| part == "..");
            if !path.starts_with('/') || path.len() == 1 || leads_up || path.contains('\0') {
                problems.push(FieldProblem::new(
                    format!("{at}.{field}"),
                    "must be an absolute path inside the sandbox, without `..`",
                    example,
                ));
            }
        }
    }
}

/// The tests of a SWE-bench or SWE-Gym instance, graded by its rules: resolved when all of
/// `fail_to_pass` and `pass_to_pass` hold with the instance's own tests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SwebenchEvaluator {
    /// The instance, for people.
    pub instance_id: String,
    /// `owner/name`; says how results are read where `log_parser` does not.
    pub repo: String,
    /// Commit that the tests are taken back to before `test_patch` is applied; the checked-out
    /// one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_commit: Option<String>,
    /// The tests, as a patch. The agent never sees it.
    pub test_patch: String,
    /// Names of tests that the work must make pass.
    pub fail_to_pass: Vec<String>,
    /// Names of tests that must still pass, or be skipped.
    #[serde(default)]
    pub pass_to_pass: Vec<String>,
    /// Runs the tests; given to `bash -c`.
    pub test_command: String,
    /// How the results are read; by the repository when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_parser: Option<SwebenchLogParser>,
    /// Folder of the repository; the work folder when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Environment variables of the command.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// How the logs of a repository's tests are read, named as in SWE-bench's harness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SwebenchLogParser {
    /// Of pytest.
    Pytest,
    /// Of pytest, with the folders taken out of paths in parameters.
    PytestOptions,
    /// Of pytest, with the codes of terminals taken out.
    PytestV2,
    /// Of matplotlib's pytest.
    Matplotlib,
    /// Of seaborn's pytest.
    Seaborn,
    /// Of Django's own runner.
    Django,
    /// Of SymPy's own runner.
    Sympy,
}

impl SwebenchLogParser {
    /// The one of a repository of SWE-bench; pytest's for any other.
    pub fn of_repo(repo: &str) -> Self {
        match repo {
            "pydicom/pydicom" | "psf/requests" | "pylint-dev/pylint" => Self::PytestOptions,
            "astropy/astropy" | "scikit-learn/scikit-learn" | "sphinx-doc/sphinx" => Self::PytestV2,
            "matplotlib/matplotlib" => Self::Matplotlib,
            "mwaskom/seaborn" => Self::Seaborn,
            "django/django" => Self::Django,
            "sympy/sympy" => Self::Sympy,
            _ => Self::Pytest,
        }
    }
}

impl SwebenchEvaluator {
    pub(super) fn check(&self, at: &str, problems: &mut Vec<FieldProblem>) {
        check_command(&format!("{at}.test_command"), &self.test_command, problems);
        if self.fail_to_pass.is_empty() {
            problems.push(FieldProblem::new(
                format!("{at}.fail_to_pass"),
                "must name the tests that the work is to make pass",
                r#"["tests/test_fix.py::test_it_is_fixed"]"#,
            ));
        }
        if !self.test_patch.contains("diff --git ") {
            problems.push(FieldProblem::new(
                format!("{at}.test_patch"),
                "must be a patch as git writes it, with the tests of the instance",
                r#""diff --git a/tests/test_fix.py b/tests/test_fix.py\n…""#,
            ));
        }
        let is_commit = |text: &str| {
            (7..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
        };
        if self.base_commit.as_deref().is_some_and(|commit| !is_commit(commit)) {
            problems.push(FieldProblem::new(
                format!("{at}.base_commit"),
                "must be the name of a commit, in hexadecimal digits",
                r#""4a1b2c3d""#,
            ));
        }
    }
}
