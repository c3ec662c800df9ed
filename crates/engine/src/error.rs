//! Failures of an engine as values: what kind, what happened, what to do.
//!
//! Engines word the same failure each in their own way; this is the one place that
//! reads their words.

use polar_convo::ContextUse;
use polar_types::ErrorClass;
use serde::Deserialize;
use std::fmt::Write as _;

/// Why a generation or a question failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    /// What kind.
    pub class: ErrorClass,
    /// What happened and what to do about it.
    pub message: String,
    /// HTTP status of the engine, when it answered.
    pub status: Option<u16>,
    /// Seconds after which the engine wants to be asked again.
    pub retry_after: Option<f64>,
    /// By how much the prompt is too long, when the engine says so.
    pub context: Option<ContextUse>,
}

impl EngineError {
    /// An error the engine did not put into an HTTP answer.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), status: None, retry_after: None, context: None }
    }

    /// The engine sent what an engine of its kind never sends.
    pub(crate) fn malformed(what: impl std::fmt::Display) -> Self {
        Self::new(
            ErrorClass::Unavailable,
            format!(
                "the engine's answer cannot be used: {what}; check the engine's log and version"
            ),
        )
    }

    /// An HTTP answer with a status that is not a success.
    pub(crate) fn from_answer(status: u16, retry_after: Option<f64>, body: &[u8]) -> Self {
        let said = Said::read(body);
        let context = said.context_use();
        let class = match status {
            _ if context.is_some() || said.is_overflow() => ErrorClass::ContextOverflow,
            // The key is Polar's own, so to the harness the engine is out of order.
            401 | 403 => ErrorClass::Unavailable,
            404 => ErrorClass::NotFound,
            408 | 504 => ErrorClass::Timeout,
            413 => ErrorClass::TooLarge,
            429 => ErrorClass::Overloaded,
            501 => ErrorClass::Invalid,
            400..=499 => ErrorClass::Invalid,
            _ => ErrorClass::Unavailable,
        };
        let mut message = format!("{} (HTTP {status})", said.message);
        if let Some(advice) = advice(status, class) {
            let _ = write!(message, "; {advice}");
        }
        Self { class, message, status: Some(status), retry_after, context }
    }

    /// An error object inside a stream that began well.
    pub(crate) fn from_stream(error: &[u8]) -> Self {
        let said = Said::read(error);
        let context = said.context_use();
        let class = match said.code {
            _ if context.is_some() || said.is_overflow() => ErrorClass::ContextOverflow,
            Some(429) => ErrorClass::Overloaded,
            Some(400..=499) => ErrorClass::Invalid,
            _ => ErrorClass::Unavailable,
        };
        let message = format!("{} (in the stream)", said.message);
        Self { class, message, status: None, retry_after: None, context }
    }
}

fn advice(status: u16, class: ErrorClass) -> Option<&'static str> {
    match (status, class) {
        (401 | 403, _) => Some("give Polar the engine's API key"),
        (404, _) => Some("check the engine's URL and the served model's name"),
        (_, ErrorClass::Unavailable) => Some("check the engine's log"),
        _ => None,
    }
}

/// What the body of an error says, in whichever shape.
struct Said {
    message: String,
    kind: String,
    code: Option<u16>,
    prompt_tokens: Option<u64>,
    window: Option<u64>,
}

/// vLLM, llama.cpp: `{"error": {…}}`. SGLang: the fields at the top, or `{"error": …}`.
/// FastAPI: `detail`.
#[derive(Deserialize, Default)]
#[serde(default)]
struct ErrorObject {
    error: Option<Nested>,
    message: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    code: Option<serde_json::Value>,
    detail: Option<serde_json::Value>,
    n_prompt_tokens: Option<u64>,
    n_ctx: Option<u64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Nested {
    Object(Box<ErrorObject>),
    Text(String),
}

impl Said {
    fn read(body: &[u8]) -> Self {
        let object: Option<ErrorObject> = serde_json::from_slice(body).ok();
        let mut object = object.unwrap_or_default();
        if let Some(nested) = object.error.take() {
            match nested {
                Nested::Object(inner) => object = *inner,
                Nested::Text(text) => object.message = Some(text),
            }
        }
        let message = object
            .message
            .or_else(|| object.detail.map(|detail| detail.to_string()))
            .filter(|message| !message.trim().is_empty())
            .unwrap_or_else(|| excerpt(body));
        Self {
            message,
            kind: object.kind.unwrap_or_default(),
            code: object.code.and_then(|code| code.as_u64()).and_then(|c| u16::try_from(c).ok()),
            prompt_tokens: object.n_prompt_tokens,
            window: object.n_ctx,
        }
    }

    fn is_overflow(&self) -> bool {
        const SIGNS: &[&str] = &[
            "maximum context length",
            "longer than the model's context length",
            "exceeds the available context size",
            "maximum model length",
        ];
        self.kind == "exceed_context_size_error"
            || SIGNS.iter().any(|sign| self.message.contains(sign))
    }

    /// Tokens asked for and tokens that fit, where both are told.
    fn context_use(&self) -> Option<ContextUse> {
        if !self.is_overflow() {
            return None;
        }
        // In this order: where a total is told beside its parts, the total counts.
        const ASKED: &[&str] =
            &["total of", "requested", "prompt contains", "input (", "request (", "request has"];
        const WINDOW: &[&str] = &["context length", "context size", "model length"];
        // vLLM counts characters instead where a text is too long to be tokenised at all.
        if self.message.contains(" characters ") {
            return None;
        }
        let first = |needles: &[&str]| {
            needles.iter().find_map(|needle| number_after(&self.message, needle))
        };
        Some(ContextUse {
            tokens: self.prompt_tokens.or_else(|| first(ASKED))?,
            window: self.window.or_else(|| first(WINDOW))?,
        })
    }
}

/// The first whole number behind `needle`.
fn number_after(text: &str, needle: &str) -> Option<u64> {
    let (_, tail) = text.split_once(needle)?;
    let digits = tail.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

fn excerpt(body: &[u8]) -> String {
    const LONGEST: usize = 300;
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    if text.is_empty() {
        return "the engine gave no reason".to_owned();
    }
    text.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overflow(body: &str) -> ContextUse {
        let error = EngineError::from_answer(400, None, body.as_bytes());
        assert_eq!(error.class, ErrorClass::ContextOverflow, "{error}");
        error.context.unwrap()
    }

    #[test]
    fn context_overflow_is_recognised_in_each_engines_words() {
        let vllm = r#"{"error":{"message":"This model's maximum context length is 2048 tokens. However, your prompt contains 2100 input tokens, which exceeds this limit.","type":"BadRequestError","param":"input_tokens","code":400}}"#;
        assert_eq!(overflow(vllm), ContextUse { tokens: 2100, window: 2048 });
        let vllm_sum = r#"{"error":{"message":"This model's maximum context length is 2048 tokens. However, you requested 500 output tokens and your prompt contains at least 1549 input tokens, for a total of at least 2049 tokens. Please reduce the length of the input prompt or the number of requested output tokens.","type":"BadRequestError","param":"input_tokens","code":400}}"#;
        assert_eq!(overflow(vllm_sum), ContextUse { tokens: 2049, window: 2048 });
        let sglang = r#"{"object":"error","message":"The input (1500 tokens) is longer than the model's context length (1024 tokens).","type":"BadRequest","param":null,"code":400}"#;
        assert_eq!(overflow(sglang), ContextUse { tokens: 1500, window: 1024 });
        let sglang_sum = r#"{"object":"error","message":"Requested token count exceeds the model's maximum context length of 1024 tokens. You requested a total of 1100 tokens: 100 tokens from the input messages and 1000 tokens for the completion.","code":400}"#;
        assert_eq!(overflow(sglang_sum), ContextUse { tokens: 1100, window: 1024 });
        let llama = r#"{"error":{"code":400,"message":"request (2100 tokens) exceeds the available context size (2048 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":2100,"n_ctx":2048}}"#;
        assert_eq!(overflow(llama), ContextUse { tokens: 2100, window: 2048 });
    }

    #[test]
    fn statuses_become_classes() {
        let class = |status| EngineError::from_answer(status, None, b"{}").class;
        assert_eq!(class(400), ErrorClass::Invalid);
        assert_eq!(class(404), ErrorClass::NotFound);
        assert_eq!(class(429), ErrorClass::Overloaded);
        assert_eq!(class(500), ErrorClass::Unavailable);
        assert_eq!(class(503), ErrorClass::Unavailable);
        assert_eq!(class(401), ErrorClass::Unavailable);
    }

    #[test]
    fn messages_are_found_in_every_shape() {
        let message = |body: &[u8]| EngineError::from_answer(400, None, body).message;
        assert_eq!(message(br#"{"error":{"message":"bad"}}"#), "bad (HTTP 400)");
        assert_eq!(message(br#"{"error":"bad"}"#), "bad (HTTP 400)");
        assert_eq!(message(br#"{"object":"error","message":"bad"}"#), "bad (HTTP 400)");
        assert_eq!(message(br#"{"detail":"bad"}"#), "\"bad\" (HTTP 400)");
        assert_eq!(message(b"<html>bad</html>"), "<html>bad</html> (HTTP 400)");
        assert_eq!(message(b""), "the engine gave no reason (HTTP 400)");
    }
}
