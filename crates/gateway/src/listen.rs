//! Serving the routes on TCP and on a Unix socket.

use axum::Router;
use axum::serve::ListenerExt;
use std::io;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

/// Serves until `shutdown`, then lets running replies end.
pub async fn serve_tcp(
    router: Router,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> io::Result<()> {
    // Tokens are small writes; waiting to fill a packet would add tens of milliseconds.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY not set");
        }
    });
    axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned()).await
}

/// Serves until `shutdown`, then lets running replies end.
pub async fn serve_unix(
    router: Router,
    listener: UnixListener,
    shutdown: CancellationToken,
) -> io::Result<()> {
    axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned()).await
}
