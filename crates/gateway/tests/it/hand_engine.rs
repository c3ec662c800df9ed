//! An engine whose every event the test sends itself, so that each moment of a call can
//! be looked at without waiting for time to pass.

use async_trait::async_trait;
use futures_util::stream;
use polar_convo::{FinishReason, ReplyEvent, Request, Usage};
use polar_engine::{
    Engine, EngineEnd, EngineError, EngineEvent, EngineInfo, EngineKind, EngineStream,
    GenerateRequest,
};
use serde_json::Map;
use tokio::sync::{Mutex, RwLock, RwLockWriteGuard, mpsc};

type Event = Result<EngineEvent, EngineError>;

pub(crate) struct HandEngine {
    info: EngineInfo,
    refusals: std::sync::Mutex<Vec<EngineError>>,
    /// Held by a test while the engine is to accept nothing.
    gate: RwLock<()>,
    sender: mpsc::UnboundedSender<HandedCall>,
    receiver: Mutex<mpsc::UnboundedReceiver<HandedCall>>,
}

/// The engine's side of one call.
pub(crate) struct HandedCall {
    pub(crate) request: GenerateRequest,
    events: mpsc::UnboundedSender<Event>,
}

impl Default for HandEngine {
    fn default() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self {
            info: EngineInfo {
                kind: EngineKind::Vllm,
                url: "http://engine".to_owned(),
                version: None,
                model: "m".to_owned(),
                context_window: Some(4096),
                vocab_size: Some(1000),
                logprob_mode: "raw".to_owned(),
                weight_version: None,
                model_folder: None,
                token_mode: None,
            },
            refusals: std::sync::Mutex::default(),
            gate: RwLock::default(),
            sender,
            receiver: Mutex::new(receiver),
        }
    }
}

impl HandEngine {
    pub(crate) async fn next_call(&self) -> HandedCall {
        self.receiver.lock().await.recv().await.unwrap()
    }

    /// Accepts no call until what comes back is dropped.
    pub(crate) async fn hold(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().await
    }

    /// Refuses the next call with this error.
    pub(crate) fn refuse(&self, error: EngineError) {
        self.refusals.lock().unwrap().push(error);
    }
}

#[async_trait]
impl Engine for HandEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    async fn generate(&self, request: GenerateRequest) -> Result<EngineStream, EngineError> {
        let _open = self.gate.read().await;
        if let Some(error) = self.refusals.lock().unwrap().pop() {
            return Err(error);
        }
        let (events, receiver) = mpsc::unbounded_channel();
        self.sender.send(HandedCall { request, events }).unwrap();
        Ok(Box::pin(stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|event| (event, receiver))
        })))
    }

    async fn count_tokens(&self, request: &Request) -> Result<u64, EngineError> {
        Ok(request.messages.len() as u64 * 10)
    }

    async fn health(&self) -> Result<(), EngineError> {
        Ok(())
    }
}

impl HandedCall {
    pub(crate) fn send(&self, event: EngineEvent) {
        self.events.send(Ok(event)).unwrap();
    }

    pub(crate) fn fail(&self, error: EngineError) {
        self.events.send(Err(error)).unwrap();
    }

    pub(crate) fn prompt(&self, ids: &[u32]) {
        self.send(EngineEvent::PromptIds(ids.to_vec()));
    }

    pub(crate) fn text(&self, text: &str, ids: &[u32]) {
        self.send(EngineEvent::Chunk {
            events: vec![ReplyEvent::Text(text.to_owned())],
            ids: ids.to_vec(),
            logprobs: ids.iter().map(|id| Some(-0.5 - *id as f32)).collect(),
        });
    }

    pub(crate) fn end(&self, prompt_tokens: u64, completion_tokens: u64) {
        self.send(EngineEvent::End(EngineEnd {
            finish: FinishReason::Stop,
            engine_finish: "stop".to_owned(),
            stop_sequence: None,
            usage: Usage { prompt_tokens, completion_tokens, ..Usage::default() },
            weight_versions: Vec::new(),
            arrays: std::collections::BTreeMap::new(),
            extra: Map::new(),
        }));
    }

    /// Whether the gateway has dropped the generation's stream.
    pub(crate) async fn cancelled(&self) {
        self.events.closed().await;
    }
}

pub(crate) fn engine_error(class: polar_types::ErrorClass, message: &str) -> EngineError {
    EngineError::new(class, message)
}
