//! Connections that end with the server, as they do when a process is killed: a reply under
//! way breaks off.

use axum::serve::Listener;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// A listener whose connections break once the server is stopped.
pub(crate) struct Ending<L> {
    inner: L,
    stop: CancellationToken,
}

impl<L> Ending<L> {
    pub(crate) fn new(inner: L, stop: CancellationToken) -> Self {
        Self { inner, stop }
    }
}

impl<L: Listener<Io = TcpStream>> Listener for Ending<L> {
    type Io = EndingStream;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = self.inner.accept().await;
        let stopped = Box::pin(self.stop.clone().cancelled_owned());
        (EndingStream { stream, stop: self.stop.clone(), stopped }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.inner.local_addr()
    }
}

pub(crate) struct EndingStream {
    stream: TcpStream,
    stop: CancellationToken,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl EndingStream {
    /// An error once the server is stopped. The reader is woken then, and a server reads
    /// while it answers, to see whether its client is still there.
    fn unless_stopped(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.stop.is_cancelled() || self.stopped.as_mut().poll(context).is_ready() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }
}

impl AsyncRead for EndingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.unless_stopped(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for EndingStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.stop.is_cancelled() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
