//! Frames: how bytes are cut into checked pieces, and how numbers lie in them.
//!
//! Knows nothing of calls. The layout is specified in the crate's documentation.

use crate::Damage;
use std::io::{self, Read};

/// First bytes of a journal.
pub(crate) const MAGIC: [u8; 8] = *b"POLARJNL";
/// Readers refuse a larger major number.
pub(crate) const MAJOR: u16 = 1;
/// Readers skip unknown kinds of frames when the file's minor number is larger than this.
pub(crate) const MINOR: u16 = 0;

/// Bytes before a frame's payload: length, checksum, kind.
const FRAME_HEAD: usize = 9;

pub(crate) mod kind {
    pub(crate) const SESSION: u8 = 1;
    pub(crate) const CALL: u8 = 2;
    pub(crate) const DELIVERY: u8 = 3;
    pub(crate) const END: u8 = 4;
}

/// The bytes before the first frame.
pub(crate) fn preamble() -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&MAJOR.to_le_bytes());
    out.extend_from_slice(&MINOR.to_le_bytes());
    out
}

/// Appends a frame to `out`; `fill` writes its payload. Gives false, with `out` as it was,
/// when the payload is too long for a frame.
pub(crate) fn push_frame(out: &mut Vec<u8>, kind: u8, fill: impl FnOnce(&mut Vec<u8>)) -> bool {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEAD - 1]);
    out.push(kind);
    fill(out);
    let Ok(len) = u32::try_from(out.len() - start - FRAME_HEAD) else {
        out.truncate(start);
        return false;
    };
    let checksum = checksum(len, kind, &out[start + FRAME_HEAD..]);
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
    true
}

/// The length is part of what is checked, so that a wrong one is found out too.
fn checksum(len: u32, kind: u8, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&len.to_le_bytes());
    hasher.update(&[kind]);
    hasher.update(payload);
    hasher.finalize()
}

/// One frame as read.
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) payload: Vec<u8>,
}

/// What lies at the reader's place.
pub(crate) enum Next {
    Frame(Frame),
    /// The bytes end exactly behind the last frame.
    End,
    Bad(Damage),
}

/// Reads frames one after the other and knows how far the good ones reach.
pub(crate) struct FrameReader<R> {
    source: R,
    /// Bytes up to the end of the last whole frame.
    pub(crate) offset: u64,
}

impl<R: Read> FrameReader<R> {
    pub(crate) fn new(source: R, offset: u64) -> Self {
        Self { source, offset }
    }

    pub(crate) fn next(&mut self) -> io::Result<Next> {
        let head = self.take(FRAME_HEAD)?;
        if head.is_empty() {
            return Ok(Next::End);
        }
        let mut fields = Fields::new(&head);
        let (Some(len), Some(expected), Some(kind)) = (fields.u32(), fields.u32(), fields.u8())
        else {
            return Ok(Next::Bad(self.damage("the file ends inside a frame's head")));
        };
        let payload = self.take(len as usize)?;
        if payload.len() < len as usize {
            return Ok(Next::Bad(self.damage("the file ends inside a frame")));
        }
        if checksum(len, kind, &payload) != expected {
            return Ok(Next::Bad(self.damage("a frame does not match its checksum")));
        }
        self.offset += (FRAME_HEAD + payload.len()) as u64;
        Ok(Next::Frame(Frame { kind, payload }))
    }

    pub(crate) fn damage(&self, what: impl Into<String>) -> Damage {
        Damage { offset: self.offset, what: what.into() }
    }

    /// Up to `len` bytes. Grows with what is really there: a damaged length must not
    /// reserve gigabytes.
    fn take(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        self.source.by_ref().take(len as u64).read_to_end(&mut out)?;
        Ok(out)
    }
}

/// Reads numbers from the front of a payload; absent where it is too short.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u32s(&mut self) -> Option<Vec<u32>> {
        let count = self.u32()? as usize;
        let (words, _) = self.bytes(count.checked_mul(4)?)?.as_chunks::<4>();
        Some(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// A list of numbers with holes, as `push_holed` wrote it.
    pub(crate) fn holed(&mut self) -> Option<Vec<Option<f32>>> {
        let count = self.u32()? as usize;
        let presence = match self.u8()? {
            0 => None,
            1 => Some(self.bytes(count.div_ceil(8))?),
            _ => return None,
        };
        let is_there = |at: usize| presence.is_none_or(|bits| bits[at / 8] >> (at % 8) & 1 == 1);
        let given = match presence {
            None => count,
            Some(_) => (0..count).filter(|&at| is_there(at)).count(),
        };
        let (words, _) = self.bytes(given.checked_mul(4)?)?.as_chunks::<4>();
        let mut values = words.iter().map(|word| f32::from_bits(u32::from_le_bytes(*word)));
        Some((0..count).map(|at| if is_there(at) { values.next() } else { None }).collect())
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

pub(crate) fn push_u32(out: &mut Vec<u8>, value: usize) {
    // Longer than any frame may be; `push_frame` refuses the frame that holds it.
    out.extend_from_slice(&u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
}

pub(crate) fn push_u32s(out: &mut Vec<u8>, values: &[u32]) {
    push_u32(out, values.len());
    out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

/// Numbers by their bits. Holes are marked in a bitmap, which is left out where there are none.
pub(crate) fn push_holed(out: &mut Vec<u8>, values: &[Option<f32>]) {
    push_u32(out, values.len());
    let has_holes = values.contains(&None);
    out.push(u8::from(has_holes));
    if has_holes {
        let bit = |(at, value): (usize, &Option<f32>)| u8::from(value.is_some()) << at;
        let bytes = values.chunks(8);
        out.extend(bytes.map(|eight| eight.iter().enumerate().map(bit).sum::<u8>()));
    }
    out.extend(values.iter().flatten().flat_map(|value| value.to_bits().to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_keep_their_bits_and_holes(
            bits in prop::collection::vec(prop::option::of(any::<u32>()), 0..40),
        ) {
            let values: Vec<Option<f32>> =
                bits.iter().map(|bits| bits.map(f32::from_bits)).collect();
            let mut out = Vec::new();
            push_holed(&mut out, &values);
            let mut fields = Fields::new(&out);
            let back = fields.holed().unwrap();
            prop_assert!(fields.is_empty());
            let back: Vec<_> = back.iter().map(|value| value.map(f32::to_bits)).collect();
            prop_assert_eq!(back, bits);
        }
    }

    #[test]
    fn a_damaged_length_is_found_out_without_reserving_it() {
        let mut bytes = Vec::new();
        assert!(push_frame(&mut bytes, kind::CALL, |out| out.extend_from_slice(b"payload")));
        bytes[3] = 0xff;
        let mut reader = FrameReader::new(&bytes[..], 0);
        assert!(matches!(reader.next().unwrap(), Next::Bad(damage) if damage.offset == 0));
    }
}
