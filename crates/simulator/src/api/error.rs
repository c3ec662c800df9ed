//! Refusals in vLLM's words and shape.

use crate::SimulatorError;
use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

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

    /// Names the field that is at fault.
    pub(crate) fn of(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// A field has the wrong type, or a needed one is missing.
    pub(crate) fn validation(problem: &str) -> Self {
        let message = format!("1 validation error:\n  {problem}");
        Self::new(StatusCode::BAD_REQUEST, "Bad Request", message).of("body")
    }

    pub(crate) fn unknown_model(name: &str, served: &str) -> Self {
        let message = format!("The model `{name}` does not exist. Valid aliases: {served}.");
        Self::new(StatusCode::NOT_FOUND, "NotFoundError", message).of("model")
    }

    pub(crate) fn prompt_too_long(tokens: usize, window: usize) -> Self {
        Self::bad_request(format!(
            "This model's maximum context length is {window} tokens. However, your prompt contains \
             {tokens} input tokens, which exceeds this limit even without any output tokens. \
             Please reduce the length of the input prompt."
        ))
        .of("input_tokens")
    }

    pub(crate) fn out_of_vocabulary(id: i64) -> Self {
        Self::bad_request(format!("Token id {id} is out of vocabulary"))
    }

    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "Not Found", "Not Found")
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed", "Method Not Allowed")
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
            SimulatorError::Template(message) => Self::bad_request(message),
            other => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalServerError",
                other.to_string(),
            ),
        }
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
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
