//! The removal of an attempt's sandbox, which no result waits for.

use crate::maker::Leftovers;
use crate::pools::Slot;
use crate::room::Reservation;
use crate::warming::Warming;
use polar_sandbox::{Sandbox, SandboxError};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};

/// Longest that removing a sandbox may take before it is left to the sweep.
const DESTROY_LIMIT: Duration = Duration::from_secs(120);
/// Before it is tried again, as where a daemon is being restarted.
const PAUSE: Duration = Duration::from_secs(2);
/// Longest wait for all of it. Making a sandbox cannot be broken off, so that more than
/// this is possible where an attempt has ended while its sandbox was being made.
const LONGEST_WAIT: Duration = Duration::from_secs(180);

/// A sandbox on its way.
pub(crate) type Creation = JoinHandle<Result<Box<dyn Sandbox>, SandboxError>>;

/// What an attempt has of sandboxes when it ends.
pub(crate) struct Remains {
    pub(crate) sandboxes: Vec<Box<dyn Sandbox>>,
    /// The grader's, where nothing was graded.
    pub(crate) warming: Option<Warming>,
    /// What is still being made in it is taken down as soon as it is there.
    pub(crate) leftovers: Leftovers,
}

impl Remains {
    fn is_nothing(&self) -> bool {
        self.sandboxes.is_empty() && self.warming.is_none() && self.leftovers.is_nothing()
    }

    pub(crate) async fn remove(self) {
        let mut removals = JoinSet::new();
        for sandbox in self.sandboxes {
            removals.spawn(async move { destroy(sandbox.as_ref()).await });
        }
        // It may add to what is left over.
        if let Some(warming) = self.warming {
            warming.give_up().await;
        }
        let left = self.leftovers.take();
        for sandbox in left.sandboxes {
            removals.spawn(async move { destroy(sandbox.as_ref()).await });
        }
        for creation in left.unfinished {
            removals.spawn(async move {
                if let Ok(Ok(sandbox)) = creation.await {
                    destroy(sandbox.as_ref()).await;
                }
            });
        }
        removals.join_all().await;
    }
}

/// A removal that is under way. It goes on when this is dropped, but then nobody knows
/// when the machine has its room back: an owner counts the attempt until it is over.
#[must_use = "the attempt weighs on the machine until its sandbox is gone"]
pub struct Removal(Option<JoinHandle<()>>);

impl Removal {
    /// Of an attempt that has no sandbox.
    pub fn of_nothing() -> Self {
        Self(None)
    }

    /// Starts it. The attempt's room and slot are kept until it is over.
    pub(crate) fn start(
        remains: Remains,
        room: Option<Reservation>,
        slot: Option<Arc<Slot>>,
    ) -> Self {
        if remains.is_nothing() {
            return Self::of_nothing();
        }
        Self(Some(tokio::spawn(async move {
            remains.remove().await;
            drop((room, slot));
        })))
    }

    /// Waits until the sandbox is gone, or its removal was given up. From then on nothing
    /// uses the attempt's folder.
    pub async fn over(self) {
        let Some(task) = self.0 else { return };
        match tokio::time::timeout(LONGEST_WAIT, task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the removal of a sandbox broke off"),
            Err(_) => tracing::error!("a sandbox is still being made; it goes once it is there"),
        }
    }
}

/// Removes a sandbox. A failure is loud and left to the next start's sweep; it must not
/// take the session's result with it.
pub(crate) async fn destroy(sandbox: &dyn Sandbox) {
    let until_gone = async {
        while let Err(error) = sandbox.destroy().await {
            tracing::warn!(sandbox = sandbox.name(), %error, "sandbox not removed; tried again");
            tokio::time::sleep(PAUSE).await;
        }
    };
    if tokio::time::timeout(DESTROY_LIMIT, until_gone).await.is_err() {
        tracing::error!(sandbox = sandbox.name(), "sandbox not removed in time");
    }
}
