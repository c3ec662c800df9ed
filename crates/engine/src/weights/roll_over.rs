//! Bringing one engine to a version: hold calls, let the running ones end or stand still, load,
//! name, go on, look whether it is so.

use super::Weights;
use super::engine::WeightEngine;
use super::served::is_lost;
use crate::{EngineError, EngineEvent, SampleRequest};
use futures_util::StreamExt;
use polar_convo::Sampling;
use polar_types::{ErrorClass, UpdateMode, WeightSource, WeightState, WeightUpdateRequest};
use serde_json::Map;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Longest for a question that an engine answers at once, and for letting it go on.
const AT_ONCE: Duration = Duration::from_secs(10);
/// How often calls that were to be ended and did not are ended again.
const ABORT_AGAIN: Duration = Duration::from_millis(200);
/// Longest that is waited for their ends. What has not ended stands still instead.
const ABORTS: Duration = Duration::from_secs(5);
/// Pause before an engine that lost the connection is told again to go on.
const RESUME_AGAIN: Duration = Duration::from_millis(250);
/// Pause before an engine that has no room for a token is asked for it again.
const FULL_AGAIN: Duration = Duration::from_millis(250);
/// What engines call weights that nobody has named.
const UNNAMED: &str = "default";

/// Why an update ended early.
#[derive(Debug)]
pub(super) enum Stop {
    /// Nothing was begun: it serves as before.
    Unchanged(String),
    /// Its weights are not known to be the right ones.
    Fenced(String),
}

impl Weights {
    /// Brings the engine to an update, and tells how that went. Calls that come meanwhile wait.
    /// `again` says that it was tried before, so that only what can be had again is loaded.
    ///
    /// Must not be dropped half-way: the engine would be left paused.
    pub async fn bring_to(&self, update: &WeightUpdateRequest, again: bool) {
        let begun = Instant::now();
        let until = begun + Duration::from_secs_f64(update.deadline_seconds);
        self.gate.hold();
        self.tell(WeightState::Draining, None);
        let done = self.make(update, again, until).await;
        let held = begun.elapsed().as_secs_f64();
        self.told.send_modify(|told| told.engine.held_seconds = Some(held));
        match done {
            Ok(()) => {
                self.gate.open();
                self.told.send_modify(|told| told.engine.version = Some(update.version.clone()));
                tracing::info!(
                    version = update.version,
                    seconds = held,
                    "the engine has new weights"
                );
                self.tell(WeightState::Current, None);
            }
            Err(Stop::Unchanged(reason)) => {
                self.gate.open();
                tracing::warn!(version = update.version, reason, "the engine keeps its weights");
                self.tell(WeightState::Unchanged, Some(reason));
            }
            Err(Stop::Fenced(reason)) => self.fence_for(update, reason),
        }
    }

    pub(super) fn fence_for(&self, update: &WeightUpdateRequest, reason: String) {
        let version = &update.version;
        tracing::error!(version, reason, "the engine is fenced");
        self.gate.fence(&format!("it does not serve weights {version}: {reason}"));
        self.tell(WeightState::Fenced, Some(reason));
    }

    async fn make(
        &self,
        update: &WeightUpdateRequest,
        again: bool,
        until: Instant,
    ) -> Result<(), Stop> {
        let Some(engine) = self.engine.weight_engine() else {
            return self.make_without(update, until).await;
        };
        let found = engine.version(soon(until)).await.map_err(not_begun)?;
        self.told.send_modify(|told| told.engine.version.clone_from(&found));
        self.gate.found(found.as_deref().filter(|found| *found != UNNAMED));
        let version = &update.version;
        // Behind a load that broke off, a name says nothing of the weights.
        let is_there = found.as_ref() == Some(version)
            && !self.gate.is_half_loaded()
            && (version != UNNAMED || self.gate.serves(version));
        if is_there {
            self.gate.has(version);
        } else if again && !update.source.is_repeatable() {
            let found = found.as_deref().unwrap_or("none");
            return Err(Stop::Fenced(format!(
                "it has weights {found}, and only the trainer can move {version} again; push it \
                 when that is done, or others"
            )));
        } else {
            self.drain(engine, update, until).await?;
            self.change(engine, update, until).await?;
        }
        self.tell(WeightState::Verifying, None);
        // What was begun is looked at, even where it took all the time there was.
        self.verify(engine, version, soon(until).max(Instant::now() + AT_ONCE)).await
    }

    /// An engine that loads nothing while it serves: the trainer has started it anew, and the gate
    /// marks what it samples from here on.
    async fn make_without(&self, update: &WeightUpdateRequest, until: Instant) -> Result<(), Stop> {
        if update.source != (WeightSource::Label {}) {
            let kind = self.engine.info().kind.name();
            return Err(Stop::Unchanged(format!(
                "{kind} loads no weights while it serves; start it anew with them, and push the \
                 version with the source {{\"label\": {{}}}}"
            )));
        }
        if !self.gate.idle(until).await {
            return Err(still_running(self.gate.in_flight(), update));
        }
        self.gate.switched(&update.version);
        Ok(())
    }

    /// Sees to what is under way, as the mode says.
    async fn drain(
        &self,
        engine: &dyn WeightEngine,
        update: &WeightUpdateRequest,
        until: Instant,
    ) -> Result<(), Stop> {
        match update.mode {
            UpdateMode::Pause => {}
            UpdateMode::Drain => return self.let_end(update, until).await,
            UpdateMode::Continue => {
                self.end_in_engine(engine, until.min(Instant::now() + ABORTS)).await?;
            }
        }
        match engine.needs_idle(&update.source) {
            true => self.let_end(update, until).await,
            false => Ok(()),
        }
    }

    /// Waits until nothing is under way. A quarter of the time is left for the change itself.
    async fn let_end(&self, update: &WeightUpdateRequest, until: Instant) -> Result<(), Stop> {
        let reserve = Duration::from_secs_f64(update.deadline_seconds / 4.0);
        match self.gate.idle(until - reserve).await {
            true => Ok(()),
            false => Err(still_running(self.gate.in_flight(), update)),
        }
    }

    /// Ends what can be sampled on. A call may be on its way to the engine when it is ended there
    /// first, so that it is tried again. One whose harness does not read is left to itself: the
    /// engine has ended it.
    async fn end_in_engine(&self, engine: &dyn WeightEngine, until: Instant) -> Result<(), Stop> {
        loop {
            let names = self.gate.mark_aborted();
            if names.is_empty() || Instant::now() >= until {
                return Ok(());
            }
            engine.abort(&names, soon(until)).await.map_err(not_begun)?;
            let again = (Instant::now() + ABORT_AGAIN).min(until);
            while Instant::now() < again && self.gate.any_goes_on() {
                self.gate.next_end(again).await;
            }
        }
    }

    /// The change itself, at an engine that stands still. It goes on behind it whatever happens.
    async fn change(
        &self,
        engine: &dyn WeightEngine,
        update: &WeightUpdateRequest,
        until: Instant,
    ) -> Result<(), Stop> {
        self.tell(WeightState::Updating, None);
        let paused = engine.pause(until).await;
        let changed = match &paused {
            Ok(()) => {
                let kept = self.gate.in_flight();
                self.gate.count(|calls| calls.kept = kept);
                self.load(engine, update, until).await
            }
            Err(_) => Ok(()),
        };
        if matches!(changed, Err(Stop::Fenced(_))) {
            self.gate.doubt(update.source != (WeightSource::Label {}));
        }
        let resumed = resume(engine).await;
        paused.map_err(not_begun)?;
        match (changed, resumed) {
            (Ok(()), Ok(())) => Ok(()),
            (_, Err(error)) => Err(Stop::Fenced(format!("it does not go on: {error}"))),
            (Err(stop), Ok(())) => Err(stop),
        }
    }

    async fn load(
        &self,
        engine: &dyn WeightEngine,
        update: &WeightUpdateRequest,
        until: Instant,
    ) -> Result<(), Stop> {
        let loading = engine.load(&update.source, &update.version, until);
        loading.await.map_err(|error| match is_refusal(&error) {
            true => Stop::Unchanged(format!("it refuses the weights: {error}")),
            false => Stop::Fenced(format!("it failed to load: {error}")),
        })?;
        let unnamed = |error| Stop::Fenced(format!("it does not take the name: {error}"));
        engine.label(&update.version, soon(until)).await.map_err(unnamed)?;
        self.gate.switched(&update.version);
        let left = |error| Stop::Fenced(format!("its cache cannot be emptied: {error}"));
        if !engine.forget_prefixes(soon(until)).await.map_err(left)? {
            tracing::warn!("prompts that the engine computed with the weights before stay in use");
        }
        Ok(())
    }

    /// Whether it says that it has the version, and samples with it.
    async fn verify(
        &self,
        engine: &dyn WeightEngine,
        version: &str,
        until: Instant,
    ) -> Result<(), Stop> {
        let found = engine.version(until).await;
        let found = found.map_err(|error| Stop::Fenced(format!("it does not answer: {error}")))?;
        if found.as_deref() != Some(version) {
            let found = found.unwrap_or_else(|| "none".to_owned());
            return Err(Stop::Fenced(format!("it says that it has weights {found}")));
        }
        if self.gate.in_flight() > 0 {
            // It would come behind all that stood still, which shows as well that it samples.
            return Ok(());
        }
        let sampled = tokio::time::timeout_at(until, self.sample_one(version)).await;
        let sampled = sampled.unwrap_or_else(|_| Err("it samples nothing in time".to_owned()));
        sampled.map_err(Stop::Fenced)
    }

    async fn sample_one(&self, version: &str) -> Result<(), String> {
        let Some(tokens) = self.engine.tokens() else { return Ok(()) };
        let failed = |error: EngineError| format!("it does not sample: {error}");
        let mut reply = loop {
            match tokens.sample(one_token(version)).await {
                // What it was asked before comes first, which has an end.
                Err(error) if error.class == ErrorClass::Overloaded => {
                    tokio::time::sleep(FULL_AGAIN).await;
                }
                begun => break begun.map_err(failed)?,
            }
        };
        let mut ids = 0;
        while let Some(event) = reply.next().await {
            match event.map_err(failed)? {
                EngineEvent::Chunk { ids: more, .. } => ids += more.len(),
                EngineEvent::End(end) => {
                    let other = end.weight_versions.iter().find(|span| {
                        span.version.as_deref().is_some_and(|sampled| sampled != version)
                    });
                    if let Some(other) = other.and_then(|span| span.version.as_deref()) {
                        return Err(format!("it samples with weights {other}"));
                    }
                }
                EngineEvent::PromptIds(_) => {}
            }
        }
        if ids == 0 { Err("it samples nothing".to_owned()) } else { Ok(()) }
    }
}

/// A pause has to end, so that one lost connection is not taken for an answer.
async fn resume(engine: &dyn WeightEngine) -> Result<(), EngineError> {
    let until = Instant::now() + AT_ONCE;
    loop {
        match engine.resume(until).await {
            Err(error) if is_lost(&error) && Instant::now() + RESUME_AGAIN < until => {
                tokio::time::sleep(RESUME_AGAIN).await;
            }
            done => return done,
        }
    }
}

fn one_token(version: &str) -> SampleRequest {
    let sampling = Sampling { temperature: Some(0.0), max_tokens: Some(1), ..Sampling::default() };
    SampleRequest {
        // Every vocabulary has it.
        prompt: Arc::from([0_u32]),
        pictures: Vec::new(),
        picture_mark: None,
        sampling,
        stop_token_ids: Vec::new(),
        request_id: format!("polar-weights-{version}"),
        session: None,
        stream: false,
        rest: Map::new(),
    }
}

fn soon(until: Instant) -> Instant {
    until.min(Instant::now() + AT_ONCE)
}

/// Whether the engine said no, and did nothing.
fn is_refusal(error: &EngineError) -> bool {
    match error.status {
        Some(status) => (400..500).contains(&status) && error.class != ErrorClass::Timeout,
        None => error.class == ErrorClass::Invalid,
    }
}

/// An engine that could not be asked or paused: as before when it said so, else not to be trusted.
fn not_begun(error: EngineError) -> Stop {
    match is_refusal(&error) {
        true => Stop::Unchanged(error.message),
        false if is_lost(&error) => Stop::Fenced(format!("it is away: {error}")),
        false => Stop::Fenced(format!("it does not answer in time or fails: {error}")),
    }
}

fn still_running(calls: u64, update: &WeightUpdateRequest) -> Stop {
    Stop::Unchanged(format!(
        "{calls} calls had not ended in the time that `deadline_seconds` ({}) leaves them; push it \
         again with more, or with the `mode` pause or continue",
        update.deadline_seconds
    ))
}
