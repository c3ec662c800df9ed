//! What one session remembers of the replies it has told, so that it knows them again.
//!
//! Harnesses keep their own history and change it: they read arguments and spell them anew, and
//! drop or trim reasoning. A prompt built from such a history is not the one in which the model
//! goes on from what it sampled. So each assistant message of a request is looked up, by the ids
//! of its calls, or by its text and what stands before it where it has none, and gets back what
//! only its spelling has lost. What a harness has changed in meaning stays as the harness says
//! it. Either way the request says what was done ([`HistoryReport`]), and the record with it.
//!
//! Pure; whoever serves the session owns it, and asks before and after each call. Every reply is
//! kept once, so that memory grows with what is sampled and not with how often it is sent.

use crate::arguments::say_the_same;
use crate::responses;
use crate::{Block, Message, Reply, ReplyBlock, Request, ResponsesTerms, Role};
use polar_types::HistoryPolicy;
use serde::Serialize;
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// What one session remembers.
#[derive(Debug, Default)]
pub struct TurnMemory {
    turns: Vec<Told>,
    /// Turns by the ids of their calls. Some engines count ids anew in each conversation.
    by_call: HashMap<String, Vec<usize>>,
    /// Turns without calls, by the print of their text.
    by_text: HashMap<u64, Vec<usize>>,
    /// Edits that are in a record already.
    reported: HashSet<Edit>,
}

/// A reply that was told.
#[derive(Debug)]
struct Told {
    /// As sampled, in order.
    blocks: Vec<Block>,
    /// Arguments as the decoder spells them where the client knows a call in another form.
    told_as: HashMap<String, String>,
    /// Print of what the reply answers.
    before: u64,
}

/// A call's arguments that a harness has changed: its id, and the print of what it says now.
type Edit = (String, u64);

/// What a request's history was, compared with what was sampled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryReport {
    /// What the engine gets as it was sampled, though the harness sent it otherwise.
    pub restored: Restored,
    /// What the harness has changed, which stays as it says it.
    pub edited: Edited,
    edits: Vec<Edit>,
}

/// How much was put back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// Calls whose arguments were spelled otherwise.
    #[serde(skip_serializing_if = "is_zero")]
    pub arguments: u32,
    /// Turns whose reasoning was dropped or trimmed.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning: u32,
    /// Turns whose text had lost blanks around it.
    #[serde(skip_serializing_if = "is_zero")]
    pub text: u32,
}

/// What was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Edited {
    /// Ids of the calls with another name or other arguments; each edit is listed with the first
    /// call that has it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<String>,
    /// Turns with other reasoning.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning: u32,
    /// Turns with another text.
    #[serde(skip_serializing_if = "is_zero")]
    pub text: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// What is kept of a request until it is answered.
#[derive(Debug)]
pub struct Asked {
    before: u64,
    edits: Vec<Edit>,
    terms: Option<Arc<ResponsesTerms>>,
}

impl Asked {
    /// Of a request as it goes to the engine.
    pub fn of(request: &Request) -> Self {
        Self {
            before: request.messages.last().map_or(0, print_of),
            edits: request.history.edits.clone(),
            terms: request.responses.clone(),
        }
    }
}

impl TurnMemory {
    /// Notes the reply to a request. To be called before the client gets to know of its end.
    pub fn remember(&mut self, asked: Asked, reply: &Reply) {
        self.reported.extend(asked.edits);
        let turn = self.turns.len();
        let mut told_as = HashMap::new();
        let mut calls = false;
        for block in &reply.blocks {
            if let ReplyBlock::ToolCall { id, name, arguments, .. } = block {
                calls = true;
                self.by_call.entry(id.clone()).or_default().push(turn);
                let terms = asked.terms.as_deref();
                if let Some(other) = terms.and_then(|t| responses::respelled(t, name, arguments)) {
                    told_as.insert(id.clone(), other);
                }
            }
        }
        let blocks: Vec<_> = reply.blocks.iter().map(Block::from).collect();
        if !calls {
            let text = Said::of(&blocks).text;
            if text.trim().is_empty() {
                return;
            }
            self.by_text.entry(print(text.trim())).or_default().push(turn);
        }
        self.turns.push(Told { blocks, told_as, before: asked.before });
    }

    /// Puts back what the model said, where a request's history has lost it.
    pub fn restore(&self, request: &mut Request, policy: HistoryPolicy) {
        let mut report = HistoryReport::default();
        let mut found = HashSet::new();
        let mut before = 0;
        for message in &mut request.messages {
            if message.role == Role::Assistant
                && let Some(turn) = self.recognise(message, before)
            {
                let told = &self.turns[turn];
                told.restore_calls(message, &mut report);
                // A turn that a harness has taken apart has its reasoning once.
                if policy == HistoryPolicy::Restored && found.insert(turn) {
                    told.restore_rest(message, &mut report);
                }
            }
            before = print_of(message);
        }
        report.edits.retain(|edit| !self.reported.contains(edit));
        report.edited.calls = report.edits.iter().map(|(id, _)| id.clone()).collect();
        request.history = report;
    }

    /// The turn that a message of the model's is.
    fn recognise(&self, message: &Message, before: u64) -> Option<usize> {
        let mut ids = calls(&message.blocks).peekable();
        if ids.peek().is_none() {
            let text = Said::of(&message.blocks).text;
            let turns = self.by_text.get(&print(text.trim()))?;
            // A short text is said more than once: what it answers tells which one it is.
            let is_it = |turn: &&usize| {
                let told = &self.turns[**turn];
                told.before == before && Said::of(&told.blocks).text.trim() == text.trim()
            };
            return turns.iter().rev().find(is_it).copied();
        }
        let (turns, (id, name, arguments)) =
            ids.find_map(|call| Some((self.by_call.get(call.0)?, call)))?;
        if let [only] = turns.as_slice() {
            return Some(*only);
        }
        let answers_it = |turn: &&usize| self.turns[**turn].before == before;
        let says_it = |turn: &&usize| self.turns[**turn].says(id, name, arguments) == Some(true);
        let mut latest = turns.iter().rev();
        latest.clone().find(answers_it).or_else(|| latest.find(says_it)).copied()
    }
}

impl Told {
    /// Whether a call of this turn says that; none if it has no such call.
    fn says(&self, id: &str, name: &str, arguments: &str) -> Option<bool> {
        let (_, sampled_name, sampled) = calls(&self.blocks).find(|(known, ..)| *known == id)?;
        let told_as = self.told_as.get(id).is_some_and(|told| told == arguments);
        Some(sampled_name == name && (told_as || say_the_same(sampled, arguments)))
    }

    fn restore_calls(&self, message: &mut Message, report: &mut HistoryReport) {
        for block in &mut message.blocks {
            let Block::ToolCall { id, name, arguments } = block else { continue };
            let sampled = calls(&self.blocks).find(|(known, ..)| known == id);
            match (self.says(id, name, arguments), sampled) {
                (Some(true), Some((.., sampled))) => {
                    // Engines want JSON: a call without arguments keeps the object.
                    let nothing = sampled.trim().is_empty() && arguments == "{}";
                    if sampled != arguments && !nothing {
                        sampled.clone_into(arguments);
                        report.restored.arguments += 1;
                    }
                }
                (Some(false), _) => report.edits.push((id.clone(), print((name, arguments)))),
                _ => {}
            }
        }
    }

    fn restore_rest(&self, message: &mut Message, report: &mut HistoryReport) {
        let (sent, sampled) = (Said::of(&message.blocks), Said::of(&self.blocks));
        let same_calls =
            calls(&message.blocks).map(|call| call.0).eq(calls(&self.blocks).map(|call| call.0));
        if sent.more || !same_calls {
            return;
        }
        let text = Change::between(&sampled.text, &sent.text);
        // Dropped, trimmed, or left with its end, as OpenAI's JavaScript client does, which puts
        // each streamed piece of a field that it does not know in the place of the last one.
        let reasoning = match Change::between(&sampled.reasoning, &sent.reasoning) {
            Change::Other if sampled.reasoning.trim_end().ends_with(sent.reasoning.trim()) => {
                Change::Lost
            }
            other => other,
        };
        report.edited.text += u32::from(text == Change::Other);
        report.edited.reasoning += u32::from(reasoning == Change::Other);
        match (reasoning, text) {
            (Change::Lost, Change::Other) => {
                message.blocks.retain(|block| !matches!(block, Block::Reasoning { .. }));
                let text = sampled.reasoning;
                message.blocks.insert(0, Block::Reasoning { text, signature: None });
            }
            (Change::Other, _) | (Change::None, Change::None | Change::Other) => return,
            (Change::Lost, _) | (_, Change::Lost) => self.replace(message),
        }
        report.restored.reasoning += u32::from(reasoning == Change::Lost);
        report.restored.text += u32::from(text == Change::Lost);
    }

    /// All as it was sampled, but for the calls, which are restored each by itself.
    fn replace(&self, message: &mut Message) {
        let mut sent: Vec<_> = message
            .blocks
            .drain(..)
            .filter(|block| matches!(block, Block::ToolCall { .. }))
            .rev()
            .collect();
        message.blocks = self
            .blocks
            .iter()
            .filter_map(|block| match block {
                Block::ToolCall { .. } => sent.pop(),
                other => Some(other.clone()),
            })
            .collect();
    }
}

/// How a text came back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    /// Less of it than was sampled, or other blanks around it.
    Lost,
    Other,
}

impl Change {
    fn between(sampled: &str, sent: &str) -> Self {
        match sampled == sent {
            true => Self::None,
            false if sampled.trim() == sent.trim() => Self::Lost,
            false => Self::Other,
        }
    }
}

/// What is said in a turn beside its calls, each kind as one.
#[derive(Default)]
struct Said {
    reasoning: String,
    text: String,
    /// Whether there is more that is no part of what a model says.
    more: bool,
}

impl Said {
    fn of(blocks: &[Block]) -> Self {
        let mut said = Self::default();
        for block in blocks {
            match block {
                Block::Text(text) => said.text.push_str(text),
                Block::Reasoning { text, .. } => said.reasoning.push_str(text),
                Block::ToolCall { .. } => {}
                Block::ToolResult { .. } | Block::Image(_) | Block::Other(_) => said.more = true,
            }
        }
        said
    }
}

/// Id, name and arguments of each call.
fn calls(blocks: &[Block]) -> impl Iterator<Item = (&str, &str, &str)> {
    blocks.iter().filter_map(|block| match block {
        Block::ToolCall { id, name, arguments } => {
            Some((id.as_str(), name.as_str(), arguments.as_str()))
        }
        _ => None,
    })
}

/// A print of what a message ends in, the same in all dialects.
fn print_of(message: &Message) -> u64 {
    match message.blocks.last() {
        None => 0,
        Some(Block::Text(text)) => print(text.as_str()),
        Some(Block::ToolResult { call_id, content, .. }) => {
            let said = Said::of(content);
            print((call_id, said.text))
        }
        Some(other) => print(format!("{other:?}")),
    }
}

fn print(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
