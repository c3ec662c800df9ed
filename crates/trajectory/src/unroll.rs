//! Reads the traces back out of a tree.

use crate::Violation;
use crate::verify::tree_holds_together;
use polar_types::{TokenTree, Trace, Trajectory, TreeLineage, WeightSpan};
use serde_json::Value;

/// A session's traces: its own, or those that its tree stands for, which are what
/// `prefix_merging` makes of the session. An error where the tree does not hold together.
pub fn unroll(trajectory: &Trajectory) -> Result<Vec<Trace>, Violation> {
    let Some(tree) = &trajectory.tree else {
        return Ok(trajectory.traces.clone());
    };
    tree_holds_together(tree)?;
    let lineages = tree.lineages.iter();
    let mut traces = lineages.map(|lineage| trace(trajectory, tree, lineage)).collect::<Vec<_>>();
    weigh(&mut traces, trajectory.reward);
    Ok(traces)
}

/// Notes in each trace of a rollout how many there are, and what the rollout got where the trace
/// got nothing of its own.
pub(crate) fn weigh(traces: &mut [Trace], reward: Option<f64>) {
    let siblings = traces.len() as u32;
    for trace in traces {
        trace.reward = trace.reward.or(reward);
        trace.siblings = siblings;
        trace.loss_weight = 1.0 / f64::from(siblings);
    }
}

/// Nodes from a root to `last`.
pub(crate) fn path(tree: &TokenTree, last: u32) -> Vec<u32> {
    let parent = |node: &u32| tree.nodes[*node as usize].parent;
    let mut path: Vec<u32> = std::iter::successors(Some(last), parent).collect();
    path.reverse();
    path
}

fn trace(trajectory: &Trajectory, tree: &TokenTree, lineage: &TreeLineage) -> Trace {
    let (mut ids, mut loss_mask, mut logprobs) = (Vec::new(), Vec::new(), Vec::new());
    let mut weight_versions = Vec::new();
    let prompt = lineage.prompt_tokens;
    for node in path(tree, lineage.last_node) {
        let node = &tree.nodes[node as usize];
        for span in &node.weight_versions {
            push_span(&mut weight_versions, span, ids.len() as u64, prompt);
        }
        ids.extend_from_slice(&node.ids);
        loss_mask.extend_from_slice(&node.loss_mask);
        logprobs.extend_from_slice(&node.logprobs);
    }
    let prompt = prompt as usize;
    let value = |place: &u32| tree.values[*place as usize].clone();
    let values = |places: &[u32]| places.iter().map(value).collect::<Vec<Value>>();
    Trace {
        response_ids: ids.split_off(prompt),
        prompt_ids: ids,
        loss_mask: loss_mask.split_off(prompt),
        response_logprobs: logprobs.split_off(prompt),
        prompt_messages: values(&lineage.prompt_messages),
        response_messages: values(&lineage.response_messages),
        tools: lineage.tools.as_ref().map(value),
        finish_reason: lineage.finish_reason.clone(),
        reward: lineage.reward,
        turn_scores: lineage.turn_scores.clone(),
        turn_ends: lineage.turn_ends.clone(),
        weight_versions,
        lineage: lineage.lineage.clone(),
        calls: lineage.calls.clone(),
        rollout_id: trajectory.session_id.clone(),
        group_id: trajectory.group_id.clone(),
        siblings: 0,
        loss_weight: 0.0,
        sampling: lineage.sampling.clone(),
    }
}

/// Adds a span of a node that begins `before` tokens into the sequence, as far as it lies
/// behind the prompt. A span that a cut between nodes made two of becomes one again.
fn push_span(spans: &mut Vec<WeightSpan>, span: &WeightSpan, before: u64, prompt: u64) {
    let start = (before + span.start).saturating_sub(prompt);
    let end = (before + span.end).saturating_sub(prompt);
    match spans.last_mut() {
        _ if start >= end => {}
        Some(last) if last.end == start && last.version == span.version => last.end = end,
        _ => spans.push(WeightSpan { version: span.version.clone(), start, end }),
    }
}
