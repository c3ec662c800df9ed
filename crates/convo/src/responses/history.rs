//! What one session remembers of its Responses calls.
//!
//! The conversations that later requests go on from by `previous_response_id` or
//! `item_reference`. Pure; whoever serves the session owns it, and asks before and after each call.
//!
//! Conversations are kept as one tree of messages, so that memory grows with what is said and
//! not with how often it is said again.

use super::reply::reply_of;
use crate::decode::{DecodeError, read_body};
use crate::{Block, Message, Reply, Request, Role};
use std::collections::HashMap;

/// What one session remembers.
#[derive(Debug, Default)]
pub struct ResponsesHistory {
    turns: HashMap<TurnId, Turn>,
    next_turn: TurnId,
    /// Turns that begin a conversation.
    beginnings: Vec<TurnId>,
    /// Ids of replies that were kept, with their turns.
    replies: HashMap<String, TurnId>,
}

type TurnId = u64;

#[derive(Debug)]
struct Turn {
    before: Option<TurnId>,
    message: Message,
    next: Vec<TurnId>,
    /// Replies that end here, and requests that end here and have none yet. A turn with nothing
    /// after it that nothing holds is forgotten.
    held: u32,
}

/// Where in the remembered conversations a request ends that has no reply yet.
#[derive(Debug)]
#[must_use = "a place is held until it is given back"]
pub struct OpenTurn(Option<TurnId>);

impl ResponsesHistory {
    /// Reads a generation request, which may refer to earlier replies.
    pub fn decode_request(&self, body: &[u8]) -> Result<Request, DecodeError> {
        read_body(body, |body| super::decode::decode(body, self))
    }

    /// Notes what a request says, if its conversation is to be kept. Ends with
    /// [`Self::remember`] or [`Self::forget`].
    pub fn begin(&mut self, request: &Request) -> OpenTurn {
        let terms = match &request.responses {
            Some(terms) if terms.store => terms,
            _ => return OpenTurn(None),
        };
        let said = request.messages.iter().skip(terms.instructions);
        let turn = said.fold(None, |before, message| Some(self.turn(before, message)));
        self.hold(turn);
        OpenTurn(turn)
    }

    /// Notes the reply to a request. To be called before the client gets to know of its end.
    pub fn remember(&mut self, id: &str, asked: OpenTurn, reply: &Reply) {
        if asked.0.is_some() {
            let message =
                Message::new(Role::Assistant, reply.blocks.iter().map(Block::from).collect());
            let turn = self.turn(asked.0, &message);
            self.hold(Some(turn));
            self.replies.insert(id.to_owned(), turn);
        }
        self.forget(asked);
    }

    /// Notes that a request gets no reply, so that what it alone has said is not kept.
    pub fn forget(&mut self, asked: OpenTurn) {
        let mut at = asked.0;
        if let Some(turn) = at.and_then(|id| self.turns.get_mut(&id)) {
            turn.held = turn.held.saturating_sub(1);
        }
        while let Some(id) = at {
            let idle = |turn: &Turn| turn.held == 0 && turn.next.is_empty();
            let Some(turn) = self.turns.get(&id).filter(|turn| idle(turn)) else { return };
            at = turn.before;
            self.siblings(at).retain(|turn| *turn != id);
            self.turns.remove(&id);
        }
    }

    /// The conversation up to and with a reply; none if it was not kept.
    pub(super) fn conversation(&self, reply_id: &str) -> Option<Vec<Message>> {
        let mut at = Some(*self.replies.get(reply_id)?);
        let mut messages = Vec::new();
        while let Some(turn) = at.and_then(|at| self.turns.get(&at)) {
            messages.push(turn.message.clone());
            at = turn.before;
        }
        messages.reverse();
        Some(messages)
    }

    /// What an item of a kept reply says.
    pub(super) fn item(&self, item_id: &str) -> Option<&Block> {
        let (reply_id, index) = reply_of(item_id)?;
        let turn = self.turns.get(self.replies.get(&reply_id)?)?;
        turn.message.blocks.get(index)
    }

    /// The turn of that message after another, made if need be.
    fn turn(&mut self, before: Option<TurnId>, message: &Message) -> TurnId {
        let said = |id: &TurnId| self.turns.get(id).is_some_and(|turn| turn.message == *message);
        let known = match before.and_then(|before| self.turns.get(&before)) {
            Some(before) => before.next.iter().find(|id| said(id)),
            None => self.beginnings.iter().find(|id| said(id)),
        };
        if let Some(turn) = known {
            return *turn;
        }
        let id = self.next_turn;
        self.next_turn += 1;
        let turn = Turn { before, message: message.clone(), next: Vec::new(), held: 0 };
        self.turns.insert(id, turn);
        self.siblings(before).push(id);
        id
    }

    fn hold(&mut self, turn: Option<TurnId>) {
        if let Some(turn) = turn.and_then(|id| self.turns.get_mut(&id)) {
            turn.held += 1;
        }
    }

    /// The turns that come after one, or that begin a conversation.
    fn siblings(&mut self, before: Option<TurnId>) -> &mut Vec<TurnId> {
        match before.and_then(|id| self.turns.get_mut(&id)) {
            Some(turn) => &mut turn.next,
            None => &mut self.beginnings,
        }
    }
}
