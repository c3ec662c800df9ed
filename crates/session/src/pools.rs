//! Places in each stage, so that one stage cannot starve another.
//!
//! ```text
//! prepare ──(ready buffer)──► run ──► grade
//!                              └─ warm ─┘
//! ```
//! A prepared session keeps its preparation slot until the ready buffer or a run slot
//! takes it; that is what stops preparation from running ahead. A run slot is given back
//! the moment the harness has ended, so that grading never keeps the engine idle. A warm
//! place is for a grader's sandbox that is made while the agent runs; nobody waits for one.
//!
//! A stage without places of its own is passed in the run slot. With neither for preparing
//! nor for grading, sessions pass all stages in one slot each, as without staging.

use crate::failure::Stop;
use polar_types::{ErrorClass, Side, Slots};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A place in a stage, given back when dropped.
pub(crate) type Slot = OwnedSemaphorePermit;

#[derive(Clone)]
pub(crate) struct Pools {
    slots: Slots,
    prepare: Arc<Semaphore>,
    ready: Arc<Semaphore>,
    run: Arc<Semaphore>,
    grade: Arc<Semaphore>,
    warm: Arc<Semaphore>,
}

impl Pools {
    pub(crate) fn new(slots: Slots) -> Self {
        let pool = |places: u32| Arc::new(Semaphore::new(places as usize));
        Self {
            slots,
            prepare: pool(slots.prepare),
            ready: pool(slots.ready),
            run: pool(slots.run),
            grade: pool(slots.grade),
            warm: pool(slots.warm),
        }
    }

    /// Places of all stages that are taken now.
    pub(crate) fn taken(&self) -> usize {
        let free = [&self.prepare, &self.ready, &self.run, &self.grade, &self.warm]
            .map(|pool| pool.available_permits());
        let places = self.slots.total() + self.slots.warm;
        places as usize - free.iter().sum::<usize>()
    }

    pub(crate) async fn prepare(&self) -> Result<Slot, Stop> {
        match self.slots.prepare {
            0 => take(&self.run).await,
            _ => take(&self.prepare).await,
        }
    }

    /// Gives the preparation slot for a run slot, by way of the ready buffer. First come,
    /// first served: the place in the queue for a run slot is taken at once.
    pub(crate) async fn run_after(&self, prepare: Slot) -> Result<Slot, Stop> {
        if self.slots.prepare == 0 {
            return Ok(prepare);
        }
        let run = take(&self.run);
        tokio::pin!(run);
        let buffered = tokio::select! {
            biased;
            slot = &mut run => return slot,
            place = take(&self.ready) => place?,
        };
        drop(prepare);
        let slot = run.await;
        drop(buffered);
        slot
    }

    /// Gives a run slot back, unless the session is graded in it.
    pub(crate) fn leave_run(&self, run: Slot) -> Option<Slot> {
        (self.slots.grade == 0).then_some(run)
    }

    pub(crate) async fn grade(&self) -> Result<Slot, Stop> {
        take(&self.grade).await
    }

    /// For work that is graded without having run.
    pub(crate) async fn grade_stored(&self) -> Result<Slot, Stop> {
        match self.slots.grade {
            0 => take(&self.run).await,
            _ => take(&self.grade).await,
        }
    }

    pub(crate) async fn warm(&self) -> Result<Slot, Stop> {
        take(&self.warm).await
    }
}

async fn take(pool: &Arc<Semaphore>) -> Result<Slot, Stop> {
    // Pools are never closed; were one, no session could go on.
    pool.clone().acquire_owned().await.map_err(|_| {
        Stop::failed(Side::Polar, ErrorClass::Internal, "the node is shutting its stages down")
    })
}
