//! Errors as data: what kind, whose side, and whether trying again can help.

use serde::{Deserialize, Serialize};

/// What kind of failure it is. One total function per dialect maps it to a status
/// and a body (see the `convo` crate); the server maps it to HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorClass {
    /// The request is malformed or asks for something unsupported.
    Invalid,
    /// No or an unknown secret.
    Unauthenticated,
    /// The thing addressed does not exist.
    NotFound,
    /// The request contradicts what is already stored.
    Conflict,
    /// The body or message is larger than the limit.
    TooLarge,
    /// The prompt does not fit the model's context window.
    ContextOverflow,
    /// Too many requests of this session.
    RateLimited,
    /// The engine or a queue is full; try later.
    Overloaded,
    /// The engine cannot be reached or has died.
    Unavailable,
    /// A deadline passed.
    Timeout,
    /// The caller or an operator ended it.
    Cancelled,
    /// A fault of Polar itself.
    Internal,
}

impl ErrorClass {
    /// Whether the same request may succeed later.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::RateLimited | Self::Overloaded | Self::Unavailable | Self::Timeout)
    }

    /// Low-cardinality label for logs and metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Unauthenticated => "unauthenticated",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::TooLarge => "too_large",
            Self::ContextOverflow => "context_overflow",
            Self::RateLimited => "rate_limited",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Internal => "internal",
        }
    }
}

/// On whose side a failure lies. Decides which retry budget it spends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The agent program.
    Harness,
    /// The inference server.
    Engine,
    /// Container or process isolation.
    Sandbox,
    /// The evaluator.
    Grader,
    /// Polar itself, or the machine it runs on.
    Polar,
}

/// One thing wrong with submitted input: which field, what is wrong, what would be right.
#[derive(
    Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema, thiserror::Error,
)]
#[error("{field}: {problem}; for example: {example}")]
pub struct FieldProblem {
    /// Path of the field, for example `runtime.memory_mb` or `tasks[2].harness`.
    pub field: String,
    /// What is wrong with its value.
    pub problem: String,
    /// A value that would be accepted, as JSON text.
    pub example: String,
}

impl FieldProblem {
    /// Shorthand for the three parts.
    pub fn new(
        field: impl Into<String>,
        problem: impl Into<String>,
        example: impl Into<String>,
    ) -> Self {
        Self { field: field.into(), problem: problem.into(), example: example.into() }
    }
}
