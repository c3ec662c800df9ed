//! Identifiers. Each is a short, path-safe word, so it can name a file, a container
//! label and a URL segment without quoting.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Why a word is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{value:?} is not a valid {kind}: use 1 to {max} characters, letters, digits, `.`, `_` or `-`, \
     starting with a letter or digit"
)]
pub struct IdError {
    /// What was being parsed, for example `task id`.
    pub kind: &'static str,
    /// The refused word, cut to 64 characters.
    pub value: String,
    /// The longest word accepted.
    pub max: usize,
}

const MAX_LEN: usize = 128;

fn check(kind: &'static str, value: &str) -> Result<(), IdError> {
    let mut bytes = value.bytes();
    let first_ok = bytes.next().is_some_and(|b| b.is_ascii_alphanumeric());
    let rest_ok = bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if first_ok && rest_ok && value.len() <= MAX_LEN {
        Ok(())
    } else {
        Err(IdError { kind, value: value.chars().take(64).collect(), max: MAX_LEN })
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schema(value_type = String)]
        pub struct $name(String);

        impl $name {
            /// The word itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(value: &str) -> Result<Self, IdError> {
                check($kind, value)?;
                Ok(Self(value.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(value: String) -> Result<Self, IdError> {
                check($kind, &value)?;
                Ok(Self(value))
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// A task: one problem, asked for `num_samples` times. Chosen by the client or minted.
    TaskId,
    "task id"
);
id!(
    /// One run of one task. Stays the same over attempts.
    SessionId,
    "session id"
);
id!(
    /// One LLM request of a session with its reply.
    CallId,
    "call id"
);
id!(
    /// The sessions of one task that a trainer compares with each other.
    GroupId,
    "group id"
);
id!(
    /// A gateway machine.
    NodeId,
    "node id"
);

id!(
    /// A sequence of batches for one trainer.
    QueueName,
    "queue name"
);

impl Default for QueueName {
    /// The queue of tasks that name none.
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl SessionId {
    /// The session that runs sample `index` of `task`: `<task>-s<index>`. A task id
    /// near the length limit is cut, so that the result is always valid.
    pub fn of_sample(task: &TaskId, index: u32) -> Self {
        Self(task.0.clone()).with_suffix(&format!("-s{index}"))
    }

    pub(crate) fn with_suffix(&self, suffix: &str) -> Self {
        let head = self.0.get(..MAX_LEN - suffix.len()).unwrap_or(&self.0);
        Self(format!("{head}{suffix}"))
    }
}

impl CallId {
    /// The `index`-th call of an attempt, counted from zero: `c00000`.
    pub fn of_index(index: u32) -> Self {
        Self(format!("c{index:05}"))
    }
}

impl From<&TaskId> for GroupId {
    fn from(task: &TaskId) -> Self {
        Self(task.0.clone())
    }
}

/// Fencing token of a lease. Raised by each hand-out of a session; a write that
/// carries an older epoch is refused.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_path_safe() {
        for bad in ["", ".", "..", "-a", "a/b", "a b", "ü", "a\n", &"x".repeat(129)] {
            assert!(bad.parse::<TaskId>().is_err(), "{bad:?} was accepted");
        }
        for good in ["a", "A1.b_c-d", "0", &"x".repeat(128)] {
            assert!(good.parse::<TaskId>().is_ok(), "{good:?} was refused");
        }
    }

    #[test]
    fn a_session_id_of_a_long_task_id_is_still_an_id() {
        let task: TaskId = "x".repeat(128).parse().unwrap();
        let session = SessionId::of_sample(&task, 12);
        assert!(session.as_str().parse::<SessionId>().is_ok());
        assert!(session.as_str().ends_with("-s12"));
    }
}
