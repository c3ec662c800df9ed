//! From what an attempt left behind to its report: trajectory, artifacts, outcome.

use crate::folder::{ARTIFACTS, AttemptFolder};
use crate::grade::Grade;
use crate::harness::{CallFailure, HarnessAdapter, OutageSeen, RunEvidence, judge};
use crate::hints;
use crate::outage::outage_of;
use polar_record::RecordedSession;
use polar_sandbox::ExecEnd;
use polar_trajectory::{BuildOptions, set_rewards};
use polar_types::{
    Artifact, CallSummary, EndReason, ErrorClass, Lease, NetworkUse, NodeId, Outcome, RuntimeSpec,
    SessionReport, Side, StageTimes, TaskSpec, Trajectory,
};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::time::Duration;

/// How an attempt ended.
pub(crate) enum Ending {
    /// The harness ran; the adapter's rule decides.
    Ran { end: ExecEnd, adapter: Box<HarnessAdapter> },
    /// It was ended, or failed, elsewhere.
    Stopped(Outcome),
}

/// Everything known of an attempt that has ended.
pub(crate) struct Facts {
    pub(crate) lease: Lease,
    pub(crate) node_id: NodeId,
    pub(crate) folder: AttemptFolder,
    pub(crate) grade: Grade,
    pub(crate) network: NetworkUse,
    pub(crate) times: StageTimes,
    pub(crate) ending: Ending,
}

/// Builds the trajectory and the report, and keeps both in the attempt's folder. Always
/// gives a report: what goes wrong here is its outcome.
pub(crate) async fn conclude(facts: Facts) -> SessionReport {
    let fallback = bare_report(&facts, Outcome::Completed);
    match tokio::task::spawn_blocking(move || build_report(facts)).await {
        Ok(report) => report,
        Err(error) => SessionReport {
            outcome: polar_failure(format!("building the trajectory broke off: {error}")),
            reason: Some(EndReason::PolarFailure),
            reason_detail: Some(format!("building the trajectory broke off: {error}")),
            reward: None,
            ..fallback
        },
    }
}

/// The report of an attempt that broke off or was given up without one, from what its
/// folder holds: the one it had written, or one of a failure for `reason` with all calls
/// that were recorded.
pub async fn salvage(
    folder: &AttemptFolder,
    lease: Lease,
    node_id: NodeId,
    reason: &str,
) -> SessionReport {
    if let Some(report) = folder.report() {
        return report;
    }
    conclude(Facts {
        lease,
        node_id,
        folder: folder.clone(),
        grade: Grade::default(),
        network: Default::default(),
        times: StageTimes::default(),
        ending: Ending::Stopped(Outcome::Failed {
            side: Side::Polar,
            class: ErrorClass::Unavailable,
            message: reason.to_owned(),
        }),
    })
    .await
}

/// What a journal holds, built.
pub struct Rebuilt {
    /// The traces.
    pub trajectory: Trajectory,
    /// All calls, without ids.
    pub calls: Vec<CallSummary>,
    /// How the last call failed, when it did.
    last_call: Option<CallFailure>,
    /// That calls waited for an engine that was away.
    outage: Option<OutageSeen>,
    /// How the traces break promises 1 to 3, should they.
    violation: Option<String>,
}

/// Builds the trajectory of a journal, without rewards. An error says what is wrong with the
/// journal.
pub fn rebuild(journal: &Path, options: impl Into<BuildOptions>) -> Result<Rebuilt, String> {
    let session = RecordedSession::read(journal).map_err(|error| error.to_string())?;
    let last_call = session.calls().last().and_then(call_failure);
    let outage = outage_of(session.calls());
    let built = polar_trajectory::build(&session, options, None);
    // Checked by other code than that which built it, before anybody trains on it.
    let violation = polar_trajectory::verify(&built.trajectory, &session)
        .and_then(|()| polar_trajectory::verify_fingerprints(&session).map(drop))
        .err();
    Ok(Rebuilt {
        trajectory: built.trajectory,
        calls: built.calls,
        last_call,
        outage,
        violation: violation.map(|violation| violation.to_string()),
    })
}

fn call_failure(call: &polar_record::RecordedCall) -> Option<CallFailure> {
    if call.meta.finish_reason != "error" {
        return None;
    }
    let class = call.meta.extra.get("error_class").and_then(|class| class.as_str());
    // Broken off with the session, which says nothing of the engine.
    if class == Some("cancelled") {
        return None;
    }
    Some(CallFailure {
        message: call.meta.error.clone().unwrap_or_else(|| "no reason given".to_owned()),
        refused: matches!(class, Some("invalid" | "too_large" | "context_overflow")),
        outage: class == Some("unavailable"),
    })
}

fn build_report(facts: Facts) -> SessionReport {
    if facts.lease.regrade.is_some() {
        let report = crate::grade::regrade::report(&facts);
        keep_report(&facts.folder, &report);
        return report;
    }
    let mut report = bare_report(&facts, Outcome::Completed);
    let journal = facts.folder.journal();
    let mut rebuilt = match journal.exists() {
        true => rebuild(&journal, build_options(&facts.lease.task)).map(Some),
        false => Ok(None),
    };
    report.outcome = match &rebuilt {
        Ok(rebuilt) => outcome(&facts, rebuilt.as_ref()),
        Err(error) => polar_failure(format!("the journal cannot be read: {error}")),
    };
    if let Ok(Some(rebuilt)) = &rebuilt {
        tell_of(&mut report, rebuilt);
        if let Some(violation) = violation(rebuilt) {
            report.outcome = polar_failure(violation);
        }
    }
    if let Ending::Ran { end: ExecEnd::Exited(code), .. } = facts.ending {
        report.exit_code = Some(code);
    }
    if let Some(why) = why_unrewarded(&report)
        && report.reward.take().is_some()
    {
        report.grade_error = Some(why);
    }
    let budget = facts.lease.task.budgets.run_seconds;
    say_reason(&mut report, budget);
    let kept = match &mut rebuilt {
        Ok(Some(rebuilt)) => {
            let parts = report.grade.as_ref().and_then(|grade| grade.rewards.clone());
            let parts = parts.filter(|_| report.reward.is_some()).unwrap_or_default();
            set_rewards(&mut rebuilt.trajectory, report.reward, &parts);
            rebuilt.trajectory.reason = report.reason;
            rebuilt.trajectory.reason_detail.clone_from(&report.reason_detail);
            keep_trajectory(&facts.folder, rebuilt)
                .map_err(|error| format!("the trajectory could not be written: {error}"))
        }
        Ok(None) => Ok(()),
        Err(error) => Err(format!("the journal cannot be read: {error}")),
    };
    let hashed = hash_artifacts(&facts.folder)
        .map(|artifacts| report.artifacts = artifacts)
        .map_err(|error| format!("artifacts not readable: {error}"));
    if let Err(trouble) = kept.and(hashed) {
        report.reward = None;
        report.outcome = polar_failure(trouble);
        say_reason(&mut report, budget);
    }
    if let Outcome::Failed { side: Side::Polar, class, message } = &report.outcome {
        let session = &report.session_id;
        match class {
            // Given back, as at the end of a node: another attempt follows.
            ErrorClass::Unavailable => tracing::info!(%session, message, "session left"),
            _ => tracing::error!(%session, message, "session failed on Polar's side"),
        }
    }
    keep_report(&facts.folder, &report);
    report
}

fn keep_report(folder: &AttemptFolder, report: &SessionReport) {
    if let Err(error) = folder.save_report(report) {
        // Delivery goes on; only a restart before it ends would have to build it again.
        tracing::error!(session = %report.session_id, %error, "report not kept over a restart");
    }
}

/// How a task has its traces built.
pub(crate) fn build_options(task: &TaskSpec) -> BuildOptions {
    BuildOptions { strategy: task.trajectory_strategy, train_roles: task.train_roles.clone() }
}

fn tell_of(report: &mut SessionReport, rebuilt: &Rebuilt) {
    report.calls = count(rebuilt.calls.len());
    report.traces = count(rebuilt.trajectory.lineages());
    report.sizes.clone_from(&rebuilt.trajectory.sizes);
    report.tokens.clone_from(&rebuilt.trajectory.tokens);
    report.weight_versions = rebuilt.trajectory.weight_versions();
    report.forks.clone_from(&rebuilt.trajectory.forks);
    report.roles.clone_from(&rebuilt.trajectory.roles);
    report.translation.clone_from(&rebuilt.trajectory.translation);
}

fn say_reason(report: &mut SessionReport, budget: f64) {
    let reason = EndReason::of(&report.outcome, report.grade_error.is_some());
    report.reason = Some(reason);
    report.reason_detail = match reason {
        EndReason::Completed => None,
        EndReason::AgentTimeout => Some(format!(
            "the agent did not end within budgets.run_seconds ({budget} s); what it did is kept"
        )),
        EndReason::GraderFailure => {
            report.outcome.detail().map(str::to_owned).or_else(|| report.grade_error.clone())
        }
        _ => report.outcome.detail().map(str::to_owned),
    };
}

/// Why what a grader found is no reward: what an agent did before its engine, its sandbox or Polar
/// was lost says nothing of the model, and neither does an agent that failed without a call.
fn why_unrewarded(report: &SessionReport) -> Option<String> {
    let reason = EndReason::of(&report.outcome, false);
    let name = reason.as_str();
    if reason.is_infrastructure() {
        return Some(format!("{name}: what was done before it is not graded"));
    }
    let is_failed = matches!(reason, EndReason::FailedToStart | EndReason::HarnessCrash);
    (is_failed && report.calls == 0)
        .then(|| format!("{name}: the agent made no call, so that there is no work to grade"))
}

pub(crate) fn bare_report(facts: &Facts, outcome: Outcome) -> SessionReport {
    SessionReport {
        session_id: facts.lease.session_id.clone(),
        regrade_of: facts.lease.regrade.as_ref().map(|order| order.session_id.clone()),
        epoch: facts.lease.epoch,
        node_id: facts.node_id.clone(),
        outcome,
        reason: None,
        reason_detail: None,
        reward: facts.grade.reward(),
        grade_error: facts.grade.error(),
        grade_note: facts.grade.note(),
        grade: facts.grade.info.clone(),
        hack_labels: facts.grade.labels.clone(),
        network: facts.network.clone(),
        exit_code: None,
        calls: 0,
        traces: 0,
        tokens: polar_types::TokenCounts::default(),
        weight_versions: Vec::new(),
        sizes: None,
        forks: std::collections::BTreeMap::default(),
        roles: Default::default(),
        translation: Default::default(),
        times: facts.times.clone(),
        artifacts: Vec::new(),
    }
}

fn outcome(facts: &Facts, rebuilt: Option<&Rebuilt>) -> Outcome {
    match &facts.ending {
        Ending::Stopped(outcome) => outcome.clone(),
        Ending::Ran { end, adapter } => {
            let evidence = RunEvidence {
                end: *end,
                stdout: &facts.folder.artifact("stdout.log"),
                stderr: &facts.folder.artifact("stderr.log"),
                budget: Duration::from_secs_f64(facts.lease.task.budgets.run_seconds),
                calls: rebuilt.map_or(0, |rebuilt| count(rebuilt.calls.len())),
                last_call: rebuilt.and_then(|rebuilt| rebuilt.last_call.as_ref()),
                outage: rebuilt.and_then(|rebuilt| rebuilt.outage.as_ref()),
            };
            with_hint(judge(adapter, evidence), *end, &facts.lease.task.runtime)
        }
    }
}

/// A failure of the harness, with what may mend it.
fn with_hint(outcome: Outcome, end: ExecEnd, runtime: &RuntimeSpec) -> Outcome {
    match (outcome, end) {
        (Outcome::Failed { side: Side::Harness, class, message }, ExecEnd::Exited(code)) => {
            let hint = hints::failed_command(runtime, code, &message);
            Outcome::Failed { side: Side::Harness, class, message: message + &hint }
        }
        (outcome, _) => outcome,
    }
}

pub(crate) fn polar_failure(message: String) -> Outcome {
    Outcome::Failed { side: Side::Polar, class: ErrorClass::Internal, message }
}

/// A trajectory that breaks a promise is not for training; it and its journal are kept
/// for whoever mends it.
fn violation(rebuilt: &Rebuilt) -> Option<String> {
    rebuilt.violation.as_ref().map(|violation| {
        format!(
            "the trajectory is not what was sampled: {violation}; please report it with the \
             session's journal"
        )
    })
}

fn keep_trajectory(folder: &AttemptFolder, rebuilt: &Rebuilt) -> io::Result<()> {
    write_json(&folder.artifact("trajectory.json"), &rebuilt.trajectory)?;
    let arrays = polar_trajectory::arrays(&rebuilt.trajectory).map_err(io::Error::other)?;
    std::fs::write(folder.artifact("trajectory.safetensors"), arrays)?;
    write_json(&folder.artifact("calls.json"), &rebuilt.calls)
}

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    serde_json::to_writer(&mut file, value)?;
    file.flush()
}

fn hash_artifacts(folder: &AttemptFolder) -> io::Result<Vec<Artifact>> {
    let mut artifacts = Vec::new();
    for name in ARTIFACTS {
        artifacts.extend(hash_artifact(folder, name)?);
    }
    Ok(artifacts)
}

/// The artifact of this name, where there is one.
pub(crate) fn hash_artifact(folder: &AttemptFolder, name: &str) -> io::Result<Option<Artifact>> {
    let file = match File::open(folder.artifact(name)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (sha256, size) = hash(file)?;
    Ok(Some(Artifact { name: name.to_owned(), sha256, size }))
}

fn hash(file: File) -> io::Result<(String, u64)> {
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    let mut size = 0;
    loop {
        let read = reader.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        size += read as u64;
    }
    Ok((hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect(), size))
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// The end of a text, at most so many characters of it.
pub(crate) fn clip_end(text: &str, most: usize) -> String {
    let text = text.trim();
    let skipped = text.chars().count().saturating_sub(most);
    match skipped {
        0 => text.to_owned(),
        _ => format!("…{}", text.chars().skip(skipped).collect::<String>()),
    }
}
