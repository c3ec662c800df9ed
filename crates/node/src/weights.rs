//! New weights: learns of them from the server at once, brings each engine to them, and reports.
//!
//! A question of its own and not part of the one for work, which nobody asks while all places are
//! taken or no engine is there. One task for each engine changes its weights; it is never broken
//! off half-way, which would leave the engine paused. Engines change theirs at the same time, each
//! for itself, so that one that hangs holds up no other; where calls come to their end first
//! (`drain`), which takes long, one after the other, so that the others serve meanwhile.

use crate::client::{Backoff, ServerClient};
use polar_engine::{Engine, Told, Weights};
use polar_gateway::EnginePool;
use polar_types::{
    EngineWeights, NodeId, UpdateMode, WeightOrder, WeightReport, WeightState, WeightTarget,
};
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long the server may hold the question open.
const WAIT_SECONDS: f64 = 20.0;

/// Asks the server for weights, for as long as it is polled.
pub(crate) struct WeightFollower {
    client: Arc<ServerClient>,
    node_id: NodeId,
    engines: Arc<EnginePool>,
    target: watch::Sender<Option<WeightTarget>>,
    /// Whether the server has answered at all.
    learned: watch::Sender<bool>,
    /// Told when an engine is further.
    news: Arc<Notify>,
    /// Held by the engine that lets its calls end.
    turn: Arc<tokio::sync::Mutex<()>>,
    changing: Mutex<Vec<Changing>>,
}

/// An engine whose weights are changed.
struct Changing {
    engine: Arc<dyn Engine>,
    weights: Arc<Weights>,
    /// The place of the target that the engine tells of; 0 before the first.
    begun: Arc<AtomicU64>,
    left: CancellationToken,
    task: JoinHandle<()>,
}

impl WeightFollower {
    pub(crate) fn start(
        client: Arc<ServerClient>,
        node_id: NodeId,
        engines: Arc<EnginePool>,
    ) -> Self {
        let (target, learned) = (watch::Sender::new(None), watch::Sender::new(false));
        let (news, turn, changing) = (Arc::default(), Arc::default(), Mutex::default());
        Self { client, node_id, engines, target, learned, news, turn, changing }
    }

    /// The weights that all engines are to have.
    pub(crate) fn target(&self) -> watch::Receiver<Option<WeightTarget>> {
        self.target.subscribe()
    }

    /// Returns when the server has said which weights there are to be, if any.
    pub(crate) async fn learned(&self) {
        // The sender is in `self`, so that this never fails.
        let _ = self.learned.subscribe().wait_for(|learned| *learned).await;
    }

    /// Reports and asks, again and again.
    pub(crate) async fn follow(&self) -> Infallible {
        let mut engines = self.engines.changes();
        let mut backoff = Backoff::default();
        loop {
            engines.borrow_and_update();
            self.keep_up();
            let report = self.report();
            let asked = async {
                tokio::time::sleep(backoff.pause()).await;
                self.client.weights(&report).await
            };
            let answer = tokio::select! {
                answer = asked => answer,
                () = self.news.notified() => continue,
                Ok(()) = engines.changed() => continue,
            };
            match answer {
                Ok(order) => {
                    backoff.reset();
                    self.take(order);
                }
                Err(error) => {
                    tracing::debug!(%error, "weights cannot be asked for");
                    backoff.fail();
                }
            }
        }
    }

    /// Finishes the changes that are on their way, and makes no more.
    pub(crate) async fn end(self) {
        let Self { target, changing, .. } = self;
        drop(target);
        for Changing { task, .. } in changing.into_inner().unwrap_or_else(PoisonError::into_inner) {
            if let Err(error) = task.await {
                tracing::error!(%error, "changing weights broke off");
            }
        }
    }

    fn changing(&self) -> MutexGuard<'_, Vec<Changing>> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to engines that have come, and no more to those that have left.
    fn keep_up(&self) {
        let engines = self.engines.engines();
        let mut changing = self.changing();
        changing.retain(|one| {
            let stays = engines.iter().any(|engine| Arc::ptr_eq(engine, &one.engine));
            if !stays {
                one.left.cancel();
            }
            stays
        });
        for engine in engines {
            let is_known = changing.iter().any(|one| Arc::ptr_eq(&one.engine, &engine));
            let Some(weights) = engine.weights().filter(|_| !is_known).cloned() else { continue };
            let (left, begun) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
            let mut targets = self.target.subscribe();
            targets.mark_changed();
            let changer = Changer {
                url: engine.info().url.clone(),
                weights: Arc::clone(&weights),
                targets,
                engines: Arc::clone(&self.engines),
                turn: Arc::clone(&self.turn),
                begun: Arc::clone(&begun),
                left: left.clone(),
            };
            let news = tell_news(weights.told(), Arc::clone(&self.news));
            let task = tokio::spawn(async move {
                tokio::select! {
                    () = changer.change() => {}
                    never = news => match never {},
                }
            });
            changing.push(Changing { engine, weights, begun, left, task });
        }
    }

    fn take(&self, order: WeightOrder) {
        self.target.send_if_modified(|target| {
            let is_news = *target != order.target;
            *target = order.target;
            is_news
        });
        self.learned.send_replace(true);
    }

    fn report(&self) -> WeightReport {
        let target = self.target.borrow();
        let wanted = target.as_ref().map_or(0, |target| target.ordinal);
        let engines = self.changing().iter().map(|one| one.told(wanted)).collect();
        WeightReport {
            node_id: self.node_id.clone(),
            known: target.as_ref().map(|target| target.ordinal),
            engines,
            // The first answer is waited for with the first session.
            wait_seconds: if *self.learned.borrow() { WAIT_SECONDS } else { 0.0 },
        }
    }
}

impl Changing {
    /// How far the engine is with the target at this place.
    fn told(&self, wanted: u64) -> EngineWeights {
        let engine = self.weights.told().borrow().engine.clone();
        match wanted == self.begun.load(Ordering::Acquire) {
            true => engine,
            // It is still busy with the update before.
            false => EngineWeights {
                state: WeightState::Waiting,
                reason: None,
                held_seconds: None,
                ..engine
            },
        }
    }
}

/// Tells when an engine is further, for as long as it is polled.
async fn tell_news(mut told: watch::Receiver<Told>, news: Arc<Notify>) -> Infallible {
    while told.changed().await.is_ok() {
        news.notify_one();
    }
    std::future::pending().await
}

/// Brings one engine to each target, and keeps it there.
struct Changer {
    url: String,
    weights: Arc<Weights>,
    targets: watch::Receiver<Option<WeightTarget>>,
    engines: Arc<EnginePool>,
    turn: Arc<tokio::sync::Mutex<()>>,
    begun: Arc<AtomicU64>,
    left: CancellationToken,
}

impl Changer {
    /// Ends with whoever gives targets, or when the engine leaves.
    async fn change(mut self) {
        while self.is_to_go_on().await {
            let Some(target) = self.targets.borrow_and_update().clone() else { continue };
            if target.update.mode == UpdateMode::Drain {
                let turn = Arc::clone(&self.turn);
                tokio::select! {
                    _turn = turn.lock() => self.bring_to(&target).await,
                    // Newer weights do not wait for the turn of older ones.
                    is_to_go_on = self.is_to_go_on() => match is_to_go_on {
                        true => continue,
                        false => return,
                    },
                }
            } else {
                self.bring_to(&target).await;
            }
            if !self.keep(&target).await {
                return;
            }
        }
    }

    async fn bring_to(&self, target: &WeightTarget) {
        // In this order, so that nothing of the update before is told of this one, whose version
        // may be the same.
        self.weights.set_out();
        self.begun.store(target.ordinal, Ordering::Release);
        self.weights.bring_to(&target.update, false).await;
    }

    /// Keeps the engine at a target until there is another one, which stays to be seen; false when
    /// there will be none.
    async fn keep(&mut self, target: &WeightTarget) -> bool {
        loop {
            if self.weights.fence().is_some() {
                // Its sessions are to go elsewhere, or to wait as for an engine that is away.
                self.engines.look(&self.url).await;
            }
            let weights = Arc::clone(&self.weights);
            tokio::select! {
                is_to_go_on = self.is_to_go_on() => return is_to_go_on,
                () = weights.due() => {}
            }
            self.weights.look(&target.update).await;
        }
    }

    /// Whether there is another target, which stays to be seen; false when there will be none.
    async fn is_to_go_on(&mut self) -> bool {
        let changed = tokio::select! {
            changed = self.targets.changed() => changed.is_ok(),
            () = self.left.cancelled() => false,
        };
        if changed {
            self.targets.mark_changed();
        }
        changed
    }
}
