//! Reading a work folder on this machine for a snapshot.
//!
//! The folder belongs to code that isn't ours, which may still be running: nothing here
//! follows a link, nor looks up a path of more than one part.

use super::{Kind, Sink};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, readlinkat, statat};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// How deep folders may lie in each other. Each level costs an open file.
const DEEPEST: usize = 128;
const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Gives all entries of `folder` to the sink.
pub(crate) fn read(folder: &Path, sink: &mut Sink) -> io::Result<()> {
    let root = openat(CWD, folder, FOLDER, Mode::empty())?;
    read_folder(root, &mut vec![], 0, sink)
}

fn read_folder(
    folder: OwnedFd,
    path: &mut Vec<u8>,
    depth: usize,
    sink: &mut Sink,
) -> io::Result<()> {
    if depth > DEEPEST {
        let message = format!("folders lie more than {DEEPEST} deep in each other");
        return Err(named(path, io::Error::other(message)));
    }
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." || name.eq_ignore_ascii_case(b".git") {
            continue;
        }
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        read_entry(folder.as_fd(), name, path, depth, sink)?;
        path.truncate(length);
    }
    Ok(())
}

fn read_entry(
    folder: BorrowedFd<'_>,
    name: &[u8],
    path: &mut Vec<u8>,
    depth: usize,
    sink: &mut Sink,
) -> io::Result<()> {
    let found = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        // Removed meanwhile.
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        found => found.map_err(|problem| named(path, problem.into()))?,
    };
    let failed = |path: &[u8], problem: rustix::io::Errno| named(path, problem.into());
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => {
            let inner = openat(folder, name, FOLDER, Mode::empty());
            let inner = inner.map_err(|problem| failed(path, problem))?;
            read_folder(inner, path, depth + 1, sink)
        }
        FileType::Symlink => {
            let target = readlinkat(folder, name, vec![]);
            let target = target.map_err(|problem| failed(path, problem))?;
            let target = target.as_bytes();
            sink.add(path, Kind::Link, target.len() as u64, target)
        }
        FileType::RegularFile => {
            // Not blocking, should it have become a pipe.
            let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = openat(folder, name, how, Mode::empty());
            let file = file.map_err(|problem| failed(path, problem))?;
            let found = fstat(&file)?;
            let executable = found.st_mode & 0o100 != 0;
            let kind = if executable { Kind::Executable } else { Kind::File };
            sink.add(path, kind, u64::try_from(found.st_size).unwrap_or(0), File::from(file))
        }
        _ => Ok(()),
    }
}

fn named(path: &[u8], problem: io::Error) -> io::Error {
    let path = String::from_utf8_lossy(path);
    io::Error::new(problem.kind(), format!("{path}: {problem}"))
}
