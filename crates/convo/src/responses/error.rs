//! Errors in the shape of OpenAI's Responses API.

use crate::chat;
use crate::error::ApiError;
use polar_types::ErrorClass;
use polar_wire::chat::{ErrorBody, ErrorDetail};
use polar_wire::responses::ResponseError;
use polar_wire::sse::write_json;
use std::borrow::Cow;

pub(crate) fn status_and_body(error: &ApiError) -> (u16, Vec<u8>) {
    let (status, kind, code) = chat::error::shape(error.class);
    let (param, code) = match (error.class, error.field.as_deref()) {
        (ErrorClass::ContextOverflow, _) => (Some("input"), code),
        (ErrorClass::Invalid, Some("previous_response_id")) => {
            (error.field.as_deref(), Some("previous_response_not_found"))
        }
        (_, field) => (field, code),
    };
    let message = &message(error);
    let mut body = Vec::with_capacity(256);
    write_json(&mut body, &ErrorBody { error: ErrorDetail { message, kind, param, code } });
    (status, body)
}

/// What a failed reply says of an error. Codex asks again unless the code is one of those that
/// no repetition mends; of an overload it takes only `server_error` for that.
pub(super) fn failure<'a>(error: &ApiError, message: &'a str) -> ResponseError<'a> {
    let code = match error.class {
        ErrorClass::ContextOverflow => "context_length_exceeded",
        ErrorClass::RateLimited => "rate_limit_exceeded",
        ErrorClass::Invalid | ErrorClass::TooLarge => "invalid_prompt",
        _ => "server_error",
    };
    ResponseError { code, message }
}

/// A context overflow is worded like OpenAI's own, because clients look for these words.
pub(super) fn message(error: &ApiError) -> Cow<'_, str> {
    const OVERFLOW: &str = "Your input exceeds the context window of this model. Please adjust \
                            your input and try again.";
    match (error.class, error.context) {
        (ErrorClass::ContextOverflow, Some(context)) => Cow::Owned(format!(
            "{OVERFLOW} ({} tokens, of which {} fit)",
            context.tokens, context.window
        )),
        (ErrorClass::ContextOverflow, None) => {
            Cow::Owned(format!("{OVERFLOW} ({})", error.message))
        }
        _ => Cow::Borrowed(&error.message),
    }
}
