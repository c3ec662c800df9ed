//! Requests that the server holds open until there is something to say.

use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Longest that a request is held open; below the idle limits of common proxies.
const LONGEST: Duration = Duration::from_secs(50);

/// One request that is held open.
pub(crate) struct Wait {
    until: Instant,
    stop: CancellationToken,
}

impl Wait {
    /// For as long as the client asks, within bounds; less when the server ends.
    pub(crate) fn new(seconds: f64, stop: CancellationToken) -> Self {
        let asked = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
        Self { until: Instant::now() + asked.min(LONGEST), stop }
    }

    /// Returns true when something may have changed, false when the time is up.
    pub(crate) async fn change(&self, signal: &mut watch::Receiver<u64>) -> bool {
        tokio::select! {
            changed = signal.changed() => changed.is_ok(),
            () = sleep_until(self.until) => false,
            () = self.stop.cancelled() => false,
        }
    }
}
