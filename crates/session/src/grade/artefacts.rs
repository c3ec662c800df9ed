//! What crosses from the agent's sandbox to the grader's, and nothing else.
//!
//! Changes of the work folder come from the node's own comparison of it. Files beside it come
//! as an archive that a program of the agent's sandbox wrote, which the agent may have
//! replaced: of it only what lies at the paths asked for is taken.

use super::Verdict;
use crate::attempt::Attempt;
use crate::failure::Stop;
use polar_sandbox::{Change, Content, Exec, ExecEnd};
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use tar::{Archive, Builder, EntryType, Header};

/// Compiled files and caches of test runs. What Python compiled can stand for other source than
/// that beside it.
const NEVER: [&str; 3] = ["__pycache__", ".pytest_cache", ".mypy_cache"];

/// Packs `$1`, when it is there.
const PACK: &str = r#"[ -e "$1" ] || [ -L "$1" ] || exit 11
exec tar -cf - -C / -- "${1#/}""#;
const ABSENT: i32 = 11;

/// What is to cross.
pub(super) struct Crossing {
    left: u64,
    removed: Vec<u8>,
    work: Builder<Vec<u8>>,
    has_work: bool,
    files: Builder<Vec<u8>>,
    has_files: bool,
    /// Links among these files.
    links: HashSet<PathBuf>,
    problem: Option<io::Error>,
}

/// What crosses, in the forms that the grader's sandbox takes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// Paths of the work folder, each ended by NUL.
    pub(super) removed: Vec<u8>,
    /// An archive for the work folder.
    pub(super) work: Option<Vec<u8>>,
    /// An archive for the root folder.
    pub(super) files: Option<Vec<u8>>,
}

/// Names of what crosses in the archive that it is kept in.
const REMOVED: &str = "removed";
const IN_WORK_FOLDER: &str = "work_folder.tar";
const IN_ROOT: &str = "root.tar";

impl Packed {
    /// Keeps it in a file.
    pub(super) fn save(&self, path: &Path) -> io::Result<()> {
        let mut archive = Builder::new(io::BufWriter::new(std::fs::File::create(path)?));
        let parts = [
            (REMOVED, Some(&self.removed)),
            (IN_WORK_FOLDER, self.work.as_ref()),
            (IN_ROOT, self.files.as_ref()),
        ];
        for (name, bytes) in parts {
            let Some(bytes) = bytes else { continue };
            let mut header = header(EntryType::Regular, 0o644);
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, name, bytes.as_slice())?;
        }
        io::Write::flush(&mut archive.into_inner()?)
    }

    /// Reads it from the file that it was kept in.
    pub(crate) fn load(path: &Path) -> io::Result<Self> {
        let mut packed = Self { removed: Vec::new(), work: None, files: None };
        let mut archive = Archive::new(io::BufReader::new(std::fs::File::open(path)?));
        for entry in archive.entries()? {
            let mut entry = entry?;
            let name = entry.path()?.display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            match name.as_str() {
                REMOVED => packed.removed = bytes,
                IN_WORK_FOLDER => packed.work = Some(bytes),
                IN_ROOT => packed.files = Some(bytes),
                _ => {
                    return Err(io::Error::other(format!(
                        "it holds {name:?}, of which nothing is known"
                    )));
                }
            }
        }
        Ok(packed)
    }
}

impl Crossing {
    pub(super) fn new(most: u64) -> Self {
        Self {
            left: most,
            removed: Vec::new(),
            work: Builder::new(Vec::new()),
            has_work: false,
            files: Builder::new(Vec::new()),
            has_files: false,
            links: HashSet::new(),
            problem: None,
        }
    }

    /// Adds changes of the work folder, except those that a pattern excludes.
    pub(super) fn add_changes(&mut self, changes: &[Change], exclude: &[String]) {
        for change in changes {
            let path = String::from_utf8_lossy(&change.path);
            if is_cache(&path) || exclude.iter().any(|pattern| matches(pattern, &path)) {
                continue;
            }
            if let Err(error) = self.add_change(change) {
                self.problem.get_or_insert(io::Error::other(format!("{path}: {error}")));
            }
        }
    }

    fn add_change(&mut self, change: &Change) -> io::Result<()> {
        let path = Path::new(OsStr::from_bytes(&change.path));
        let Some(now) = &change.now else {
            self.removed.extend_from_slice(&change.path);
            self.removed.push(0);
            return Ok(());
        };
        self.has_work = true;
        match now {
            Content::File { bytes, executable } => {
                self.left = self.left.saturating_sub(bytes.len() as u64);
                let mut header =
                    header(EntryType::Regular, if *executable { 0o755 } else { 0o644 });
                header.set_size(bytes.len() as u64);
                self.work.append_data(&mut header, path, bytes.as_slice())
            }
            Content::Link(target) => {
                let mut header = header(EntryType::Symlink, 0o777);
                header.set_size(0);
                self.work.append_link(&mut header, path, Path::new(OsStr::from_bytes(target)))
            }
        }
    }

    fn is_behind_link(&self, path: &Path) -> bool {
        path.ancestors().any(|folder| self.links.contains(folder))
    }

    /// Adds what an archive has at or below `path`, but for what is behind a link that came
    /// before: no folder has both, and whoever unpacks that may follow it anywhere.
    fn add_archive(&mut self, path: &str, archive: impl Read) -> io::Result<()> {
        let wanted = Path::new(path.trim_start_matches('/'));
        for entry in Archive::new(archive).entries()? {
            let mut entry = entry?;
            let inside = plain(&entry.path()?);
            if !inside.starts_with(wanted) || self.is_behind_link(&inside) {
                continue;
            }
            let kind = entry.header().entry_type();
            let mode = entry.header().mode()? & 0o777;
            self.has_files = true;
            let mut header = header(kind, mode);
            match kind {
                EntryType::Regular | EntryType::Continuous => {
                    let size = entry.size();
                    self.left = self.left.checked_sub(size).ok_or_else(|| {
                        io::Error::other("more than grading.max_mb together with the rest")
                    })?;
                    header.set_entry_type(EntryType::Regular);
                    header.set_size(size);
                    self.files.append_data(&mut header, inside, &mut entry)?;
                }
                EntryType::Directory => {
                    header.set_size(0);
                    self.files.append_data(&mut header, inside, io::empty())?;
                }
                EntryType::Symlink => {
                    let target = entry.link_name()?.unwrap_or_default().into_owned();
                    header.set_size(0);
                    self.files.append_link(&mut header, &inside, target)?;
                    self.links.insert(inside);
                }
                // Devices and pipes are nobody's work, and another name of a file could be of
                // one that was not asked for.
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn pack(self) -> io::Result<Packed> {
        match self.problem {
            Some(problem) => Err(problem),
            None => Ok(Packed {
                removed: self.removed,
                work: self.has_work.then(|| self.work.into_inner()).transpose()?,
                files: self.has_files.then(|| self.files.into_inner()).transpose()?,
            }),
        }
    }
}

impl Attempt {
    /// Gets a file or folder out of the agent's sandbox. One that is not there is no problem:
    /// what that is worth, the evaluator says.
    pub(super) async fn collect_files(
        &self,
        path: &str,
        crossing: &mut Crossing,
    ) -> Result<Result<(), Verdict>, Stop> {
        let archive = self.folder.log("artefact.tar");
        let exec = Exec {
            argv: ["sh", "-c", PACK, "sh", path].map(str::to_owned).to_vec(),
            workdir: None,
            env: BTreeMap::new(),
            stdin: None,
            timeout: Duration::from_secs_f64(self.lease.task.budgets.grade_seconds),
            stdout: archive.clone(),
            stderr: self.folder.log("artefact.err"),
            // Headers and padding come on top of what is counted.
            output_limit: crossing.left.saturating_mul(2) + (1 << 20),
        };
        let doing = format!("collecting {path}");
        let problem = match self.exec(&doing, exec).await? {
            ExecEnd::Exited(ABSENT) => return Ok(Ok(())),
            ExecEnd::Exited(0) => std::fs::File::open(&archive)
                .and_then(|archive| crossing.add_archive(path, io::BufReader::new(archive)))
                .err()
                .map(|error| error.to_string()),
            ExecEnd::Exited(code) => Some(format!("tar ended with exit code {code}")),
            ExecEnd::TimedOut => Some("it took longer than budgets.grade_seconds".to_owned()),
        };
        let removed = std::fs::remove_file(&archive);
        if let Err(error) = removed {
            tracing::debug!(%error, "an archive stays until its session's folder goes");
        }
        Ok(match problem {
            None => Ok(()),
            Some(problem) => Err(Verdict::zero(format!(
                "{path}, which grading.files names, cannot be carried to the grader: {problem}"
            ))),
        })
    }
}

/// Made now: a file that looks older than what is built of it would not be built again.
fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    let now = jiff::Timestamp::now().as_second();
    header.set_mtime(u64::try_from(now).unwrap_or_default());
    header
}

/// A path without the parts that lead elsewhere; a path with `..` leads nowhere.
fn plain(path: &Path) -> PathBuf {
    if path.components().any(|part| part == Component::ParentDir) {
        return PathBuf::new();
    }
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

fn is_cache(path: &str) -> bool {
    path.split('/').any(|part| NEVER.contains(&part)) || path.ends_with(".pyc")
}

/// Whether a path is the one that a pattern names, or lies below it.
fn matches(pattern: &str, path: &str) -> bool {
    let pattern = pattern.trim_end_matches('/');
    let mut upto = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    upto.any(|end| matches_whole(pattern.as_bytes(), &path.as_bytes()[..end]))
}

/// `*` stands for any letters. Goes back to the last `*` alone, so that no path takes long.
fn matches_whole(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut seen) = (0, 0);
    let mut star = None;
    while seen < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(wanted) if *wanted == text[seen] => {
                at += 1;
                seen += 1;
            }
            _ => {
                let Some((place, taken)) = star else { return false };
                star = Some((place, taken + 1));
                at = place + 1;
                seen = taken + 1;
            }
        }
    }
    pattern[at..].iter().all(|letter| *letter == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_files_folders_and_letters() {
        let table = [
            ("build", "build", true),
            ("build", "build/a/b", true),
            ("build/", "build/a", true),
            ("build", "builder", false),
            ("build", "src/build", false),
            ("*.log", "a.log", true),
            ("*.log", "deep/a.log", true),
            ("*.log", "a.log.txt", false),
            ("src/*/gen", "src/x/gen/file", true),
            ("src/*/gen", "src/gen", false),
        ];
        for (pattern, path, expected) in table {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    /// The archive's writer is a program that the agent may have put there.
    #[test]
    fn only_what_was_asked_for_is_taken_from_an_archive() {
        let mut archive = Builder::new(Vec::new());
        for path in ["out/data", "out/sub/more", "outside", "tests/test.sh"] {
            let mut header = header(EntryType::Regular, 0o644);
            header.set_size(1);
            archive.append_data(&mut header, path, &b"x"[..]).unwrap();
        }
        let mut link = header(EntryType::Link, 0o644);
        link.set_size(0);
        archive.append_link(&mut link, "out/hard", "etc/shadow").unwrap();
        // A path that leads up, which no honest writer makes.
        let mut up = header(EntryType::Regular, 0o644);
        up.set_size(1);
        up.as_gnu_mut().unwrap().name[..14].copy_from_slice(b"out/../../root");
        up.set_cksum();
        archive.append(&up, &b"x"[..]).unwrap();
        // A link that leads out, and a file behind it.
        let mut link = header(EntryType::Symlink, 0o777);
        link.set_size(0);
        archive.append_link(&mut link, "out/bin", "/usr/local/bin").unwrap();
        let mut behind = header(EntryType::Regular, 0o755);
        behind.set_size(1);
        archive.append_data(&mut behind, "out/bin/sh", &b"x"[..]).unwrap();
        let archive = archive.into_inner().unwrap();

        let mut crossing = Crossing::new(100);
        crossing.add_archive("/out", archive.as_slice()).unwrap();
        let packed = crossing.pack().unwrap().files.unwrap();
        let names: Vec<_> = Archive::new(packed.as_slice())
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(names, ["out/data", "out/sub/more", "out/bin"]);

        let mut small = Crossing::new(1);
        assert!(small.add_archive("/out", archive.as_slice()).is_err());
        assert!(Crossing::new(9).add_archive("/out", &b"no archive"[..]).is_err());
    }

    #[test]
    fn what_crosses_is_kept_and_read_as_it_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (removed, work, files) in
            [(b"a\0b c\0".to_vec(), Some(vec![0, 1]), None), (vec![], None, Some(vec![7; 3000]))]
        {
            let packed = Packed { removed, work, files };
            packed.save(file.path()).unwrap();
            assert_eq!(Packed::load(file.path()).unwrap(), packed);
        }
    }

    #[test]
    fn caches_never_cross() {
        let change = |path: &str| Change {
            path: path.as_bytes().to_vec(),
            existed: false,
            now: Some(Content::File { bytes: vec![1], executable: false }),
        };
        let mut crossing = Crossing::new(100);
        let caches = ["a/__pycache__/b.cpython-311.pyc", ".pytest_cache/v", "b.pyc", "skip/me"];
        crossing.add_changes(&caches.map(change), &["skip".to_owned()]);
        assert!(crossing.pack().unwrap().work.is_none());
    }
}
