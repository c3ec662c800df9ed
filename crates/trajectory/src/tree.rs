//! Cuts sequences into the nodes of a tree.

use crate::growing::Growing;
use crate::sharing::Sharing;
use polar_record::RecordedSession;
use polar_types::{CallId, TokenTree, TreeLineage, TreeNode, WeightSpan};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// The tree of a session's sequences. `grown` has of each what it does not share.
pub(crate) fn tree(session: &RecordedSession, grown: Vec<Growing>, sharing: &Sharing) -> TokenTree {
    let cuts = cuts(sharing, grown.len());
    let mut growing = Tree { session, nodes: Vec::new(), ends: HashMap::new() };
    let mut values = Values::default();
    let mut lineages = Vec::with_capacity(grown.len());
    for ((sequence, number), cuts) in grown.into_iter().zip(0..).zip(&cuts) {
        let mut parent = sharing
            .attachment(number)
            .and_then(|at| growing.ends.get(&(at.chain, at.depth)).copied());
        let start = sharing.depth(number);
        let end = start + sequence.own_tokens();
        let mut from = start;
        for to in cuts.range(start + 1..end).copied().chain([end]) {
            let node = growing.node(&sequence, start, from..to, parent);
            parent = Some(growing.add(number, to, node));
            from = to;
        }
        if let Some(last_node) = parent {
            lineages.push(lineage(sequence, last_node, start, &mut values));
        }
    }
    TokenTree { nodes: growing.nodes, lineages, values: values.in_order(session) }
}

/// Where other sequences leave each one.
fn cuts(sharing: &Sharing, chains: usize) -> Vec<BTreeSet<usize>> {
    let mut cuts = vec![BTreeSet::new(); chains];
    for attachment in (0..chains as u32).filter_map(|number| sharing.attachment(number)) {
        cuts[attachment.chain as usize].insert(attachment.depth);
    }
    cuts
}

struct Tree<'a> {
    session: &'a RecordedSession,
    nodes: Vec<TreeNode>,
    /// The node of a sequence that ends so many tokens from the root.
    ends: HashMap<(u32, usize), u32>,
}

impl Tree<'_> {
    fn add(&mut self, chain: u32, end: usize, node: TreeNode) -> u32 {
        let number = self.nodes.len() as u32;
        self.nodes.push(node);
        self.ends.insert((chain, end), number);
        number
    }

    /// The tokens of a sequence in `at`, counted from the root; its own begin at `start`.
    fn node(
        &self,
        sequence: &Growing,
        start: usize,
        at: Range<usize>,
        parent: Option<u32>,
    ) -> TreeNode {
        let trace = &sequence.trace;
        let context = trace.prompt_ids.len();
        let response = start + context;
        let mut node = TreeNode {
            parent,
            ids: Vec::with_capacity(at.len()),
            loss_mask: Vec::with_capacity(at.len()),
            logprobs: Vec::with_capacity(at.len()),
            weight_versions: spans(&trace.weight_versions, response, &at),
            calls: self.calls(sequence, &at),
            role: trace.lineage.role,
        };
        let own = at.start - start..at.end - start;
        let prompt = own.start.min(context)..own.end.min(context);
        node.ids.extend(&trace.prompt_ids[prompt.clone()]);
        node.loss_mask.resize(prompt.len(), 0);
        node.logprobs.resize(prompt.len(), None);
        let sampled = own.start.saturating_sub(context)..own.end.saturating_sub(context);
        node.ids.extend(&trace.response_ids[sampled.clone()]);
        node.loss_mask.extend(&trace.loss_mask[sampled.clone()]);
        node.logprobs.extend(&trace.response_logprobs[sampled]);
        node
    }

    /// The calls of a sequence that sampled a token in `at`.
    fn calls(&self, sequence: &Growing, at: &Range<usize>) -> Vec<CallId> {
        let calls = sequence.calls.iter().map(|call| &self.session.calls()[*call as usize]);
        let sampled_here = calls.filter(|call| {
            let (prompt, end) = (call.prompt_end(), call.sequence_end());
            prompt.is_some_and(|prompt| prompt.depth() < at.end)
                && end.is_some_and(|end| end.depth() > at.start)
        });
        sampled_here.map(|call| call.meta.call_id.clone()).collect()
    }
}

/// The part of a response's spans that lies in `at`, counted from its beginning.
fn spans(spans: &[WeightSpan], response: usize, at: &Range<usize>) -> Vec<WeightSpan> {
    let clip = |position: u64| (response + position as usize).clamp(at.start, at.end) - at.start;
    let clipped = spans.iter().map(|span| WeightSpan {
        version: span.version.clone(),
        start: clip(span.start) as u64,
        end: clip(span.end) as u64,
    });
    clipped.filter(|span| span.start < span.end).collect()
}

fn lineage(sequence: Growing, last_node: u32, start: usize, values: &mut Values) -> TreeLineage {
    let trace = sequence.trace;
    TreeLineage {
        last_node,
        prompt_tokens: (start + trace.prompt_ids.len()) as u64,
        prompt_messages: values.places(sequence.prompt_messages),
        response_messages: values.places(sequence.response_messages),
        tools: sequence.tools.map(|number| values.place(number)),
        finish_reason: trace.finish_reason,
        lineage: trace.lineage,
        calls: trace.calls,
        reward: None,
        turn_scores: Vec::new(),
        turn_ends: trace.turn_ends,
        sampling: trace.sampling,
    }
}

/// The session's messages and sets of tools that are used, in order of their first use.
#[derive(Default)]
struct Values {
    numbers: Vec<u32>,
    places: HashMap<u32, u32>,
}

impl Values {
    fn place(&mut self, number: u32) -> u32 {
        *self.places.entry(number).or_insert_with(|| {
            self.numbers.push(number);
            self.numbers.len() as u32 - 1
        })
    }

    fn places(&mut self, numbers: Vec<u32>) -> Vec<u32> {
        numbers.into_iter().map(|number| self.place(number)).collect()
    }

    fn in_order(self, session: &RecordedSession) -> Vec<serde_json::Value> {
        self.numbers.into_iter().map(|number| session.message(number)).collect()
    }
}
