//! The grader's sandbox, made while the agent still runs.
//!
//! It is begun when the harness has asked its model for the first time: from then on the
//! agent mostly waits for the engine, and neither its own start nor a session that is being
//! prepared is held up by more than the machine's share. It takes a place of its own pool
//! first, and room that no session waits for, so that no more graders stand ready than the node
//! allows. When grading begins it is made without either, as part of grading.

use crate::control::Progress;
use crate::failure::Stop;
use crate::maker::{Deadline, Made, Maker, Recipe, sandbox_failure};
use crate::pools::{Pools, Slot};
use crate::removal::destroy;
use crate::room::{Room, StandBy};
use polar_gateway::SessionHandle;
use polar_types::{Footprint, Stage};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A grader's sandbox on its way, or ready.
pub(crate) struct Warming {
    work: JoinHandle<Result<Ready, Stop>>,
    /// Whether it was begun before it was needed.
    begun: Arc<AtomicBool>,
    needed: CancellationToken,
    given_up: CancellationToken,
}

struct Ready {
    made: Made,
    /// Held as long as it stands by. From then on it has its session's.
    place: Option<Place>,
}

/// What a sandbox has that stands by.
struct Place {
    _slot: Slot,
    _room: StandBy,
}

/// What to make, and by whose leave.
pub(crate) struct Order {
    pub(crate) maker: Maker,
    pub(crate) recipe: Recipe,
    /// The budget of making it.
    pub(crate) seconds: f64,
    pub(crate) pools: Pools,
    pub(crate) room: Room,
    pub(crate) progress: Arc<watch::Sender<Progress>>,
}

impl Warming {
    pub(crate) fn start(order: Order, proxy: SessionHandle) -> Self {
        let (needed, given_up) = (CancellationToken::new(), CancellationToken::new());
        let maker = Maker { given_up: given_up.clone(), ..order.maker };
        let order = Order { maker, ..order };
        let begun = Arc::new(AtomicBool::new(false));
        let work = tokio::spawn(warm(order, proxy, needed.clone(), begun.clone()));
        Self { work, begun, needed, given_up }
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// The sandbox, made now where it is not yet. What it is told by stays with who asks.
    pub(crate) async fn ready(&mut self) -> Result<Made, Stop> {
        let since = Instant::now();
        self.needed.cancel();
        let Ready { mut made, .. } = self.end().await?;
        made.start.waited_seconds = since.elapsed().as_secs_f64();
        Ok(made)
    }

    /// Gives it up and removes what there is of it. Its place is kept until that is gone.
    pub(crate) async fn give_up(mut self) {
        self.given_up.cancel();
        if let Ok(ready) = self.end().await {
            destroy(ready.made.sandbox.as_ref()).await;
            drop(ready.place);
        }
    }

    async fn end(&mut self) -> Result<Ready, Stop> {
        (&mut self.work).await.unwrap_or_else(|error| {
            Err(sandbox_failure(format!("making the grader's sandbox broke off: {error}")))
        })
    }
}

async fn warm(
    order: Order,
    proxy: SessionHandle,
    needed: CancellationToken,
    begun: Arc<AtomicBool>,
) -> Result<Ready, Stop> {
    let Order { maker, recipe, seconds, pools, room, progress } = order;
    let footprint = Footprint::of(&maker.runtime);
    let turn = async {
        proxy.called().await;
        let slot = pools.warm().await?;
        Ok::<_, Stop>(Place { _slot: slot, _room: room.spare(footprint).await })
    };
    let place = maker
        .unless_stopped(async {
            tokio::select! {
                biased;
                () = needed.cancelled() => Ok(None),
                place = turn => place.map(Some),
            }
        })
        .await??;
    begun.store(place.is_some(), Ordering::Release);
    // Until it is needed, the session waits for its agent.
    let tell = |what: &str| {
        if needed.is_cancelled() {
            progress.send_replace(Progress::in_stage(Stage::Grade, what));
        }
    };
    let mut made = maker.make(recipe, Deadline::of_preparing(seconds), tell).await?;
    made.start.warm = place.is_some();
    Ok(Ready { made, place })
}
