//! What an earlier process left: sandboxes to remove, and calls to deliver.

use crate::delivery::Courier;
use polar_sandbox::SandboxProvider;
use polar_session::{AttemptFolder, salvage};
use polar_types::NodeId;
use std::collections::HashSet;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Between two sweeps.
const SWEEP_AGAIN: Duration = Duration::from_secs(60);

/// Sweeps now and then: what could not be removed while a daemon was away goes once it is back.
pub(crate) async fn keep_sweeping(providers: &[Arc<dyn SandboxProvider>]) -> Infallible {
    loop {
        tokio::time::sleep(SWEEP_AGAIN).await;
        sweep(providers).await;
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
