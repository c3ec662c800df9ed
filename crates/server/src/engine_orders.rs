//! Orders to nodes about their engines, from whoever asks to the node that fetches them.
//!
//! Kept in memory alone: whoever gives an order waits for what comes of it, and is told by a broken
//! connection when the server ends. A node hears of an order until it has said what came of it, so
//! that a lost answer loses none, and does each once by its id.

use polar_types::{EngineOrder, EngineOrderDone, EngineRequest, NodeId};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{oneshot, watch};

/// Orders that are not done.
pub(crate) struct OrderDesk {
    open: Mutex<HashMap<NodeId, Vec<Open>>>,
    /// Changes with each new order.
    news: watch::Sender<u64>,
}

struct Open {
    order: EngineOrder,
    done: oneshot::Sender<EngineOrderDone>,
}

impl Default for OrderDesk {
    fn default() -> Self {
        Self { open: Mutex::default(), news: watch::Sender::new(0) }
    }
}

/// An order that was given. It is taken back when this is dropped, unless its node has it already.
pub(crate) struct Given<'a> {
    desk: &'a OrderDesk,
    node: NodeId,
    id: String,
    done: oneshot::Receiver<EngineOrderDone>,
}

impl OrderDesk {
    fn open(&self) -> MutexGuard<'_, HashMap<NodeId, Vec<Open>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn give(&self, node: NodeId, request: EngineRequest) -> Given<'_> {
        let (done, receiver) = oneshot::channel();
        let id = uuid::Uuid::now_v7().simple().to_string();
        let order = EngineOrder { id: id.clone(), request };
        self.open().entry(node.clone()).or_default().push(Open { order, done });
        self.news.send_modify(|news| *news += 1);
        Given { desk: self, node, id, done: receiver }
    }

    /// Tells of new orders.
    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// The orders of a node that are not done, the first first.
    pub(crate) fn of(&self, node: &NodeId) -> Vec<EngineOrder> {
        let open = self.open();
        open.get(node).into_iter().flatten().map(|open| open.order.clone()).collect()
    }

    /// Takes note of what came of an order, if anybody still wants to know.
    pub(crate) fn note(&self, node: &NodeId, done: EngineOrderDone) {
        if let Some(order) = self.take(node, &done.id) {
            // Whoever gave it may have gone.
            let _ = order.done.send(done);
        }
    }

    fn take(&self, node: &NodeId, id: &str) -> Option<Open> {
        let mut all = self.open();
        let open = all.get_mut(node)?;
        let place = open.iter().position(|open| open.order.id == id)?;
        let taken = open.remove(place);
        if open.is_empty() {
            all.remove(node);
        }
        Some(taken)
    }
}

impl Given<'_> {
    /// What came of it; none where the server forgot it.
    pub(crate) async fn done(&mut self) -> Option<EngineOrderDone> {
        (&mut self.done).await.ok()
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        self.desk.take(&self.node, &self.id);
    }
}
