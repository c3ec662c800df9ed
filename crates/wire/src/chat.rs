//! What a server of OpenAI Chat Completions writes.

use serde::Serialize;

/// One piece of a streamed reply.
#[derive(Debug, Serialize)]
pub struct Chunk<'a> {
    /// Id of the reply, the same in each chunk.
    pub id: &'a str,
    /// `chat.completion.chunk`.
    pub object: &'static str,
    /// Unix seconds.
    pub created: i64,
    /// Model name.
    pub model: &'a str,
    /// One choice, or none in the usage chunk.
    pub choices: &'a [ChunkChoice<'a>],
    /// Only in the usage chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// The choice of a chunk.
#[derive(Debug, Serialize)]
pub struct ChunkChoice<'a> {
    /// Always 0: a request asks for one choice.
    pub index: u32,
    /// What is new.
    pub delta: Delta<'a>,
    /// Of the tokens since the last ones told, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Logprobs>,
    /// Only in the last chunk with a choice.
    pub finish_reason: Option<&'static str>,
}

/// What is new in a chunk.
#[derive(Debug, Default, Serialize)]
pub struct Delta<'a> {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// More text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    /// More reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    /// More of a tool call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[ToolCallDelta<'a>; 1]>,
    /// More of a call, to a client that offered `functions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_call: Option<FunctionDelta<'a>>,
}

/// How likely each token was.
#[derive(Debug, Serialize)]
pub struct Logprobs {
    /// In order, those of reasoning and of calls included.
    pub content: Vec<TokenLogprob>,
    /// Always null: refusals are texts like any other.
    pub refusal: Option<()>,
}

/// How likely a token was.
#[derive(Debug, Serialize)]
pub struct TokenLogprob {
    /// `token_id:` and the token's id, as vLLM names tokens: a token need not be text.
    pub token: String,
    /// Logarithm of its probability.
    pub logprob: f32,
    /// Always null.
    pub bytes: Option<()>,
    /// Always empty: alternatives are not sampled.
    pub top_logprobs: [(); 0],
}

/// More of a tool call.
#[derive(Debug, Serialize)]
pub struct ToolCallDelta<'a> {
    /// Position among the calls of the reply.
    pub index: u32,
    /// In the call's first delta.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    /// `function`, in the call's first delta.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// What is called.
    pub function: FunctionDelta<'a>,
}

/// More of the function a tool call names.
#[derive(Debug, Serialize)]
pub struct FunctionDelta<'a> {
    /// In the call's first delta.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// A fragment of JSON text.
    pub arguments: &'a str,
}

/// A unary reply.
#[derive(Debug, Serialize)]
pub struct Completion<'a> {
    /// Id of the reply.
    pub id: &'a str,
    /// `chat.completion`.
    pub object: &'static str,
    /// Unix seconds.
    pub created: i64,
    /// Model name.
    pub model: &'a str,
    /// The one choice.
    pub choices: [Choice<'a>; 1],
    /// Token counts.
    pub usage: Usage,
}

/// The choice of a unary reply.
#[derive(Debug, Serialize)]
pub struct Choice<'a> {
    /// Always 0.
    pub index: u32,
    /// What the model said.
    pub message: AssistantMessage<'a>,
    /// Of its tokens, where they were asked for.
    pub logprobs: Option<Logprobs>,
    /// Why it ended.
    pub finish_reason: &'static str,
}

/// What the model said.
#[derive(Debug, Serialize)]
pub struct AssistantMessage<'a> {
    /// `assistant`.
    pub role: &'static str,
    /// The text; null when there is none.
    pub content: Option<String>,
    /// The reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall<'a>>,
    /// The call, to a client that offered `functions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_call: Option<Function<'a>>,
}

/// A whole tool call.
#[derive(Debug, Serialize)]
pub struct ToolCall<'a> {
    /// Pairs it with its result.
    pub id: &'a str,
    /// `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What is called.
    pub function: Function<'a>,
}

/// The function a tool call names.
#[derive(Debug, Serialize)]
pub struct Function<'a> {
    /// Its name.
    pub name: &'a str,
    /// JSON text.
    pub arguments: &'a str,
}

/// Token counts.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub prompt_tokens: u64,
    /// Tokens sampled.
    pub completion_tokens: u64,
    /// Their sum.
    pub total_tokens: u64,
    /// Of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
    /// Of the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// What is known about the prompt's tokens.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PromptTokensDetails {
    /// Found in the engine's cache.
    pub cached_tokens: u64,
}

/// What is known about the reply's tokens.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct CompletionTokensDetails {
    /// Spent on reasoning.
    pub reasoning_tokens: u64,
}

/// An error, as a body or as the last event of a stream.
#[derive(Debug, Serialize)]
pub struct ErrorBody<'a> {
    /// The error.
    pub error: ErrorDetail<'a>,
}

/// What is wrong.
#[derive(Debug, Serialize)]
pub struct ErrorDetail<'a> {
    /// In words.
    pub message: &'a str,
    /// Coarse kind.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Which field of the request.
    pub param: Option<&'a str>,
    /// Fine kind.
    pub code: Option<&'static str>,
}

/// The list of models.
#[derive(Debug, Serialize)]
pub struct ModelList<'a> {
    /// `list`.
    pub object: &'static str,
    /// The models.
    pub data: Vec<Model<'a>>,
}

/// A model.
#[derive(Debug, Serialize)]
pub struct Model<'a> {
    /// Name to ask for.
    pub id: &'a str,
    /// `model`.
    pub object: &'static str,
    /// Unix seconds.
    pub created: i64,
    /// Who offers it.
    pub owned_by: &'static str,
    /// Context window in tokens, under the name vLLM gave it and clients look for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u64>,
}
