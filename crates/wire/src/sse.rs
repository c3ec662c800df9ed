//! Server-sent events: an incremental parser and an encoder, without IO.
//!
//! The parser follows the event-stream format of the HTML standard: lines end in LF, CR
//! or CRLF, lines that begin with a colon are comments, several `data` lines are joined
//! with LF, a leading byte order mark is skipped, and an event is complete at its blank
//! line. `id` and `retry` are read over, because nobody here reconnects by event id.
//!
//! The parser owns one buffer. Events borrow from it, so a chunk of a reply costs one
//! copy into the buffer and none out of it.

use serde::Serialize;
use std::ops::Range;

/// A complete event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// The event's name; empty when it has none, which means `message`.
    pub event: &'a str,
    /// Its data, several lines joined with LF. JSON parsers check the encoding themselves,
    /// so it is not checked here.
    pub data: &'a [u8],
}

impl SseEvent<'_> {
    /// Whether this is the `[DONE]` mark that ends an OpenAI-style stream.
    pub fn is_done(&self) -> bool {
        self.data == b"[DONE]"
    }
}

/// Why a stream cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// One event is larger than the parser's limit.
    #[error(
        "an event of the stream is larger than {limit} bytes; raise the limit or ask for smaller chunks"
    )]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
}

/// Turns bytes, cut anywhere, into events.
///
/// ```
/// use polar_wire::sse::SseParser;
/// let mut parser = SseParser::new(1 << 20);
/// parser.push(b"data: {\"a\"");
/// assert_eq!(parser.next_event()?, None);
/// parser.push(b":1}\n\n");
/// assert_eq!(parser.next_event()?.map(|event| event.data), Some(&b"{\"a\":1}"[..]));
/// # Ok::<(), polar_wire::sse::SseError>(())
/// ```
#[derive(Debug)]
pub struct SseParser {
    buffer: Vec<u8>,
    /// Everything before it has been used up.
    line_start: usize,
    /// No line end between `line_start` and here.
    scanned: usize,
    /// Data of the event being read; joined in place, so it never grows past `line_start`.
    data: Option<Range<usize>>,
    /// Name of the event being read.
    event: String,
    /// Whether the last event was handed out, so that its data and name may be forgotten.
    handed_out: bool,
    /// Whether the last line ended in CR, so that an LF right after it belongs to it.
    after_cr: bool,
    at_start: bool,
    limit: usize,
    failed: Option<SseError>,
}

const BYTE_ORDER_MARK: &[u8] = &[0xEF, 0xBB, 0xBF];

impl SseParser {
    /// A parser that refuses events whose data, together with the line being read, is
    /// larger than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            line_start: 0,
            scanned: 0,
            data: None,
            event: String::new(),
            handed_out: false,
            after_cr: false,
            at_start: true,
            limit,
            failed: None,
        }
    }

    /// Takes more of the stream in. Ask [`Self::next_event`] until it has none before pushing
    /// more, so that the buffer stays as small as one event.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.make_room();
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The next complete event, or `None` until more bytes are pushed. After an error
    /// every call returns that error.
    pub fn next_event(&mut self) -> Result<Option<SseEvent<'_>>, SseError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.forget_handed_out();
        while let Some(line) = self.next_line()? {
            if !line.is_empty() {
                self.take_line(line);
            } else if self.data.is_some() {
                self.handed_out = true;
                break;
            } else {
                self.event.clear();
            }
        }
        match &self.data {
            Some(range) if self.handed_out => {
                Ok(Some(SseEvent { event: &self.event, data: &self.buffer[range.clone()] }))
            }
            _ => Ok(None),
        }
    }

    /// Whether an event has begun and is not complete. True at the end of the bytes means
    /// that the stream was cut.
    pub fn has_partial_event(&self) -> bool {
        (self.data.is_some() && !self.handed_out) || self.line_start < self.buffer.len()
    }

    fn forget_handed_out(&mut self) {
        if self.handed_out {
            self.handed_out = false;
            self.data = None;
            self.event.clear();
        }
    }

    /// The next whole line without its end. `scanned` keeps long lines linear however
    /// small the pieces are that they come in.
    fn next_line(&mut self) -> Result<Option<Range<usize>>, SseError> {
        if self.after_cr && self.buffer.get(self.line_start) == Some(&b'\n') {
            self.line_start += 1;
            self.scanned = self.scanned.max(self.line_start);
            self.after_cr = false;
        }
        if self.at_start && !self.skip_byte_order_mark() {
            return Ok(None);
        }
        let found = memchr::memchr2(b'\n', b'\r', &self.buffer[self.scanned..]);
        let end = found.map_or(self.buffer.len(), |offset| self.scanned + offset);
        let line = self.line_start..end;
        if line.len() + self.data.as_ref().map_or(0, Range::len) > self.limit {
            return Err(self.fail(SseError::TooLarge { limit: self.limit }));
        }
        if found.is_none() {
            self.scanned = end;
            return Ok(None);
        }
        self.after_cr = self.buffer[end] == b'\r';
        self.line_start = end + 1;
        self.scanned = end + 1;
        Ok(Some(line))
    }

    /// False while it cannot be told whether the stream begins with a byte order mark.
    fn skip_byte_order_mark(&mut self) -> bool {
        if self.buffer.starts_with(BYTE_ORDER_MARK) {
            self.line_start = BYTE_ORDER_MARK.len();
            self.scanned = self.line_start;
        } else if BYTE_ORDER_MARK.starts_with(&self.buffer) {
            return false;
        }
        self.at_start = false;
        true
    }

    fn take_line(&mut self, line: Range<usize>) {
        let bytes = &self.buffer[line.clone()];
        let colon = memchr::memchr(b':', bytes);
        let name = &bytes[..colon.unwrap_or(bytes.len())];
        let mut value = line.start + colon.map_or(bytes.len(), |at| at + 1);
        if self.buffer.get(value) == Some(&b' ') && value < line.end {
            value += 1;
        }
        match name {
            b"data" => self.take_data(value..line.end),
            b"event" => {
                self.event.clear();
                self.event.push_str(&String::from_utf8_lossy(&self.buffer[value..line.end]));
            }
            // Comments, `id`, `retry` and unknown fields.
            _ => {}
        }
    }

    /// Joins in place: the field name and line end between two values leave more room
    /// than the one LF that joins them.
    fn take_data(&mut self, value: Range<usize>) {
        self.data = Some(match self.data.take() {
            None => value,
            Some(joined) => {
                let end = joined.end + 1 + value.len();
                self.buffer[joined.end] = b'\n';
                self.buffer.copy_within(value, joined.end + 1);
                joined.start..end
            }
        });
    }

    /// Moves what is still needed to the front of the buffer.
    fn make_room(&mut self) {
        self.forget_handed_out();
        let keep_from = match &self.data {
            Some(range) => range.start,
            None => self.line_start,
        };
        if keep_from == 0 {
            return;
        }
        self.buffer.drain(..keep_from);
        self.line_start -= keep_from;
        self.scanned -= keep_from;
        if let Some(range) = &mut self.data {
            *range = range.start - keep_from..range.end - keep_from;
        }
    }

    fn fail(&mut self, error: SseError) -> SseError {
        self.failed = Some(error);
        self.buffer = Vec::new();
        error
    }
}

/// Writes an event whose data is `value` as JSON. Compact JSON has no line ends, so it is
/// always one `data` line.
pub fn write_json_event<T: Serialize + ?Sized>(out: &mut Vec<u8>, event: Option<&str>, value: &T) {
    write_name(out, event);
    out.extend_from_slice(b"data: ");
    write_json(out, value);
    out.extend_from_slice(b"\n\n");
}

/// Writes an event with any text as data; a line of text becomes a `data` line.
pub fn write_text_event(out: &mut Vec<u8>, event: Option<&str>, text: &str) {
    write_name(out, event);
    for line in text.split('\n') {
        out.extend_from_slice(b"data: ");
        // A bare CR would end the line for a reader.
        out.extend(line.bytes().filter(|byte| *byte != b'\r'));
        out.push(b'\n');
    }
    out.push(b'\n');
}

/// Appends `value` as compact JSON.
///
/// Serialising to memory fails only for a map with keys that are not strings, which no
/// shape of this crate has; then nothing more than a part of the value is written.
pub fn write_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let written = serde_json::to_writer(&mut *out, value);
    debug_assert!(written.is_ok(), "a wire shape cannot be written as JSON");
}

fn write_name(out: &mut Vec<u8>, event: Option<&str>) {
    if let Some(name) = event {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
}
