//! Archives, the form in which the daemon takes and gives files.

use crate::snapshot::{Kind, Sink};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use tar::{Archive, Builder, Entry, EntryType, Header};

/// An archive of empty folders that belong to user and group `owner`.
pub(super) fn folders(paths: &[&str], owner: (u64, u64)) -> io::Result<Vec<u8>> {
    let mut archive = Builder::new(vec![]);
    for path in paths {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Directory);
        header.set_uid(owner.0);
        header.set_gid(owner.1);
        header.set_mode(0o755);
        header.set_size(0);
        archive.append_data(&mut header, path.trim_start_matches('/'), io::empty())?;
    }
    archive.into_inner()
}

/// Gives all entries of an archive of one folder to the sink.
pub(super) fn read(archive: impl Read, sink: &mut Sink) -> io::Result<()> {
    for entry in Archive::new(archive).entries()? {
        let entry = entry?;
        let path = inner_path(&entry.path_bytes());
        if !path.is_empty() {
            read_entry(entry, &path, sink)?;
        }
    }
    Ok(())
}

fn read_entry(entry: Entry<'_, impl Read>, path: &[u8], sink: &mut Sink) -> io::Result<()> {
    let header = entry.header();
    match header.entry_type() {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            let executable = header.mode()? & 0o100 != 0;
            let kind = if executable { Kind::Executable } else { Kind::File };
            sink.add(path, kind, entry.size(), entry)
        }
        EntryType::Symlink => {
            let target = entry.link_name_bytes().unwrap_or_default();
            sink.add(path, Kind::Link, target.len() as u64, &*target)
        }
        // Another name for a file that came before.
        EntryType::Link => {
            let first = inner_path(&entry.link_name_bytes().unwrap_or_default());
            sink.copy(&first, path)
        }
        _ => Ok(()),
    }
}

/// The path below the folder that the archive is of. Docker begins paths with `./`, Podman
/// doesn't.
fn inner_path(path: &[u8]) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let inner: PathBuf = path.components().filter(|part| *part != Component::CurDir).collect();
    inner.into_os_string().into_encoded_bytes()
}
