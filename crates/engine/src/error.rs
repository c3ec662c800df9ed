//! Failures of an engine as values: what kind, what happened, what to do.
//!
//! Engines word the same failure each in their own way; this is the one place that
//! reads their words.

use polar_convo::{ContextUse, Sampling};
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
    /// A reply was sampled, and the engine does not give it.
    pub lost_reply: bool,
    /// Set where not the prompt is too long but the reply that was asked for.
    pub(crate) room: Option<Room>,
}

/// What a reply may be limited to where the prompt fits and the limit does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// So many tokens are left beside the prompt.
    Tokens(u64),
    /// The engine does not say; without a limit it uses what there is, or says that the
    /// prompt is too long by itself.
    Untold,
}

impl Room {
    /// The request with a limit that fits, to be asked once more.
    ///
    /// Agents made for large models ask in every call for more than a small window has
    /// left. Some engines lower such a limit by themselves; others refuse the call in the
    /// words of a prompt that is too long, at which an agent drops its history or gives up.
    pub(crate) fn lower(self, sampling: &mut Sampling, request_id: &mut String) {
        sampling.max_tokens = match self {
            Self::Tokens(left) => Some(left),
            Self::Untold => None,
        };
        // The engine may still know the refused one.
        request_id.push_str("-again");
    }
}

impl EngineError {
    /// An error the engine did not put into an HTTP answer.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self {
            class,
            message: message.into(),
            status: None,
            retry_after: None,
            context: None,
            lost_reply: false,
            room: None,
        }
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
        let lost_reply = said.is_lost_reply();
        let class = match status {
            // Asked again it would sample another: those that it cannot read would be missing.
            _ if lost_reply => ErrorClass::Invalid,
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
        let advice = match lost_reply {
            true => Some(LOST_REPLY),
            false => advice(status, class),
        };
        if let Some(advice) = advice {
            let _ = write!(message, "; {advice}");
        }
        let room = said.room().filter(|_| (400..500).contains(&status));
        Self { class, message, status: Some(status), retry_after, context, lost_reply, room }
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
        let room = said.room().filter(|_| said.code.is_some_and(|code| code < 500));
        Self { context, room, ..Self::new(class, message) }
    }
}

const LOST_REPLY: &str = "llama.cpp has sampled a reply that its own parser cannot read, and does not \
     give it; it is counted as `reply_unreadable`. In token mode (--token-mode) replies come back \
     whatever they hold";

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

    /// What llama.cpp says of a reply whose bytes make no characters, or whose calls are malformed.
    fn is_lost_reply(&self) -> bool {
        self.message.starts_with("The model produced output that does not match the expected")
    }

    fn is_overflow(&self) -> bool {
        const SIGNS: &[&str] = &[
            "maximum context length",
            "longer than the model's context length",
            "exceeds the available context size",
            "maximum model length",
            "exceeds the maximum allowed length",
            // TensorRT-LLM's, of a prompt alone.
            "should not exceed max_num_tokens",
            "exceeds maximum input length",
            "`max_tokens` must be set when `default_max_tokens` is illegal",
            // vLLM's words for a prompt that fills the window to the last token; none of
            // ours asks for 0.
            "max_tokens must be at least 1, got 0",
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
        const ASKED: &[&str] = &[
            "total of",
            "requested",
            "prompt contains",
            "prompt (length ",
            "input (",
            "Input length (",
            "request (",
            "request has",
            "sum of prompt length (",
            "Prompt length (",
        ];
        // vLLM counts characters instead where a text is too long to be tokenised at all.
        if self.message.contains(" characters ") {
            return None;
        }
        let tokens = self
            .prompt_tokens
            .or_else(|| ASKED.iter().find_map(|needle| number_after(&self.message, needle)));
        Some(ContextUse { tokens: tokens?, window: self.window()? })
    }

    fn window(&self) -> Option<u64> {
        const WINDOW: &[&str] = &[
            "context length",
            "context size",
            "model length",
            "maximum allowed length",
            "max_num_tokens",
            "maximum input length",
        ];
        self.window.or_else(|| WINDOW.iter().find_map(|needle| number_after(&self.message, needle)))
    }

    /// What is left for a reply, where the refusal is about its length and not, or not
    /// surely, about the prompt's.
    fn room(&self) -> Option<Room> {
        // More than the whole window.
        const ABOVE_WINDOW: &[&str] = &["cannot be greater than max_model_len", "supports at most"];
        // Together with the prompt more than the window: all versions of vLLM but the
        // latest, and SGLang.
        const TOGETHER: &[&str] = &[
            "output tokens and your prompt contains",
            "is too large:",
            "in the completion",
            "tokens for the completion",
        ];
        let says = |signs: &[&str]| signs.iter().any(|sign| self.message.contains(sign));
        if says(ABOVE_WINDOW) {
            return Some(Room::Untold);
        }
        if !says(TOGETHER) {
            return None;
        }
        if self.message.contains("at least") {
            return Some(Room::Untold);
        }
        let text = self.message.as_str();
        let prompt = number_after(text, "prompt contains")
            .or_else(|| number_after(text, "request has"))
            .or_else(|| number_before(text, " in the messages"))
            .or_else(|| number_before(text, " tokens from the input messages"));
        match (prompt, self.window()) {
            (Some(prompt), Some(window)) => match window.checked_sub(prompt) {
                Some(0) | None => None,
                Some(left) => Some(Room::Tokens(left)),
            },
            _ => Some(Room::Untold),
        }
    }
}

/// The first whole number behind `needle`.
fn number_after(text: &str, needle: &str) -> Option<u64> {
    let (_, tail) = text.split_once(needle)?;
    let digits = tail.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The whole number that ends where `needle` begins.
fn number_before(text: &str, needle: &str) -> Option<u64> {
    let (head, _) = text.split_once(needle)?;
    let begin = head.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    head[begin..].parse().ok()
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
    fn a_reply_that_llama_cpp_keeps_to_itself_is_not_asked_for_again() {
        let said = r#"{"error":{"code":500,"message":"The model produced output that does not match the expected Content-only format","type":"server_error"}}"#;
        let error = EngineError::from_answer(500, None, said.as_bytes());
        assert!(error.lost_reply && !error.class.is_retryable(), "{error:?}");
        assert!(error.message.contains("--token-mode"), "{error}");
        let other = EngineError::from_answer(500, None, br#"{"error":{"message":"died"}}"#);
        assert!(!other.lost_reply && other.class.is_retryable(), "{other:?}");
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
        let tensorrt = r#"{"object":"error","message":"The sum of prompt length (2100.0), query length (0) should not exceed max_num_tokens (2048)","type":"BadRequestError","param":null,"code":400}"#;
        assert_eq!(overflow(tensorrt), ContextUse { tokens: 2100, window: 2048 });
    }

    #[test]
    fn a_reply_that_is_too_long_is_told_from_a_prompt_that_is() {
        let room = |message: &str| {
            let body = serde_json::json!({"error": {"message": message}}).to_string();
            EngineError::from_answer(400, None, body.as_bytes()).room
        };
        // vLLM, from its first versions on.
        assert_eq!(
            room(
                "This model's maximum context length is 2048 tokens. However, you requested 2500 \
                 tokens (500 in the messages, 2000 in the completion). Please reduce the length of \
                 the messages or completion."
            ),
            Some(Room::Tokens(1548))
        );
        assert_eq!(
            room(
                "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum \
                 context length is 2048 tokens and your request has 500 input tokens (2000 > 2048 \
                 - 500)."
            ),
            Some(Room::Tokens(1548))
        );
        assert_eq!(
            room(
                "This model's maximum context length is 2048 tokens. However, you requested 2000 \
                 output tokens and your prompt contains 500 input tokens, for a total of 2500 \
                 tokens. Please reduce the length of the input prompt or the number of requested \
                 output tokens."
            ),
            Some(Room::Tokens(1548))
        );
        assert_eq!(
            room(
                "This model's maximum context length is 2048 tokens. However, you requested 2000 \
                 output tokens and your prompt contains at least 49 input tokens, for a total of \
                 at least 2049 tokens. Please reduce the length of the input prompt or the number \
                 of requested output tokens."
            ),
            Some(Room::Untold)
        );
        assert_eq!(
            room("max_tokens=3000 cannot be greater than max_model_len=2048."),
            Some(Room::Untold)
        );
        // SGLang.
        assert_eq!(
            room(
                "Requested token count exceeds the model's maximum context length of 2048 tokens. \
                 You requested a total of 2500 tokens: 500 tokens from the input messages and 2000 \
                 tokens for the completion."
            ),
            Some(Room::Tokens(1548))
        );
        assert_eq!(
            room(
                "max_completion_tokens is too large: 3000.This model supports at most 2048 \
                 completion tokens."
            ),
            Some(Room::Untold)
        );
        // Prompts that do not fit themselves.
        for too_long in [
            "This model's maximum context length is 2048 tokens. However, you requested 2500 \
             tokens (2400 in the messages, 100 in the completion). Please reduce the length of \
             the messages or completion.",
            "This model's maximum context length is 2048 tokens. However, your prompt contains at \
             least 2049 input tokens, which exceeds this limit even without any output tokens.",
            "The input (2100 tokens) is longer than the model's context length (2048 tokens).",
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
            "the tool's schema is invalid",
        ] {
            assert_eq!(room(too_long), None, "{too_long}");
        }
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
