//! A reply to a prompt of ids as server-sent events. What an event looks like is the place's,
//! see [`TokenView`].

use super::chat_stream::{FRAME_BYTES, event, event_stream};
use super::error::ApiError;
use super::generate::WeightSpans;
use super::generation::Generation;
use super::logprobs::{Scored, ScorerState};
use crate::fault::Fault;
use crate::sampling::{Batch, Broken, End, Player};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde_json::Value;
use std::io;
use std::time::Duration;

/// What came with one event.
pub(super) struct Piece<'a> {
    pub ids: &'a [u32],
    /// What becomes visible with the ids.
    pub text: String,
    /// One for each id.
    pub scored: Vec<Scored>,
    /// Whether it begins the reply.
    pub first: bool,
    pub end: Option<&'a End>,
    /// Weights of the reply so far.
    pub spans: &'a WeightSpans,
}

/// How a place shows a reply.
pub(super) trait TokenView: Send {
    /// Likeliest tokens that are scored beside the sampled one.
    fn top(&self) -> Option<usize>;

    /// One event.
    fn piece(&mut self, generation: &Generation, piece: Piece<'_>) -> Value;

    /// The event behind the last one, where asked for.
    fn usage(&self, generation: &Generation, usage: Value) -> Value;
}

struct Streaming {
    generation: Generation,
    view: Box<dyn TokenView>,
    player: Option<Player>,
    scorer: ScorerState,
    spans: WeightSpans,
    tokens: usize,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Playing,
    Breaking,
    Done,
}

pub(super) fn respond(
    generation: Generation,
    view: Box<dyn TokenView>,
) -> Result<Response, ApiError> {
    if generation.fields.choices() != 1 {
        let message = "The simulator streams one reply to a prompt of ids.";
        return Err(ApiError::bad_request(message).of("n"));
    }
    let scorer = generation.scorer();
    let streaming = Streaming {
        generation,
        view,
        player: None,
        scorer,
        spans: WeightSpans::default(),
        tokens: 0,
        phase: Phase::Playing,
    };
    let frames = stream::unfold(streaming, |mut streaming| async move {
        let frame = streaming.frame().await?;
        Some((frame, streaming))
    });
    Ok(event_stream(Body::from_stream(frames)))
}

impl Streaming {
    /// The next bytes to send; none at the end.
    async fn frame(&mut self) -> Option<io::Result<Bytes>> {
        match self.phase {
            Phase::Playing => Some(Ok(self.play().await.into())),
            Phase::Breaking => {
                // Lets the connection send what it has before it is cut.
                tokio::time::sleep(Duration::from_millis(5)).await;
                self.phase = Phase::Done;
                Some(Err(io::ErrorKind::ConnectionReset.into()))
            }
            Phase::Done => None,
        }
    }

    /// Plays one step, or several while they cost no time.
    async fn play(&mut self) -> Vec<u8> {
        let mut frame = Vec::new();
        let mut player = match self.player.take() {
            Some(player) => player,
            None => match self.generation.start(self.generation.chunk()).await.pop() {
                Some(player) => player,
                None => {
                    self.phase = Phase::Done;
                    return frame;
                }
            },
        };
        let simulator = std::sync::Arc::clone(&self.generation.simulator);
        let unpaced = simulator.config.speed.tokens_per_second.is_none();
        while self.phase == Phase::Playing {
            match player.next(&simulator.control).await {
                Some(Ok(batch)) => self.show(&player, &batch, &mut frame),
                Some(Err(Broken)) => self.phase = Phase::Breaking,
                None => self.phase = Phase::Done,
            }
            let stalls = matches!(self.generation.fault, Some(Fault::StallAfter(_)));
            if !unpaced || frame.len() >= FRAME_BYTES || stalls || simulator.control.is_paused() {
                break;
            }
        }
        self.player = Some(player);
        frame
    }

    fn show(&mut self, player: &Player, batch: &Batch, frame: &mut Vec<u8>) {
        let generation = &self.generation;
        let script = player.script();
        let ids = &script.ids[batch.range.clone()];
        self.spans.add(&batch.version, ids.len());
        self.tokens += ids.len();
        generation.simulator.activity.sampled(ids.len());
        let top = self.view.top().unwrap_or(0);
        let scorer = std::mem::replace(&mut self.scorer, generation.scorer());
        let mut scorer = scorer.resume(&generation.simulator);
        let scored = ids.iter().map(|id| scorer.score(*id, &batch.weights, top)).collect();
        self.scorer = scorer.pause();
        let piece = Piece {
            ids,
            text: script.texts[batch.range.clone()].concat(),
            scored,
            first: batch.range.start == 0,
            end: batch.end.as_ref(),
            spans: &self.spans,
        };
        frame.extend_from_slice(&event(&self.view.piece(generation, piece)));
        if batch.end.is_some() {
            self.finish(frame);
        }
    }

    fn finish(&mut self, frame: &mut Vec<u8>) {
        let options = self.generation.fields.stream_options;
        if options.is_some_and(|options| options.include_usage) {
            let mut usage = self.generation.usage(self.tokens, None);
            usage["prompt_tokens_details"]["created_cache_tokens"] = Value::Null;
            frame.extend_from_slice(&event(&self.view.usage(&self.generation, usage)));
        }
        frame.extend_from_slice(b"data: [DONE]\n\n");
        self.generation.running.finish();
        self.phase = Phase::Done;
    }
}
