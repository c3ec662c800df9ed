//! The node's folder, held by one process at a time.
//!
//! ```text
//! <state>/lock           locked while a node runs
//!         instance       tells this node from others of its name
//!         gateway.sock   the proxy, for sandboxes without network
//!         sessions/      attempts that are not delivered yet
//!         undelivered/   attempts whose report the server refuses
//!         captures/      journals of sessions opened by hand
//!         warm/          files of sandboxes that are kept ready
//! ```

use crate::NodeError;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub(crate) struct StateFolder {
    root: PathBuf,
    // Unlocked by the kernel when the process ends, however it ends.
    _lock: File,
}

const INSTANCE: &str = "instance";
const SOCKET: &str = "gateway.sock";

/// Below the kernel's limit of 108 bytes, with room for the terminating zero.
const LONGEST_SOCKET_PATH: usize = 100;

/// Bytes that the path of a state folder may have.
pub const LONGEST_STATE_PATH: usize = LONGEST_SOCKET_PATH - SOCKET.len() - 1;

impl StateFolder {
    pub(crate) fn open(root: &Path) -> Result<Self, NodeError> {
        let io = |action, path: &Path, error| NodeError::io(action, path.display(), error);
        create(root).map_err(|error| io("create", root, error))?;
        // Absolute, since sandboxes are given paths below it.
        let root = root.canonicalize().map_err(|error| io("find", root, error))?;
        let path = root.join("lock");
        let mut options = File::options();
        let lock = options.create(true).append(true).mode(0o600).open(&path);
        let lock = lock.map_err(|error| io("open", &path, error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(NodeError::Busy(root)),
            Err(TryLockError::Error(error)) => return Err(io("lock", &path, error)),
        }
        let state = Self { root, _lock: lock };
        if state.socket().as_os_str().len() > LONGEST_SOCKET_PATH {
            return Err(NodeError::PathTooLong(state.socket()));
        }
        for folder in [state.sessions(), state.undelivered(), state.captures()] {
            create(&folder).map_err(|error| io("create", &folder, error))?;
            narrow(&folder).map_err(|error| io("close to others", &folder, error))?;
        }
        Ok(state)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.root.join(SOCKET)
    }

    pub(crate) fn sessions(&self) -> PathBuf {
        self.root.join("sessions")
    }

    pub(crate) fn undelivered(&self) -> PathBuf {
        self.root.join("undelivered")
    }

    pub(crate) fn warm(&self) -> PathBuf {
        self.root.join("warm")
    }

    pub(crate) fn captures(&self) -> PathBuf {
        self.root.join("captures")
    }
}

/// What tells the node of this state folder from every other, over restarts: 32 hexadecimal
/// digits, the last of them random. Made when the folder has none yet.
pub fn instance_id(state: &Path) -> Result<String, NodeError> {
    let failed = |action, error| NodeError::io(action, state.join(INSTANCE).display(), error);
    create(state).map_err(|error| NodeError::io("create", state.display(), error))?;
    loop {
        match fs::read_to_string(state.join(INSTANCE)) {
            Ok(id) if !id.trim().is_empty() => return Ok(id.trim().to_owned()),
            Ok(_) => {
                let empty = io::Error::new(ErrorKind::InvalidData, "it is empty; delete it");
                return Err(failed("read", empty));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                make_instance_id(state).map_err(|error| failed("write", error))?;
            }
            Err(error) => return Err(failed("read", error)),
        }
    }
}

/// Complete once it has its name; whoever comes first, everybody takes what lies there.
fn make_instance_id(state: &Path) -> io::Result<()> {
    let id = uuid::Uuid::now_v7().simple().to_string();
    let draft = state.join(format!("{INSTANCE}.{id}"));
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&draft)?;
    writeln!(file, "{id}")?;
    file.sync_all()?;
    let named = fs::hard_link(&draft, state.join(INSTANCE));
    fs::remove_file(&draft)?;
    match named {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// For folders that somebody else had made.
fn narrow(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Conversations and logs are nobody else's business.
fn create(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}
