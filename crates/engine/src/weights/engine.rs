//! What an engine has to be able to do so that its weights can be changed while it serves.

use crate::EngineError;
use async_trait::async_trait;
use polar_types::{ErrorClass, WeightSource};
use tokio::time::Instant;

/// An engine whose weights can be changed. Every question has to be answered by `until`.
#[async_trait]
pub trait WeightEngine: Send + Sync {
    /// The version it says it has.
    async fn version(&self, until: Instant) -> Result<Option<String>, EngineError>;

    /// Lets what it samples stand still. What is asked of it meanwhile waits.
    async fn pause(&self, until: Instant) -> Result<(), EngineError>;

    /// Puts other weights in. Where the engine can, the version is set with them.
    async fn load(
        &self,
        source: &WeightSource,
        version: &str,
        until: Instant,
    ) -> Result<(), EngineError>;

    /// Whether what is under way has to end before these are put in: it cannot stand still under
    /// them.
    fn needs_idle(&self, _source: &WeightSource) -> bool {
        false
    }

    /// Names the weights it has.
    async fn label(&self, version: &str, until: Instant) -> Result<(), EngineError>;

    /// Drops what it has cached of prompts, which the weights before have computed. False where
    /// some is left: what stands still goes on behind it.
    async fn forget_prefixes(&self, until: Instant) -> Result<bool, EngineError>;

    /// Lets it go on.
    async fn resume(&self, until: Instant) -> Result<(), EngineError>;

    /// Ends what it samples under these names. Their replies end with what there is.
    async fn abort(&self, request_ids: &[String], until: Instant) -> Result<(), EngineError>;
}

/// A failure of one of the trainer's own requests: says which. Behind one that was carried out, a refusal leaves weights that
/// nobody knows, and is not taken for one.
pub(super) fn of_request(error: EngineError, index: usize, path: &str) -> EngineError {
    let what = match error.class {
        ErrorClass::NotFound => format!("the engine has no route {path}"),
        _ => error.message,
    };
    let message = format!("source.engine.requests[{index}]: {what}");
    match index {
        0 => EngineError { message, ..error },
        _ => EngineError {
            message: format!("{message}; the requests before it were carried out"),
            ..EngineError::new(ErrorClass::Unavailable, "")
        },
    }
}
