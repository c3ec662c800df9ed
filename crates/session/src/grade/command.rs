//! The evaluator that is a command, and how any evaluator's command is run.

use super::{Place, Verdict, answer};
use crate::attempt::Attempt;
use crate::evaluator::Found;
use crate::failure::Stop;
use crate::harness::{TAIL, tail_lines};
use polar_sandbox::{Exec, ExecEnd};
use polar_types::RewardSource;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Exit code of a command that SIGKILL ended.
const KILLED: i32 = 137;

/// Variable in which an evaluator's command finds how the harness ended: its exit code, or
/// nothing where it ran out of its budget.
const AGENT_EXIT_CODE: &str = "POLAR_AGENT_EXIT_CODE";

/// Most bytes of a report that are read.
const MOST_REPORT: u64 = 4 << 20;

/// What a task says of an evaluator's command.
pub(super) struct Command<'a> {
    pub(super) command: &'a str,
    pub(super) workdir: Option<&'a str>,
    pub(super) env: &'a BTreeMap<String, String>,
}

/// A command that was run where the work is graded.
pub(super) struct Run {
    pub(super) end: ExecEnd,
    /// Whether the kernel killed something meanwhile for want of memory.
    pub(super) out_of_memory: bool,
    pub(super) stdout: PathBuf,
}

impl Run {
    /// Its exit code; why there is no verdict where its end says nothing of the work.
    pub(super) fn exit_code(&self, seconds: f64) -> Result<i32, String> {
        exit_code(self.end, self.out_of_memory, seconds)
    }
}

impl Attempt {
    /// The variables of an evaluator's command, with how the harness ended.
    pub(super) fn with_agent_exit_code(
        &self,
        env: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let code = match self.exec_end {
            Some(ExecEnd::Exited(code)) => code.to_string(),
            Some(ExecEnd::TimedOut) | None => String::new(),
        };
        let mut env = env.clone();
        env.entry(AGENT_EXIT_CODE.to_owned()).or_insert(code);
        env
    }

    pub(super) async fn evaluate_command(
        &self,
        place: &Place<'_>,
        Command { command, workdir, env }: Command<'_>,
        reward: RewardSource,
    ) -> Result<Verdict, Stop> {
        let limit = self.runner.config.output_limit;
        let run = self.run_graded(place, command, workdir, env, limit).await?;
        let ended = Ended {
            end: run.end,
            out_of_memory: run.out_of_memory,
            stdout: &run.stdout,
            seconds: place.seconds,
        };
        Ok(reward_of(reward, &ended, self.evaluator.of(command)))
    }

    /// The verdict that a command writes to a file, which can say more than a number.
    pub(super) async fn evaluate_by_report(
        &self,
        place: &Place<'_>,
        Command { command, workdir, env }: Command<'_>,
    ) -> Result<Verdict, Stop> {
        let folder = format!("{}/.polar-grader-{}", place.sandbox.home(), place.next_command());
        // Nothing that is there already is a report.
        let removal = ["rm", "-rf", "--", &folder].map(str::to_owned).to_vec();
        if let (ExecEnd::TimedOut, _) = self.read_graded(place, None, removal, MOST_REPORT).await? {
            return Ok(Verdict::failed("there was no time left to run the evaluator"));
        }
        let (context, report) = (format!("{folder}/context.json"), format!("{folder}/report.json"));
        let told = self.context(place.sandbox.workdir(), &place.calls).to_string();
        let write = place.sandbox.write_file(&context, told.as_bytes(), false);
        let written = self.unless_stopped(write).await?;
        written.map_err(|error| crate::maker::sandbox_failure(error.to_string()))?;
        let mut env = env.clone();
        env.insert("POLAR_CONTEXT".to_owned(), context);
        env.insert("POLAR_REPORT".to_owned(), report.clone());
        let limit = self.runner.config.output_limit;
        let run = self.run_graded(place, command, workdir, &env, limit).await?;
        match run.exit_code(place.seconds) {
            Ok(0) => {}
            Ok(code) => {
                return Ok(Verdict::failed(format!(
                    "the evaluator ended with exit code {code}, so its report does not count; see \
                     grader.log, and have the command write a report for failed work too"
                )));
            }
            Err(why) => return Ok(Verdict::failed(why)),
        }
        let read = ["cat", "--", &report].map(str::to_owned).to_vec();
        let told = match self.read_graded(place, None, read, MOST_REPORT).await? {
            (ExecEnd::Exited(0), Ok(bytes)) => answer::read(&bytes),
            _ => Err("there is none, or it cannot be read".to_owned()),
        };
        let verdict = told.and_then(|told| place.calls.verdict(&told));
        Ok(verdict.unwrap_or_else(|problem| {
            Verdict::failed(format!("the evaluator's report ($POLAR_REPORT): {problem}"))
        }))
    }

    /// Runs a shell command where the work is graded, and adds its output to grader.log.
    pub(super) async fn run_graded(
        &self,
        place: &Place<'_>,
        command: &str,
        workdir: Option<&str>,
        env: &BTreeMap<String, String>,
        limit: u64,
    ) -> Result<Run, Stop> {
        let number = place.next_command();
        let exec = Exec {
            argv: vec!["sh".to_owned(), "-c".to_owned(), command.to_owned()],
            workdir: workdir.map(str::to_owned),
            // The sandbox's own environment and this: nothing of the harness's, least of all
            // its secret.
            env: env.clone(),
            stdin: None,
            timeout: place.left(),
            stdout: self.folder.log(&format!("grader-{number}.out")),
            stderr: self.folder.log(&format!("grader-{number}.err")),
            output_limit: limit,
        };
        let (stdout, stderr) = (exec.stdout.clone(), exec.stderr.clone());
        let kills = memory_kills();
        let end = self.exec_in(place.sandbox, "evaluating", exec).await;
        let out_of_memory = memory_kills() > kills;
        let log = self.folder.artifact("grader.log");
        if let Err(error) = join_logs(&log, &stdout, &stderr, self.runner.config.output_limit) {
            tracing::warn!(session = %self.lease.session_id, %error, "grader.log not kept");
        }
        Ok(Run { end: end?, out_of_memory, stdout })
    }

    /// Runs a small program of ours there, such as one that reads a file; how it ended, and what
    /// it printed. It is no part of grader.log.
    pub(super) async fn read_graded(
        &self,
        place: &Place<'_>,
        workdir: Option<&str>,
        argv: Vec<String>,
        limit: u64,
    ) -> Result<(ExecEnd, io::Result<Vec<u8>>), Stop> {
        let stdout = self.folder.log("results.out");
        let exec = Exec {
            argv,
            workdir: workdir.map(str::to_owned),
            env: BTreeMap::new(),
            stdin: None,
            timeout: place.left(),
            stdout: stdout.clone(),
            stderr: self.folder.log("results.err"),
            output_limit: limit,
        };
        let end = self.exec_in(place.sandbox, "reading what the evaluator found", exec).await?;
        Ok((end, std::fs::read(stdout)))
    }
}

/// Why there is no verdict where what was found could not be read in time: that says nothing of
/// the work.
pub(super) fn too_late(path: &str) -> String {
    format!(
        "there was no time left to read {path} (budgets.grade_seconds); raise it, or evaluate less"
    )
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

fn exit_code(end: ExecEnd, out_of_memory: bool, seconds: f64) -> Result<i32, String> {
    match end {
        ExecEnd::TimedOut => Err(format!(
            "the evaluator ran longer than budgets.grade_seconds ({seconds} s); raise it, or \
             evaluate less"
        )),
        ExecEnd::Exited(KILLED) if out_of_memory => {
            Err("the evaluator was killed (exit code 137) while the machine or the sandbox was \
             out of memory, which is no verdict on the work; give it more, or grade fewer \
             sessions at a time"
                .to_owned())
        }
        ExecEnd::Exited(code) => Ok(code),
    }
}

/// The reward that a command's end and output stand for.
fn reward_of(source: RewardSource, ended: &Ended<'_>, before: &Found) -> Verdict {
    let code = match exit_code(ended.end, ended.out_of_memory, ended.seconds) {
        Ok(code) => code,
        Err(why) => return Verdict::failed(why),
    };
    match (source, code) {
        (RewardSource::ExitCode, 0) => Verdict::of(1.0),
        // A shell's own codes for a command it cannot run. It was looked for before the
        // agent ran, so this is what the agent made of it.
        (RewardSource::ExitCode, 126 | 127) => Verdict::zero(not_run(code, before)),
        (RewardSource::ExitCode, KILLED) => Verdict::zero(
            "the evaluator was killed (exit code 137), and not for want of memory; if \
             it is not the work that kills it, see grader.log",
        ),
        (RewardSource::ExitCode, _) => Verdict::of(0.0),
        (RewardSource::Stdout, 0) => {
            match last_number(&tail_lines(ended.stdout).unwrap_or_default()) {
                Some(reward) => Verdict::of(reward),
                None => Verdict::failed(format!(
                    "the evaluator printed no line that is a finite number and nothing else \
                     within the last {} KiB of its stdout; print the reward last",
                    TAIL >> 10
                )),
            }
        }
        // What the lowest reward is, only the task knows.
        (RewardSource::Stdout | RewardSource::Report, code) => Verdict::failed(format!(
            "the evaluator ended with exit code {code}, so its number does not count; see \
             grader.log, and have the command print a reward for failed work too, as in \
             `./grade || echo 0`"
        )),
    }
}

pub(super) fn not_run(code: i32, before: &Found) -> String {
    let why = match before {
        Found::There(program) => format!("although `{program}` was there before the agent ran"),
        Found::Absent(program) => format!(
            "nor was `{program}` there before the agent ran; if it is not the agent's to make, \
             mend evaluator.command"
        ),
        Found::Unknown => "after the agent ran".to_owned(),
    };
    format!("the evaluator could not be run (exit code {code}), {why}; see grader.log")
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

/// Adds the output of a command to the log, at most so many bytes of the end of each part.
fn join_logs(log: &Path, stdout: &Path, stderr: &Path, limit: u64) -> io::Result<()> {
    let mut joined = OpenOptions::new().create(true).append(true).open(log)?;
    for (title, part) in [("stdout", stdout), ("stderr", stderr)] {
        writeln!(joined, "── {title} ──")?;
        let mut part = match File::open(part) {
            Ok(part) => part,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let skipped = part.metadata()?.len().saturating_sub(limit);
        part.seek(SeekFrom::Start(skipped))?;
        io::copy(&mut part, &mut joined)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grade(source: RewardSource, end: ExecEnd, out_of_memory: bool) -> Verdict {
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
