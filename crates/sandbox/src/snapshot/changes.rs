//! What changed between two snapshots, as whole files.
//!
//! A patch needs a base that is the same to the byte and something to apply it with; whole
//! files need neither. They come out of the host's own repository, never out of the folder.

use super::{ACTION, LONGEST, Snapshots, git_said, not_read, not_run};
use crate::{Change, Content, SandboxError};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::Stdio;

/// Bytes of names that a comparison may have.
const MOST_NAMES: u64 = 256 << 20;

impl Snapshots {
    /// What differs between two snapshots. Contents of more than `most` bytes together are
    /// an error.
    pub(crate) async fn changes(
        &self,
        from: &str,
        to: &str,
        most: u64,
    ) -> Result<Vec<Change>, SandboxError> {
        for name in [from, to] {
            if !self.repository.join("refs/heads").join(name).exists() {
                return Err(SandboxError::new(ACTION, format!("there is no snapshot {name}")));
            }
        }
        if self.are_same(from, to) {
            return Ok(vec![]);
        }
        let range = [format!("refs/heads/{from}"), format!("refs/heads/{to}")];
        let listed = self
            .git(
                &["diff-tree", "-r", "-z", "--raw", "--no-renames", &range[0], &range[1]],
                MOST_NAMES,
            )
            .await?;
        let entries = entries(&listed)
            .ok_or_else(|| SandboxError::new(ACTION, "git's list of changes is not as expected"))?;
        self.with_contents(entries, most).await
    }

    /// Reads the contents from the repository, in the order of the entries.
    async fn with_contents(
        &self,
        entries: Vec<Entry>,
        most: u64,
    ) -> Result<Vec<Change>, SandboxError> {
        let mut command = self.command(&["cat-file", "--batch", "--buffer"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut git = command.spawn().map_err(not_run)?;
        let (Some(stdin), Some(stdout)) = (git.stdin.take(), git.stdout.take()) else {
            return Err(not_run(io::Error::other("no pipe")));
        };
        let stdin = std::fs::File::from(stdin.into_owned_fd().map_err(not_run)?);
        let stdout = std::fs::File::from(stdout.into_owned_fd().map_err(not_run)?);
        let asked: Vec<u8> = entries
            .iter()
            .filter(|entry| entry.now.is_some())
            .flat_map(|entry| format!("{}\n", entry.object).into_bytes())
            .collect();
        // Git answers while it still reads.
        let asking = tokio::task::spawn_blocking(move || {
            let mut stdin = stdin;
            stdin.write_all(&asked)
        });
        let reading = tokio::task::spawn_blocking(move || read_contents(entries, stdout, most));
        // Giving up kills git, which ends both.
        let (changes, said) = tokio::time::timeout(LONGEST, async {
            let changes = reading.await.map_err(io::Error::other)?;
            // Where it was not read to its end, git is to end all the same.
            if changes.is_err() {
                git.start_kill()?;
            }
            let _ = asking.await.map_err(io::Error::other)?;
            Ok::<_, io::Error>((changes, git.wait_with_output().await?))
        })
        .await
        .map_err(|_| SandboxError::retryable(ACTION, "takes too long"))?
        .map_err(not_run)?;
        match changes {
            Ok(changes) if said.status.success() => Ok(changes),
            Ok(_) => Err(git_said("cat-file", &said.stderr)),
            Err(problem) => Err(not_read(&problem)),
        }
    }
}

/// A path that differs.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    path: Vec<u8>,
    existed: bool,
    object: String,
    now: Option<Mode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    File,
    Executable,
    Link,
}

/// Reads `:MODE MODE OBJECT OBJECT STATUS NUL PATH NUL` and so on.
fn entries(listed: &[u8]) -> Option<Vec<Entry>> {
    let mut fields = listed.split(|byte| *byte == 0);
    let mut entries = Vec::new();
    loop {
        let head = fields.next()?;
        if head.is_empty() {
            return Some(entries);
        }
        let head = std::str::from_utf8(head).ok()?.strip_prefix(':')?;
        let mut words = head.split(' ');
        let (before, after) = (words.next()?, words.next()?);
        let object = words.nth(1)?.to_owned();
        let now = match after {
            "000000" => None,
            "100755" => Some(Mode::Executable),
            "120000" => Some(Mode::Link),
            _ => Some(Mode::File),
        };
        let path = fields.next()?.to_vec();
        entries.push(Entry { path, existed: before != "000000", object, now });
    }
}

fn read_contents(entries: Vec<Entry>, stdout: impl Read, most: u64) -> io::Result<Vec<Change>> {
    let mut stdout = BufReader::new(stdout);
    let mut left = most;
    let mut changes = Vec::with_capacity(entries.len());
    for Entry { path, existed, object: _, now } in entries {
        let now = match now {
            None => None,
            Some(mode) => {
                let bytes = read_object(&mut stdout, &mut left, most)?;
                Some(match mode {
                    Mode::Link => Content::Link(bytes),
                    Mode::File => Content::File { bytes, executable: false },
                    Mode::Executable => Content::File { bytes, executable: true },
                })
            }
        };
        changes.push(Change { path, existed, now });
    }
    Ok(changes)
}

/// One answer: `OBJECT TYPE SIZE`, a line feed, the bytes, a line feed.
fn read_object(stdout: &mut impl BufRead, left: &mut u64, most: u64) -> io::Result<Vec<u8>> {
    let mut head = String::new();
    stdout.read_line(&mut head)?;
    let size: u64 = head
        .trim_end()
        .rsplit(' ')
        .next()
        .and_then(|size| size.parse().ok())
        .ok_or_else(|| io::Error::other(format!("git answered {head:?} for a file")))?;
    *left = left.checked_sub(size).ok_or_else(|| {
        io::Error::other(format!("the changed files hold more than {most} bytes"))
    })?;
    let mut bytes = vec![0; usize::try_from(size).map_err(io::Error::other)?];
    stdout.read_exact(&mut bytes)?;
    stdout.read_exact(&mut [0])?;
    Ok(bytes)
}
