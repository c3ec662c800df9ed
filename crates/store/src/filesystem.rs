//! Refusing file systems on which SQLite loses data.
//!
//! WAL needs locks and shared memory that work between processes. Over a network they
//! seem to, until two hosts or a lost connection corrupt the file.

use crate::StoreError;
use std::path::Path;

/// Fails when the folder lies on a network file system. Knows Linux; elsewhere it passes.
pub fn refuse_network_filesystem(folder: &Path) -> Result<(), StoreError> {
    match kind_of(folder)? {
        None => Ok(()),
        Some(filesystem) => {
            Err(StoreError::NetworkFilesystem { path: folder.to_owned(), filesystem })
        }
    }
}

#[cfg(target_os = "linux")]
fn kind_of(folder: &Path) -> Result<Option<&'static str>, StoreError> {
    let stat = rustix::fs::statfs(folder)
        .map_err(|e| StoreError::Path { path: folder.to_owned(), source: e.into() })?;
    // The field's width differs between platforms, the magic numbers have 32 bits.
    let Some(kind) = network_filesystem(stat.f_type as u32) else { return Ok(None) };
    if kind == FUSE {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        return Ok(fuse_kind(&mounts, &real));
    }
    Ok(Some(kind))
}

#[cfg(not(target_os = "linux"))]
fn kind_of(_folder: &Path) -> Result<Option<&'static str>, StoreError> {
    Ok(None)
}

const FUSE: &str = "FUSE (sshfs, gcsfuse, …)";

/// Magic numbers of statfs(2), for the file systems that lie on another machine.
#[cfg(any(target_os = "linux", test))]
fn network_filesystem(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517B | 0xFF53_4D42 | 0xFE53_4D42 => "SMB",
        0x0BD0_0BD0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x1983_0326 => "BeeGFS",
        0x00C3_6400 => "Ceph",
        0x2003_0528 => "OrangeFS",
        0x5346_414F | 0x6B41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x0102_1997 => "9P",
        0x6573_5546 => FUSE,
        _ => return None,
    })
}

/// FUSE carries network file systems and local ones alike; the mount table tells them apart.
#[cfg(any(target_os = "linux", test))]
fn fuse_kind(mountinfo: &str, folder: &Path) -> Option<&'static str> {
    const LOCAL: [&str; 3] = ["fuseblk", "fuse.fuse-overlayfs", "fuse.bindfs"];
    let mounted = mountinfo
        .lines()
        .filter_map(|line| {
            let (mount, rest) = line.split_once(" - ")?;
            let point = Path::new(mount.split(' ').nth(4)?);
            folder.starts_with(point).then_some((point, rest.split(' ').next()?))
        })
        .max_by_key(|(point, _)| point.components().count());
    match mounted {
        Some((_, kind)) if LOCAL.contains(&kind) => None,
        _ => Some(FUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_other_machines_are_known_and_local_ones_pass() {
        for (magic, kind) in
            [(0x6969, "NFS"), (0xFF53_4D42, "SMB"), (0x0BD0_0BD0, "Lustre"), (0x4750_4653, "GPFS")]
        {
            assert_eq!(network_filesystem(magic), Some(kind));
        }
        // ext4, xfs, btrfs, tmpfs, overlayfs.
        for magic in [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630] {
            assert_eq!(network_filesystem(magic), None);
        }
        let folder = std::env::temp_dir();
        assert!(refuse_network_filesystem(&folder).is_ok());
    }

    #[test]
    fn fuse_is_refused_unless_the_mount_table_says_it_is_local() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      40 22 0:40 / /home/me/remote rw - fuse.sshfs host:/data rw\n\
                      41 22 0:41 / /var/lib/over rw - fuse.fuse-overlayfs over rw\n";
        assert_eq!(fuse_kind(mounts, Path::new("/home/me/remote/polar")), Some(FUSE));
        assert_eq!(fuse_kind(mounts, Path::new("/var/lib/over/polar")), None);
        assert_eq!(fuse_kind("", Path::new("/x")), Some(FUSE));
    }
}
