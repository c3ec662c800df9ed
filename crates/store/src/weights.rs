//! What both stores make of weight updates: where one stands, told from its engines.

use crate::StoreError;
use crate::rules::rfc3339;
use polar_types::{
    EngineWeights, NodeId, UpdateCalls, UpdateStatus, WeightState, WeightUpdate,
    WeightUpdateRequest,
};

/// Answer to a push of weights.
#[derive(Debug, Clone, PartialEq)]
pub struct PushedWeights {
    /// The update as stored.
    pub update: WeightUpdate,
    /// Whether this push stored it; false for a repeat.
    pub created: bool,
}

/// An update as it is kept.
#[derive(Debug, Clone)]
pub(crate) struct StoredUpdate {
    pub(crate) request: WeightUpdateRequest,
    pub(crate) ordinal: u64,
    pub(crate) requested_at: i64,
    /// When every engine had it for the first time.
    pub(crate) done_at: Option<i64>,
}

/// A node that has engines.
#[derive(Debug, Clone)]
pub(crate) struct WeightNode {
    pub(crate) node_id: NodeId,
    /// Its engine, for people.
    pub(crate) engine: String,
    pub(crate) alive: bool,
}

impl StoredUpdate {
    /// The update for people and trainers. `told` is what was heard of engines with it, `nodes`
    /// all that are known.
    pub(crate) fn shown(
        self,
        told: Vec<EngineWeights>,
        nodes: &[WeightNode],
        is_newest: bool,
    ) -> WeightUpdate {
        let engines = if is_newest { with_waiting(told, nodes) } else { told };
        let status = match is_newest {
            true => status(&engines, nodes),
            false => UpdateStatus::Superseded,
        };
        let seconds = self.done_at.map(|done| (done - self.requested_at).max(0) as f64 / 1000.0);
        WeightUpdate {
            request: self.request,
            ordinal: self.ordinal,
            status,
            requested_at: rfc3339(self.requested_at),
            seconds,
            engines,
        }
    }
}

/// Whether every engine of every living node has the newest weights by now.
pub(crate) fn are_all_new(told: Vec<EngineWeights>, nodes: &[WeightNode]) -> bool {
    status(&with_waiting(told, nodes), nodes) == UpdateStatus::Current
}

/// What was told, without the engines of lost nodes that are not through, and with the nodes
/// that have said nothing yet.
fn with_waiting(told: Vec<EngineWeights>, nodes: &[WeightNode]) -> Vec<EngineWeights> {
    let is_alive = |engine: &EngineWeights| {
        nodes.iter().any(|node| node.alive && engine.node_id.as_ref() == Some(&node.node_id))
    };
    let mut engines: Vec<EngineWeights> = told
        .into_iter()
        .filter(|engine| engine.state == WeightState::Current || is_alive(engine))
        .collect();
    for node in nodes.iter().filter(|node| node.alive) {
        if !engines.iter().any(|engine| engine.node_id.as_ref() == Some(&node.node_id)) {
            engines.push(EngineWeights {
                node_id: Some(node.node_id.clone()),
                engine: node.engine.clone(),
                state: WeightState::Waiting,
                version: None,
                reason: Some("its node has not asked for it yet".to_owned()),
                held_seconds: None,
                calls: UpdateCalls::default(),
                at: None,
            });
        }
    }
    engines.sort_by(|a, b| (&a.node_id, &a.engine).cmp(&(&b.node_id, &b.engine)));
    engines
}

fn status(engines: &[EngineWeights], nodes: &[WeightNode]) -> UpdateStatus {
    let is_alive = |engine: &&EngineWeights| {
        nodes.iter().any(|node| node.alive && engine.node_id.as_ref() == Some(&node.node_id))
    };
    let states: Vec<WeightState> = engines.iter().filter(is_alive).map(|e| e.state).collect();
    if states.is_empty() || !states.iter().all(|state| state.is_settled()) {
        UpdateStatus::Rolling
    } else if states.iter().all(|state| *state == WeightState::Current) {
        UpdateStatus::Current
    } else {
        UpdateStatus::Partial
    }
}

/// What becomes of a push under a version that was pushed before.
pub(crate) enum Repeat {
    /// It is the same update.
    Same,
    /// It is made anew, and is the newest: it had not come through, or others came after it.
    Again,
}

/// Under one version there are the same weights always: tokens carry no more than its name.
pub(crate) fn repeat(
    stored: &WeightUpdate,
    given: &WeightUpdateRequest,
) -> Result<Repeat, StoreError> {
    let is_over = matches!(stored.status, UpdateStatus::Partial | UpdateStatus::Superseded);
    match stored.request.differs_in(given) {
        None if is_over => Ok(Repeat::Again),
        Some(field) if is_over && field != "source" => Ok(Repeat::Again),
        None => Ok(Repeat::Same),
        Some(field) => {
            let before = serde_json::to_value(&stored.request).unwrap_or_default();
            let problem = "is not what this version was pushed with before";
            Err(StoreError::conflict_in(
                (field, problem, before[field].to_string()),
                format!(
                    "version {:?} was pushed before with another `{field}`; send the same again, \
                     or give these weights a version of their own",
                    stored.request.version
                ),
            ))
        }
    }
}
