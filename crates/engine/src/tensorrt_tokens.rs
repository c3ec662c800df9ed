//! TensorRT-LLM with ids in and ids out, by `/v1/completions`.
//!
//! Written against its published source; no machine that ran the tests could run it. The server
//! gives ids in the place of text where it is told not to make text (`detokenize`), and a logprob
//! with each only if one more is asked for. It cuts the id of a stop token off unless that is to be
//! part of the output. Stop strings it finds only where they are spelled in their own tokens.

use crate::reply_stream::{streamed, whole};
use crate::request_body::{carry, sampling_fields};
use crate::tensorrt_llm::{TensorRtLlm, without_model_defaults};
use crate::token_engine::Rendering;
use crate::token_reply::TokenReader;
use crate::weight_version::settle_version;
use crate::{EngineError, EngineStream, SampleRequest, TokenEngine};
use async_trait::async_trait;
use polar_convo::Request;
use polar_types::ErrorClass;
use serde::Deserialize;
use serde_json::{Map, Value, json};

const COMPLETIONS: &str = "/v1/completions";
const RENDER: &str = "/v1/chat/completions/render";

/// Carried fields that it has. It refuses all others.
const CARRIED: &[&str] = &[
    "frequency_penalty",
    "ignore_eos",
    "length_penalty",
    "logit_bias",
    "lora_request",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "priority",
    "repetition_penalty",
    "response_format",
    "skip_special_tokens",
    "thinking_token_budget",
    "top_p_min",
];

#[async_trait]
impl TokenEngine for TensorRtLlm {
    async fn sample(&self, mut request: SampleRequest) -> Result<EngineStream, EngineError> {
        request.shows_no_picture()?;
        request.fit(&self.info)?;
        let (body, not_sent) = self.completion_body(&request);
        let body = serde_json::to_vec(&body).map_err(EngineError::malformed)?;
        let reader = TokenReader::new(&self.info, &request, &not_sent);
        let settle = settle_version(None);
        if request.stream {
            let body = self.transport.open(COMPLETIONS, body, request.names()).await?;
            Ok(streamed(body, reader, settle, self.transport.clone()))
        } else {
            let reply = self.transport.reply(COMPLETIONS, body, request.names()).await?;
            whole(&reply, reader, settle).await
        }
    }

    async fn score(&self, _ids: &[u32], _from: usize) -> Result<Vec<Option<f32>>, EngineError> {
        Err(EngineError::new(
            ErrorClass::Invalid,
            "TensorRT-LLM does not tell the logprobs of a given sequence over HTTP; score it on \
             vLLM or SGLang with the same weights",
        ))
    }

    async fn render(&self, request: &Request) -> Result<Vec<u32>, EngineError> {
        match self.rendering(request).await? {
            Rendering::Ids(ids) => Ok(ids),
            Rendering::Length(_) => Err(EngineError::new(
                ErrorClass::Invalid,
                "this TensorRT-LLM does not tell the prompts that it makes; start it with \
                 TRTLLM_ENABLE_RENDER_ENDPOINTS=1, which versions that have it read",
            )),
        }
    }

    /// Where the server was not started to render for others, a chat of one token tells how long
    /// its prompt was.
    async fn rendering(&self, request: &Request) -> Result<Rendering, EngineError> {
        let body = self.prompt_body(request);
        match self.transport.ask::<Rendered>(RENDER, &body).await {
            Ok(Rendered { token_ids, .. }) => Ok(Rendering::Ids(token_ids)),
            Err(error) if error.class == ErrorClass::NotFound => {
                self.prompt_length(body).await.map(Rendering::Length)
            }
            Err(error) => Err(error),
        }
    }
}

impl TensorRtLlm {
    /// The question, and which carried fields it has no place for.
    fn completion_body(&self, request: &SampleRequest) -> (Map<String, Value>, Vec<String>) {
        let mut rest = request.rest.clone();
        let mut body = sampling_fields(&request.sampling);
        carry(&mut rest, CARRIED, &mut body);
        without_model_defaults(&mut body);
        body.insert("model".into(), self.info.model.as_str().into());
        body.insert("prompt".into(), json!(&*request.prompt));
        body.insert("detokenize".into(), false.into());
        body.insert("logprobs".into(), 1.into());
        body.insert("include_stop_str_in_output".into(), true.into());
        if !request.stop_token_ids.is_empty() {
            body.insert("stop_token_ids".into(), json!(request.stop_token_ids));
        }
        body.insert("stream".into(), request.stream.into());
        if request.stream {
            // With each piece, so that a reply that nobody waits for has a confirmed prompt too.
            let options = json!({"include_usage": true, "continuous_usage_stats": true});
            body.insert("stream_options".into(), options);
        }
        (body, rest.into_iter().map(|(name, _)| name).collect())
    }
}

/// A prompt as the server makes it.
#[derive(Deserialize)]
struct Rendered {
    token_ids: Vec<u32>,
}
