//! Replies in the dialect of the harness: streamed event by event, or unary as a whole.

use crate::chat::reply::ChatStream;
use crate::error::ApiError;
use crate::google::reply::GoogleStream;
use crate::in_turn::InTurn;
use crate::messages::reply::MessagesStream;
use crate::reply::{
    FinishReason, Reply, ReplyBlock, ReplyEnd, ReplyEvent, ReplyHead, SampledToken,
};
use crate::responses::reply::ResponsesStream;
use crate::{Dialect, chat, google, messages, responses};
use polar_types::ErrorClass;

/// Writes one reply as a stream of the harness's dialect.
///
/// Owns the little that the dialect's order of events needs: which block is open, and
/// whether the stream has begun and ended. After its end or an error nothing more is
/// written, so a caller cannot make a stream that a client would misread.
#[derive(Debug)]
pub struct StreamEncoder {
    writer: Writer,
    in_turn: InTurn,
    phase: Phase,
}

#[derive(Debug)]
enum Writer {
    Chat(ChatStream),
    Messages(MessagesStream),
    Responses(ResponsesStream),
    Google(GoogleStream),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Open,
    Closed,
}

impl StreamEncoder {
    /// An encoder for a reply.
    pub fn new(dialect: Dialect, head: ReplyHead) -> Self {
        let writer = match dialect {
            Dialect::Chat => Writer::Chat(ChatStream::new(head)),
            Dialect::Messages => Writer::Messages(MessagesStream::new(head)),
            Dialect::Responses => Writer::Responses(ResponsesStream::new(head)),
            Dialect::Google => Writer::Google(GoogleStream::new(head)),
        };
        Self { writer, in_turn: InTurn::default(), phase: Phase::Waiting }
    }

    /// Notes the prompt's length once the engine has told it. Without effect after
    /// [`StreamEncoder::start`].
    pub fn set_prompt_tokens(&mut self, tokens: u64) {
        match &mut self.writer {
            Writer::Chat(_) | Writer::Responses(_) | Writer::Google(_) => {}
            Writer::Messages(writer) => writer.set_prompt_tokens(tokens),
        }
    }

    /// Begins the reply. Not needed: the first event or the end begins it as well.
    pub fn start(&mut self, out: &mut Vec<u8>) {
        if self.phase != Phase::Waiting {
            return;
        }
        self.phase = Phase::Open;
        match &mut self.writer {
            Writer::Chat(writer) => writer.start(out),
            Writer::Messages(writer) => writer.start(out),
            Writer::Responses(writer) => writer.start(out),
            Writer::Google(writer) => writer.start(out),
        }
    }

    /// Takes the next event in. Events in which nothing is new are left out: engines send them
    /// for tokens their parsers hold back, and strict clients stumble over them.
    ///
    /// In all dialects but Chat a call's arguments must come before the next block begins. What an
    /// engine mixes is put in order, and where that cannot be, the stream ends with an error rather
    /// than with a call that lost its arguments.
    pub fn event(&mut self, event: &ReplyEvent, out: &mut Vec<u8>) {
        if event.is_empty() || self.phase == Phase::Closed {
            return;
        }
        if matches!(self.writer, Writer::Chat(_)) {
            return self.write(event, out);
        }
        let mut in_turn = std::mem::take(&mut self.in_turn);
        in_turn.next(event, &mut |event| self.write(event, out));
        self.in_turn = in_turn;
    }

    fn write(&mut self, event: &ReplyEvent, out: &mut Vec<u8>) {
        if self.phase == Phase::Closed {
            return;
        }
        self.start(out);
        let written = match &mut self.writer {
            Writer::Chat(writer) => writer.event(event, out),
            Writer::Messages(writer) => writer.event(event, out),
            Writer::Responses(writer) => writer.event(event, out),
            Writer::Google(writer) => writer.event(event, out),
        };
        if let Err(error) = written {
            self.error(&error, out);
        }
    }

    /// Tells the tokens of what was told last, to a client that wants to know their logprobs.
    pub fn tokens(&mut self, ids: &[u32], logprobs: &[Option<f32>], out: &mut Vec<u8>) {
        if self.phase == Phase::Closed {
            return;
        }
        if let Writer::Chat(writer) = &self.writer
            && writer.tells_logprobs()
        {
            let tokens: Vec<_> = SampledToken::zip(ids, logprobs).collect();
            if !tokens.is_empty() {
                self.start(out);
                if let Writer::Chat(writer) = &self.writer {
                    writer.tokens(&tokens, out);
                }
            }
        }
    }

    /// Shows that the stream lives while the engine is silent. May come before the start.
    pub fn keep_alive(&mut self, out: &mut Vec<u8>) {
        match &mut self.writer {
            _ if self.phase == Phase::Closed => {}
            Writer::Chat(writer) => writer.keep_alive(out),
            Writer::Messages(_) => MessagesStream::keep_alive(out),
            // Its clients want to see the beginning first, which is a sign of life as well.
            Writer::Responses(_) if self.phase == Phase::Waiting => self.start(out),
            Writer::Responses(writer) => writer.keep_alive(out),
            Writer::Google(writer) => writer.keep_alive(out),
        }
    }

    /// Ends the reply. A reply that the engine gave up ends in an error (see
    /// [`ReplyEnd::as_error`]), so that the harness asks again instead of acting on half a call.
    pub fn end(&mut self, end: &ReplyEnd, out: &mut Vec<u8>) {
        if let Some(error) = end.as_error() {
            return self.error(&error, out);
        }
        self.start(out);
        let mut in_turn = std::mem::take(&mut self.in_turn);
        in_turn.finish(&mut |event| self.write(event, out));
        if self.phase == Phase::Closed {
            return;
        }
        self.phase = Phase::Closed;
        match &mut self.writer {
            Writer::Chat(writer) => writer.end(end, out),
            Writer::Messages(writer) => writer.end(end, out),
            Writer::Responses(writer) => writer.end(end, out),
            Writer::Google(writer) => writer.end(end, out),
        }
    }

    /// Ends the stream with an error, at any point.
    pub fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        if self.phase == Phase::Closed {
            return;
        }
        if matches!(self.writer, Writer::Responses(_)) {
            self.start(out);
        }
        let begun = self.phase == Phase::Open;
        self.phase = Phase::Closed;
        match &mut self.writer {
            Writer::Chat(_) => ChatStream::error(error, out),
            Writer::Messages(_) => MessagesStream::error(error, out),
            Writer::Responses(writer) => writer.error(error, out),
            Writer::Google(writer) => writer.error(error, begun, out),
        }
    }

    /// Whether a refusal by the engine is told within the stream, though it could still be told
    /// by a status. Codex takes only in a stream for what it is that a prompt is too long.
    pub fn tells_refusal(&self, error: &ApiError) -> bool {
        matches!(self.writer, Writer::Responses(_)) && error.class == ErrorClass::ContextOverflow
    }

    /// Whether the end or an error has been written.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }
}

impl ReplyEnd {
    /// The error that stands for a reply the engine ended early: answered with it, harnesses
    /// repeat the call. Ask before [`unary_body`].
    pub fn as_error(&self) -> Option<ApiError> {
        (self.finish == FinishReason::Abort).then(|| {
            ApiError::new(
                ErrorClass::Overloaded,
                "the engine ended this reply before it was complete, as it does when its weights \
                 are updated; send the request again",
            )
        })
    }
}

impl ReplyHead {
    /// The error that stands for a reply which cannot be told in the form that was asked for. Ask
    /// before [`unary_body`]; a stream finds out by itself.
    pub fn untellable(&self, reply: &Reply) -> Option<ApiError> {
        let calls = reply.blocks.iter().filter(|b| matches!(b, ReplyBlock::ToolCall { .. }));
        (self.chat.functions && calls.count() > 1).then(chat::reply::second_call)
    }
}

/// A whole reply as one body. An aborted reply reads as one cut by the token limit; send
/// [`ReplyEnd::as_error`] instead.
pub fn unary_body(dialect: Dialect, head: &ReplyHead, reply: &Reply, end: &ReplyEnd) -> Vec<u8> {
    match dialect {
        Dialect::Chat => chat::reply::unary(head, reply, end),
        Dialect::Messages => messages::reply::unary(head, reply, end),
        Dialect::Responses => responses::reply::unary(head, reply, end),
        Dialect::Google => google::reply::unary(head, reply, end),
    }
}

/// The error of a call whose arguments go on after something else has begun.
pub(crate) fn out_of_turn(index: u32) -> ApiError {
    ApiError::new(
        ErrorClass::Internal,
        format!(
            "arguments of tool call {index} came after the next block had begun; the engine's \
             tool parser must finish a call before it begins another"
        ),
    )
}
