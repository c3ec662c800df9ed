//! One engine of the pool: how it is, how much it has to do, and whether it takes calls.

use super::EnginePool;
use crate::outage::{EngineWatch, Questions};
use polar_engine::Engine;
use polar_types::{EngineState, EngineStatus};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// An engine and its share of new sessions.
#[derive(Clone)]
pub struct WeightedEngine {
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// Its weight, above 0: with 2 it gets twice the sessions of an engine with 1.
    pub weight: f64,
}

impl From<Arc<dyn Engine>> for WeightedEngine {
    fn from(engine: Arc<dyn Engine>) -> Self {
        Self { engine, weight: 1.0 }
    }
}

/// An engine of the pool.
pub(crate) struct Member {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) watch: Arc<EngineWatch>,
    pool: Weak<EnginePool>,
    /// Bits of an `f64`.
    weight: AtomicU64,
    /// It was told to take no more calls.
    drains: AtomicBool,
    /// It goes when no call is under way there.
    leaves: AtomicBool,
    sessions: AtomicU32,
    in_flight: AtomicU32,
    calls: AtomicU64,
    moved_away: AtomicU64,
}

impl Member {
    pub(super) fn new(
        WeightedEngine { engine, weight }: WeightedEngine,
        questions: Questions,
        pool: Weak<EnginePool>,
    ) -> Arc<Self> {
        let watch = EngineWatch::new(Arc::clone(&engine), questions, Weak::clone(&pool));
        Arc::new(Self {
            engine,
            watch,
            pool,
            weight: AtomicU64::new(weight.to_bits()),
            drains: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            sessions: AtomicU32::new(0),
            in_flight: AtomicU32::new(0),
            calls: AtomicU64::new(0),
            moved_away: AtomicU64::new(0),
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.engine.info().url
    }

    /// Whether calls may go there.
    pub(crate) fn takes_calls(&self) -> bool {
        !self.drains() && !self.watch.is_away()
    }

    /// Whether calls wait there for new weights, which has an end.
    pub(crate) fn is_held(&self) -> bool {
        self.engine.weights().is_some_and(|weights| weights.is_held())
    }

    pub(super) fn drains(&self) -> bool {
        self.drains.load(Ordering::Acquire)
    }

    pub(super) fn set_drains(&self, drains: bool) {
        self.drains.store(drains, Ordering::Release);
    }

    pub(super) fn leave(&self) {
        self.drains.store(true, Ordering::Release);
        self.leaves.store(true, Ordering::Release);
    }

    /// Whether it has left, with nothing more to end there.
    pub(super) fn is_gone(&self) -> bool {
        self.leaves.load(Ordering::Acquire) && self.in_flight.load(Ordering::Acquire) == 0
    }

    pub(super) fn weight(&self) -> f64 {
        f64::from_bits(self.weight.load(Ordering::Relaxed))
    }

    pub(super) fn set_weight(&self, weight: f64) {
        self.weight.store(weight.to_bits(), Ordering::Relaxed);
    }

    /// What it would have to do with one session more, by its weight: sessions, and between equals
    /// calls under way.
    pub(super) fn load(&self) -> (f64, f64) {
        let sessions = f64::from(self.sessions.load(Ordering::Relaxed)) + 1.0;
        let calls = f64::from(self.in_flight.load(Ordering::Relaxed));
        (sessions / self.weight(), calls / self.weight())
    }

    /// Counts a call as under way until what comes back is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> UnderWay {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        UnderWay(Arc::clone(self))
    }

    /// It has begun to answer a call.
    pub(crate) fn note_success(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.watch.note_success();
    }

    pub(super) fn note_moved(&self) {
        self.moved_away.fetch_add(1, Ordering::Relaxed);
    }

    /// Why a session goes elsewhere from here.
    pub(super) fn why_left(&self) -> String {
        match self.watch.outage() {
            Some(outage) => outage.reason,
            None if self.drains() => "it is drained".to_owned(),
            None => "it is being given new weights".to_owned(),
        }
    }

    pub(super) fn status(&self) -> EngineStatus {
        let info = self.engine.info();
        let weights = self.engine.weights();
        let fence = weights.and_then(|weights| weights.fence());
        let outage = self.watch.outage();
        let (state, reason) = match (self.drains(), fence, outage) {
            (_, Some(reason), _) => (EngineState::Fenced, Some(reason)),
            (_, None, Some(outage)) => (EngineState::Down, Some(outage.reason)),
            (true, None, None) => (EngineState::Draining, None),
            (false, None, None) => (EngineState::Ready, None),
        };
        EngineStatus {
            engine: info.url.clone(),
            kind: info.kind.name().to_owned(),
            state,
            reason,
            weight: self.weight(),
            sessions: self.sessions.load(Ordering::Relaxed),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
            errors: self.watch.errors(),
            moved_away: self.moved_away.load(Ordering::Relaxed),
            weight_version: match weights {
                Some(weights) => weights.told().borrow().engine.version.clone(),
                None => info.weight_version.clone(),
            },
        }
    }
}

/// A call that is under way at an engine.
pub(crate) struct UnderWay(Arc<Member>);

impl UnderWay {
    /// Where it is.
    pub(crate) fn member(&self) -> &Member {
        &self.0
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
        if self.0.is_gone()
            && let Some(pool) = self.0.pool.upgrade()
        {
            pool.forget_gone();
        }
    }
}

/// A session's place at an engine.
pub(super) struct Seat(pub(super) Arc<Member>);

impl Seat {
    pub(super) fn at(member: &Arc<Member>) -> Self {
        member.sessions.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(member))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Ordering::Relaxed);
    }
}
