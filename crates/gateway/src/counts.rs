//! What the gateway counts of all its calls, for whoever shows it.

use polar_http::metrics::{Histogram, SECONDS};
use polar_record::CallMeta;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts since the gateway was made.
#[derive(Debug, Clone)]
pub struct CallCounts {
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that ended in an error.
    pub failed: u64,
    /// Calls that their harness, or the end of their session, broke off.
    pub broken_off: u64,
    /// Tokens in their prompts.
    pub prompt_tokens: u64,
    /// Tokens sampled.
    pub sampled_tokens: u64,
    /// Seconds that calls took.
    pub seconds: Histogram,
}

/// Shared by the sessions of a gateway.
pub(crate) struct Counts(Mutex<CallCounts>);

impl Counts {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(CallCounts {
            answered: 0,
            failed: 0,
            broken_off: 0,
            prompt_tokens: 0,
            sampled_tokens: 0,
            seconds: Histogram::new(SECONDS),
        }))
    }

    pub(crate) fn now(&self) -> CallCounts {
        self.locked().clone()
    }

    /// Counts a call that is in a journal.
    pub(crate) fn note(&self, call: &CallMeta) {
        let mut counts = self.locked();
        match call.finish_reason.as_str() {
            "error" => counts.failed += 1,
            "cancelled" => counts.broken_off += 1,
            _ => counts.answered += 1,
        }
        counts.prompt_tokens += call.prompt_tokens;
        counts.sampled_tokens += call.sampled_tokens;
        counts.seconds.observe(call.duration_ms as f64 / 1000.0);
    }

    fn locked(&self) -> MutexGuard<'_, CallCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
