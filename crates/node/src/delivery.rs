//! Hands reports and their artifacts to the server, however often that takes.

use crate::client::{Backoff, ClientError, ServerClient};
use polar_session::{AttemptFolder, Control};
use polar_types::{ResultAck, SessionReport};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

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

    /// Delivers until the server has the report, the lease is lost or the node stops; the
    /// folder goes in the first two cases.
    pub(crate) async fn deliver(
        &self,
        folder: &AttemptFolder,
        report: &SessionReport,
        mut control: watch::Receiver<Control>,
    ) {
        // Cancelled is decided by the server: it gets the report either way.
        let lost = async {
            if control.wait_for(|order| *order == Control::Abandon).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => {
                tracing::warn!(session = %report.session_id, "report kept for the next start");
            }
            () = lost => {
                tracing::warn!(session = %report.session_id, "lease lost before delivery");
                remove(folder);
            }
            done = self.until_answered(folder, report) => match done {
                Ok(ack) => {
                    tracing::info!(session = %report.session_id, ?ack, "delivered");
                    remove(folder);
                }
                Err(refusal) => self.set_aside(folder, report, &refusal),
            },
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
                Err(ClientError::Refused(refusal)) => return Err(refusal),
                Err(ClientError::Later(error)) => {
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
    fn set_aside(&self, folder: &AttemptFolder, report: &SessionReport, refusal: &str) {
        let name = folder.path().file_name().unwrap_or_default();
        let place = self.undelivered.join(name);
        tracing::error!(
            session = %report.session_id, refusal, kept = %place.display(),
            "the server refuses the report; it is kept"
        );
        if let Err(error) = std::fs::rename(folder.path(), &place) {
            tracing::error!(%error, folder = %folder.path().display(), "not moved");
        }
    }
}

fn remove(folder: &AttemptFolder) {
    if let Err(error) = folder.remove() {
        tracing::error!(%error, folder = %folder.path().display(), "session folder not removed");
    }
}
