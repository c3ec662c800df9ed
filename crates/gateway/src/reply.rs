//! Drives one call: engine events in, the dialect's bytes out, the record in between.
//!
//! [`Driver`] owns the engine's stream. Whoever polls it is the harness's connection,
//! so that a harness that hangs up drops the driver, which cancels the generation and
//! journals what was sampled as undelivered. No task runs behind a call.

use crate::prompt::Prompt;
use crate::session::{Session, SharedCall, lock};
use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt};
use polar_convo::{
    ApiError, Asked, FinishReason, LossKind, OpenTurn, Reply, ReplyEnd, ReplyEvent, ReplyHead,
    Request, StreamEncoder,
};
use polar_engine::{EngineEnd, EngineError, EngineEvent, EngineStream};
use polar_record::{CallFingerprint, CallRecord};
use polar_types::ErrorClass;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

type Starting = Pin<Box<dyn Future<Output = Result<EngineStream, ApiError>> + Send>>;

enum Engine {
    /// The engine has not accepted the call yet.
    Starting(Starting),
    Running(EngineStream),
    /// Ended, failed, or cancelled by dropping its stream.
    Gone,
}

/// What a call does next.
pub(crate) enum Step {
    /// The prompt's length is known; always before the first chunk when it comes at all.
    Prompt { tokens: u64 },
    /// More of the reply.
    Chunk { events: Vec<ReplyEvent>, ids: Vec<u32>, logprobs: Vec<Option<f32>> },
    /// The reply is complete and in the journal.
    End(ReplyEnd),
    /// It failed, and the failure is in the journal.
    Failed(ApiError),
}

/// What the session remembers once a call is answered. Until then the turn of a request that a
/// later one may refer to is held in its history.
pub(crate) struct Answered {
    session: Arc<Session>,
    reply_id: String,
    asked: Option<(OpenTurn, Asked)>,
    /// In token mode, once it is made.
    prompt: Arc<OnceLock<Prompt>>,
}

impl Answered {
    pub(crate) fn new(session: &Arc<Session>, head: &ReplyHead, request: &Request) -> Self {
        let asked = Some((lock(&session.responses).begin(request), Asked::of(request)));
        let (session, reply_id) = (session.clone(), head.id.clone());
        Self { session, reply_id, asked, prompt: Arc::default() }
    }

    /// Where the call's prompt is to be left.
    pub(crate) fn prompt(&self) -> Arc<OnceLock<Prompt>> {
        Arc::clone(&self.prompt)
    }

    fn fingerprint(&self, record: &CallRecord) -> Option<CallFingerprint> {
        self.session.prompts.as_ref()?.fingerprint(self.prompt.get()?, record)
    }

    /// `record` is the call's, at `index` in the journal.
    fn by(mut self, reply: &Reply, record: &CallRecord, index: u32) {
        if let (Some(prompts), Some(prompt)) = (&self.session.prompts, self.prompt.get()) {
            prompts.remember(prompt, record, index);
        }
        if let Some((turn, asked)) = self.asked.take() {
            lock(&self.session.responses).remember(&self.reply_id, turn, reply);
            lock(&self.session.turns).remember(asked, reply);
        }
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        if let Some((turn, _)) = self.asked.take() {
            lock(&self.session.responses).forget(turn);
        }
    }
}

/// One call from its registration to its record.
pub(crate) struct Driver {
    session: Arc<Session>,
    key: u64,
    call: SharedCall,
    answered: Option<Answered>,
    engine: Engine,
    deadline: Pin<Box<Sleep>>,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Position in the journal, once recorded.
    recorded: Option<u32>,
    delivered: bool,
}

impl Driver {
    pub(crate) fn new(
        session: Arc<Session>,
        (key, call): (u64, SharedCall),
        answered: Answered,
        start: Starting,
        timeout: Duration,
    ) -> Self {
        let closed = Box::pin(session.closed.clone().cancelled_owned());
        Self {
            session,
            key,
            call,
            answered: Some(answered),
            engine: Engine::Starting(start),
            deadline: Box::pin(tokio::time::sleep(timeout)),
            closed,
            recorded: None,
            delivered: false,
        }
    }

    /// Waits until the engine accepts the call, at most `limit`. `Ok` also when it has
    /// not answered by then.
    pub(crate) async fn accepted(&mut self, limit: Duration) -> Result<(), ApiError> {
        let waited = tokio::time::timeout(
            limit,
            std::future::poll_fn(|cx| match self.poll_start(cx) {
                Poll::Pending => self.poll_interrupts(cx).map(Err),
                ready => ready,
            }),
        );
        waited.await.unwrap_or(Ok(()))
    }

    /// The next step. Nothing comes after `End` and `Failed`.
    pub(crate) async fn next(&mut self) -> Step {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The harness's connection has taken the last byte.
    pub(crate) fn mark_delivered(&mut self) {
        self.delivered = true;
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        if let Poll::Ready(Err(error)) = self.poll_start(cx) {
            return Poll::Ready(Step::Failed(error));
        }
        if let Engine::Running(stream) = &mut self.engine
            && let Poll::Ready(event) = stream.poll_next_unpin(cx)
        {
            return Poll::Ready(self.take(event));
        }
        self.poll_interrupts(cx).map(Step::Failed)
    }

    /// Drives the start only. `Ready(Ok)` once the stream is there.
    fn poll_start(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ApiError>> {
        match &mut self.engine {
            Engine::Starting(start) => match ready!(start.poll_unpin(cx)) {
                Ok(stream) => {
                    self.engine = Engine::Running(stream);
                    Poll::Ready(Ok(()))
                }
                Err(error) => Poll::Ready(Err(self.fail(error))),
            },
            Engine::Running(_) | Engine::Gone => Poll::Ready(Ok(())),
        }
    }

    fn poll_interrupts(&mut self, cx: &mut Context<'_>) -> Poll<ApiError> {
        if self.closed.poll_unpin(cx).is_ready() {
            let error = ApiError::new(ErrorClass::Cancelled, "the session was closed");
            return Poll::Ready(self.fail(error));
        }
        if self.deadline.poll_unpin(cx).is_ready() {
            let error = ApiError::new(
                ErrorClass::Timeout,
                "the call took longer than the gateway allows; raise the gateway's call timeout \
                 or pin a smaller max_tokens",
            );
            return Poll::Ready(self.fail(error));
        }
        Poll::Pending
    }

    fn take(&mut self, event: Option<Result<EngineEvent, EngineError>>) -> Step {
        match event {
            Some(Ok(EngineEvent::PromptIds(ids))) => {
                let tokens = ids.len() as u64;
                if let Some(call) = lock(&self.call).as_mut() {
                    call.prompt(ids);
                }
                Step::Prompt { tokens }
            }
            Some(Ok(EngineEvent::Chunk { events, ids, logprobs })) => {
                if let Some(call) = lock(&self.call).as_mut() {
                    call.chunk(&events, &ids, &logprobs);
                }
                Step::Chunk { events, ids, logprobs }
            }
            Some(Ok(EngineEvent::End(end))) => self.end(end),
            Some(Err(error)) => Step::Failed(self.fail(engine_failure(&error))),
            None => Step::Failed(self.fail(ApiError::new(
                ErrorClass::Unavailable,
                "the engine's reply ended without an end mark",
            ))),
        }
    }

    /// Writes the record, then lets the end be told. If it cannot be written the harness
    /// gets an error instead: a reply that is not in the journal must not be acted on.
    fn end(&mut self, end: EngineEnd) -> Step {
        self.engine = Engine::Gone;
        // Held until the record is written: a session that closes meanwhile waits for it, and does
        // not seal the journal over a call that is in nobody's hands.
        let mut running = lock(&self.call);
        let Some(call) = running.take() else {
            return Step::Failed(ApiError::new(ErrorClass::Cancelled, "the session was closed"));
        };
        // An aborted reply is told as an error, and nobody learns its id.
        let answered = self.answered.take().filter(|_| end.finish != FinishReason::Abort);
        let answered = answered.map(|answered| (answered, call.reply.clone()));
        let mut record = call.into_record(&end);
        if let Some((answered, _)) = &answered {
            record.meta.fingerprint = answered.fingerprint(&record);
        }
        match self.session.append(&record) {
            Ok(index) => {
                self.recorded = Some(index);
                if let Some((answered, reply)) = answered {
                    answered.by(&reply, &record, index);
                }
                Step::End(ReplyEnd {
                    finish: end.finish,
                    stop_sequence: end.stop_sequence,
                    usage: end.usage,
                })
            }
            Err(error) => {
                tracing::error!(%error, "call not journalled");
                Step::Failed(ApiError::new(
                    ErrorClass::Internal,
                    format!("the call could not be journalled: {error}"),
                ))
            }
        }
    }

    /// Ends a reply that cannot be told in the harness's dialect.
    pub(crate) fn give_up(&mut self) {
        self.fail(ApiError::new(
            ErrorClass::Internal,
            "the engine's reply holds calls in a way that the harness's dialect cannot tell",
        ));
    }

    fn fail(&mut self, error: ApiError) -> ApiError {
        self.engine = Engine::Gone;
        if let Some(call) = lock(&self.call).take() {
            match self.session.append(&call.into_failed_record(&error)) {
                Ok(index) => self.recorded = Some(index),
                Err(error) => tracing::error!(%error, "failed call not journalled"),
            }
        }
        error
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(call) = lock(&self.call).take() {
            match self.session.append(&call.into_cancelled_record("the harness hung up")) {
                Ok(index) => self.recorded = Some(index),
                Err(error) => tracing::error!(%error, "cancelled call not journalled"),
            }
        }
        if let Some(index) = self.recorded {
            self.session.note_delivery(index, self.delivered);
        }
        self.session.end(self.key);
    }
}

/// An engine's failure, as the harness is told.
pub(crate) fn engine_failure(error: &EngineError) -> ApiError {
    ApiError {
        retry_after: error.retry_after,
        context: error.context,
        loss: error.lost_reply.then_some(LossKind::ReplyUnreadable),
        ..ApiError::new(error.class, format!("inference engine: {}", error.message))
    }
}

/// Bytes gathered before they are handed on, when the engine is faster than the
/// harness. Bounds the memory of a call; what is ready at once still goes out at once.
const GATHER_BYTES: usize = 16 << 10;

/// The last frame is in the buffer or out.
#[derive(Clone, Copy)]
struct Ended {
    /// Whether it told a complete reply and not an error.
    whole: bool,
}

/// The body of a streamed reply.
pub(crate) struct StreamBody {
    driver: Driver,
    encoder: StreamEncoder,
    end: Option<Ended>,
    buffer: Vec<u8>,
    keep_alive: Duration,
    next_keep_alive: Pin<Box<Sleep>>,
}

impl StreamBody {
    pub(crate) fn new(driver: Driver, encoder: StreamEncoder, keep_alive: Duration) -> Self {
        Self {
            driver,
            encoder,
            end: None,
            buffer: Vec::new(),
            keep_alive,
            next_keep_alive: Box::pin(tokio::time::sleep(keep_alive)),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Prompt { tokens } => {
                self.encoder.set_prompt_tokens(tokens);
                self.encoder.start(&mut self.buffer);
            }
            Step::Chunk { events, ids, logprobs } => {
                for event in &events {
                    self.encoder.event(event, &mut self.buffer);
                }
                self.encoder.tokens(&ids, &logprobs, &mut self.buffer);
                if self.encoder.is_closed() {
                    // The harness was told of an error: what else comes is not for it.
                    self.driver.give_up();
                    self.end = Some(Ended { whole: false });
                }
            }
            Step::End(end) => {
                self.encoder.end(&end, &mut self.buffer);
                // An aborted reply ends in an error: the harness asks again.
                self.end = Some(Ended { whole: end.as_error().is_none() });
            }
            Step::Failed(error) => {
                self.encoder.error(&error, &mut self.buffer);
                self.end = Some(Ended { whole: false });
            }
        }
    }
}

impl Stream for StreamBody {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(Ended { whole }) = this.end {
                if this.buffer.is_empty() {
                    // Asked for more after the last frame: the connection has taken it.
                    if whole {
                        this.driver.mark_delivered();
                    }
                    return Poll::Ready(None);
                }
                return Poll::Ready(Some(Ok(this.flush())));
            }
            if this.buffer.len() >= GATHER_BYTES {
                return Poll::Ready(Some(Ok(this.flush())));
            }
            match this.driver.poll_next(cx) {
                Poll::Ready(step) => this.step(step),
                Poll::Pending if !this.buffer.is_empty() => {
                    return Poll::Ready(Some(Ok(this.flush())));
                }
                Poll::Pending => {
                    ready!(this.next_keep_alive.poll_unpin(cx));
                    this.encoder.keep_alive(&mut this.buffer);
                    this.rest();
                }
            }
        }
    }
}

impl StreamBody {
    fn flush(&mut self) -> Bytes {
        self.rest();
        Bytes::from(std::mem::take(&mut self.buffer))
    }

    fn rest(&mut self) {
        self.next_keep_alive.as_mut().reset(Instant::now() + self.keep_alive);
    }
}

/// The body of a unary reply: one piece, then the delivery mark.
pub(crate) struct UnaryBody {
    driver: Driver,
    body: Option<Bytes>,
}

impl UnaryBody {
    pub(crate) fn new(driver: Driver, body: Vec<u8>) -> Self {
        Self { driver, body: Some(Bytes::from(body)) }
    }
}

impl Stream for UnaryBody {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let body = self.body.take();
        if body.is_some() {
            // A body of known length is not asked again after its last byte.
            self.driver.mark_delivered();
        }
        Poll::Ready(body.map(Ok))
    }
}
