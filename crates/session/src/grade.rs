//! The last stage in the sandbox: what the agent changed, and what it is worth.
//!
//! A grader that fails costs the reward and nothing else: the trajectory is kept and
//! the report says why there is no number. A sandbox that fails meanwhile is another
//! matter: the attempt fails, and may be made anew. What the agent can do to its grader must not
//! be a way to have none where there would be 0.

use crate::attempt::Attempt;
use crate::evaluator::Found;
use crate::failure::Stop;
use crate::harness::{TAIL, tail_lines};
use polar_sandbox::{Exec, ExecEnd};
use polar_types::{EvaluatorSpec, RewardSource, Stage};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Exit code of a command that SIGKILL ended.
const KILLED: i32 = 137;

/// What grading found.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Grade {
    pub(crate) reward: Option<f64>,
    /// Why there is no reward although one was asked for.
    pub(crate) error: Option<String>,
    /// What to know about the reward there is.
    pub(crate) note: Option<String>,
}

impl Grade {
    fn failed(error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..Self::default() }
    }

    fn of(reward: f64) -> Self {
        Self { reward: Some(reward), ..Self::default() }
    }

    /// The work failed, for a reason that is worth knowing.
    fn zero(note: String) -> Self {
        Self { reward: Some(0.0), note: Some(note), error: None }
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
                let kills = memory_kills();
                let end = self.exec("evaluating", exec).await;
                let out_of_memory = memory_kills() > kills;
                let log = self.folder.artifact("grader.log");
                if let Err(error) = join_logs(&log, &stdout, &stderr) {
                    tracing::warn!(session = %self.lease.session_id, %error, "grader.log not kept");
                }
                let end = Ended { end: end?, out_of_memory, stdout: &stdout, seconds };
                Ok(reward_of(*reward, &end, &self.evaluator))
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

/// How the evaluator came to its end.
struct Ended<'a> {
    end: ExecEnd,
    /// Whether the kernel killed something meanwhile for want of memory.
    out_of_memory: bool,
    stdout: &'a Path,
    /// The budget.
    seconds: f64,
}

/// The reward that a command's end and output stand for.
fn reward_of(source: RewardSource, ended: &Ended<'_>, before: &Found) -> Grade {
    let code = match ended.end {
        ExecEnd::TimedOut => {
            return Grade::failed(format!(
                "the evaluator ran longer than budgets.grade_seconds ({} s); raise it, or \
                 evaluate less",
                ended.seconds
            ));
        }
        ExecEnd::Exited(KILLED) if ended.out_of_memory => {
            return Grade::failed(
                "the evaluator was killed (exit code 137) while the machine or the sandbox was \
                 out of memory, which is no verdict on the work; give it more, or grade fewer \
                 sessions at a time",
            );
        }
        ExecEnd::Exited(code) => code,
    };
    match (source, code) {
        (RewardSource::ExitCode, 0) => Grade::of(1.0),
        // A shell's own codes for a command it cannot run. It was looked for before the
        // agent ran, so this is what the agent made of it.
        (RewardSource::ExitCode, 126 | 127) => Grade::zero(not_run(code, before)),
        (RewardSource::ExitCode, KILLED) => Grade::zero(
            "reward 0: the evaluator was killed (exit code 137), and not for want of memory; if \
             it is not the work that kills it, see grader.log"
                .to_owned(),
        ),
        (RewardSource::ExitCode, _) => Grade::of(0.0),
        (RewardSource::Stdout, 0) => {
            match last_number(&tail_lines(ended.stdout).unwrap_or_default()) {
                Some(reward) => Grade::of(reward),
                None => Grade::failed(format!(
                    "the evaluator printed no line that is a finite number and nothing else \
                     within the last {} KiB of its stdout; print the reward last",
                    TAIL >> 10
                )),
            }
        }
        // What the lowest reward is, only the task knows.
        (RewardSource::Stdout, code) => Grade::failed(format!(
            "the evaluator ended with exit code {code}, so its number does not count; see \
             grader.log, and have the command print a reward for failed work too, as in \
             `./grade || echo 0`"
        )),
    }
}

fn not_run(code: i32, before: &Found) -> String {
    let why = match before {
        Found::There(program) => format!("although `{program}` was there before the agent ran"),
        Found::Absent(program) => format!(
            "nor was `{program}` there before the agent ran; if it is not the agent's to make, \
             mend evaluator.command"
        ),
        Found::Unknown => "after the agent ran".to_owned(),
    };
    format!("reward 0: the evaluator could not be run (exit code {code}), {why}; see grader.log")
}

/// How often the kernel has killed a process for want of memory, on the whole machine or
/// in one container. No program can forge it.
fn memory_kills() -> Option<u64> {
    let counts = std::fs::read_to_string("/proc/vmstat").ok()?;
    counts.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn grade(source: RewardSource, end: ExecEnd, out_of_memory: bool) -> Grade {
        let ended = Ended { end, out_of_memory, stdout: Path::new("/nowhere"), seconds: 1.0 };
        reward_of(source, &ended, &Found::Unknown)
    }

    #[test]
    fn want_of_memory_is_no_verdict() {
        for source in [RewardSource::ExitCode, RewardSource::Stdout] {
            let killed = grade(source, ExecEnd::Exited(KILLED), true);
            assert_eq!(killed.reward, None);
            assert!(killed.error.unwrap().contains("out of memory"));
        }
        // Another command's memory is no excuse for an end of its own.
        for code in [1, 126, 127, 134, 139, 143] {
            let own = grade(RewardSource::ExitCode, ExecEnd::Exited(code), true);
            assert_eq!((own.reward, own.error), (Some(0.0), None), "{code}");
        }
    }

    #[test]
    fn a_kill_that_memory_does_not_explain_is_a_verdict_and_says_so() {
        let killed = grade(RewardSource::ExitCode, ExecEnd::Exited(KILLED), false);
        assert_eq!(killed.reward, Some(0.0));
        assert!(killed.note.unwrap().contains("137"));
    }
}
