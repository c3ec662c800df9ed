//! An engine whose calls pass the gate.

use super::Weights;
use super::gate::Gate;
use super::reply::{self, SampledOn};
use crate::{
    Engine, EngineError, EngineInfo, EngineStream, GenerateRequest, Rendering, SampleRequest,
    TokenEngine,
};
use async_trait::async_trait;
use polar_convo::Request;
use polar_types::ErrorClass;
use std::sync::Arc;

/// The same engine, of which weights can be changed while it is called.
pub(crate) fn served(engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
    let gate = Gate::new();
    let weights = Weights::new(Arc::clone(&engine), Arc::clone(&gate));
    Arc::new(Served { engine, gate, weights })
}

struct Served {
    engine: Arc<dyn Engine>,
    gate: Arc<Gate>,
    weights: Arc<Weights>,
}

#[async_trait]
impl Engine for Served {
    fn info(&self) -> &EngineInfo {
        self.engine.info()
    }

    async fn generate(&self, request: GenerateRequest) -> Result<EngineStream, EngineError> {
        let ticket = self.gate.admit(&request.request_id, false).await?;
        let begun = self.engine.generate(request).await;
        begun.map(|stream| reply::in_place(stream, ticket, &self.gate)).inspect_err(|error| {
            if is_lost(error) {
                self.gate.suspect();
            }
        })
    }

    async fn count_tokens(&self, request: &Request) -> Result<u64, EngineError> {
        self.engine.count_tokens(request).await
    }

    async fn health(&self) -> Result<(), EngineError> {
        match self.gate.fence_reason() {
            Some(reason) => Err(EngineError::new(ErrorClass::Unavailable, reason)),
            None => self.engine.health().await,
        }
    }

    fn tokens(&self) -> Option<&dyn TokenEngine> {
        self.engine.tokens().is_some().then_some(self)
    }

    fn weights(&self) -> Option<&Arc<Weights>> {
        Some(&self.weights)
    }
}

impl Served {
    fn inner(&self) -> Result<&dyn TokenEngine, EngineError> {
        self.engine.tokens().ok_or_else(takes_no_ids)
    }
}

pub(super) fn takes_no_ids() -> EngineError {
    EngineError::new(ErrorClass::Invalid, "this engine takes no token ids; use chat mode")
}

/// Whether the engine itself is gone, and not only unwilling.
pub(super) fn is_lost(error: &EngineError) -> bool {
    error.class == ErrorClass::Unavailable && error.status.is_none()
}

#[async_trait]
impl TokenEngine for Served {
    async fn sample(&self, request: SampleRequest) -> Result<EngineStream, EngineError> {
        SampledOn::begin(Arc::clone(&self.engine), Arc::clone(&self.gate), request).await
    }

    async fn score(&self, ids: &[u32], from: usize) -> Result<Vec<Option<f32>>, EngineError> {
        self.inner()?.score(ids, from).await
    }

    async fn render(&self, request: &Request) -> Result<Vec<u32>, EngineError> {
        self.inner()?.render(request).await
    }

    async fn picture_mark(
        &self,
        prompt: &[u32],
        picture: &str,
    ) -> Result<Option<u32>, EngineError> {
        self.inner()?.picture_mark(prompt, picture).await
    }

    async fn rendering(&self, request: &Request) -> Result<Rendering, EngineError> {
        self.inner()?.rendering(request).await
    }
}
