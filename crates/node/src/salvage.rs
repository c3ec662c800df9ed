//! What an earlier process left: sandboxes to remove, and calls to deliver.

use crate::delivery::Courier;
use polar_sandbox::SandboxProvider;
use polar_session::{AttemptFolder, salvage};
use polar_types::NodeId;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// Between two sweeps.
const SWEEP_AGAIN: Duration = Duration::from_secs(60);

/// Sweeps now and then: what could not be removed while a daemon was away goes once it is back.
/// It is a task of its own, so that leases are renewed however long a sweep takes.
pub(crate) struct Sweeping {
    ending: CancellationToken,
    work: JoinHandle<()>,
}

impl Sweeping {
    pub(crate) fn start(providers: &[Arc<dyn SandboxProvider>]) -> Self {
        Self::every(SWEEP_AGAIN, providers)
    }

    fn every(pause: Duration, providers: &[Arc<dyn SandboxProvider>]) -> Self {
        let ending = CancellationToken::new();
        let (ended, providers) = (ending.clone(), providers.to_vec());
        let work = tokio::spawn(async move {
            while ended.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
                sweep(&providers).await;
            }
        });
        Self { ending, work }
    }

    /// Ends it. A sweep that is under way is waited for, so that no two are.
    pub(crate) async fn end(self) {
        self.ending.cancel();
        if let Err(error) = self.work.await {
            tracing::error!(%error, "a sweep broke off; the next start sweeps again");
        }
    }
}

/// Removes all sandboxes that are left of earlier processes, or of this one's failures.
pub(crate) async fn sweep(providers: &[Arc<dyn SandboxProvider>]) {
    for provider in providers {
        match provider.sweep(&HashSet::new()).await {
            Ok(0) => {}
            Ok(removed) => {
                tracing::warn!(kind = provider.kind(), removed, "removed leftover sandboxes");
            }
            // The node can still work; whoever reads the log has to look.
            Err(error) => tracing::error!(kind = provider.kind(), %error, "sweep failed"),
        }
    }
}

/// Delivers attempts that an earlier process did not: as they ended, or as failures with
/// every call they had recorded. Done before the first request for work, because that
/// tells the server that the old leases are void.
pub(crate) async fn deliver_left_behind(
    sessions: &Path,
    node_id: &NodeId,
    courier: &Courier,
    draining: &watch::Receiver<Option<Duration>>,
) {
    let left = match AttemptFolder::left_behind(sessions) {
        Ok(left) => left,
        Err(error) => {
            tracing::error!(%error, folder = %sessions.display(), "cannot look for leftovers");
            return;
        }
    };
    let mut deliveries = JoinSet::new();
    for (folder, lease) in left {
        let (courier, node_id) = (courier.clone(), node_id.clone());
        deliveries.spawn(async move {
            let reason = "the node restarted while the session ran; its calls up to then are kept";
            tracing::warn!(session = %lease.session_id, epoch = %lease.epoch, "salvaging");
            let report = salvage(&folder, lease, node_id, reason).await;
            let delivery = courier.deliver(&folder, &report).await;
            courier.put_away(&folder, delivery);
        });
    }
    let mut draining = draining.clone();
    tokio::select! {
        () = async { while deliveries.join_next().await.is_some() {} } => {}
        _ = draining.wait_for(Option::is_some) => courier.stop(),
    }
    while deliveries.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use polar_sandbox::{Sandbox, SandboxError, SandboxSpec};
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A sweep that keeps its thread until it is let go.
    struct Long {
        begun: Sender<()>,
        go: Mutex<Receiver<()>>,
    }

    #[async_trait]
    impl SandboxProvider for Long {
        fn kind(&self) -> &'static str {
            "local"
        }

        async fn check(&self) -> Result<(), SandboxError> {
            Ok(())
        }

        async fn create(&self, _: SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
            Err(SandboxError::new("make a sandbox", "there are none"))
        }

        async fn sweep(&self, _: &HashSet<String>) -> Result<u32, SandboxError> {
            let _ = self.begun.send(());
            let _ = self.go.lock().unwrap().recv_timeout(Duration::from_secs(60));
            Ok(0)
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn promise_5_a_long_sweep_holds_up_nobody_and_is_over_before_another_begins() {
        let (begun, has_begun) = channel();
        let (go, may_go) = channel();
        let provider = Arc::new(Long { begun, go: Mutex::new(may_go) });
        let sweeping = Sweeping::every(Duration::from_millis(1), &[provider]);
        let seen = tokio::task::spawn_blocking(move || {
            has_begun.recv_timeout(Duration::from_secs(60)).map(|()| has_begun)
        });
        // This task goes on, as the one that renews leases must.
        let has_begun = seen.await.unwrap().expect("no sweep has begun");
        let mut ending = Box::pin(sweeping.end());
        let now = std::task::Poll::Ready(false);
        let is_over = std::future::poll_fn(|context| match ending.as_mut().poll(context) {
            std::task::Poll::Ready(()) => std::task::Poll::Ready(true),
            std::task::Poll::Pending => now,
        });
        assert!(!is_over.await, "a sweep is under way");
        go.send(()).unwrap();
        drop(go);
        tokio::time::timeout(Duration::from_secs(60), ending).await.expect("it has no end");
        assert!(has_begun.try_recv().is_err(), "another sweep began");
    }
}
