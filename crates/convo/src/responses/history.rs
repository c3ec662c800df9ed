//! What one session remembers of its Responses calls.
//!
//! Two things: the conversations that later requests go on from by `previous_response_id` or
//! `item_reference`, and the arguments of calls whose items cannot carry them as they were
//! sampled. Pure; whoever serves the session owns it, and asks before and after each call.
//!
//! Conversations are kept as one tree of messages, so that memory grows with what is said and
//! not with how often it is said again.

use super::reply::reply_of;
use super::terms::ResponsesTerms;
use super::tools::ToolKind;
use super::{custom_input, local_shell};
use crate::decode::{DecodeError, json_object};
use crate::{Block, Message, Reply, ReplyBlock, Request, Role};
use std::collections::HashMap;

/// What one session remembers.
#[derive(Debug, Default)]
pub struct ResponsesHistory {
    turns: Vec<Turn>,
    /// Turns that begin a conversation.
    beginnings: Vec<usize>,
    /// Ids of replies that were kept, with their place in `turns`.
    replies: HashMap<String, usize>,
    /// Arguments as sampled, by call id.
    sampled: HashMap<String, String>,
}

#[derive(Debug)]
struct Turn {
    before: Option<usize>,
    message: Message,
    next: Vec<usize>,
}

/// Where in the remembered conversations a request ends; its reply comes after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(Option<usize>);

impl ResponsesHistory {
    /// Reads a generation request, which may refer to earlier replies.
    pub fn decode_request(&self, body: &[u8]) -> Result<Request, DecodeError> {
        super::decode::decode(json_object(body)?, self)
    }

    /// Notes what a request says, if its conversation is to be kept.
    pub fn begin(&mut self, request: &Request) -> Place {
        let terms = match &request.responses {
            Some(terms) if terms.store => terms,
            _ => return Place(None),
        };
        let said = request.messages.iter().skip(terms.instructions);
        Place(said.fold(None, |before, message| Some(self.turn(before, message))))
    }

    /// Notes the reply to the request that ends at `place`. To be called before the client gets
    /// to know of the reply's end.
    pub fn remember(&mut self, id: &str, place: Place, terms: &ResponsesTerms, reply: &Reply) {
        for block in &reply.blocks {
            if let ReplyBlock::ToolCall { id, name, arguments, .. } = block
                && respelled(terms, name, arguments).is_some_and(|other| other != *arguments)
            {
                self.sampled.insert(id.clone(), arguments.clone());
            }
        }
        if place.0.is_some() {
            let message = Message::new(Role::Assistant, reply.blocks.iter().map(block).collect());
            let turn = self.turn(place.0, &message);
            self.replies.insert(id.to_owned(), turn);
        }
    }

    /// The conversation up to and with a reply; none if it was not kept.
    pub(super) fn conversation(&self, reply_id: &str) -> Option<Vec<Message>> {
        let mut at = Some(*self.replies.get(reply_id)?);
        let mut messages = Vec::new();
        while let Some(turn) = at.and_then(|at| self.turns.get(at)) {
            messages.push(turn.message.clone());
            at = turn.before;
        }
        messages.reverse();
        Some(messages)
    }

    /// What an item of a kept reply says.
    pub(super) fn item(&self, item_id: &str) -> Option<&Block> {
        let (reply_id, index) = reply_of(item_id)?;
        let turn = self.turns.get(*self.replies.get(&reply_id)?)?;
        turn.message.blocks.get(index)
    }

    /// The arguments of a call that the client knows in another form.
    pub(super) fn sampled(&self, call_id: &str) -> Option<&str> {
        self.sampled.get(call_id).map(String::as_str)
    }

    /// The turn of that message after another, made if need be.
    fn turn(&mut self, before: Option<usize>, message: &Message) -> usize {
        let known = match before {
            Some(before) => &self.turns[before].next,
            None => &self.beginnings,
        };
        if let Some(turn) = known.iter().find(|turn| self.turns[**turn].message == *message) {
            return *turn;
        }
        let turn = self.turns.len();
        self.turns.push(Turn { before, message: message.clone(), next: Vec::new() });
        match before {
            Some(before) => self.turns[before].next.push(turn),
            None => self.beginnings.push(turn),
        }
        turn
    }
}

/// The spelling that the decoder gives to a call the client knows in another form.
fn respelled(terms: &ResponsesTerms, name: &str, arguments: &str) -> Option<String> {
    match terms.tools.get(name)?.kind {
        ToolKind::Function => None,
        ToolKind::Custom => Some(custom_input::arguments(&custom_input::input(arguments))),
        ToolKind::LocalShell => {
            local_shell::action(arguments).map(|action| local_shell::arguments(&action))
        }
    }
}

fn block(block: &ReplyBlock) -> Block {
    match block {
        ReplyBlock::Text(text) => Block::Text(text.clone()),
        ReplyBlock::Reasoning(text) => Block::Reasoning { text: text.clone(), signature: None },
        ReplyBlock::ToolCall { id, name, arguments, .. } => {
            Block::ToolCall { id: id.clone(), name: name.clone(), arguments: arguments.clone() }
        }
    }
}
