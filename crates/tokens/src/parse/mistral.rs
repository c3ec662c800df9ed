//! Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]` up to tokenizer v7, and
//! `[TOOL_CALLS]NAME[ARGS]{…}` for each call from v11 on, with `[CALL_ID]ID` before the arguments in
//! some.

use super::TextParser;
use super::call_object::CallObject;
use super::json_value::{Place as InValue, ValueScanner};
use super::marks::{Found, Pending, begins};
use super::output::{Fault, Output};

const CALLS: &str = "[TOOL_CALLS]";
const ARGUMENTS: &str = "[ARGS]";
const ID: &str = "[CALL_ID]";

pub(super) struct Mistral {
    pending: Pending,
    place: Place,
    object: CallObject,
    value: ValueScanner,
    name: String,
    id: Option<String>,
    raw: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Text,
    /// Behind the mark: a list or a name.
    Begin,
    /// In the list, between objects.
    List,
    Object,
    /// In the list, behind something that is no object; up to the next mark.
    Lost,
    Name,
    Id,
    /// Before and in the arguments of a named call.
    Arguments,
}

impl Mistral {
    pub(super) fn new() -> Self {
        Self {
            pending: Pending::default(),
            place: Place::Text,
            object: CallObject::new(false),
            value: ValueScanner::default(),
            name: String::new(),
            id: None,
            raw: String::new(),
        }
    }

    fn step(&mut self, out: &mut Output) -> bool {
        match self.place {
            Place::Text => self.step_text(out),
            Place::Begin => self.step_begin(),
            Place::Name | Place::Id => self.step_header(out),
            Place::List | Place::Object | Place::Lost | Place::Arguments => self.step_char(out),
        }
    }

    fn step_text(&mut self, out: &mut Output) -> bool {
        match self.pending.find(&[CALLS]) {
            Found::Mark { at, .. } => {
                out.text(self.pending.take(at));
                self.raw.clear();
                self.raw.push_str(self.pending.take(CALLS.len()));
                self.place = Place::Begin;
                true
            }
            Found::Nothing { certain } => {
                out.text(self.pending.take(certain));
                false
            }
        }
    }

    fn step_begin(&mut self) -> bool {
        self.raw.push_str(self.pending.skip_blank());
        let text = self.pending.as_str();
        self.id = None;
        self.name.clear();
        match text.chars().next() {
            None => false,
            Some('[') => {
                // A list, unless it is another mark, which stands behind no name.
                match (begins(text, ARGUMENTS), begins(text, ID), begins(text, CALLS)) {
                    (Some(false), Some(false), Some(false)) => {
                        self.raw.push_str(self.pending.take(1));
                        self.place = Place::List;
                    }
                    (Some(true), ..) | (_, Some(true), _) | (_, _, Some(true)) => {
                        self.place = Place::Name;
                    }
                    _ => return false,
                }
                true
            }
            Some(_) => {
                self.place = Place::Name;
                true
            }
        }
    }

    /// The name or the id, up to what ends it.
    fn step_header(&mut self, out: &mut Output) -> bool {
        let marks = [ARGUMENTS, ID, CALLS, "{"];
        let Found::Mark { at, which } = self.pending.find(&marks) else { return false };
        let header = self.pending.take(at);
        self.raw.push_str(header);
        match self.place {
            Place::Id => self.id = Some(header.trim().to_owned()),
            _ => header.trim().clone_into(&mut self.name),
        }
        match which {
            0 => self.raw.push_str(self.pending.take(ARGUMENTS.len())),
            1 => {
                self.raw.push_str(self.pending.take(ID.len()));
                self.place = Place::Id;
                return true;
            }
            _ => {}
        }
        if !self.name.is_empty() {
            out.begin_call(&self.name, self.id.as_deref());
        }
        self.value = ValueScanner::default();
        self.place = Place::Arguments;
        true
    }

    fn in_string(&self) -> bool {
        match self.place {
            Place::Object => self.object.in_string(),
            Place::Arguments => self.value.in_string(),
            _ => false,
        }
    }

    fn step_char(&mut self, out: &mut Output) -> bool {
        if !self.in_string() {
            match begins(self.pending.as_str(), CALLS) {
                None if !self.pending.as_str().is_empty() => return false,
                Some(true) => {
                    self.end_early(Fault::Unclosed, out);
                    self.place = Place::Text;
                    return true;
                }
                _ => {}
            }
        }
        let Some(c) = self.pending.next_char() else { return false };
        self.raw.push(c);
        match self.place {
            Place::Object => self.push_object(c, out),
            Place::Arguments => self.push_arguments(c, out),
            Place::List => self.push_list(c),
            _ => {}
        }
        true
    }

    fn push_list(&mut self, c: char) {
        match c {
            '{' => {
                self.object = CallObject::new(false);
                self.object.push(c);
                self.place = Place::Object;
            }
            ']' => self.place = Place::Text,
            ',' => self.raw.clear(),
            c if c.is_whitespace() => {}
            _ => self.place = Place::Lost,
        }
    }

    fn push_object(&mut self, c: char, out: &mut Output) {
        self.object.push(c);
        self.object.flush(out);
        if self.object.is_done() {
            match out.call_is_open() {
                true => out.end_call(self.object.fault(out), &self.raw),
                false => out.nameless_call(Fault::NoName, &self.raw),
            }
            self.raw.clear();
            self.place = Place::List;
        }
    }

    fn push_arguments(&mut self, c: char, out: &mut Output) {
        let mut text = [0; 4];
        match self.value.push(c) {
            InValue::Before => {}
            InValue::Inside => out.arguments(c.encode_utf8(&mut text)),
            InValue::Last => {
                out.arguments(c.encode_utf8(&mut text));
                self.end_named(out);
            }
            InValue::After => self.end_named(out),
        }
    }

    fn end_named(&mut self, out: &mut Output) {
        match out.call_is_open() {
            true => out.end_call(out.arguments_fault(), &self.raw),
            false => out.nameless_call(Fault::NoName, &self.raw),
        }
        self.place = Place::Text;
    }

    /// The call ends before it is whole.
    fn end_early(&mut self, fault: Fault, out: &mut Output) {
        let is_blank = |raw: &str| raw.trim().is_empty();
        match self.place {
            _ if out.call_is_open() => out.end_call(Some(fault), &self.raw),
            Place::List if is_blank(&self.raw) => {}
            _ => out.nameless_call(fault, &self.raw),
        }
    }
}

impl TextParser for Mistral {
    fn push(&mut self, text: &str, out: &mut Output) {
        self.pending.push(text);
        while self.step(out) {}
    }

    fn finish(&mut self, out: &mut Output) {
        let rest = self.pending.take_all();
        match self.place {
            Place::Text => out.text(rest),
            _ => {
                self.raw.push_str(rest);
                self.end_early(Fault::Unfinished, out);
            }
        }
    }
}
