//! What must come of a scenario.

use polar_trajectory::{Remedy, advice};
use polar_types::{ForkCause, UntrainedReason};
use serde::Deserialize;
use std::collections::BTreeMap;

/// What must come of a scenario. What is not said must be as for a program that does its
/// work without a fault.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expectations {
    /// How the session ends.
    #[serde(default)]
    pub(super) end: ExpectedEnd,
    /// Whether the work is done; either is right when absent.
    #[serde(default = "done")]
    pub(super) work: Option<bool>,
    /// Model calls.
    #[serde(default)]
    pub(super) calls: Option<Bounds>,
    /// Traces.
    #[serde(default)]
    pub(super) traces: Option<Bounds>,
    /// Causes of forks that are right here.
    #[serde(default)]
    pub(super) forks: Vec<ForkCause>,
    /// Reasons for which tokens may be left out of training here, with how many.
    #[serde(default)]
    pub(super) untrained: BTreeMap<UntrainedReason, Bounds>,
    /// Calls by their true role, as the rules that answered them name it. With `refused`, the
    /// engine may refuse calls before any rule answers.
    #[serde(default)]
    pub(super) roles: BTreeMap<String, Bounds>,
}

impl Expectations {
    /// Where prompts go on from sampled ids, no template, parser or tokenizer makes a fork.
    pub(super) fn only_forks_of_the_harness(&mut self) {
        self.forks.retain(|cause| {
            !matches!(advice(*cause).remedy, Remedy::TokenMode | Remedy::HistorySampled)
        });
    }
}

fn done() -> Option<bool> {
    Some(true)
}

/// How a session may end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ExpectedEnd {
    /// As a success by the adapter's rule.
    #[default]
    Completed,
    /// As a failure of the harness.
    Failed,
    /// By itself, in whichever way.
    Any,
}

/// A number, or a range with both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(super) enum Bounds {
    /// Just so many.
    Exactly(u64),
    /// A range.
    Between(Range),
}

/// A range with both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Range {
    #[serde(default)]
    min: u64,
    #[serde(default = "most")]
    max: u64,
}

fn most() -> u64 {
    u64::MAX
}

impl Bounds {
    pub(super) fn holds(self, number: u64) -> bool {
        match self {
            Self::Exactly(exact) => number == exact,
            Self::Between(Range { min, max }) => (min..=max).contains(&number),
        }
    }
}

impl std::fmt::Display for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(exact) => write!(f, "{exact}"),
            Self::Between(Range { min, max: u64::MAX }) => write!(f, "{min} or more"),
            Self::Between(Range { min: 0, max }) => write!(f, "at most {max}"),
            Self::Between(Range { min, max }) => write!(f, "{min} to {max}"),
        }
    }
}
