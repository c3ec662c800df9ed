//! The steps by which a task sets a sandbox up.

use super::last_output;
use crate::failure::Stop;
use crate::hints;
use crate::maker::{Deadline, Maker, sandbox_failure};
use crate::report::clip_end;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use polar_sandbox::{Exec, ExecEnd, Sandbox, SandboxError};
use polar_types::{Encoding, ErrorClass, PrepareStep, Side};
use std::collections::BTreeMap;
use std::time::Duration;

/// Takes out of the repository in `$1` what its checked-out commit does not build upon.
const SCRUB_GIT: &str = include_str!("scrub_git.sh");
/// Before a step is run once more; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

impl Maker {
    /// Does the steps in order, up to the first that fails.
    pub(crate) async fn set_up(
        &self,
        deadline: Deadline,
        sandbox: &dyn Sandbox,
        steps: &[PrepareStep],
    ) -> Result<(), Stop> {
        for (index, step) in steps.iter().enumerate() {
            // Each file of an upload is a step, which nobody has written down.
            let files = steps.iter().filter(|step| matches!(step, PrepareStep::WriteFile { .. }));
            let with_files = if files.count() > 1 { ", each file counted" } else { "" };
            let doing = format!("set-up step {} of {}{with_files}", index + 1, steps.len());
            match step {
                PrepareStep::WriteFile { path, content, encoding, executable } => {
                    let bytes = decode(content, *encoding)
                        .map_err(|error| sandbox_failure(format!("{doing}, {path}: {error}")))?;
                    let write = sandbox.write_file(path, &bytes, *executable);
                    self.within(deadline, &format!("doing {doing}"), write)
                        .await?
                        .map_err(|error| step_failure(&doing, &error))?;
                }
                PrepareStep::Exec { command, workdir, env, attempts } => {
                    let argv = ["sh", "-c", command].map(str::to_owned).to_vec();
                    let step = Step { doing: &doing, name: command, argv, attempts: *attempts };
                    self.command(deadline, sandbox, step, workdir.clone(), env).await?;
                }
                PrepareStep::ScrubGit { path } => {
                    let folder = path.as_deref().unwrap_or(".");
                    let argv = ["sh", "-c", SCRUB_GIT, "sh", folder].map(str::to_owned).to_vec();
                    let step = Step { doing: &doing, name: "scrub_git", argv, attempts: 1 };
                    self.command(deadline, sandbox, step, None, &BTreeMap::new()).await?;
                }
            }
        }
        Ok(())
    }

    /// Runs a step until it goes well, or has failed as often as it may.
    async fn command(
        &self,
        deadline: Deadline,
        sandbox: &dyn Sandbox,
        step: Step<'_>,
        workdir: Option<String>,
        env: &BTreeMap<String, String>,
    ) -> Result<(), Stop> {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        while let Err(failed) = self.run(deadline, sandbox, &step, workdir.clone(), env).await? {
            if attempt >= step.attempts {
                let times = match attempt {
                    1 => String::new(),
                    times => format!(", {times} times,"),
                };
                let (doing, name) = (step.doing, clip_end(step.name, 200));
                let message = format!("{doing}, `{name}`, ended{times} with {failed}");
                return Err(Stop::failed(Side::Sandbox, ErrorClass::Invalid, message));
            }
            let doing = format!("waiting to run {} again", step.doing);
            self.within(deadline, &doing, tokio::time::sleep(pause)).await?;
            pause *= 2;
            attempt += 1;
        }
        Ok(())
    }

    /// Runs a step once; how it ended and what it said, where it failed.
    async fn run(
        &self,
        deadline: Deadline,
        sandbox: &dyn Sandbox,
        step: &Step<'_>,
        workdir: Option<String>,
        env: &BTreeMap<String, String>,
    ) -> Result<Result<(), String>, Stop> {
        let (stdout, stderr) = (self.log("prepare.out"), self.log("prepare.err"));
        let exec = Exec {
            argv: step.argv.clone(),
            workdir,
            env: env.clone(),
            stdin: None,
            timeout: deadline.left(),
            stdout: stdout.clone(),
            stderr: stderr.clone(),
            output_limit: self.config.output_limit,
        };
        match self.exec(sandbox, step.doing, exec).await? {
            ExecEnd::Exited(0) => Ok(Ok(())),
            ExecEnd::Exited(code) => {
                let said = last_output(&stdout, &stderr);
                Ok(Err(format!(
                    "exit code {code}: {}{}",
                    clip_end(&said, 1000),
                    hints::failed_command(&self.runtime, code, &said)
                )))
            }
            ExecEnd::TimedOut => {
                let name = clip_end(step.name, 200);
                Err(deadline.passed(&format!("running {}, `{name}`", step.doing)))
            }
        }
    }
}

fn step_failure(doing: &str, error: &SandboxError) -> Stop {
    let class = if error.retryable { ErrorClass::Unavailable } else { ErrorClass::Invalid };
    Stop::failed(Side::Sandbox, class, format!("{doing}: {error}"))
}

/// A step that is a command.
struct Step<'a> {
    doing: &'a str,
    /// What it is called in an error.
    name: &'a str,
    argv: Vec<String>,
    /// Times that it may fail.
    attempts: u32,
}

fn decode(content: &str, encoding: Encoding) -> Result<Vec<u8>, String> {
    match encoding {
        Encoding::Utf8 => Ok(content.as_bytes().to_vec()),
        Encoding::Base64 => BASE64_STANDARD
            .decode(content.trim())
            .map_err(|error| format!("`content` is not base64 ({error}); encode it with padding")),
    }
}
