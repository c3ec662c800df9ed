//! Llama 3.1 to 3.3: the reply is `{"name": …, "parameters": {…}}`, one object or several with `;`
//! between them, with `<|python_tag|>` before it in some versions.
//!
//! A reply that is JSON but no call is text. Behind the tag it is a malformed call, as is the
//! code that the tag stands for in models with built-in tools.

use super::TextParser;
use super::call_object::CallObject;
use super::marks::{Found, Pending, begins};
use super::output::{Fault, Output};

const TAG: &str = "<|python_tag|>";

pub(super) struct Llama {
    pending: Pending,
    place: Place,
    object: CallObject,
    /// What was written since the last thing that was certain.
    raw: String,
    tagged: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before an object: at the beginning, behind the tag, or behind another object.
    Begin,
    Object,
    Text,
    /// Behind the tag, and no object.
    Code,
}

impl Llama {
    pub(super) fn new() -> Self {
        Self {
            pending: Pending::default(),
            place: Place::Begin,
            object: CallObject::new(true),
            raw: String::new(),
            tagged: false,
        }
    }

    fn step(&mut self, out: &mut Output) -> bool {
        match self.place {
            Place::Begin => self.step_begin(),
            Place::Object => self.step_object(out),
            Place::Text => self.step_text(out),
            Place::Code => {
                let code = self.pending.take_all();
                self.raw.push_str(code);
                false
            }
        }
    }

    fn step_begin(&mut self) -> bool {
        let blank = self.pending.skip_blank();
        self.raw.push_str(blank);
        let text = self.pending.as_str();
        let Some(first) = text.chars().next() else { return false };
        match (first, begins(text, TAG)) {
            ('{', _) => {
                self.object = CallObject::new(true);
                self.place = Place::Object;
            }
            (_, None) => return false,
            (_, Some(true)) => {
                self.tagged = true;
                self.raw.push_str(self.pending.take(TAG.len()));
            }
            (';', _) => {
                self.pending.take(1);
                self.raw.push(';');
            }
            _ => self.place = if self.tagged { Place::Code } else { Place::Text },
        }
        true
    }

    fn step_object(&mut self, out: &mut Output) -> bool {
        let Some(c) = self.pending.next_char() else { return false };
        self.raw.push(c);
        self.object.push(c);
        self.object.flush(out);
        if self.object.is_done() {
            self.end_object(out);
        } else if self.object.is_lost() && !out.call_is_open() {
            self.place = if self.tagged { Place::Code } else { Place::Text };
        }
        true
    }

    fn end_object(&mut self, out: &mut Output) {
        if out.call_is_open() {
            out.end_call(self.object.fault(out), &self.raw);
            self.raw.clear();
            self.place = Place::Begin;
        } else {
            self.place = if self.tagged { Place::Code } else { Place::Text };
        }
    }

    fn step_text(&mut self, out: &mut Output) -> bool {
        out.text(&std::mem::take(&mut self.raw));
        match self.pending.find(&[TAG]) {
            Found::Mark { at, .. } => {
                out.text(self.pending.take(at));
                self.tagged = true;
                self.raw.push_str(self.pending.take(TAG.len()));
                self.place = Place::Begin;
                true
            }
            Found::Nothing { certain } => {
                out.text(self.pending.take(certain));
                false
            }
        }
    }
}

impl TextParser for Llama {
    fn push(&mut self, text: &str, out: &mut Output) {
        self.pending.push(text);
        while self.step(out) {}
    }

    fn finish(&mut self, out: &mut Output) {
        let rest = self.pending.take_all();
        self.raw.push_str(rest);
        if out.call_is_open() {
            out.end_call(self.object.fault(out), &self.raw);
        } else if self.tagged && !self.raw.trim_matches([' ', '\n', ';']).is_empty() {
            let fault = match self.place {
                Place::Object => Fault::Unfinished,
                _ => Fault::NoName,
            };
            out.nameless_call(fault, &self.raw);
        } else {
            out.text(&self.raw);
        }
    }
}
