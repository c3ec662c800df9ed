//! What vLLM and SGLang say of a conversation at `/tokenize`, which they have in common.

use crate::EngineError;
use crate::request_body::prompt_body;
use crate::transport::Transport;
use polar_convo::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Length of the rendered prompt.
pub(crate) async fn count_tokens(
    transport: &Transport,
    request: &Request,
    model: &str,
) -> Result<u64, EngineError> {
    #[derive(Deserialize)]
    struct Counted {
        count: u64,
    }
    ask(transport, request, model).await.map(|Counted { count }| count)
}

/// Ids of the rendered prompt.
pub(crate) async fn render(
    transport: &Transport,
    request: &Request,
    model: &str,
) -> Result<Vec<u32>, EngineError> {
    #[derive(Deserialize)]
    struct Tokens {
        tokens: Vec<u32>,
    }
    ask(transport, request, model).await.map(|Tokens { tokens }| tokens)
}

async fn ask<T: DeserializeOwned>(
    transport: &Transport,
    request: &Request,
    model: &str,
) -> Result<T, EngineError> {
    transport.ask("/tokenize", &prompt_body(request, model)).await
}
