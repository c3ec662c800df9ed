//! Keeping an engine at its version: one that came back with old weights is brought to it before
//! it serves again, and one that was fenced is tried again.

use super::Weights;
use super::served::is_lost;
use polar_types::{WeightState, WeightUpdateRequest};
use std::time::Duration;
use tokio::time::Instant;

/// How often the version is asked for. Failed calls and versions that do not fit are looked at
/// at once.
const EVERY: Duration = Duration::from_secs(2);
/// How often a fenced engine is tried again.
const AGAIN: Duration = Duration::from_secs(3);
const ANSWER: Duration = Duration::from_secs(10);

impl Weights {
    /// Returns when the engine is to be looked at.
    pub async fn due(&self) {
        let is_fenced = self.told.borrow().engine.state == WeightState::Fenced;
        if is_fenced {
            return tokio::time::sleep(AGAIN).await;
        }
        tokio::select! {
            () = self.gate.suspected() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
    }

    /// Looks whether the engine still has the weights of an update, and brings it to them where it
    /// has not. Must not be dropped half-way.
    pub async fn look(&self, update: &WeightUpdateRequest) {
        let state = self.told.borrow().engine.state;
        self.tell_counts();
        match state {
            WeightState::Fenced => self.bring_to(update, true).await,
            WeightState::Current => self.compare(update, Some(update.version.clone())).await,
            // It serves what it had before, as long as it has that.
            WeightState::Unchanged => {
                let kept = self.told.borrow().engine.version.clone();
                self.compare(update, kept).await;
            }
            _ => {}
        }
    }

    async fn compare(&self, update: &WeightUpdateRequest, kept: Option<String>) {
        let Some(engine) = self.engine.weight_engine() else { return };
        match engine.version(Instant::now() + ANSWER).await {
            Ok(found) if found == kept => {}
            Ok(found) => {
                let found = found.as_deref().unwrap_or("none");
                tracing::warn!(found, wanted = update.version, "the engine lost its weights");
                self.bring_to(update, true).await;
            }
            // What it has when it is back is seen first.
            Err(error) if is_lost(&error) => {
                self.fence_for(update, format!("it is away: {error}"));
            }
            // Busy, or not willing now: its calls tell.
            Err(_) => {}
        }
    }
}
