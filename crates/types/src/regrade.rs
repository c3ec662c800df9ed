//! Grading stored work again: the agent does not run, its tokens stay, and only rewards change.

use crate::{
    Artifact, EndReason, EvaluatorSpec, FieldProblem, GradeInfo, GradingSandbox, HackLabel,
    HackPattern, Outcome, SessionId, SessionInfo, SessionReport, SessionStatus, TaskId, TaskSpec,
};
use serde::{Deserialize, Serialize};

/// Name of the artifact that holds what crosses to a grader: the agent's work.
pub const WORK: &str = "work.tar";

/// `POST /api/tasks/{id}/regrade`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RegradeRequest {
    /// Which sessions; all of the task's that can be when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<Vec<SessionId>>,
    /// By which evaluator; the task's own when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluator: Option<EvaluatorSpec>,
}

/// Answer to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RegradeList {
    /// Of which task.
    pub task_id: TaskId,
    /// What is on its way, by session.
    pub regrades: Vec<RegradeInfo>,
    /// Sessions of the task that cannot be graded again, when none were named.
    pub skipped: Vec<RegradeSkipped>,
}

/// A session that cannot be graded again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RegradeSkipped {
    /// Which.
    pub session_id: SessionId,
    /// Why.
    pub reason: String,
}

/// Where grading a session again stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RegradeInfo {
    /// Of which session.
    pub session_id: SessionId,
    /// The revision of its result that this makes.
    pub revision: u32,
    /// Where it stands; `completed` once the result is there, `failed` where it stays as it was.
    pub status: SessionStatus,
    /// What it waits for, in words, while it has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// Why the result stays as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One grading of a session: the first, or one of its stored work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Grading {
    /// 1 for the first; later ones have larger numbers.
    pub revision: u32,
    /// When it was done (RFC 3339, UTC).
    pub at: String,
    /// The reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Why there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Which evaluator found it, by which rules, and what it saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grade: Option<GradeInfo>,
}

impl Grading {
    /// What a report says.
    pub fn of(report: &SessionReport, revision: u32, at: String) -> Self {
        Self {
            revision,
            at,
            reward: report.reward,
            error: report.grade_error.clone(),
            grade: report.grade.clone(),
        }
    }
}

/// What a node is told with a lease that is for grading stored work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RegradeOrder {
    /// Whose work it is.
    pub session_id: SessionId,
    /// The revision that this makes.
    pub revision: u32,
    /// Replaces the task's.
    pub evaluator: EvaluatorSpec,
    /// What is stored of the session.
    pub artifacts: Vec<Artifact>,
    /// Marks of hacks that its work has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hack_labels: Vec<HackLabel>,
}

impl RegradeOrder {
    /// For the work that a session's accepted report names.
    pub fn new(report: &SessionReport, revision: u32, evaluator: EvaluatorSpec) -> Self {
        // What the earlier evaluator saw is not the work's.
        let of_work = |label: &&HackLabel| label.pattern != HackPattern::ExitCodeContradictsReport;
        Self {
            session_id: report.session_id.clone(),
            revision,
            evaluator,
            artifacts: report.artifacts.clone(),
            hack_labels: report.hack_labels.iter().filter(of_work).cloned().collect(),
        }
    }

    /// The task as the grader sees it: with this evaluator, in a sandbox of its own.
    pub fn apply(&self, task: &mut TaskSpec) {
        task.evaluator = self.evaluator.clone();
        task.grading.sandbox = Some(GradingSandbox::Fresh);
    }
}

impl RegradeRequest {
    /// The evaluator to grade a task's work by. All problems come at once.
    pub fn evaluator_for(&self, task: &TaskSpec) -> Result<EvaluatorSpec, Vec<FieldProblem>> {
        let example = r#"{"type": "command", "command": "pytest -q"}"#;
        let evaluator = self.evaluator.clone().unwrap_or_else(|| task.evaluator.clone());
        let mut problems = Vec::new();
        evaluator.check(&mut problems);
        evaluator.check_runtime(&task.runtime, &mut problems);
        let what = match &self.evaluator {
            _ if evaluator == (EvaluatorSpec::None {}) => {
                Some("gives no reward; name one that does")
            }
            None if task.grading_sandbox() == GradingSandbox::Session
                && evaluator.runs_in_sandbox() =>
            {
                Some(
                    "the task grades in the agent's own sandbox, which is gone; name an evaluator \
                     that needs its work folder alone",
                )
            }
            Some(_)
                if evaluator.runs_in_sandbox()
                    && evaluator.sandbox() == GradingSandbox::Session =>
            {
                Some(
                    "looks at the agent's own sandbox, which is gone; use one that needs its work \
                      folder alone",
                )
            }
            _ => None,
        };
        problems.extend(what.map(|what| FieldProblem::new("evaluator", what, example)));
        if problems.is_empty() { Ok(evaluator) } else { Err(problems) }
    }
}

impl SessionInfo {
    /// Why its work cannot be graded again; nothing where it can.
    pub fn why_not_regraded(&self) -> Option<String> {
        if !self.status.is_terminal() {
            return Some("it has not ended".to_owned());
        }
        let Some(report) = self.report() else {
            return Some("no node reported its end, so that nothing of it is kept".to_owned());
        };
        let reason = EndReason::of(&report.outcome, false);
        if reason.is_infrastructure() || report.outcome == Outcome::Cancelled {
            let reason = reason.as_str();
            return Some(format!("it ended as {reason}, which says nothing of the agent's work"));
        }
        if report.calls == 0 {
            return Some("its agent made no call, so that there is nothing to train".to_owned());
        }
        let has = |name: &str| report.artifacts.iter().any(|artifact| artifact.name == name);
        (!has(WORK) || !has("trajectory.json")).then(|| {
            format!(
                "its work was not kept ({WORK}): it holds more than `grading.max_mb`, or an older \
                 version of Polar ran it"
            )
        })
    }
}

impl SessionReport {
    /// Whether stored work was graded: only then does its session's result change.
    pub fn is_regraded(&self) -> bool {
        self.outcome == Outcome::Completed && self.reward.is_some()
    }

    /// This report with what grading its work again found.
    pub fn regraded(&self, by: &Self) -> Self {
        let mut report = Self {
            reward: by.reward,
            grade: by.grade.clone(),
            grade_error: None,
            grade_note: by.grade_note.clone(),
            hack_labels: by.hack_labels.clone(),
            ..self.clone()
        };
        let reason = EndReason::of(&report.outcome, false);
        if report.reason == Some(EndReason::GraderFailure) {
            report.reason_detail = report.outcome.detail().map(str::to_owned);
        }
        report.reason = Some(reason);
        for artifact in &by.artifacts {
            match report.artifacts.iter_mut().find(|known| known.name == artifact.name) {
                Some(known) => known.clone_from(artifact),
                None => report.artifacts.push(artifact.clone()),
            }
        }
        report
    }
}

impl SessionId {
    /// The grading of a session's stored work that makes this revision. Cut as
    /// [`SessionId::of_sample`] does.
    pub fn of_regrade(session: &Self, revision: u32) -> Self {
        session.with_suffix(&format!(".r{revision}"))
    }
}
