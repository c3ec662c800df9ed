//! Every refusal in one shape: a status, a code, what happened, and which fields are wrong.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use polar_blobs::BlobError;
use polar_store::{Conflict, StoreError};
use polar_types::{ErrorClass, FieldProblem};
use serde::Serialize;

/// Body of every answer that is an error.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ErrorDetail {
    /// A word for programs: `invalid`, `not_found`, `conflict`, …
    pub code: String,
    /// For people: what happened and what to do.
    pub message: String,
    /// Every field that is wrong, when fields are.
    pub problems: Vec<FieldProblem>,
}

/// A request that is refused or that failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    status: StatusCode,
    detail: ErrorDetail,
}

impl ApiError {
    pub(crate) fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self::with_status(status_of(class), class, message)
    }

    pub(crate) fn with_status(
        status: StatusCode,
        class: ErrorClass,
        message: impl Into<String>,
    ) -> Self {
        let code = class.label().to_owned();
        let detail = ErrorDetail { code, message: message.into(), problems: Vec::new() };
        Self { status, detail }
    }

    /// Fields that are wrong.
    pub(crate) fn fields(problems: Vec<FieldProblem>) -> Self {
        let message = match problems.as_slice() {
            [one] => one.to_string(),
            several => format!("{} fields are wrong; see problems", several.len()),
        };
        let mut error = Self::new(ErrorClass::Invalid, message);
        error.detail.problems = problems;
        error
    }

    pub(crate) fn field(field: &str, problem: impl Into<String>, example: &str) -> Self {
        Self::fields(vec![FieldProblem::new(field, problem, example)])
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorClass::NotFound, message)
    }
}

/// The HTTP status of a kind of failure.
fn status_of(class: ErrorClass) -> StatusCode {
    match class {
        ErrorClass::Invalid | ErrorClass::ContextOverflow => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorClass::Unauthenticated => StatusCode::UNAUTHORIZED,
        ErrorClass::NotFound => StatusCode::NOT_FOUND,
        ErrorClass::Conflict | ErrorClass::Cancelled => StatusCode::CONFLICT,
        ErrorClass::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorClass::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        ErrorClass::Overloaded | ErrorClass::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorClass::Timeout => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::error!(message = %self.detail.message, "a request failed");
        }
        (self.status, Json(ErrorBody { error: self.detail })).into_response()
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let mut refusal = Self::new(error.class(), error.to_string());
        if let StoreError::Conflict(Conflict { field: Some(field), .. }) = error {
            refusal.detail.problems.push(field);
        }
        refusal
    }
}

impl From<BlobError> for ApiError {
    fn from(error: BlobError) -> Self {
        let class = match &error {
            BlobError::InvalidHash(_) | BlobError::HashMismatch { .. } => ErrorClass::Invalid,
            BlobError::TooLarge { .. } => ErrorClass::TooLarge,
            BlobError::NotFound(_) => ErrorClass::NotFound,
            BlobError::InvalidRange { .. } => {
                let status = StatusCode::RANGE_NOT_SATISFIABLE;
                return Self::with_status(status, ErrorClass::Invalid, error.to_string());
            }
            BlobError::BrokenOff(_) => {
                let status = StatusCode::BAD_REQUEST;
                return Self::with_status(status, ErrorClass::Invalid, error.to_string());
            }
            _ => ErrorClass::Internal,
        };
        Self::new(class, error.to_string())
    }
}
