//! Room on the disk that sessions are kept on.
//!
//! A node that writes its disk full loses what its sessions have done since. Below a floor it takes
//! no further ones, and says so; those that it has go on. It must not remove anything.

use jiff::Timestamp;
use polar_types::{NodeTrouble, TroubleKind};
use std::path::{Path, PathBuf};

/// Watches the disk of a folder.
pub(crate) struct Disk {
    folder: PathBuf,
    /// Room that is to stay free, in MiB; a part of the disk where nothing is said.
    floor_mb: Option<u64>,
    lacks: Option<Lack>,
}

struct Lack {
    since: Timestamp,
    free_mb: u64,
    floor_mb: u64,
}

/// Room that stays free where nothing is said: what a few sessions write that nobody limits, and of
/// a small disk a twentieth.
const FLOOR_MB: u64 = 1024;
const SHARE: u64 = 20;

impl Disk {
    pub(crate) fn new(folder: PathBuf, floor_mb: Option<u64>) -> Self {
        Self { folder, floor_mb, lacks: None }
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Looks whether there is room for another session. What cannot be told is no lack: making
    /// the session's folder will show it.
    pub(crate) fn has_room(&mut self) -> bool {
        self.look().is_none_or(|(free_mb, total_mb)| self.note(free_mb, total_mb))
    }

    /// What sandboxes may take of it beside the floor, now and at most, in MiB.
    pub(crate) fn room(&self) -> Option<(u64, u64)> {
        let (free_mb, total_mb) = self.look()?;
        let floor_mb = self.floor_mb(total_mb);
        Some((free_mb.saturating_sub(floor_mb), total_mb.saturating_sub(floor_mb)))
    }

    /// What is free of it, and what there is.
    fn look(&self) -> Option<(u64, u64)> {
        let found = rustix::fs::statvfs(&self.folder).ok()?;
        let mb = |blocks: u64| blocks.saturating_mul(found.f_frsize) >> 20;
        Some((mb(found.f_bavail), mb(found.f_blocks)))
    }

    fn floor_mb(&self, total_mb: u64) -> u64 {
        self.floor_mb.unwrap_or(FLOOR_MB.min(total_mb / SHARE))
    }

    fn note(&mut self, free_mb: u64, total_mb: u64) -> bool {
        let floor_mb = self.floor_mb(total_mb);
        if free_mb >= floor_mb {
            self.lacks = None;
            return true;
        }
        let since = self.lacks.as_ref().map_or_else(Timestamp::now, |lack| lack.since);
        self.lacks = Some(Lack { since, free_mb, floor_mb });
        false
    }

    /// What the server is told.
    pub(crate) fn trouble(&self) -> Option<NodeTrouble> {
        let lack = self.lacks.as_ref()?;
        Some(NodeTrouble {
            kind: TroubleKind::Disk,
            message: format!(
                "{} MiB are free on the disk of {}, fewer than the {} that are kept free \
                 (--keep-free-mb); remove something, or use another disk",
                lack.free_mb,
                self.folder.display(),
                lack.floor_mb
            ),
            since: format!("{:.0}", lack.since),
            waiting: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_is_told_from_its_beginning_until_it_is_over() {
        let mut disk = Disk::new("/somewhere".into(), Some(100));
        assert!(disk.note(100, 9999) && disk.trouble().is_none());
        assert!(!disk.note(99, 9999));
        let first = disk.trouble().unwrap();
        assert!(!disk.note(7, 9999));
        let later = disk.trouble().unwrap();
        assert_eq!((later.kind, &later.since), (TroubleKind::Disk, &first.since));
        assert!(later.message.contains("7 MiB are free on the disk of /somewhere"), "{later}");
        assert!(disk.note(100, 9999) && disk.trouble().is_none());
        // Where nothing is said it is a part of the disk.
        let mut disk = Disk::new("/somewhere".into(), None);
        assert!(disk.note(10, 200) && !disk.note(9, 200));
        assert!(disk.note(1024, 1 << 30) && !disk.note(1023, 1 << 30));
    }

    #[test]
    fn a_real_disk_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = Disk::new(folder.path().to_owned(), Some(0));
        assert!(disk.has_room());
        let (free, all) = disk.room().unwrap();
        assert!(free > 0 && free <= all, "{free} of {all}");
        assert!(!Disk::new(folder.path().to_owned(), Some(u64::MAX)).has_room());
    }
}
