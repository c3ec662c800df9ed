//! Where the work is graded, and what of it gets there.

use super::spec::PrepareStep;
use crate::FieldProblem;
use serde::{Deserialize, Serialize};

/// Where an evaluator's commands run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GradingSandbox {
    /// In a second sandbox without a network, made anew from the task's own image and set-up
    /// steps. Only what the agent made of its work folder, and the files named, get there.
    Fresh,
    /// In the sandbox that the agent worked in, as it left it.
    Session,
}

impl GradingSandbox {
    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Session => "session",
        }
    }
}

/// What is done about work that looks as if it were made for the grader rather than for the task.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum OnHack {
    /// The reward stands; the labels say what was seen.
    #[default]
    Label,
    /// A reward above 0 becomes 0.
    Zero,
}

/// How a session is graded, beside what its evaluator is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GradingSpec {
    /// Where it happens: `fresh` unless the evaluator says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<GradingSandbox>,
    /// Whether changes of the work folder get into the fresh sandbox.
    pub patch: bool,
    /// Paths of the work folder that don't get there even when changed: of a folder, of a file,
    /// or patterns in which `*` stands for any letters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Files and folders from outside the work folder that get there as well.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Most that may get there, in MiB. Work of more is graded 0.
    pub max_mb: u32,
    /// Steps done where it is graded, after the agent's work has come there: tests and keys that
    /// the agent must not see.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<PrepareStep>,
    /// What is done about known ways to get a reward without doing the task.
    pub on_hack: OnHack,
}

impl Default for GradingSpec {
    fn default() -> Self {
        Self {
            sandbox: None,
            patch: true,
            exclude: Vec::new(),
            files: Vec::new(),
            max_mb: 64,
            setup: Vec::new(),
            on_hack: OnHack::default(),
        }
    }
}

/// Most MiB that may be asked to be carried into a fresh sandbox.
const MOST_MB: u32 = 1024;

impl GradingSpec {
    pub(super) fn check(&self, problems: &mut Vec<FieldProblem>) {
        if self.max_mb == 0 || self.max_mb > MOST_MB {
            problems.push(FieldProblem::new(
                "grading.max_mb",
                format!("must be between 1 and {MOST_MB}, not {}", self.max_mb),
                "64",
            ));
        }
        for (index, path) in self.files.iter().enumerate() {
            let parts = path.split('/').skip(1).collect::<Vec<_>>();
            if !path.starts_with('/')
                || path.contains('\0')
                || parts.iter().any(|part| matches!(*part, "" | "." | ".."))
            {
                problems.push(FieldProblem::new(
                    format!("grading.files[{index}]"),
                    "must be an absolute path inside the sandbox, without `..` and not `/` itself",
                    r#""/var/lib/app/state.db""#,
                ));
            }
        }
        for (index, pattern) in self.exclude.iter().enumerate() {
            if pattern.trim_matches('/').is_empty() || pattern.starts_with('/') {
                problems.push(FieldProblem::new(
                    format!("grading.exclude[{index}]"),
                    "must be a path relative to the work folder",
                    r#""build/*.log""#,
                ));
            }
        }
        for (index, step) in self.setup.iter().enumerate() {
            step.check(&format!("grading.setup[{index}]"), problems);
        }
        if self.sandbox == Some(GradingSandbox::Session) && !self.files.is_empty() {
            problems.push(FieldProblem::new(
                "grading.files",
                "names files to carry into a fresh sandbox, and `grading.sandbox` is `session`, \
                 where they are already",
                "[]",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn what_cannot_cross_is_named_by_its_field() {
        let problems = |grading: Value| -> Vec<String> {
            let grading: GradingSpec = serde_json::from_value(grading).unwrap();
            let mut problems = Vec::new();
            grading.check(&mut problems);
            problems.into_iter().map(|problem| problem.field).collect()
        };
        assert!(problems(json!({"files": ["/a/b"], "exclude": ["a/*"], "max_mb": 1})).is_empty());
        for (grading, field) in [
            (json!({"max_mb": 0}), "max_mb"),
            (json!({"files": ["/a", "b"]}), "files[1]"),
            (json!({"files": ["/"]}), "files[0]"),
            (json!({"files": ["/a/../etc"]}), "files[0]"),
            (json!({"exclude": ["/a"]}), "exclude[0]"),
            (json!({"setup": [{"type": "exec", "command": ""}]}), "setup[0].command"),
            (json!({"sandbox": "session", "files": ["/a"]}), "files"),
        ] {
            assert_eq!(problems(grading.clone()), [format!("grading.{field}")], "{grading}");
        }
    }
}
