//! What a session asks of its node.

use crate::{NodeInfo, TaskSpec};
use serde::{Deserialize, Serialize};

/// What a node must be able to do to take a session. Tasks that ask for the same have the same
/// demand, of which there are few.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// The runtime that it must have.
    pub runtime: String,
}

impl Demand {
    /// That of a task's sessions.
    pub fn of(task: &TaskSpec) -> Self {
        Self { runtime: task.runtime.kind.as_str().to_owned() }
    }

    /// Whether a node can do it.
    pub fn is_met_by(&self, node: &NodeInfo) -> bool {
        node.runtimes.contains(&self.runtime)
    }
}
