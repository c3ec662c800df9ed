//! What a request says about the form of its reply.

/// What a Chat request says about the form of its reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChatTerms {
    /// Whether a stream ends with a usage chunk.
    pub include_usage: bool,
    /// Whether the reply tells the logprob of each token.
    pub logprobs: bool,
    /// Whether tools were offered as `functions`, the form before `tools`: one call a reply,
    /// without an id.
    pub functions: bool,
}
