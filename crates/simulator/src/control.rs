//! Pausing, aborting and the weight version, as a trainer drives them.

use crate::activity::Activity;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// What happens to running generations at a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PauseMode {
    /// They end at once with finish reason `abort`.
    Abort,
    /// They are waited for.
    Wait,
    /// They freeze and go on at resume.
    Keep,
}

/// Shared state that running generations look at between tokens.
#[derive(Debug)]
pub(crate) struct Control {
    paused: watch::Sender<Option<PauseMode>>,
    /// Counts aborts; a generation started before the latest one must end.
    aborts: watch::Sender<u64>,
    version: RwLock<Arc<str>>,
}

impl Default for Control {
    fn default() -> Self {
        Self {
            paused: watch::Sender::new(None),
            aborts: watch::Sender::new(0),
            version: RwLock::new("default".into()),
        }
    }
}

impl Control {
    pub(crate) async fn pause(&self, mode: PauseMode, activity: &Activity) {
        self.paused.send_replace(Some(mode));
        match mode {
            PauseMode::Abort => self.abort_all(),
            PauseMode::Wait => activity.idle().await,
            PauseMode::Keep => {}
        }
    }

    pub(crate) fn resume(&self) {
        self.paused.send_replace(None);
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.borrow().is_some()
    }

    /// Ends everything that runs.
    pub(crate) fn abort_all(&self) {
        self.aborts.send_modify(|count| *count += 1);
    }

    pub(crate) fn version(&self) -> Arc<str> {
        Arc::clone(&self.version.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_version(&self, version: &str) {
        *self.version.write().unwrap_or_else(PoisonError::into_inner) = version.into();
    }

    /// Waits until new generations may start.
    pub(crate) async fn admit(&self) {
        // The sender lives in `self`, so waiting can only end by the condition.
        let _ = self.paused.subscribe().wait_for(Option::is_none).await;
    }

    /// A running generation's view of pauses and aborts.
    pub(crate) fn watch(&self) -> Watch {
        let mut aborts = self.aborts.subscribe();
        aborts.mark_unchanged();
        Watch { paused: self.paused.subscribe(), aborts }
    }
}

/// Tells a running generation to wait or to end.
#[derive(Debug)]
pub(crate) struct Watch {
    paused: watch::Receiver<Option<PauseMode>>,
    aborts: watch::Receiver<u64>,
}

impl Watch {
    /// Whether the generation was aborted.
    pub(crate) fn aborted(&self) -> bool {
        self.aborts.has_changed().unwrap_or(true)
    }

    /// Resolves when the generation is aborted.
    pub(crate) async fn abort(&mut self) {
        if self.aborts.changed().await.is_ok() {
            self.aborts.mark_changed();
        }
    }

    /// Waits out a pause that keeps running generations; an abort ends it as well.
    pub(crate) async fn unfrozen_or_aborted(&mut self) {
        let frozen = |mode: &Option<PauseMode>| *mode == Some(PauseMode::Keep);
        tokio::select! {
            _ = self.paused.wait_for(|mode| !frozen(mode)) => {}
            changed = self.aborts.changed() => {
                if changed.is_ok() {
                    self.aborts.mark_changed();
                }
            }
        }
    }

    /// Whether the generation is frozen now.
    pub(crate) fn is_frozen(&self) -> bool {
        *self.paused.borrow() == Some(PauseMode::Keep)
    }
}
