//! What a call's tokens were made with, as hashes that anybody can work out again.
//!
//! A pure function of token ids. It knows neither templates nor tokenizers; who has them gives
//! their hashes.

use polar_types::CallId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// Hashes of what a call's tokens came from. There in token mode, where Polar makes the prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFingerprint {
    /// SHA-256 of the chat template that rendered the prompt, in lower-case hex.
    pub template: String,
    /// SHA-256 of the tokenizer's file, in lower-case hex.
    pub tokenizer: String,
    /// The call whose prompt and sampled ids this call's prompt goes on from; absent when the
    /// prompt was rendered whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extends: Option<CallId>,
    /// Of all ids up to the end of what this call sampled.
    pub chain: ChainHash,
}

/// SHA-256 over a call's ids and those of every call it goes on from.
///
/// A step hashes, all numbers little-endian:
///
/// | bytes | field |
/// |---|---|
/// | 13 | `polar chain 1` |
/// | 1, 32 | 1 and the chain of the call that is extended; or 0 and nothing |
/// | 8, 4 each | ids of the prompt behind that call's sequence: count, ids |
/// | 8, 4 each | sampled ids: count, ids |
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChainHash([u8; 32]);

impl ChainHash {
    /// The chain of a call that extends `parent`, or of one that extends none: `tail` is its
    /// prompt behind the sequence of `parent`, or all of it.
    pub fn step(parent: Option<&Self>, tail: &[u32], sampled: &[u32]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(b"polar chain 1");
        hasher.update([u8::from(parent.is_some())]);
        hasher.update(parent.map_or(&[][..], |parent| &parent.0));
        for ids in [tail, sampled] {
            hasher.update((ids.len() as u64).to_le_bytes());
            for id in ids {
                hasher.update(id.to_le_bytes());
            }
        }
        Self(hasher.finalize().into())
    }
}

impl fmt::Display for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no chain hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a chain hash has 64 hexadecimal digits")]
pub struct NotAChainHash;

impl FromStr for ChainHash {
    type Err = NotAChainHash;

    fn from_str(text: &str) -> Result<Self, NotAChainHash> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(NotAChainHash);
        }
        let digit = |at: usize| char::from(digits[at]).to_digit(16).ok_or(NotAChainHash);
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = (digit(2 * at)? * 16 + digit(2 * at + 1)?) as u8;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for ChainHash {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ChainHash {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_hashes_what_the_table_says() {
        let parent = ChainHash::step(None, &[1, 2], &[3]);
        let mut bytes = b"polar chain 1\x00".to_vec();
        bytes.extend([2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        bytes.extend([1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(parent.0[..], Sha256::digest(&bytes)[..]);
        let mut bytes = b"polar chain 1\x01".to_vec();
        bytes.extend(parent.0);
        bytes.extend([0; 16]);
        assert_eq!(ChainHash::step(Some(&parent), &[], &[]).0[..], Sha256::digest(&bytes)[..]);
    }

    #[test]
    fn no_two_ways_to_cut_the_same_ids_have_one_hash() {
        let whole = [1, 2, 3, 4];
        let mut seen = std::collections::HashSet::new();
        for cut in 0..=whole.len() {
            assert!(seen.insert(ChainHash::step(None, &whole[..cut], &whole[cut..])));
        }
        let first = ChainHash::step(None, &whole[..1], &whole[1..2]);
        assert!(seen.insert(ChainHash::step(Some(&first), &whole[2..3], &whole[3..])));
    }

    #[test]
    fn it_is_written_as_hex_and_read_back() {
        let hash = ChainHash::step(None, &[7], &[8]);
        let text = serde_json::to_string(&hash).unwrap();
        assert_eq!(text.len(), 66);
        assert_eq!(serde_json::from_str::<ChainHash>(&text).unwrap(), hash);
        assert_eq!(hash.to_string().to_uppercase().parse(), Ok(hash));
        for wrong in ["", "0", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(wrong.parse::<ChainHash>(), Err(NotAChainHash));
        }
    }
}
