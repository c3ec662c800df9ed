//! Replies in the shape of Chat Completions: as a stream of chunks and unary.

use crate::error::ApiError;
use crate::reply::{FinishReason, Reply, ReplyBlock, ReplyEnd, ReplyEvent, ReplyHead, Usage};
use polar_wire::chat::{
    AssistantMessage, Choice, Chunk, ChunkChoice, Completion, CompletionTokensDetails, Delta,
    Function, FunctionDelta, PromptTokensDetails, ToolCall, ToolCallDelta,
};
use polar_wire::sse::{write_json, write_json_event, write_text_event};

/// Writes the chunks of one reply.
#[derive(Debug)]
pub(crate) struct ChatStream {
    head: ReplyHead,
    include_usage: bool,
    called_tools: bool,
}

impl ChatStream {
    pub(crate) fn new(head: ReplyHead, include_usage: bool) -> Self {
        Self { head, include_usage, called_tools: false }
    }

    pub(crate) fn start(&self, out: &mut Vec<u8>) {
        self.chunk(Delta { role: Some("assistant"), content: Some(""), ..Delta::default() }, out);
    }

    pub(crate) fn event(&mut self, event: &ReplyEvent, out: &mut Vec<u8>) {
        let delta = match event {
            ReplyEvent::Text(text) => Delta { content: Some(text), ..Delta::default() },
            ReplyEvent::Reasoning(text) => {
                Delta { reasoning_content: Some(text), ..Delta::default() }
            }
            ReplyEvent::ToolCall { index, id, name } => {
                self.called_tools = true;
                tool_delta(ToolCallDelta {
                    index: *index,
                    id: Some(id),
                    kind: Some("function"),
                    function: FunctionDelta { name: Some(name), arguments: "" },
                })
            }
            ReplyEvent::ToolArguments { index, fragment } => tool_delta(ToolCallDelta {
                index: *index,
                id: None,
                kind: None,
                function: FunctionDelta { name: None, arguments: fragment },
            }),
        };
        self.chunk(delta, out);
    }

    /// A chunk in which nothing is new. Some clients do not count comments as life.
    pub(crate) fn keep_alive(&self, out: &mut Vec<u8>) {
        self.chunk(Delta::default(), out);
    }

    pub(crate) fn end(&self, end: &ReplyEnd, out: &mut Vec<u8>) {
        let finish_reason = Some(finish_reason(end.finish, self.called_tools));
        let choice = ChunkChoice { index: 0, delta: Delta::default(), finish_reason };
        self.write(&[choice], None, out);
        if self.include_usage {
            self.write(&[], Some(usage(&end.usage)), out);
        }
        write_text_event(out, None, "[DONE]");
    }

    pub(crate) fn error(error: &ApiError, out: &mut Vec<u8>) {
        super::error::write_event(error, out);
    }

    fn chunk(&self, delta: Delta<'_>, out: &mut Vec<u8>) {
        self.write(&[ChunkChoice { index: 0, delta, finish_reason: None }], None, out);
    }

    fn write(
        &self,
        choices: &[ChunkChoice<'_>],
        usage: Option<polar_wire::chat::Usage>,
        out: &mut Vec<u8>,
    ) {
        let chunk = Chunk {
            id: &self.head.id,
            object: "chat.completion.chunk",
            created: self.head.created,
            model: &self.head.model,
            choices,
            usage,
        };
        write_json_event(out, None, &chunk);
    }
}

fn tool_delta(call: ToolCallDelta<'_>) -> Delta<'_> {
    Delta { tool_calls: Some([call]), ..Delta::default() }
}

pub(crate) fn unary(head: &ReplyHead, reply: &Reply, end: &ReplyEnd) -> Vec<u8> {
    let mut content = None;
    let mut reasoning_content = None;
    let mut tool_calls = Vec::new();
    for block in &reply.blocks {
        match block {
            ReplyBlock::Text(text) => append(&mut content, text),
            ReplyBlock::Reasoning(text) => append(&mut reasoning_content, text),
            ReplyBlock::ToolCall { id, name, arguments, .. } => tool_calls.push(ToolCall {
                id,
                kind: "function",
                function: Function { name, arguments },
            }),
        }
    }
    let finish_reason = finish_reason(end.finish, !tool_calls.is_empty());
    let message = AssistantMessage { role: "assistant", content, reasoning_content, tool_calls };
    let body = Completion {
        id: &head.id,
        object: "chat.completion",
        created: head.created,
        model: &head.model,
        choices: [Choice { index: 0, message, logprobs: None, finish_reason }],
        usage: usage(&end.usage),
    };
    let mut out = Vec::with_capacity(512);
    write_json(&mut out, &body);
    out
}

fn append(to: &mut Option<String>, text: &str) {
    to.get_or_insert_default().push_str(text);
}

/// Engines say `stop` after a call in some modes, but clients run calls only on `tool_calls`.
fn finish_reason(finish: FinishReason, called_tools: bool) -> &'static str {
    match finish {
        FinishReason::Length | FinishReason::Abort => "length",
        _ if called_tools => "tool_calls",
        FinishReason::Stop | FinishReason::StopSequence | FinishReason::ToolCalls => "stop",
    }
}

fn usage(usage: &Usage) -> polar_wire::chat::Usage {
    polar_wire::chat::Usage {
        prompt_tokens: usage.prompt_tokens,
        completion_tokens: usage.completion_tokens,
        total_tokens: usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details: usage
            .cached_tokens
            .map(|cached_tokens| PromptTokensDetails { cached_tokens }),
        completion_tokens_details: usage
            .reasoning_tokens
            .map(|reasoning_tokens| CompletionTokensDetails { reasoning_tokens }),
    }
}
