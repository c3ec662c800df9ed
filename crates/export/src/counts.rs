//! What was written, and what was not.

use std::collections::BTreeMap;
use std::fmt;

/// Why a row was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeftOut {
    /// Its session ended in another way than was asked for.
    Status,
    /// It is of another role.
    Role,
    /// It has no reward, and a range of rewards was asked for.
    NoReward,
    /// Its reward is out of the range.
    Reward,
    /// It has more tokens than was asked for.
    TooLong,
    /// It has no token to train on.
    NothingTrained,
    /// The same tokens were written before.
    Duplicate,
}

impl LeftOut {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Status => "by status",
            Self::Role => "by role",
            Self::NoReward => "without reward",
            Self::Reward => "by reward",
            Self::TooLong => "too long",
            Self::NothingTrained => "with nothing to train on",
            Self::Duplicate => "duplicate",
        }
    }
}

/// What became of all that was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions with a trajectory.
    pub sessions: u64,
    /// Rows in the files.
    pub rows: u64,
    /// Tokens with mask 1 in the files.
    pub trained: u64,
    /// Tokens with mask 1 in all sessions, as their trajectories count them.
    pub trained_in_all: u64,
    /// Rows that are in no file, by reason.
    pub left_out: BTreeMap<LeftOut, u64>,
    /// Tokens with mask 1 in those rows.
    pub trained_left_out: u64,
}

impl Counts {
    /// Whether every trained token is in a file or in a row that was left out for a reason.
    pub fn is_conserved(&self) -> bool {
        self.trained_in_all == self.trained + self.trained_left_out
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rows of {} sessions written, with {} of {} trained tokens",
            self.rows, self.sessions, self.trained, self.trained_in_all
        )?;
        if self.left_out.is_empty() {
            return Ok(());
        }
        let reasons: Vec<_> = self
            .left_out
            .iter()
            .map(|(reason, count)| format!("{count} {}", reason.as_str()))
            .collect();
        write!(f, "; left out: {}", reasons.join(", "))
    }
}
