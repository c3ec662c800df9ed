//! Replies in the shape of generateContent: as a stream of chunks and unary.
//!
//! A call is told whole in one chunk, so its pieces are gathered here until something else comes.

use super::error::write_in_stream;
use super::signature::Signer;
use super::terms::GoogleFraming;
use crate::error::ApiError;
use crate::reply::{
    FinishReason, Reply, ReplyBlock, ReplyEnd, ReplyEvent, ReplyHead, Usage, told_arguments,
};
use crate::stream::out_of_turn;
use polar_wire::google::{
    Candidate, Content, FunctionCall, GenerateContentResponse, Part, UsageMetadata,
};
use polar_wire::sse::{write_json, write_json_event};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Writes the chunks of one reply.
#[derive(Debug)]
pub(crate) struct GoogleStream {
    head: ReplyHead,
    parts: PartWriter,
    /// The call that is being sampled.
    open: Option<OpenCall>,
    /// Whether a chunk has been written, so that the next item of an array needs a comma.
    chunks: bool,
}

#[derive(Debug)]
struct OpenCall {
    index: u32,
    id: String,
    name: String,
    arguments: String,
}

impl GoogleStream {
    pub(crate) fn new(head: ReplyHead) -> Self {
        let parts = PartWriter::new(&head);
        Self { head, parts, open: None, chunks: false }
    }

    /// There is no chunk to begin with, only the bracket of an array.
    pub(crate) fn start(&self, out: &mut Vec<u8>) {
        if self.head.google.framing == GoogleFraming::Array {
            out.push(b'[');
        }
    }

    /// An error when the event cannot be told in this dialect.
    pub(crate) fn event(&mut self, event: &ReplyEvent, out: &mut Vec<u8>) -> Result<(), ApiError> {
        if let ReplyEvent::ToolArguments { index, fragment } = event {
            return match &mut self.open {
                Some(open) if open.index == *index => {
                    open.arguments.push_str(fragment);
                    Ok(())
                }
                _ => Err(out_of_turn(*index)),
            };
        }
        self.close_call(out);
        match event {
            ReplyEvent::Text(text) => self.chunk(text_part(text), out),
            ReplyEvent::Reasoning(text) => {
                if let Some(part) = self.parts.reasoning(text) {
                    self.chunk(part, out);
                }
            }
            ReplyEvent::ToolCall { index, id, name } => {
                let (id, name) = (id.clone(), name.clone());
                self.open = Some(OpenCall { index: *index, id, name, arguments: String::new() });
            }
            ReplyEvent::ToolArguments { .. } => {}
        }
        Ok(())
    }

    /// Among events a text in which nothing is new: clients take a chunk without parts for a broken
    /// reply, and some read no comments. In an array white space.
    pub(crate) fn keep_alive(&mut self, out: &mut Vec<u8>) {
        match self.head.google.framing {
            GoogleFraming::Events => self.chunk(text_part(""), out),
            GoogleFraming::Array => out.push(b'\n'),
        }
    }

    pub(crate) fn end(&mut self, end: &ReplyEnd, out: &mut Vec<u8>) {
        let call = self.open.take();
        let is_cut = end.finish.may_cut();
        let part = call
            .as_ref()
            .and_then(|call| self.parts.call((&call.id, &call.name, &call.arguments), is_cut));
        let mut parts: Vec<_> = part.into_iter().chain(self.parts.end()).collect();
        if parts.is_empty() {
            parts.push(text_part(""));
        }
        let response = response(&self.head, parts, Some((end, &self.parts)));
        write_chunk(self.head.google.framing, &mut self.chunks, &response, out);
        if self.head.google.framing == GoogleFraming::Array {
            out.extend_from_slice(b"]\n");
        }
    }

    /// `begun` says whether the start was written.
    pub(crate) fn error(&self, error: &ApiError, begun: bool, out: &mut Vec<u8>) {
        if self.head.google.framing == GoogleFraming::Array {
            if !begun {
                self.start(out);
            }
            if self.chunks {
                out.push(b',');
            }
        }
        write_in_stream(error, self.head.google.framing, out);
    }

    fn close_call(&mut self, out: &mut Vec<u8>) {
        let Some(call) = self.open.take() else {
            return;
        };
        if let Some(part) = self.parts.call((&call.id, &call.name, &call.arguments), false) {
            self.chunk(part, out);
        }
    }

    fn chunk(&mut self, part: Part<'_>, out: &mut Vec<u8>) {
        let response = response(&self.head, vec![part], None);
        write_chunk(self.head.google.framing, &mut self.chunks, &response, out);
    }
}

fn write_chunk(
    framing: GoogleFraming,
    chunks: &mut bool,
    response: &GenerateContentResponse<'_>,
    out: &mut Vec<u8>,
) {
    let first = !std::mem::replace(chunks, true);
    match framing {
        GoogleFraming::Events => write_json_event(out, None, response),
        GoogleFraming::Array => {
            if !first {
                out.push(b',');
            }
            write_json(out, response);
            out.push(b'\n');
        }
    }
}

pub(crate) fn unary(head: &ReplyHead, reply: &Reply, end: &ReplyEnd) -> Vec<u8> {
    let mut writer = PartWriter::new(head);
    let mut parts = Vec::with_capacity(reply.blocks.len() + 1);
    let last = reply.blocks.len().saturating_sub(1);
    for (at, block) in reply.blocks.iter().enumerate() {
        let is_cut = at == last && end.finish.may_cut();
        let part = match block {
            ReplyBlock::Text(text) => Some(text_part(text)),
            ReplyBlock::Reasoning(text) => writer.reasoning(text),
            ReplyBlock::ToolCall { id, name, arguments, .. } => {
                writer.call((id, name, arguments), is_cut)
            }
        };
        parts.extend(part);
    }
    match (writer.end(), parts.last_mut()) {
        // A text that the reply ends with takes the signature of the end.
        (Some(last), Some(text)) if text.text.is_some() && !text.thought => {
            text.thought_signature = last.thought_signature;
        }
        (last, _) => parts.extend(last),
    }
    if parts.is_empty() {
        parts.push(text_part(""));
    }
    let mut out = Vec::with_capacity(512);
    write_json(&mut out, &response(head, parts, Some((end, &writer))));
    out
}

/// Makes the parts of one reply, in order.
#[derive(Debug)]
struct PartWriter {
    include_thoughts: bool,
    signer: Signer,
    /// Calls whose arguments are no JSON object, which this dialect has no place for.
    malformed: Vec<String>,
}

impl PartWriter {
    fn new(head: &ReplyHead) -> Self {
        Self {
            include_thoughts: head.google.include_thoughts,
            signer: Signer::new(&head.id),
            malformed: Vec::new(),
        }
    }

    fn reasoning<'a>(&mut self, text: &'a str) -> Option<Part<'a>> {
        self.signer.reasoning(text);
        self.include_thoughts.then(|| Part { thought: true, ..text_part(text) })
    }

    /// A call of an id, a name and arguments; nothing where it cannot be told.
    fn call<'a>(
        &mut self,
        (id, name, arguments): (&'a str, &'a str, &'a str),
        is_cut: bool,
    ) -> Option<Part<'a>> {
        let Some(args) = told_arguments(arguments, is_cut) else {
            self.malformed.push(format!("{name}({arguments})"));
            return None;
        };
        let thought_signature = self.signer.call(arguments);
        let function_call = Some(FunctionCall { id, name, args: one_line(args) });
        Some(Part { function_call, thought_signature, ..Part::default() })
    }

    fn end(&mut self) -> Option<Part<'static>> {
        let thought_signature = self.signer.end()?;
        Some(Part { thought_signature: Some(thought_signature), ..text_part("") })
    }

    /// Google's servers end such a reply without the call and with this reason, on which clients
    /// ask again. A call that the token limit or a stop string cut is not the model's fault.
    fn finish(&self, finish: FinishReason) -> (&'static str, Option<String>) {
        match finish {
            FinishReason::Length | FinishReason::Abort => ("MAX_TOKENS", None),
            FinishReason::StopSequence => ("STOP", None),
            _ if !self.malformed.is_empty() => (
                "MALFORMED_FUNCTION_CALL",
                Some(format!("Malformed function call: {}", self.malformed.join("; "))),
            ),
            FinishReason::Stop | FinishReason::ToolCalls => ("STOP", None),
        }
    }
}

fn text_part(text: &str) -> Part<'_> {
    Part { text: Some(text), ..Part::default() }
}

/// The same JSON without line ends, which would end an event in its midst. They stand only
/// between values: inside a string JSON has them escaped.
fn one_line(json: &RawValue) -> Cow<'_, RawValue> {
    if !json.get().contains(['\n', '\r']) {
        return Cow::Borrowed(json);
    }
    RawValue::from_string(json.get().replace(['\n', '\r'], " "))
        .map_or(Cow::Borrowed(RawValue::NULL), Cow::Owned)
}

fn response<'a>(
    head: &'a ReplyHead,
    parts: Vec<Part<'a>>,
    end: Option<(&ReplyEnd, &PartWriter)>,
) -> GenerateContentResponse<'a> {
    let (finish_reason, finish_message) = match end {
        Some((end, writer)) => {
            let (reason, message) = writer.finish(end.finish);
            (Some(reason), message)
        }
        None => (None, None),
    };
    GenerateContentResponse {
        candidates: [Candidate {
            content: Content { parts, role: "model" },
            finish_reason,
            finish_message,
            index: 0,
        }],
        usage_metadata: end.map(|(end, _)| usage(&end.usage)),
        model_version: &head.model,
        response_id: &head.id,
    }
}

/// The dialect counts reasoning apart from the rest of the reply.
fn usage(usage: &Usage) -> UsageMetadata {
    let thoughts = usage.reasoning_tokens.map(|tokens| tokens.min(usage.completion_tokens));
    UsageMetadata {
        prompt_token_count: usage.prompt_tokens,
        candidates_token_count: usage.completion_tokens - thoughts.unwrap_or_default(),
        total_token_count: usage.prompt_tokens + usage.completion_tokens,
        cached_content_token_count: usage.cached_tokens,
        thoughts_token_count: thoughts,
    }
}
