//! Reads a journal back: a session's calls, and how their prompts continue each other.

use crate::encode::{self, CallEncoder, CallText, HAS_PROMPT_IDS, HAS_SAMPLED_IDS, Shared};
use crate::frame::{Fields, Frame, FrameReader, MAGIC, MAJOR, MINOR, Next, kind};
use crate::prefix_tree::{Position, PrefixTree};
use crate::{CallMeta, CallRecord, JournalError, SessionHeader};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// Where the readable part of a journal ends, when that is not where its writer ended it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Bytes up to the end of the last whole frame.
    pub offset: u64,
    /// What is wrong behind it.
    pub what: String,
}

/// An earlier call and how much of its sequence another one begins with. Of several that
/// share as much it is the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nearest {
    /// Index of the earlier call.
    pub call: u32,
    /// Tokens or messages shared, the reply counted behind the prompt.
    pub shared: usize,
}

/// One call as recorded; its prompt and messages are in the session's trees.
#[derive(Debug)]
pub struct RecordedCall {
    /// Everything but tokens and messages.
    pub meta: CallMeta,
    /// Whether the reply reached the harness to its end. Absent when the process died
    /// before it was known; such a call counts as delivered, because an acknowledged call
    /// must not be lost and the harness may well have acted on it.
    pub delivered: Option<bool>,
    /// Logprob of each sampled id, holes as holes.
    pub logprobs: Vec<Option<f32>>,
    /// The earlier call whose tokens the prompt goes along with furthest.
    pub nearest_by_tokens: Option<Nearest>,
    /// The earlier call whose messages the prompt goes along with furthest.
    pub nearest_by_messages: Option<Nearest>,
    prompt_end: Option<Position>,
    sampled: Sampled,
    exchange_end: Position,
    reply: u32,
    tools: Option<u32>,
}

#[derive(Debug)]
enum Sampled {
    Missing,
    /// Behind the prompt in the tree of tokens.
    End(Position),
    /// Ids without a prompt have no place in the tree.
    Apart(Vec<u32>),
}

impl RecordedCall {
    /// Whether the reply counts as seen by the harness; see [`RecordedCall::delivered`]. A
    /// call cancelled because the harness left was not, even when nobody noted it.
    pub fn counts_as_delivered(&self) -> bool {
        self.delivered.unwrap_or(self.meta.finish_reason != "cancelled")
    }

    /// End of the prompt in the tree of tokens; absent when the engine gave no ids.
    pub fn prompt_end(&self) -> Option<Position> {
        self.prompt_end
    }

    /// End of prompt and sampled tokens in the tree of tokens; absent when either has no ids.
    pub fn sequence_end(&self) -> Option<Position> {
        match self.sampled {
            Sampled::End(end) => Some(end),
            Sampled::Missing | Sampled::Apart(_) => None,
        }
    }

    /// End of the prompt's messages and the reply behind them in the tree of messages.
    pub fn exchange_end(&self) -> Position {
        self.exchange_end
    }

    /// Messages in the prompt.
    pub fn prompt_messages(&self) -> usize {
        self.exchange_end.depth() - 1
    }

    /// Number of the reply: equal for equal messages within the session.
    pub fn reply_number(&self) -> u32 {
        self.reply
    }

    /// Number of the tools offered: equal for equal tools within the session.
    pub fn tools_number(&self) -> Option<u32> {
        self.tools
    }

    /// Tokens sampled: the ids given, or else the engine's own count.
    pub fn sampled_tokens(&self) -> u64 {
        match (&self.sampled, self.prompt_end) {
            (Sampled::End(end), Some(prompt)) => (end.depth() - prompt.depth()) as u64,
            (Sampled::Apart(ids), _) => ids.len() as u64,
            _ => self.meta.sampled_tokens,
        }
    }
}

/// A session's calls, read back. Holds each distinct token and message once.
#[derive(Debug)]
pub struct RecordedSession {
    /// Whose calls.
    pub header: SessionHeader,
    /// Whether the writer ended the journal.
    pub sealed: bool,
    /// Why reading stopped before the end; all calls before are whole.
    pub damage: Option<Damage>,
    calls: Vec<RecordedCall>,
    tokens: PrefixTree,
    messages: PrefixTree,
    values: Vec<Box<str>>,
}

impl RecordedSession {
    /// Reads the journal at `path`.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, JournalError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|source| JournalError::Io {
            doing: "open",
            path: path.to_owned(),
            source,
        })?;
        Self::from_reader(BufReader::new(file))
    }

    /// Reads a journal that is in memory.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, JournalError> {
        Self::from_reader(bytes)
    }

    /// The session that a journal of these calls would give back, each with whether its
    /// reply was delivered.
    pub fn from_calls<'a>(
        header: &SessionHeader,
        calls: impl IntoIterator<Item = (&'a CallRecord, Option<bool>)>,
    ) -> Result<Self, JournalError> {
        let mut bytes = encode::beginning(header)?;
        let mut encoder = CallEncoder::default();
        for (call, delivered) in calls {
            let encoded = encoder.encode(call)?;
            bytes.extend_from_slice(&encoded.frame);
            let index = encoder.keep(encoded);
            if let Some(delivered) = delivered {
                bytes.extend(encode::delivery(index, delivered));
            }
        }
        bytes.extend(encode::end(encoder.calls));
        Self::from_bytes(&bytes)
    }

    /// Reads a journal from its first byte.
    pub fn from_reader(mut source: impl Read) -> Result<Self, JournalError> {
        let (offset, minor) = read_preamble(&mut source)?;
        let mut frames = FrameReader::new(source, offset);
        let header = match frames.next()? {
            Next::Frame(frame) if frame.kind == kind::SESSION => {
                serde_json::from_slice(&frame.payload)
                    .map_err(|error| JournalError::Header(frames.damage(error.to_string())))?
            }
            Next::Bad(damage) => return Err(JournalError::Header(damage)),
            Next::Frame(_) | Next::End => {
                return Err(JournalError::Header(frames.damage("it is missing")));
            }
        };
        let mut session = Self {
            header,
            sealed: false,
            damage: None,
            calls: Vec::new(),
            tokens: PrefixTree::new(),
            messages: PrefixTree::new(),
            values: Vec::new(),
        };
        loop {
            let before = frames.offset;
            match frames.next()? {
                Next::End => break,
                Next::Bad(damage) => session.damage = Some(damage),
                Next::Frame(frame) => {
                    if let Err(what) = session.take_frame(frame, minor) {
                        session.damage = Some(Damage { offset: before, what });
                    }
                }
            }
            if session.damage.is_some() {
                break;
            }
        }
        Ok(session)
    }

    /// All calls, in the order in which they were recorded.
    pub fn calls(&self) -> &[RecordedCall] {
        &self.calls
    }

    /// All token sequences.
    pub fn tokens(&self) -> &PrefixTree {
        &self.tokens
    }

    /// All lists of messages, each message by its number, replies behind their prompts.
    pub fn messages_tree(&self) -> &PrefixTree {
        &self.messages
    }

    /// A call's prompt, whole.
    pub fn prompt_ids(&self, call: &RecordedCall) -> Option<Vec<u32>> {
        call.prompt_end().map(|end| self.tokens.path(end, 0))
    }

    /// What a call sampled.
    pub fn sampled_ids(&self, call: &RecordedCall) -> Option<Vec<u32>> {
        match (&call.sampled, call.prompt_end) {
            (Sampled::End(end), Some(prompt)) => Some(self.tokens.path(*end, prompt.depth())),
            (Sampled::Apart(ids), _) => Some(ids.clone()),
            _ => None,
        }
    }

    /// A call's messages from the `start`-th on, without its reply.
    pub fn messages(&self, call: &RecordedCall, start: usize) -> Vec<Value> {
        let mut numbers = self.messages.path(call.exchange_end, start.min(call.prompt_messages()));
        numbers.pop();
        numbers.into_iter().map(|number| self.value(number)).collect()
    }

    /// A call's reply.
    pub fn reply(&self, call: &RecordedCall) -> Value {
        self.value(call.reply)
    }

    /// The tools a call offered.
    pub fn tools(&self, call: &RecordedCall) -> Option<Value> {
        call.tools.map(|number| self.value(number))
    }

    /// A call, whole.
    pub fn record(&self, call: &RecordedCall) -> CallRecord {
        CallRecord {
            meta: call.meta.clone(),
            messages: self.messages(call, 0),
            tools: self.tools(call),
            reply: self.reply(call),
            prompt_ids: self.prompt_ids(call),
            sampled_ids: self.sampled_ids(call),
            logprobs: call.logprobs.clone(),
        }
    }

    /// Bytes held for tokens, logprobs and messages, counting what is reserved.
    pub fn resident_bytes(&self) -> usize {
        let logprobs: usize = self.calls.iter().map(|call| call.logprobs.capacity() * 8).sum();
        let text: usize = self.values.iter().map(|text| text.len()).sum();
        self.tokens.resident_bytes()
            + self.messages.resident_bytes()
            + self.calls.capacity() * size_of::<RecordedCall>()
            + self.values.capacity() * size_of::<Box<str>>()
            + logprobs
            + text
    }

    /// The distinct messages and sets of tools as JSON text, by their numbers.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|text| &**text)
    }

    /// A message by its number in the tree of messages, or a set of tools by its own.
    pub fn message(&self, number: u32) -> Value {
        self.value(number)
    }

    /// Stored values were checked to be JSON when they were read.
    fn value(&self, number: u32) -> Value {
        let text = self.values.get(number as usize);
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    fn take_frame(&mut self, frame: Frame, minor: u16) -> Result<(), String> {
        if self.sealed {
            return Err("there is more behind the end frame".to_owned());
        }
        let mut fields = Fields::new(&frame.payload);
        match frame.kind {
            kind::CALL => self.take_call(&frame.payload),
            kind::DELIVERY => {
                let (index, flag) = (fields.u32(), fields.u8());
                let call = index.and_then(|index| self.calls.get_mut(index as usize));
                let (Some(call), Some(flag @ 0..=1)) = (call, flag) else {
                    return Err("a delivery names no call of this journal".to_owned());
                };
                call.delivered = Some(flag == 1);
                Ok(())
            }
            kind::END => {
                let calls = fields.u32();
                self.sealed = calls == u32::try_from(self.calls.len()).ok();
                if self.sealed { Ok(()) } else { Err("calls are missing".to_owned()) }
            }
            _ if minor > MINOR => Ok(()),
            other => Err(format!("frames of kind {other} are unknown in this version")),
        }
    }

    fn take_call(&mut self, payload: &[u8]) -> Result<(), String> {
        let mut fields = Fields::new(payload);
        let len = fields.u32();
        let text = len.and_then(|len| fields.bytes(len as usize));
        let text: CallText<&RawValue> = serde_json::from_slice(text.ok_or("a call is cut")?)
            .map_err(|error| format!("a call's text: {error}"))?;
        let numbers = (fields.u8(), fields.u32s(), fields.u32s(), fields.holed());
        let (Some(given), Some(prompt_tail), Some(sampled), Some(logprobs)) = numbers else {
            return Err("a call's numbers are cut".to_owned());
        };
        let known = self.values.len() + text.values.len();
        let mut used = text.messages.tail.iter().chain(&text.tools).chain([&text.reply]);
        if used.any(|number| *number as usize >= known) {
            return Err("a call names a value that is not in the journal".to_owned());
        }
        let messages_base =
            self.base(text.messages.shared, &self.messages, |call| Some(call.exchange_end))?;
        let prompt_base =
            self.base(text.prompt, &self.tokens, |call| call.sequence_end().or(call.prompt_end))?;

        let index = self.calls.len() as u32;
        self.values.extend(text.values.iter().map(|raw| Box::from(raw.get())));
        let messages_end = self.messages.insert(messages_base, &text.messages.tail, index);
        let exchange_end = self.messages.insert(messages_end, &[text.reply], index);
        let prompt_end = (given & HAS_PROMPT_IDS != 0)
            .then(|| self.tokens.insert(prompt_base, &prompt_tail, index));
        let sampled = match prompt_end {
            _ if given & HAS_SAMPLED_IDS == 0 => Sampled::Missing,
            None => Sampled::Apart(sampled),
            Some(prompt) => Sampled::End(self.tokens.insert(prompt, &sampled, index)),
        };
        self.calls.push(RecordedCall {
            meta: text.meta,
            delivered: None,
            logprobs,
            nearest_by_tokens: nearest(text.prompt),
            nearest_by_messages: nearest(text.messages.shared),
            prompt_end,
            sampled,
            exchange_end,
            reply: text.reply,
            tools: text.tools,
        });
        Ok(())
    }

    /// The point in `tree` that a delta continues from.
    fn base(
        &self,
        from: Shared,
        tree: &PrefixTree,
        end: impl Fn(&RecordedCall) -> Option<Position>,
    ) -> Result<Position, String> {
        let Some(base) = from.base else {
            return Ok(tree.root());
        };
        let end = self.calls.get(base as usize).and_then(end);
        end.and_then(|end| tree.ancestor(end, from.shared))
            .ok_or_else(|| format!("a call continues call {base}, which does not reach that far"))
    }
}

/// Checks magic and version; gives the bytes read and the minor version.
fn read_preamble(source: &mut impl Read) -> Result<(u64, u16), JournalError> {
    let mut bytes = Vec::new();
    source.take(MAGIC.len() as u64 + 4).read_to_end(&mut bytes)?;
    let mut fields = Fields::new(&bytes);
    if fields.bytes(MAGIC.len()) != Some(&MAGIC) {
        return Err(JournalError::NotAJournal);
    }
    let (Some(found), Some(minor)) = (fields.u16(), fields.u16()) else {
        return Err(JournalError::NotAJournal);
    };
    if found != MAJOR {
        return Err(JournalError::NewerFormat { found, known: MAJOR });
    }
    Ok((bytes.len() as u64, minor))
}

fn nearest(from: Shared) -> Option<Nearest> {
    from.base.map(|call| Nearest { call, shared: from.shared })
}
