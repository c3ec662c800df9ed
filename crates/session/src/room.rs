//! Memory and disk of the node, given to the sessions whose sandboxes ask for some.
//!
//! Sessions get room in the order in which they came, and none overtakes one that waits: a
//! large one gets its turn however many small ones come after it. A session keeps its room
//! until its sandboxes are gone, and has it once: by the time its work is graded in a second
//! one, its agent has ended. What stands by for later takes only what no session waits for
//! (a grader's sandbox that is made ahead), or makes way (those that are kept warm).
//!
//! Owns the counts; it must not look at what a sandbox really uses, which may grow later.

use crate::failure::Stop;
use polar_types::{ErrorClass, Footprint, NodeRoom, RuntimeSpec, Side};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Room on a disk comes and goes without a word; who waits for some looks again after so long.
const LOOK: Duration = Duration::from_secs(5);

/// Says how many MiB of a disk are free, and how many there are; nothing where that is not known.
pub type DiskRoom = Arc<dyn Fn() -> Option<(u64, u64)> + Send + Sync>;

/// What all sandboxes of a node together may take. What is absent is not limited.
#[derive(Clone, Default)]
pub struct RoomLimits {
    /// Memory, in MiB.
    pub memory_mb: Option<u64>,
    /// Disk, beside what is to stay free of it.
    pub disk: Option<DiskRoom>,
}

/// The node's room. Cheap to clone; clones share it.
#[derive(Clone)]
pub(crate) struct Room {
    limits: RoomLimits,
    taken: Arc<watch::Sender<Taken>>,
}

/// Who has what.
#[derive(Debug, Default)]
struct Taken {
    /// What sessions have, and graders' sandboxes that stand by.
    claimed: Footprint,
    /// What is kept warm.
    warm: Footprint,
    /// Sessions that wait, by age.
    waiting: VecDeque<(u64, Footprint)>,
    next: u64,
}

/// A session's room: asked for when this is made, given back when it is dropped.
pub struct Reservation {
    room: Room,
    footprint: Footprint,
    /// While it waits.
    ticket: Option<u64>,
}

/// Room of a sandbox that stands by, given back when dropped.
pub(crate) struct StandBy {
    room: Room,
    footprint: Footprint,
    is_warm: bool,
}

impl Room {
    pub(crate) fn new(limits: RoomLimits) -> Self {
        Self { limits, taken: Arc::new(watch::Sender::default()) }
    }

    /// Stands in line for a session's sandboxes, behind all that came before.
    pub(crate) fn reserve(&self, runtime: &RuntimeSpec) -> Reservation {
        let footprint = Footprint::of(runtime);
        let mut ticket = None;
        self.taken.send_modify(|taken| {
            if !footprint.is_nothing() {
                taken.next += 1;
                taken.waiting.push_back((taken.next, footprint));
                ticket = Some(taken.next);
            }
        });
        Reservation { room: self.clone(), footprint, ticket }
    }

    /// Room for a grader's sandbox that is made ahead, once there is some that no session waits
    /// for.
    pub(crate) async fn spare(&self, footprint: Footprint) -> StandBy {
        let mut changes = self.taken.subscribe();
        loop {
            changes.mark_unchanged();
            if let Some(room) = self.stand_by(footprint, false) {
                return room;
            }
            self.changed(&mut changes).await;
        }
    }

    /// Room for a sandbox that is kept warm, if there is some that nobody waits for.
    pub(crate) fn keep_warm(&self, footprint: Footprint) -> Option<StandBy> {
        self.stand_by(footprint, true)
    }

    /// Whether sandboxes that are kept warm are in the way of sessions.
    pub(crate) fn is_over(&self) -> bool {
        let taken = self.taken.borrow();
        !taken.warm.is_nothing() && !self.left(&taken).fits(taken.warm)
    }

    /// What there is, and what of it no session has or waits for. Sandboxes that are kept warm
    /// make way, so that they take nothing here.
    pub(crate) fn now(&self) -> NodeRoom {
        let taken = self.taken.borrow();
        let waiting = taken.waiting.iter().map(|(_, footprint)| *footprint);
        self.left(&taken).with(waiting.fold(Footprint::default(), Footprint::and))
    }

    /// Tells of changes.
    pub(crate) fn changes(&self) -> RoomChanges {
        RoomChanges(self.taken.subscribe())
    }

    /// What no session has.
    fn left(&self, taken: &Taken) -> NodeRoom {
        let disk = self.limits.disk.as_ref().and_then(|disk| disk());
        let all = NodeRoom {
            memory_mb: self.limits.memory_mb,
            free_memory_mb: self.limits.memory_mb,
            storage_mb: disk.map(|(_, all)| all),
            free_storage_mb: disk.map(|(free, _)| free),
        };
        all.with(taken.claimed)
    }

    fn stand_by(&self, footprint: Footprint, is_warm: bool) -> Option<StandBy> {
        let mut fits = false;
        self.taken.send_if_modified(|taken| {
            let nobody_waits = taken.waiting.is_empty() || footprint.is_nothing();
            fits = nobody_waits && self.left(taken).fits(footprint.and(taken.warm));
            let counted = if is_warm { &mut taken.warm } else { &mut taken.claimed };
            if fits {
                *counted = counted.and(footprint);
            }
            // There is less than before, which nobody waits for.
            false
        });
        fits.then(|| StandBy { room: self.clone(), footprint, is_warm })
    }

    async fn changed(&self, changes: &mut watch::Receiver<Taken>) {
        // The sender lives as long as this.
        let _ = tokio::time::timeout(LOOK, changes.changed()).await;
    }
}

/// Tells of changes of a node's room.
pub struct RoomChanges(watch::Receiver<Taken>);

impl RoomChanges {
    /// Returns when there may be more room than when this last returned.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Reservation {
    /// Waits until the room is there; `tell` is told what is lacking.
    pub(crate) async fn granted(&mut self, tell: impl Fn(&str)) -> Result<(), Stop> {
        let mut changes = self.room.taken.subscribe();
        loop {
            changes.mark_unchanged();
            let Some(lacks) = self.take() else { return Ok(()) };
            lacks.map(|lacks| tell(&lacks))?;
            self.room.changed(&mut changes).await;
        }
    }

    /// Takes the room; where it cannot, what is waited for, or why it will never be.
    fn take(&mut self) -> Option<Result<String, Stop>> {
        let ticket = self.ticket?;
        let mut lacks = None;
        self.room.taken.send_if_modified(|taken| {
            let left = self.room.left(taken);
            if let Some((field, why)) = left.why_never(self.footprint) {
                lacks = Some(Err(never(field, &why)));
            } else if taken.waiting.front().is_some_and(|(first, _)| *first != ticket) {
                lacks = Some(Ok("its turn for room on the node, behind others".to_owned()));
            } else if let Some(why) = left.why_not_now(self.footprint) {
                lacks = Some(Ok(format!("room on the node: {why}")));
            } else {
                taken.waiting.retain(|(other, _)| *other != ticket);
                taken.claimed = taken.claimed.and(self.footprint);
            }
            // The next one is first now.
            lacks.is_none()
        });
        if lacks.is_none() {
            self.ticket = None;
        }
        lacks
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.footprint.is_nothing() {
            return;
        }
        self.room.taken.send_modify(|taken| match self.ticket {
            Some(ticket) => taken.waiting.retain(|(other, _)| *other != ticket),
            None => taken.claimed = taken.claimed.without(self.footprint),
        });
    }
}

impl StandBy {
    pub(crate) fn is_nothing(&self) -> bool {
        self.footprint.is_nothing()
    }
}

impl Drop for StandBy {
    fn drop(&mut self) {
        if self.footprint.is_nothing() {
            return;
        }
        self.room.taken.send_modify(|taken| {
            let counted = if self.is_warm { &mut taken.warm } else { &mut taken.claimed };
            *counted = counted.without(self.footprint);
        });
    }
}

fn never(field: &str, why: &str) -> Stop {
    let message = format!("the sandbox could not be made: runtime.{field}: {why}");
    Stop::failed(Side::Sandbox, ErrorClass::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polar_types::RuntimeKind;
    use std::sync::Mutex;
    use tokio::task::JoinHandle;

    fn room(memory_mb: u64) -> Room {
        Room::new(RoomLimits { memory_mb: Some(memory_mb), disk: None })
    }

    fn runtime(memory_mb: u64, storage_mb: u64) -> RuntimeSpec {
        let some = |mb| (mb > 0).then_some(mb);
        let kind = RuntimeSpec::of_kind(RuntimeKind::Local);
        RuntimeSpec { memory_mb: some(memory_mb), storage_mb: some(storage_mb), ..kind }
    }

    fn memory(memory_mb: u64) -> Footprint {
        Footprint { memory_mb, ..Footprint::default() }
    }

    /// A session that waits for its room, and what it said last.
    struct Waiting {
        work: JoinHandle<Reservation>,
        said: Arc<Mutex<String>>,
    }

    impl Waiting {
        fn of(room: &Room, runtime: &RuntimeSpec) -> Self {
            let mut reservation = room.reserve(runtime);
            let said = Arc::new(Mutex::new(String::new()));
            let heard = said.clone();
            let work = tokio::spawn(async move {
                let tell = |words: &str| words.clone_into(&mut heard.lock().unwrap());
                reservation.granted(tell).await.unwrap();
                reservation
            });
            Self { work, said }
        }

        /// After everybody had a chance to move.
        async fn is_in(&self) -> bool {
            for _ in 0..64 {
                tokio::task::yield_now().await;
            }
            self.work.is_finished()
        }

        fn said(&self) -> String {
            self.said.lock().unwrap().clone()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_begin_as_they_fit_and_a_large_one_is_not_overtaken() {
        let room = room(1000);
        let first = Waiting::of(&room, &runtime(600, 0));
        assert!(first.is_in().await);
        let large = Waiting::of(&room, &runtime(900, 0));
        let small = Waiting::of(&room, &runtime(100, 0));
        let plain = Waiting::of(&room, &runtime(0, 0));
        assert!(!large.is_in().await && !small.is_in().await, "it would fit, behind a large one");
        assert!(plain.is_in().await, "it asks for nothing");
        let said = large.said();
        assert!(
            said.contains("900 MiB of memory (runtime.memory_mb); 400 of 1000 are free"),
            "{said}"
        );
        assert!(small.said().contains("behind others"), "{}", small.said());
        assert_eq!(room.now().free_memory_mb, Some(0), "what waits is promised");

        drop(first.work.await.unwrap());
        assert!(large.is_in().await && small.is_in().await);
        let late = Waiting::of(&room, &runtime(1, 0));
        assert!(!late.is_in().await);
        drop(large.work.await.unwrap());
        assert!(late.is_in().await);
        drop((small.work.await.unwrap(), late.work.await.unwrap()));
        assert_eq!(room.now().free_memory_mb, Some(1000));
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_waiting_holds_up_nobody() {
        let room = room(1000);
        let first = Waiting::of(&room, &runtime(600, 0));
        assert!(first.is_in().await);
        let large = Waiting::of(&room, &runtime(900, 0));
        let small = Waiting::of(&room, &runtime(100, 0));
        assert!(!small.is_in().await);
        large.work.abort();
        assert!(small.is_in().await);
    }

    #[tokio::test(start_paused = true)]
    async fn what_can_never_fit_is_refused_with_its_field() {
        let mut reservation = room(1000).reserve(&runtime(1001, 0));
        let Err(Stop::Ended(outcome)) = reservation.granted(|_| {}).await else { panic!("in") };
        let detail = outcome.detail().unwrap();
        assert!(detail.contains("runtime.memory_mb: its sandboxes may take 1000 MiB"), "{detail}");
    }

    #[tokio::test(start_paused = true)]
    async fn graders_stand_by_only_in_room_that_no_session_waits_for() {
        let room = room(1000);
        let agent = Waiting::of(&room, &runtime(500, 0));
        assert!(agent.is_in().await);
        let large = Waiting::of(&room, &runtime(600, 0));
        assert!(!large.is_in().await);
        let of_grader = room.clone();
        let grader = tokio::spawn(async move { of_grader.spare(memory(400)).await });
        large.is_in().await;
        assert!(!grader.is_finished(), "there is room, which a session waits for");
        drop(agent.work.await.unwrap());
        assert!(large.is_in().await);
        let grader = grader.await.unwrap();
        // It counts as sessions do.
        let small = Waiting::of(&room, &runtime(1, 0));
        assert!(!small.is_in().await);
        drop(grader);
        assert!(small.is_in().await);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_warm_counts_and_makes_way() {
        let room = room(1000);
        let warm: Vec<_> = std::iter::from_fn(|| room.keep_warm(memory(400))).take(9).collect();
        assert_eq!(warm.len(), 2);
        assert!(!room.is_over());
        assert_eq!(room.now().free_memory_mb, Some(1000));
        let session = Waiting::of(&room, &runtime(500, 0));
        assert!(session.is_in().await && room.is_over());
        let mut warm = warm.into_iter();
        drop(warm.next());
        assert!(!room.is_over());
        // Nothing is kept warm in what somebody waits for, nor does a grader stand by there.
        let large = Waiting::of(&room, &runtime(600, 0));
        drop(warm.next());
        assert!(!large.is_in().await);
        assert!(room.keep_warm(memory(1)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn room_on_the_disk_is_looked_at_again() {
        let free = Arc::new(Mutex::new(100));
        let seen = free.clone();
        let disk: DiskRoom = Arc::new(move || Some((*seen.lock().unwrap(), 1000)));
        let room = Room::new(RoomLimits { memory_mb: None, disk: Some(disk) });
        let first = Waiting::of(&room, &runtime(0, 60));
        assert!(first.is_in().await);
        // What the first may still write is not free.
        let second = Waiting::of(&room, &runtime(0, 60));
        assert!(!second.is_in().await);
        let said = second.said();
        assert!(
            said.contains("60 MiB of disk (runtime.storage_mb); 40 of 1000 are free"),
            "{said}"
        );
        *free.lock().unwrap() = 120;
        assert!(!second.is_in().await);
        tokio::time::advance(LOOK).await;
        assert!(second.is_in().await);
    }
}
