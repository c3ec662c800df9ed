//! Holds a tree against the records, lineage by lineage.

use super::alone::ends;
use super::sequence::{Laid, spans_cover};
use super::{Check, Violation};
use polar_record::RecordedCall;
use polar_types::{CallId, TokenTree, TreeLineage};

impl<'a> Check<'a> {
    /// Checks all lineages of a tree that holds together. Each owns the nodes that no lineage
    /// before it has on its path; the others were checked with their owner.
    pub(super) fn tree(&mut self, tree: &TokenTree) -> Result<(), Violation> {
        let ends = ends(&tree.nodes);
        let mut owner: Vec<Option<usize>> = vec![None; tree.nodes.len()];
        for (number, lineage) in tree.lineages.iter().enumerate() {
            let mut own = Vec::new();
            let mut at = Some(lineage.last_node as usize);
            while let Some(node) = at.filter(|node| owner[*node].is_none()) {
                owner[node] = Some(number);
                own.push(node);
                at = tree.nodes[node].parent.map(|parent| parent as usize);
            }
            own.reverse();
            let start = at.map_or(0, |node| ends[node] as usize);
            let shared_with = at.and_then(|node| owner[node]).map(|owner| &tree.lineages[owner]);
            let behind = match shared_with {
                Some(other) => Some(self.passes(other, start, number, lineage)?),
                None => None,
            };
            let laid = lay_out(tree, lineage, number, &own, start);
            let sampled_by = self.sequence(&laid, behind)?;
            nodes(tree, lineage, &own, &sampled_by)?;
            let prompt = lineage.prompt_tokens as usize;
            let place = || format!("lineage {number}");
            self.turn_ends(&lineage.calls, &lineage.turn_ends, prompt, place)?;
            self.responses += ends[lineage.last_node as usize] - lineage.prompt_tokens;
        }
        Ok(())
    }

    /// A call of `other` whose sequence begins with the first `start` tokens of its path, once
    /// these show no other pictures than those of `lineage`.
    fn passes(
        &self,
        other: &TreeLineage,
        start: usize,
        trace: usize,
        lineage: &TreeLineage,
    ) -> Result<&'a RecordedCall, Violation> {
        let call = |id: &CallId| {
            let unknown = || Violation::UnknownCall { trace, call: id.clone() };
            self.index.get(id).map(|at| &self.session.calls()[*at]).ok_or_else(unknown)
        };
        let first = lineage.calls.first();
        let first = call(first.ok_or_else(|| Violation::Tree { what: "no calls".to_owned() })?)?;
        let shown = if self.has_lists { self.pictures(first) } else { Vec::new() };
        let mut known = 0;
        for id in &other.calls {
            let call = call(id)?;
            let end = call.sequence_end().map_or(0, |end| end.depth());
            let is_partly = start > known && start < call.prompt_end().map_or(0, |end| end.depth());
            let earlier = if self.has_lists { self.pictures(call) } else { Vec::new() };
            let is_same = shown.starts_with(&earlier) || (is_partly && earlier.starts_with(&shown));
            if start > known && !is_same {
                let call = first.meta.call_id.clone();
                return Err(Violation::Pictures { trace, call });
            }
            if end >= start {
                return Ok(call);
            }
            known = end;
        }
        Err(Violation::Context { trace, call: first.meta.call_id.clone(), position: known })
    }
}

fn lay_out<'a>(
    tree: &TokenTree,
    lineage: &'a TreeLineage,
    number: usize,
    own: &[usize],
    start: usize,
) -> Laid<'a> {
    let mut laid = Laid {
        number,
        role: lineage.lineage.role,
        calls: &lineage.calls,
        start,
        prompt: lineage.prompt_tokens as usize,
        ids: Vec::new(),
        mask: Vec::new(),
        logprobs: Vec::new(),
    };
    for node in own.iter().map(|node| &tree.nodes[*node]) {
        laid.ids.extend_from_slice(&node.ids);
        laid.mask.extend_from_slice(&node.loss_mask);
        laid.logprobs.extend_from_slice(&node.logprobs);
    }
    laid
}

/// Checks what the nodes of a lineage say of who sampled in them, and with which weights.
fn nodes(
    tree: &TokenTree,
    lineage: &TreeLineage,
    own: &[usize],
    sampled_by: &[Option<usize>],
) -> Result<(), Violation> {
    let mut rest = sampled_by;
    for number in own {
        let node = &tree.nodes[*number];
        let (here, behind) = rest.split_at(node.ids.len());
        rest = behind;
        let mut calls: Vec<usize> = here.iter().copied().flatten().collect();
        calls.dedup();
        let calls: Vec<&CallId> = calls.into_iter().map(|place| &lineage.calls[place]).collect();
        if calls != node.calls.iter().collect::<Vec<_>>() || node.role != lineage.lineage.role {
            let what = format!("node {number} names other calls than sampled in it");
            return Err(Violation::Tree { what });
        }
        let was_sampled: Vec<bool> = here.iter().map(Option::is_some).collect();
        spans_cover(&node.weight_versions, &was_sampled, || format!("node {number}"))?;
    }
    Ok(())
}
