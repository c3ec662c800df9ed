//! Why nobody takes a queued session, as far as the nodes say.

use polar_types::{NodeSeen, SessionInfo, SessionStatus};

/// Most nodes that are named; others have much the same to say.
const MOST_NODES: usize = 3;

/// Adds to what queued sessions wait for why no node takes any, where that is so.
pub(crate) fn say_why_nobody_takes(sessions: &mut [SessionInfo], nodes: &[NodeSeen]) {
    let Some(why) = why_nobody_takes(nodes) else { return };
    let queued = sessions.iter_mut().filter(|session| session.status == SessionStatus::Queued);
    for waiting in queued.filter_map(|session| session.waiting_for.as_mut()) {
        waiting.push_str("; ");
        waiting.push_str(&why);
    }
}

/// Nothing where a node does take sessions.
fn why_nobody_takes(nodes: &[NodeSeen]) -> Option<String> {
    let alive: Vec<_> = nodes.iter().filter(|seen| seen.alive).collect();
    if alive.is_empty() {
        return Some("no node is running".to_owned());
    }
    let troubles = alive.iter().map(|seen| {
        let trouble = seen.node.troubles.first()?;
        Some(format!("{}: {trouble}", seen.node.node_id))
    });
    let mut told = troubles.collect::<Option<Vec<_>>>()?;
    let more = told.len().saturating_sub(MOST_NODES);
    told.truncate(MOST_NODES);
    let more = if more > 0 { format!(", and {more} more nodes") } else { String::new() };
    Some(format!("no node takes sessions now ({}{more})", told.join("; ")))
}
