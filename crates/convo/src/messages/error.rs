//! Errors in the shape of Anthropic's API.

use crate::error::ApiError;
use polar_types::ErrorClass;
use polar_wire::messages::{ErrorBody, ErrorCode, ErrorDetail, StreamEvent};
use polar_wire::sse::{write_json, write_json_event};
use std::borrow::Cow;

/// The field that has a conversation kept between requests.
pub(super) const THREAD: &str = "thread";

pub(crate) fn status_and_body(error: &ApiError) -> (u16, Vec<u8>) {
    let (status, kind) = shape(error.class);
    let detail = ErrorDetail { kind, message: &message(error), details: details(error) };
    let mut body = Vec::with_capacity(256);
    write_json(&mut body, &ErrorBody { kind: "error", error: detail });
    (status, body)
}

/// The last event of a stream that failed; Claude Code then asks again without a stream.
pub(crate) fn write_event(error: &ApiError, out: &mut Vec<u8>) {
    let (_, kind) = shape(error.class);
    let error = ErrorDetail { kind, message: &message(error), details: None };
    let event = StreamEvent::Error { error };
    write_json_event(out, Some(event.name()), &event);
}

/// Status and `type`.
fn shape(class: ErrorClass) -> (u16, &'static str) {
    const REQUEST: &str = "invalid_request_error";
    match class {
        ErrorClass::Invalid | ErrorClass::ContextOverflow => (400, REQUEST),
        ErrorClass::Unauthenticated => (401, "authentication_error"),
        ErrorClass::NotFound => (404, "not_found_error"),
        ErrorClass::Conflict => (409, REQUEST),
        ErrorClass::TooLarge => (413, "request_too_large"),
        ErrorClass::RateLimited => (429, "rate_limit_error"),
        ErrorClass::Cancelled => (499, REQUEST),
        ErrorClass::Unavailable => (503, "api_error"),
        ErrorClass::Timeout => (504, "timeout_error"),
        ErrorClass::Overloaded => (529, "overloaded_error"),
        _ => (500, "api_error"),
    }
}

/// On this code Anthropic's clients send whole conversations, where they wanted the server to
/// keep them.
fn details(error: &ApiError) -> Option<ErrorCode> {
    let is_thread = error.field.as_deref() == Some(THREAD);
    is_thread.then_some(ErrorCode { error_code: "thread_unsupported_request" })
}

/// A context overflow is worded like Anthropic's own: on these words clients compact, and
/// they read the two numbers out of them.
fn message(error: &ApiError) -> Cow<'_, str> {
    match (error.class, error.context) {
        (ErrorClass::ContextOverflow, Some(context)) => Cow::Owned(format!(
            "prompt is too long: {} tokens > {} maximum",
            context.tokens, context.window
        )),
        (ErrorClass::ContextOverflow, None) => {
            Cow::Owned(format!("prompt is too long: {}", error.message))
        }
        _ => Cow::Borrowed(&error.message),
    }
}
