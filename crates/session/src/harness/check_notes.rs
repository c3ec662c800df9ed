//! What an adapter says for `polar harness check`: which of the program's tools do what the
//! check's scenarios ask for, and in what it differs from other programs.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The part `check:` of an adapter file. All of it may be left out: the check then looks
/// for tools by the names that agent programs commonly give them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckNotes {
    /// By what they are for: `shell` runs `{{ command }}`, `agent` starts a sub-agent with
    /// `{{ prompt }}`, `finish` ends the task with `{{ text }}` where no plain text does, and
    /// `report` the task of a sub-agent.
    pub tools: BTreeMap<String, ToolNote>,
    /// By name of the scenario.
    pub scenarios: BTreeMap<String, ScenarioNotes>,
}

/// A tool, and how it is called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolNote {
    /// Its name, as the program offers it.
    pub name: String,
    /// Its arguments; `{{ … }}` in their texts stands for what the scenario gives.
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

/// How a scenario is run with this program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScenarioNotes {
    /// Why it cannot be run; it is left out, and the reason shown.
    pub skip: Option<String>,
    /// Settings of the adapter.
    pub settings: Map<String, Value>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Model name the program is told.
    pub model: Option<String>,
    /// Rules of the simulated model that come before the scenario's own, for calls that only
    /// this program makes.
    pub rules: Vec<Value>,
    /// Expectations in place of the scenario's own, key by key.
    pub expect: Map<String, Value>,
}

impl CheckNotes {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }
}
