//! What lets calls to the engine begin, and knows which are under way.
//!
//! Owns the word on whether calls may begin, the version that those beginning now are sampled by,
//! and the counts of an update. It asks the engine nothing.

use crate::EngineError;
use polar_types::{ErrorClass, UpdateCalls};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Whether calls may begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Admission {
    /// They may.
    Open,
    /// They wait: weights are changed, which has an end.
    Held,
    /// They fail, for this reason.
    Fenced(String),
}

#[derive(Debug)]
pub(super) struct Gate {
    admission: watch::Sender<Admission>,
    state: Mutex<State>,
    /// Told when a call has ended.
    ended: Notify,
    /// Told when something was seen that does not fit the version.
    suspected: Notify,
}

#[derive(Debug, Default)]
struct State {
    calls: HashMap<u64, Call>,
    next: u64,
    /// How often the weights were changed.
    switches: u64,
    /// What those of the last switch are called; none before the first.
    version: Option<String>,
    /// How often a change failed half-way, behind which nobody knows what samples.
    doubts: u64,
    /// The last change of weights broke off: what the engine calls them is none of their names.
    is_half_loaded: bool,
    counted: UpdateCalls,
}

#[derive(Debug)]
struct Call {
    request_id: String,
    /// It can be sampled on behind its ids.
    goes_on: bool,
    aborted: Arc<AtomicBool>,
}

impl Gate {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            admission: watch::Sender::new(Admission::Open),
            state: Mutex::default(),
            ended: Notify::new(),
            suspected: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a call may begin, and counts it as under way until what comes back is dropped.
    pub(super) async fn admit(
        self: &Arc<Self>,
        request_id: &str,
        goes_on: bool,
    ) -> Result<Ticket, EngineError> {
        let mut admission = self.admission.subscribe();
        let mut was_held = false;
        loop {
            let seen = admission.borrow_and_update().clone();
            match seen {
                Admission::Open => {
                    if let Some(ticket) = self.enter(request_id, goes_on) {
                        return Ok(ticket);
                    }
                }
                Admission::Fenced(reason) => return Err(fenced(&reason)),
                Admission::Held => {
                    if !was_held {
                        was_held = true;
                        self.state().counted.held += 1;
                    }
                }
            }
            // The sender is in `self`, so that this never fails.
            let _ = admission.changed().await;
        }
    }

    /// Under the lock that closing takes, so that no call slips in behind it.
    fn enter(self: &Arc<Self>, request_id: &str, goes_on: bool) -> Option<Ticket> {
        let mut state = self.state();
        if *self.admission.borrow() != Admission::Open {
            return None;
        }
        let key = state.next;
        state.next += 1;
        let aborted = Arc::new(AtomicBool::new(false));
        let request_id = request_id.to_owned();
        state.calls.insert(key, Call { request_id, goes_on, aborted: aborted.clone() });
        let (switches, version, doubts) = (state.switches, state.version.clone(), state.doubts);
        Some(Ticket { gate: Arc::clone(self), key, aborted, switches, version, doubts })
    }

    /// Lets no call begin any more, and counts anew.
    pub(super) fn hold(&self) {
        let mut state = self.state();
        // One that is fenced stays so until it has what it is to have.
        self.admission.send_if_modified(|admission| {
            let opens = *admission == Admission::Open;
            if opens {
                *admission = Admission::Held;
            }
            opens
        });
        let in_flight = state.calls.len() as u64;
        state.counted = UpdateCalls { in_flight, ..UpdateCalls::default() };
    }

    /// From now on calls are sampled by these weights.
    pub(super) fn switched(&self, version: &str) {
        let mut state = self.state();
        state.switches += 1;
        state.version = Some(version.to_owned());
        state.is_half_loaded = false;
    }

    /// A change failed half-way: what goes on is sampled by nobody knows which weights. `is_load`
    /// says that weights were moved, and not only their name.
    pub(super) fn doubt(&self, is_load: bool) {
        let mut state = self.state();
        state.doubts += 1;
        state.is_half_loaded |= is_load;
    }

    /// Whether the last change of weights broke off, and none has come through since.
    pub(super) fn is_half_loaded(&self) -> bool {
        self.state().is_half_loaded
    }

    /// Notes what the engine calls its weights: others than the gate knows are another's doing, as
    /// behind a restart. None where nobody has named them.
    pub(super) fn found(&self, version: Option<&str>) {
        let mut state = self.state();
        if state.version.is_some() && state.version.as_deref() != version {
            state.switches += 1;
            state.version = version.map(str::to_owned);
        }
    }

    /// Calls that begin now are sampled by this version, whoever put it in.
    pub(super) fn has(&self, version: &str) {
        if !self.serves(version) {
            self.switched(version);
        }
    }

    /// Calls may begin.
    pub(super) fn open(&self) {
        let _state = self.state();
        self.admission.send_replace(Admission::Open);
    }

    /// Calls fail, until it is opened.
    pub(super) fn fence(&self, reason: &str) {
        let _state = self.state();
        self.admission.send_replace(Admission::Fenced(reason.to_owned()));
    }

    pub(super) fn fence_reason(&self) -> Option<String> {
        match &*self.admission.borrow() {
            Admission::Fenced(reason) => Some(reason.clone()),
            Admission::Open | Admission::Held => None,
        }
    }

    pub(super) fn is_held(&self) -> bool {
        *self.admission.borrow() == Admission::Held
    }

    /// Returns when no call is held.
    pub(super) async fn released(&self) {
        // The sender is in `self`, so that this never fails.
        let mut admission = self.admission.subscribe();
        let _ = admission.wait_for(|admission| *admission != Admission::Held).await;
    }

    /// Waits until calls may begin again, at most until then; false when they may not.
    pub(super) async fn opened(&self, until: Instant) -> bool {
        let mut admission = self.admission.subscribe();
        let open = admission.wait_for(|admission| *admission == Admission::Open);
        tokio::time::timeout_at(until, open).await.is_ok()
    }

    /// Returns when nothing is under way; false when that is not by then.
    pub(super) async fn idle(&self, until: Instant) -> bool {
        let idle = async {
            loop {
                let ended = self.ended.notified();
                if self.state().calls.is_empty() {
                    return;
                }
                ended.await;
            }
        };
        tokio::time::timeout_at(until, idle).await.is_ok()
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.state().calls.len() as u64
    }

    /// Names of the calls that can be sampled on behind their ids and are under way, which are
    /// marked as ended for that.
    pub(super) fn mark_aborted(&self) -> Vec<String> {
        let state = self.state();
        let going_on = state.calls.values().filter(|call| call.goes_on);
        going_on
            .map(|call| {
                call.aborted.store(true, Ordering::Release);
                call.request_id.clone()
            })
            .collect()
    }

    /// Returns when a call ends, or at that time.
    pub(super) async fn next_end(&self, until: Instant) {
        let _ = tokio::time::timeout_at(until, self.ended.notified()).await;
    }

    pub(super) fn counted(&self) -> UpdateCalls {
        self.state().counted
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut UpdateCalls)) {
        count(&mut self.state().counted);
    }

    /// Something does not fit the version: it is looked at.
    pub(super) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Whether calls that begin now are sampled by this version.
    pub(super) fn serves(&self, version: &str) -> bool {
        self.state().version.as_deref() == Some(version)
    }

    /// Whether a call is under way that can be sampled on behind its ids.
    pub(super) fn any_goes_on(&self) -> bool {
        self.state().calls.values().any(|call| call.goes_on)
    }

    pub(super) async fn suspected(&self) {
        self.suspected.notified().await;
    }
}

fn fenced(reason: &str) -> EngineError {
    EngineError::new(ErrorClass::Unavailable, reason)
}

/// A call that is under way.
#[derive(Debug)]
pub(super) struct Ticket {
    gate: Arc<Gate>,
    key: u64,
    aborted: Arc<AtomicBool>,
    switches: u64,
    version: Option<String>,
    doubts: u64,
}

impl Ticket {
    /// Whether a change failed half-way under it: a load may still end, or have ended in part.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.gate.state().doubts != self.doubts
    }

    /// Whether it was ended in the engine to be sampled on.
    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// The version of all that was sampled under it, where there was no switch since.
    pub(super) fn only_version(&self) -> Option<String> {
        let is_only = self.gate.state().switches == self.switches;
        self.version.clone().filter(|_| is_only)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.gate.state().calls.remove(&self.key);
        self.gate.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::poll;
    use std::pin::pin;

    #[tokio::test]
    async fn no_call_begins_while_it_is_held_and_none_fails() {
        let gate = Gate::new();
        let ticket = gate.admit("a", true).await.unwrap();
        gate.hold();
        let mut other = pin!(gate.admit("b", false));
        assert!(poll!(&mut other).is_pending());
        assert_eq!((gate.counted().in_flight, gate.counted().held), (1, 1));
        assert_eq!(gate.mark_aborted(), ["a"]);
        assert!(ticket.is_aborted());
        gate.switched("2");
        assert_eq!(ticket.only_version(), None);
        drop(ticket);
        assert!(gate.idle(Instant::now()).await);
        gate.open();
        let ticket = other.await.unwrap();
        assert_eq!(ticket.only_version().as_deref(), Some("2"));
        assert!(!ticket.is_aborted());
    }

    #[tokio::test]
    async fn promise_3_what_is_found_under_another_name_is_not_told_by_the_one_before() {
        let gate = Gate::new();
        gate.switched("16");
        let before = gate.admit("a", false).await.unwrap();
        assert_eq!(before.only_version().as_deref(), Some("16"));
        gate.found(Some("16"));
        assert_eq!(before.only_version().as_deref(), Some("16"));
        gate.found(None);
        assert_eq!(before.only_version(), None);
        assert_eq!(gate.admit("b", false).await.unwrap().only_version(), None);
    }

    #[tokio::test]
    async fn a_fence_turns_calls_away_until_it_is_opened() {
        let gate = Gate::new();
        gate.fence("it hangs");
        assert_eq!(gate.admit("a", true).await.unwrap_err().message, "it hangs");
        // What mends it holds nothing up that would have failed.
        gate.hold();
        assert_eq!(gate.fence_reason().as_deref(), Some("it hangs"));
        gate.open();
        assert!(gate.admit("a", true).await.is_ok());
    }
}
