//! The last stage in the sandbox: what the agent changed, and what it is worth.
//!
//! A grader that fails costs the reward and nothing else: the trajectory is kept and
//! the report says why there is no number.

use crate::attempt::Attempt;
use crate::failure::Stop;
use polar_sandbox::{Exec, ExecEnd};
use polar_types::{EvaluatorSpec, Outcome, RewardSource, Stage};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// What grading found.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Grade {
    pub(crate) reward: Option<f64>,
    /// Why there is no reward although one was asked for.
    pub(crate) error: Option<String>,
}

impl Grade {
    fn failed(error: impl Into<String>) -> Self {
        Self { reward: None, error: Some(error.into()) }
    }
}

impl Attempt {
    /// Keeps the diff, then evaluates, both within the grading budget.
    pub(crate) async fn grade(&self) -> Result<Grade, Stop> {
        let seconds = self.lease.task.budgets.grade_seconds;
        let deadline = Instant::now() + Duration::from_secs_f64(seconds);
        // First, so that what the grader writes is not taken for the agent's work.
        self.waits(Stage::Grade, "the diff of its work folder");
        self.keep_diff(deadline).await?;
        self.waits(Stage::Grade, "its evaluator");
        match &self.lease.task.evaluator {
            EvaluatorSpec::None {} => Ok(Grade::default()),
            EvaluatorSpec::Command { command, workdir, env, reward } => {
                let exec = Exec {
                    argv: vec!["sh".to_owned(), "-c".to_owned(), command.clone()],
                    workdir: workdir.clone(),
                    // The sandbox's own environment and this: nothing of the harness's,
                    // least of all its secret.
                    env: env.clone(),
                    stdin: None,
                    timeout: deadline.saturating_duration_since(Instant::now()),
                    stdout: self.folder.log("grader.out"),
                    stderr: self.folder.log("grader.err"),
                    output_limit: self.runner.config.output_limit,
                };
                let (stdout, stderr) = (exec.stdout.clone(), exec.stderr.clone());
                let end = self.exec("evaluating", exec).await;
                let log = self.folder.artifact("grader.log");
                if let Err(error) = join_logs(&log, &stdout, &stderr) {
                    tracing::warn!(session = %self.lease.session_id, %error, "grader.log not kept");
                }
                match end {
                    Ok(end) => Ok(reward_of(*reward, end, &stdout, seconds)),
                    Err(Stop::Ended(Outcome::Failed { message, .. })) => Ok(Grade::failed(message)),
                    Err(stop) => Err(stop),
                }
            }
        }
    }

    async fn keep_diff(&self, deadline: Instant) -> Result<(), Stop> {
        let left = deadline.saturating_duration_since(Instant::now());
        let sandbox = self.open_sandbox()?;
        let session = &self.lease.session_id;
        let diff = self.unless_stopped(tokio::time::timeout(left, sandbox.diff())).await?;
        let kept = match diff {
            Ok(Ok(patch)) => std::fs::write(self.folder.artifact("workspace.diff"), patch)
                .map_err(|error| error.to_string()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it took longer than budgets.grade_seconds".to_owned()),
        };
        if let Err(error) = kept {
            tracing::warn!(%session, error, "workspace.diff not kept");
        }
        Ok(())
    }
}

/// The reward that a command's end and output stand for.
fn reward_of(source: RewardSource, end: ExecEnd, stdout: &Path, seconds: f64) -> Grade {
    let code = match end {
        ExecEnd::Exited(code) => code,
        ExecEnd::TimedOut => {
            return Grade::failed(format!(
                "the evaluator ran longer than budgets.grade_seconds ({seconds} s); raise it, or \
                 evaluate less"
            ));
        }
    };
    match source {
        // A shell's own codes for a command it cannot run are no verdict on the work.
        RewardSource::ExitCode if matches!(code, 126 | 127) => Grade::failed(format!(
            "the evaluator's command could not be run (exit code {code}); see grader.log"
        )),
        RewardSource::ExitCode => {
            Grade { reward: Some(if code == 0 { 1.0 } else { 0.0 }), error: None }
        }
        RewardSource::Stdout if code != 0 => Grade::failed(format!(
            "the evaluator ended with exit code {code}, so its number does not count; see \
             grader.log"
        )),
        RewardSource::Stdout => {
            match last_number(&crate::harness::tail(stdout).unwrap_or_default()) {
                Some(reward) => Grade { reward: Some(reward), error: None },
                None => Grade::failed(
                    "the evaluator printed no line that is a finite number; print the reward last",
                ),
            }
        }
    }
}

/// The last line that is a finite number and nothing else.
fn last_number(text: &str) -> Option<f64> {
    text.lines().rev().find_map(|line| line.trim().parse().ok().filter(|n: &f64| n.is_finite()))
}

fn join_logs(log: &Path, stdout: &Path, stderr: &Path) -> io::Result<()> {
    let mut joined = File::create(log)?;
    for (title, part) in [("stdout", stdout), ("stderr", stderr)] {
        writeln!(joined, "── {title} ──")?;
        match File::open(part) {
            Ok(mut part) => {
                io::copy(&mut part, &mut joined)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
