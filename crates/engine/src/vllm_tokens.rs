//! vLLM with ids in and ids out.
//!
//! `/inference/v1/generate` is made for it, and tells which weights sampled which ids, what experts
//! tokens went through and what was left to sample from; servers have it with
//! `--enable-scale-out`. All others take and give ids in `/v1/completions`, which is also asked for
//! what the former has no field for.

use crate::chat_reply::Logprob;
use crate::pictures;
use crate::reply_stream::{streamed, whole};
use crate::request_body::{carry, sampling_fields, without_model_defaults};
use crate::token_engine::{SampleOnce, check_sequence, sample_fitting};
use crate::token_reply::{TokenReader, TokenReply};
use crate::tokenize::render;
use crate::tokens::pair_exactly;
use crate::transport::Transport;
use crate::vllm::{Vllm, WEIGHT_INFO, with_infinity};
use crate::weight_version::{VersionWatch, settle_version};
use crate::{EngineError, EngineStream, SampleRequest, TokenEngine};
use async_trait::async_trait;
use polar_convo::Request;
use polar_types::ErrorClass;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

const GENERATE: &str = "/inference/v1/generate";
const COMPLETIONS: &str = "/v1/completions";

/// Carried fields that say how to sample.
const ABOUT_SAMPLING: &[&str] = &[
    "allowed_token_ids",
    "bad_words",
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "repetition_penalty",
    "skip_special_tokens",
    "structured_outputs",
    "thinking_token_budget",
];

/// Carried fields about the request.
const ABOUT_REQUEST: &[&str] = &["cache_salt", "priority"];

/// Carried fields that only completions have.
const ONLY_COMPLETIONS: &[&str] = &["response_format", "vllm_xargs"];

#[async_trait]
impl TokenEngine for Vllm {
    async fn sample(&self, request: SampleRequest) -> Result<EngineStream, EngineError> {
        sample_fitting(self, &self.info, request).await
    }

    async fn score(&self, ids: &[u32], from: usize) -> Result<Vec<Option<f32>>, EngineError> {
        check_sequence(ids, &self.info)?;
        let body = json!({
            "model": self.info.model, "prompt": ids, "prompt_logprobs": 0,
            "max_tokens": 1, "temperature": 0.0,
        });
        let body = serde_json::to_vec(&body).map_err(EngineError::malformed)?;
        let reply = self.transport.reply(COMPLETIONS, body, "polar-score").await?;
        let reply: ScoredReply = serde_json::from_slice(&reply).map_err(EngineError::malformed)?;
        let entries = reply.choices.into_iter().next().and_then(|choice| choice.prompt_logprobs);
        let entries = entries.unwrap_or_default();
        if entries.len() != ids.len() {
            let (given, asked) = (entries.len(), ids.len());
            return Err(EngineError::malformed(format_args!(
                "{given} logprobs for a prompt of {asked} ids"
            )));
        }
        let scores = ids.iter().zip(entries).enumerate().map(|(place, (id, entry))| {
            let own = entry.filter(|_| place >= from)?.remove(id)?;
            own.logprob.map(with_infinity)
        });
        Ok(scores.collect())
    }

    /// Asks it to sample one token behind the picture.
    async fn picture_mark(
        &self,
        prompt: &[u32],
        picture: &str,
    ) -> Result<Option<u32>, EngineError> {
        if !self.generates {
            return Ok(None);
        }
        let body = json!({
            "model": self.info.model,
            "token_ids": prompt,
            "content_parts": content_parts(&[picture.to_owned()]),
            "sampling_params": {"max_tokens": 1},
            "return_token_ids": true,
        });
        let reply = match self.transport.ask::<TokenReply>(GENERATE, &body).await {
            Ok(reply) => reply,
            // Its model sees nothing, or its version does not know the field.
            Err(error) if error.status.is_some() => return Ok(None),
            Err(error) => return Err(error),
        };
        let places = reply.mm_placeholders.unwrap_or_default().image;
        let had = reply.prompt_token_ids.unwrap_or_default();
        let marks = pictures::replaced(prompt, &had, &places).unwrap_or_default();
        Ok(match marks[..] {
            [mark] => Some(mark),
            _ => None,
        })
    }

    async fn render(&self, request: &Request) -> Result<Vec<u32>, EngineError> {
        render(&self.transport, request, &self.info.model).await
    }
}

/// Whether the server takes ids at the place that is made for it, and gives logprobs with them.
/// Earlier versions have strings there in the place of ids.
pub(crate) async fn generates(transport: &Transport, model: &str) -> bool {
    let body = json!({
        "model": model, "token_ids": [0], "sampling_params": {"max_tokens": 1, "logprobs": 0},
    });
    let Ok(reply) = transport.ask::<TokenReply>(GENERATE, &body).await else { return false };
    let choice = reply.choices.into_iter().next().unwrap_or_default();
    let (ids, logprobs) = (choice.token_ids.unwrap_or_default(), choice.logprobs);
    let paired = logprobs.and_then(|logprobs| pair_exactly(&ids, &logprobs.content?));
    paired.is_some_and(|paired| matches!(paired[..], [Some(_)]))
}

#[async_trait]
impl SampleOnce for Vllm {
    async fn sample_once(&self, request: &SampleRequest) -> Result<EngineStream, EngineError> {
        let needs_completions =
            ONLY_COMPLETIONS.iter().any(|name| request.rest.contains_key(*name));
        let shows = !request.pictures.is_empty();
        let generates = self.generates && (shows || !needs_completions);
        if shows && !generates {
            request.shows_no_picture()?;
        }
        if !generates && request.sampling.max_tokens.is_none() {
            return Err(EngineError::new(
                ErrorClass::Invalid,
                "this vLLM does not tell its context window, and without a limit it ends a reply \
                 after 16 tokens; ask for max_tokens",
            ));
        }
        let (path, (body, not_sent)) = match generates {
            true => (GENERATE, self.generate_body(request)),
            false => (COMPLETIONS, self.completion_body(request)),
        };
        let body = serde_json::to_vec(&body).map_err(EngineError::malformed)?;
        let watch = match &self.info.weight_version {
            // The reply tells by itself.
            Some(_) if !generates => Some(VersionWatch::start(WEIGHT_INFO, &self.transport).await),
            _ => None,
        };
        let settle = settle_version(watch);
        let reader = TokenReader::new(&self.info, request, &not_sent);
        if request.stream {
            let body = self.transport.open(path, body, request.names()).await?;
            Ok(streamed(body, reader, settle, self.transport.clone()))
        } else {
            let reply = self.transport.reply(path, body, request.names()).await?;
            whole(&reply, reader, settle).await
        }
    }
}

impl Vllm {
    /// The question, and which carried fields it has no place for.
    fn generate_body(&self, request: &SampleRequest) -> (Map<String, Value>, Vec<String>) {
        let mut rest = request.rest.clone();
        let mut sampling = self.sampling(request);
        carry(&mut rest, ABOUT_SAMPLING, &mut sampling);
        without_model_defaults(&mut sampling);
        sampling.insert("logprobs".into(), 0.into());
        let mut body = self.envelope(request);
        carry(&mut rest, ABOUT_REQUEST, &mut body);
        body.insert("token_ids".into(), json!(&*request.prompt));
        body.insert("sampling_params".into(), sampling.into());
        if !request.pictures.is_empty() {
            body.insert("content_parts".into(), content_parts(&request.pictures));
            body.insert("return_token_ids".into(), true.into());
        }
        (body, rest.into_iter().map(|(name, _)| name).collect())
    }

    fn completion_body(&self, request: &SampleRequest) -> (Map<String, Value>, Vec<String>) {
        let mut rest = request.rest.clone();
        let mut body = self.envelope(request);
        body.extend(self.sampling(request));
        for names in [ABOUT_SAMPLING, ABOUT_REQUEST, ONLY_COMPLETIONS] {
            carry(&mut rest, names, &mut body);
        }
        without_model_defaults(&mut body);
        body.insert("prompt".into(), json!(&*request.prompt));
        body.insert("logprobs".into(), 0.into());
        body.insert("return_token_ids".into(), true.into());
        (body, rest.into_iter().map(|(name, _)| name).collect())
    }

    fn envelope(&self, request: &SampleRequest) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("model".into(), self.info.model.as_str().into());
        body.insert("stream".into(), request.stream.into());
        if request.stream {
            // With each piece, so that a reply that nobody waits for has a confirmed prompt too.
            let options = json!({"include_usage": true, "continuous_usage_stats": true});
            body.insert("stream_options".into(), options);
        }
        body
    }

    fn sampling(&self, request: &SampleRequest) -> Map<String, Value> {
        let mut sampling = sampling_fields(&request.sampling);
        if !request.stop_token_ids.is_empty() {
            sampling.insert("stop_token_ids".into(), json!(request.stop_token_ids));
        }
        sampling
    }
}

/// Pictures as the server takes them beside ids.
fn content_parts(pictures: &[String]) -> Value {
    pictures.iter().map(|url| json!({"type": "image_url", "url": url})).collect()
}

#[derive(Deserialize)]
struct ScoredReply {
    choices: Vec<ScoredChoice>,
}

#[derive(Deserialize)]
struct ScoredChoice {
    /// Of each place by id, the prompt's own id among them.
    #[serde(default)]
    prompt_logprobs: Option<Vec<Option<HashMap<u32, Logprob>>>>,
}
