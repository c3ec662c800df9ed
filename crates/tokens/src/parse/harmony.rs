//! gpt-oss: messages with a channel each, `<|channel|>CHANNEL to=RECIPIENT<|message|>TEXT<|end|>`.
//!
//! `analysis` is reasoning, `final` is text, and so is `commentary` to nobody, which tells the
//! user what comes next. A message to a recipient is a call, on whatever channel. The prompt ends with
//! `<|start|>assistant`, so that a reply begins inside of a header. The mark that ends the reply
//! is cut off by engines.

use super::TextParser;
use super::marks::{Found, Pending, begins};
use super::output::{Fault, Output};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";
const END: &str = "<|end|>";
const CALL: &str = "<|call|>";
const RETURN: &str = "<|return|>";

pub(super) struct Harmony {
    /// What looks like a call is one.
    with_calls: bool,
    pending: Pending,
    place: Place,
    /// The call as written so far.
    raw: String,
    begun: bool,
    /// White space that may be the end of the arguments.
    held: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing has come.
    Begin,
    /// A message's header.
    Header,
    Reasoning,
    Text,
    Call,
    /// Behind a message's end.
    Between,
}

impl Harmony {
    pub(super) fn new(with_calls: bool) -> Self {
        Self {
            with_calls,
            pending: Pending::default(),
            place: Place::Begin,
            raw: String::new(),
            begun: false,
            held: String::new(),
        }
    }

    fn step(&mut self, out: &mut Output) -> bool {
        match self.place {
            Place::Begin => self.step_begin(),
            Place::Header => self.step_header(out),
            Place::Between => self.step_between(),
            Place::Reasoning | Place::Text | Place::Call => self.step_body(out),
        }
    }

    fn step_begin(&mut self) -> bool {
        let text = self.pending.as_str();
        // What cannot be a header is a message without one.
        let starts = [CHANNEL, START, MESSAGE, CONSTRAIN, " to=", "to="];
        let found = starts.map(|start| begins(text, start));
        if found.contains(&Some(true)) {
            self.place = Place::Header;
        } else if found.contains(&None) {
            return false;
        } else {
            self.place = Place::Text;
        }
        true
    }

    fn step_header(&mut self, out: &mut Output) -> bool {
        let Found::Mark { at, .. } = self.pending.find(&[MESSAGE]) else { return false };
        let header = Header::read(self.pending.take(at));
        out.end_run();
        self.place = match &header {
            Header { recipient: Some(name), .. } if self.with_calls => {
                out.begin_call(name, None);
                Place::Call
            }
            Header { channel, recipient: None, .. } if channel == "analysis" => Place::Reasoning,
            _ => Place::Text,
        };
        self.raw = header.raw;
        self.raw.push_str(self.pending.take(MESSAGE.len()));
        self.begun = false;
        self.held.clear();
        true
    }

    fn step_body(&mut self, out: &mut Output) -> bool {
        // A message may lack its end.
        let marks = [END, CALL, RETURN, START, CHANNEL];
        match self.pending.find(&marks) {
            Found::Nothing { certain } => {
                let more = self.pending.take(certain).to_owned();
                self.body(&more, out);
                false
            }
            Found::Mark { at, which } => {
                let last = self.pending.take(at).to_owned();
                self.body(&last, out);
                if which < 3 {
                    let mark = self.pending.take(marks[which].len());
                    self.raw.push_str(mark);
                }
                let missing = (which > 2).then_some(Fault::Unclosed);
                if out.call_is_open() {
                    out.end_call(out.arguments_fault().or(missing), &self.raw);
                }
                out.end_run();
                self.place = if which == 4 { Place::Header } else { Place::Between };
                true
            }
        }
    }

    fn step_between(&mut self) -> bool {
        match self.pending.find(&[START, CHANNEL]) {
            Found::Mark { at, .. } => {
                self.pending.take(at);
                self.place = Place::Header;
                true
            }
            Found::Nothing { certain } => {
                self.pending.take(certain);
                false
            }
        }
    }

    fn body(&mut self, text: &str, out: &mut Output) {
        match self.place {
            Place::Reasoning => out.reasoning(text),
            Place::Call => {
                self.raw.push_str(text);
                self.held.push_str(text);
                if !self.begun {
                    let blank = self.held.len() - self.held.trim_start().len();
                    self.held.drain(..blank);
                    self.begun = !self.held.is_empty();
                }
                let kept = self.held.trim_end().len();
                out.arguments(&self.held[..kept]);
                self.held.drain(..kept);
            }
            _ => out.text(text),
        }
    }
}

impl TextParser for Harmony {
    fn push(&mut self, text: &str, out: &mut Output) {
        self.pending.push(text);
        while self.step(out) {}
    }

    fn finish(&mut self, out: &mut Output) {
        let rest = self.pending.take_all().to_owned();
        match self.place {
            Place::Begin => out.text(&rest),
            Place::Reasoning | Place::Text => self.body(&rest, out),
            Place::Call => {
                self.raw.push_str(&rest);
                let fault = out.arguments_fault().map(|_| Fault::Unfinished);
                out.end_call(fault, &self.raw);
            }
            Place::Header => {
                if Header::read(&rest).recipient.is_some() && self.with_calls {
                    out.nameless_call(Fault::Unfinished, &rest);
                }
            }
            Place::Between => {}
        }
    }
}

struct Header {
    channel: String,
    /// Whom the message is for, without the namespace of the user's own functions.
    recipient: Option<String>,
    raw: String,
}

impl Header {
    fn read(raw: &str) -> Self {
        let (_, channel) = raw.split_once(CHANNEL).unwrap_or_default();
        let is_end = |c: char| c.is_whitespace() || c == '<';
        let channel = channel.split(is_end).next().unwrap_or_default();
        let recipient = raw.split_once("to=").and_then(|(_, to)| to.split(is_end).next());
        let recipient = recipient.map(|name| name.strip_prefix("functions.").unwrap_or(name));
        Self {
            channel: channel.to_owned(),
            recipient: recipient.filter(|name| !name.is_empty()).map(str::to_owned),
            raw: raw.to_owned(),
        }
    }
}
