//! Why a call starts a trace of its own: evidence from tokens and from messages.
//!
//! Tokens say *where* the new prompt leaves the sequence it comes closest to: which turn's
//! context or reply. Messages say *what* was done there. A cause is a diagnosis for people;
//! nothing is masked or merged because of it.

use crate::drift::MessageDifference;
use crate::lineage::Lineages;
use crate::messages::{self, Difference};
use polar_record::{Nearest, Position, PrefixTree, RecordedCall, RecordedSession};
use polar_types::{ForkCause, ForkPoint};
use std::collections::{HashMap, HashSet};

/// A template that drops the reasoning of past turns parts from the sampled tokens where
/// these begin; it may share the opening mark and a line break with them.
const OPENING_MARK_TOKENS: usize = 4;

/// A settled position of a tree: node and depth.
type Place = (u32, usize);

/// The calls passed so far, as far as naming causes needs them.
pub(crate) struct Causes<'a> {
    session: &'a RecordedSession,
    lineages: &'a Lineages,
    /// Prompts asked, with the last call that did.
    prompts: HashMap<Place, u32>,
    /// The call that ended a history with its reply.
    replies: HashMap<Place, u32>,
    /// Length of the prompt that a call's lineage began with.
    first_prompt: Vec<usize>,
}

impl<'a> Causes<'a> {
    pub(crate) fn new(session: &'a RecordedSession, lineages: &'a Lineages) -> Self {
        Self {
            session,
            lineages,
            prompts: HashMap::new(),
            replies: HashMap::new(),
            first_prompt: Vec::new(),
        }
    }

    /// Makes a call one of the earlier ones. Calls are passed in order.
    pub(crate) fn pass(&mut self, index: u32) {
        let call = self.call(index);
        let asked = call.prompt_end().and_then(|end| place(self.session.tokens(), end));
        self.prompts.extend(asked.map(|place| (place, index)));
        let exchange = place(self.session.messages_tree(), call.exchange_end());
        self.replies.extend(exchange.map(|place| (place, index)));
        let own = call.prompt_end().map_or(0, Position::depth);
        let parent = self.lineages.parent(index);
        self.first_prompt.push(parent.map_or(own, |parent| self.first_prompt[parent as usize]));
    }

    /// The earlier call whose tokens `index`'s prompt goes along with furthest.
    pub(crate) fn nearest(&self, index: u32) -> Option<u32> {
        self.call(index).nearest_by_tokens.map(|nearest| nearest.call)
    }

    /// Where `index`'s prompt leaves its nearest sequence.
    pub(crate) fn fork_point(&self, index: u32, cause: ForkCause) -> ForkPoint {
        let call = self.call(index);
        let Some(nearest) = call.nearest_by_tokens else {
            return ForkPoint {
                cause,
                nearest: None,
                shared_tokens: 0,
                expected: None,
                found: None,
            };
        };
        let tokens = self.session.tokens();
        let other = self.call(nearest.call);
        let at = |end: Option<Position>| end.and_then(|end| tokens.symbol(end, nearest.shared));
        ForkPoint {
            cause,
            nearest: Some(other.meta.call_id.clone()),
            shared_tokens: nearest.shared as u64,
            expected: at(sequence_end(other)),
            found: at(call.prompt_end()),
        }
    }

    /// Why `index` starts a trace, given that it does not continue one.
    pub(crate) fn cause(&self, index: u32) -> ForkCause {
        let call = self.call(index);
        let asked = call.prompt_end().and_then(|end| place(self.session.tokens(), end));
        if let Some(before) = asked.and_then(|place| self.prompts.get(&place)) {
            return match self.is_unanswered(*before) {
                true => ForkCause::Unanswered,
                false => ForkCause::Retry,
            };
        }
        let Some(before) = self.compared_with(call) else {
            return ForkCause::NewLineage;
        };
        let pair = Pair::new(self, index, before);
        if !pair.is_same_conversation() {
            ForkCause::NewLineage
        } else if pair.tools_differ_at_the_front() {
            ForkCause::ToolsChanged
        } else if pair.parts_at_an_unanswered_call() {
            ForkCause::Unanswered
        } else {
            pair.cause_at_turn()
        }
    }

    /// The first message in which the history of `index` says something else than the one it is
    /// compared with.
    pub(crate) fn message_difference(&self, index: u32) -> Option<MessageDifference> {
        let before = self.compared_with(self.call(index))?;
        let pair = Pair::new(self, index, before);
        let (at, _) = pair.first_difference()?;
        Some(MessageDifference {
            index: at,
            expected: self.session.message(pair.old[at]),
            found: self.session.message(pair.new[at]),
        })
    }

    /// The earlier call to compare messages with: the one nearest by tokens, unless another
    /// one shares more messages. Where the front of all prompts differs, as after a change of
    /// tools, every call is equally near by tokens.
    fn compared_with(&self, call: &RecordedCall) -> Option<u32> {
        let by_tokens = self.nearest_turn(call, |call| call.nearest_by_tokens);
        let by_messages = self.nearest_turn(call, |call| call.nearest_by_messages);
        let (Some(by_tokens), Some(by_messages)) = (by_tokens, by_messages) else {
            return by_tokens.or(by_messages);
        };
        let shared = |other| self.shared_messages(call, other);
        let is_nearer = shared(by_messages) > shared(by_tokens);
        Some(if is_nearer { by_messages } else { by_tokens })
    }

    /// The nearest call that sampled anything. One that the engine refused is no turn that a
    /// harness could change: what it went on from stands for it.
    fn nearest_turn(
        &self,
        call: &RecordedCall,
        nearest: impl Fn(&RecordedCall) -> Option<Nearest>,
    ) -> Option<u32> {
        let earlier = |call: &RecordedCall| nearest(call).map(|nearest| nearest.call);
        let mut at = earlier(call)?;
        while self.call(at).sampled_tokens() == 0 {
            at = earlier(self.call(at))?;
        }
        Some(at)
    }

    fn shared_messages(&self, call: &RecordedCall, other: u32) -> usize {
        let tree = self.session.messages_tree();
        let shared = tree.shared_depth(call.exchange_end(), self.call(other).exchange_end());
        shared.min(call.prompt_messages())
    }

    /// Whether a call's reply never came to its end.
    fn is_unanswered(&self, index: u32) -> bool {
        matches!(self.call(index).meta.finish_reason.as_str(), "abort" | "cancelled" | "error")
    }

    fn call(&self, index: u32) -> &'a RecordedCall {
        &self.session.calls()[index as usize]
    }
}

/// A forking call beside the earlier one it is compared with.
struct Pair<'a> {
    causes: &'a Causes<'a>,
    after: &'a RecordedCall,
    before: u32,
    /// The trained call that `after` continues.
    parent: Option<u32>,
    /// Tokens both share.
    shared: usize,
    /// The call in whose turn, context or reply, the tokens part.
    turn: u32,
    /// Numbers of the messages: prompt and reply of `before`, prompt of `after`.
    old: Vec<u32>,
    new: Vec<u32>,
}

impl<'a> Pair<'a> {
    fn new(causes: &'a Causes<'a>, index: u32, before: u32) -> Self {
        let after = causes.call(index);
        let earlier = causes.call(before);
        let session = causes.session;
        let shared = match (sequence_end(earlier), after.prompt_end()) {
            (Some(left), Some(right)) => session.tokens().shared_depth(left, right),
            _ => 0,
        };
        let mut turn = before;
        while let Some(parent) = causes.lineages.parent(turn)
            && causes.call(parent).sequence_end().is_some_and(|end| shared < end.depth())
        {
            turn = parent;
        }
        let old = session.messages_tree().path(earlier.exchange_end(), 0);
        let mut new = session.messages_tree().path(after.exchange_end(), 0);
        new.pop();
        let parent = causes.lineages.parent(index);
        Self { causes, after, before, parent, shared, turn, old, new }
    }

    /// Whether both have more in common than a system prompt and the template's first marks.
    fn is_same_conversation(&self) -> bool {
        self.parent.is_some() || self.have_in_common(0)
    }

    /// Whether a message of the conversation is in both histories, from the `from`-th on.
    fn have_in_common(&self, from: usize) -> bool {
        let old: HashSet<u32> = self.old.iter().skip(from).copied().collect();
        let mut shared = self.new.iter().skip(from).filter(|number| old.contains(number));
        shared.any(|number| !messages::is_header(&self.causes.session.message(*number)))
    }

    /// Templates render tools into the front of a conversation, so a change shows in the
    /// prompt that the lineage began with.
    fn tools_differ_at_the_front(&self) -> bool {
        let before = self.causes.call(self.before);
        let front = self.causes.first_prompt[self.before as usize];
        before.tools_number() != self.after.tools_number() && self.shared < front
    }

    /// Whether the histories are the same up to a reply that never came.
    fn parts_at_an_unanswered_call(&self) -> bool {
        let asked = self.causes.call(self.turn).prompt_messages();
        self.causes.is_unanswered(self.turn)
            && self.first_difference().is_none_or(|(at, _)| at >= asked)
    }

    fn cause_at_turn(&self) -> ForkCause {
        let Some((at, difference)) = self.first_difference() else {
            return self.cause_of_equal_messages();
        };
        // What comes later was done as well, and by then the tokens had parted.
        if at > self.causes.call(self.turn).prompt_messages() && self.reasoning_was_left_out() {
            return ForkCause::ReasoningStripped;
        }
        let is_reply = messages::role(&self.causes.session.message(self.old[at])) == "assistant";
        match difference {
            Difference::ReasoningGone => ForkCause::ReasoningStripped,
            Difference::ArgumentsRespelled => ForkCause::ToolArgumentsReserialised,
            _ if is_reply && self.reply_was_cut(at) => ForkCause::TruncatedTurn,
            _ if !is_reply && self.is_branch(at) => ForkCause::Branch,
            _ => ForkCause::HistoryRewritten,
        }
    }

    /// The first message that says something else. Messages before the turn in which the
    /// tokens part are left out: whatever differs there did not reach the engine.
    fn first_difference(&self) -> Option<(usize, Difference)> {
        let session = self.causes.session;
        let pairs = self.old.iter().zip(&self.new).enumerate().skip(self.turn_start());
        pairs.filter(|(_, (old, new))| old != new).find_map(|(at, (old, new))| {
            let difference = messages::difference(&session.message(*old), &session.message(*new));
            (difference != Difference::None).then_some((at, difference))
        })
    }

    /// Messages before those the turn added: its reply where the tokens part behind its
    /// prompt, or else also what came between the reply before and this one.
    fn turn_start(&self) -> usize {
        let turn = self.causes.call(self.turn);
        if turn.prompt_end().is_some_and(|end| end.depth() <= self.shared) {
            return turn.prompt_messages();
        }
        let before = self.causes.lineages.parent(self.turn);
        before.map_or(0, |call| self.causes.call(call).prompt_messages() + 1)
    }

    fn cause_of_equal_messages(&self) -> ForkCause {
        let turn = self.causes.call(self.turn);
        let comes_back = self.new.len() > turn.prompt_messages();
        let parent_end = self.parent.and_then(|parent| self.causes.call(parent).sequence_end());
        if parent_end.is_some_and(|end| end.depth() == self.shared) {
            ForkCause::Branch
        } else if self.reasoning_was_left_out() {
            ForkCause::ReasoningStripped
        } else if comes_back && self.reply_was_cut(turn.prompt_messages()) {
            ForkCause::TruncatedTurn
        } else if self.new.len() + 1 >= self.old.len() {
            ForkCause::Retokenised
        } else if self.parent.is_some() {
            ForkCause::Branch
        } else {
            ForkCause::HistoryRewritten
        }
    }

    /// Whether the tokens part where a reply that comes back had its reasoning. The harness sent
    /// that back, or dropped it where nobody saw it; the template left it out.
    fn reasoning_was_left_out(&self) -> bool {
        let turn = self.causes.call(self.turn);
        let sampled_from = turn.prompt_end().map_or(0, Position::depth);
        self.new.len() > turn.prompt_messages()
            && self.shared <= sampled_from + OPENING_MARK_TOKENS
            && !messages::reasoning(&self.causes.session.reply(turn)).is_empty()
    }

    /// Whether the `at`-th message of the old history is a reply that did not end by itself.
    fn reply_was_cut(&self, at: usize) -> bool {
        let tree = self.causes.session.messages_tree();
        let end = self.causes.call(self.before).exchange_end();
        let reply = tree.ancestor(end, at + 1).and_then(|end| place(tree, end));
        let call = reply.and_then(|place| self.causes.replies.get(&place));
        call.is_some_and(|call| {
            let finish = self.causes.call(*call).meta.finish_reason.as_str();
            matches!(finish, "length" | "stop_sequence" | "abort" | "cancelled" | "error")
        })
    }

    /// Whether both go different ways behind the same reply. Where the old messages go on
    /// behind the difference, it is the history that was edited.
    fn is_branch(&self, at: usize) -> bool {
        self.parent.is_some() && !self.have_in_common(at)
    }
}

fn sequence_end(call: &RecordedCall) -> Option<Position> {
    call.sequence_end().or(call.prompt_end())
}

fn place(tree: &PrefixTree, at: Position) -> Option<Place> {
    tree.nodes_up(at).next()
}
