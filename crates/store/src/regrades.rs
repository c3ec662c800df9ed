//! Grading stored work again, as far as it does not depend on where things are kept.

use polar_types::{
    EndReason, ErrorClass, EvaluatorSpec, Grading, Outcome, RegradeInfo, SessionId, SessionReport,
    SessionStatus, Side,
};
use serde_json::{Value, json};

/// Attempts at it, as the agent's work is there to be tried with.
pub(crate) const MAX_ATTEMPTS: u32 = 3;

/// What it waits for.
pub(crate) const WAITING: &str = "a node, to grade its stored work again";

/// A session whose stored work is to be graded again.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRegrade {
    /// Which.
    pub session: SessionId,
    /// By which evaluator; it was checked.
    pub evaluator: EvaluatorSpec,
}

/// All gradings of a session, with the one that a report tells of.
pub(crate) fn with_grading(
    known: Vec<Grading>,
    (before, ended_at): (&SessionReport, String),
    after: &SessionReport,
    revision: u32,
    now: String,
) -> Vec<Grading> {
    let mut gradings = known;
    if gradings.is_empty() {
        gradings.push(Grading::of(before, 1, ended_at));
    }
    gradings.push(Grading::of(after, revision, now));
    gradings
}

/// What its event tells.
pub(crate) fn regraded(before: &SessionReport, after: &SessionReport, revision: u32) -> Value {
    let version = after.grade.as_ref().map(|grade| grade.version.as_str());
    json!({
        "status": after.outcome.status().as_str(),
        "reason": EndReason::of(&after.outcome, after.grade_error.is_some()).as_str(),
        "revision": revision,
        "reward": after.reward,
        "previous_reward": before.reward,
        "evaluator_version": version,
    })
}

/// The same where it came to nothing.
pub(crate) fn failed(revision: u32, why: &str) -> Value {
    json!({ "revision": revision, "error": why })
}

/// Why it came to nothing.
pub(crate) fn why_failed(outcome: &Outcome, report: Option<&SessionReport>) -> String {
    let why = report.and_then(|report| report.grade_error.clone());
    let why = why.or_else(|| outcome.detail().map(str::to_owned));
    why.unwrap_or_else(|| match outcome {
        Outcome::Cancelled => "it was cancelled".to_owned(),
        _ => "it gave no reward".to_owned(),
    })
}

/// How it ends: as failed where it gave no reward, whatever else went well.
fn outcome_of(report: &SessionReport) -> Outcome {
    match (&report.outcome, report.is_regraded()) {
        (Outcome::Completed, false) => Outcome::Failed {
            side: Side::Grader,
            class: ErrorClass::Internal,
            message: why_failed(&report.outcome, Some(report)),
        },
        (outcome, _) => outcome.clone(),
    }
}

/// A report as what it says of the stored work: as failed where it gave no reward, and where its
/// node knows nothing of grading and ran the agent instead.
pub(crate) fn as_ordered(report: &SessionReport, of: &SessionId) -> SessionReport {
    let mut told = report.clone();
    told.outcome = match report.regrade_of.as_ref() == Some(of) {
        true => outcome_of(report),
        false => Outcome::Failed {
            side: Side::Polar,
            class: ErrorClass::Internal,
            message: "its node is of a version that grades no stored work".to_owned(),
        },
    };
    told
}

/// As the API shows it.
pub(crate) fn info(
    session_id: SessionId,
    revision: u32,
    status: SessionStatus,
    waiting_for: Option<String>,
    outcome: Option<&Outcome>,
) -> RegradeInfo {
    let error = outcome.filter(|outcome| **outcome != Outcome::Completed);
    RegradeInfo {
        session_id,
        revision,
        status,
        waiting_for,
        error: error.map(|outcome| why_failed(outcome, None)),
    }
}
