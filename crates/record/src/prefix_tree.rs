//! A radix tree over sequences of numbers: token ids, or messages by their number.
//!
//! Calls of one session repeat each other's beginnings. The tree keeps every distinct
//! beginning once, so its memory grows with distinct symbols and not with calls × context.
//! It answers where a new sequence leaves the known ones, and which call it was that went
//! furthest along with it. It knows nothing of what the numbers mean.

use std::sync::atomic::{AtomicU64, Ordering};

const ROOT: u32 = 0;

/// Sequences of several calls, each distinct beginning stored once.
///
/// Invariants: the path from the root to a node spells the symbols before its end; two
/// children of a node differ in their first symbol; `latest` of a node names a call whose
/// sequence covers the node to its end, and no later call does.
#[derive(Debug)]
pub struct PrefixTree {
    /// Symbols of all nodes, in order of arrival. Nodes hold ranges, so that a split copies nothing.
    symbols: Vec<u32>,
    nodes: Vec<Node>,
    /// Symbols compared or copied so far; what the tests on linear growth count.
    work: AtomicU64,
}

/// A point on a path: so many symbols from the root, inside or at the end of a node.
/// Stays valid when the tree grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    node: u32,
    depth: usize,
}

#[derive(Debug)]
struct Node {
    parent: u32,
    /// Symbols before the node's first.
    depth: usize,
    /// Where its symbols begin in the arena.
    offset: usize,
    len: usize,
    children: Vec<u32>,
    latest: Option<u32>,
}

impl Position {
    /// Symbols between the root and this point.
    pub fn depth(self) -> usize {
        self.depth
    }
}

impl Node {
    fn end(&self) -> usize {
        self.depth + self.len
    }
}

impl Default for PrefixTree {
    fn default() -> Self {
        Self::new()
    }
}

impl PrefixTree {
    /// A tree without sequences.
    pub fn new() -> Self {
        let root =
            Node { parent: ROOT, depth: 0, offset: 0, len: 0, children: Vec::new(), latest: None };
        Self { symbols: Vec::new(), nodes: vec![root], work: AtomicU64::new(0) }
    }

    /// The empty beginning, shared by all sequences.
    pub fn root(&self) -> Position {
        Position { node: ROOT, depth: 0 }
    }

    /// Follows `symbols` from `from` as far as the tree knows them. One comparison pass.
    pub fn find(&self, from: Position, symbols: &[u32]) -> Position {
        let mut at = self.settle(from);
        let mut rest = symbols;
        loop {
            let node = self.node(at);
            let ahead = &self.symbols_of(node)[at.depth - node.depth..];
            let shared = common_prefix(ahead, rest);
            at.depth += shared;
            rest = &rest[shared..];
            if shared < ahead.len() || rest.is_empty() {
                break;
            }
            match self.child_starting_with(node, rest[0]) {
                Some(child) => at.node = child,
                None => break,
            }
        }
        self.count(at.depth - from.depth + usize::from(!rest.is_empty()));
        self.settle(at)
    }

    /// Adds `symbols` behind `from` as part of the sequence of call `call`, and returns
    /// their end. Calls are numbered upwards; one call may insert several parts.
    pub fn insert(&mut self, from: Position, symbols: &[u32], call: u32) -> Position {
        let mut at = self.find(from, symbols);
        let fresh = &symbols[at.depth - from.depth..];
        if at.depth < self.node(at).end() {
            at = self.split(at);
        }
        if !fresh.is_empty() {
            at = self.append(at, fresh);
        }
        self.mark(at, call);
        at
    }

    /// The latest call that shares all symbols up to `at`.
    pub fn latest_call(&self, at: Position) -> Option<u32> {
        self.node(self.settle(at)).latest
    }

    /// The point on the path to `at` that lies `depth` symbols from the root; absent when
    /// `at` is not that deep.
    pub fn ancestor(&self, at: Position, depth: usize) -> Option<Position> {
        (depth <= at.depth).then(|| self.settle(Position { node: at.node, depth }))
    }

    /// Symbols shared by the paths to two points.
    pub fn shared_depth(&self, left: Position, right: Position) -> usize {
        let (mut left, mut right) = (self.settle(left), self.settle(right));
        while left.node != right.node {
            // The node that begins deeper cannot be on the other's path. The root begins
            // where its children do and is on every path.
            let left_is_deeper = self.node(left).depth >= self.node(right).depth;
            if right.node == ROOT || (left.node != ROOT && left_is_deeper) {
                left = self.above(left);
            } else {
                right = self.above(right);
            }
        }
        left.depth.min(right.depth)
    }

    /// The symbols from `start` to `at`, counted from the root.
    pub fn path(&self, at: Position, start: usize) -> Vec<u32> {
        let mut out = vec![0; at.depth.saturating_sub(start)];
        let mut end = out.len();
        let mut at = self.settle(at);
        while end > 0 {
            let node = self.node(at);
            let known = &self.symbols_of(node)[..at.depth - node.depth];
            let wanted = known.len().min(end);
            out[end - wanted..end].copy_from_slice(&known[known.len() - wanted..]);
            end -= wanted;
            at = self.above(at);
        }
        self.count(out.len());
        out
    }

    /// The symbol `depth` symbols from the root on the path to `at`; absent at its end.
    pub fn symbol(&self, at: Position, depth: usize) -> Option<u32> {
        let point = self.ancestor(at, depth.checked_add(1)?)?;
        let node = self.node(point);
        self.symbols_of(node).get(depth - node.depth).copied()
    }

    /// The nodes on the path to `at` as numbers, deepest first, each with the point where
    /// the path leaves it. Numbers stay the same only while nothing is inserted.
    pub fn nodes_up(&self, at: Position) -> impl Iterator<Item = (u32, usize)> + '_ {
        let mut next = Some(self.settle(at));
        std::iter::from_fn(move || {
            let at = next?;
            next = (at.node != ROOT).then(|| self.above(at));
            Some((at.node, at.depth))
        })
    }

    /// Distinct symbols kept.
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    /// Whether nothing was inserted yet.
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// Symbols compared or copied so far.
    pub fn work(&self) -> u64 {
        self.work.load(Ordering::Relaxed)
    }

    /// Bytes held, counting what is reserved.
    pub fn resident_bytes(&self) -> usize {
        let children: usize = self.nodes.iter().map(|node| node.children.capacity() * 4).sum();
        self.symbols.capacity() * 4 + self.nodes.capacity() * size_of::<Node>() + children
    }

    fn count(&self, symbols: usize) {
        self.work.fetch_add(symbols as u64, Ordering::Relaxed);
    }

    fn node(&self, at: Position) -> &Node {
        &self.nodes[at.node as usize]
    }

    fn symbols_of(&self, node: &Node) -> &[u32] {
        &self.symbols[node.offset..node.offset + node.len]
    }

    fn child_starting_with(&self, node: &Node, symbol: u32) -> Option<u32> {
        let first = |child: u32| self.symbols[self.nodes[child as usize].offset];
        node.children.iter().copied().find(|&child| first(child) == symbol)
    }

    /// Moves a point up into the node that holds its last symbol. A split leaves the old
    /// number to the lower half, so the upper one is always found by going up.
    fn settle(&self, mut at: Position) -> Position {
        while at.node != ROOT && at.depth <= self.node(at).depth {
            at.node = self.node(at).parent;
        }
        at
    }

    fn above(&self, at: Position) -> Position {
        let node = self.node(at);
        Position { node: node.parent, depth: node.depth }
    }

    /// Cuts a node in two at `at` and returns the same point as the end of the upper half.
    fn split(&mut self, at: Position) -> Position {
        let upper = self.nodes.len() as u32;
        let lower = &mut self.nodes[at.node as usize];
        let kept = at.depth - lower.depth;
        let parent = lower.parent;
        let node = Node {
            parent,
            depth: lower.depth,
            offset: lower.offset,
            len: kept,
            children: vec![at.node],
            latest: lower.latest,
        };
        lower.parent = upper;
        lower.depth += kept;
        lower.offset += kept;
        lower.len -= kept;
        for child in &mut self.nodes[parent as usize].children {
            if *child == at.node {
                *child = upper;
            }
        }
        self.nodes.push(node);
        Position { node: upper, depth: at.depth }
    }

    /// Adds symbols behind the end of a node: to the node itself where it is the last in
    /// the arena, so that a conversation that only grows stays one node.
    fn append(&mut self, at: Position, fresh: &[u32]) -> Position {
        let offset = self.symbols.len();
        self.symbols.extend_from_slice(fresh);
        self.count(fresh.len());
        let depth = at.depth + fresh.len();
        let child = self.nodes.len() as u32;
        let node = &mut self.nodes[at.node as usize];
        if at.node != ROOT && node.children.is_empty() && node.offset + node.len == offset {
            node.len += fresh.len();
            return Position { node: at.node, depth };
        }
        node.children.push(child);
        self.nodes.push(Node {
            parent: at.node,
            depth: at.depth,
            offset,
            len: fresh.len(),
            children: Vec::new(),
            latest: None,
        });
        Position { node: child, depth }
    }

    fn mark(&mut self, at: Position, call: u32) {
        let mut number = at.node;
        loop {
            let node = &mut self.nodes[number as usize];
            if node.latest == Some(call) {
                break;
            }
            node.latest = Some(call);
            if number == ROOT {
                break;
            }
            number = node.parent;
        }
    }
}

fn common_prefix(left: &[u32], right: &[u32]) -> usize {
    const BLOCK: usize = 64;
    let len = left.len().min(right.len());
    let mut at = 0;
    // Whole blocks compare as memory, which is what makes a long shared prompt cheap.
    while at + BLOCK <= len && left[at..at + BLOCK] == right[at..at + BLOCK] {
        at += BLOCK;
    }
    let tail = left[at..len].iter().zip(&right[at..len]);
    at + tail.take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_growing_conversation_is_one_node_and_linear() {
        let mut tree = PrefixTree::new();
        let mut end = tree.root();
        for call in 0..200 {
            let turn: Vec<u32> = (0..500).map(|i| call * 1000 + i).collect();
            end = tree.insert(end, &turn, call);
        }
        assert_eq!((tree.len(), tree.nodes.len(), end.depth()), (100_000, 2, 100_000));
        assert!(tree.work() <= 2 * 100_000, "{} symbols touched", tree.work());
    }

    #[test]
    fn a_call_that_ends_early_is_not_named_for_what_lies_beyond_it() {
        let mut tree = PrefixTree::new();
        tree.insert(tree.root(), &[1, 2, 3, 4, 5], 0);
        tree.insert(tree.root(), &[1, 2], 1);
        let deep = tree.find(tree.root(), &[1, 2, 3, 9]);
        assert_eq!((deep.depth(), tree.latest_call(deep)), (3, Some(0)));
        let shallow = tree.find(tree.root(), &[1, 2, 7]);
        assert_eq!((shallow.depth(), tree.latest_call(shallow)), (2, Some(1)));
    }

    proptest! {
        #[test]
        fn the_tree_agrees_with_comparing_every_sequence(
            sequences in prop::collection::vec(prop::collection::vec(0u32..3, 0..12), 1..24),
        ) {
            let mut tree = PrefixTree::new();
            let mut ends = Vec::new();
            for (call, sequence) in sequences.iter().enumerate() {
                let shared = |other: &Vec<u32>| common_prefix(other, sequence);
                let earlier = &sequences[..call];
                let longest = earlier.iter().map(shared).max().unwrap_or(0);
                let latest = earlier.iter().rposition(|other| shared(other) == longest);
                let found = tree.find(tree.root(), sequence);
                prop_assert_eq!(found.depth(), longest);
                prop_assert_eq!(tree.latest_call(found), latest.map(|call| call as u32));
                let middle = tree.insert(found, &sequence[longest..], call as u32);
                ends.push(middle);
            }
            for (end, sequence) in ends.iter().zip(&sequences) {
                prop_assert_eq!(&tree.path(*end, 0), sequence);
                for (depth, symbol) in sequence.iter().enumerate() {
                    prop_assert_eq!(tree.symbol(*end, depth), Some(*symbol));
                }
                prop_assert_eq!(tree.symbol(*end, sequence.len()), None);
                for (other_end, other) in ends.iter().zip(&sequences) {
                    prop_assert_eq!(
                        tree.shared_depth(*end, *other_end),
                        common_prefix(sequence, other)
                    );
                }
            }
        }
    }
}
