//! Calls between special tokens: DeepSeek V3, R1 and V3.1, and Kimi K2.
//!
//! ```text
//! V3, R1   <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{…}\n```<｜tool▁call▁end｜>
//! V3.1     <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>
//! Kimi K2  <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>
//! ```
//!
//! All calls of a reply stand in one section with marks of its own. Kimi's header is the id of
//! the call, which its template shows again.

use super::TextParser;
use super::marks::{Found, Pending, begins};
use super::output::{Fault, Output};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    DeepseekV3,
    DeepseekV31,
    KimiK2,
}

struct Marks {
    section: &'static str,
    section_end: &'static str,
    call: &'static str,
    separator: &'static str,
    call_end: &'static str,
}

const DEEPSEEK: Marks = Marks {
    section: "<｜tool▁calls▁begin｜>",
    section_end: "<｜tool▁calls▁end｜>",
    call: "<｜tool▁call▁begin｜>",
    separator: "<｜tool▁sep｜>",
    call_end: "<｜tool▁call▁end｜>",
};

const KIMI: Marks = Marks {
    section: "<|tool_calls_section_begin|>",
    section_end: "<|tool_calls_section_end|>",
    call: "<|tool_call_begin|>",
    separator: "<|tool_call_argument_begin|>",
    call_end: "<|tool_call_end|>",
};

const FENCE: &str = "```json";

pub(super) struct DeepseekKimi {
    layout: Layout,
    marks: &'static Marks,
    pending: Pending,
    place: Place,
    header: String,
    raw: String,
    /// Arguments have begun.
    begun: bool,
    /// What may be the end of the arguments: white space, and the end of a fence.
    held: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Text,
    Header,
    /// V3: the name, up to the end of its line.
    Name,
    Arguments,
}

impl DeepseekKimi {
    pub(super) fn new(layout: Layout) -> Self {
        Self {
            layout,
            marks: if layout == Layout::KimiK2 { &KIMI } else { &DEEPSEEK },
            pending: Pending::default(),
            place: Place::Text,
            header: String::new(),
            raw: String::new(),
            begun: false,
            held: String::new(),
        }
    }

    fn step(&mut self, out: &mut Output) -> bool {
        match self.place {
            Place::Text => self.step_text(out),
            Place::Header => self.step_header(out),
            Place::Name => self.step_name(out),
            Place::Arguments => self.step_arguments(out),
        }
    }

    fn step_text(&mut self, out: &mut Output) -> bool {
        let Marks { section, section_end, call, .. } = self.marks;
        match self.pending.find(&[section, section_end, call]) {
            Found::Mark { at, which } => {
                out.text(self.pending.take(at));
                out.end_run();
                let mark = [section, section_end, call][which];
                self.pending.take(mark.len());
                if which == 2 {
                    self.begin();
                }
                true
            }
            Found::Nothing { certain } => {
                out.text(self.pending.take(certain));
                false
            }
        }
    }

    fn begin(&mut self) {
        self.header.clear();
        self.held.clear();
        self.begun = false;
        self.raw = self.marks.call.to_owned();
        self.place = Place::Header;
    }

    fn step_header(&mut self, out: &mut Output) -> bool {
        let Marks { separator, call_end, call, section_end, .. } = self.marks;
        match self.pending.find(&[separator, call_end, call, section_end]) {
            Found::Nothing { .. } => false,
            Found::Mark { at, which: 0 } => {
                let header = self.pending.take(at);
                self.raw.push_str(header);
                self.header = header.trim().to_owned();
                self.raw.push_str(self.pending.take(separator.len()));
                match self.layout {
                    Layout::DeepseekV3 => self.place = Place::Name,
                    Layout::DeepseekV31 | Layout::KimiK2 => self.begin_call(out),
                }
                true
            }
            Found::Mark { at, which } => {
                self.raw.push_str(self.pending.take(at));
                self.end(which, Fault::NoName, out);
                true
            }
        }
    }

    fn step_name(&mut self, out: &mut Output) -> bool {
        let Marks { call_end, call, section_end, .. } = self.marks;
        match self.pending.find(&["\n", call_end, call, section_end]) {
            Found::Nothing { .. } => false,
            Found::Mark { at, which } => {
                let name = self.pending.take(at);
                self.raw.push_str(name);
                self.header = name.trim().to_owned();
                self.begin_call(out);
                if which == 0 {
                    self.raw.push_str(self.pending.take(1));
                }
                true
            }
        }
    }

    fn begin_call(&mut self, out: &mut Output) {
        let (name, id) = match self.layout {
            Layout::DeepseekV3 | Layout::DeepseekV31 => (self.header.as_str(), None),
            Layout::KimiK2 => (kimi_name(&self.header), Some(self.header.as_str())),
        };
        if !name.is_empty() {
            out.begin_call(name, id);
        }
        self.place = Place::Arguments;
    }

    fn step_arguments(&mut self, out: &mut Output) -> bool {
        if !self.begun {
            let blank = self.pending.skip_blank();
            self.raw.push_str(blank);
            if self.layout == Layout::DeepseekV3 {
                match begins(self.pending.as_str(), FENCE) {
                    None => return false,
                    Some(true) => {
                        self.raw.push_str(self.pending.take(FENCE.len()));
                        self.raw.push_str(self.pending.skip_blank());
                    }
                    Some(false) => {}
                }
            }
            if self.pending.as_str().is_empty() {
                return false;
            }
            self.begun = true;
        }
        let Marks { call_end, call, section_end, .. } = self.marks;
        match self.pending.find(&[call_end, call, section_end]) {
            Found::Mark { at, which } => {
                let last = self.pending.take(at).to_owned();
                self.take_arguments(&last, out);
                self.end(which + 1, Fault::NoName, out);
                true
            }
            Found::Nothing { certain } => {
                let more = self.pending.take(certain).to_owned();
                self.take_arguments(&more, out);
                false
            }
        }
    }

    fn take_arguments(&mut self, text: &str, out: &mut Output) {
        self.raw.push_str(text);
        self.held.push_str(text);
        let fenced = self.layout == Layout::DeepseekV3;
        let kept = self.held.trim_end_matches(|c: char| c.is_whitespace() || (fenced && c == '`'));
        out.arguments(kept);
        let kept = kept.len();
        self.held.drain(..kept);
    }

    /// A call ends with mark number `which`: its own end, the next call, the section's end.
    fn end(&mut self, which: usize, nameless: Fault, out: &mut Output) {
        let closed = which == 1;
        if closed {
            self.raw.push_str(self.pending.take(self.marks.call_end.len()));
        }
        let missing = (!closed).then_some(Fault::Unclosed);
        match out.call_is_open() {
            true => out.end_call(out.arguments_fault().or(missing), &self.raw),
            false => out.nameless_call(nameless, &self.raw),
        }
        self.place = Place::Text;
    }
}

impl TextParser for DeepseekKimi {
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
        self.raw.push_str(rest);
        match out.call_is_open() {
            false => out.nameless_call(Fault::Unfinished, &self.raw),
            true => {
                let fault = match out.arguments_fault() {
                    Some(_) => Fault::Unfinished,
                    None => Fault::Unclosed,
                };
                out.end_call(Some(fault), &self.raw);
            }
        }
    }
}

/// `functions.NAME:0`, of which only the name is sure.
fn kimi_name(header: &str) -> &str {
    let name = header.strip_prefix("functions.").unwrap_or(header);
    match name.rsplit_once(':') {
        Some((name, count)) if count.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => name,
    }
}
