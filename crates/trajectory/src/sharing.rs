//! How much of its context each sequence shares with the ones before it.

use crate::chains::Chains;
use crate::lineage::Pictures;
use polar_record::{Position, RecordedSession};
use polar_types::TrainingSizes;
use std::collections::HashMap;

/// Where a sequence leaves an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attachment {
    /// The earlier chain, the one whose own tokens it leaves.
    pub(crate) chain: u32,
    /// Tokens shared, from the first one on; more than that chain shares with others.
    pub(crate) depth: usize,
}

/// Where each merged chain leaves the chains before it; nothing where it shares no token.
///
/// Only the first prompt of a chain can be shared: all behind it was sampled in it, or behind
/// what was sampled in it.
#[derive(Debug)]
pub(crate) struct Sharing {
    attachments: Vec<Option<Attachment>>,
}

impl Sharing {
    pub(crate) fn of(session: &RecordedSession, merged: &Chains) -> Self {
        let mut finder = Finder {
            session,
            merged,
            pictures: Pictures::of(session),
            covered: HashMap::new(),
            attachments: Vec::with_capacity(merged.len()),
        };
        for chain in merged.iter() {
            let found = finder.attachment(chain[0]);
            finder.cover(finder.attachments.len() as u32, end_of(session, chain));
            finder.attachments.push(found);
        }
        Self { attachments: finder.attachments }
    }

    /// Where the `number`-th chain leaves the ones before it.
    pub(crate) fn attachment(&self, number: u32) -> Option<Attachment> {
        self.attachments[number as usize]
    }

    /// Tokens that the `number`-th chain shares with the ones before it.
    pub(crate) fn depth(&self, number: u32) -> usize {
        depth(&self.attachments, number)
    }

    /// What a trainer has to run of the trained calls in each layout.
    pub(crate) fn sizes(&self, session: &RecordedSession, merged: &Chains) -> TrainingSizes {
        let (mut alone, mut whole, mut tree) = ((0, 0), (0, 0), (0, 0));
        for (chain, number) in merged.iter().zip(0..) {
            for call in chain {
                alone.0 += 1;
                alone.1 += depth_of(end_of(session, &[*call]));
            }
            let tokens = depth_of(end_of(session, chain));
            whole = (whole.0 + 1, whole.1 + tokens);
            tree.0 += u64::from(self.attachment(number).is_none());
            tree.1 += tokens - self.depth(number) as u64;
        }
        TrainingSizes::new(alone, whole, tree)
    }
}

struct Finder<'a> {
    session: &'a RecordedSession,
    merged: &'a Chains,
    pictures: Pictures,
    /// How deep the chains so far reach into each node of the session's tree of tokens, and
    /// which of them reaches deepest.
    covered: HashMap<u32, (usize, u32)>,
    attachments: Vec<Option<Attachment>>,
}

impl Finder<'_> {
    /// Where the chain that begins with `first` leaves those so far.
    fn attachment(&self, first: u32) -> Option<Attachment> {
        let prompt = self.session.calls()[first as usize].prompt_end()?;
        let deepest = self.session.tokens().nodes_up(prompt).find_map(|(node, depth)| {
            let (reached, chain) = *self.covered.get(&node)?;
            Some((reached.min(depth), chain))
        });
        let (mut depth, mut chain) = deepest?;
        loop {
            depth = depth.min(self.limit(chain, first));
            if depth > self.depth(chain) {
                return Some(Attachment { chain, depth });
            }
            // The tokens up to here are those that the chain itself shares with another.
            chain = self.attachments[chain as usize]?.chain;
        }
    }

    /// The most tokens of a chain that can be shared with the chain that begins with `first`:
    /// the same tokens may stand for another picture. Where a picture lies among the tokens is
    /// not known, but that each call's prompt holds its own.
    fn limit(&self, chain: u32, first: u32) -> usize {
        if self.pictures.is_empty() {
            return usize::MAX;
        }
        let mut limit = 0;
        for call in self.merged.calls(chain) {
            if self.pictures.go_on(self.session, *call, first as usize) {
                limit = end_of(self.session, &[*call]).map_or(limit, Position::depth);
                continue;
            }
            if self.pictures.go_on(self.session, first, *call as usize) {
                let prompt = self.session.calls()[*call as usize].prompt_end();
                limit = limit.max(prompt.map_or(0, Position::depth).saturating_sub(1));
            }
            break;
        }
        limit
    }

    fn depth(&self, chain: u32) -> usize {
        depth(&self.attachments, chain)
    }

    fn cover(&mut self, chain: u32, end: Option<Position>) {
        let nodes = end.into_iter().flat_map(|end| self.session.tokens().nodes_up(end));
        for (node, depth) in nodes {
            let reached = self.covered.entry(node).or_insert((0, chain));
            if reached.0 >= depth {
                // Whoever reached so far here passed all nodes above to their ends.
                break;
            }
            *reached = (depth, chain);
        }
    }
}

fn depth(attachments: &[Option<Attachment>], chain: u32) -> usize {
    attachments[chain as usize].map_or(0, |attachment| attachment.depth)
}

/// Where the sequence of a chain ends.
fn end_of(session: &RecordedSession, chain: &[u32]) -> Option<Position> {
    session.calls()[*chain.last()? as usize].sequence_end()
}

fn depth_of(end: Option<Position>) -> u64 {
    end.map_or(0, |end| end.depth() as u64)
}
