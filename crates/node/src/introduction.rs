//! The first word to the server: whether it knows the token and has the name free.
//!
//! What is refused here stays refused until somebody mends it, so the node ends instead of
//! asking for ever. Once it was let in, a token that is refused is waited for: sessions run,
//! and their results are not to be lost.

use crate::NodeError;
use crate::client::{Backoff, ClientError, ServerClient};
use polar_types::{NodeInfo, RenewRequest};
use std::time::Duration;
use tokio::sync::watch;

/// Longest time for one try.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tries until the server has answered, or the node drains. Renews nothing, so that the
/// leases of an earlier process stay valid until what it recorded is delivered.
pub(crate) async fn introduce(
    client: &ServerClient,
    node: NodeInfo,
    draining: &watch::Receiver<Option<Duration>>,
) -> Result<(), NodeError> {
    let ask = RenewRequest { node, items: Vec::new() };
    let mut draining = draining.clone();
    tokio::select! {
        answer = until_answered(client, &ask) => answer,
        _ = draining.wait_for(Option::is_some) => Ok(()),
    }
}

async fn until_answered(client: &ServerClient, ask: &RenewRequest) -> Result<(), NodeError> {
    let mut backoff = Backoff::default();
    loop {
        let url = client.url().to_owned();
        match client.renew(ask, PATIENCE).await {
            Ok(_) => return Ok(()),
            Err(ClientError::Unauthorized(answer)) => {
                return Err(NodeError::Unauthorized { url, answer });
            }
            Err(ClientError::Conflict(answer)) => return Err(NodeError::NameInUse { url, answer }),
            Err(error) => {
                tracing::warn!(%url, %error, "the server does not answer yet");
                backoff.fail();
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}
