//! How a reward came about.

use crate::{CallId, GradingSandbox};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What an evaluator found, and which evaluator it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GradeInfo {
    /// Kind of evaluator, for example `tests`.
    pub evaluator: String,
    /// Which rules it followed. It changes when the same work may be graded otherwise.
    pub version: String,
    /// Where its commands ran.
    pub sandbox: GradingSandbox,
    /// The number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What to know about the reward there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Rewards of calls and traces, where the evaluator gave any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewards: Option<PartRewards>,
    /// What became of tests, where the evaluator reads their results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests: Option<TestCounts>,
    /// What the evaluators found that this one is made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub parts: Vec<GradeInfo>,
}

/// Rewards of parts of a session, beside that of the whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct PartRewards {
    /// Of calls, which are the agent's turns, by their ids.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub calls: BTreeMap<CallId, f64>,
    /// Of traces, by their index.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub traces: BTreeMap<u32, f64>,
}

impl PartRewards {
    /// Whether no part has one.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.traces.is_empty()
    }
}

/// What became of the tests that count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TestCounts {
    /// Tests that must pass.
    pub wanted: u32,
    /// Those of them that passed.
    pub passed: u32,
    /// Results that were told, of whatever test.
    pub told: u32,
    /// Names of the first of those that must pass and failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
    /// Names of the first of those that must pass and of which nothing was told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// A known way to get a reward without doing the task, of which the work has a mark. It is not
/// proof: a task may ask for the very same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HackPattern {
    /// A test that was there was changed.
    TestsEdited,
    /// A test that was there was removed.
    TestsDeleted,
    /// A `conftest.py` was added or changed, which pytest runs before any test.
    ConftestPlanted,
    /// A `sitecustomize.py`, `usercustomize.py` or `.pth` file was added, which Python runs at its
    /// start.
    StartupHookPlanted,
    /// The settings of a test program were changed, which can leave tests out.
    TestSettingsChanged,
    /// A file by which a grader tells its reward or results was written.
    RewardFileWritten,
    /// The work ends the process that runs the tests, with a code of its choice.
    ExitOverridden,
    /// The tests' program ended with code 0 although a test failed.
    ExitCodeContradictsReport,
    /// A tool call asks for git history beyond what the checked-out commit builds upon, where a fix
    /// may lie.
    HistoryAskedFor,
    /// A tool call, or a request to the proxy of the sandbox, asks for source code from elsewhere.
    SourceAskedFor,
}

impl HackPattern {
    /// What it says of the work.
    pub fn words(self) -> &'static str {
        match self {
            Self::TestsEdited => "a test was changed",
            Self::TestsDeleted => "a test was removed",
            Self::ConftestPlanted => "a conftest.py was added or changed",
            Self::StartupHookPlanted => "a file that Python runs at its start was added",
            Self::TestSettingsChanged => "settings of a test program were changed",
            Self::RewardFileWritten => "a file that tells a reward or results was written",
            Self::ExitOverridden => "the work ends the process that runs the tests",
            Self::ExitCodeContradictsReport => {
                "the tests' program ended with code 0 although a test failed"
            }
            Self::HistoryAskedFor => "a tool call asks for git history beyond the base commit",
            Self::SourceAskedFor => "the agent asked for source code from elsewhere",
        }
    }
}

/// A pattern and where it was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HackLabel {
    /// Which one.
    pub pattern: HackPattern,
    /// The path, or other place, where it was seen first.
    pub place: String,
}
