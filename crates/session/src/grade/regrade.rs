//! Grading stored work again, in a sandbox made for it. The agent does not run, nothing of its own
//! sandbox is there any more, and of what is stored only rewards change.

use super::Grade;
use super::artefacts::Packed;
use crate::attempt::Attempt;
use crate::failure::Stop;
use crate::folder::AttemptFolder;
use crate::pools::Slot;
use crate::report::{Ending, Facts, bare_report, hash_artifact, polar_failure, write_json};
use polar_trajectory::set_rewards;
use polar_types::{
    Artifact, EndReason, ErrorClass, Outcome, SessionReport, Side, Stage, Trajectory, WORK,
};
use std::fs::File;
use std::io::{self, BufReader};
use std::time::{Duration, Instant};

/// What of a session's files it makes anew.
const MADE: [&str; 2] = [TRAJECTORY, "grader.log"];
const TRAJECTORY: &str = "trajectory.json";

impl Attempt {
    /// Grades the work in its folder; the grading slot comes back.
    pub(crate) async fn regrade(&mut self) -> Result<Slot, Stop> {
        let pools = self.pools();
        self.have_room(Stage::Grade).await?;
        self.waits(Stage::Grade, "a grading slot");
        let slot = self.unless_stopped(pools.grade_stored()).await??;
        let since = Instant::now();
        let grade = self.grade_stored().await;
        self.times.grade_seconds = since.elapsed().as_secs_f64();
        self.grade = grade?;
        self.waits(Stage::Grade, "its trajectory");
        Ok(slot)
    }

    async fn grade_stored(&mut self) -> Result<Grade, Stop> {
        let labels = self.lease.regrade.as_ref().map(|order| order.hack_labels.clone());
        let path = self.folder.artifact(WORK);
        let read = tokio::task::spawn_blocking(move || Packed::load(&path)).await;
        let packed = read.map_err(io::Error::other).and_then(|packed| packed).map_err(|error| {
            let message = format!("the stored work ({WORK}) cannot be read: {error}");
            Stop::failed(Side::Polar, ErrorClass::Internal, message)
        })?;
        self.ready_grader(None, 1).await?;
        self.waits(Stage::Grade, "a look for its evaluator");
        let timeout = Duration::from_secs_f64(self.lease.task.budgets.prepare_seconds);
        if let Some(grader) = self.grader.as_deref() {
            self.evaluator = self.find_evaluator(grader, timeout).await?;
        }
        let verdict = match self.unpack(&packed).await? {
            Ok(()) => self.evaluate_work().await?,
            Err(verdict) => verdict,
        };
        Ok(self.conclude(verdict, labels.unwrap_or_default()))
    }
}

/// The report of it: what was found, and the session's trajectory with these rewards.
pub(crate) fn report(facts: &Facts) -> SessionReport {
    let outcome = match &facts.ending {
        Ending::Stopped(outcome) => outcome.clone(),
        Ending::Ran { .. } => Outcome::Completed,
    };
    let mut report = bare_report(facts, outcome);
    if report.is_regraded() {
        match revise(&facts.folder, &report) {
            Ok(artifacts) => report.artifacts = artifacts,
            Err(error) => {
                report.outcome = polar_failure(format!("the stored trajectory: {error}"));
                report.reward = None;
            }
        }
    }
    report.reason = Some(EndReason::of(&report.outcome, report.grade_error.is_some()));
    report.reason_detail = report.outcome.detail().map(str::to_owned);
    report
}

/// Gives the stored trajectory these rewards; what was made comes back.
fn revise(folder: &AttemptFolder, report: &SessionReport) -> io::Result<Vec<Artifact>> {
    let path = folder.artifact(TRAJECTORY);
    let mut trajectory: Trajectory = serde_json::from_reader(BufReader::new(File::open(&path)?))?;
    let parts = report.grade.as_ref().and_then(|grade| grade.rewards.clone()).unwrap_or_default();
    set_rewards(&mut trajectory, report.reward, &parts);
    if trajectory.reason == Some(EndReason::GraderFailure) {
        trajectory.reason = Some(EndReason::Completed);
        trajectory.reason_detail = None;
    }
    write_json(&path, &trajectory)?;
    let mut made = Vec::new();
    for name in MADE {
        made.extend(hash_artifact(folder, name)?);
    }
    Ok(made)
}
