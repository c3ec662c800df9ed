//! Errors in the shape of OpenAI's API.

use crate::error::ApiError;
use polar_types::ErrorClass;
use polar_wire::chat::{ErrorBody, ErrorDetail};
use polar_wire::sse::{write_json, write_json_event};
use std::borrow::Cow;

pub(crate) fn status_and_body(error: &ApiError) -> (u16, Vec<u8>) {
    let (status, kind, code) = shape(error.class);
    let mut body = Vec::with_capacity(256);
    write_json(&mut body, &error_body(error, kind, code, &message(error)));
    (status, body)
}

/// The last event of a stream that failed. Without `[DONE]`, or a client might take
/// what it has for the whole.
pub(crate) fn write_event(error: &ApiError, out: &mut Vec<u8>) {
    let (_, kind, code) = shape(error.class);
    write_json_event(out, None, &error_body(error, kind, code, &message(error)));
}

fn error_body<'a>(
    error: &'a ApiError,
    kind: &'static str,
    code: Option<&'static str>,
    message: &'a str,
) -> ErrorBody<'a> {
    let param = match error.class {
        ErrorClass::ContextOverflow => Some("messages"),
        _ => error.field.as_deref(),
    };
    ErrorBody { error: ErrorDetail { message, kind, param, code } }
}

/// Status, `type` and `code`.
///
/// A full queue is 429, not 503: clients of this dialect obey `retry-after` on 429 and give up
/// sooner on 5xx.
pub(crate) fn shape(class: ErrorClass) -> (u16, &'static str, Option<&'static str>) {
    const REQUEST: &str = "invalid_request_error";
    const SERVER: &str = "server_error";
    match class {
        ErrorClass::Invalid => (400, REQUEST, None),
        ErrorClass::ContextOverflow => (400, REQUEST, Some("context_length_exceeded")),
        ErrorClass::Unauthenticated => (401, REQUEST, Some("invalid_api_key")),
        ErrorClass::NotFound => (404, REQUEST, Some("not_found")),
        ErrorClass::Conflict => (409, REQUEST, Some("conflict")),
        ErrorClass::TooLarge => (413, REQUEST, Some("request_too_large")),
        ErrorClass::RateLimited => (429, "rate_limit_error", Some("rate_limit_exceeded")),
        ErrorClass::Overloaded => (429, "overloaded_error", Some("overloaded")),
        ErrorClass::Cancelled => (499, REQUEST, Some("cancelled")),
        ErrorClass::Unavailable => (503, SERVER, Some("engine_unavailable")),
        ErrorClass::Timeout => (504, SERVER, Some("timeout")),
        _ => (500, SERVER, None),
    }
}

/// A context overflow is worded like OpenAI's own, because clients look for these words.
fn message(error: &ApiError) -> Cow<'_, str> {
    match (error.class, error.context) {
        (ErrorClass::ContextOverflow, Some(context)) => Cow::Owned(format!(
            "This model's maximum context length is {} tokens. However, your messages resulted in \
             {} tokens. Please reduce the length of the messages.",
            context.window, context.tokens
        )),
        (ErrorClass::ContextOverflow, None) => Cow::Owned(format!(
            "This model's maximum context length is exceeded. Please reduce the length of the \
             messages. ({})",
            error.message
        )),
        _ => Cow::Borrowed(&error.message),
    }
}
