//! The engines of nodes: how each is, and what it may be told while it serves.

use crate::{FieldProblem, NodeId};
use serde::{Deserialize, Serialize};

/// Largest weight of an engine.
const LARGEST_WEIGHT: f64 = 1000.0;

/// Whether an engine takes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EngineState {
    /// It takes calls.
    Ready,
    /// It was told to take no more; calls under way end there, and its sessions go elsewhere
    /// with their next call.
    Draining,
    /// It has not the weights that are wanted, and takes no calls until it has.
    Fenced,
    /// It cannot be reached, or fails every call. It is asked again and again, and comes back
    /// by itself.
    Down,
}

impl EngineState {
    /// All of them, for counts.
    pub const ALL: [Self; 4] = [Self::Ready, Self::Draining, Self::Fenced, Self::Down];

    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Fenced => "fenced",
            Self::Down => "down",
        }
    }
}

/// One engine behind a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EngineStatus {
    /// Its URL.
    pub engine: String,
    /// Which it is: `vLLM`, `SGLang`, `llama.cpp`, `TensorRT-LLM`.
    pub kind: String,
    /// Whether it takes calls.
    pub state: EngineState,
    /// Why it takes none, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its share of new sessions, beside the weights of the others.
    pub weight: f64,
    /// Sessions whose calls go there.
    pub sessions: u32,
    /// Calls under way there.
    pub in_flight: u32,
    /// Calls that it has begun to answer since the node started.
    pub calls: u64,
    /// Calls that it failed since then, those that were held or went elsewhere among them.
    pub errors: u64,
    /// Sessions that went from it to another engine since then.
    pub moved_away: u64,
    /// The version of its weights, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_version: Option<String>,
}

/// What is wrong with the weight of an engine, if anything is.
pub fn engine_weight_problem(weight: f64) -> Option<String> {
    let is_fit = weight.is_finite() && weight > 0.0 && weight <= LARGEST_WEIGHT;
    (!is_fit).then(|| {
        format!(
            "the weight of an engine is a number above 0 and up to {LARGEST_WEIGHT}, not {weight}"
        )
    })
}

/// What an engine is told while its node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EngineAction {
    /// It comes to a node: is checked, brought to the weights that all have, and takes calls.
    Add,
    /// It takes no more calls.
    Drain,
    /// It takes calls again.
    Resume,
    /// It is drained, and goes once nothing is under way there.
    Remove,
    /// It gets another share of new sessions.
    Weight,
}

impl EngineAction {
    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Drain => "drain",
            Self::Resume => "resume",
            Self::Remove => "remove",
            Self::Weight => "weight",
        }
    }
}

/// `POST /api/engines`: a change of which engines a node has, or of one of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineRequest {
    /// What is to be done.
    pub action: EngineAction,
    /// The engine, as `host:port` or a URL, as its node reaches it.
    pub engine: String,
    /// Its share of new sessions beside the weights of the others; 1 when absent. Needed for
    /// `weight`, and taken by `add`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// The node; the one that has the engine when absent, or the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<NodeId>,
}

impl EngineRequest {
    /// What is wrong with it.
    pub fn problems(&self) -> Vec<FieldProblem> {
        let mut found = Vec::new();
        if self.engine.trim().is_empty() {
            found.push(FieldProblem::new("engine", "must not be empty", r#""localhost:8000""#));
        }
        let takes_weight = matches!(self.action, EngineAction::Add | EngineAction::Weight);
        match self.weight {
            None if self.action == EngineAction::Weight => {
                found.push(FieldProblem::new("weight", "must be given", "2"));
            }
            Some(_) if !takes_weight => {
                let what = format!("says nothing to `{}`", self.action.as_str());
                found.push(FieldProblem::new("weight", what, "null"));
            }
            Some(weight) => {
                let problem = engine_weight_problem(weight);
                found.extend(problem.map(|what| FieldProblem::new("weight", what, "2")));
            }
            None => {}
        }
        found
    }

    /// The engine's address as engines are listed.
    pub fn url(&self) -> String {
        let address = self.engine.trim().trim_end_matches('/');
        if address.contains("://") { address.to_owned() } else { format!("http://{address}") }
    }
}

/// The engines of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NodeEngines {
    /// The node.
    pub node_id: NodeId,
    /// Whether it was heard of lately.
    pub alive: bool,
    /// Its engines, in the order in which they came.
    pub engines: Vec<EngineStatus>,
}

/// Answer to `GET /api/engines`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EngineList {
    /// All nodes that have engines.
    pub nodes: Vec<NodeEngines>,
}

/// What a node is to do with an engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EngineOrder {
    /// Names the order.
    pub id: String,
    /// What.
    pub request: EngineRequest,
}

/// What came of an order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EngineOrderDone {
    /// Which.
    pub id: String,
    /// Why it was not done; absent where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The node's engines behind it.
    pub engines: Vec<EngineStatus>,
}

/// `POST /api/nodes/{id}/engines`: what a node has done of what it was told. Held open until there
/// is an order that it does not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EngineOrderReport {
    /// Who reports.
    pub node_id: NodeId,
    /// Orders that the node has and has not reported.
    #[serde(default)]
    pub known: Vec<String>,
    /// Orders that are done.
    #[serde(default)]
    pub done: Vec<EngineOrderDone>,
    /// How long the server may hold the request open, in seconds.
    #[serde(default)]
    pub wait_seconds: f64,
}

/// Answer to [`EngineOrderReport`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EngineOrders {
    /// Orders that are not done, the first first.
    pub orders: Vec<EngineOrder>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_wrong_field_is_named() {
        let fields = |value| {
            let request: EngineRequest = serde_json::from_value(value).unwrap();
            request.problems().into_iter().map(|problem| problem.field).collect::<Vec<_>>()
        };
        assert_eq!(fields(json!({"action": "add", "engine": "host:1"})), [""; 0]);
        assert_eq!(
            fields(json!({"action": "add", "engine": " ", "weight": 0})),
            ["engine", "weight"]
        );
        assert_eq!(fields(json!({"action": "weight", "engine": "host:1"})), ["weight"]);
        assert_eq!(fields(json!({"action": "drain", "engine": "host:1", "weight": 1})), ["weight"]);
    }

    #[test]
    fn an_address_is_the_url_by_which_engines_are_listed() {
        let url = |engine: &str| {
            let request = json!({"action": "drain", "engine": engine});
            serde_json::from_value::<EngineRequest>(request).unwrap().url()
        };
        assert_eq!(url("host:8000"), "http://host:8000");
        assert_eq!(url("https://host/v/ "), "https://host/v");
    }
}
