//! Pausing, aborting, the weights and their version, as a trainer drives them.

use crate::activity::Activity;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
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

/// What goes wrong when weights are loaded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WeightFault {
    /// Nothing more comes, until the fault is taken away.
    Hang,
    /// It fails, with the weights as they were.
    Fail,
    /// It fails when some of them are in their place.
    HalfWay,
    /// It takes so long.
    Slow(Duration),
}

/// Tokens of one request that were sampled one after the other with the same weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampledTokens {
    /// The id the client gave its request, or one made for it.
    pub request_id: String,
    /// The version that was said of the weights.
    pub version: Arc<str>,
    /// The weights.
    pub weights: Arc<str>,
    /// How many.
    pub tokens: usize,
}

/// Runs of tokens kept; more than any test needs.
const MOST_SAMPLED: usize = 1 << 13;

/// Shared state that running generations look at between tokens.
#[derive(Debug)]
pub(crate) struct Control {
    paused: watch::Sender<Option<PauseMode>>,
    /// What runs, by the name its client gave it. Each counts its aborts.
    running: Mutex<Vec<(String, watch::Sender<u64>)>>,
    weights: RwLock<Weights>,
    fault: watch::Sender<Option<WeightFault>>,
    sampled: Mutex<Vec<SampledTokens>>,
}

/// Weights, and what is said of them: a label says nothing of what was loaded.
#[derive(Debug)]
struct Weights {
    version: Arc<str>,
    /// Name of what was loaded last; the version stands for it before.
    loaded: Option<Arc<str>>,
}

impl Default for Control {
    fn default() -> Self {
        Self {
            paused: watch::Sender::new(None),
            running: Mutex::default(),
            weights: RwLock::new(Weights { version: "default".into(), loaded: None }),
            fault: watch::Sender::new(None),
            sampled: Mutex::default(),
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
        self.abort(|_| true);
    }

    /// Ends what runs under these names, and says how many that were.
    pub(crate) fn abort(&self, is_named: impl Fn(&str) -> bool) -> usize {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let named =
            running.iter().filter(|(name, aborts)| aborts.receiver_count() > 0 && is_named(name));
        named.map(|(_, aborts)| aborts.send_modify(|count| *count += 1)).count()
    }

    /// What is said of the weights.
    pub(crate) fn version(&self) -> Arc<str> {
        Arc::clone(&self.weights.read().unwrap_or_else(PoisonError::into_inner).version)
    }

    pub(crate) fn set_version(&self, version: &str) {
        self.weights.write().unwrap_or_else(PoisonError::into_inner).version = version.into();
    }

    /// What samples.
    pub(crate) fn weights(&self) -> Arc<str> {
        let weights = self.weights.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(weights.loaded.as_ref().unwrap_or(&weights.version))
    }

    /// Loads weights, unless that fails.
    pub(crate) async fn load(&self, name: &str) -> Result<(), ()> {
        let fault = *self.fault.borrow();
        match fault {
            Some(WeightFault::Hang) => {
                // The sender is in `self`.
                let _ = self.fault.subscribe().wait_for(|f| *f != Some(WeightFault::Hang)).await;
            }
            Some(WeightFault::Fail) => return Err(()),
            Some(WeightFault::HalfWay) => {
                self.have_loaded(&format!("half of {name}"));
                return Err(());
            }
            Some(WeightFault::Slow(time)) => tokio::time::sleep(time).await,
            None => {}
        }
        self.have_loaded(name);
        Ok(())
    }

    fn have_loaded(&self, name: &str) {
        self.weights.write().unwrap_or_else(PoisonError::into_inner).loaded = Some(name.into());
    }

    pub(crate) fn set_weight_fault(&self, fault: Option<WeightFault>) {
        self.fault.send_replace(fault);
    }

    /// Keeps which weights sampled tokens.
    pub(crate) fn note_sampled(&self, more: SampledTokens) {
        let mut sampled = self.sampled.lock().unwrap_or_else(PoisonError::into_inner);
        let last = sampled.iter_mut().rev().find(|run| run.request_id == more.request_id);
        match last {
            Some(run) if run.version == more.version && run.weights == more.weights => {
                run.tokens += more.tokens;
                return;
            }
            _ => {}
        }
        if sampled.len() < MOST_SAMPLED {
            sampled.push(more);
        }
    }

    pub(crate) fn sampled(&self) -> Vec<SampledTokens> {
        self.sampled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until new generations may start.
    pub(crate) async fn admit(&self) {
        // The sender lives in `self`, so waiting can only end by the condition.
        let _ = self.paused.subscribe().wait_for(Option::is_none).await;
    }

    /// A running generation's view of pauses and aborts.
    pub(crate) fn watch(&self, name: &str) -> Watch {
        let (aborts, aborted) = watch::channel(0);
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|(_, aborts)| aborts.receiver_count() > 0);
        running.push((name.to_owned(), aborts));
        Watch { paused: self.paused.subscribe(), aborts: aborted }
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
