//! The engines behind one gateway, and which session is at which.
//!
//! Owns the word on which engines there are and which take calls. A session stays at the engine
//! that holds its prefix, with all its calls, sub-agents' among them; a new one goes to the engine
//! with the least to do for its weight. Whether one engine is away says its watch
//! ([`crate::outage`]), and whether its weights are the right ones its gate
//! ([`polar_engine::Weights`]); nothing of that is kept here a second time.
//!
//! Invariants:
//! - All engines serve the same model, by the same tokenizer and template.
//! - The pool is away when no engine takes calls, and only then do calls wait and sessions with
//!   them.
//! - There is always an engine that is not drained.

mod agreement;
mod member;

pub use agreement::Disagreement;
pub use member::WeightedEngine;

pub(crate) use member::{Member, UnderWay};

use crate::outage::{Outage, Questions};
use crate::session::lock;
use futures_util::future::join_all;
use jiff::Timestamp;
use member::Seat;
use polar_engine::{Engine, EngineInfo};
use polar_types::{EngineStatus, engine_weight_problem};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio::sync::watch;

/// Why the engines cannot be used as they are, or are not changed as was asked.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// There is none.
    #[error("a gateway needs an engine")]
    Empty,
    /// Its weight is none.
    #[error("{url}: {problem}")]
    Weight {
        /// The engine.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// It is there already.
    #[error("the engine {0} is there already; give each engine once, with a weight for more calls")]
    Twice(String),
    /// It is not the same as the others.
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
    /// It is not there.
    #[error("there is no engine {url} here; there are: {there}")]
    Unknown {
        /// What was asked for.
        url: String,
        /// Those that there are.
        there: String,
    },
    /// No other takes calls.
    #[error("{0} is the only engine that takes calls; add another one first, or wait for one")]
    Last(String),
}

/// The engines of a gateway.
pub struct EnginePool {
    /// What the first of them is, for all.
    info: EngineInfo,
    /// The first of all. Its renderer makes the prompts of all, which is the same.
    founder: Arc<dyn Engine>,
    members: RwLock<Arc<[Arc<Member>]>>,
    questions: Questions,
    /// Set where no engine takes calls.
    outage: watch::Sender<Option<Outage>>,
    /// Counts changes of which engines there are.
    changes: watch::Sender<u64>,
    /// There was more than one at a time.
    is_many: AtomicBool,
    /// Held while a session is given a place, so that those that come together are spread, and
    /// while engines come and go.
    placing: Mutex<()>,
}

/// Where a session's calls go.
#[derive(Default)]
pub(crate) struct Place(Mutex<Option<Seat>>);

/// An engine for a call, and where its session was before.
pub(crate) struct Placed {
    pub(crate) member: Arc<Member>,
    /// Set where the session has just moved.
    pub(crate) left: Option<Left>,
}

/// What a session has left.
pub(crate) struct Left {
    pub(crate) url: String,
    pub(crate) why: String,
}

impl EnginePool {
    /// Engines that are asked every so often whether they are there.
    pub(crate) fn new(
        engines: Vec<WeightedEngine>,
        questions: Questions,
    ) -> Result<Arc<Self>, PoolError> {
        let founder = Arc::clone(&engines.first().ok_or(PoolError::Empty)?.engine);
        let is_many = engines.len() > 1;
        let pool = Arc::new_cyclic(|pool| Self {
            info: founder.info().clone(),
            founder,
            members: RwLock::new(
                engines.into_iter().map(|one| Member::new(one, questions, pool.clone())).collect(),
            ),
            questions,
            outage: watch::Sender::new(None),
            changes: watch::Sender::new(0),
            is_many: AtomicBool::new(is_many),
            placing: Mutex::default(),
        });
        let members = pool.members();
        for (index, member) in members.iter().enumerate() {
            pool.check(&member.engine, member.weight(), &members[..index])?;
        }
        Ok(pool)
    }

    /// The same for one engine, which agrees with itself.
    pub(crate) fn of_one(engine: Arc<dyn Engine>, questions: Questions) -> Arc<Self> {
        Arc::new_cyclic(|pool| Self {
            info: engine.info().clone(),
            founder: Arc::clone(&engine),
            members: RwLock::new(Arc::new([Member::new(engine.into(), questions, pool.clone())])),
            questions,
            outage: watch::Sender::new(None),
            changes: watch::Sender::new(0),
            is_many: AtomicBool::new(false),
            placing: Mutex::default(),
        })
    }

    /// What all of them are, as the probe described the first.
    pub fn info(&self) -> &EngineInfo {
        &self.info
    }

    /// An engine for a question that leaves nothing behind.
    pub fn any(&self) -> Arc<dyn Engine> {
        let members = self.members();
        let found = members.iter().find(|member| member.takes_calls()).or(members.first());
        Arc::clone(found.map_or(&self.founder, |member| &member.engine))
    }

    /// Whose renderer makes prompts.
    pub(crate) fn founder(&self) -> &dyn Engine {
        self.founder.as_ref()
    }

    /// Whether a call has to say which engine it was at.
    pub(crate) fn is_many(&self) -> bool {
        self.is_many.load(Ordering::Relaxed)
    }

    /// All engines, in the order in which they came.
    pub fn engines(&self) -> Vec<Arc<dyn Engine>> {
        self.members().iter().map(|member| Arc::clone(&member.engine)).collect()
    }

    /// How each engine is.
    pub fn status(&self) -> Vec<EngineStatus> {
        self.members().iter().map(|member| member.status()).collect()
    }

    /// Calls that engines failed since the start, those that were held or went elsewhere and went
    /// well later among them.
    pub fn errors(&self) -> u64 {
        self.members().iter().map(|member| member.watch.errors()).sum()
    }

    /// Tells when the last engine goes away and when one is back.
    pub fn subscribe(&self) -> watch::Receiver<Option<Outage>> {
        self.outage.subscribe()
    }

    /// The outage of all engines there is now.
    pub fn outage(&self) -> Option<Outage> {
        self.outage.borrow().clone()
    }

    /// Returns when an engine takes calls.
    pub async fn present(&self) {
        // The sender is this pool's own, so that this never fails.
        let _ = self.outage.subscribe().wait_for(Option::is_none).await;
    }

    /// Tells when engines come and go.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Asks each engine regularly whether it is there, so that its loss is known before a session
    /// begins. Runs until it is dropped.
    pub async fn ask_regularly(self: Arc<Self>) -> Infallible {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let members = self.members();
            let asking = members.iter().map(|member| Arc::clone(&member.watch).ask_regularly());
            tokio::select! {
                _ = join_all(asking) => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// Asks one engine now, since there is reason to believe that it serves no calls.
    pub async fn look(&self, url: &str) {
        let found = self.members().iter().find(|member| member.url() == url).cloned();
        if let Some(member) = found {
            member.watch.look().await;
        }
    }

    fn members(&self) -> Arc<[Arc<Member>]> {
        Arc::clone(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where a session's next call goes. Its own engine as long as that takes calls, else the one
    /// with the least to do; where none takes any, the one that it was at.
    pub(crate) fn place(&self, place: &Place) -> Option<Placed> {
        let mut seat = lock(&place.0);
        let own = seat.as_ref().map(|Seat(member)| Arc::clone(member));
        match own {
            Some(member) if member.takes_calls() => Some(Placed { member, left: None }),
            own => self.seat_anew(&mut seat, own),
        }
    }

    /// Leaves an engine that takes calls, but not now, for another that does.
    pub(crate) fn move_on(&self, place: &Place) -> Option<Placed> {
        let mut seat = lock(&place.0);
        let own = seat.as_ref().map(|Seat(member)| Arc::clone(member));
        self.seat_anew(&mut seat, own)
    }

    fn seat_anew(&self, seat: &mut Option<Seat>, own: Option<Arc<Member>>) -> Option<Placed> {
        let _placing = lock(&self.placing);
        let members = self.members();
        // One that is given new weights comes last: nothing would begin there now.
        let by_load = |a: &&Arc<Member>, b: &&Arc<Member>| {
            let ((sessions, calls), (others, other_calls)) = (a.load(), b.load());
            let by_weight = sessions.total_cmp(&others).then(calls.total_cmp(&other_calls));
            a.is_held().cmp(&b.is_held()).then(by_weight)
        };
        let best = members.iter().filter(|member| member.takes_calls()).min_by(by_load);
        let Some(member) = best.cloned() else {
            let member = own.or_else(|| members.first().cloned())?;
            return Some(Placed { member, left: None });
        };
        *seat = Some(Seat::at(&member));
        let left = own.filter(|own| !Arc::ptr_eq(own, &member)).map(|own| {
            own.note_moved();
            let left = Left { url: own.url().to_owned(), why: own.why_left() };
            tracing::info!(from = left.url, to = member.url(), why = left.why, "a session moves");
            left
        });
        Some(Placed { member, left })
    }

    /// A session is over.
    pub(crate) fn give_up(place: &Place) {
        drop(lock(&place.0).take());
    }

    /// Whether another engine than this one takes calls at once.
    pub(crate) fn has_other(&self, than: &Arc<Member>) -> bool {
        let is_free = |member: &Arc<Member>| {
            !Arc::ptr_eq(member, than) && member.takes_calls() && !member.is_held()
        };
        self.members().iter().any(is_free)
    }

    /// Returns when this engine takes no calls any more and another one does.
    pub(crate) async fn is_replaced(&self, member: &Member) {
        loop {
            member.watch.away().await;
            self.present().await;
            if member.watch.is_away() {
                return;
            }
        }
    }

    /// Another engine, which takes calls from now on.
    pub fn add(self: &Arc<Self>, one: WeightedEngine) -> Result<(), PoolError> {
        let placing = lock(&self.placing);
        let members = self.members();
        self.check(&one.engine, one.weight, &members)?;
        let member = Member::new(one, self.questions, Arc::downgrade(self));
        tracing::info!(engine = member.url(), "an engine was added");
        let more: Arc<[_]> = members.iter().cloned().chain([member]).collect();
        self.is_many.store(true, Ordering::Relaxed);
        self.have(more);
        drop(placing);
        self.combine();
        Ok(())
    }

    /// Whether an engine could be added.
    pub fn check_new(&self, engine: &Arc<dyn Engine>, weight: f64) -> Result<(), PoolError> {
        self.check(engine, weight, &self.members())
    }

    fn check(
        &self,
        engine: &Arc<dyn Engine>,
        weight: f64,
        beside: &[Arc<Member>],
    ) -> Result<(), PoolError> {
        let url = &engine.info().url;
        if let Some(problem) = engine_weight_problem(weight) {
            return Err(PoolError::Weight { url: url.clone(), problem });
        }
        if beside.iter().any(|member| member.url() == url) {
            return Err(PoolError::Twice(url.clone()));
        }
        Ok(agreement::check(self.founder.as_ref(), engine.as_ref())?)
    }

    /// Lets an engine take no more calls. Those under way end there, and its sessions go elsewhere
    /// with their next call.
    pub fn drain(&self, url: &str) -> Result<(), PoolError> {
        self.end_with(url, |member| member.set_drains(true))
    }

    /// Drains an engine, which goes once nothing is under way there.
    pub fn remove(&self, url: &str) -> Result<(), PoolError> {
        self.end_with(url, Member::leave)?;
        self.forget_gone();
        Ok(())
    }

    /// Lets a drained engine take calls again.
    pub fn resume(&self, url: &str) -> Result<(), PoolError> {
        self.find(url)?.set_drains(false);
        self.combine();
        Ok(())
    }

    /// Gives an engine another share of new sessions. Sessions stay where they are.
    pub fn set_weight(&self, url: &str, weight: f64) -> Result<(), PoolError> {
        if let Some(problem) = engine_weight_problem(weight) {
            return Err(PoolError::Weight { url: url.to_owned(), problem });
        }
        self.find(url)?.set_weight(weight);
        Ok(())
    }

    fn find(&self, url: &str) -> Result<Arc<Member>, PoolError> {
        let members = self.members();
        let found = members.iter().find(|member| member.url() == url).cloned();
        found.ok_or_else(|| {
            let there: Vec<&str> = members.iter().map(|member| member.url()).collect();
            PoolError::Unknown { url: url.to_owned(), there: there.join(", ") }
        })
    }

    fn end_with(&self, url: &str, end: impl FnOnce(&Member)) -> Result<(), PoolError> {
        let placing = lock(&self.placing);
        let member = self.find(url)?;
        let takes_calls = |other: &Arc<Member>| !Arc::ptr_eq(other, &member) && other.takes_calls();
        if !self.members().iter().any(takes_calls) {
            return Err(PoolError::Last(url.to_owned()));
        }
        end(&member);
        drop(placing);
        self.combine();
        Ok(())
    }

    /// Takes out what has left.
    fn forget_gone(&self) {
        let placing = lock(&self.placing);
        let members = self.members();
        if members.iter().any(|member| member.is_gone()) {
            for member in members.iter().filter(|member| member.is_gone()) {
                tracing::info!(engine = member.url(), "an engine has left");
            }
            self.have(members.iter().filter(|member| !member.is_gone()).cloned().collect());
        }
        drop(placing);
        self.combine();
    }

    fn have(&self, members: Arc<[Arc<Member>]>) {
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = members;
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Says whether the pool as a whole is away. Called after each change of an engine's state.
    pub(crate) fn combine(&self) {
        // One after the other, so that the last to look has the word.
        let _placing = lock(&self.placing);
        let members = self.members();
        if members.iter().any(|member| member.takes_calls()) {
            self.outage.send_if_modified(|outage| outage.take().is_some());
            return;
        }
        let now = match &members[..] {
            [only] => only.watch.outage(),
            _ => Some(all_away(&members)),
        };
        self.outage.send_if_modified(|outage| {
            let begins = outage.is_none();
            if begins {
                outage.clone_from(&now);
            }
            begins
        });
    }
}

fn all_away(members: &[Arc<Member>]) -> Outage {
    let each: Vec<String> =
        members.iter().map(|member| format!("{}: {}", member.url(), member.why_left())).collect();
    let reason = format!("none of {} engines takes calls: {}", members.len(), each.join("; "));
    Outage { since: Timestamp::now(), reason }
}
