//! Reading request bodies, within what a session may have held in memory.
//!
//! A body is read before anything is known of the call it asks for, so that a limit on calls alone
//! would let an agent have as many bodies held as it has connections.

use axum::body::Body;
use axum::http::{Request as HttpRequest, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use polar_convo::ApiError;
use polar_types::ErrorClass;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of all requests of a session that have not ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bodies(Arc<AtomicUsize>);

/// What one request holds, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Held {
    of: Bodies,
    bytes: usize,
}

impl Bodies {
    /// Reads a body of at most `limit` bytes, of at most `together` with those of other requests.
    pub(crate) async fn read(
        &self,
        request: HttpRequest<Body>,
        limit: usize,
        together: usize,
    ) -> Result<(Bytes, Held), ApiError> {
        if let Some(encoding) = request.headers().get(header::CONTENT_ENCODING)
            && encoding.as_bytes() != b"identity"
        {
            return Err(ApiError::new(
                ErrorClass::Invalid,
                "compressed request bodies are not supported; send it without content-encoding",
            ));
        }
        let declared = request
            .headers()
            .get(header::CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if declared.is_some_and(|length| length > limit) {
            return Err(too_large(limit));
        }
        let mut held = Held { of: self.clone(), bytes: 0 };
        let mut body = request.into_body();
        let mut read = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                ApiError::new(ErrorClass::Invalid, format!("the request body broke off: {error}"))
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if read.len() + data.len() > limit {
                return Err(too_large(limit));
            }
            held.add(data.len(), together)?;
            read.extend_from_slice(&data);
        }
        Ok((read.freeze(), held))
    }
}

impl Held {
    fn add(&mut self, bytes: usize, together: usize) -> Result<(), ApiError> {
        self.bytes += bytes;
        let all = self.of.0.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match all <= together {
            true => Ok(()),
            false => Err(ApiError::new(
                ErrorClass::RateLimited,
                format!(
                    "the requests of this session that have not ended hold more than {together} \
                     bytes; wait for some to end"
                ),
            )
            .retry_after(1.0)),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(ErrorClass::TooLarge, format!("the request body is larger than {limit} bytes"))
}
