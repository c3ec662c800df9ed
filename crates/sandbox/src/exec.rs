//! What running a command has in common on all providers that start it as a child.

use crate::output::keep;
use crate::{Exec, SandboxError};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;
use tokio::process::{ChildStderr, ChildStdout};
use tokio::task::JoinSet;

/// How long the pipes of a tree that is dead may take to be read to their end.
const DRAIN: Duration = Duration::from_secs(10);

/// Both outputs on their way to their files; given up when dropped.
#[derive(Debug)]
pub(crate) struct Outputs(JoinSet<io::Result<()>>);

impl Outputs {
    pub(crate) fn keep(stdout: ChildStdout, stderr: ChildStderr, exec: &Exec) -> Outputs {
        let mut tasks = JoinSet::new();
        tasks.spawn(keep(stdout, exec.stdout.clone(), exec.output_limit));
        tasks.spawn(keep(stderr, exec.stderr.clone(), exec.output_limit));
        Outputs(tasks)
    }

    /// Waits until all is in the files. To be called when no writer lives any more.
    pub(crate) async fn finish(mut self) -> Result<(), SandboxError> {
        let all = async {
            while let Some(task) = self.0.join_next().await {
                task.map_err(io::Error::other)??;
            }
            Ok::<(), io::Error>(())
        };
        let problem = match tokio::time::timeout(DRAIN, all).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(problem)) => problem.to_string(),
            Err(_) => "the pipe stays open after the command's end".into(),
        };
        Err(SandboxError::retryable("keep output", problem))
    }
}

/// A file without a name that holds what goes to stdin: a command that doesn't read it
/// blocks nobody.
pub(crate) fn stdin_file(content: &[u8]) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

/// The code a shell would give.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}
