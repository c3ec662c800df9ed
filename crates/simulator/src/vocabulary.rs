//! Text to ids and back: a byte-level BPE tokenizer with 4096 ids.
//!
//! Owns the tokenizer and a bounded memory of encoded pieces, so that a growing
//! conversation is not tokenised anew at every turn.

use crate::SimulatorError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokenizers::Tokenizer;

const TOKENIZER: &[u8] = include_bytes!("../assets/tokenizer.json");
const TURN_START: &str = "<|im_start|>";
/// Bytes of text whose ids are remembered.
const REMEMBERED_BYTES: usize = 64 << 20;

/// The simulated model's tokenizer.
pub struct Vocabulary {
    tokenizer: Tokenizer,
    tokens: Vec<Token>,
    end_of_turn: u32,
    end_of_text: u32,
    first_added: u32,
    memory: Mutex<Memory>,
}

struct Token {
    bytes: Box<[u8]>,
    special: bool,
}

impl Vocabulary {
    /// Loads the shipped tokenizer.
    pub fn load() -> Result<Self, SimulatorError> {
        let tokenizer = Tokenizer::from_bytes(TOKENIZER)
            .map_err(|e| SimulatorError::Tokenizer(e.to_string()))?;
        let added = tokenizer.get_added_tokens_decoder();
        let size = u32::try_from(tokenizer.get_vocab_size(true)).unwrap_or(u32::MAX);
        let alphabet = byte_of_char();
        let tokens = (0..size)
            .map(|id| match added.get(&id) {
                Some(token) => {
                    Token { bytes: token.content.as_bytes().into(), special: token.special }
                }
                None => {
                    let spelled = tokenizer.id_to_token(id).unwrap_or_default();
                    let bytes = spelled.chars().filter_map(|c| alphabet.get(&c).copied()).collect();
                    Token { bytes, special: false }
                }
            })
            .collect();
        let id_of = |text: &str| {
            tokenizer
                .token_to_id(text)
                .ok_or_else(|| SimulatorError::Tokenizer(format!("it has no token {text:?}")))
        };
        let (end_of_turn, end_of_text) = (id_of("<|im_end|>")?, id_of("<|endoftext|>")?);
        let first_added = added.keys().copied().min().unwrap_or(size);
        let memory = Mutex::default();
        Ok(Self { tokenizer, tokens, end_of_turn, end_of_text, first_added, memory })
    }

    /// Number of ids; every id is below it.
    pub fn size(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    /// Most bytes a token stands for.
    pub fn longest_token(&self) -> usize {
        self.tokens.iter().map(|token| token.bytes.len()).max().unwrap_or(1)
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
        self.tokens.get(id as usize).is_some_and(|token| token.special)
    }

    /// The bytes an id stands for; none when it is out of the vocabulary.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.tokens.get(id as usize).map_or(&[], |token| &token.bytes)
    }

    /// The id as the tokenizer file spells it, as `/tokenize` shows it.
    pub fn spelling(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
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
        let encoding = self
            .tokenizer
            .encode_fast(piece, false)
            .map_err(|e| SimulatorError::Tokenizer(e.to_string()))?;
        let ids: Arc<[u32]> = encoding.get_ids().into();
        self.remembered().put(piece, Arc::clone(&ids));
        Ok(ids)
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ids of a text, one per byte where that is possible: a spelling no tokenizer
    /// would choose, but a model may sample. Marks stay single tokens.
    pub fn encode_bytewise(&self, text: &str) -> Result<Vec<u32>, SimulatorError> {
        let single: HashMap<u8, u32> = (0u32..)
            .zip(&self.tokens)
            .filter_map(|(id, token)| match *token.bytes {
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

/// Turns bytes of tokens into text as they come; a character that is not complete yet
/// is held back.
#[derive(Debug, Clone, Default)]
pub struct IncrementalText {
    pending: Vec<u8>,
}

impl IncrementalText {
    /// The text that these bytes complete.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(valid) => {
                    text.push_str(valid);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.pending[..valid]));
                    let Some(bad) = error.error_len() else {
                        self.pending.drain(..valid);
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.pending.drain(..valid + bad);
                }
            }
        }
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

/// How byte-level vocabularies write bytes: printable ones as themselves, the others as
/// characters from U+0100 on.
fn byte_of_char() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    (0..=u8::MAX)
        .filter_map(|byte| {
            let code = if printable(byte) {
                u32::from(byte)
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).map(|c| (c, byte))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n  Grüße 漢字 🎉\n\n\
        x<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\n<tool_call>\n{\"a\": 1}\n</tool_call>";

    #[test]
    fn pieces_give_the_ids_of_the_whole() {
        let vocabulary = Vocabulary::load().unwrap();
        let whole = vocabulary.tokenizer.encode_fast(TEXT, false).unwrap();
        assert_eq!(vocabulary.encode(TEXT).unwrap(), whole.get_ids());
        assert_eq!(vocabulary.encode(TEXT).unwrap(), whole.get_ids(), "from memory");
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
