//! Serving the routes on TCP and on a Unix socket.

use axum::Router;
use std::io;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

/// Serves until `shutdown`, then lets running replies end.
pub async fn serve_tcp(
    router: Router,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let listener = polar_http::sending_at_once(listener);
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
