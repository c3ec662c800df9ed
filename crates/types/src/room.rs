//! What sandboxes take of a node's memory and disk, and what a node has of both.

use crate::{RuntimeKind, RuntimeSpec};
use serde::{Deserialize, Serialize};

/// What a sandbox may take, in MiB. One without a limit counts as nothing: nobody knows what it
/// will need.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
pub struct Footprint {
    /// Its `memory_mb`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory_mb: u64,
    /// Its `storage_mb`, where its files lie on the disk of the node's state folder.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub storage_mb: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Footprint {
    /// That of a task's sandbox.
    pub fn of(runtime: &RuntimeSpec) -> Self {
        // Those of containers lie where their daemon keeps them.
        let is_on_disk = matches!(runtime.kind, RuntimeKind::Local | RuntimeKind::Apptainer);
        Self {
            memory_mb: runtime.memory_mb.unwrap_or_default(),
            storage_mb: runtime.storage_mb.filter(|_| is_on_disk).unwrap_or_default(),
        }
    }

    /// Whether it is none.
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            memory_mb: self.memory_mb.saturating_add(other.memory_mb),
            storage_mb: self.storage_mb.saturating_add(other.storage_mb),
        }
    }

    /// This without the other.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self {
            memory_mb: self.memory_mb.saturating_sub(other.memory_mb),
            storage_mb: self.storage_mb.saturating_sub(other.storage_mb),
        }
    }
}

/// Memory and disk of a node, in MiB. What is absent is not known, and limits nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct NodeRoom {
    /// Memory that all its sandboxes together may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// What of that no session has, nor waits for there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_memory_mb: Option<u64>,
    /// The disk of its state folder, without what is to stay free of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_mb: Option<u64>,
    /// What of that is free, and promised to no session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_storage_mb: Option<u64>,
}

impl NodeRoom {
    /// Whether it says nothing.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a sandbox fits beside those that are there.
    pub fn fits(&self, footprint: Footprint) -> bool {
        self.why_not_now(footprint).is_none()
    }

    /// This with one sandbox more.
    #[must_use]
    pub fn with(self, footprint: Footprint) -> Self {
        let less = |free: Option<u64>, taken: u64| free.map(|free| free.saturating_sub(taken));
        Self {
            free_memory_mb: less(self.free_memory_mb, footprint.memory_mb),
            free_storage_mb: less(self.free_storage_mb, footprint.storage_mb),
            ..self
        }
    }

    /// What there is too little of for a sandbox now, in words.
    pub fn why_not_now(&self, footprint: Footprint) -> Option<String> {
        let Footprint { memory_mb, storage_mb } = footprint;
        let all = |all: Option<u64>| all.map_or_else(String::new, |all| format!(" of {all}"));
        if let Some(free) = self.free_memory_mb.filter(|free| *free < memory_mb && memory_mb > 0) {
            let all = all(self.memory_mb);
            return Some(format!(
                "{memory_mb} MiB of memory (runtime.memory_mb); {free}{all} are free"
            ));
        }
        let free = self.free_storage_mb.filter(|free| *free < storage_mb && storage_mb > 0)?;
        let all = all(self.storage_mb);
        Some(format!("{storage_mb} MiB of disk (runtime.storage_mb); {free}{all} are free"))
    }

    /// The field of a task's `runtime` that asks for more than there can ever be, and why.
    pub fn why_never(&self, footprint: Footprint) -> Option<(&'static str, String)> {
        let Footprint { memory_mb, storage_mb } = footprint;
        if let Some(all) = self.memory_mb.filter(|all| *all < memory_mb) {
            let why = format!(
                "its sandboxes may take {all} MiB of memory in all; ask for less, or let it give \
                 more with --sandbox-memory-mb"
            );
            return Some(("memory_mb", why));
        }
        let all = self.storage_mb.filter(|all| *all < storage_mb)?;
        let why = format!(
            "the disk of its state folder has {all} MiB beside what stays free of it \
             (--keep-free-mb); ask for less, or give it a larger one with --state"
        );
        Some(("storage_mb", why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_limits_nothing_and_what_asks_for_nothing_fits() {
        let much = Footprint { memory_mb: u64::MAX, storage_mb: u64::MAX };
        let unknown = NodeRoom::default();
        assert!(unknown.fits(much) && unknown.why_never(much).is_none());
        assert!(unknown.with(much).is_unlimited());
        let full = NodeRoom { memory_mb: Some(8), free_memory_mb: Some(0), ..unknown };
        assert!(full.fits(Footprint::default()));
        let one = Footprint { memory_mb: 1, ..Footprint::default() };
        let said = full.why_not_now(one).unwrap();
        assert_eq!(said, "1 MiB of memory (runtime.memory_mb); 0 of 8 are free");
    }
}
