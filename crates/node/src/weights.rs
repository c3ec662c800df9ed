//! New weights: learns of them from the server at once, brings the engine to them, and reports.
//!
//! A question of its own and not part of the one for work, which nobody asks while all places are
//! taken or the engine is away. One task changes weights; it is never broken off half-way, which
//! would leave the engine paused.

use crate::client::{Backoff, ServerClient};
use polar_engine::{Engine, Told, Weights};
use polar_gateway::EngineWatch;
use polar_types::{EngineWeights, NodeId, WeightOrder, WeightReport, WeightState, WeightTarget};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long the server may hold the question open.
const WAIT_SECONDS: f64 = 20.0;

/// Asks the server for weights, for as long as it is polled.
pub(crate) struct WeightFollower {
    client: Arc<ServerClient>,
    node_id: NodeId,
    weights: Arc<Weights>,
    target: watch::Sender<Option<WeightTarget>>,
    /// The place of the target that the engine tells of; 0 before the first.
    begun: Arc<AtomicU64>,
    changing: JoinHandle<()>,
}

impl WeightFollower {
    /// None where the engine's calls pass no gate.
    pub(crate) fn start(
        client: Arc<ServerClient>,
        node_id: NodeId,
        engine: &Arc<dyn Engine>,
        watch: Arc<EngineWatch>,
    ) -> Option<Self> {
        let weights = Arc::clone(engine.weights()?);
        let (target, targets) = watch::channel(None);
        let begun = Arc::new(AtomicU64::new(0));
        let changing = change(Arc::clone(&weights), targets, watch, Arc::clone(&begun));
        let changing = tokio::spawn(changing);
        Some(Self { client, node_id, weights, target, begun, changing })
    }

    /// Reports and asks, again and again.
    pub(crate) async fn follow(&self) -> Infallible {
        let mut told = self.weights.told();
        let mut backoff = Backoff::default();
        loop {
            let report = self.report(&told.borrow_and_update());
            let asked = async {
                tokio::time::sleep(backoff.pause()).await;
                self.client.weights(&report).await
            };
            let answer = tokio::select! {
                answer = asked => answer,
                Ok(()) = told.changed() => continue,
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

    /// Finishes the change that is on its way, and makes no more.
    pub(crate) async fn end(self) {
        let Self { target, changing, .. } = self;
        drop(target);
        if let Err(error) = changing.await {
            tracing::error!(%error, "changing weights broke off");
        }
    }

    fn take(&self, order: WeightOrder) {
        self.target.send_if_modified(|target| {
            let is_news = *target != order.target;
            *target = order.target;
            is_news
        });
    }

    fn report(&self, told: &Told) -> WeightReport {
        let target = self.target.borrow();
        let wanted = target.as_ref().map_or(0, |target| target.ordinal);
        let engine = match wanted == self.begun.load(Ordering::Acquire) {
            true => told.engine.clone(),
            // It is still busy with the update before.
            false => EngineWeights {
                state: WeightState::Waiting,
                reason: None,
                held_seconds: None,
                ..told.engine.clone()
            },
        };
        WeightReport {
            node_id: self.node_id.clone(),
            known: target.as_ref().map(|target| target.ordinal),
            engines: vec![engine],
            wait_seconds: WAIT_SECONDS,
        }
    }
}

/// Brings the engine to each target, and keeps it there. Ends with whoever gives targets.
async fn change(
    weights: Arc<Weights>,
    mut targets: watch::Receiver<Option<WeightTarget>>,
    watch: Arc<EngineWatch>,
    begun: Arc<AtomicU64>,
) {
    while targets.changed().await.is_ok() {
        let Some(target) = targets.borrow_and_update().clone() else { continue };
        // In this order, so that nothing of the update before is told of this one, whose version
        // may be the same.
        weights.set_out();
        begun.store(target.ordinal, Ordering::Release);
        weights.bring_to(&target.update, false).await;
        loop {
            if weights.fence().is_some() {
                // Sessions are to wait for it as for an engine that is away.
                watch.look().await;
            }
            tokio::select! {
                changed = wait_for_change(&mut targets) => match changed {
                    true => break,
                    false => return,
                },
                () = weights.due() => {}
            }
            weights.look(&target.update).await;
        }
    }
}

/// Whether there is another target, which stays to be seen; false when there will be none.
async fn wait_for_change(targets: &mut watch::Receiver<Option<WeightTarget>>) -> bool {
    let changed = targets.changed().await.is_ok();
    if changed {
        targets.mark_changed();
    }
    changed
}
