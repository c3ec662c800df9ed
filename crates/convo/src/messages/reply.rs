//! Replies in the shape of Anthropic Messages: as a stream of blocks and unary.

use crate::error::ApiError;
use crate::reply::{
    FinishReason, Reply, ReplyBlock, ReplyEnd, ReplyEvent, ReplyHead, Usage, told_arguments,
};
use crate::stream::out_of_turn;
use polar_wire::messages::{ContentBlock, Delta, Message, MessageEnd, StreamEvent};
use polar_wire::sse::{write_json, write_json_event};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Key of the object that stands for arguments which are not a JSON object. A unary reply
/// must have an object there; the tool then refuses it with a message the model can act
/// on, and on its way back [`super::decode`] turns it into the sampled text again.
pub const UNPARSED_ARGUMENTS: &str = "_unparsed_arguments";

/// Writes the events of one reply. Blocks follow each other: opening one closes the last.
#[derive(Debug)]
pub(crate) struct MessagesStream {
    head: ReplyHead,
    next_index: u32,
    open: Option<OpenBlock>,
    called_tools: bool,
    /// Whether the last call has arguments.
    has_arguments: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Text,
    Thinking,
    /// With the call's position among the calls.
    ToolUse(u32),
}

impl MessagesStream {
    pub(crate) fn new(head: ReplyHead) -> Self {
        Self { head, next_index: 0, open: None, called_tools: false, has_arguments: false }
    }

    pub(crate) fn set_prompt_tokens(&mut self, tokens: u64) {
        self.head.prompt_tokens = Some(tokens);
    }

    pub(crate) fn start(&self, out: &mut Vec<u8>) {
        let prompt_tokens = self.head.prompt_tokens.unwrap_or_default();
        let usage = Usage { prompt_tokens, ..Usage::default() };
        let message = message(&self.head, Vec::new(), None, &usage);
        write(out, &StreamEvent::MessageStart { message });
    }

    /// An error when the event cannot be told in this dialect any more.
    pub(crate) fn event(&mut self, event: &ReplyEvent, out: &mut Vec<u8>) -> Result<(), ApiError> {
        let delta = match event {
            ReplyEvent::Text(text) => {
                self.open(OpenBlock::Text, ContentBlock::Text { text: "" }, out);
                Delta::TextDelta { text }
            }
            ReplyEvent::Reasoning(thinking) => {
                let block = ContentBlock::Thinking { thinking: "", signature: "" };
                self.open(OpenBlock::Thinking, block, out);
                Delta::ThinkingDelta { thinking }
            }
            ReplyEvent::ToolCall { index, id, name } => {
                (self.called_tools, self.has_arguments) = (true, false);
                let block = ContentBlock::ToolUse { id, name, input: tool_input("", false) };
                self.open(OpenBlock::ToolUse(*index), block, out);
                return Ok(());
            }
            ReplyEvent::ToolArguments { index, fragment } => {
                if self.open != Some(OpenBlock::ToolUse(*index)) {
                    return Err(out_of_turn(*index));
                }
                self.has_arguments |= !fragment.trim().is_empty();
                Delta::InputJsonDelta { partial_json: fragment }
            }
        };
        write(out, &StreamEvent::ContentBlockDelta { index: self.next_index - 1, delta });
        Ok(())
    }

    pub(crate) fn keep_alive(out: &mut Vec<u8>) {
        write(out, &StreamEvent::Ping);
    }

    pub(crate) fn end(&mut self, end: &ReplyEnd, out: &mut Vec<u8>) {
        self.tell_missing_arguments(end.finish, out);
        self.close(out);
        let stop_reason = stop_reason(end.finish, self.called_tools);
        let delta = MessageEnd { stop_reason, stop_sequence: stop_sequence(end, stop_reason) };
        write(out, &StreamEvent::MessageDelta { delta, usage: usage(&end.usage) });
        write(out, &StreamEvent::MessageStop);
    }

    pub(crate) fn error(error: &ApiError, out: &mut Vec<u8>) {
        super::error::write_event(error, out);
    }

    /// Clients take a call without a piece of arguments for one with an empty object.
    fn tell_missing_arguments(&self, finish: FinishReason, out: &mut Vec<u8>) {
        let in_call = matches!(self.open, Some(OpenBlock::ToolUse(_)));
        if in_call && !self.has_arguments && finish.may_cut() {
            let input = tool_input("", true);
            let delta = Delta::InputJsonDelta { partial_json: input.get() };
            write(out, &StreamEvent::ContentBlockDelta { index: self.next_index - 1, delta });
        }
    }

    fn open(&mut self, block: OpenBlock, content_block: ContentBlock<'_>, out: &mut Vec<u8>) {
        if self.open == Some(block) {
            return;
        }
        self.close(out);
        write(out, &StreamEvent::ContentBlockStart { index: self.next_index, content_block });
        self.open = Some(block);
        self.next_index += 1;
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(block) = self.open.take() else {
            return;
        };
        let index = self.next_index - 1;
        if block == OpenBlock::Thinking {
            let delta = Delta::SignatureDelta { signature: &signature(&self.head) };
            write(out, &StreamEvent::ContentBlockDelta { index, delta });
        }
        write(out, &StreamEvent::ContentBlockStop { index });
    }
}

fn write(out: &mut Vec<u8>, event: &StreamEvent<'_>) {
    write_json_event(out, Some(event.name()), event);
}

pub(crate) fn unary(head: &ReplyHead, reply: &Reply, end: &ReplyEnd) -> Vec<u8> {
    let signature = signature(head);
    let last = reply.blocks.len().saturating_sub(1);
    let content: Vec<_> = (0..)
        .zip(&reply.blocks)
        .map(|(at, block)| match block {
            ReplyBlock::Text(text) => ContentBlock::Text { text },
            ReplyBlock::Reasoning(thinking) => {
                ContentBlock::Thinking { thinking, signature: &signature }
            }
            ReplyBlock::ToolCall { id, name, arguments, .. } => {
                let is_cut = at == last && end.finish.may_cut();
                ContentBlock::ToolUse { id, name, input: tool_input(arguments, is_cut) }
            }
        })
        .collect();
    let called_tools = reply.blocks.iter().any(|b| matches!(b, ReplyBlock::ToolCall { .. }));
    let message = message(head, content, Some((end, called_tools)), &end.usage);
    let mut out = Vec::with_capacity(512);
    write_json(&mut out, &message);
    out
}

fn message<'a>(
    head: &'a ReplyHead,
    content: Vec<ContentBlock<'a>>,
    end: Option<(&'a ReplyEnd, bool)>,
    counts: &Usage,
) -> Message<'a> {
    let stop_reason = end.map(|(end, called_tools)| stop_reason(end.finish, called_tools));
    Message {
        id: &head.id,
        kind: "message",
        role: "assistant",
        model: &head.model,
        content,
        stop_reason,
        stop_sequence: end.and_then(|(end, _)| stop_sequence(end, stop_reason?)),
        usage: usage(counts),
    }
}

/// Clients send reasoning back only if it carries a mark. The reply's id tells later from
/// which call the reasoning came.
fn signature(head: &ReplyHead) -> String {
    format!("polar-{}", head.id)
}

/// Arguments as the object the dialect wants, in the model's own spelling where they are one.
fn tool_input(arguments: &str, is_cut: bool) -> Cow<'_, RawValue> {
    if let Some(object) = told_arguments(arguments, is_cut) {
        return Cow::Borrowed(object);
    }
    let wrapped = serde_json::json!({ UNPARSED_ARGUMENTS: arguments });
    serde_json::value::to_raw_value(&wrapped).map_or(Cow::Borrowed(RawValue::NULL), Cow::Owned)
}

fn stop_reason(finish: FinishReason, called_tools: bool) -> &'static str {
    match finish {
        FinishReason::Length | FinishReason::Abort => "max_tokens",
        FinishReason::StopSequence => "stop_sequence",
        _ if called_tools => "tool_use",
        FinishReason::Stop | FinishReason::ToolCalls => "end_turn",
    }
}

fn stop_sequence<'a>(end: &'a ReplyEnd, stop_reason: &str) -> Option<&'a str> {
    end.stop_sequence.as_deref().filter(|_| stop_reason == "stop_sequence")
}

/// The dialect counts cached tokens apart from the other input.
fn usage(usage: &Usage) -> polar_wire::messages::Usage {
    let cached = usage.cached_tokens.unwrap_or_default().min(usage.prompt_tokens);
    polar_wire::messages::Usage {
        input_tokens: usage.prompt_tokens - cached,
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: cached,
        output_tokens: usage.completion_tokens,
    }
}
