//! Text to ids and back: a byte-level BPE tokenizer with 4096 ids.
//!
//! Owns the tokenizer and a bounded memory of encoded pieces, so that a growing
//! conversation is not tokenised anew at every turn.

use crate::SimulatorError;
use polar_tokens::tokenizer::Tokenizer;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) const TOKENIZER: &[u8] = include_bytes!("../assets/tokenizer.json");
const TURN_START: &str = "<|im_start|>";
/// Bytes of text whose ids are remembered.
const REMEMBERED_BYTES: usize = 64 << 20;

/// The simulated model's tokenizer.
pub struct Vocabulary {
    tokenizer: Tokenizer,
    end_of_turn: u32,
    end_of_text: u32,
    first_added: u32,
    memory: Mutex<Memory>,
}

impl Vocabulary {
    /// Loads the shipped tokenizer.
    pub fn load() -> Result<Self, SimulatorError> {
        let tokenizer = Tokenizer::from_json(TOKENIZER)
            .map_err(|error| SimulatorError::Tokenizer(error.to_string()))?;
        let id_of = |text: &str| {
            tokenizer
                .id_of(text)
                .ok_or_else(|| SimulatorError::Tokenizer(format!("it has no token {text:?}")))
        };
        let (end_of_turn, end_of_text) = (id_of("<|im_end|>")?, id_of("<|endoftext|>")?);
        let first_added = tokenizer.added().map(|(id, _)| id).min().unwrap_or(tokenizer.size());
        let memory = Mutex::default();
        Ok(Self { tokenizer, end_of_turn, end_of_text, first_added, memory })
    }

    /// Number of ids; every id is below it.
    pub fn size(&self) -> u32 {
        self.tokenizer.size()
    }

    /// Most bytes a token stands for.
    pub fn longest_token(&self) -> usize {
        (0..self.size()).map(|id| self.bytes(id).len()).max().unwrap_or(1)
    }

    /// The id that ends an assistant turn.
    pub fn end_of_turn(&self) -> u32 {
        self.end_of_turn
    }

    /// The first of the added tokens, special or mark; all ids below are ordinary text.
    pub fn first_added(&self) -> u32 {
        self.first_added
    }

    /// Whether sampling this id ends a generation.
    pub fn ends_generation(&self, id: u32) -> bool {
        id == self.end_of_turn || id == self.end_of_text
    }

    /// Whether text normally leaves this id out.
    pub fn is_special(&self, id: u32) -> bool {
        self.tokenizer.is_special(id)
    }

    /// The bytes an id stands for; none when it is out of the vocabulary.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.tokenizer.bytes(id)
    }

    /// The id as the tokenizer file spells it, as `/tokenize` shows it.
    pub fn spelling(&self, id: u32) -> Option<String> {
        self.tokenizer.spelling(id)
    }

    /// Ids of a text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, SimulatorError> {
        // A turn mark is a token of its own wherever it stands, so the turns between
        // marks can be encoded, and remembered, one by one.
        let mut ids = Vec::with_capacity(text.len() / 3);
        for piece in turns(text) {
            ids.extend_from_slice(&self.encode_piece(piece)?);
        }
        Ok(ids)
    }

    fn encode_piece(&self, piece: &str) -> Result<Arc<[u32]>, SimulatorError> {
        if let Some(ids) = self.remembered().get(piece) {
            return Ok(ids);
        }
        let encoded = self.tokenizer.encode(piece);
        let ids = encoded.map_err(|error| SimulatorError::Tokenizer(error.to_string()))?;
        let ids: Arc<[u32]> = ids.into();
        self.remembered().put(piece, Arc::clone(&ids));
        Ok(ids)
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ids of a text, one per byte where that is possible: a spelling no tokenizer
    /// would choose, but a model may sample. Marks stay single tokens.
    pub fn encode_bytewise(&self, text: &str) -> Result<Vec<u32>, SimulatorError> {
        let single: HashMap<u8, u32> = (0..self.size())
            .filter_map(|id| match *self.bytes(id) {
                [byte] => Some((byte, id)),
                _ => None,
            })
            .collect();
        let ids = self.encode(text)?;
        Ok(ids
            .into_iter()
            .flat_map(|id| match id >= self.first_added {
                true => vec![id],
                false => {
                    self.bytes(id).iter().filter_map(|byte| single.get(byte).copied()).collect()
                }
            })
            .collect())
    }

    /// Text of ids. `keep_special` keeps the ChatML marks.
    pub fn decode(&self, ids: &[u32], keep_special: bool) -> String {
        let bytes: Vec<u8> = ids
            .iter()
            .filter(|id| keep_special || !self.is_special(**id))
            .flat_map(|id| self.bytes(*id).iter().copied())
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("size", &self.size()).finish_non_exhaustive()
    }
}

/// The pieces of a text, each but the first starting with the mark of a turn.
fn turns(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest.filter(|text| !text.is_empty())?;
        let skip = if text.starts_with(TURN_START) { TURN_START.len() } else { 0 };
        match text[skip..].find(TURN_START) {
            Some(end) => {
                rest = Some(&text[skip + end..]);
                Some(&text[..skip + end])
            }
            None => rest.take(),
        }
    })
}

/// Two generations of encoded pieces; the older one goes when the younger is full.
#[derive(Default)]
struct Memory {
    young: HashMap<Box<str>, Arc<[u32]>>,
    old: HashMap<Box<str>, Arc<[u32]>>,
    young_bytes: usize,
}

impl Memory {
    fn get(&mut self, piece: &str) -> Option<Arc<[u32]>> {
        if let Some(ids) = self.young.get(piece) {
            return Some(Arc::clone(ids));
        }
        let ids = self.old.remove(piece)?;
        self.put(piece, Arc::clone(&ids));
        Some(ids)
    }

    fn put(&mut self, piece: &str, ids: Arc<[u32]>) {
        if self.young_bytes > REMEMBERED_BYTES / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += piece.len();
        self.young.insert(piece.into(), ids);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polar_tokens::detokenizer::IncrementalText;

    const TEXT: &str = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n  Grüße 漢字 🎉\n\n\
        x<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\n<tool_call>\n{\"a\": 1}\n</tool_call>";

    #[test]
    fn pieces_give_the_ids_of_the_whole() {
        let vocabulary = Vocabulary::load().unwrap();
        let whole = vocabulary.tokenizer.encode(TEXT).unwrap();
        assert_eq!(vocabulary.encode(TEXT).unwrap(), whole);
        assert_eq!(vocabulary.encode(TEXT).unwrap(), whole, "from memory");
        assert_eq!(turns(TEXT).collect::<String>(), TEXT);
        assert_eq!(turns(TEXT).count(), 3);
    }

    #[test]
    fn ids_decode_to_the_text() {
        let vocabulary = Vocabulary::load().unwrap();
        assert_eq!(vocabulary.size(), 4096);
        let ids = vocabulary.encode(TEXT).unwrap();
        assert_eq!(vocabulary.decode(&ids, true), TEXT);
        let mut text = IncrementalText::default();
        let streamed: String = ids.iter().map(|id| text.push(vocabulary.bytes(*id))).collect();
        assert_eq!(streamed, TEXT);
        assert!(!vocabulary.decode(&ids, false).contains("<|im_end|>"));
        assert!(vocabulary.decode(&ids, false).contains("<think>"));
    }

    #[test]
    fn bytewise_spelling_is_another_spelling_of_the_same_text() {
        let vocabulary = Vocabulary::load().unwrap();
        let (usual, bytewise) =
            (vocabulary.encode(TEXT).unwrap(), vocabulary.encode_bytewise(TEXT).unwrap());
        assert!(bytewise.len() > usual.len());
        assert_eq!(vocabulary.decode(&bytewise, true), TEXT);
        assert!(bytewise.contains(&vocabulary.end_of_turn()));
    }

    #[test]
    fn memory_forgets_what_was_not_asked_for_lately() {
        let mut memory = Memory::default();
        let big = "x".repeat(REMEMBERED_BYTES / 3);
        for name in ["a", "b", "c", "d"] {
            memory.put(&format!("{name}{big}"), [1].into());
        }
        assert!(memory.get(&format!("a{big}")).is_some());
        for name in ["e", "f", "g", "h"] {
            memory.put(&format!("{name}{big}"), [1].into());
        }
        assert!(memory.get(&format!("b{big}")).is_none());
    }
}
