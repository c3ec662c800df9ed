//! Keeping other users of the machine out: tasks hold secrets, and trajectories what people
//! and agents wrote.

use crate::StoreError;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Makes the folder, when there is none, for this user alone. One that is there is left as
/// it is: it may be shared for a reason.
pub(super) fn make_folder(folder: &Path) -> Result<(), StoreError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|source| StoreError::Path { path: folder.to_owned(), source })
}

/// Makes the database's file, when there is none, for this user alone, and narrows those of
/// an earlier version. What SQLite puts beside a database gets the same permissions.
pub(super) fn make_files(database: &Path) -> Result<(), StoreError> {
    let made = File::options().create(true).append(true).mode(0o600).open(database);
    made.map_err(|source| StoreError::Path { path: database.to_owned(), source })?;
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let mut path = database.as_os_str().to_owned();
        path.push(suffix);
        let path = PathBuf::from(path);
        narrow(&path).map_err(|source| StoreError::Path { path, source })?;
    }
    Ok(())
}

fn narrow(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.permissions().mode() & 0o077 == 0 => Ok(()),
        Ok(_) => fs::set_permissions(path, Permissions::from_mode(0o600)),
    }
}
