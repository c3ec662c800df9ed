//! The calls of one session, so that a request is put behind the one that it goes on from.
//!
//! Each call is kept as what it adds to the call before it, so that memory grows with the
//! session's tokens. A conversation is known by a chain of prints of its messages.

use super::{Conversation, PromptError, PromptRenderer, TurnEnd};
use polar_types::HistoryPolicy;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What a session has asked and the model has sampled.
#[derive(Debug, Default)]
pub struct PromptMemory {
    calls: Vec<KnownCall>,
    /// Calls by the conversation that ends in their reply.
    by_conversation: HashMap<PromptKey, Vec<usize>>,
}

#[derive(Debug)]
struct KnownCall {
    /// The call that this one goes on from.
    base: Option<usize>,
    /// Ids behind that one's prompt and reply: of the tail, then sampled ones.
    ids: Vec<u32>,
    /// Ids of prompt and reply together.
    length: usize,
    /// The last sampled one.
    last: Option<u32>,
    /// Number of the call in its session's journal.
    number: u32,
    is_continued: bool,
}

/// A print of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PromptKey(u64, u64);

/// The prompt for a request.
#[derive(Debug, Clone)]
pub struct Plan {
    /// All of it.
    pub ids: Vec<u32>,
    /// What it goes on from.
    pub basis: Basis,
    key: PromptKey,
    base: Option<usize>,
    shared: usize,
}

/// Where the beginning of a prompt comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// Nothing that was asked before: all of it is rendered.
    Rendered,
    /// An earlier call, whose prompt and reply it begins with.
    Call {
        /// Its number in the journal.
        number: u32,
        /// How its reply ended; absent where all was rendered to see whether it agrees.
        end: Option<TurnEnd>,
    },
    /// An earlier call was found, but the template does not write its turn as it was sampled, and
    /// the task says that the template is right.
    Rewritten {
        /// Its number in the journal.
        number: u32,
    },
}

impl Plan {
    /// The prompt of a conversation that the engine has rendered itself.
    pub fn rendered_elsewhere(conversation: PromptKey, ids: Vec<u32>) -> Self {
        Self { ids, basis: Basis::Rendered, key: conversation, base: None, shared: 0 }
    }

    /// The call that the prompt goes on from, by its number in the journal, and the ids behind
    /// that one's prompt and reply: all of them where there is none.
    pub fn tail(&self) -> (Option<u32>, &[u32]) {
        let number = match self.basis {
            Basis::Call { number, .. } => Some(number),
            Basis::Rendered | Basis::Rewritten { .. } => None,
        };
        (number, &self.ids[self.shared..])
    }
}

impl PromptMemory {
    /// The prompt for a conversation, with what was sampled in it as it was sampled.
    pub fn plan(
        &self,
        renderer: &PromptRenderer,
        conversation: &Conversation<'_>,
        policy: HistoryPolicy,
    ) -> Result<Plan, PromptError> {
        let chain = Chain::of(conversation);
        let key = chain.last();
        let whole = |basis| {
            let ids = renderer.prompt(conversation)?;
            Ok(Plan { ids, basis, key, base: None, shared: 0 })
        };
        let Some((known, from)) = self.longest(&chain) else { return whole(Basis::Rendered) };
        let number = self.calls[known].number;
        let mut ids = self.sequence(known);
        let shared = ids.len();
        if policy == HistoryPolicy::Template {
            let Some(rest) = renderer.rest_of_template(conversation, &ids)? else {
                return whole(Basis::Rewritten { number });
            };
            ids.extend(rest);
            let basis = Basis::Call { number, end: None };
            return Ok(Plan { ids, basis, key, base: Some(known), shared });
        }
        // A template may refuse every stand-in and take the conversation.
        let Ok(tail) = renderer.tail(conversation, from, self.calls[known].last) else {
            return whole(Basis::Rendered);
        };
        ids.extend(tail.ids);
        let basis = Basis::Call { number, end: Some(tail.end) };
        Ok(Plan { ids, basis, key, base: Some(known), shared })
    }

    /// Notes the reply to a plan: the message that it becomes, and what was sampled. `number` is
    /// the call's in the journal.
    pub fn remember(&mut self, plan: &Plan, reply: &Value, sampled: &[u32], number: u32) {
        let ids = [&plan.ids[plan.shared..], sampled].concat();
        if let Some(base) = plan.base {
            self.calls[base].is_continued = true;
        }
        let call = self.calls.len();
        let length = plan.ids.len() + sampled.len();
        let last = sampled.last().copied();
        let base = plan.base;
        self.calls.push(KnownCall { base, ids, length, last, number, is_continued: false });
        self.by_conversation.entry(plan.key.behind(reply)).or_default().push(call);
    }

    /// The call with the longest conversation that begins this one, and the message behind it.
    fn longest(&self, chain: &Chain) -> Option<(usize, usize)> {
        chain.keys.iter().enumerate().rev().find_map(|(from, key)| {
            let calls = self.by_conversation.get(key)?;
            // Of several calls with the same reply each can be gone on from once.
            let fresh = calls.iter().rev().find(|call| !self.calls[**call].is_continued);
            fresh.or(calls.last()).map(|call| (*call, from))
        })
    }

    /// Prompt and sampled ids of a call.
    fn sequence(&self, call: usize) -> Vec<u32> {
        let mut path = vec![&self.calls[call]];
        while let Some(base) = path.last().and_then(|call| call.base) {
            path.push(&self.calls[base]);
        }
        let mut ids = Vec::with_capacity(self.calls[call].length);
        path.iter().rev().for_each(|call| ids.extend_from_slice(&call.ids));
        ids
    }
}

/// The keys of a conversation's beginnings: of its first 0, 1, 2 … messages.
struct Chain {
    keys: Vec<PromptKey>,
}

impl Chain {
    fn of(conversation: &Conversation<'_>) -> Self {
        let head = (conversation.tools, SortedMap(conversation.options));
        let mut keys = vec![PromptKey::default().with(&head)];
        for message in conversation.messages {
            let key = keys[keys.len() - 1];
            keys.push(key.behind(message));
        }
        Self { keys }
    }

    fn last(&self) -> PromptKey {
        self.keys.last().copied().unwrap_or_default()
    }
}

impl PromptKey {
    /// The key of a whole conversation.
    pub fn of(conversation: &Conversation<'_>) -> Self {
        Chain::of(conversation).last()
    }

    /// The key of the conversation with one more message.
    fn behind(self, message: &Value) -> Self {
        match message["role"] == "assistant" && message["content"].is_string() {
            true => self.with(&said(message)),
            false => self.with(message),
        }
    }

    fn with(self, next: &impl Hash) -> Self {
        let half = |number: u8| {
            let mut hasher = DefaultHasher::new();
            (number, self, next).hash(&mut hasher);
            hasher.finish()
        };
        Self(half(0), half(1))
    }
}

/// What the model says in a turn. What else a client notes there is not in its ids.
fn said(turn: &Value) -> impl Hash {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let calls = turn["tool_calls"].as_array().into_iter().flatten();
    let calls = calls.map(|call| {
        let function = &call["function"];
        let arguments = text(&function["arguments"]);
        // A call without arguments is told with an empty object.
        let arguments = match arguments.trim() {
            "" => "{}".to_owned(),
            _ => arguments,
        };
        (text(&call["id"]), text(&function["name"]), arguments)
    });
    (text(&turn["content"]), text(&turn["reasoning_content"]), calls.collect::<Vec<_>>())
}

/// Arguments of a template in any order.
struct SortedMap<'a>(&'a Map<String, Value>);

impl Hash for SortedMap<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut fields: Vec<_> = self.0.iter().collect();
        fields.sort_by_key(|(name, _)| *name);
        fields.hash(state);
    }
}

impl PromptRenderer {
    /// What the template writes behind the text of `ids`, if it writes that text; rendered whole.
    fn rest_of_template(
        &self,
        conversation: &Conversation<'_>,
        ids: &[u32],
    ) -> Result<Option<Vec<u32>>, PromptError> {
        let text = self.text(conversation, conversation.messages, conversation.tools, true)?;
        let before = self.tokenizer().decode(ids);
        let Some(rest) = text.strip_prefix(before.as_str()) else { return Ok(None) };
        let last = ids.last().copied();
        let rest = match last.filter(|last| self.tokenizer().is_added(*last)) {
            Some(last) => self.tokenizer().encode_behind(last, rest)?,
            None => self.tokenizer().encode(rest)?,
        };
        Ok(Some(rest))
    }
}
