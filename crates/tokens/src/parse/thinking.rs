//! Reasoning between two marks: `<think>…</think>`, `[THINK]…[/THINK]`.
//!
//! Reasoning is what comes first. The opening mark may be at the end of the prompt already, and
//! the first closing mark ends it: a mark in text after that is text. What looks like a call
//! inside of reasoning is reasoning.

use super::TextParser;
use super::marks::{Found, Pending, begins};
use super::output::Output;

pub(super) const THINK: Marks = Marks { open: "<think>", close: "</think>" };
pub(super) const THINK_BRACKETS: Marks = Marks { open: "[THINK]", close: "[/THINK]" };

#[derive(Clone, Copy)]
pub(super) struct Marks {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
}

/// Splits reasoning off and leaves the rest to another parser.
pub(super) struct Thinking {
    marks: Marks,
    place: Place,
    pending: Pending,
    after: Box<dyn TextParser>,
}

#[derive(Clone, Copy)]
enum Place {
    /// Nothing but white space has come.
    Begin {
        in_reasoning: bool,
    },
    Reasoning,
    After,
}

impl Thinking {
    pub(super) fn new(marks: Marks, in_reasoning: bool, after: Box<dyn TextParser>) -> Self {
        Self { marks, place: Place::Begin { in_reasoning }, pending: Pending::default(), after }
    }

    fn step(&mut self, out: &mut Output) -> bool {
        let text = self.pending.as_str();
        match self.place {
            Place::Begin { in_reasoning } => {
                let blank = text.len() - text.trim_start().len();
                match begins(&text[blank..], self.marks.open) {
                    None => return false,
                    Some(true) => {
                        self.pending.take(blank + self.marks.open.len());
                        self.place = Place::Reasoning;
                    }
                    Some(false) if in_reasoning => self.place = Place::Reasoning,
                    Some(false) => self.place = Place::After,
                }
                true
            }
            Place::Reasoning => match self.pending.find(&[self.marks.close]) {
                Found::Mark { at, .. } => {
                    out.reasoning(self.pending.take(at));
                    self.pending.take(self.marks.close.len());
                    self.place = Place::After;
                    true
                }
                Found::Nothing { certain } => {
                    out.reasoning(self.pending.take(certain));
                    false
                }
            },
            Place::After => {
                self.after.push(self.pending.take_all(), out);
                false
            }
        }
    }
}

impl TextParser for Thinking {
    fn push(&mut self, text: &str, out: &mut Output) {
        self.pending.push(text);
        while self.step(out) {}
    }

    fn finish(&mut self, out: &mut Output) {
        let rest = self.pending.take_all();
        match self.place {
            Place::Reasoning | Place::Begin { in_reasoning: true } => out.reasoning(rest),
            Place::Begin { in_reasoning: false } | Place::After => self.after.push(rest, out),
        }
        self.after.finish(out);
    }
}
