//! GLM 4.5, 4.6, 4.7 and 5:
//! `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`.
//!
//! The older ones put line breaks between the parts. Values are strings as they stand where the
//! tool's schema says string, and JSON otherwise.

use super::TextParser;
use super::marks::{Found, Pending};
use super::output::{Fault, Output};
use super::typed::{ToolSchemas, TypedCall, Untyped};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

pub(super) struct Glm {
    tools: ToolSchemas,
    pending: Pending,
    place: Place,
    call: TypedCall,
    key: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Text,
    Name,
    /// Before a key.
    Between,
    Key,
    /// Between key and value.
    Keyed,
    Value,
}

impl Glm {
    pub(super) fn new(tools: ToolSchemas) -> Self {
        Self {
            tools,
            pending: Pending::default(),
            place: Place::Text,
            call: TypedCall::begin(""),
            key: String::new(),
        }
    }

    fn step(&mut self, out: &mut Output) -> bool {
        let marks: &[&str] = match self.place {
            Place::Text => &[OPEN],
            Place::Name | Place::Between => &[KEY, CLOSE, OPEN],
            Place::Key => &[KEY_END, CLOSE, OPEN],
            Place::Keyed => &[VALUE, CLOSE, OPEN],
            Place::Value => &[VALUE_END],
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
            Place::Text => {
                out.text(&before);
                self.call = TypedCall::begin("");
                self.go(Place::Name, mark);
                return true;
            }
            Place::Between | Place::Keyed => self.call.between(&before),
            Place::Name | Place::Key | Place::Value => self.call.raw.push_str(&before),
        }
        self.take_mark(&before, mark, out);
        true
    }

    fn take_mark(&mut self, before: &str, mark: &str, out: &mut Output) {
        if self.place == Place::Name {
            self.call.name(before.trim(), out);
            self.place = Place::Between;
        }
        match (self.place, mark) {
            (Place::Between, KEY) => self.go(Place::Key, mark),
            (Place::Key, KEY_END) => {
                before.trim().clone_into(&mut self.key);
                self.go(Place::Keyed, mark);
            }
            (Place::Keyed, VALUE) => self.go(Place::Value, mark),
            (Place::Value, _) => {
                self.call.member(&self.tools, (&self.key, before), Untyped::Guess, out);
                self.go(Place::Between, mark);
            }
            (place, mark) => {
                match mark {
                    CLOSE => self.pending.move_onto(&mut self.call.raw, mark.len()),
                    _ => self.call.found(Fault::Unclosed),
                }
                match place {
                    Place::Between => self.call.end(out),
                    _ => {
                        self.call.found(Fault::Unclosed);
                        self.call.stop(out);
                    }
                }
                self.place = Place::Text;
            }
        }
    }

    fn go(&mut self, place: Place, mark: &str) {
        self.pending.move_onto(&mut self.call.raw, mark.len());
        self.place = place;
    }
}

impl TextParser for Glm {
    fn push(&mut self, text: &str, out: &mut Output) {
        self.pending.push(text);
        while self.step(out) {}
    }

    fn finish(&mut self, out: &mut Output) {
        let rest = self.pending.take_all();
        if self.place == Place::Text {
            out.text(rest);
            return;
        }
        self.call.raw.push_str(rest);
        self.call.found(Fault::Unfinished);
        self.call.stop(out);
    }
}
