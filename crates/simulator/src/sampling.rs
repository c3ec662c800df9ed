//! Plays a script in time: latency, pace, pauses, aborts and faults.

use crate::config::Speed;
use crate::control::{Control, Watch};
use crate::fault::Fault;
use crate::script::Script;
use serde_json::Value;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Tokens of a script that came together.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    /// Places in the script.
    pub range: Range<usize>,
    /// Weights that sampled them.
    pub version: Arc<str>,
    /// Set with the last batch.
    pub end: Option<End>,
}

/// How a reply ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct End {
    pub finish: &'static str,
    pub stop_reason: Value,
}

/// What a batch could not be because of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

/// One reply being played.
#[derive(Debug)]
pub(crate) struct Player {
    script: Script,
    speed: Speed,
    batch: usize,
    fault: Option<Fault>,
    watch: Watch,
    started: Instant,
    place: usize,
    ended: bool,
}

impl Player {
    /// `batch` is the most tokens that come together.
    pub(crate) fn new(
        script: Script,
        speed: Speed,
        batch: usize,
        fault: Option<Fault>,
        control: &Control,
    ) -> Self {
        let started = Instant::now();
        let watch = control.watch();
        let batch = batch.max(1);
        Self { script, speed, batch, fault, watch, started, place: 0, ended: false }
    }

    pub(crate) fn script(&self) -> &Script {
        &self.script
    }

    /// The next tokens, when their time has come; none after the end. An error breaks
    /// the connection.
    pub(crate) async fn next(&mut self, control: &Control) -> Option<Result<Batch, Broken>> {
        if self.ended {
            return None;
        }
        let from = self.place;
        let mut to = (from + self.batch).min(self.script.ids.len());
        match self.fault {
            Some(Fault::CutAfter(tokens)) if from >= tokens => {
                self.ended = true;
                return Some(Err(Broken));
            }
            Some(Fault::StallAfter(tokens)) if from >= tokens => {
                self.watch.abort().await;
                return Some(Ok(self.abort(control)));
            }
            Some(Fault::AbortAfter(tokens)) if from >= tokens => {
                return Some(Ok(self.abort(control)));
            }
            Some(Fault::CutAfter(t) | Fault::StallAfter(t) | Fault::AbortAfter(t)) => {
                to = to.min(t);
            }
            _ => {}
        }
        if self.watch.is_frozen() {
            self.watch.unfrozen().await;
        }
        if let Some(due) = self.due(to) {
            tokio::select! {
                () = sleep_until(due) => {}
                () = self.watch.abort() => {}
            }
        }
        if self.watch.aborted() {
            return Some(Ok(self.abort(control)));
        }
        self.place = to;
        let last = to == self.script.ids.len();
        let end = last.then(|| {
            self.ended = true;
            End { finish: self.script.finish, stop_reason: self.script.stop_reason.clone() }
        });
        Some(Ok(Batch { range: from..to, version: control.version(), end }))
    }

    fn abort(&mut self, control: &Control) -> Batch {
        self.ended = true;
        let end = End { finish: "abort", stop_reason: Value::Null };
        Batch { range: self.place..self.place, version: control.version(), end: Some(end) }
    }

    /// When the tokens before place `to` are all there; none when time plays no part.
    fn due(&self, to: usize) -> Option<Instant> {
        let pace = self.speed.tokens_per_second.filter(|pace| *pace > 0.0);
        if pace.is_none() && (self.speed.first_token.is_zero() || self.place > 0) {
            return None;
        }
        let after_first = to.saturating_sub(1) as f64 / pace.unwrap_or(f64::INFINITY);
        Some(self.started + self.speed.first_token + Duration::from_secs_f64(after_first))
    }
}
