//! Mount points inside folders that a sandbox can write to.

use crate::SandboxSpec;
use std::io;
use std::path::Path;

/// Makes the folders that would be made while mounts are, in host folders shown at a path
/// inside, and refuses links there: a link could lead outside while mounts are made.
/// `writable` has paths inside with where they lie on the host.
pub(crate) fn prepare_mount_points(
    writable: &[(&Path, &Path)],
    spec: &SandboxSpec,
) -> io::Result<()> {
    let asked = spec.mounts.iter().map(|mount| &mount.target);
    for mount in spec.read_only.iter().chain(asked) {
        for (inside, host) in writable {
            let Ok(rest) = mount.strip_prefix(inside) else { continue };
            let mut place = host.to_path_buf();
            for part in rest {
                place.push(part);
                match std::fs::symlink_metadata(&place) {
                    Ok(found) if found.is_dir() => {}
                    Ok(_) => {
                        let message = format!(
                            "{} is in the way of a folder that is shown there",
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
