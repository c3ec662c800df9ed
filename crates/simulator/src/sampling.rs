//! Plays a script in time: latency, pace, pauses, aborts and faults.

use crate::config::Speed;
use crate::control::{Control, SampledTokens, Watch};
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
    /// What was said of the weights that sampled them.
    pub version: Arc<str>,
    /// Weights that sampled them.
    pub weights: Arc<str>,
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

/// How long before a cut nothing more comes.
const BEFORE_CUT: Duration = Duration::from_millis(50);

/// One reply being played.
#[derive(Debug)]
pub(crate) struct Player {
    name: String,
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
    /// `name` is the request's, `batch` the most tokens that come together.
    pub(crate) fn new(
        name: &str,
        script: Script,
        speed: Speed,
        batch: usize,
        fault: Option<Fault>,
        control: &Control,
    ) -> Self {
        let started = Instant::now();
        let watch = control.watch(name);
        let batch = batch.max(1);
        let name = name.to_owned();
        Self { name, script, speed, batch, fault, watch, started, place: 0, ended: false }
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
                // What was sampled is on its way before the connection breaks.
                tokio::time::sleep(BEFORE_CUT).await;
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
        self.wait_while_frozen().await;
        if let Some(due) = self.due(to) {
            tokio::select! {
                () = sleep_until(due) => {}
                () = self.watch.abort() => {}
            }
        }
        // The pause may have come while the token was on its way.
        self.wait_while_frozen().await;
        if self.watch.aborted() {
            return Some(Ok(self.abort(control)));
        }
        self.place = to;
        let last = to == self.script.ids.len();
        let end = last.then(|| {
            self.ended = true;
            End { finish: self.script.finish, stop_reason: self.script.stop_reason.clone() }
        });
        let (version, weights) = (control.version(), control.weights());
        control.note_sampled(SampledTokens {
            request_id: self.name.clone(),
            version: Arc::clone(&version),
            weights: Arc::clone(&weights),
            tokens: to - from,
        });
        Some(Ok(Batch { range: from..to, version, weights, end }))
    }

    /// Time stands still in a pause that keeps generations.
    async fn wait_while_frozen(&mut self) {
        if self.watch.is_frozen() {
            let frozen = Instant::now();
            self.watch.unfrozen_or_aborted().await;
            self.started += frozen.elapsed();
        }
    }

    fn abort(&mut self, control: &Control) -> Batch {
        self.ended = true;
        let end = End { finish: "abort", stop_reason: Value::Null };
        let (version, weights) = (control.version(), control.weights());
        Batch { range: self.place..self.place, version, weights, end: Some(end) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vocabulary;
    use crate::activity::Activity;
    use crate::control::PauseMode;
    use crate::script::Limits;
    use crate::weights::Context;
    use futures_util::poll;
    use std::pin::pin;
    use std::task::Poll;

    fn player(speed: Speed, control: &Control) -> Player {
        let vocabulary = Vocabulary::load().unwrap();
        let ids = vocabulary.encode("one two three four").unwrap();
        let limits = Limits { max_tokens: 100, ..Limits::default() };
        let script = Script::play(&vocabulary, Context::empty(), &ids, false, &limits);
        Player::new("a", script, speed, 1, None, control)
    }

    async fn pause(control: &Control, mode: PauseMode) {
        control.pause(mode, &Activity::default()).await;
    }

    #[tokio::test]
    async fn a_kept_generation_stands_still_and_goes_on() {
        let control = Control::default();
        let mut player = player(Speed::default(), &control);
        assert_eq!(player.next(&control).await.unwrap().unwrap().range, 0..1);
        pause(&control, PauseMode::Keep).await;
        {
            let mut next = pin!(player.next(&control));
            assert!(poll!(&mut next).is_pending());
            control.set_version("step-1");
            assert!(poll!(&mut next).is_pending());
            control.resume();
            let Poll::Ready(Some(Ok(batch))) = poll!(next) else { panic!("it must go on") };
            assert_eq!((batch.range, &*batch.version), (1..2, "step-1"));
        }
        pause(&control, PauseMode::Keep).await;
        let mut next = pin!(player.next(&control));
        assert!(poll!(&mut next).is_pending());
        control.abort_all();
        let Poll::Ready(Some(Ok(batch))) = poll!(next) else { panic!("it must end") };
        assert_eq!((batch.range, batch.end.unwrap().finish), (2..2, "abort"));
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_come_when_they_are_due_and_a_pause_does_not_count() {
        let control = Control::default();
        let speed = Speed {
            first_token: Duration::from_secs(1),
            tokens_per_second: Some(10.0),
            tokens_per_chunk: 1,
        };
        let mut player = player(speed, &control);
        let begun = Instant::now();
        let milliseconds = |begun: Instant| begun.elapsed().as_millis();
        player.next(&control).await;
        assert_eq!(milliseconds(begun), 1000);
        player.next(&control).await;
        assert_eq!(milliseconds(begun), 1100);
        pause(&control, PauseMode::Keep).await;
        {
            let mut next = pin!(player.next(&control));
            assert!(poll!(&mut next).is_pending());
            tokio::time::advance(Duration::from_secs(5)).await;
            assert!(poll!(&mut next).is_pending());
            control.resume();
            let resumed = Instant::now();
            next.await;
            assert_eq!(milliseconds(resumed), 100);
        }
    }
}
