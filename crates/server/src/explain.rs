//! Whether nodes can run a task, and why nobody takes a queued session, as far as nodes and the
//! trainer's queue say.

use crate::app::App;
use polar_store::StoreError;
use polar_types::{Demand, FieldProblem, NodeSeen, QueueInfo, SessionInfo, SessionStatus, TaskId};

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

/// Adds to what a task's queued sessions wait for why none is taken, where that is so.
pub(crate) async fn say_why_none_is_taken(
    app: &App,
    task: &TaskId,
    sessions: &mut [SessionInfo],
) -> Result<(), StoreError> {
    let is_queued = |session: &SessionInfo| session.status == SessionStatus::Queued;
    if !sessions.iter().any(is_queued) {
        return Ok(());
    }
    let about = app.store.task(task).await?;
    let queue = app.store.queue(&about.queue).await?;
    // Of a group that is begun at least one session has left the queue, or come back to it.
    let is_begun = about.sessions.keys().any(|status| status != SessionStatus::Queued.as_str())
        || sessions.iter().any(|session| !session.attempts.is_empty());
    if let Some(why) = why_it_is_held_back(&queue).filter(|_| !is_begun) {
        for session in sessions.iter_mut() {
            session.waiting_for = Some(why.clone());
        }
        return Ok(());
    }
    let (demand, nodes) = (app.store.demand(task).await?, app.store.nodes(app.now()).await?);
    say_why_nobody_takes(sessions, &demand, &nodes);
    Ok(())
}

/// Nothing where the queue takes further groups.
fn why_it_is_held_back(queue: &QueueInfo) -> Option<String> {
    let most = queue.max_ahead.filter(|most| u64::from(*most) <= queue.ahead)?;
    let QueueInfo { queue, ahead, .. } = queue;
    Some(format!(
        "the trainer of queue {queue}, which has {ahead} of at most {most} groups ahead of it \
         (`max_ahead`)"
    ))
}

/// Adds to what queued sessions of a task wait for why no node takes any, where that is so.
fn say_why_nobody_takes(sessions: &mut [SessionInfo], demand: &Demand, nodes: &[NodeSeen]) {
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
        let trouble = seen.node.troubles.first().map(ToString::to_string);
        let why = trouble.or_else(|| {
            let lacks = seen.node.room.why_not_now(demand.footprint)?;
            Some(format!("no room for {lacks}"))
        })?;
        Some(format!("{}: {why}", seen.node.node_id))
    });
    let mut told = troubles.collect::<Option<Vec<_>>>()?;
    let more = told.len().saturating_sub(MOST_NODES);
    told.truncate(MOST_NODES);
    let more = if more > 0 { format!(", and {more} more nodes") } else { String::new() };
    Some(format!("no node takes sessions now ({}{more})", told.join("; ")))
}
