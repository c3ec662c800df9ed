//! Qwen3-Coder and Qwen3.5:
//! `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`.
//!
//! As in Qwen's own parser, `<tool_call>` may be missing, values lose one line break on either
//! side, their types are those of the tool's schema, and a value that is not closed ends where
//! the next part begins.

use super::TextParser;
use super::marks::{Found, Pending, begins};
use super::output::{Fault, Output};
use super::typed::{ToolSchemas, TypedCall, Untyped};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

pub(super) struct QwenCoder {
    tools: ToolSchemas,
    pending: Pending,
    place: Place,
    call: TypedCall,
    /// The call began with `<tool_call>`.
    tagged: bool,
    key: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Text,
    /// Behind `<tool_call>`.
    Opened,
    FunctionName,
    /// Between parameters.
    Between,
    Key,
    Value,
    /// Behind `</function>`.
    Closing,
}

impl QwenCoder {
    pub(super) fn new(tools: ToolSchemas) -> Self {
        Self {
            tools,
            pending: Pending::default(),
            place: Place::Text,
            call: TypedCall::begin(""),
            tagged: false,
            key: String::new(),
        }
    }

    fn step(&mut self, out: &mut Output) -> bool {
        if self.place == Place::Closing {
            return self.step_closing(out);
        }
        let marks: &[&str] = match self.place {
            Place::Text => &[OPEN, FUNCTION],
            Place::Opened => &[FUNCTION, CLOSE, OPEN],
            Place::FunctionName | Place::Key => &[">", CLOSE, OPEN],
            Place::Between => &[PARAMETER, FUNCTION_END, CLOSE, OPEN],
            Place::Value => &[PARAMETER_END, PARAMETER, FUNCTION_END, CLOSE],
            Place::Closing => &[],
        };
        let (at, mark) = match self.pending.find(marks) {
            Found::Mark { at, which } => (at, marks[which]),
            Found::Nothing { certain } => {
                if self.place == Place::Text {
                    out.text(self.pending.take(certain));
                }
                return false;
            }
        };
        let before = self.pending.take(at).to_owned();
        match self.place {
            Place::Text => out.text(&before),
            Place::Opened | Place::Between => self.call.between(&before),
            Place::FunctionName | Place::Key | Place::Value | Place::Closing => {
                self.call.raw.push_str(&before);
            }
        }
        self.take_mark(&before, mark, out);
        true
    }

    fn take_mark(&mut self, before: &str, mark: &str, out: &mut Output) {
        match (self.place, mark) {
            (Place::Text, _) => {
                self.call = TypedCall::begin("");
                self.tagged = mark == OPEN;
                self.place = if self.tagged { Place::Opened } else { Place::FunctionName };
                self.pending.move_onto(&mut self.call.raw, mark.len());
            }
            (Place::Opened, FUNCTION) => self.go(Place::FunctionName, mark),
            (Place::FunctionName, ">") => {
                self.call.name(before.trim(), out);
                self.go(Place::Between, mark);
            }
            (Place::Between, PARAMETER) => self.go(Place::Key, mark),
            (Place::Between, FUNCTION_END) => self.go(Place::Closing, mark),
            (Place::Key, ">") => {
                before.trim().clone_into(&mut self.key);
                self.go(Place::Value, mark);
            }
            (Place::Value, _) => {
                let value = before.strip_prefix('\n').unwrap_or(before);
                let value = value.strip_suffix('\n').unwrap_or(value);
                self.call.member(&self.tools, (&self.key, value), Untyped::Text, out);
                if mark == PARAMETER_END {
                    self.pending.move_onto(&mut self.call.raw, mark.len());
                } else {
                    self.call.found(Fault::Unclosed);
                }
                self.place = Place::Between;
            }
            // The end of the call, or another, where a part of this one is missing.
            _ => {
                self.call.found(if before.trim().is_empty() && self.place == Place::Opened {
                    Fault::NoName
                } else {
                    Fault::Unclosed
                });
                if mark == CLOSE {
                    self.pending.move_onto(&mut self.call.raw, mark.len());
                }
                match self.place {
                    Place::Between => self.call.end(out),
                    _ => self.call.stop(out),
                }
                self.place = Place::Text;
            }
        }
    }

    fn step_closing(&mut self, out: &mut Output) -> bool {
        let text = self.pending.as_str();
        let blank = text.len() - text.trim_start().len();
        match begins(&text[blank..], CLOSE) {
            None => return false,
            Some(true) => {
                let rest = self.pending.take(blank + CLOSE.len());
                self.call.raw.push_str(rest);
            }
            Some(false) if self.tagged => self.call.found(Fault::Unclosed),
            Some(false) => {}
        }
        self.call.end(out);
        self.place = Place::Text;
        true
    }

    fn go(&mut self, place: Place, mark: &str) {
        self.pending.move_onto(&mut self.call.raw, mark.len());
        self.place = place;
    }
}

impl TextParser for QwenCoder {
    fn push(&mut self, text: &str, out: &mut Output) {
        self.pending.push(text);
        while self.step(out) {}
    }

    fn finish(&mut self, out: &mut Output) {
        let rest = self.pending.take_all();
        match self.place {
            Place::Text => out.text(rest),
            Place::Closing => {
                self.call.between(rest);
                if self.tagged {
                    self.call.found(Fault::Unclosed);
                }
                self.call.end(out);
            }
            _ => {
                self.call.raw.push_str(rest);
                self.call.found(Fault::Unfinished);
                self.call.stop(out);
            }
        }
    }
}
