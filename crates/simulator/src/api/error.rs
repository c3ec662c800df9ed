//! Refusals in vLLM's words and shape.

use crate::SimulatorError;
use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;
use std::fmt;

/// An error body with its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    retry_after: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, retry_after: None }
    }

    /// The request is not valid.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message)
    }

    /// Names the field that is at fault, in the message too.
    pub(crate) fn of(mut self, param: &str) -> Self {
        self.message = format!("{} (parameter={param})", self.message);
        self.param = Some(param.to_owned());
        self
    }

    /// Names the field that is at fault and what was in it.
    pub(crate) fn of_value(mut self, param: &str, value: impl fmt::Display) -> Self {
        self.message = format!("{} (parameter={param}, value={value})", self.message);
        self.param = Some(param.to_owned());
        self
    }

    /// The body does not have the form that is asked for. `place` is where, under `body`.
    pub(crate) fn validation(problem: &str, place: Option<&str>) -> Self {
        let message = format!("1 validation error:\n  {problem}");
        let param = place.map_or("body".to_owned(), |place| format!("body.{place}"));
        let error = Self::new(StatusCode::BAD_REQUEST, "Bad Request", message);
        Self { param: Some(param), ..error }
    }

    /// The body is not declared to be JSON.
    pub(crate) fn not_json() -> Self {
        let message =
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed";
        Self::new(StatusCode::BAD_REQUEST, "Bad Request", message)
    }

    pub(crate) fn unknown_model(name: &str, served: &str) -> Self {
        let message = format!("The model `{name}` does not exist. Valid aliases: {served}.");
        let error = Self::new(StatusCode::NOT_FOUND, "NotFoundError", message);
        Self { param: Some("model".to_owned()), ..error }
    }

    /// `exact` unless the tokenizer stopped at the limit, as it does for text.
    pub(crate) fn prompt_too_long(tokens: usize, window: usize, exact: bool) -> Self {
        let tokens = if exact { tokens } else { window + 1 };
        let at_least = if tokens == window + 1 { "at least " } else { "" };
        Self::bad_request(format!(
            "This model's maximum context length is {window} tokens. However, your prompt contains \
             {at_least}{tokens} input tokens, which exceeds this limit even without any output \
             tokens. Please reduce the length of the input prompt."
        ))
        .of_value("input_tokens", tokens)
    }

    /// Prompt and reply do not fit together: what earlier versions of vLLM say, which count a
    /// text's tokens only as far as the reply leaves room.
    pub(crate) fn reply_too_long(prompt: usize, reply: usize, window: usize, exact: bool) -> Self {
        let (prompt, at_least) =
            if exact { (prompt, "") } else { (window - reply + 1, "at least ") };
        let total = prompt + reply;
        Self::bad_request(format!(
            "This model's maximum context length is {window} tokens. However, you requested {reply} \
             output tokens and your prompt contains {at_least}{prompt} input tokens, for a total \
             of {at_least}{total} tokens. Please reduce the length of the input prompt or the \
             number of requested output tokens."
        ))
        .of_value("input_tokens", prompt)
    }

    /// Text so long that it is not even tokenised.
    pub(crate) fn text_too_long(characters: usize, most: usize, window: usize) -> Self {
        Self::bad_request(format!(
            "This model's maximum context length is {window} tokens. However, your prompt contains \
             {characters} characters (more than {most} characters, which is the upper bound for \
             {window} input tokens). Please reduce the length of the input prompt."
        ))
        .of_value("input_text", characters)
    }

    /// What the place for ids says of a prompt that is too long.
    pub(crate) fn decoder_prompt_too_long(tokens: usize, window: usize) -> Self {
        Self::bad_request(format!(
            "The decoder prompt (length {tokens}) is longer than the maximum model length of \
             {window}. Make sure that `max_model_len` is no smaller than the number of text tokens."
        ))
    }

    /// TensorRT-LLM's words for a prompt that does not fit.
    pub(crate) fn more_than_can_be_prefilled(tokens: usize, window: usize) -> Self {
        Self::bad_request(format!(
            "The sum of prompt length ({tokens}.0), query length (0) should not exceed \
             max_num_tokens ({window})"
        ))
    }

    /// The place for ids is not there for everyone.
    pub(crate) fn scale_out_disabled() -> Self {
        let message = "Scale-out endpoints are disabled. Restart vllm serve with \
                       --enable-scale-out to enable them.";
        Self::new(StatusCode::FORBIDDEN, "PermissionDeniedError", message)
    }

    pub(crate) fn out_of_vocabulary(id: i64) -> Self {
        Self::bad_request(format!("Token id {id} is out of vocabulary"))
    }

    /// What a fault answers with.
    pub(crate) fn simulated(code: u16, retry_after: Option<u64>) -> Self {
        let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = match code {
            429 => "TooManyRequestsError",
            503 => "ServiceUnavailableError",
            400..500 => "BadRequestError",
            _ => "InternalServerError",
        };
        Self { retry_after, ..Self::new(status, kind, format!("Simulated fault {code}")) }
    }
}

impl From<SimulatorError> for ApiError {
    fn from(error: SimulatorError) -> Self {
        match error {
            // vLLM blames what a template can't render on the request.
            SimulatorError::Template(error) => Self::bad_request(error.to_string()),
            other => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalServerError",
                other.to_string(),
            ),
        }
    }
}

impl ApiError {
    /// As TensorRT-LLM has it: without an object around, and without a field's name.
    pub(crate) fn into_flat_response(self) -> Response {
        let body = json!({
            "object": "error",
            "message": self.message,
            "type": self.kind,
            "param": null,
            "code": self.status.as_u16(),
        });
        self.with_body(body)
    }

    fn with_body(self, body: serde_json::Value) -> Response {
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status.as_u16(),
        }});
        self.with_body(body)
    }
}
