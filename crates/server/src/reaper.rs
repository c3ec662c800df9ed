//! Ends what is past its deadline, on the server's clock.

use crate::app::App;
use std::sync::Arc;

pub(crate) async fn run(app: Arc<App>) {
    let mut ticks = tokio::time::interval(app.config.tick);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = app.stop.cancelled() => return,
        }
        match app.store.expire(app.now()).await {
            Ok(expired) => {
                for session in expired.requeued {
                    tracing::warn!(%session, "past its deadline; queued again");
                }
                for session in expired.ended {
                    tracing::warn!(%session, "past its deadline; ended");
                }
            }
            Err(error) => tracing::error!(%error, "could not look at deadlines"),
        }
    }
}
