//! The helper's program, as it was when the provider was made.
//!
//! A build or an update may replace or remove the file under a running node, whose
//! sandboxes must go on. So the file itself is held open, and when its name no longer
//! leads to it, it is put where nobody else writes.

use std::fs::{self, File, Permissions};
use std::io::{self, Seek};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tempfile::NamedTempFile;

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
        match fs::remove_file(&copy) {
            Err(problem) if problem.kind() != io::ErrorKind::NotFound => return Err(problem),
            _ => {}
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
    fn make_copy(&self) -> io::Result<()> {
        let folder = self.copy.parent().ok_or_else(|| io::Error::other("no folder"))?;
        fs::create_dir_all(folder)?;
        let mut copy = NamedTempFile::new_in(folder)?;
        let mut file = &self.file;
        file.rewind()?;
        io::copy(&mut file, copy.as_file_mut())?;
        copy.as_file().set_permissions(Permissions::from_mode(0o755))?;
        copy.persist(&self.copy)?;
        Ok(())
    }
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
}
