//! Incremental parsers for what models write: reasoning, text and tool calls.
//!
//! A [`ReplyParser`] is fed the raw text of one reply in pieces of any size and gives
//! [`ParsedEvent`]s; the same text cut in another way gives the same events, once pieces that
//! belong together are joined. It owns only what it holds back: the beginning of what may
//! become a mark. It never mends what a model wrote: arguments of JSON families are passed on byte
//! for byte, and a call that is not well formed is given as it was written and reported as a
//! [`MalformedCall`].
//!
//! The parsers are our own. `reasoning-parser` 1.10 lets a mark through as text when a piece
//! ends inside it after other text, and `tool-parser` 1.10 writes arguments anew, which loses the
//! model's spelling; both are promises here.

mod call_object;
mod deepseek_kimi;
mod family;
mod glm;
mod harmony;
mod hermes;
mod json_value;
mod llama;
mod marks;
mod mistral;
mod output;
mod qwen_coder;
mod thinking;
mod typed;

pub use family::{ParserFamily, ReasoningFormat, ToolFormat, UnknownParser};
pub use output::{Fault, MalformedCall, ParsedEvent};
pub use typed::ToolSchemas;

use output::Output;

/// Where the text of a reply begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplyStart {
    /// As is usual for the family; for when the end of the prompt is not known.
    #[default]
    Usual,
    /// Inside the reasoning: the prompt ends with the mark that opens it.
    InReasoning,
    /// Before everything; reasoning begins with its own mark, if there is any.
    Fresh,
}

/// Parses one reply.
pub struct ReplyParser {
    parser: Box<dyn TextParser>,
    output: Output,
}

impl ReplyParser {
    /// A parser for the reply to a request that offered `tools`. Without tools there are no
    /// calls: what looks like one is text.
    pub fn new(family: ParserFamily, start: ReplyStart, tools: ToolSchemas) -> Self {
        Self { parser: family.parser(start, tools), output: Output::default() }
    }

    /// Takes the next piece of text in; gives what is certain by now.
    pub fn push(&mut self, text: &str) -> Vec<ParsedEvent> {
        self.parser.push(text, &mut self.output);
        self.output.take()
    }

    /// The text is complete: gives what was held back.
    pub fn finish(&mut self) -> Vec<ParsedEvent> {
        self.parser.finish(&mut self.output);
        self.output.take()
    }
}

/// A parser for one format. What it holds back is its own; what is certain goes to `out`.
trait TextParser: Send {
    /// Takes the next piece in.
    fn push(&mut self, text: &str, out: &mut Output);

    /// No more text comes.
    fn finish(&mut self, out: &mut Output);
}

/// Text without calls.
struct PlainText;

impl TextParser for PlainText {
    fn push(&mut self, text: &str, out: &mut Output) {
        out.text(text);
    }

    fn finish(&mut self, _out: &mut Output) {}
}
