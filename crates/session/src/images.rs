//! Images on their way to this machine: each is got once, whoever waits for it.
//!
//! Getting an image goes on when those who asked for it have stopped waiting, since the
//! session's next attempt, or another one, will want it. It ends by the provider's own
//! deadline. What was got is not remembered here: the provider knows what there is.

use polar_sandbox::{SandboxError, SandboxProvider};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// How an image that is being got can be waited for.
type Flight = watch::Receiver<Option<Result<Option<String>, SandboxError>>>;

type Key = (&'static str, String);

/// The images that are being got now. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Images {
    flights: Arc<Mutex<HashMap<Key, Flight>>>,
}

impl Images {
    /// Returns when the provider has the image, with its id where it has one. All who ask
    /// meanwhile share what becomes of it, also where that is an error; who asks after that has
    /// it tried again.
    pub(crate) async fn get(
        &self,
        provider: Arc<dyn SandboxProvider>,
        image: &str,
    ) -> Result<Option<String>, SandboxError> {
        let mut flight = self.join(provider, image);
        let landed = flight.wait_for(Option::is_some).await.ok().and_then(|landed| landed.clone());
        landed.unwrap_or_else(|| {
            Err(SandboxError::retryable(
                format!("get image {image:?}"),
                "it broke off inside Polar",
            ))
        })
    }

    fn join(&self, provider: Arc<dyn SandboxProvider>, image: &str) -> Flight {
        let key = (provider.kind(), image.to_owned());
        let mut flights = self.lock();
        // One whose sender is gone broke off.
        if let Some(flight) = flights.get(&key).filter(|flight| flight.has_changed().is_ok()) {
            return flight.clone();
        }
        let (landed, flight) = watch::channel(None);
        flights.insert(key.clone(), flight.clone());
        let images = self.clone();
        tokio::spawn(async move {
            let got = match provider.get_image(&key.1).await {
                Ok(()) => provider.image_id(&key.1).await,
                Err(error) => Err(error),
            };
            images.lock().remove(&key);
            landed.send_replace(Some(got));
        });
        flight
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Flight>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
