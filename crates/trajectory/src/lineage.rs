//! Which calls are trained, and which call continues which.

use crate::messages;
use polar_record::{Position, PrefixTree, RecordedCall, RecordedSession};
use polar_types::{CallOrigin, CallRole, UntrainedReason};
use serde_json::Value;
use std::collections::HashMap;

/// Where a call's sampled tokens go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Into a trace.
    Trained,
    /// Nowhere: nothing was sampled.
    Nothing,
    /// Into the counts only.
    Untrained(UntrainedReason),
}

/// Fate and parent of every call of a session.
#[derive(Debug)]
pub(crate) struct Lineages {
    fates: Vec<Fate>,
    parents: Vec<Option<u32>>,
}

impl Lineages {
    pub(crate) fn of(
        session: &RecordedSession,
        origins: &[CallOrigin],
        train_roles: &[CallRole],
    ) -> Self {
        let mut fates: Vec<Fate> = session.calls().iter().map(fate_alone).collect();
        rescue_continued(session, &mut fates);
        for ((fate, origin), call) in fates.iter_mut().zip(origins).zip(session.calls()) {
            if *fate == Fate::Trained && !train_roles.contains(&origin.role) {
                *fate = match fate_alone(call) {
                    Fate::Trained => Fate::Untrained(UntrainedReason::SideCall),
                    other => other,
                };
            }
        }
        let parents = parents(session, origins, &fates);
        Self { fates, parents }
    }

    pub(crate) fn fate(&self, call: u32) -> Fate {
        self.fates[call as usize]
    }

    /// The trained call that `call` continues: the one with the longest prompt and reply
    /// that `call`'s prompt begins with. Known for calls that are not trained too.
    pub(crate) fn parent(&self, call: u32) -> Option<u32> {
        self.parents[call as usize]
    }
}

fn fate_alone(call: &RecordedCall) -> Fate {
    if call.sampled_tokens() == 0 {
        Fate::Nothing
    } else if matches!(call.meta.finish_reason.as_str(), "abort" | "error") {
        Fate::Untrained(UntrainedReason::EngineAborted)
    } else if !call.counts_as_delivered() {
        Fate::Untrained(UntrainedReason::Undelivered)
    } else if call.sequence_end().is_none() {
        Fate::Untrained(UntrainedReason::IdsMissing)
    } else {
        Fate::Trained
    }
}

/// A prompt that goes on behind exactly what an undelivered call sampled shows that the
/// harness had it after all. Not so where a delivered call explains the prompt as well or
/// better: a reply cut after its first token is often the beginning of the retry's reply.
fn rescue_continued(session: &RecordedSession, fates: &mut [Fate]) {
    let tree = session.tokens();
    let mut ends = SequenceEnds::default();
    for (index, call) in session.calls().iter().enumerate() {
        if let Some(prompt) = call.prompt_end() {
            let deepest = ends.deepest_on_path(tree, prompt);
            let is_explained = deepest.iter().any(|call| fates[*call as usize] == Fate::Trained);
            if let (false, Some(latest)) = (is_explained, deepest.last()) {
                fates[*latest as usize] = Fate::Trained;
            }
        }
        let undelivered = Fate::Untrained(UntrainedReason::Undelivered);
        if let Some(end) = call.sequence_end()
            && (fates[index] == Fate::Trained || fates[index] == undelivered)
        {
            ends.add(tree, end, index as u32);
        }
    }
}

/// A side call often goes on from the agent's own conversation, or from another side call. It
/// stands apart nevertheless, so that a trace is of one role.
fn parents(session: &RecordedSession, origins: &[CallOrigin], fates: &[Fate]) -> Vec<Option<u32>> {
    let tree = session.tokens();
    let pictures = Pictures::of(session);
    let mut ends_of = HashMap::<CallRole, SequenceEnds>::new();
    let mut is_continued = vec![false; fates.len()];
    let mut parents = Vec::with_capacity(fates.len());
    for (index, call) in session.calls().iter().enumerate() {
        let ends = ends_of.entry(origins[index].role).or_default();
        let parent = call.prompt_end().and_then(|prompt| {
            // Of several calls that sampled the same behind the same prompt, each can be
            // continued once without a fork.
            let deepest = ends.deepest_on_path(tree, prompt).iter().copied();
            let mut fitting = deepest.filter(|call| pictures.go_on(session, *call, index));
            let latest = fitting.clone().next_back();
            fitting.rfind(|call| !is_continued[*call as usize]).or(latest)
        });
        if fates[index] == Fate::Trained {
            if let Some(parent) = parent {
                is_continued[parent as usize] = true;
            }
            if let Some(end) = call.sequence_end() {
                ends.add(tree, end, index as u32);
            }
        }
        parents.push(parent);
    }
    parents
}

/// Parts of messages that are not text, by the message's number. The tokens that stand for a
/// picture are the same for every picture of its size, so that equal tokens do not show that the
/// engine saw the same.
pub(crate) struct Pictures {
    by_message: HashMap<u32, Vec<Value>>,
}

impl Pictures {
    pub(crate) fn of(session: &RecordedSession) -> Self {
        let numbered = session.values().zip(0..);
        let listed = numbered.filter(|(text, _)| text.contains(r#""content":["#));
        let by_message = listed
            .map(|(_, number)| (number, messages::parts_beside_text(&session.message(number))))
            .filter(|(_, parts)| !parts.is_empty())
            .collect();
        Self { by_message }
    }

    /// Whether no prompt shows any.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_message.is_empty()
    }

    /// Whether the prompt of `call` begins with the pictures of `earlier`'s prompt.
    pub(crate) fn go_on(&self, session: &RecordedSession, earlier: u32, call: usize) -> bool {
        if self.by_message.is_empty() {
            return true;
        }
        let shown = |call: usize| {
            let call = &session.calls()[call];
            let mut messages = session.messages_tree().path(call.exchange_end(), 0);
            messages.truncate(call.prompt_messages());
            messages.into_iter().filter_map(|number| self.by_message.get(&number)).flatten()
        };
        let mut now = shown(call);
        shown(earlier as usize).all(|picture| now.next() == Some(picture))
    }
}

/// Where sequences end, by node of the tree of tokens.
#[derive(Default)]
struct SequenceEnds {
    by_node: HashMap<u32, NodeEnds>,
}

/// Ends inside one node, shallow ones first.
#[derive(Default)]
struct NodeEnds {
    depths: Vec<usize>,
    calls: Vec<u32>,
}

impl SequenceEnds {
    fn add(&mut self, tree: &PrefixTree, end: Position, call: u32) {
        if let Some((node, depth)) = tree.nodes_up(end).next() {
            let ends = self.by_node.entry(node).or_default();
            let at = ends.depths.partition_point(|other| *other <= depth);
            ends.depths.insert(at, depth);
            ends.calls.insert(at, call);
        }
    }

    /// The calls whose sequences reach furthest among those that `at`'s path begins with,
    /// oldest first.
    fn deepest_on_path(&self, tree: &PrefixTree, at: Position) -> &[u32] {
        tree.nodes_up(at)
            .filter_map(|(node, depth)| Some((self.by_node.get(&node)?, depth)))
            .find_map(|(ends, depth)| {
                let end = ends.depths.partition_point(|other| *other <= depth);
                let deepest = *ends.depths[..end].last()?;
                let start = ends.depths.partition_point(|other| *other < deepest);
                Some(&ends.calls[start..end])
            })
            .unwrap_or_default()
    }
}
