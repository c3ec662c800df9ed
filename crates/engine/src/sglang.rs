//! SGLang.
//!
//! A whole reply gives ids with `return_token_ids`. A streamed one refuses that field and
//! gives them with the `sglext` fields, in one chunk just before the usage; logprobs come
//! chunk by chunk without ids, so they are gathered and paired at the end. The stop token
//! is in the ids and has a logprob.
//!
//! Started without any parser, the server leaves the logprobs of steps that add no text out of a
//! stream: those of the end of the turn, and of tokens inside a character. Its replies are then asked
//! for whole, which a harness that wants a stream gets as one.

use crate::chat_reply::{self, Choice, Finish, Logprob, ReplyEvents, WireUsage};
use crate::reply_stream::{ReplyReader, streamed, whole};
use crate::request_body::{at_limit, chat_body, without_model_defaults};
use crate::tokenize::count_tokens;
use crate::tokens::{Vocabulary, pair_by_position};
use crate::transport::Transport;
use crate::vllm::CHAT;
use crate::weight_version::settle_version;
use crate::weight_version::{VersionPage, VersionWatch};
use crate::{
    Engine, EngineEnd, EngineError, EngineEvent, EngineInfo, EngineStream, GenerateRequest,
    TokenEngine, WeightEngine,
};
use async_trait::async_trait;
use polar_convo::{Request, Usage};
use polar_types::WeightSpan;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};

pub(crate) const MODEL_INFO: VersionPage = VersionPage("/model_info");

pub(crate) struct Sglang {
    pub(crate) transport: Transport,
    pub(crate) info: EngineInfo,
    /// Its streams have all logprobs.
    pub(crate) streams: bool,
}

#[async_trait]
impl Engine for Sglang {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    async fn generate(&self, mut asked: GenerateRequest) -> Result<EngineStream, EngineError> {
        match self.generate_as(&asked).await {
            Err(EngineError { room: Some(room), .. }) => {
                room.lower(&mut asked.request.sampling, &mut asked.request_id);
                self.generate_as(&asked).await
            }
            done => done,
        }
    }

    async fn count_tokens(&self, request: &Request) -> Result<u64, EngineError> {
        count_tokens(&self.transport, request, &self.info.model).await
    }

    async fn health(&self) -> Result<(), EngineError> {
        self.transport.answers("/health").await
    }

    fn tokens(&self) -> Option<&dyn TokenEngine> {
        Some(self)
    }

    fn weight_engine(&self) -> Option<&dyn WeightEngine> {
        Some(self)
    }
}

impl Sglang {
    async fn generate_as(&self, asked: &GenerateRequest) -> Result<EngineStream, EngineError> {
        let GenerateRequest { request, request_id } = asked;
        let stream = request.stream && self.streams;
        let body = self.body(request, request_id, stream);
        let body = serde_json::to_vec(&body).map_err(EngineError::malformed)?;
        let reader = SglangReader::new(&self.info, request, request_id);
        if stream {
            // Only a whole reply tells its weight versions by itself.
            let watch = VersionWatch::start(MODEL_INFO, &self.transport).await;
            let body = self.transport.open(CHAT, body, request_id.as_str()).await?;
            Ok(streamed(body, reader, settle_version(Some(watch)), self.transport.clone()))
        } else {
            let reply = self.transport.reply(CHAT, body, request_id.as_str()).await?;
            whole(&reply, reader, settle_version(None)).await
        }
    }

    fn body(&self, request: &Request, request_id: &str, stream: bool) -> Map<String, Value> {
        let mut body = chat_body(request, &self.info, stream);
        without_model_defaults(&mut body);
        body.insert("rid".into(), request_id.into());
        if stream {
            body.insert("return_input_ids_in_sglext".into(), true.into());
            body.insert("return_output_ids_in_sglext".into(), true.into());
        } else {
            body.insert("return_token_ids".into(), true.into());
        }
        body
    }
}

/// Reads SGLang's replies and chunks.
struct SglangReader {
    vocabulary: Vocabulary,
    request_id: String,
    max_tokens: Option<u64>,
    context_window: Option<u64>,
    events: ReplyEvents,
    finish: Finish,
    usage: Option<WireUsage>,
    prompt_ids: Option<Vec<u32>>,
    sampled_ids: Option<Vec<u32>>,
    logprobs: Vec<Logprob>,
    weight_versions: Vec<WeightSpan>,
    weight_version: Option<String>,
}

impl SglangReader {
    fn new(info: &EngineInfo, request: &Request, request_id: &str) -> Self {
        Self {
            vocabulary: Vocabulary(info.vocab_size),
            request_id: request_id.to_owned(),
            max_tokens: request.sampling.max_tokens,
            context_window: info.context_window,
            events: ReplyEvents::default(),
            finish: Finish::default(),
            usage: None,
            prompt_ids: None,
            sampled_ids: None,
            logprobs: Vec::new(),
            weight_versions: Vec::new(),
            weight_version: None,
        }
    }

    fn take_choice(
        &mut self,
        mut choice: Choice,
        out: &mut VecDeque<EngineEvent>,
    ) -> Result<(), EngineError> {
        self.finish.take(&mut choice);
        if let Some(logprobs) = choice.logprobs.take() {
            self.logprobs.extend(logprobs.content.into_iter().flatten());
        }
        self.prompt_ids = choice.prompt_token_ids.or(self.prompt_ids.take());
        self.sampled_ids = choice.response_token_ids.or(self.sampled_ids.take());
        let events = self.events.take(choice.delta, &self.request_id)?;
        if !events.is_empty() {
            out.push_back(EngineEvent::Chunk { events, ids: Vec::new(), logprobs: Vec::new() });
        }
        Ok(())
    }

    /// Ids come last and logprobs without ids, so only now they can be paired.
    fn give_tokens(
        &mut self,
        extra: &mut Map<String, Value>,
        out: &mut VecDeque<EngineEvent>,
    ) -> Result<Option<u64>, EngineError> {
        if let Some(ids) = self.prompt_ids.take() {
            self.vocabulary.check(&ids)?;
            out.push_back(EngineEvent::PromptIds(ids));
        }
        let Some(ids) = self.sampled_ids.take() else { return Ok(None) };
        self.vocabulary.check(&ids)?;
        let sampled = ids.len() as u64;
        let logprobs = pair_by_position(&ids, &self.logprobs).unwrap_or_else(|| {
            let counts = json!({"ids": ids.len(), "logprobs": self.logprobs.len()});
            extra.insert("logprobs_not_paired".into(), counts);
            vec![None; ids.len()]
        });
        if !ids.is_empty() {
            out.push_back(EngineEvent::Chunk { events: Vec::new(), ids, logprobs });
        }
        Ok(Some(sampled))
    }
}

impl ReplyReader for SglangReader {
    fn read(&mut self, data: &[u8], out: &mut VecDeque<EngineEvent>) -> Result<(), EngineError> {
        let reply = chat_reply::read(data)?;
        self.usage = reply.usage.or(self.usage);
        if let Some(metadata) = reply.metadata {
            self.weight_versions = metadata.weight_versions.unwrap_or_default();
            self.weight_version = metadata.weight_version;
        }
        if let Some(extension) = reply.sglext {
            self.prompt_ids = extension.input_ids.or(self.prompt_ids.take());
            let sampled = extension.output_ids.and_then(|choices| choices.into_iter().next());
            self.sampled_ids = sampled.or(self.sampled_ids.take());
        }
        match reply.choices.into_iter().next() {
            Some(choice) => self.take_choice(choice, out),
            None => Ok(()),
        }
    }

    fn finish(&mut self, out: &mut VecDeque<EngineEvent>) -> Result<EngineEnd, EngineError> {
        let Some(engine_finish) = self.finish.reason.clone() else {
            return Err(EngineError::malformed("the reply ended without a finish reason"));
        };
        let mut extra = Map::new();
        let prompt_tokens = self.prompt_ids.as_ref().map_or(0, |ids| ids.len() as u64);
        let sampled = self.give_tokens(&mut extra, out)?;
        let counted =
            Usage { prompt_tokens, completion_tokens: sampled.unwrap_or(0), ..Usage::default() };
        let usage = self.usage.map_or(counted, Usage::from);
        let mut weight_versions = std::mem::take(&mut self.weight_versions);
        if weight_versions.is_empty() && self.weight_version.is_some() {
            let version = self.weight_version.take();
            weight_versions.push(WeightSpan { version, start: 0, end: usage.completion_tokens });
        }
        let limit = at_limit(self.max_tokens, self.context_window, usage);
        Ok(EngineEnd {
            finish: self.finish.normalise(self.events.called(), limit),
            engine_finish,
            stop_sequence: self.finish.stop_sequence.take(),
            usage,
            weight_versions,
            arrays: BTreeMap::new(),
            extra,
        })
    }
}
