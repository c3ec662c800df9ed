//! The helper's program, as it was when the provider was made.
//!
//! A build or an update may replace or remove the file under a running node, whose
//! sandboxes must go on. So the file itself is held open, and when its name no longer
//! leads to it, it is put where nobody else writes.

use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Writes its stdin to `$1`, to be executed.
const WRITE: &str = r#"cat >"$1" && chmod 755 "$1""#;

#[derive(Debug)]
pub(crate) struct Program {
    path: PathBuf,
    file: File,
    copy: PathBuf,
    /// Whether `copy` was made by this one.
    copied: Mutex<bool>,
}

impl Program {
    /// Holds the program at `path`. `copy` is where it may be put; what an earlier process
    /// left there is removed.
    pub(crate) fn open(path: &Path, copy: PathBuf) -> io::Result<Program> {
        for earlier in [&copy, &unfinished(&copy)] {
            match fs::remove_file(earlier) {
                Err(problem) if problem.kind() != io::ErrorKind::NotFound => return Err(problem),
                _ => {}
            }
        }
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a file"));
        }
        Ok(Program { path: path.to_owned(), file, copy, copied: Mutex::new(false) })
    }

    /// A path that leads to the program.
    pub(crate) fn path(&self) -> io::Result<&Path> {
        let held = self.file.metadata()?;
        let same = |found: fs::Metadata| (found.dev(), found.ino()) == (held.dev(), held.ino());
        if fs::metadata(&self.path).is_ok_and(same) {
            return Ok(&self.path);
        }
        let mut copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
        // Another process that looks after this folder may have removed it.
        if !*copied || !self.copy.is_file() {
            self.make_copy()?;
            *copied = true;
        }
        Ok(&self.copy)
    }

    /// To be called by one at a time, since all share a place in the file.
    ///
    /// Another process writes it. What is open for writing can't be executed, and what this one
    /// starts meanwhile has all that is open here until it has become another program.
    fn make_copy(&self) -> io::Result<()> {
        let folder = self.copy.parent().ok_or_else(|| io::Error::other("no folder"))?;
        fs::create_dir_all(folder)?;
        let unfinished = unfinished(&self.copy);
        let mut file = self.file.try_clone()?;
        file.rewind()?;
        let mut writing = Command::new("/bin/sh");
        writing.args(["-c", WRITE, "sh"]).arg(&unfinished);
        let written = writing.stdin(file).stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
        if !written.status.success() {
            let said = String::from_utf8_lossy(&written.stderr);
            return Err(io::Error::other(format!("{}: {}", written.status, said.trim())));
        }
        fs::rename(&unfinished, &self.copy)
    }
}

/// Where a copy lies until it is whole.
fn unfinished(copy: &Path) -> PathBuf {
    copy.with_extension("new")
}

impl Drop for Program {
    fn drop(&mut self) {
        if *self.copied.get_mut().unwrap_or_else(PoisonError::into_inner) {
            // What stays is removed at the next start.
            let _ = fs::remove_file(&self.copy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn promise_7_a_copy_is_made_when_needed_and_goes_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("polar"), folder.path().join("state/helper"));
        fs::create_dir(folder.path().join("state")).unwrap();
        fs::write(&path, "first").unwrap();
        fs::write(&copy, "of an earlier process").unwrap();
        let program = Program::open(&path, copy.clone()).unwrap();
        assert!(!copy.exists());
        assert_eq!(program.path().unwrap(), path);

        let replacement = folder.path().join("new");
        fs::write(&replacement, "second").unwrap();
        fs::rename(&replacement, &path).unwrap();
        for _ in 0..2 {
            assert_eq!(program.path().unwrap(), copy);
            assert_eq!(fs::read_to_string(&copy).unwrap(), "first");
            assert_eq!(fs::metadata(&copy).unwrap().mode() & 0o777, 0o755);
            fs::remove_file(&copy).unwrap();
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(program.path().unwrap(), copy);
        drop(program);
        assert!(!copy.exists());
    }

    /// As when sandboxes start and the program was replaced: whoever forks meanwhile must not keep
    /// the copy from being run.
    #[test]
    fn a_copy_can_be_run_while_others_start_programs() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("polar"), folder.path().join("helper"));
        fs::copy("/bin/true", &path).unwrap();
        let program = Program::open(&path, copy).unwrap();
        fs::remove_file(&path).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                // With much to do between fork and exec, as where a command gets groups.
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let mut other = Command::new("/bin/true");
                        other.current_dir("/").env_clear().status().unwrap();
                    }
                });
            }
            let run = |_| {
                let copy = program.path().unwrap();
                let ran = Command::new(copy).status();
                fs::remove_file(copy).unwrap();
                ran.map(|status| status.success())
            };
            let all: Vec<_> = (0..300).map(run).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(all.iter().all(|ran| matches!(ran, Ok(true))), "{all:?}");
        });
    }
}
