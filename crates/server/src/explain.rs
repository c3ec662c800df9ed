//! Whether nodes can run a task, and why nobody takes a queued session, as far as nodes say.

use polar_types::{Demand, FieldProblem, NodeSeen, SessionInfo, SessionStatus};

/// Most nodes that are named; others have much the same to say.
const MOST_NODES: usize = 3;

/// Why no node that is known can run a task, where one is running. While none is there, and where
/// one that can was heard of, there is nothing to say: it may come back.
pub(crate) fn why_nobody_can(demand: &Demand, nodes: &[NodeSeen]) -> Option<FieldProblem> {
    if !nodes.iter().any(|seen| seen.alive) {
        return None;
    }
    let known: Vec<_> = nodes.iter().map(|seen| &seen.node).collect();
    demand.problem(&known)
}

/// Adds to what queued sessions of a task wait for why no node takes any, where that is so.
pub(crate) fn say_why_nobody_takes(
    sessions: &mut [SessionInfo],
    demand: &Demand,
    nodes: &[NodeSeen],
) {
    let Some(why) = why_nobody_takes(demand, nodes) else { return };
    let queued = sessions.iter_mut().filter(|session| session.status == SessionStatus::Queued);
    for waiting in queued.filter_map(|session| session.waiting_for.as_mut()) {
        waiting.push_str("; ");
        waiting.push_str(&why);
    }
}

/// Nothing where a node does take sessions.
fn why_nobody_takes(demand: &Demand, nodes: &[NodeSeen]) -> Option<String> {
    let alive: Vec<_> = nodes.iter().filter(|seen| seen.alive).collect();
    if alive.is_empty() {
        return Some("no node is running".to_owned());
    }
    let infos: Vec<_> = alive.iter().map(|seen| &seen.node).collect();
    if let Some(problem) = demand.problem(&infos) {
        return Some(format!("{}: {}", problem.field, problem.problem));
    }
    let able = alive.iter().filter(|seen| demand.is_met_by(&seen.node));
    let troubles = able.map(|seen| {
        let trouble = seen.node.troubles.first()?;
        Some(format!("{}: {trouble}", seen.node.node_id))
    });
    let mut told = troubles.collect::<Option<Vec<_>>>()?;
    let more = told.len().saturating_sub(MOST_NODES);
    told.truncate(MOST_NODES);
    let more = if more > 0 { format!(", and {more} more nodes") } else { String::new() };
    Some(format!("no node takes sessions now ({}{more})", told.join("; ")))
}
