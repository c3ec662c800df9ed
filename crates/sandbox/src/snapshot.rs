//! What changed in a work folder, as a git patch.
//!
//! Snapshots are trees in a git repository of our own, on the host, fed entry by entry
//! by whoever can read the folder. The user's repository is never asked nor touched, its
//! ignore rules and attributes have no say, and git never opens a file of the sandbox.
//! Left out are only what a patch can't carry: `.git` folders, empty folders, sockets,
//! pipes and devices.

mod changes;
pub(crate) mod tree;

use crate::{SandboxError, lookup};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufWriter, Read, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// How long git may take for one snapshot or patch.
const LONGEST: Duration = Duration::from_secs(600);
const ACTION: &str = "compare work folder";

/// What a work folder may hold to be compared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) files: u64,
    /// Of all files together.
    pub(crate) bytes: u64,
    /// Of the patch.
    pub(crate) patch: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { files: 500_000, bytes: 4 << 30, patch: 256 << 20 }
    }
}

/// What a path of the work folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Executable,
    Link,
}

/// The snapshots of one work folder.
#[derive(Debug)]
pub(crate) struct Snapshots {
    repository: PathBuf,
    limits: Limits,
}

impl Snapshots {
    /// Nothing is made before the first snapshot.
    pub(crate) fn new(repository: PathBuf, limits: Limits) -> Self {
        Snapshots { repository, limits }
    }

    /// Takes a snapshot of what `read` gives, under a name; an earlier one is replaced.
    pub(crate) async fn take(
        &self,
        name: &'static str,
        read: impl FnOnce(&mut Sink) -> io::Result<()> + Send + 'static,
    ) -> Result<(), SandboxError> {
        if !self.repository.join("HEAD").exists() {
            self.make_repository().map_err(|problem| not_read(&problem))?;
        }
        let mut command = self.command(&["fast-import", "--quiet", "--done", "--force"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut git = command.spawn().map_err(not_run)?;
        let stdin = git.stdin.take().ok_or_else(|| not_run(io::Error::other("no pipe")))?;
        let stdin = stdin.into_owned_fd().map_err(not_run)?;
        let limits = self.limits;
        let feeding = tokio::task::spawn_blocking(move || {
            let mut sink = Sink::new(fs::File::from(stdin), limits);
            sink.start(name)?;
            read(&mut sink)?;
            sink.finish()
        });
        // Giving up kills git, which ends the feeding.
        let (fed, said) = tokio::time::timeout(LONGEST, async {
            let fed = feeding.await.map_err(io::Error::other)?;
            Ok::<_, io::Error>((fed, git.wait_with_output().await?))
        })
        .await
        .map_err(|_| SandboxError::retryable(ACTION, "takes too long"))?
        .map_err(not_run)?;
        match fed {
            // Git's own reason says more than the pipe it closed.
            Err(problem) if problem.kind() != io::ErrorKind::BrokenPipe => Err(not_read(&problem)),
            _ if said.status.success() => Ok(()),
            _ => Err(git_said("fast-import", &said.stderr)),
        }
    }

    /// What git takes for a repository, with nothing in it. Most work folders are small, and
    /// to run git for this takes as long as a snapshot.
    fn make_repository(&self) -> io::Result<()> {
        for folder in ["objects", "refs"] {
            fs::create_dir_all(self.repository.join(folder))?;
        }
        fs::write(self.repository.join("HEAD"), "ref: refs/heads/none\n")
    }

    /// Whether two snapshots hold the same. The id of a commit is that of its content, and
    /// content is all that ours differ in.
    fn are_same(&self, from: &str, to: &str) -> bool {
        let id = |name| fs::read(self.repository.join("refs/heads").join(name)).ok();
        id(from).is_some() && id(from) == id(to)
    }

    /// The patch from one snapshot to another.
    pub(crate) async fn patch(&self, from: &str, to: &str) -> Result<Vec<u8>, SandboxError> {
        let range = [format!("refs/heads/{from}"), format!("refs/heads/{to}")];
        let mut arguments = vec!["diff", "--binary", "--full-index", "--find-renames"];
        arguments.extend(["--no-color", "--no-ext-diff", "--no-textconv"]);
        arguments.extend(range.iter().map(String::as_str));
        arguments.push("--");
        if !self.repository.join(&range[0]).exists() {
            return Err(SandboxError::new(ACTION, "the base was never marked"));
        }
        if self.are_same(from, to) {
            return Ok(vec![]);
        }
        self.git(&arguments, self.limits.patch).await
    }

    /// Runs git to its end; gives what it printed, which may not be longer than `limit`.
    async fn git(&self, arguments: &[&str], limit: u64) -> Result<Vec<u8>, SandboxError> {
        let mut command = self.command(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut git = command.spawn().map_err(not_run)?;
        let stdout = git.stdout.take().ok_or_else(|| not_run(io::Error::other("no pipe")))?;
        let mut printed = vec![];
        let read = async {
            use tokio::io::AsyncReadExt;
            stdout.take(limit + 1).read_to_end(&mut printed).await?;
            if printed.len() as u64 > limit {
                return Ok(None);
            }
            git.wait_with_output().await.map(Some)
        };
        let outcome = tokio::time::timeout(LONGEST, read)
            .await
            .map_err(|_| SandboxError::retryable(ACTION, "takes too long"))?;
        match outcome.map_err(not_run)? {
            Some(said) if said.status.success() => Ok(printed),
            Some(said) => Err(git_said(arguments[0], &said.stderr)),
            None => Err(SandboxError::new(
                ACTION,
                format!("the patch is longer than {limit} bytes; keep large outputs elsewhere"),
            )),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut command = lookup::command(OsStr::new("git"), Some(&path));
        // Names that only other systems reserve are ordinary here.
        for setting in ["core.protectNTFS=false", "core.protectHFS=false", "diff.renameLimit=4000"]
        {
            command.args(["-c", setting]);
        }
        command.args(arguments).env_clear().kill_on_drop(true).stderr(Stdio::piped());
        command.env("PATH", &path);
        command.env("GIT_DIR", &self.repository).env("LC_ALL", "C.UTF-8");
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        command.env("HOME", "/nonexistent").env("GIT_ATTR_NOSYSTEM", "1");
        command
    }
}

/// The machine's fault, never the work's.
fn not_run(problem: io::Error) -> SandboxError {
    let message = format!("cannot run git: {problem}; `apt-get install git` gives it");
    SandboxError::retryable(ACTION, message)
}

/// Why a work folder could not be read: what is in it, or what lies between it and the node.
fn not_read(problem: &io::Error) -> SandboxError {
    use io::ErrorKind::{ConnectionAborted, StorageFull, UnexpectedEof};
    let retryable = matches!(problem.kind(), ConnectionAborted | StorageFull | UnexpectedEof);
    SandboxError { retryable, ..SandboxError::new(ACTION, problem) }
}

fn git_said(what: &str, said: &[u8]) -> SandboxError {
    let said = String::from_utf8_lossy(said);
    let message = format!("git {what}: {}", said.trim());
    // The node's disk, which the work does not lie on for every kind of sandbox.
    let retryable = said.contains("No space left on device");
    SandboxError { retryable, ..SandboxError::new(ACTION, message) }
}

/// Takes the entries of one snapshot, in any order.
pub(crate) struct Sink {
    git: BufWriter<fs::File>,
    limits: Limits,
    files: u64,
    bytes: u64,
}

impl Sink {
    fn new(git: fs::File, limits: Limits) -> Self {
        Sink { git: BufWriter::with_capacity(64 << 10, git), limits, files: 0, bytes: 0 }
    }

    fn start(&mut self, name: &str) -> io::Result<()> {
        let git = &mut self.git;
        writeln!(git, "feature done\nreset refs/heads/{name}\ncommit refs/heads/{name}")?;
        writeln!(git, "committer polar <polar> 0 +0000\ndata 0\ndeleteall")
    }

    /// Adds a file, or a link with its target as content. `content` gives `size` bytes;
    /// fewer, when the file shrinks meanwhile, are filled with zeros.
    pub(crate) fn add(
        &mut self,
        path: &[u8],
        kind: Kind,
        size: u64,
        content: impl Read,
    ) -> io::Result<()> {
        if left_out(path, kind) {
            return Ok(());
        }
        self.files += 1;
        self.bytes = self.bytes.saturating_add(size);
        if self.files > self.limits.files || self.bytes > self.limits.bytes {
            let Limits { files, bytes, .. } = self.limits;
            return Err(io::Error::other(format!(
                "the work folder holds more than {files} files or {bytes} bytes, \
                 too much to be compared; keep large data outside of it"
            )));
        }
        let mode = match kind {
            Kind::File => "100644",
            Kind::Executable => "100755",
            Kind::Link => "120000",
        };
        write!(self.git, "M {mode} inline ")?;
        self.git.write_all(&quoted(path))?;
        writeln!(self.git, "\ndata {size}")?;
        io::copy(&mut content.chain(io::repeat(0)).take(size), &mut self.git)?;
        writeln!(self.git)
    }

    /// Adds another name for a file that was added before.
    pub(crate) fn copy(&mut self, from: &[u8], to: &[u8]) -> io::Result<()> {
        if left_out(from, Kind::File) || left_out(to, Kind::File) {
            return Ok(());
        }
        self.files += 1;
        self.git.write_all(b"C ")?;
        self.git.write_all(&quoted(from))?;
        self.git.write_all(b" ")?;
        self.git.write_all(&quoted(to))?;
        writeln!(self.git)
    }

    fn finish(mut self) -> io::Result<()> {
        writeln!(self.git, "done")?;
        self.git.flush()
    }
}

/// What git refuses to have in a tree.
fn left_out(path: &[u8], kind: Kind) -> bool {
    let mut parts = path.split(|byte| *byte == b'/');
    let link = kind == Kind::Link && path.to_ascii_lowercase().ends_with(b".gitmodules");
    link || parts.any(|part| part.eq_ignore_ascii_case(b".git"))
}

/// A path as git's import reads it, whatever bytes it has.
fn quoted(path: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for byte in path {
        match byte {
            b'"' | b'\\' => quoted.extend([b'\\', *byte]),
            0x20..0x7f => quoted.push(*byte),
            other => quoted.extend(format!("\\{other:03o}").bytes()),
        }
    }
    quoted.push(b'"');
    quoted
}
