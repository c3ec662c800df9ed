//! One call in the words of each dialect: where it is sent and what it says.

use crate::load::Case;
use serde_json::{Value, json};

/// A language that the gateway speaks to harnesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Dialect {
    /// OpenAI Chat Completions, which the engine speaks too.
    Chat,
    /// Anthropic Messages.
    Messages,
    /// OpenAI Responses.
    Responses,
    /// Google generateContent.
    Google,
}

impl Dialect {
    /// What its arm is called.
    pub(crate) fn arm(self) -> &'static str {
        match self {
            Self::Chat => "polar",
            Self::Messages => "polar messages",
            Self::Responses => "polar responses",
            Self::Google => "polar google",
        }
    }

    pub(crate) fn path(self, stream: bool) -> &'static str {
        match (self, stream) {
            (Self::Chat, _) => "/v1/chat/completions",
            (Self::Messages, _) => "/v1/messages",
            (Self::Responses, _) => "/v1/responses",
            (Self::Google, false) => "/v1beta/models/bench:generateContent",
            (Self::Google, true) => "/v1beta/models/bench:streamGenerateContent?alt=sse",
        }
    }

    /// About as many bytes of text as such a prompt has, four per token. The system text tells
    /// the engine what to reply.
    pub(crate) fn body(self, case: &Case) -> Value {
        let system = format!("{},{},{}", case.prompt, case.sampled, case.interval);
        let text = "abc ".repeat(case.prompt);
        let mut body = match self {
            Self::Chat => json!({"model": "bench", "messages": [
                {"role": "system", "content": system}, {"role": "user", "content": text}]}),
            Self::Messages => {
                json!({"model": "bench", "system": system, "max_tokens": case.sampled,
                "messages": [{"role": "user", "content": text}]})
            }
            Self::Responses => json!({"model": "bench", "instructions": system, "input": text}),
            Self::Google => json!({"systemInstruction": {"parts": [{"text": system}]},
                "contents": [{"role": "user", "parts": [{"text": text}]}]}),
        };
        if self != Self::Google {
            body["stream"] = case.stream.into();
        }
        if self == Self::Chat && case.stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }
}
