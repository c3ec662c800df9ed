//! What parsers give: events, with the state of the call that is open.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// A step of what a model wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParsedEvent {
    /// More of the reasoning, as written.
    Reasoning(String),
    /// More of the visible text, as written. Runs of white space alone, between other parts, are
    /// formatting of the family and left out.
    Text(String),
    /// A tool call begins.
    CallBegin {
        /// Counts the calls of the reply from zero.
        index: u32,
        /// The id, in families whose models write one.
        id: Option<String>,
        /// The tool's name.
        name: String,
    },
    /// More of a call's arguments: after its beginning, and before its end.
    CallArguments {
        /// Which call.
        index: u32,
        /// A piece of JSON text.
        fragment: String,
    },
    /// A call is complete.
    CallEnd {
        /// Which call.
        index: u32,
    },
    /// A call was not well formed. Comes after its end, or after the text it was given as.
    Malformed(MalformedCall),
}

/// A call that was not written as its format says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MalformedCall {
    /// Which call; none where it has no name and was given as text.
    pub index: Option<u32>,
    /// The tool's name, where there is one.
    pub name: Option<String>,
    /// What is wrong with it.
    pub fault: Fault,
    /// The call as the model wrote it, marks included.
    pub raw: String,
}

/// What can be wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The reply ended inside it.
    Unfinished,
    /// It is whole, but the mark that ends it, or a part of it, is missing.
    Unclosed,
    /// It names no tool.
    NoName,
    /// It has no arguments.
    NoArguments,
    /// Its arguments are not JSON.
    NotJson,
    /// Its arguments are JSON, but no object.
    NotAnObject,
    /// There is something in it that its format has no place for.
    Unexpected,
    /// An argument is not of the type that the tool's schema asks for.
    WrongType,
}

/// Gathers events. Knows the call that is open, and whether the present run of text says
/// anything.
#[derive(Default)]
pub(super) struct Output {
    events: Vec<ParsedEvent>,
    /// White space at the beginning of a run of text.
    blank: String,
    /// The run has more than white space.
    in_text: bool,
    calls: u32,
    open: Option<OpenCall>,
}

struct OpenCall {
    index: u32,
    name: String,
    arguments: String,
}

impl Output {
    pub(super) fn take(&mut self) -> Vec<ParsedEvent> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if !self.in_text {
            self.blank.push_str(text);
            if text.trim().is_empty() {
                return;
            }
            self.in_text = true;
            let run = std::mem::take(&mut self.blank);
            self.events.push(ParsedEvent::Text(run));
        } else if let Some(ParsedEvent::Text(last)) = self.events.last_mut() {
            last.push_str(text);
        } else {
            self.events.push(ParsedEvent::Text(text.to_owned()));
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.end_run();
        match self.events.last_mut() {
            Some(ParsedEvent::Reasoning(last)) => last.push_str(text),
            _ => self.events.push(ParsedEvent::Reasoning(text.to_owned())),
        }
    }

    /// A run of text ends here: what follows is told apart from it.
    pub(super) fn end_run(&mut self) {
        self.blank.clear();
        self.in_text = false;
    }

    pub(super) fn begin_call(&mut self, name: &str, id: Option<&str>) {
        self.end_run();
        let index = self.calls;
        self.calls += 1;
        self.open = Some(OpenCall { index, name: name.to_owned(), arguments: String::new() });
        let id = id.map(str::to_owned);
        self.events.push(ParsedEvent::CallBegin { index, id, name: name.to_owned() });
    }

    pub(super) fn arguments(&mut self, fragment: &str) {
        let Some(call) = self.open.as_mut().filter(|_| !fragment.is_empty()) else { return };
        call.arguments.push_str(fragment);
        match self.events.last_mut() {
            Some(ParsedEvent::CallArguments { fragment: last, .. }) => last.push_str(fragment),
            _ => {
                let fragment = fragment.to_owned();
                self.events.push(ParsedEvent::CallArguments { index: call.index, fragment });
            }
        }
    }

    pub(super) fn call_is_open(&self) -> bool {
        self.open.is_some()
    }

    /// What the open call's arguments are, if they are no JSON object.
    pub(super) fn arguments_fault(&self) -> Option<Fault> {
        let arguments = self.open.as_ref().map_or("", |call| call.arguments.trim());
        if arguments.is_empty() {
            return Some(Fault::NoArguments);
        }
        match serde_json::from_str::<IgnoredAny>(arguments) {
            Err(_) => Some(Fault::NotJson),
            Ok(_) if !arguments.starts_with('{') => Some(Fault::NotAnObject),
            Ok(_) => None,
        }
    }

    /// Ends the open call, which was written as `raw`. One that the reply ended in behind its
    /// arguments is whole, but for its end.
    pub(super) fn end_call(&mut self, fault: Option<Fault>, raw: &str) {
        let fault = match fault {
            Some(Fault::Unfinished) if self.arguments_fault().is_none() => Some(Fault::Unclosed),
            other => other,
        };
        let Some(call) = self.open.take() else { return };
        self.events.push(ParsedEvent::CallEnd { index: call.index });
        if let Some(fault) = fault {
            self.events.push(ParsedEvent::Malformed(MalformedCall {
                index: Some(call.index),
                name: Some(call.name),
                fault,
                raw: raw.to_owned(),
            }));
        }
    }

    /// Gives a call that has no name as the text it is.
    pub(super) fn nameless_call(&mut self, fault: Fault, raw: &str) {
        self.end_run();
        self.text(raw);
        self.end_run();
        let raw = raw.to_owned();
        let call = MalformedCall { index: None, name: None, fault, raw };
        self.events.push(ParsedEvent::Malformed(call));
    }
}
