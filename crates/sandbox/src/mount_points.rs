//! Mount points inside folders that a sandbox can write to.

use std::io;
use std::path::{Path, PathBuf};

/// Makes the folders that would be made while mounts are, in host folders shown at a path
/// inside, and refuses links there: a link could lead outside while mounts are made.
/// `writable` has paths inside with where they lie on the host.
pub(crate) fn prepare_mount_points(
    writable: &[(&Path, &Path)],
    mounts: &[PathBuf],
) -> io::Result<()> {
    for mount in mounts {
        for (inside, host) in writable {
            let Ok(rest) = mount.strip_prefix(inside) else { continue };
            let mut place = host.to_path_buf();
            for part in rest {
                place.push(part);
                match std::fs::symlink_metadata(&place) {
                    Ok(found) if found.is_dir() => {}
                    Ok(_) => {
                        let message = format!(
                            "{} is in the way of a read-only folder",
                            inside.join(rest).display()
                        );
                        return Err(io::Error::other(message));
                    }
                    Err(_) => std::fs::create_dir(&place)?,
                }
            }
        }
    }
    Ok(())
}
