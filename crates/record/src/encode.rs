//! Turns a call into its frame: finds what earlier calls already said and keeps the rest.
//!
//! Owns what is needed to find that again, which is the distinct tokens and a number per
//! distinct message. Does no IO.

use crate::frame::{self, kind, push_frame, push_holed, push_u32, push_u32s};
use crate::prefix_tree::{Position, PrefixTree};
use crate::values::{FreshValues, ValueNumbers};
use crate::{CallMeta, CallRecord, JournalError, SessionHeader};
use polar_types::CallId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A beginning taken over from an earlier call.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Shared {
    pub(crate) base: Option<u32>,
    pub(crate) shared: usize,
}

/// A list of messages as what it adds to an earlier call's.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MessageDelta {
    #[serde(flatten)]
    pub(crate) shared: Shared,
    pub(crate) tail: Vec<u32>,
}

/// The JSON part of a call's payload. `V` is a value borrowed when written and raw text
/// when read.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CallText<V> {
    pub(crate) meta: CallMeta,
    pub(crate) values: Vec<V>,
    pub(crate) messages: MessageDelta,
    pub(crate) reply: u32,
    pub(crate) tools: Option<u32>,
    pub(crate) prompt: Shared,
}

pub(crate) const HAS_PROMPT_IDS: u8 = 1;
pub(crate) const HAS_SAMPLED_IDS: u8 = 2;

/// What earlier calls of the journal said.
#[derive(Debug, Default)]
pub(crate) struct CallEncoder {
    pub(crate) calls: u32,
    tokens: PrefixTree,
    messages: PrefixTree,
    values: ValueNumbers,
}

/// A call's frame, and what the encoder has to remember once it is written.
pub(crate) struct Encoded<'a> {
    pub(crate) frame: Vec<u8>,
    prompt: Option<(Position, &'a [u32])>,
    sampled: &'a [u32],
    messages: Position,
    message_tail: Vec<u32>,
    reply: u32,
    fresh: FreshValues<'a>,
}

/// The bytes a journal begins with.
pub(crate) fn beginning(header: &SessionHeader) -> Result<Vec<u8>, JournalError> {
    let header = serde_json::to_vec(header)?;
    let mut out = frame::preamble();
    let fits = push_frame(&mut out, kind::SESSION, |payload| payload.extend_from_slice(&header));
    if fits { Ok(out) } else { Err(JournalError::TooLarge) }
}

/// The frame that says whether a reply reached the harness.
pub(crate) fn delivery(index: u32, delivered: bool) -> Vec<u8> {
    let mut out = Vec::new();
    push_frame(&mut out, kind::DELIVERY, |payload| {
        payload.extend_from_slice(&index.to_le_bytes());
        payload.push(u8::from(delivered));
    });
    out
}

/// The last frame.
pub(crate) fn end(calls: u32) -> Vec<u8> {
    let mut out = Vec::new();
    push_frame(&mut out, kind::END, |payload| payload.extend_from_slice(&calls.to_le_bytes()));
    out
}

impl CallEncoder {
    /// Encodes `record` as the next call. Nothing is remembered before [`CallEncoder::keep`].
    pub(crate) fn encode<'a>(&self, record: &'a CallRecord) -> Result<Encoded<'a>, JournalError> {
        let mut fresh = FreshValues::default();
        let mut number = |value: &'a Value| self.values.number(value, &mut fresh);
        let messages: Vec<u32> = record.messages.iter().map(&mut number).collect();
        let reply = number(&record.reply);
        let tools = record.tools.as_ref().map(&mut number);

        let messages_at = self.messages.find(self.messages.root(), &messages);
        let message_tail = messages[messages_at.depth()..].to_vec();
        let prompt_ids = record.prompt_ids.as_deref();
        let prompt_at = self.tokens.find(self.tokens.root(), prompt_ids.unwrap_or_default());
        let prompt = prompt_ids.map(|ids| (prompt_at, &ids[prompt_at.depth()..]));

        let text = CallText {
            meta: CallMeta { call_id: CallId::of_index(self.calls), ..record.meta.clone() },
            values: fresh.values.clone(),
            messages: MessageDelta {
                shared: shared(&self.messages, messages_at),
                tail: message_tail.clone(),
            },
            reply,
            tools,
            prompt: shared(&self.tokens, prompt_at),
        };
        let text = serde_json::to_vec(&text)?;
        let sampled = record.sampled_ids.as_deref();
        let mut frame = Vec::new();
        let fits = push_frame(&mut frame, kind::CALL, |payload| {
            push_u32(payload, text.len());
            payload.extend_from_slice(&text);
            payload.push(
                u8::from(prompt.is_some()) * HAS_PROMPT_IDS
                    + u8::from(sampled.is_some()) * HAS_SAMPLED_IDS,
            );
            push_u32s(payload, prompt.map_or(&[], |(_, tail)| tail));
            push_u32s(payload, sampled.unwrap_or_default());
            push_holed(payload, &record.logprobs);
        });
        if !fits {
            return Err(JournalError::TooLarge);
        }
        Ok(Encoded {
            frame,
            prompt,
            sampled: sampled.unwrap_or_default(),
            messages: messages_at,
            message_tail,
            reply,
            fresh,
        })
    }

    /// Makes a written call known to those after it, and gives its index.
    pub(crate) fn keep(&mut self, encoded: Encoded<'_>) -> u32 {
        let index = self.calls;
        self.calls += 1;
        self.values.keep(encoded.fresh);
        let end = self.messages.insert(encoded.messages, &encoded.message_tail, index);
        self.messages.insert(end, &[encoded.reply], index);
        if let Some((at, tail)) = encoded.prompt {
            let end = self.tokens.insert(at, tail, index);
            self.tokens.insert(end, encoded.sampled, index);
        }
        index
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.tokens.resident_bytes() + self.messages.resident_bytes() + self.values.resident_bytes()
    }
}

fn shared(tree: &PrefixTree, at: Position) -> Shared {
    let base = if at.depth() == 0 { None } else { tree.latest_call(at) };
    Shared { base, shared: at.depth() }
}
