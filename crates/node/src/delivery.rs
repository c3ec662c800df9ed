//! Hands reports and their artifacts to the server, however often that takes.

use crate::client::{Backoff, ClientError, ServerClient};
use polar_session::AttemptFolder;
use polar_types::{Artifact, RegradeOrder, ResultAck, SessionReport, WORK};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// What evaluators look at of a session's files, its traces, and its work.
const REGRADED_OF: [&str; 5] =
    [WORK, "trajectory.json", "calls.json", "workspace.diff", "stdout.log"];
/// Attempts uploaded at a time.
const UPLOADS: usize = 8;

/// Delivers attempts. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Courier {
    client: Arc<ServerClient>,
    undelivered: PathBuf,
    uploads: Arc<Semaphore>,
    /// The node is going down: what is not delivered stays on disk.
    stopping: CancellationToken,
}

impl Courier {
    pub(crate) fn new(
        client: Arc<ServerClient>,
        undelivered: PathBuf,
        stopping: CancellationToken,
    ) -> Self {
        Self { client, undelivered, uploads: Arc::new(Semaphore::new(UPLOADS)), stopping }
    }

    /// From now on, leaves what cannot be delivered to the next start.
    pub(crate) fn stop(&self) {
        self.stopping.cancel();
    }

    /// Gets what is stored of a session into the folder of who grades it again.
    pub(crate) async fn fetch(
        &self,
        order: &RegradeOrder,
        folder: &AttemptFolder,
    ) -> Result<(), String> {
        let wanted = |artifact: &&Artifact| REGRADED_OF.contains(&artifact.name.as_str());
        for artifact in order.artifacts.iter().filter(wanted) {
            let got = self.client.download(artifact, &folder.artifact(&artifact.name)).await;
            got.map_err(|error| format!("{} of {}: {error}", artifact.name, order.session_id))?;
        }
        Ok(())
    }

    /// Delivers until the server has answered or the node stops. A lost lease is no reason
    /// to stop: the server keeps what comes too late apart from results.
    pub(crate) async fn deliver(&self, folder: &AttemptFolder, report: &SessionReport) -> Delivery {
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => Delivery::kept(report),
            answer = self.until_answered(folder, report) => Delivery::of(report, answer),
        }
    }

    /// The same, but for so long at most, and also while the node stops.
    pub(crate) async fn deliver_within(
        &self,
        folder: &AttemptFolder,
        report: &SessionReport,
        patience: Duration,
    ) -> Delivery {
        match tokio::time::timeout(patience, self.until_answered(folder, report)).await {
            Ok(answer) => Delivery::of(report, answer),
            Err(_) => Delivery::kept(report),
        }
    }

    /// Does with the folder what its delivery calls for. Nothing may use it any more.
    pub(crate) fn put_away(&self, folder: &AttemptFolder, delivery: Delivery) {
        match delivery {
            Delivery::Taken | Delivery::Needless => remove(folder),
            Delivery::Kept => {}
            Delivery::Refused => self.set_aside(folder),
        }
    }

    /// The server's answer, or why it will never take the report.
    async fn until_answered(
        &self,
        folder: &AttemptFolder,
        report: &SessionReport,
    ) -> Result<ResultAck, String> {
        let mut backoff = Backoff::default();
        let mut uploaded = 0;
        loop {
            match self.try_once(folder, report, &mut uploaded).await {
                Ok(ack) => return Ok(ack),
                Err(ClientError::Refused(refusal) | ClientError::Conflict(refusal)) => {
                    return Err(refusal);
                }
                Err(ClientError::Later(error) | ClientError::Unauthorized(error)) => {
                    tracing::warn!(session = %report.session_id, error, "not delivered yet");
                    backoff.fail();
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    async fn try_once(
        &self,
        folder: &AttemptFolder,
        report: &SessionReport,
        uploaded: &mut usize,
    ) -> Result<ResultAck, ClientError> {
        let _place = self.uploads.acquire().await;
        for artifact in report.artifacts.iter().skip(*uploaded) {
            self.client.upload(artifact, &folder.artifact(&artifact.name)).await?;
            *uploaded += 1;
        }
        self.client.report(report).await
    }

    /// Keeps what the server refuses, so that nothing recorded is ever thrown away.
    fn set_aside(&self, folder: &AttemptFolder) {
        let name = folder.path().file_name().unwrap_or_default();
        let place = self.undelivered.join(name);
        tracing::error!(kept = %place.display(), "a report that was refused is kept");
        if let Err(error) = std::fs::rename(folder.path(), &place) {
            tracing::error!(%error, folder = %folder.path().display(), "not moved");
        }
    }
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The server has the report.
    Taken,
    /// There is nothing that anybody would miss.
    Needless,
    /// Not now; the next start tries again.
    Kept,
    /// The server will never take it.
    Refused,
}

impl Delivery {
    fn of(report: &SessionReport, answer: Result<ResultAck, String>) -> Self {
        let session = &report.session_id;
        match answer {
            Ok(ack) => {
                tracing::info!(%session, epoch = %report.epoch, ?ack, "delivered");
                Self::Taken
            }
            Err(refusal) => {
                tracing::error!(%session, refusal, "the server refuses the report");
                Self::Refused
            }
        }
    }

    fn kept(report: &SessionReport) -> Self {
        tracing::warn!(session = %report.session_id, "report kept for the next start");
        Self::Kept
    }
}

fn remove(folder: &AttemptFolder) {
    if let Err(error) = folder.remove() {
        tracing::error!(%error, folder = %folder.path().display(), "session folder not removed");
    }
}
