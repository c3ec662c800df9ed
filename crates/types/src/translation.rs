//! What became of a session's requests on their way to the engine.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Of how many calls what was said did not reach the engine as it was sent. The records say it of
/// each call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TranslationCounts {
    /// Calls by the name of a loss, for example `cache_control_dropped`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub losses: BTreeMap<String, u32>,
    /// Calls whose history got back what the model had sampled: `arguments`, `reasoning`, `text`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub restored: BTreeMap<String, u32>,
    /// Calls in whose history the harness had changed what the model said: `calls`, `reasoning`,
    /// `text`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub edited: BTreeMap<String, u32>,
    /// Calls by the harness's rule that took volatile text out of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub normalised: BTreeMap<String, u32>,
}

impl TranslationCounts {
    /// Whether every call reached the engine as it was sent.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds another session's counts.
    pub fn add(&mut self, other: &Self) {
        for (counts, others) in [
            (&mut self.losses, &other.losses),
            (&mut self.restored, &other.restored),
            (&mut self.edited, &other.edited),
            (&mut self.normalised, &other.normalised),
        ] {
            for (name, count) in others {
                *counts.entry(name.clone()).or_default() += count;
            }
        }
    }
}
