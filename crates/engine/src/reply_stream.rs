//! Drives a streamed reply: bytes to events of the stream to [`EngineEvent`]s.
//!
//! Owns the body, its parser and its deadlines. What a chunk means is an adapter's
//! [`ReplyReader`]. Dropping the stream drops the body, which closes the connection and so
//! cancels the generation.

use crate::transport::{Body, Transport};
use crate::{EngineEnd, EngineError, EngineEvent, EngineStream};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use polar_types::ErrorClass;
use polar_wire::sse::SseParser;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// The largest chunk: one with the ids of a prompt of some million tokens.
const LARGEST_EVENT: usize = 64 << 20;

/// Time to read the end of a body, so that its connection can be used again.
const DRAIN: Duration = Duration::from_secs(5);

/// What an adapter makes of its engine's chunks.
pub(crate) trait ReplyReader: Send + 'static {
    /// Takes one chunk's JSON in.
    fn read(&mut self, data: &[u8], out: &mut VecDeque<EngineEvent>) -> Result<(), EngineError>;

    /// The stream is complete. Events that are still held back go to `out`.
    fn finish(&mut self, out: &mut VecDeque<EngineEvent>) -> Result<EngineEnd, EngineError>;
}

/// Asks the engine what it does not say in a reply, once the reply is complete; gives the
/// last events, [`EngineEvent::End`] among them.
pub(crate) type Settle = Box<dyn FnOnce(EngineEnd) -> BoxFuture<'static, Vec<EngineEvent>> + Send>;

/// The events of a whole reply, which is read like a stream of one chunk.
pub(crate) async fn whole(
    reply: &[u8],
    mut reader: impl ReplyReader,
    settle: Settle,
) -> Result<EngineStream, EngineError> {
    let mut events = VecDeque::new();
    reader.read(reply, &mut events)?;
    let end = reader.finish(&mut events)?;
    events.extend(settle(end).await);
    Ok(Box::pin(stream::iter(events.into_iter().map(Ok))))
}

/// The events of a streamed reply.
pub(crate) fn streamed(
    body: Body,
    reader: impl ReplyReader,
    settle: Settle,
    transport: Transport,
) -> EngineStream {
    let reading = Reading {
        body,
        parser: SseParser::new(LARGEST_EVENT),
        reader,
        settle: Some(settle),
        queue: VecDeque::new(),
        deadline: Instant::now() + transport.timeouts().call,
        wait: transport.timeouts().first_byte,
        transport,
    };
    Box::pin(stream::unfold(
        Some(Box::new(reading)),
        |reading: Option<Box<Reading<_>>>| async move {
            let mut reading = reading?;
            match reading.next().await {
                Ok(event) => {
                    let ended = matches!(event, EngineEvent::End(_));
                    Some((Ok(event), (!ended).then_some(reading)))
                }
                Err(error) => Some((Err(error), None)),
            }
        },
    ))
}

struct Reading<R> {
    body: Body,
    parser: SseParser,
    reader: R,
    settle: Option<Settle>,
    queue: VecDeque<EngineEvent>,
    deadline: Instant,
    /// How long the next piece may take.
    wait: Duration,
    transport: Transport,
}

impl<R: ReplyReader> Reading<R> {
    async fn next(&mut self) -> Result<EngineEvent, EngineError> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Ok(event);
            }
            if self.take_ready()? {
                self.finish().await?;
            } else {
                self.read_more().await?;
            }
        }
    }

    /// Reads the chunks that are there until one of them gives events; true when the mark
    /// that ends the stream was among them.
    fn take_ready(&mut self) -> Result<bool, EngineError> {
        while self.queue.is_empty() {
            let Some(event) = self.parser.next_event().map_err(EngineError::malformed)? else {
                return Ok(false);
            };
            if event.is_done() {
                return Ok(true);
            }
            // SGLang names an event that carries an error or ids; the data tells which.
            self.reader.read(event.data, &mut self.queue)?;
        }
        Ok(false)
    }

    async fn read_more(&mut self) -> Result<(), EngineError> {
        if !self.queue.is_empty() {
            return Ok(());
        }
        let until = (Instant::now() + self.wait).min(self.deadline);
        match tokio::time::timeout_at(until, self.body.next()).await {
            Ok(Some(Ok(bytes))) => {
                self.parser.push(&bytes);
                self.wait = self.transport.timeouts().idle;
                Ok(())
            }
            Ok(Some(Err(error))) => Err(self.transport.broken(&error)),
            Ok(None) => Err(EngineError::new(
                ErrorClass::Unavailable,
                format!(
                    "the engine at {} closed its reply before the end; check its log",
                    self.transport.base()
                ),
            )),
            Err(_) if until == self.deadline => {
                Err(self.transport.late(self.transport.timeouts().call))
            }
            Err(_) => Err(self.transport.late(self.wait)),
        }
    }

    async fn finish(&mut self) -> Result<(), EngineError> {
        let end = self.reader.finish(&mut self.queue)?;
        self.drain();
        let settle = self.settle.take();
        match settle {
            Some(settle) => self.queue.extend(settle(end).await),
            None => self.queue.push_back(EngineEvent::End(end)),
        }
        Ok(())
    }

    /// Reads the body to its end without keeping the reply waiting for it.
    fn drain(&mut self) {
        let mut body = std::mem::replace(&mut self.body, Box::pin(stream::empty()));
        if let Some(None | Some(Err(_))) = body.next().now_or_never() {
            return;
        }
        tokio::spawn(tokio::time::timeout(DRAIN, async move {
            while let Some(Ok(_)) = body.next().await {}
        }));
    }
}
