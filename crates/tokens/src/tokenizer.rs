//! A model's tokenizer: text to ids, and the bytes that each id stands for.
//!
//! Special tokens are those of the text itself: none is ever added, and what is written like one
//! becomes one, as in the prompts that chat templates make.

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt;

/// A tokenizer as `tokenizer.json` describes it.
pub struct Tokenizer {
    tokenizer: tokenizers::Tokenizer,
    /// By id.
    tokens: Vec<Token>,
    hash: String,
}

struct Token {
    bytes: Box<[u8]>,
    /// Split out of a text before anything else, wherever it stands.
    added: bool,
    special: bool,
}

/// Why a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file cannot be read as a tokenizer.
    #[error("tokenizer.json cannot be read: {0}")]
    Unreadable(String),
    /// It is not known which bytes a token stands for.
    #[error(
        "tokenizer.json has a decoder that is not known here ({decoder}); tokenizers of bytes \
         (ByteLevel) and of SentencePiece with byte fallback are"
    )]
    UnknownDecoder {
        /// The decoder, as the file has it.
        decoder: String,
    },
    /// A text cannot be made ids of.
    #[error("the text cannot be tokenized: {0}")]
    Text(String),
}

impl Tokenizer {
    /// Reads the contents of a `tokenizer.json`.
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        let tokenizer = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|error| TokenizerError::Unreadable(error.to_string()))?;
        let file: Value = serde_json::from_slice(json)
            .map_err(|error| TokenizerError::Unreadable(error.to_string()))?;
        let spelling = Spelling::of(&file["decoder"])?;
        let added = tokenizer.get_added_tokens_decoder();
        let last = tokenizer.get_vocab(true).into_values().max();
        let tokens = (0..last.map_or(0, |id| id + 1))
            .map(|id| match added.get(&id) {
                Some(token) => Token {
                    bytes: token.content.as_bytes().into(),
                    added: true,
                    special: token.special,
                },
                None => {
                    let spelled = tokenizer.id_to_token(id).unwrap_or_default();
                    Token { bytes: spelling.bytes(&spelled), added: false, special: false }
                }
            })
            .collect();
        let hash = hex::encode(Sha256::digest(json));
        Ok(Self { tokenizer, tokens, hash })
    }

    /// Ids of a text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self
            .tokenizer
            .encode_fast(text, false)
            .map_err(|error| TokenizerError::Text(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Ids of a text that stands behind the added token `before`: the same as in the whole,
    /// because an added token always parts what is before it from what is behind it.
    pub fn encode_behind(&self, before: u32, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut whole = String::from_utf8_lossy(self.bytes(before)).into_owned();
        whole.push_str(text);
        let mut ids = self.encode(&whole)?;
        match ids.first() == Some(&before) {
            true => Ok(ids.split_off(1)),
            false => self.encode(text),
        }
    }

    /// The id of a token, as its text shows it or as the file spells it.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// The token as the file spells it.
    pub fn spelling(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// The bytes an id stands for; none when it is out of the vocabulary.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.tokens.get(id as usize).map_or(&[], |token| &token.bytes)
    }

    /// Whether an id is one of the tokens that were added to the vocabulary: marks, special or not.
    pub fn is_added(&self, id: u32) -> bool {
        self.tokens.get(id as usize).is_some_and(|token| token.added)
    }

    /// Whether text normally leaves this id out.
    pub fn is_special(&self, id: u32) -> bool {
        self.tokens.get(id as usize).is_some_and(|token| token.special)
    }

    /// The special tokens, and the other added ones, with their ids.
    pub fn added(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let numbered = (0..).zip(&self.tokens);
        numbered.filter(|(_, token)| token.added).map(|(id, token)| (id, &*token.bytes))
    }

    /// Number of ids; every id is below it.
    pub fn size(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    /// Text of ids, special tokens as they are written. What is no text is `U+FFFD`.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| self.bytes(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// SHA-256 of the file, in hex.
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Tokenizer").field("size", &self.size()).finish_non_exhaustive()
    }
}

/// How the file spells the bytes of ordinary tokens.
enum Spelling {
    /// Each byte as a character of its own.
    Bytes(HashMap<char, u8>),
    /// As text with `▁` for blanks, and `<0x0A>` for bytes.
    SentencePiece,
}

impl Spelling {
    fn of(decoder: &Value) -> Result<Self, TokenizerError> {
        let steps = match decoder["decoders"].as_array() {
            Some(steps) => steps.as_slice(),
            None => std::slice::from_ref(decoder),
        };
        let has = |kind: &str| steps.iter().any(|step| step["type"] == kind);
        if has("ByteLevel") {
            Ok(Self::Bytes(byte_of_character()))
        } else if has("ByteFallback") || has("Metaspace") {
            Ok(Self::SentencePiece)
        } else {
            Err(TokenizerError::UnknownDecoder { decoder: decoder.to_string() })
        }
    }

    fn bytes(&self, spelled: &str) -> Box<[u8]> {
        match self {
            Self::Bytes(byte_of) => {
                spelled.chars().filter_map(|character| byte_of.get(&character).copied()).collect()
            }
            Self::SentencePiece => match byte_of_fallback(spelled) {
                Some(byte) => [byte].into(),
                None => spelled.replace('▁', " ").into_bytes().into(),
            },
        }
    }
}

/// The byte that a token such as `<0x0A>` stands for.
fn byte_of_fallback(spelled: &str) -> Option<u8> {
    let digits = spelled.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// How byte-level vocabularies write bytes: printable ones as themselves, the others as
/// characters from U+0100 on.
fn byte_of_character() -> HashMap<char, u8> {
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
            char::from_u32(code).map(|character| (character, byte))
        })
        .collect()
}
