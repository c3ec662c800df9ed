//! One command as a plain process of this user.
//!
//! It leads a process group of its own and carries a mark in its environment. Its end is
//! the end of the group, of everything that descends from it, and of everything that
//! carries the mark, so that leaving the group, or the parent, is not enough to live on.

use crate::exec::{Outputs, exit_code, stdin_file};
use crate::lookup;
use crate::processes::{EXEC_MARK, SANDBOX_MARK, end_all, family, kill, marked};
use crate::spawner::Spawner;
use crate::{Exec, ExecEnd, SandboxError};
use rustix::process::Pid;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::process::Stdio;
use tokio::process::Child;
use tokio::time::{Instant, timeout_at};

/// Runs a command, whose `env` and `workdir` are complete, to the end of its whole tree.
pub(super) async fn run(
    mark: &str,
    spawner: &Spawner,
    exec: &Exec,
) -> Result<ExecEnd, SandboxError> {
    let deadline = Instant::now() + exec.timeout;
    let failed = |problem: io::Error| SandboxError::retryable("start command", problem);
    let Some((program, arguments)) = exec.argv.split_first() else {
        return Err(SandboxError::new("start command", "the command is empty"));
    };
    let exec_mark = new_mark()?;
    let path = exec.env.get("PATH").map(OsStr::new);
    let mut command = lookup::command(OsStr::new(program), path);
    command.args(arguments).env_clear().envs(&exec.env);
    command.env(SANDBOX_MARK, mark).env(EXEC_MARK, &exec_mark);
    if let Some(folder) = &exec.workdir {
        command.current_dir(folder);
    }
    let stdin = exec.stdin.as_deref().map(stdin_file).transpose().map_err(failed)?;
    command.stdin(stdin.map_or_else(Stdio::null, Stdio::from));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = match spawner.spawn(command).await {
        Ok(child) => child,
        Err(problem) => return not_started(program, &problem, exec).await,
    };
    let mut tree = Tree { root: id(&child), mark: exec_mark, is_over: false };
    let pipes = child.stdout.take().zip(child.stderr.take());
    let (stdout, stderr) = pipes.ok_or_else(|| failed(io::Error::other("no pipes")))?;
    let outputs = Outputs::keep(stdout, stderr, exec);
    let end = match timeout_at(deadline, child.wait()).await {
        Ok(status) => status.map(|status| ExecEnd::Exited(exit_code(status))),
        Err(_) => Ok(ExecEnd::TimedOut),
    };
    tree.is_over = end_all(|| tree.members()).await;
    if !tree.is_over {
        return Err(SandboxError::retryable("end command", "its processes cannot be killed"));
    }
    let end = end.map_err(|problem| SandboxError::retryable("run command", problem));
    let _ = child.wait().await;
    outputs.finish().await?;
    end
}

/// Everything a command started. Dropping it kills what is found at that moment, unless it was
/// seen that nothing is left.
struct Tree {
    root: Option<Pid>,
    mark: String,
    is_over: bool,
}

impl Tree {
    fn members(&self) -> HashSet<Pid> {
        let mut members = marked(EXEC_MARK, |mark| mark == self.mark);
        if let Some(root) = self.root {
            members.extend(family(root));
        }
        members
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // Killing takes parents away, which hides nothing: marks stay. Twice, for what
        // was forked during the first look.
        kill(&self.members());
        kill(&self.members());
    }
}

fn id(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()?).ok()?)
}

/// Nobody can guess it, so that no command can pass for another's.
pub(super) fn new_mark() -> Result<String, SandboxError> {
    let mut bytes = [0; 12];
    getrandom::fill(&mut bytes)
        .map_err(|problem| SandboxError::retryable("start command", problem))?;
    Ok(hex::encode(bytes))
}

/// What a shell does about a program that is not there or not a program.
async fn not_started(
    program: &str,
    problem: &io::Error,
    exec: &Exec,
) -> Result<ExecEnd, SandboxError> {
    let code = match problem.kind() {
        io::ErrorKind::NotFound => 127,
        io::ErrorKind::PermissionDenied => 126,
        _ => return Err(SandboxError::retryable("start command", problem)),
    };
    let line = format!("polar: {program}: {problem}\n");
    let kept = crate::output::keep(line.as_bytes(), exec.stderr.clone(), exec.output_limit).await;
    let kept = kept.and(crate::output::keep(&[][..], exec.stdout.clone(), 0).await);
    kept.map_err(|problem| SandboxError::retryable("keep output", problem))?;
    Ok(ExecEnd::Exited(code))
}
