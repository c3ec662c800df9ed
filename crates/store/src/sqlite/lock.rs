//! One process per database: two would hand the same session out twice.

use crate::StoreError;
use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The lock on a database. The system lets go of it when the process dies.
pub(super) struct Lock(File);

impl Lock {
    /// Locks a file beside the database, or says who has it.
    pub(super) fn take(database: &Path) -> Result<Self, StoreError> {
        let mut path = database.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let failed = |source| StoreError::Path { path: path.clone(), source };
        let file =
            File::options().create(true).append(true).mode(0o600).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path }),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing alone is not enough: a child process that is just being started has the
        // file open too, until it becomes another program.
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "could not unlock the database");
        }
    }
}
