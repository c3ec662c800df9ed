//! What can be checked of a trajectory without its records: that it fits itself.

use super::Violation;
use polar_types::{CallId, TokenTree, Trace, Trajectory, TrajectoryStrategy, UntrainedReason};
use polar_types::{TreeNode, WeightSpan};
use std::collections::HashSet;

/// Checks that a trajectory fits itself: lengths, masks, spans, counts, every call in one trace.
/// Whether it is what the engine sampled, only its records can show; see [`super::verify`].
pub fn verify_alone(trajectory: &Trajectory) -> Result<(), Violation> {
    let totals = match &trajectory.tree {
        Some(tree) => of_tree(tree)?,
        None => of_traces(&trajectory.traces)?,
    };
    each_call_once(trajectory)?;
    all_turns(trajectory)?;
    counts(trajectory, &totals)
}

/// What the traces or the tree hold.
struct Totals {
    trained: u64,
    responses: u64,
    /// Samples and tokens for a trainer.
    size: (u64, u64),
}

fn of_traces(traces: &[Trace]) -> Result<Totals, Violation> {
    let mut totals = Totals { trained: 0, responses: 0, size: (traces.len() as u64, 0) };
    for (number, trace) in traces.iter().enumerate() {
        let place = || format!("trace {number}");
        let len = trace.response_ids.len();
        if trace.loss_mask.len() != len || trace.response_logprobs.len() != len {
            return Err(Violation::Lengths { place: place() });
        }
        let mask = (&trace.loss_mask[..], &trace.response_logprobs[..]);
        totals.trained += masks(mask, trace.prompt_ids.len(), place)?;
        spans(&trace.weight_versions, &trace.loss_mask, place)?;
        if trace.siblings as usize != traces.len() || trace.loss_weight != 1.0 / traces.len() as f64
        {
            return Err(Violation::Siblings { trace: number });
        }
        totals.responses += len as u64;
        totals.size.1 += (trace.prompt_ids.len() + len) as u64;
    }
    Ok(totals)
}

fn of_tree(tree: &TokenTree) -> Result<Totals, Violation> {
    tree_holds_together(tree)?;
    let roots = tree.nodes.iter().filter(|node| node.parent.is_none()).count();
    let mut totals = Totals { trained: 0, responses: 0, size: (roots as u64, 0) };
    for (number, node) in tree.nodes.iter().enumerate() {
        let place = || format!("node {number}");
        totals.trained += masks((&node.loss_mask, &node.logprobs), 0, place)?;
        spans(&node.weight_versions, &node.loss_mask, place)?;
        totals.size.1 += node.ids.len() as u64;
    }
    let ends = ends(&tree.nodes);
    for lineage in &tree.lineages {
        totals.responses += ends[lineage.last_node as usize] - lineage.prompt_tokens;
    }
    Ok(totals)
}

fn all_turns(trajectory: &Trajectory) -> Result<(), Violation> {
    for (number, trace) in trajectory.traces.iter().enumerate() {
        let (place, response) = (|| format!("trace {number}"), trace.response_ids.len() as u64);
        turns(&trace.calls, &trace.turn_ends, &trace.turn_scores, response, place)?;
    }
    let Some(tree) = &trajectory.tree else { return Ok(()) };
    let ends = ends(&tree.nodes);
    for (number, lineage) in tree.lineages.iter().enumerate() {
        let response = ends[lineage.last_node as usize] - lineage.prompt_tokens;
        let place = || format!("lineage {number}");
        turns(&lineage.calls, &lineage.turn_ends, &lineage.turn_scores, response, place)?;
    }
    Ok(())
}

/// Checks that each call has an end of its own within the response, the last one at its end, and
/// rewards are as many as calls. Older versions have neither.
fn turns(
    calls: &[CallId],
    ends: &[u64],
    scores: &[Option<f64>],
    response: u64,
    place: impl Fn() -> String,
) -> Result<(), Violation> {
    let are_as_many = |len: usize| len == 0 || len == calls.len();
    let rise = ends.windows(2).all(|pair| pair[0] < pair[1]);
    let ends_there = ends.last().is_none_or(|last| *last == response);
    if !are_as_many(ends.len()) || !are_as_many(scores.len()) || !rise || !ends_there {
        return Err(Violation::Turns { place: place() });
    }
    Ok(())
}

/// Checks that every index of a tree names something, parents come first, every node is on the
/// path of some lineage, and arrays are as long as each other.
pub(crate) fn tree_holds_together(tree: &TokenTree) -> Result<(), Violation> {
    let broken = |what: String| Err(Violation::Tree { what });
    for (number, node) in tree.nodes.iter().enumerate() {
        let len = node.ids.len();
        if node.loss_mask.len() != len || node.logprobs.len() != len {
            return Err(Violation::Lengths { place: format!("node {number}") });
        }
        if len == 0 {
            return broken(format!("node {number} holds no token"));
        }
        if let Some(parent) = node.parent.filter(|parent| *parent as usize >= number) {
            return broken(format!("node {number} stands before its parent, node {parent}"));
        }
    }
    let ends = ends(&tree.nodes);
    let mut is_used = vec![false; tree.nodes.len()];
    for (number, lineage) in tree.lineages.iter().enumerate() {
        let Some(end) = ends.get(lineage.last_node as usize) else {
            return broken(format!("lineage {number} ends with a node that is not there"));
        };
        if lineage.prompt_tokens >= *end || lineage.calls.is_empty() {
            return broken(format!("nothing was sampled in lineage {number}"));
        }
        let messages = lineage.prompt_messages.iter().chain(&lineage.response_messages);
        if messages.chain(&lineage.tools).any(|place| *place as usize >= tree.values.len()) {
            return broken(format!("lineage {number} names a message that is not there"));
        }
        let mut at = Some(lineage.last_node as usize);
        while let Some(node) = at.filter(|node| !is_used[*node]) {
            is_used[node] = true;
            at = tree.nodes[node].parent.map(|parent| parent as usize);
        }
    }
    match is_used.iter().position(|used| !used) {
        Some(node) => broken(format!("node {node} is in no lineage")),
        None => Ok(()),
    }
}

/// Tokens from the root to the end of each node. Parents come before their children.
pub(super) fn ends(nodes: &[TreeNode]) -> Vec<u64> {
    let mut ends: Vec<u64> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let before = node.parent.and_then(|parent| ends.get(parent as usize)).copied();
        ends.push(before.unwrap_or(0) + node.ids.len() as u64);
    }
    ends
}

/// Checks that exactly the trained positions have a logprob, and counts them.
fn masks(
    (mask, logprobs): (&[u8], &[Option<f32>]),
    before: usize,
    place: impl Fn() -> String,
) -> Result<u64, Violation> {
    let mut trained = 0;
    for (at, (mask, logprob)) in mask.iter().zip(logprobs).enumerate() {
        let has_one = logprob.is_some_and(f32::is_finite);
        if *mask != u8::from(has_one) || logprob.is_some() != has_one {
            return Err(Violation::Mask { place: place(), position: before + at });
        }
        trained += u64::from(*mask);
    }
    Ok(trained)
}

/// Checks that spans are in order, in range, and hold every trained position.
fn spans(spans: &[WeightSpan], mask: &[u8], place: impl Fn() -> String) -> Result<(), Violation> {
    let mut reached = 0;
    let is_bare = |from: u64, to: u64| mask[from as usize..to as usize].iter().all(|m| *m == 0);
    for span in spans {
        let fits = reached <= span.start && span.start < span.end && span.end <= mask.len() as u64;
        if !fits || !is_bare(reached, span.start) {
            return Err(Violation::WeightVersions { place: place() });
        }
        reached = span.end;
    }
    if is_bare(reached, mask.len() as u64) {
        Ok(())
    } else {
        Err(Violation::WeightVersions { place: place() })
    }
}

fn each_call_once(trajectory: &Trajectory) -> Result<(), Violation> {
    let mut seen: HashSet<&CallId> = HashSet::new();
    let of_traces = trajectory.traces.iter().map(|trace| &trace.calls);
    let lineages = trajectory.tree.iter().flat_map(|tree| &tree.lineages);
    for (trace, calls) in of_traces.chain(lineages.map(|lineage| &lineage.calls)).enumerate() {
        if let Some(call) = calls.iter().find(|call| !seen.insert(call)) {
            return Err(Violation::TrainedTwice { trace, call: call.clone() });
        }
    }
    Ok(())
}

fn counts(trajectory: &Trajectory, totals: &Totals) -> Result<(), Violation> {
    let tokens = &trajectory.tokens;
    let holes = tokens.untrained.get(&UntrainedReason::LogprobMissing).copied().unwrap_or(0);
    let all = tokens.trained + tokens.untrained.values().sum::<u64>();
    expect("trained", tokens.trained, totals.trained)?;
    expect("trained and untrained together", all, tokens.sampled)?;
    let in_responses = tokens.trained + tokens.context + holes;
    expect("trained, context and logprob_missing together", in_responses, totals.responses)?;
    let Some(sizes) = &trajectory.sizes else { return Ok(()) };
    let own = match trajectory.strategy {
        TrajectoryStrategy::PerRequest => sizes.per_request,
        TrajectoryStrategy::PrefixMerging => sizes.prefix_merging,
        TrajectoryStrategy::PrefixTree => sizes.prefix_tree,
    };
    expect("samples of its own layout", own.samples, totals.size.0)?;
    expect("tokens of its own layout", own.tokens, totals.size.1)
}

pub(super) fn expect(what: &str, counted: u64, found: u64) -> Result<(), Violation> {
    if counted == found {
        return Ok(());
    }
    Err(Violation::Counts { what: what.to_owned(), counted, found })
}
