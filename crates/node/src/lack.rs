//! Whether the next session in turn is one that this node has no room for.
//!
//! The server says so, by what the node told of its room; asking again before there is more would
//! be answered the same. Owns what was told; it must not talk to the server.

use polar_types::{Footprint, LeaseResponse, NodeRoom};
use std::time::Duration;
use tokio::time::Instant;

/// How long a node waits for more room. Another one may have taken the session by then.
const LOOK: Duration = Duration::from_secs(10);

/// What the server knows of the node's room.
#[derive(Default)]
pub(crate) struct Lack {
    told: NodeRoom,
    /// Set while the next session does not fit: when to ask again in any case.
    until: Option<Instant>,
}

impl Lack {
    /// Work is asked for, with so much room.
    pub(crate) fn ask(&mut self, room: NodeRoom) {
        self.told = room;
    }

    pub(crate) fn answer(&mut self, answer: &LeaseResponse) {
        for lease in &answer.leases {
            self.told = self.told.with(Footprint::of(&lease.task.runtime));
        }
        self.until = answer.lacks_room.then(|| Instant::now() + LOOK);
    }

    /// Whether there is no use in asking, with so much room now.
    pub(crate) fn holds(&mut self, now: NodeRoom) -> bool {
        let is_more = now.free_memory_mb > self.told.free_memory_mb
            || now.free_storage_mb > self.told.free_storage_mb;
        if is_more {
            self.until = None;
        }
        self.until.is_some()
    }

    /// When it is over by itself.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Its time is over.
    pub(crate) fn end(&mut self) {
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(free: u64) -> NodeRoom {
        NodeRoom { memory_mb: Some(1000), free_memory_mb: Some(free), ..NodeRoom::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_asks_again_once_it_has_more_room_than_it_told_of() {
        let lacks = LeaseResponse { leases: Vec::new(), ttl_seconds: 60.0, lacks_room: true };
        let mut lack = Lack::default();
        assert!(!lack.holds(room(0)));
        lack.ask(room(300));
        lack.answer(&lacks);
        assert!(lack.holds(room(300)) && lack.holds(room(200)));
        assert!(!lack.holds(room(301)) && lack.until().is_none());
        lack.ask(room(301));
        lack.answer(&lacks);
        assert_eq!(lack.until(), Some(Instant::now() + LOOK));
        lack.answer(&LeaseResponse { lacks_room: false, ..lacks });
        assert!(!lack.holds(room(0)));
    }
}
