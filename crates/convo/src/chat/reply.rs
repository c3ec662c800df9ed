//! Replies in the shape of Chat Completions: as a stream of chunks and unary.

use crate::error::ApiError;
use crate::reply::{
    FinishReason, Reply, ReplyBlock, ReplyEnd, ReplyEvent, ReplyHead, SampledToken, Usage,
};
use polar_types::ErrorClass;
use polar_wire::chat::{
    AssistantMessage, Choice, Chunk, ChunkChoice, Completion, CompletionTokensDetails, Delta,
    Function, FunctionDelta, Logprobs, PromptTokensDetails, TokenLogprob, ToolCall, ToolCallDelta,
};
use polar_wire::sse::{write_json, write_json_event, write_text_event};

/// Writes the chunks of one reply.
#[derive(Debug)]
pub(crate) struct ChatStream {
    head: ReplyHead,
    called_tools: bool,
}

impl ChatStream {
    pub(crate) fn new(head: ReplyHead) -> Self {
        Self { head, called_tools: false }
    }

    pub(crate) fn start(&self, out: &mut Vec<u8>) {
        self.chunk(Delta { role: Some("assistant"), content: Some(""), ..Delta::default() }, out);
    }

    /// An error when the event cannot be told in the form that was asked for.
    pub(crate) fn event(&mut self, event: &ReplyEvent, out: &mut Vec<u8>) -> Result<(), ApiError> {
        let delta = match event {
            ReplyEvent::Text(text) => Delta { content: Some(text), ..Delta::default() },
            ReplyEvent::Reasoning(text) => {
                Delta { reasoning_content: Some(text), ..Delta::default() }
            }
            ReplyEvent::ToolCall { name, .. } if self.head.chat.functions => {
                if std::mem::replace(&mut self.called_tools, true) {
                    return Err(second_call());
                }
                function_delta(FunctionDelta { name: Some(name), arguments: "" })
            }
            ReplyEvent::ToolArguments { fragment, .. } if self.head.chat.functions => {
                function_delta(FunctionDelta { name: None, arguments: fragment })
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
        Ok(())
    }

    pub(crate) fn tells_logprobs(&self) -> bool {
        self.head.chat.logprobs
    }

    /// A chunk of logprobs alone. Engines tell tokens apart from the text that they become.
    pub(crate) fn tokens(&self, tokens: &[SampledToken], out: &mut Vec<u8>) {
        let (delta, logprobs) = (Delta::default(), Some(logprobs(tokens)));
        self.write(&[ChunkChoice { index: 0, delta, logprobs, finish_reason: None }], None, out);
    }

    /// A chunk in which nothing is new. Some clients do not count comments as life.
    pub(crate) fn keep_alive(&self, out: &mut Vec<u8>) {
        self.chunk(Delta::default(), out);
    }

    pub(crate) fn end(&self, end: &ReplyEnd, out: &mut Vec<u8>) {
        let finish_reason = Some(self.finish_reason(end.finish));
        let delta = Delta::default();
        let choice = ChunkChoice { index: 0, delta, logprobs: None, finish_reason };
        self.write(&[choice], None, out);
        if self.head.chat.include_usage {
            self.write(&[], Some(usage(&end.usage)), out);
        }
        write_text_event(out, None, "[DONE]");
    }

    pub(crate) fn error(error: &ApiError, out: &mut Vec<u8>) {
        super::error::write_event(error, out);
    }

    fn chunk(&self, delta: Delta<'_>, out: &mut Vec<u8>) {
        let choice = ChunkChoice { index: 0, delta, logprobs: None, finish_reason: None };
        self.write(&[choice], None, out);
    }

    fn finish_reason(&self, finish: FinishReason) -> &'static str {
        finish_reason(finish, self.called_tools, self.head.chat.functions)
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

fn function_delta(call: FunctionDelta<'_>) -> Delta<'_> {
    Delta { function_call: Some(call), ..Delta::default() }
}

/// The error of a reply with more calls than a client that offered `functions` can be told.
pub(crate) fn second_call() -> ApiError {
    ApiError::new(
        ErrorClass::Internal,
        "the model called two functions at once, of which `function_call` can tell one; offer \
         them as `tools`",
    )
}

fn logprobs(tokens: &[SampledToken]) -> Logprobs {
    let content = tokens.iter().map(|token| TokenLogprob {
        token: format!("token_id:{}", token.id),
        logprob: token.logprob,
        bytes: None,
        top_logprobs: [],
    });
    Logprobs { content: content.collect(), refusal: None }
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
    let terms = head.chat;
    let finish_reason = finish_reason(end.finish, !tool_calls.is_empty(), terms.functions);
    let function_call = match terms.functions {
        true => tool_calls.drain(..).next().map(|call| call.function),
        false => None,
    };
    let message = AssistantMessage {
        role: "assistant",
        content,
        reasoning_content,
        tool_calls,
        function_call,
    };
    let told = terms.logprobs && !reply.tokens.is_empty();
    let logprobs = told.then(|| logprobs(&reply.tokens));
    let body = Completion {
        id: &head.id,
        object: "chat.completion",
        created: head.created,
        model: &head.model,
        choices: [Choice { index: 0, message, logprobs, finish_reason }],
        usage: usage(&end.usage),
    };
    let mut out = Vec::with_capacity(512);
    write_json(&mut out, &body);
    out
}

fn append(to: &mut Option<String>, text: &str) {
    to.get_or_insert_default().push_str(text);
}

/// Engines say `stop` after a call in some modes, but clients run calls only on `tool_calls`. They
/// are not to run one in which a stop string was sampled.
fn finish_reason(finish: FinishReason, called_tools: bool, functions: bool) -> &'static str {
    match finish {
        FinishReason::Length | FinishReason::Abort => "length",
        FinishReason::StopSequence => "stop",
        _ if called_tools && functions => "function_call",
        _ if called_tools => "tool_calls",
        FinishReason::Stop | FinishReason::ToolCalls => "stop",
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
