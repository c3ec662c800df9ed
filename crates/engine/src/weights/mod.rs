//! New weights under running calls.
//!
//! Every call to an engine passes a gate ([`gate`]), which knows what is under way and lets nothing
//! begin while weights change. [`Weights`] brings one engine to a version, step by step
//! ([`roll_over`]), and keeps it there ([`keeping`]). What was ended in the engine for it is
//! sampled on behind its ids by whoever reads the reply ([`reply`]), so that no harness sees an
//! end.
//!
//! Invariants:
//! - A pause ends: each step has a deadline, and behind each stands the resuming.
//! - An engine serves the version that is wanted, or as before when nothing was begun, or nothing.
//! - A token says which weights sampled it by the engine's own word, or by the gate's where no
//!   switch lay between the beginning and the end of its reply, or not at all.
//!
//! It must not know who wants the weights, and keeps nothing over a restart.

mod engine;
mod gate;
mod keeping;
mod reply;
mod roll_over;
mod served;
mod sglang;
mod vllm;

pub use engine::WeightEngine;
pub use reply::CONTINUED;
pub(crate) use served::served;
pub(crate) use sglang::ending_left_pause;
pub(crate) use vllm::end_left_pause;

use crate::Engine;
use gate::Gate;
use polar_types::{EngineWeights, UpdateCalls, WeightState};
use std::sync::Arc;
use tokio::sync::watch;

/// The weights of one engine.
pub struct Weights {
    engine: Arc<dyn Engine>,
    gate: Arc<Gate>,
    told: watch::Sender<Told>,
}

/// How far an engine is.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// How far.
    pub engine: EngineWeights,
}

impl Weights {
    fn new(engine: Arc<dyn Engine>, gate: Arc<Gate>) -> Arc<Self> {
        let info = engine.info();
        let engine_weights = EngineWeights {
            node_id: None,
            engine: info.url.clone(),
            state: WeightState::Waiting,
            version: info.weight_version.clone(),
            reason: None,
            held_seconds: None,
            calls: UpdateCalls::default(),
            at: None,
        };
        let told = Told { engine: engine_weights };
        Arc::new(Self { engine, gate, told: watch::Sender::new(told) })
    }

    /// How far it is with the update that it was given last, kept up to date.
    pub fn told(&self) -> watch::Receiver<Told> {
        self.told.subscribe()
    }

    /// Tells nothing more of the update before: another is about to be made.
    pub fn set_out(&self) {
        self.told.send_modify(|told| told.engine.held_seconds = None);
        self.tell(WeightState::Waiting, None);
    }

    /// Why no call begins now, where the engine is fenced.
    pub fn fence(&self) -> Option<String> {
        self.gate.fence_reason()
    }

    /// Whether calls wait until its weights are changed.
    pub fn is_held(&self) -> bool {
        self.gate.is_held()
    }

    /// Returns when none waits for that.
    pub async fn released(&self) {
        self.gate.released().await;
    }

    fn tell(&self, state: WeightState, reason: Option<String>) {
        let calls = self.gate.counted();
        self.told.send_modify(|told| {
            told.engine.state = state;
            told.engine.reason = reason;
            told.engine.calls = calls;
        });
    }

    /// Tells what was counted since.
    fn tell_counts(&self) {
        let calls = self.gate.counted();
        self.told.send_if_modified(|told| {
            let is_news = told.engine.calls != calls;
            told.engine.calls = calls;
            is_news
        });
    }
}
