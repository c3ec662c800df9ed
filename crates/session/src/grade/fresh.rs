//! The second sandbox: made from what the task says alone, closed, then given the work.
//!
//! Nothing of the agent's sandbox is reused: neither its processes nor its files outside of
//! what crosses, nor its environment. The network that set-up steps may need is taken away
//! before anything of the agent's is there.

use super::Verdict;
use super::artefacts::{Crossing, Packed};
use super::labels;
use crate::attempt::Attempt;
use crate::failure::Stop;
use crate::maker::{Deadline, sandbox_failure};
use crate::removal::destroy;
use crate::warming::Warming;
use polar_sandbox::{Change, Exec, ExecEnd, Sandbox, SandboxError};
use polar_types::{GradingSandbox, HackLabel, Outcome, Side, Stage, WORK};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often making a grader's sandbox is tried: the agent's work is worth more than a start.
const TRIES: u32 = 3;

/// Removes the paths on its stdin, each ended by NUL, and the folders that are empty then.
const REMOVE: &str = r#"xargs -0 sh -c 'for path; do
rm -rf -- "$path"
case $path in */*) rmdir -p -- "${path%/*}" 2>/dev/null ;; esac
done; true' sh"#;
/// Unpacks the archive on its stdin in the folder `$1`.
const UNPACK: &str = r#"command -v tar >/dev/null || { echo "there is no tar in the image" >&2; exit 12; }
cd "$1" && exec tar -xof -"#;

/// What a sandbox says that holds more than it may. An agent can fill its own to the brim.
const NO_ROOM: &str = "holds more than its `storage_mb`";

/// How keeping the diff ended.
pub(super) enum Kept {
    Whole,
    /// Unless its sandbox is why, something about the work folder that stays so: it is as the agent
    /// left it.
    Not(SandboxError),
    /// Its time was over before, which a machine that is busy may be why of: no verdict.
    Late(String),
}

impl Attempt {
    /// Writes the diff of the work folder to the attempt's folder. It is also the moment as of
    /// which changes cross.
    pub(super) async fn keep_diff(&self) -> Result<Kept, Stop> {
        let seconds = self.lease.task.budgets.grade_seconds;
        let limit = Duration::from_secs_f64(seconds);
        let sandbox = self.open_sandbox()?;
        let diff = self.unless_stopped(tokio::time::timeout(limit, sandbox.diff())).await?;
        let error = match diff {
            Ok(Ok(patch)) => match std::fs::write(self.folder.artifact("workspace.diff"), patch) {
                Ok(()) => return Ok(Kept::Whole),
                Err(error) => {
                    tracing::warn!(session = %self.lease.session_id, %error,
                            "workspace.diff not kept");
                    return Ok(Kept::Whole);
                }
            },
            Ok(Err(error)) => error,
            Err(_) => {
                let late = format!(
                    "comparing the work folder took longer than budgets.grade_seconds ({seconds} \
                     s); raise it, or keep large data outside of it"
                );
                tracing::warn!(session = %self.lease.session_id, late, "workspace.diff not kept");
                return Ok(Kept::Late(late));
            }
        };
        tracing::warn!(session = %self.lease.session_id, %error, "workspace.diff not kept");
        Ok(Kept::Not(error))
    }

    /// Gets the agent's work to where it is graded, and looks for marks of hacks in it. A
    /// verdict comes back where the work itself is why that cannot be done.
    pub(super) async fn bring_work(
        &mut self,
        kept: Kept,
        labels: &mut Vec<HackLabel>,
    ) -> Result<Result<(), Verdict>, Stop> {
        let task = &self.lease.task;
        let fresh = task.grading_sandbox() == GradingSandbox::Fresh;
        let is_whole = matches!(kept, Kept::Whole);
        let most = u64::from(task.grading.max_mb) << 20;
        let changes = match kept {
            Kept::Whole => self.unless_stopped(self.open_sandbox()?.changes(most)).await?,
            Kept::Not(error) => Err(error),
            Kept::Late(late) if fresh && task.grading.patch => {
                return Ok(Err(Verdict::failed(late)));
            }
            Kept::Late(late) => Err(SandboxError::retryable("compare work folder", late)),
        };
        let is_whole = is_whole && changes.is_ok();
        let changes = match changes {
            Ok(changes) => changes,
            Err(_) if !fresh || !task.grading.patch => Vec::new(),
            Err(error) if error.retryable => return Err(sandbox_failure(error.to_string())),
            Err(error) => return Ok(Err(Verdict::zero(too_much(&error, task.grading.max_mb)))),
        };
        labels.extend(labels::of_changes(&changes, &task.evaluator));
        if !fresh {
            if is_whole {
                self.keep_changes(&changes).await?;
            }
            return Ok(Ok(()));
        }
        let mut crossing = Crossing::new(most);
        if task.grading.patch {
            crossing.add_changes(&changes, &task.grading.exclude);
        }
        for path in &task.grading.files.clone() {
            self.waits(Stage::Grade, "the files to be graded");
            if let Err(verdict) = self.collect_files(path, &mut crossing).await? {
                return Ok(Err(verdict));
            }
        }
        match crossing.pack() {
            Ok(packed) => {
                self.keep_packed(&packed);
                self.fill_grader(&packed).await
            }
            Err(error) => {
                Ok(Err(Verdict::zero(format!("the work cannot be carried over: {error}"))))
            }
        }
    }

    /// Keeps the work of a session that nobody grades now, so that it may be graded later. What
    /// cannot be kept is no failure.
    pub(super) async fn keep_work(&self, kept: Kept) -> Result<(), Stop> {
        let most = u64::from(self.lease.task.grading.max_mb) << 20;
        if !matches!(kept, Kept::Whole) {
            return Ok(());
        }
        match self.unless_stopped(self.open_sandbox()?.changes(most)).await? {
            Ok(changes) => self.keep_changes(&changes).await,
            Err(error) => {
                tracing::debug!(session = %self.lease.session_id, %error, "work not kept");
                Ok(())
            }
        }
    }

    async fn keep_changes(&self, changes: &[Change]) -> Result<(), Stop> {
        let grading = &self.lease.task.grading;
        let mut crossing = Crossing::new(u64::from(grading.max_mb) << 20);
        if grading.patch {
            crossing.add_changes(changes, &grading.exclude);
        }
        for path in &grading.files {
            if self.collect_files(path, &mut crossing).await?.is_err() {
                return Ok(());
            }
        }
        match crossing.pack() {
            Ok(packed) => self.keep_packed(&packed),
            Err(error) => {
                tracing::debug!(session = %self.lease.session_id, %error, "work not kept");
            }
        }
        Ok(())
    }

    fn keep_packed(&self, packed: &Packed) {
        if let Err(error) = packed.save(&self.folder.artifact(WORK)) {
            tracing::warn!(session = %self.lease.session_id, %error, "work not kept");
            // A part of it is not the work.
            let _ = std::fs::remove_file(self.folder.artifact(WORK));
        }
    }

    /// Has a grader's sandbox with the work in it. One that was made while the agent ran may be
    /// lost by now, or have failed for what no longer holds: that costs one made anew, and is
    /// no verdict.
    async fn fill_grader(&mut self, packed: &Packed) -> Result<Result<(), Verdict>, Stop> {
        let mut number = 1;
        loop {
            let warmed = self.warming.take();
            let was_begun = warmed.as_ref().is_some_and(Warming::is_begun);
            let filled = match self.ready_grader(warmed, number).await {
                Ok(()) => self.unpack(packed).await,
                Err(stop) => Err(stop),
            };
            let stop = match filled {
                Ok(filled) => return Ok(filled),
                Err(stop) => stop,
            };
            let again = match was_begun {
                true => matches!(stop, Stop::Ended(Outcome::Failed { .. })),
                false => number < TRIES && may_be_tried_again(&stop),
            };
            if !again {
                return Err(stop);
            }
            tracing::warn!(session = %self.lease.session_id, ?stop, "the grader's sandbox is made anew");
            if let Some(grader) = self.grader.take() {
                destroy(grader.as_ref()).await;
            }
            self.maker.leftovers.clear().await;
            number += 1;
        }
    }

    pub(super) async fn ready_grader(
        &mut self,
        warmed: Option<Warming>,
        number: u32,
    ) -> Result<(), Stop> {
        self.waits(Stage::Grade, "the grader's sandbox");
        let made = match warmed {
            Some(mut warming) => warming.ready().await?,
            None => {
                let deadline = Deadline::of_preparing(self.lease.task.budgets.prepare_seconds);
                let tell = |what: &str| self.waits(Stage::Grade, what);
                self.maker.make(self.grader_recipe(number), deadline, tell).await?
            }
        };
        self.times.grader = Some(made.start);
        self.grader = Some(made.sandbox);
        Ok(())
    }

    /// A verdict comes back where the sandbox has no room for the work, or no place.
    pub(super) async fn unpack(&self, packed: &Packed) -> Result<Result<(), Verdict>, Stop> {
        let Some(sandbox) = self.grader.as_deref() else { return Ok(Ok(())) };
        self.waits(Stage::Grade, "the work in the grader's sandbox");
        if !packed.removed.is_empty() {
            let argv = ["sh", "-c", REMOVE].map(str::to_owned).to_vec();
            if let Err(said) = self.carry(sandbox, argv, packed.removed.clone()).await? {
                let why = format!("removed files could not be removed for the grader: {said}");
                return Err(sandbox_failure(why));
            }
        }
        let workdir = sandbox.workdir().to_owned();
        for (folder, archive) in [(workdir.as_str(), &packed.work), ("/", &packed.files)] {
            let Some(archive) = archive.clone() else { continue };
            let argv = ["sh", "-c", UNPACK, "sh", folder].map(str::to_owned).to_vec();
            if let Err(said) = self.carry(sandbox, argv, archive).await? {
                let why = format!("the work could not be unpacked in the grader's sandbox: {said}");
                return match is_the_works(&said) {
                    true => Ok(Err(Verdict::zero(why))),
                    false => Err(sandbox_failure(why)),
                };
            }
        }
        Ok(Ok(()))
    }

    /// Runs one of the scripts above; what it said where it failed.
    async fn carry(
        &self,
        sandbox: &dyn Sandbox,
        argv: Vec<String>,
        stdin: Vec<u8>,
    ) -> Result<Result<(), String>, Stop> {
        let (stdout, stderr) = (self.folder.log("crossing.out"), self.folder.log("crossing.err"));
        let exec = Exec {
            argv,
            workdir: None,
            env: BTreeMap::new(),
            stdin: Some(stdin),
            timeout: Duration::from_secs_f64(self.lease.task.budgets.prepare_seconds),
            stdout: stdout.clone(),
            stderr: stderr.clone(),
            output_limit: 1 << 16,
        };
        match self.exec_in(sandbox, "carrying the work to the grader", exec).await? {
            ExecEnd::Exited(0) => Ok(Ok(())),
            ExecEnd::Exited(_) => Ok(Err(crate::prepare::last_output(&stdout, &stderr))),
            ExecEnd::TimedOut => Ok(Err("it took longer than budgets.prepare_seconds".to_owned())),
        }
    }
}

/// Whether the work itself is why it could not be unpacked, so that another try ends the same.
fn is_the_works(said: &str) -> bool {
    // As when a folder of which files are excluded has become a file.
    let in_the_way = ["Is a directory", "Not a directory", "File exists", "File name too long"];
    said.contains(NO_ROOM) || in_the_way.iter().any(|words| said.contains(words))
}

fn may_be_tried_again(stop: &Stop) -> bool {
    let Stop::Ended(Outcome::Failed { side, class, .. }) = stop else { return false };
    *side == Side::Sandbox && class.is_retryable()
}

fn too_much(error: &SandboxError, most: u32) -> String {
    format!(
        "what changed in the work folder cannot be carried to the grader ({error}); at most {most} \
         MiB can (`grading.max_mb`)"
    )
}
