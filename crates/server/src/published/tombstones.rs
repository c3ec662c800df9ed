//! Tasks that were cancelled before they were submitted.

use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long a submission of such a name is refused.
const LIFE: SignedDuration = SignedDuration::from_secs(300);

/// Most that are remembered; the oldest goes first.
const MOST: usize = 10_000;

/// Names of such tasks, with the time until which they count. They don't outlive the process.
#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    until: Mutex<BTreeMap<String, Timestamp>>,
}

impl Tombstones {
    /// From now on, for a while.
    pub(super) fn set(&self, name: &str, now: Timestamp) {
        let mut until = self.lock();
        until.retain(|_, until| *until > now);
        if until.len() >= MOST
            && let Some(oldest) = until.iter().min_by_key(|(_, at)| **at).map(|(name, _)| name)
        {
            let oldest = oldest.clone();
            until.remove(&oldest);
        }
        let end = now.saturating_add(LIFE).unwrap_or(Timestamp::MAX);
        until.insert(name.to_owned(), end);
    }

    /// Whether the name may not be submitted now.
    pub(super) fn stands(&self, name: &str, now: Timestamp) -> bool {
        self.lock().get(name).is_some_and(|until| *until > now)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Timestamp>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tombstone_stands_for_a_while_and_there_are_only_so_many() {
        let tombstones = Tombstones::default();
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        tombstones.set("first", now);
        assert!(tombstones.stands("first", now));
        assert!(!tombstones.stands("first", now.saturating_add(LIFE).unwrap()));
        let later = now.saturating_add(SignedDuration::from_secs(1)).unwrap();
        for number in 0..MOST {
            tombstones.set(&format!("t{number}"), later);
        }
        assert!(!tombstones.stands("first", later));
        assert!(tombstones.stands("t0", later));
    }
}
