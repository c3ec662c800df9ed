//! A call written as one JSON object: `{"name": …, "arguments": {…}}`.

use super::json_value::{Place, ValueScanner};
use super::output::{Fault, Output};

/// Follows the object character by character and hands name and arguments on as soon as they
/// are known. Keys may come in any order.
pub(super) struct CallObject {
    state: State,
    value: ValueScanner,
    key: String,
    /// Text of the value of a key that is not `arguments`.
    other: String,
    name: Option<String>,
    /// Arguments that came and were not handed on.
    arguments: String,
    has_arguments: bool,
    /// Begin the call only when both name and arguments have come: an object that is no call
    /// may have a name as well.
    needs_both: bool,
    fault: Option<Fault>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    /// A key, or the end of an empty object.
    Key,
    InKey {
        escaped: bool,
    },
    Colon,
    Value,
    AfterValue,
    Done,
    /// This is no such object.
    Lost,
}

impl CallObject {
    pub(super) fn new(needs_both: bool) -> Self {
        Self {
            state: State::Start,
            value: ValueScanner::default(),
            key: String::new(),
            other: String::new(),
            name: None,
            arguments: String::new(),
            has_arguments: false,
            needs_both,
            fault: None,
        }
    }

    pub(super) fn push(&mut self, c: char) {
        let blank = c.is_ascii_whitespace();
        match (self.state, c) {
            (State::Value, c) => self.push_value(c),
            (State::InKey { escaped }, c) => self.push_key(c, escaped),
            (State::Lost, _) => {}
            (_, _) if blank => {}
            (State::Start, '{') => self.state = State::Key,
            (State::Key, '"') => {
                self.key.clear();
                self.state = State::InKey { escaped: false };
            }
            (State::Key | State::AfterValue, '}') => self.state = State::Done,
            (State::Colon, ':') => {
                self.value = ValueScanner::default();
                self.other.clear();
                self.state = State::Value;
            }
            (State::AfterValue, ',') => self.state = State::Key,
            (_, _) => self.lose(),
        }
    }

    /// Begins the call and hands arguments on, as far as they are known.
    pub(super) fn flush(&mut self, out: &mut Output) {
        let Some(name) = &self.name else { return };
        if !out.call_is_open() {
            if self.needs_both && !self.has_arguments {
                return;
            }
            out.begin_call(name, None);
        }
        out.arguments(&self.arguments);
        self.arguments.clear();
    }

    /// The object is complete.
    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The text is no such object.
    pub(super) fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    /// A mark here would be a part of a string.
    pub(super) fn in_string(&self) -> bool {
        match self.state {
            State::Value => self.value.in_string(),
            State::InKey { .. } => true,
            _ => false,
        }
    }

    /// What is wrong with an object that ends here.
    pub(super) fn fault(&self, out: &Output) -> Option<Fault> {
        let shape = match self.state {
            State::Done => None,
            State::Lost => self.fault.or(Some(Fault::Unexpected)),
            _ => Some(Fault::Unfinished),
        };
        match out.call_is_open() {
            false => Some(shape.unwrap_or(Fault::NoName)),
            true => shape.or(self.fault).or_else(|| out.arguments_fault()),
        }
    }

    fn lose(&mut self) {
        self.state = State::Lost;
        self.fault = self.fault.or(Some(Fault::Unexpected));
    }

    fn push_key(&mut self, c: char, escaped: bool) {
        self.state = State::InKey { escaped: !escaped && c == '\\' };
        match c {
            '"' if !escaped => self.state = State::Colon,
            c if c < ' ' => self.lose(),
            c => self.key.push(c),
        }
    }

    fn push_value(&mut self, c: char) {
        let place = self.value.push(c);
        if matches!(place, Place::Inside | Place::Last) {
            match self.is_arguments() {
                true => {
                    self.has_arguments = true;
                    self.arguments.push(c);
                }
                false => self.other.push(c),
            }
        }
        match place {
            Place::Before | Place::Inside => {}
            Place::Last => self.end_value(),
            Place::After => {
                match self.value.is_empty() {
                    true => self.lose(),
                    false => self.end_value(),
                }
                self.push(c);
            }
        }
    }

    fn is_arguments(&self) -> bool {
        matches!(self.key.as_str(), "arguments" | "parameters")
    }

    fn end_value(&mut self) {
        self.state = State::AfterValue;
        if self.key != "name" {
            return;
        }
        let name = serde_json::from_str::<String>(&self.other).ok();
        match name.filter(|name| !name.trim().is_empty()) {
            Some(name) if self.name.is_none() => self.name = Some(name),
            Some(_) => self.fault = Some(Fault::Unexpected),
            None => self.fault = Some(Fault::NoName),
        }
    }
}
