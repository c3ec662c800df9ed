//! Scenarios as data: what the agent is asked, what the simulated model plays, and what
//! must come of it.

use super::expectation::Expectations;
use super::script;
use crate::harness::{CheckNotes, HarnessAdapter, ScenarioNotes};
use polar_simulator::{Policy, PolicyError};
use serde::Deserialize;
use serde_json::{Map, Value};

/// One situation that a program must cope with.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name, which is also the name of its file.
    pub name: String,
    /// What it is about, for people.
    pub about: String,
    /// Whether the engine fails in it.
    #[serde(default)]
    pub kind: ScenarioKind,
    /// Another scenario, whose task and rules this one has; its own rules come first.
    #[serde(default)]
    base: Option<String>,
    /// Tools that the adapter's `check` must name, unless it speaks of the scenario; without
    /// them it is left out.
    #[serde(default)]
    pub(super) needs: Vec<String>,
    /// What the agent is asked to do.
    #[serde(default)]
    pub(super) instruction: String,
    /// A command that succeeds when the work is done.
    #[serde(default)]
    pub(super) evaluator: String,
    /// Tokens that the simulated model holds.
    #[serde(default = "wide_window")]
    pub(super) context_window: usize,
    /// Longest run, in seconds, where it needs more than others.
    #[serde(default)]
    pub(super) run_seconds: Option<f64>,
    /// Whether the engine is killed once a reply is under way, and started again.
    #[serde(default)]
    pub(super) restart: bool,
    rules: Vec<Value>,
    expect: Map<String, Value>,
}

/// What a scenario is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScenarioKind {
    /// The program at work with an engine in order.
    #[default]
    Work,
    /// The program while the engine fails.
    Fault,
}

fn wide_window() -> usize {
    131_072
}

/// Why a scenario cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// No such scenario.
    #[error("there is no scenario {name:?}; there are {}", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// A shipped file is not one.
    #[error("the scenario {name} cannot be read: {problem}")]
    Syntax {
        /// Which.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// What it plays is no policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../assets/scenarios/", $name, ".yaml")))),*]
    };
}

const SHIPPED: &[(&str, &str)] = &shipped![
    "write_file",
    "parallel_calls",
    "failing_tool",
    "unknown_tool",
    "reasoning",
    "odd_arguments",
    "wide_letters",
    "long_task",
    "sub_agent",
    "compaction",
    "rate_limited",
    "server_error",
    "overloaded",
    "context_overflow",
    "cut_stream",
    "cut_text",
    "silence",
    "restart",
];

impl Scenario {
    /// Names of all scenarios, in the order in which they are run.
    pub fn names() -> Vec<&'static str> {
        SHIPPED.iter().map(|(name, _)| *name).collect()
    }

    /// The scenario of this name.
    pub fn shipped(name: &str) -> Result<Self, ScenarioError> {
        let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) else {
            return Err(ScenarioError::Unknown { name: name.to_owned(), known: Self::names() });
        };
        Self::from_yaml(name, text)
    }

    /// A scenario of one's own. `origin` names it in errors.
    pub fn from_yaml(origin: &str, text: &str) -> Result<Self, ScenarioError> {
        let syntax = |problem: String| ScenarioError::Syntax { name: origin.to_owned(), problem };
        let mut scenario: Self =
            serde_saphyr::from_str(text).map_err(|error| syntax(error.to_string()))?;
        if let Some(base) = scenario.base.take() {
            let base = Self::shipped(&base)?;
            scenario.instruction = base.instruction;
            scenario.evaluator = base.evaluator;
            scenario.rules.extend(base.rules);
        }
        if scenario.instruction.is_empty() || scenario.evaluator.is_empty() {
            return Err(syntax("it has no `instruction` and `evaluator`, nor a `base`".to_owned()));
        }
        Ok(scenario)
    }

    /// All scenarios of a kind.
    pub fn all(kind: ScenarioKind) -> Result<Vec<Self>, ScenarioError> {
        let all: Result<Vec<Self>, _> = Self::names().into_iter().map(Self::shipped).collect();
        Ok(all?.into_iter().filter(|scenario| scenario.kind == kind).collect())
    }

    /// Why it is not run with this adapter; absent when it is.
    pub fn left_out(&self, adapter: &HarnessAdapter) -> Option<String> {
        let notes = &adapter.check;
        if let Some(reason) = &self.notes(notes).skip {
            return Some(reason.clone());
        }
        let known = |need: &String| {
            notes.tools.contains_key(need) || notes.scenarios.contains_key(&self.name)
        };
        let missing = self.needs.iter().find(|need| !known(need))?;
        Some(format!("the adapter's `check` says nothing of {missing}"))
    }

    /// What the simulated model plays for a program of which this is known.
    pub fn policy(&self, notes: &CheckNotes) -> Result<Policy, ScenarioError> {
        self.policy_of(&self.rules_for(notes), notes)
    }

    /// The same without faults: an engine that was started again.
    pub(super) fn policy_in_order(&self, notes: &CheckNotes) -> Result<Policy, ScenarioError> {
        let mut sound = self.rules_for(notes);
        sound.retain(|rule| rule.get("fault").is_none());
        self.policy_of(&sound, notes)
    }

    /// The program's own rules, and those of the scenario.
    fn rules_for(&self, notes: &CheckNotes) -> Vec<Value> {
        [self.notes(notes).rules, self.rules.clone()].concat()
    }

    fn policy_of(&self, rules: &[Value], notes: &CheckNotes) -> Result<Policy, ScenarioError> {
        let policy = serde_json::json!({
            "name": self.name,
            "description": self.about,
            "rules": script::expand(rules, notes),
            "default": {"reasoning": "Nothing is left to do.", "text": "Nothing is left to do."},
        });
        // JSON is YAML.
        Ok(Policy::from_yaml(&policy.to_string())?)
    }

    /// What must come of it.
    pub(super) fn expectations(&self, notes: &CheckNotes) -> Result<Expectations, ScenarioError> {
        let mut expect = self.expect.clone();
        expect.extend(self.notes(notes).expect);
        serde_json::from_value(Value::Object(expect)).map_err(|error| ScenarioError::Syntax {
            name: self.name.clone(),
            problem: format!("expect: {error}"),
        })
    }

    /// What the adapter says for it.
    pub(super) fn notes(&self, notes: &CheckNotes) -> ScenarioNotes {
        notes.scenarios.get(&self.name).cloned().unwrap_or_default()
    }
}

/// What a model plays that writes hello.txt with whichever shell tool it is offered: the
/// `write_file` scenario's, for tests of other crates.
pub fn write_file_policy() -> Policy {
    let scenario = Scenario::shipped("write_file");
    scenario.and_then(|scenario| scenario.policy(&CheckNotes::default())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_can_be_played_with_every_shipped_adapter() {
        for name in Scenario::names() {
            let scenario = Scenario::shipped(name).unwrap();
            assert_eq!(scenario.name, name);
            scenario.policy(&CheckNotes::default()).unwrap();
            for adapter in HarnessAdapter::list().unwrap() {
                scenario.policy(&adapter.check).unwrap();
                scenario.policy_in_order(&adapter.check).unwrap();
                scenario.expectations(&adapter.check).unwrap();
            }
        }
    }

    #[test]
    fn an_adapters_own_rules_come_first_and_their_faults_end_with_the_engine() {
        let own = serde_json::json!([
            {"name": "first of all", "fault": "status=500", "times": 1},
            {"name": "first then", "reply": {"text": "x"}},
        ]);
        let notes = serde_json::json!({"scenarios": {"restart": {"rules": own}}});
        let notes: CheckNotes = serde_json::from_value(notes).unwrap();
        let scenario = Scenario::shipped("restart").unwrap();
        let places = |policy: Policy| {
            let shown = format!("{policy:?}");
            ["first of all", "first then", "name: \"fault\"", "name: \"write\""]
                .map(|name| shown.find(name))
        };
        let whole = places(scenario.policy(&notes).unwrap());
        assert!(whole.iter().all(Option::is_some) && whole.is_sorted(), "{whole:?}");
        let [fault, own, scenarios_fault, write] =
            places(scenario.policy_in_order(&notes).unwrap());
        assert_eq!((fault, scenarios_fault), (None, None));
        assert!(own.is_some() && own < write);
    }

    #[test]
    fn adapters_speak_of_scenarios_that_there_are() {
        for adapter in HarnessAdapter::list().unwrap() {
            for name in adapter.check.scenarios.keys() {
                let known = Scenario::names().contains(&name.as_str());
                assert!(known, "{} speaks of {name}", adapter.name);
            }
        }
    }
}
