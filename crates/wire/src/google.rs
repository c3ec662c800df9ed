//! What a server of Google's generateContent writes.

use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// A whole reply, or a chunk of a streamed one.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GenerateContentResponse<'a> {
    /// Always one.
    pub candidates: [Candidate<'a>; 1],
    /// Token counts; in a stream they stand in the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_metadata: Option<UsageMetadata>,
    /// Model name.
    pub model_version: &'a str,
    /// Id of the reply, the same in all its chunks.
    pub response_id: &'a str,
}

/// A reply among several.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate<'a> {
    /// What the model said, or what is new of it.
    pub content: Content<'a>,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<&'static str>,
    /// More on why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_message: Option<String>,
    /// Position among the candidates.
    pub index: u32,
}

/// What the model said, in order.
#[derive(Debug, Serialize)]
pub struct Content<'a> {
    /// Never empty: clients take a chunk without parts for a broken one.
    pub parts: Vec<Part<'a>>,
    /// `model`.
    pub role: &'static str,
}

/// A piece of a reply.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Part<'a> {
    /// Text or reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<&'a str>,
    /// Whether the text is reasoning.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub thought: bool,
    /// A call of a tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_call: Option<FunctionCall<'a>>,
    /// Opaque mark in base64, which clients send back with the part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thought_signature: Option<String>,
}

/// A call of a tool.
#[derive(Debug, Serialize)]
pub struct FunctionCall<'a> {
    /// Pairs it with its result.
    pub id: &'a str,
    /// Tool name.
    pub name: &'a str,
    /// An object.
    pub args: Cow<'a, RawValue>,
}

/// Token counts. `total` = `prompt` + `candidates` + `thoughts`.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageMetadata {
    /// Tokens of the prompt.
    pub prompt_token_count: u64,
    /// Tokens sampled, without those of `thoughts_token_count`.
    pub candidates_token_count: u64,
    /// Sum of all.
    pub total_token_count: u64,
    /// Prompt tokens found in the engine's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_content_token_count: Option<u64>,
    /// Sampled tokens that are reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thoughts_token_count: Option<u64>,
}

/// An error body.
#[derive(Debug, Serialize)]
pub struct ErrorBody<'a> {
    /// What is wrong.
    pub error: ErrorStatus<'a>,
}

/// What is wrong.
#[derive(Debug, Serialize)]
pub struct ErrorStatus<'a> {
    /// HTTP status.
    pub code: u16,
    /// In words.
    pub message: &'a str,
    /// Kind.
    pub status: &'static str,
    /// More for programs.
    pub details: Vec<ErrorDetail<'a>>,
}

/// More on an error.
#[derive(Debug, Serialize)]
#[serde(tag = "@type")]
pub enum ErrorDetail<'a> {
    /// Which field of the request is wrong.
    #[serde(rename = "type.googleapis.com/google.rpc.BadRequest", rename_all = "camelCase")]
    BadRequest {
        /// The fields.
        field_violations: [FieldViolation<'a>; 1],
    },
    /// When to try again.
    #[serde(rename = "type.googleapis.com/google.rpc.RetryInfo", rename_all = "camelCase")]
    RetryInfo {
        /// For example `5s`.
        retry_delay: String,
    },
}

/// A field that is wrong.
#[derive(Debug, Serialize)]
pub struct FieldViolation<'a> {
    /// Its path.
    pub field: &'a str,
    /// What is wrong with it.
    pub description: &'a str,
}

/// A page of models; there is only one page.
#[derive(Debug, Serialize)]
pub struct ModelList<'a> {
    /// The models.
    pub models: Vec<Model<'a>>,
}

/// A model.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Model<'a> {
    /// `models/` and its id.
    pub name: String,
    /// Unknown.
    pub version: &'static str,
    /// Name to show.
    pub display_name: &'a str,
    /// Context window in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_token_limit: Option<u64>,
    /// What can be asked of it.
    pub supported_generation_methods: &'static [&'static str],
}

/// The answer to a question for the size of a prompt.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenCount {
    /// Tokens the prompt has.
    pub total_tokens: u64,
}
