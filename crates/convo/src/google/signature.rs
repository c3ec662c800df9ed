//! Thought signatures: the opaque marks that clients of this dialect send back with a part.
//!
//! As with Google's own servers a signature holds what a client may not keep: the reasoning
//! before the part, which Gemini CLI drops from its history, and the spelling of a call's
//! arguments, which clients parse. So the next prompt has what was sampled, without any state
//! here. Signatures never reach the engine themselves.

use crate::arguments::says_what_was_sampled;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use base64::engine::{DecodePaddingMode, general_purpose};
use polar_wire::json::Node;
use serde::{Deserialize, Serialize};

/// Reads base64 with or without padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
const LENIENT_URL_SAFE: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    general_purpose::PAD.with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What clients send in the place of a signature that they do not have.
const PLACEHOLDERS: &[&str] =
    &["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"];

/// What a signature of ours holds.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Signature {
    /// Id of the reply it was minted for.
    polar: String,
    /// Reasoning between the signature before and this one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) reasoning: String,
    /// The call's arguments as sampled, where a client may spell them otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) arguments: Option<String>,
}

/// A signature in a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Ours(Signature),
    /// Stands for none.
    Placeholder,
    /// Of another server.
    Foreign,
}

pub(crate) fn read(text: &str) -> Mark {
    if text.is_empty() || PLACEHOLDERS.contains(&text) {
        return Mark::Placeholder;
    }
    let Some(bytes) = decode_base64(text) else { return Mark::Foreign };
    if PLACEHOLDERS.iter().any(|placeholder| placeholder.as_bytes() == bytes) {
        return Mark::Placeholder;
    }
    serde_json::from_slice(&bytes).map_or(Mark::Foreign, Mark::Ours)
}

/// Base64 in either alphabet: JSON clients of this API use both.
pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    LENIENT.decode(text).or_else(|_| LENIENT_URL_SAFE.decode(text)).ok()
}

/// Base64 in the alphabet of data URLs.
pub(crate) fn encode_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Mints the signatures of one reply.
#[derive(Debug)]
pub(crate) struct Signer {
    reply_id: String,
    reasoning: String,
    signed_a_call: bool,
}

impl Signer {
    pub(crate) fn new(reply_id: &str) -> Self {
        Self { reply_id: reply_id.to_owned(), reasoning: String::new(), signed_a_call: false }
    }

    pub(crate) fn reasoning(&mut self, more: &str) {
        self.reasoning.push_str(more);
    }

    /// The signature of a call. The first of a reply always has one: Gemini CLI would put a
    /// placeholder in its place.
    pub(crate) fn call(&mut self, arguments: &str) -> Option<String> {
        let arguments = (!survives_clients(arguments)).then(|| arguments.to_owned());
        if self.signed_a_call && arguments.is_none() && self.reasoning.is_empty() {
            return None;
        }
        self.signed_a_call = true;
        self.mint(arguments)
    }

    /// The signature at a reply's end, for reasoning that no call has taken.
    pub(crate) fn end(&mut self) -> Option<String> {
        if self.reasoning.is_empty() { None } else { self.mint(None) }
    }

    fn mint(&mut self, arguments: Option<String>) -> Option<String> {
        let signature = Signature {
            polar: self.reply_id.clone(),
            reasoning: std::mem::take(&mut self.reasoning),
            arguments,
        };
        serde_json::to_vec(&signature).ok().map(|json| encode_base64(&json))
    }
}

/// Whether arguments come back as they are from a client that reads them as JSON and writes them
/// compactly, in any language.
fn survives_clients(arguments: &str) -> bool {
    serde_json::from_str::<Node<'_>>(arguments)
        .is_ok_and(|read| read.to_string() == arguments && is_plain(&read))
}

/// JavaScript writes `1.0` as `1`, moves keys that are numbers to the front and has one value
/// for a name.
fn is_plain(value: &Node<'_>) -> bool {
    match value {
        Node::Null | Node::Bool(_) | Node::Text(_) => true,
        Node::Number(number) => number.as_i64().is_some_and(|whole| whole.unsigned_abs() < 1 << 53),
        Node::List(items) => items.iter().all(is_plain),
        Node::Object(fields) => fields.iter().enumerate().all(|(i, (name, value))| {
            let twice = fields[..i].iter().any(|(other, _)| other == name);
            let digits = name.bytes().all(|byte| byte.is_ascii_digit());
            !twice && !digits && is_plain(value)
        }),
    }
}

/// The sampled spelling of arguments, if what came back still says the same.
pub(crate) fn as_sampled(sampled: String, came_back: &Node<'_>) -> Option<String> {
    says_what_was_sampled(&sampled, came_back).then_some(sampled)
}
