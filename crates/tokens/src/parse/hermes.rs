//! Hermes 2 and 3, Qwen2.5, QwQ and Qwen3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.
//!
//! A mark inside of a string of the arguments is a part of the string.

use super::TextParser;
use super::call_object::CallObject;
use super::marks::{Found, Pending, begins};
use super::output::{Fault, Output};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

#[derive(Default)]
pub(super) struct Hermes {
    pending: Pending,
    call: Option<Call>,
}

struct Call {
    object: CallObject,
    raw: String,
    /// Something stands behind the object.
    trailing: bool,
}

impl Call {
    fn begin() -> Self {
        Self { object: CallObject::new(false), raw: OPEN.to_owned(), trailing: false }
    }

    fn push(&mut self, c: char, out: &mut Output) {
        self.raw.push(c);
        if self.object.is_done() {
            self.trailing |= !c.is_whitespace();
        } else {
            self.object.push(c);
            self.object.flush(out);
        }
    }

    fn end(&self, ended_by: Option<Fault>, out: &mut Output) {
        let inner = self.object.fault(out).or(self.trailing.then_some(Fault::Unexpected));
        let inner = match (inner, ended_by) {
            // The end mark came before the object's end.
            (Some(Fault::Unfinished), None) => out.arguments_fault().or(Some(Fault::Unclosed)),
            (inner, _) => inner,
        };
        match out.call_is_open() {
            true => out.end_call(inner.or(ended_by), &self.raw),
            false => out.nameless_call(inner.unwrap_or(Fault::NoName), &self.raw),
        }
    }
}

impl TextParser for Hermes {
    fn push(&mut self, text: &str, out: &mut Output) {
        self.pending.push(text);
        while match &mut self.call {
            None => self.step_text(out),
            Some(_) => self.step_call(out),
        } {}
    }

    fn finish(&mut self, out: &mut Output) {
        let rest = self.pending.take_all();
        match self.call.take() {
            None => out.text(rest),
            Some(mut call) => {
                call.raw.push_str(rest);
                call.end(Some(Fault::Unclosed), out);
            }
        }
    }
}

impl Hermes {
    fn step_text(&mut self, out: &mut Output) -> bool {
        match self.pending.find(&[OPEN]) {
            Found::Mark { at, .. } => {
                out.text(self.pending.take(at));
                self.pending.take(OPEN.len());
                self.call = Some(Call::begin());
                true
            }
            Found::Nothing { certain } => {
                out.text(self.pending.take(certain));
                false
            }
        }
    }

    /// Takes one character or one mark of the open call.
    fn step_call(&mut self, out: &mut Output) -> bool {
        let Some(call) = &mut self.call else { return false };
        let text = self.pending.as_str();
        let Some(c) = text.chars().next() else { return false };
        if c == '<' && !call.object.in_string() {
            match (begins(text, CLOSE), begins(text, OPEN)) {
                (Some(true), _) => {
                    call.raw.push_str(self.pending.take(CLOSE.len()));
                    call.end(None, out);
                    self.call = None;
                    return true;
                }
                (_, Some(true)) => {
                    self.pending.take(OPEN.len());
                    call.end(Some(Fault::Unclosed), out);
                    self.call = Some(Call::begin());
                    return true;
                }
                (None, _) | (_, None) => return false,
                (Some(false), Some(false)) => {}
            }
        }
        self.pending.take(c.len_utf8());
        call.push(c, out);
        true
    }
}
