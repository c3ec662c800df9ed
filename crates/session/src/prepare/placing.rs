//! What a harness finds in its sandbox when it starts: its Python, its skills, its files.

use super::last_output;
use crate::attempt::Attempt;
use crate::failure::Stop;
use crate::harness::{Installation, InstalledPython, RenderedHarness};
use crate::maker::{Deadline, sandbox_failure};
use crate::report::clip_end;
use polar_sandbox::{Exec, ExecEnd};
use polar_types::{ErrorClass, RuntimeKind, Side};
use std::collections::BTreeMap;

/// Fails unless the Python that the program was installed with is here with all its parts.
const PYTHON_WORKS: &str = "import ctypes, socket, sqlite3, ssl";

/// Copies a skill and looks whether it is one. `$1` is where it lies, `$2` where it goes.
const COPY_SKILL: &str = r#"mkdir -p "$2" && cp -R "$1/." "$2" && test -f "$2/SKILL.md""#;

impl Attempt {
    /// Puts everything in place. The state of the work folder is what changes are told
    /// against, so this is the last thing before the harness.
    pub(super) async fn place(
        &self,
        deadline: Deadline,
        harness: &RenderedHarness,
        installation: Option<&Installation>,
    ) -> Result<(), Stop> {
        if let Some(python) = installation.and_then(|installation| installation.python.as_ref()) {
            self.check_python(deadline, python).await?;
        }
        for (from, to) in &harness.skill_folders {
            self.copy_skill(deadline, from, to).await?;
        }
        let files = self.write_files(harness);
        self.within(deadline, "writing the harness's files", files).await?
    }

    /// A sandbox of its own `/usr` may lack the Python or what that needs, and the program
    /// would only say that a file is missing.
    async fn check_python(&self, deadline: Deadline, python: &InstalledPython) -> Result<(), Stop> {
        let program = python.program.display().to_string();
        let (code, said) = self
            .try_out(deadline, "looking for its Python", &[&program, "-c", PYTHON_WORKS])
            .await?;
        if code == 0 {
            return Ok(());
        }
        let place = match &python.shown {
            Some(folder) => format!("the one in {}", folder.display()),
            None => "the one in the node's /usr".to_owned(),
        };
        let mend = match self.lease.task.runtime.kind {
            RuntimeKind::Local => "install it again with `polar harness install`",
            RuntimeKind::Docker | RuntimeKind::Podman | RuntimeKind::Apptainer => {
                "use an image with the same Python at the same place, or install the harness \
                 with one that needs nothing of the image, such as `uv python install` gives"
            }
        };
        Err(Stop::failed(
            Side::Sandbox,
            ErrorClass::Invalid,
            format!(
                "the harness was installed with the node's Python, {place}, which does not work \
                 in this sandbox ({}); {mend}",
                clip_end(said.trim(), 300)
            ),
        ))
    }

    async fn copy_skill(&self, deadline: Deadline, from: &str, to: &str) -> Result<(), Stop> {
        let argv = ["sh", "-c", COPY_SKILL, "sh", from, to];
        let (code, said) = self.try_out(deadline, "copying its skills", &argv).await?;
        if code == 0 {
            return Ok(());
        }
        Err(Stop::failed(
            Side::Sandbox,
            ErrorClass::Invalid,
            format!(
                "the skill in {from} could not be copied to {to}: {}; `path` of a skill is a \
                 folder in the sandbox with a SKILL.md, from its image or its set-up steps",
                match said.trim() {
                    "" => "there is no SKILL.md in it",
                    said => said,
                }
            ),
        ))
    }

    /// Runs a program in the sandbox; its exit code and what it printed.
    async fn try_out(
        &self,
        deadline: Deadline,
        doing: &str,
        argv: &[&str],
    ) -> Result<(i32, String), Stop> {
        let (stdout, stderr) = (self.folder.log("prepare.out"), self.folder.log("prepare.err"));
        let exec = Exec {
            argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
            workdir: None,
            env: BTreeMap::new(),
            stdin: None,
            timeout: deadline.left(),
            stdout: stdout.clone(),
            stderr: stderr.clone(),
            output_limit: self.runner.config.output_limit,
        };
        match self.exec(doing, exec).await? {
            ExecEnd::Exited(code) => Ok((code, last_output(&stdout, &stderr))),
            ExecEnd::TimedOut => Err(deadline.passed(doing)),
        }
    }

    async fn write_files(&self, harness: &RenderedHarness) -> Result<(), Stop> {
        let sandbox = self.open_sandbox()?;
        for file in &harness.files {
            sandbox
                .write_file(&file.path, file.content.as_bytes(), file.executable)
                .await
                .map_err(|error| sandbox_failure(error.to_string()))?;
        }
        sandbox.mark_base().await.map_err(|error| sandbox_failure(error.to_string()))
    }
}
