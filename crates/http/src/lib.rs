//! What the HTTP listeners share: a refusal reaches its client, and small writes go out
//! at once.
//!
//! A connection that is closed over unread bytes is reset, and the reset can overtake the
//! answer: a client that still sends a large body would see a broken connection in place
//! of the error. So the rest of the body is read first.
//!
//! Holds no state between requests. It must not know routes, tokens or the shape of
//! errors: those are each listener's own.

pub mod metrics;
#[cfg(feature = "testing")]
pub mod testing;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use axum::serve::{Listener, ListenerExt};
use futures_util::StreamExt;
use http::{StatusCode, header};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Longest wait for the rest of a body that nobody needs. A client that takes longer gets
/// its answer all the same.
const LONGEST: Duration = Duration::from_secs(5);

/// Middleware, for the outside of a router: before an answer with an error status goes
/// out, whatever the handlers left of the request's body is read and thrown away.
pub async fn read_to_the_end_before_refusing(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let asks_first = parts.headers.contains_key(header::EXPECT);
    let rest = Rest::of(body);
    let response = next.run(Request::from_parts(parts, rest.body())).await;
    let status = response.status();
    let refused = status.is_client_error() || status.is_server_error();
    // One that asks before it sends has sent nothing yet, and one that stopped sending
    // has been waited for.
    let nothing_comes = asks_first && !rest.is_begun() || status == StatusCode::REQUEST_TIMEOUT;
    if refused && !nothing_comes {
        let discard = async { while let Some(Ok(_)) = poll_fn(|cx| rest.poll(cx)).await {} };
        // Out of time is no reason to say anything else.
        let _ = tokio::time::timeout(LONGEST, discard).await;
    }
    response
}

/// The listener with connections that send small writes at once. Tokens and events are
/// such; waiting to fill a packet would delay each by up to 40 ms.
pub fn sending_at_once(listener: TcpListener) -> impl Listener<Io = TcpStream, Addr = SocketAddr> {
    listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY not set");
        }
    })
}

/// What is left of a body, in the hands of a handler and of the middleware around it.
#[derive(Clone)]
struct Rest(Arc<Mutex<Frames>>);

struct Frames {
    stream: BodyDataStream,
    begun: bool,
}

impl Rest {
    fn of(body: Body) -> Self {
        Self(Arc::new(Mutex::new(Frames { stream: body.into_data_stream(), begun: false })))
    }

    /// The same as a body for the handler.
    fn body(&self) -> Body {
        let rest = self.clone();
        Body::from_stream(futures_util::stream::poll_fn(move |cx| rest.poll(cx)))
    }

    fn is_begun(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).begun
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, axum::Error>>> {
        let mut frames = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        frames.begun = true;
        frames.stream.poll_next_unpin(cx)
    }
}
