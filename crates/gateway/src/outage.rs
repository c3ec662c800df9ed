//! Whether an engine is there, told by the calls themselves and by a cheap question.
//!
//! A call that fails because its engine is gone, or answers nothing but failures, is not the
//! harness's business as long as another engine takes it or its own may come back: it goes there,
//! or is held and asked again. Owns the one word on whether an engine is away; whether all are says
//! the [pool](crate::pool). It must not judge a call that the engine refused for what is in it.

use crate::GatewayConfig;
use crate::pool::EnginePool;
use jiff::Timestamp;
use polar_convo::ApiError;
use polar_engine::{Engine, EngineError};
use polar_types::{ErrorClass, SessionId};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Calls in a row, of more than one session, that the engine fails although it says that it is
/// well. Less may be one conversation that it cannot bear.
const FAILED_CALLS: u32 = 8;
/// Questions in a row without an answer, after which an engine that nobody calls is away.
const FAILED_QUESTIONS: u32 = 3;
/// Pauses between questions to an engine that is away.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// After so long, calls try an engine that says it is well and failed them all.
const TRIAL: Duration = Duration::from_secs(15);
/// When a harness that waited in vain is told to ask again, in seconds.
const ASK_AGAIN: f64 = 5.0;

/// An engine that is away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// Since when.
    pub since: Timestamp,
    /// What it is seen by.
    pub reason: String,
}

impl std::fmt::Display for Outage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "engine unreachable since {:.0} ({})", self.since, self.reason)
    }
}

/// Watches one engine.
pub(crate) struct EngineWatch {
    engine: Arc<dyn Engine>,
    /// Told of each change.
    pool: Weak<EnginePool>,
    questions: Questions,
    outage: watch::Sender<Option<Outage>>,
    /// Calls that failed since one went well.
    failed: Mutex<FailedCalls>,
    /// Failed calls of all times, for counts.
    errors: AtomicU64,
    /// Whether somebody is asking the engine already.
    is_asking: AtomicBool,
}

/// How an engine is asked whether it is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Questions {
    /// Time between them while all is well.
    every: Duration,
    /// Longest wait for an answer.
    answer: Duration,
}

impl Questions {
    pub(crate) fn of(config: &GatewayConfig) -> Self {
        Self { every: config.engine_questions, answer: config.engine_answer }
    }
}

/// Failed calls in a row.
#[derive(Default)]
struct FailedCalls {
    count: u32,
    first: Option<SessionId>,
    /// Whether sessions beside the first are among them.
    are_of_many: bool,
}

impl FailedCalls {
    fn add(&mut self, session: &SessionId) {
        self.count = self.count.saturating_add(1);
        match &self.first {
            None => self.first = Some(session.clone()),
            Some(first) => self.are_of_many |= first != session,
        }
    }

    fn are_the_engines(&self) -> bool {
        self.count >= FAILED_CALLS && self.are_of_many
    }
}

impl EngineWatch {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        questions: Questions,
        pool: Weak<EnginePool>,
    ) -> Arc<Self> {
        Arc::new(Self {
            engine,
            pool,
            questions,
            outage: watch::channel(None).0,
            failed: Mutex::default(),
            errors: AtomicU64::new(0),
            is_asking: AtomicBool::new(false),
        })
    }

    /// The outage there is now.
    pub(crate) fn outage(&self) -> Option<Outage> {
        self.outage.borrow().clone()
    }

    pub(crate) fn is_away(&self) -> bool {
        self.outage.borrow().is_some()
    }

    /// Calls that the engine failed since the start, those that were held and went well later
    /// among them.
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Returns when the engine is not away.
    async fn present(&self) {
        // The sender is this watch's own, so that this never fails.
        let _ = self.outage.subscribe().wait_for(Option::is_none).await;
    }

    /// Returns when the engine is away.
    pub(crate) async fn away(&self) {
        let _ = self.outage.subscribe().wait_for(Option::is_some).await;
    }

    /// Asks the engine regularly whether it is there, so that its loss is known before a session
    /// begins. Runs until it is dropped.
    pub(crate) async fn ask_regularly(self: Arc<Self>) -> Infallible {
        let mut unanswered = 0;
        loop {
            tokio::time::sleep(self.questions.every).await;
            self.present().await;
            unanswered = match self.ask().await {
                Ok(()) => 0,
                Err(reason) if unanswered + 1 >= FAILED_QUESTIONS => {
                    self.begin(reason, false);
                    0
                }
                Err(_) => unanswered + 1,
            };
        }
    }

    /// Asks the engine now, since there is reason to believe that it serves no calls.
    pub(crate) async fn look(self: &Arc<Self>) {
        if let Err(reason) = self.ask().await {
            self.begin(reason, false);
        }
    }

    /// The engine has taken a call.
    pub(crate) fn note_success(&self) {
        *self.failed() = FailedCalls::default();
    }

    fn failed(&self) -> MutexGuard<'_, FailedCalls> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a failed call of a session, and says whether the engine is away with it.
    pub(crate) async fn is_away_after(
        self: &Arc<Self>,
        error: &EngineError,
        session: &SessionId,
    ) -> bool {
        if !is_engines_fault(error) {
            return false;
        }
        self.note_failure(error, session);
        if self.is_away() {
            return true;
        }
        if let Err(reason) = self.ask().await {
            self.begin(reason, false);
        }
        self.is_away()
    }

    /// The same for a call that had begun, which cannot be held any more.
    pub(crate) fn note_broken(self: &Arc<Self>, error: &EngineError, session: &SessionId) {
        if is_engines_fault(error) {
            self.note_failure(error, session);
        }
    }

    fn note_failure(self: &Arc<Self>, error: &EngineError, session: &SessionId) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let mut failed = self.failed();
        failed.add(session);
        let (count, is_away) = (failed.count, failed.are_the_engines());
        drop(failed);
        if is_away {
            let last = &error.message;
            self.begin(format!("{count} calls in a row failed, the last: {last}"), true);
        }
    }

    async fn ask(&self) -> Result<(), String> {
        match tokio::time::timeout(self.questions.answer, self.engine.health()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.message),
            Err(_) => Err(format!("no answer within {} s", self.questions.answer.as_secs_f64())),
        }
    }

    /// `answers` says that the engine is there by its own word.
    fn begin(self: &Arc<Self>, reason: String, answers: bool) {
        let begun = self.outage.send_if_modified(|outage| {
            let begins = outage.is_none();
            if begins {
                let engine = &self.engine.info().url;
                tracing::error!(engine, reason, "the engine is away");
                *outage = Some(Outage { since: Timestamp::now(), reason });
            }
            begins
        });
        if begun && let Some(pool) = self.pool.upgrade() {
            pool.combine();
        }
        if begun && !self.is_asking.swap(true, Ordering::AcqRel) {
            // Ends with the outage, or with the gateway.
            let watch = Arc::downgrade(self);
            tokio::spawn(async move {
                let mut pause = if answers { TRIAL } else { FIRST_PAUSE };
                loop {
                    tokio::time::sleep(pause).await;
                    let Some(watch) = watch.upgrade() else { return };
                    if watch.ask().await.is_ok() {
                        return watch.end();
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE.max(pause));
                }
            });
        }
    }

    fn end(&self) {
        // One more failure is enough, until a call goes well.
        let mut failed = self.failed();
        failed.count = failed.count.min(FAILED_CALLS - 1);
        drop(failed);
        self.is_asking.store(false, Ordering::Release);
        tracing::warn!(engine = self.engine.info().url, "the engine is back");
        self.outage.send_replace(None);
        if let Some(pool) = self.pool.upgrade() {
            pool.combine();
        }
    }
}

/// Whether a failure says something of the engine, and not of what it was asked or of its load.
fn is_engines_fault(error: &EngineError) -> bool {
    error.class == ErrorClass::Unavailable && error.status.is_none_or(|status| status >= 500)
}

/// How one call waits for the engine.
pub(crate) struct Patience {
    left: Duration,
    /// When it first had to wait, and for how long in all.
    pub(crate) waited: Option<(Timestamp, Duration)>,
    /// What it waited for.
    pub(crate) outage: Option<Outage>,
}

impl Patience {
    pub(crate) fn of(left: Duration) -> Self {
        Self { left, waited: None, outage: None }
    }

    /// Whether a call may wait at all.
    pub(crate) fn is_over(&self) -> bool {
        self.left.is_zero()
    }

    /// Notes that a wait begins, should no engine take calls.
    pub(crate) fn begin(&mut self, engines: &EnginePool) -> bool {
        let outage = engines.outage();
        let waits = outage.is_some() && !self.is_over();
        if waits {
            self.waited.get_or_insert((Timestamp::now(), Duration::ZERO));
            self.outage = outage;
        }
        waits
    }

    /// Waits for an engine; the error is what the harness is told in the end.
    pub(crate) async fn wait(&mut self, engines: &EnginePool) -> Result<(), ApiError> {
        let begun = Instant::now();
        let came = tokio::time::timeout(self.left, engines.present()).await;
        let took = begun.elapsed();
        self.left = self.left.saturating_sub(took);
        if let Some((_, waited)) = &mut self.waited {
            *waited += took;
        }
        came.map_err(|_| {
            let outage = self.outage.as_ref().map(ToString::to_string).unwrap_or_default();
            let message = format!("inference engine: {outage}; the call waited for it in vain");
            ApiError::new(ErrorClass::Unavailable, message).retry_after(ASK_AGAIN)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_conversation_that_the_engine_cannot_bear_does_not_make_it_away() {
        let (one, other): (SessionId, SessionId) = ("a".parse().unwrap(), "b".parse().unwrap());
        let mut failed = FailedCalls::default();
        (0..100).for_each(|_| failed.add(&one));
        assert!(!failed.are_the_engines());
        failed.add(&other);
        assert!(failed.are_the_engines());
        let mut few = FailedCalls::default();
        few.add(&one);
        few.add(&other);
        assert!(!few.are_the_engines());
    }
}
