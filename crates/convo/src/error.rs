//! Errors as a harness gets to see them.
//!
//! [`ApiError`] is what went wrong, whatever the dialect; [`error_response`] is the one total
//! function from it to a status, headers and a body. What agent programs do on each
//! status decides the mapping: they retry 429, 529 and 5xx, compact on a context overflow that is
//! worded like the vendor's, and give up on other 4xx.

use crate::{Dialect, LossKind, chat, google, messages, responses};
use polar_types::ErrorClass;

/// What went wrong with a call.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// What kind.
    pub class: ErrorClass,
    /// What happened and what to do about it.
    pub message: String,
    /// Path of the request's field it is about.
    pub field: Option<String>,
    /// Seconds after which to try again; classes that can be retried have a default.
    pub retry_after: Option<f64>,
    /// The numbers of a context overflow, which some clients read out of the message.
    pub context: Option<ContextUse>,
    /// Set where a reply was sampled that cannot be had: it is counted with the call.
    pub loss: Option<LossKind>,
}

/// By how much a prompt is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextUse {
    /// Tokens asked for.
    pub tokens: u64,
    /// Tokens that fit.
    pub window: u64,
}

impl ApiError {
    /// An error about no field in particular.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { class, message, field: None, retry_after: None, context: None, loss: None }
    }

    /// The prompt does not fit. Each dialect says it in its vendor's words, which is what
    /// makes clients compact their history; `message` is used where the numbers are unknown.
    pub fn context_overflow(message: impl Into<String>, context: Option<ContextUse>) -> Self {
        Self { context, ..Self::new(ErrorClass::ContextOverflow, message) }
    }

    /// There is no such route.
    pub fn unknown_route(method: &str, path: &str) -> Self {
        Self::new(
            ErrorClass::NotFound,
            format!(
                "{method} {path} is not served here; generation is POST /v1/chat/completions, \
                 POST /v1/messages, POST /v1/responses or \
                 POST /v1beta/models/{{model}}:generateContent, models are at GET /v1/models"
            ),
        )
    }

    /// Sets after how many seconds to try again.
    #[must_use]
    pub fn retry_after(mut self, seconds: f64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Whole seconds for a `retry-after` header: what was set, else the class's default.
    pub(crate) fn retry_after_seconds(&self) -> Option<u64> {
        let default = match self.class {
            ErrorClass::RateLimited => 2.0,
            // Long enough that a client's few tries outlast a weight update.
            ErrorClass::Overloaded | ErrorClass::Unavailable => 5.0,
            _ => return self.retry_after.map(whole_seconds),
        };
        Some(whole_seconds(self.retry_after.unwrap_or(default)))
    }
}

/// Rounds up; a float too large or not a number saturates.
fn whole_seconds(seconds: f64) -> u64 {
    seconds.ceil().clamp(1.0, 3600.0) as u64
}

/// An error ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorResponse {
    /// HTTP status.
    pub status: u16,
    /// All headers the answer needs, names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// JSON.
    pub body: Vec<u8>,
}

/// The answer that says `error` in a dialect.
pub fn error_response(dialect: Dialect, error: &ApiError) -> ErrorResponse {
    let (status, body) = match dialect {
        Dialect::Chat => chat::error::status_and_body(error),
        Dialect::Messages => messages::error::status_and_body(error),
        Dialect::Responses => responses::error::status_and_body(error),
        Dialect::Google => google::error::status_and_body(error),
    };
    let mut headers = vec![("content-type", "application/json".to_owned())];
    if let Some(seconds) = error.retry_after_seconds() {
        headers.push(("retry-after", seconds.to_string()));
    }
    // Read by the official SDKs and programs built on them; without it they also repeat 409,
    // and 401 in the case of Claude Code. After a fault of Polar's own they decide themselves.
    if error.class != ErrorClass::Internal {
        headers.push(("x-should-retry", error.class.is_retryable().to_string()));
    }
    ErrorResponse { status, headers, body }
}
