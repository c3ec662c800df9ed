//! Files that a published task names by their path on the server's machine.
//!
//! They are read when the task is submitted, so that every session gets the same and no node
//! needs the path. Only what lies in folders that the operator has named can be read: whoever
//! may submit tasks must not be able to read the machine.

use base64::Engine as _;
use polar_types::{Encoding, FieldProblem, PrepareStep};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Most that the files of a task may hold together.
const MOST_BYTES: u64 = 16 << 20;

/// The folders from which files may be read.
pub(super) struct Uploads {
    folders: Vec<PathBuf>,
}

impl Uploads {
    pub(super) fn from_folders(folders: &[PathBuf]) -> Self {
        Self { folders: folders.iter().filter_map(|folder| folder.canonicalize().ok()).collect() }
    }

    /// What one task may read.
    pub(super) fn budget(&self) -> Budget<'_> {
        Budget { uploads: self, left: MOST_BYTES }
    }
}

/// What is left to one task.
pub(super) struct Budget<'a> {
    uploads: &'a Uploads,
    left: u64,
}

impl Budget<'_> {
    /// Steps that write the file or the folder's files to `target`.
    pub(super) fn steps(
        &mut self,
        at: &str,
        source: &str,
        target: &str,
        wants_folder: bool,
    ) -> Result<Vec<PrepareStep>, FieldProblem> {
        let refused = |what: String| FieldProblem::new(at, what, r#""/data/tasks/fix-42/tests""#);
        let source = self.allowed(Path::new(source)).map_err(refused)?;
        if source.is_dir() != wants_folder {
            let what = if wants_folder { "must be a folder" } else { "must be a file" };
            return Err(refused(what.to_owned()));
        }
        let mut files = Vec::new();
        collect(&source, &mut files).map_err(|error| refused(error.to_string()))?;
        let mut steps = Vec::new();
        for file in files {
            let inside = match file.strip_prefix(&source) {
                Ok(rest) if wants_folder => Path::new(target).join(rest),
                _ => PathBuf::from(target),
            };
            steps.push(self.step(&file, &inside).map_err(refused)?);
        }
        Ok(steps)
    }

    /// The path without links, where it may be read.
    fn allowed(&self, source: &Path) -> Result<PathBuf, String> {
        if self.uploads.folders.is_empty() {
            return Err(
                "names a file of the server's machine, and the server was started without \
                 --upload-folder, which says from which folders tasks may have files"
                    .to_owned(),
            );
        }
        // Whether something is there is not told of paths that may not be read.
        let refused = || {
            let folders: Vec<_> =
                self.uploads.folders.iter().map(|folder| folder.display().to_string()).collect();
            format!("must lie in a folder that --upload-folder names: {}", folders.join(", "))
        };
        let found = source.canonicalize().map_err(|_| refused())?;
        match self.uploads.folders.iter().any(|folder| found.starts_with(folder)) {
            true => Ok(found),
            false => Err(refused()),
        }
    }

    fn step(&mut self, file: &Path, inside: &Path) -> Result<PrepareStep, String> {
        let in_words = |error: std::io::Error| format!("{}: {error}", file.display());
        let metadata = fs::metadata(file).map_err(in_words)?;
        self.left = self.left.checked_sub(metadata.len()).ok_or_else(|| {
            let most = MOST_BYTES >> 20;
            format!(
                "the task's files hold more than {most} MiB; mount them, or use an image with them"
            )
        })?;
        let content = fs::read(file).map_err(in_words)?;
        let (encoding, content) = match String::from_utf8(content) {
            Ok(text) => (Encoding::Utf8, text),
            Err(binary) => {
                let encoder = base64::engine::general_purpose::STANDARD;
                (Encoding::Base64, encoder.encode(binary.into_bytes()))
            }
        };
        Ok(PrepareStep::WriteFile {
            path: inside.to_str().ok_or("has a name that is not UTF-8")?.to_owned(),
            content,
            encoding,
            executable: metadata.permissions().mode() & 0o111 != 0,
        })
    }
}

/// The files, in an order that is always the same. Links are not followed: they could lead out.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let kind = fs::symlink_metadata(path)?;
    if kind.is_dir() {
        let entries: std::io::Result<Vec<_>> =
            fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect();
        let mut entries = entries?;
        entries.sort();
        return entries.iter().try_for_each(|entry| collect(entry, files));
    }
    if !kind.is_file() {
        let what = format!("{} is neither a file nor a folder", path.display());
        return Err(std::io::Error::other(what));
    }
    files.push(path.to_owned());
    Ok(())
}
