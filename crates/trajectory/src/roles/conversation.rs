//! What the messages of a session say about which call goes on from which.

use crate::messages;
use polar_record::RecordedSession;
use serde_json::Value;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::ops::Range;

/// Shorter pieces of text are in many prompts by chance.
const TELLING_CHARS: usize = 12;

/// Messages looked up at first; what is asked for is mostly at an end.
const CHUNK: usize = 4;

/// The calls of a session as a conversation, every message read at most once.
pub(super) struct Conversation<'a> {
    session: &'a RecordedSession,
    read: Vec<OnceCell<Said>>,
    /// Replies that gave tools something to work on, oldest first.
    with_arguments: Vec<u32>,
    replies: Vec<Said>,
    /// Number of the first message of each call.
    fronts: Vec<Option<u32>>,
    predecessors: Vec<Option<u32>>,
    /// Whether a call that offers tools goes on from it.
    leads_to_tools: Vec<bool>,
}

/// Earlier replies by what they are recognised by.
#[derive(Default)]
struct Replies {
    by_call_id: HashMap<String, Vec<u32>>,
    by_text: HashMap<String, Vec<u32>>,
}

/// A message, as far as it tells.
pub(super) struct Said {
    pub(super) role: String,
    pub(super) text: String,
    call_ids: Vec<String>,
    /// Texts in the arguments of its tool calls.
    arguments: Vec<String>,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(session: &'a RecordedSession) -> Self {
        let mut read = Vec::new();
        read.resize_with(session.values().count(), OnceCell::new);
        let mut conversation = Self {
            session,
            read,
            with_arguments: Vec::new(),
            replies: Vec::new(),
            fronts: Vec::new(),
            predecessors: Vec::new(),
            leads_to_tools: vec![false; session.calls().len()],
        };
        let mut earlier = Replies::default();
        for index in 0..session.calls().len() as u32 {
            conversation.pass(index, &mut earlier);
        }
        conversation
    }

    fn pass(&mut self, index: u32, earlier: &mut Replies) {
        let call = &self.session.calls()[index as usize];
        self.fronts.push(self.numbers(index, 0..1).first().copied());
        let predecessor = self.find_predecessor(index, earlier);
        self.predecessors.push(predecessor);
        if call.tools_number().is_some() {
            self.note_way_to_tools(index);
        }

        let reply = said(&self.session.reply(call));
        for id in &reply.call_ids {
            earlier.by_call_id.entry(id.clone()).or_default().push(index);
        }
        if !reply.text.trim().is_empty() {
            earlier.by_text.entry(reply.text.trim().to_owned()).or_default().push(index);
        }
        if !reply.arguments.is_empty() {
            self.with_arguments.push(index);
        }
        self.replies.push(reply);
    }

    /// Marks all that a call with tools goes on from, each at most once.
    fn note_way_to_tools(&mut self, index: u32) {
        let mut at = self.predecessors[index as usize];
        while let Some(before) = at.filter(|call| !self.leads_to_tools[*call as usize]) {
            self.leads_to_tools[before as usize] = true;
            at = self.predecessors[before as usize];
        }
    }

    /// The messages of a prompt, first to last. Reads little more of them than is taken.
    pub(super) fn prompt(&self, index: u32) -> impl Iterator<Item = &Said> {
        let len = self.session.calls()[index as usize].prompt_messages();
        let chunks = std::iter::successors(Some(0..len.min(CHUNK)), move |last| {
            (last.end < len).then(|| last.end..len.min(last.end * 2))
        });
        chunks.flat_map(move |chunk| self.numbers(index, chunk)).map(|number| self.message(number))
    }

    /// The same, last to first.
    pub(super) fn prompt_backwards(&self, index: u32) -> impl Iterator<Item = &Said> {
        let len = self.session.calls()[index as usize].prompt_messages();
        let chunks = std::iter::successors(Some(len.saturating_sub(CHUNK)..len), move |last| {
            let start = len.saturating_sub(2 * (len - last.start));
            (last.start > 0).then_some(start..last.start)
        });
        chunks
            .flat_map(move |chunk| self.numbers(index, chunk).into_iter().rev())
            .map(|number| self.message(number))
    }

    /// What a prompt begins with: equal for prompts of one program, as a rule.
    pub(super) fn front(&self, index: u32) -> Option<u32> {
        self.fronts[index as usize]
    }

    /// Whether a call that offers tools goes on from this one.
    pub(super) fn leads_to_tools(&self, index: u32) -> bool {
        self.leads_to_tools[index as usize]
    }

    /// The call whose reply is the last of those that a prompt holds.
    pub(super) fn predecessor(&self, index: u32) -> Option<u32> {
        self.predecessors[index as usize]
    }

    fn find_predecessor(&self, index: u32, earlier: &Replies) -> Option<u32> {
        let prompt = self.prompt_backwards(index);
        prompt.filter(|message| message.role == "assistant").find_map(|message| {
            let by_id = message.call_ids.iter().find_map(|id| earlier.by_call_id.get(id));
            if let Some(calls) = by_id {
                return self.closest(index, calls).map(|(call, _)| call);
            }
            let text = message.text.trim();
            let (call, shared) = self.closest(index, earlier.by_text.get(text)?)?;
            // What anybody may say is known only in a conversation that it was said in.
            (shared > 0 || text.chars().count() >= TELLING_CHARS).then_some(call)
        })
    }

    /// The latest of `calls` whose messages and reply a prompt begins with, else the latest of
    /// those that share most of its messages, and how many. Ids and short texts may come again
    /// in another conversation of the session, even in one of the same program.
    fn closest(&self, index: u32, calls: &[u32]) -> Option<(u32, usize)> {
        let tree = self.session.messages_tree();
        let of = |call: u32| &self.session.calls()[call as usize];
        let shared = |call: u32| {
            let shared = tree.shared_depth(of(index).exchange_end(), of(call).exchange_end());
            (call, shared.min(of(index).prompt_messages()))
        };
        let mut latest = calls.iter().rev().map(|call| shared(*call));
        let whole = latest.find(|(call, shared)| *shared == of(*call).exchange_end().depth());
        whole.or_else(|| calls.iter().map(|call| shared(*call)).max_by_key(|(_, shared)| *shared))
    }

    /// The call that gave a tool what this new conversation begins with.
    pub(super) fn starter(&self, index: u32) -> Option<u32> {
        if self.prompt(index).any(|message| message.role == "assistant") {
            return None;
        }
        let asked: Vec<&str> = self
            .prompt(index)
            .filter(|message| message.role == "user")
            .map(|message| message.text.trim())
            .collect();
        let starts = |call: &&u32| {
            let arguments = &self.replies[**call as usize].arguments;
            arguments.iter().map(|argument| argument.trim()).any(|argument| {
                is_asked(&asked, argument) && !self.was_told(index, **call, argument)
            })
        };
        let earlier = self.with_arguments.partition_point(|call| *call < index);
        self.with_arguments[..earlier].iter().rev().find(starts).copied()
    }

    /// Whether words that a call gave a tool were the user's, and what was asked with them
    /// looks like no agent's work: a title for them, or the same work begun anew.
    fn was_told(&self, index: u32, starter: u32, words: &str) -> bool {
        let tools = |call: u32| self.session.calls()[call as usize].tools_number();
        let is_anew = self.front(index) == self.front(starter) && tools(index) == tools(starter);
        (is_anew || tools(index).is_none())
            && self
                .prompt(starter)
                .any(|message| message.role == "user" && message.text.contains(words))
    }

    /// Whether a prompt holds words of an earlier reply outside replies of its own. Of a
    /// summary, harnesses may keep only the inner part.
    pub(super) fn holds_words_of(&self, index: u32, earlier: u32) -> bool {
        let reply = &self.replies[earlier as usize].text;
        let longest = reply.lines().map(str::trim).max_by_key(|line| line.chars().count());
        longest.is_some_and(|line| {
            line.chars().count() >= TELLING_CHARS
                && self.prompt(index).any(|message| message.text.contains(line))
        })
    }

    fn numbers(&self, index: u32, places: Range<usize>) -> Vec<u32> {
        let tree = self.session.messages_tree();
        let end = self.session.calls()[index as usize].exchange_end();
        let end = tree.ancestor(end, places.end);
        end.map(|end| tree.path(end, places.start)).unwrap_or_default()
    }

    fn message(&self, number: u32) -> &Said {
        self.read[number as usize].get_or_init(|| said(&self.session.message(number)))
    }
}

/// Whether what is asked is an argument of a call. Harnesses put their own words before or around
/// what the agent said.
fn is_asked(asked: &[&str], argument: &str) -> bool {
    let is_in = |text: &&str| {
        text.ends_with(argument) || (argument.len() * 2 >= text.len() && text.contains(argument))
    };
    argument.chars().count() >= TELLING_CHARS && asked.iter().any(is_in)
}

fn said(message: &Value) -> Said {
    let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut arguments = Vec::new();
    for call in calls {
        let spelled = call["function"]["arguments"].as_str().unwrap_or_default();
        if let Ok(value) = serde_json::from_str(spelled) {
            texts(&value, &mut arguments);
        }
    }
    Said {
        role: messages::role(message).to_owned(),
        text: messages::text(message),
        call_ids: calls.iter().filter_map(|call| Some(call["id"].as_str()?.to_owned())).collect(),
        arguments,
    }
}

fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(entries) => entries.values().for_each(|item| texts(item, found)),
        _ => {}
    }
}
