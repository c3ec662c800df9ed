//! How much a sandbox's folder holds, and when that is too much.
//!
//! Watched rather than set: what sets it needs a file system made for it, and root. A file
//! that was removed while a command still writes to it is not seen, though no file gets
//! longer than all together may be.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// More than commands write in a second.
const BYTES_PER_SECOND: u64 = 2 << 30;
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Looking takes no more than this part of the time.
const SHARE: u32 = 10;
/// How deep folders may lie in each other. Each level costs an open file.
const DEEPEST: usize = 256;
const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Returns when what `folder` holds, without what lies in `except` there, is more than
/// `limit` bytes.
pub(crate) async fn wait_until_full(folder: PathBuf, except: &'static CStr, limit: u64) {
    let mut most = None;
    loop {
        let started = Instant::now();
        let place = folder.clone();
        let looked = tokio::task::spawn_blocking(move || held(&place, except)).await;
        match looked {
            Ok(Ok(held)) => {
                let most = *most.get_or_insert_with(|| most_for_command(held, limit));
                if held > most {
                    return;
                }
                pause(started, most - held).await;
            }
            // Being removed, or not there yet.
            Ok(Err(problem)) if problem.kind() == io::ErrorKind::NotFound => {
                pause(started, limit).await;
            }
            Ok(Err(problem)) => {
                tracing::warn!(folder = %folder.display(), %problem, "taken for full");
                return;
            }
            Err(_) => return,
        }
    }
}

/// Where a command may get, in a sandbox that holds so much at its start. One that is full
/// already may still be looked at and cleared up.
pub(crate) fn most_for_command(held: u64, limit: u64) -> u64 {
    limit.max(held.saturating_add(limit / 16))
}

/// Until the next look: sooner when there is less left.
pub(crate) async fn pause(started: Instant, left: u64) {
    let soonest = Duration::from_secs_f64(left as f64 / BYTES_PER_SECOND as f64);
    let rest = started.elapsed() * SHARE;
    tokio::time::sleep(soonest.max(rest).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
}

/// Says so in a command's errors.
pub(crate) fn words(limit_mb: u64) -> String {
    format!("polar: ended, because the sandbox holds more than its `storage_mb` of {limit_mb}\n")
}

fn held(folder: &std::path::Path, except: &CStr) -> io::Result<u64> {
    let root = openat(CWD, folder, FOLDER, Mode::empty())?;
    let mut held = 0;
    for entry in Dir::read_from(&root)? {
        let entry = entry?;
        if entry.file_name() != except {
            held += held_by(root.as_fd(), entry.file_name(), 0)?;
        }
    }
    Ok(held)
}

fn held_by(folder: BorrowedFd<'_>, name: &CStr, depth: usize) -> io::Result<u64> {
    if name == c"." || name == c".." {
        return Ok(0);
    }
    if depth > DEEPEST {
        return Err(io::Error::other(format!("folders lie more than {DEEPEST} deep")));
    }
    let found = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        // Removed meanwhile.
        Err(rustix::io::Errno::NOENT) => return Ok(0),
        found => found?,
    };
    let mut held = u64::try_from(found.st_blocks).unwrap_or_default() * 512;
    if FileType::from_raw_mode(found.st_mode) == FileType::Directory
        && let Some(inner) = open(folder, name)?
    {
        for entry in Dir::read_from(&inner)? {
            held += held_by(inner.as_fd(), entry?.file_name(), depth + 1)?;
        }
    }
    Ok(held)
}

/// Opens a folder, also one that its owner took all rights on away from; none when it is
/// gone, or no folder any more.
fn open(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<OwnedFd>> {
    use rustix::io::Errno;
    match openat(folder, name, FOLDER, Mode::empty()) {
        Ok(inner) => return Ok(Some(inner)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(Errno::ACCESS) => {}
        Err(problem) => return Err(problem.into()),
    }
    let place = openat(folder, name, FOLDER.union(OFlags::PATH), Mode::empty())?;
    // By what was opened, since the name may lead elsewhere by now.
    let opened = format!("/proc/self/fd/{}", place.as_raw_fd());
    std::fs::set_permissions(opened, std::fs::Permissions::from_mode(0o700))?;
    Ok(Some(openat(folder, name, FOLDER, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_closed_folders_counts_and_what_links_lead_to_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("inside"), folder.path().join("outside"));
        std::fs::create_dir_all(inside.join("closed")).unwrap();
        std::fs::create_dir_all(inside.join("snapshots")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        let mebibyte = vec![1; 1 << 20];
        std::fs::write(outside.join("file"), &mebibyte).unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        std::fs::write(inside.join("snapshots/file"), &mebibyte).unwrap();
        std::fs::write(inside.join("closed/file"), &mebibyte).unwrap();
        let closed = std::fs::Permissions::from_mode(0o000);
        std::fs::set_permissions(inside.join("closed"), closed).unwrap();

        let held = held(&inside, c"snapshots").unwrap();

        assert!((1 << 20..2 << 20).contains(&held), "{held}");
    }
}
