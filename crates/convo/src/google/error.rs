//! Errors in the shape of Google's APIs.

use super::terms::GoogleFraming;
use crate::error::ApiError;
use polar_types::ErrorClass;
use polar_wire::google::{ErrorBody, ErrorDetail, ErrorStatus, FieldViolation};
use polar_wire::sse::write_json;
use std::borrow::Cow;

pub(crate) fn status_and_body(error: &ApiError) -> (u16, Vec<u8>) {
    let mut body = Vec::with_capacity(256);
    write_body(error, &mut body);
    (shape(error.class).0, body)
}

/// The end of a stream that failed. Among events it is a line of plain JSON, as Google's servers
/// send it: the official clients take that for an error, and an event with an error in it
/// for an empty chunk.
pub(crate) fn write_in_stream(error: &ApiError, framing: GoogleFraming, out: &mut Vec<u8>) {
    write_body(error, out);
    if framing == GoogleFraming::Array {
        out.push(b']');
    }
    out.push(b'\n');
}

fn write_body(error: &ApiError, out: &mut Vec<u8>) {
    let (code, status) = shape(error.class);
    let message = message(error);
    let mut details = Vec::new();
    if let Some(field) = &error.field {
        details.push(ErrorDetail::BadRequest {
            field_violations: [FieldViolation { field, description: &message }],
        });
    }
    // Clients of this dialect look for it here and not in the header.
    if let Some(seconds) = error.retry_after_seconds() {
        details.push(ErrorDetail::RetryInfo { retry_delay: format!("{seconds}s") });
    }
    write_json(out, &ErrorBody { error: ErrorStatus { code, message: &message, status, details } });
}

/// Status and its name.
fn shape(class: ErrorClass) -> (u16, &'static str) {
    match class {
        ErrorClass::Invalid | ErrorClass::ContextOverflow => (400, "INVALID_ARGUMENT"),
        ErrorClass::Unauthenticated => (401, "UNAUTHENTICATED"),
        ErrorClass::NotFound => (404, "NOT_FOUND"),
        ErrorClass::Conflict => (409, "ABORTED"),
        ErrorClass::TooLarge => (413, "INVALID_ARGUMENT"),
        ErrorClass::RateLimited => (429, "RESOURCE_EXHAUSTED"),
        ErrorClass::Cancelled => (499, "CANCELLED"),
        ErrorClass::Overloaded | ErrorClass::Unavailable => (503, "UNAVAILABLE"),
        ErrorClass::Timeout => (504, "DEADLINE_EXCEEDED"),
        _ => (500, "INTERNAL"),
    }
}

/// A context overflow is worded like Google's own, because clients look for these words.
fn message(error: &ApiError) -> Cow<'_, str> {
    match (error.class, error.context) {
        (ErrorClass::ContextOverflow, Some(context)) => Cow::Owned(format!(
            "The input token count ({}) exceeds the maximum number of tokens allowed ({}).",
            context.tokens, context.window
        )),
        (ErrorClass::ContextOverflow, None) => Cow::Owned(format!(
            "The input token count exceeds the maximum number of tokens allowed. ({})",
            error.message
        )),
        _ => Cow::Borrowed(&error.message),
    }
}
