//! Wake-ups for readers that wait. A hint only: whoever wakes looks into the store.

use tokio::sync::watch;

/// Tells of new events, of new work, of cancelled sessions and of weights in this process.
#[derive(Debug)]
pub struct Signals {
    events: watch::Sender<u64>,
    work: watch::Sender<u64>,
    cancels: watch::Sender<u64>,
    weights: watch::Sender<u64>,
}

impl Signals {
    pub(crate) fn new(last_event: u64) -> Self {
        Self {
            events: watch::Sender::new(last_event),
            work: watch::Sender::new(0),
            cancels: watch::Sender::new(0),
            weights: watch::Sender::new(0),
        }
    }

    /// Changes whenever events were stored; holds the position of the last.
    pub fn events(&self) -> watch::Receiver<u64> {
        self.events.subscribe()
    }

    /// Changes whenever sessions were queued.
    pub fn work(&self) -> watch::Receiver<u64> {
        self.work.subscribe()
    }

    /// Changes whenever sessions that nodes hold were cancelled.
    pub fn cancels(&self) -> watch::Receiver<u64> {
        self.cancels.subscribe()
    }

    /// Changes whenever weights were pushed, or an engine is further with them.
    pub fn weights(&self) -> watch::Receiver<u64> {
        self.weights.subscribe()
    }

    /// Tells of what was stored. Called after the commit.
    pub(crate) fn tell(&self, stored: Stored) {
        if let Some(last) = stored.last_event {
            self.events.send_if_modified(|known| {
                let newer = last > *known;
                *known = last.max(*known);
                newer
            });
        }
        if stored.queued {
            self.work.send_modify(|times| *times += 1);
        }
        if stored.cancelled {
            self.cancels.send_modify(|times| *times += 1);
        }
        if stored.weights {
            self.weights.send_modify(|times| *times += 1);
        }
    }
}

/// What one or more writes stored.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stored {
    pub(crate) last_event: Option<u64>,
    pub(crate) queued: bool,
    /// Sessions that nodes hold.
    pub(crate) cancelled: bool,
    /// An update, or how far an engine is with it.
    pub(crate) weights: bool,
}

impl Stored {
    pub(crate) fn merge(&mut self, other: Self) {
        self.last_event = self.last_event.max(other.last_event);
        self.queued |= other.queued;
        self.cancelled |= other.cancelled;
        self.weights |= other.weights;
    }
}
