//! What can go wrong with the store.

use polar_types::{ErrorClass, FieldProblem};
use std::fmt;
use std::path::PathBuf;

/// Why the store could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The thing addressed is not stored.
    #[error("there is no {what} {id:?}")]
    NotFound {
        /// `task`, `session`, `attempt` or `callback`.
        what: &'static str,
        /// Its name.
        id: String,
    },
    /// What was submitted contradicts what is stored.
    #[error("{0}")]
    Conflict(Conflict),
    /// Another running node goes by the name.
    #[error(
        "the node name {name:?} is in use by another running node, last heard of {silent_for} \
         seconds ago; give this one a name of its own with --node-id, or, if that one has \
         ended, start this one again in {free_in} seconds"
    )]
    NameInUse {
        /// The name.
        name: String,
        /// Seconds since the other one was heard of.
        silent_for: u64,
        /// Seconds until the name is free, if the other one stays silent.
        free_in: u64,
    },
    /// The file lies where SQLite cannot keep its promises.
    #[error(
        "{path} is on a {filesystem} file system; the database needs a disk of this machine, \
         because locks and shared memory do not work over a network. Choose a local folder"
    )]
    NetworkFilesystem {
        /// Where the file was to be.
        path: PathBuf,
        /// What lies there.
        filesystem: &'static str,
    },
    /// Another process has the file.
    #[error(
        "{path} is in use by another process; stop that one, or give this one a folder of its own"
    )]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// The file was written by a later version of Polar.
    #[error(
        "{path} has schema version {found}, and this version of Polar knows up to {known}; \
         use the newer Polar that wrote it"
    )]
    TooNew {
        /// The database.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version known.
        known: i64,
    },
    /// The file or its folder cannot be used.
    #[error("cannot use {path}: {source}")]
    Path {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A stored row does not hold what it should.
    #[error("the database holds a {what} that cannot be read: {detail}")]
    Damaged {
        /// Which kind of row or column.
        what: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// The database failed. The call had no effect.
    #[error("the database failed: {0}")]
    Backend(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// What was submitted, against what is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    message: String,
    /// The field that contradicts it, where it is one.
    pub field: Option<FieldProblem>,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StoreError {
    pub(crate) fn conflict(message: String) -> Self {
        Self::Conflict(Conflict { message, field: None })
    }

    /// A conflict that one field is the reason of: what is wrong there, and a value that fits.
    pub(crate) fn conflict_in(
        (field, problem, example): (&str, impl Into<String>, impl Into<String>),
        message: String,
    ) -> Self {
        let field = Some(FieldProblem::new(field, problem, example));
        Self::Conflict(Conflict { message, field })
    }

    /// What kind of failure it is.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NotFound { .. } => ErrorClass::NotFound,
            Self::Conflict(_) | Self::NameInUse { .. } => ErrorClass::Conflict,
            Self::NetworkFilesystem { .. } | Self::Path { .. } | Self::TooNew { .. } => {
                ErrorClass::Invalid
            }
            Self::InUse { .. } | Self::Closed | Self::Backend(_) => ErrorClass::Unavailable,
            Self::Damaged { .. } => ErrorClass::Internal,
        }
    }

    pub(crate) fn not_found(what: &'static str, id: impl ToString) -> Self {
        Self::NotFound { what, id: id.to_string() }
    }
}
