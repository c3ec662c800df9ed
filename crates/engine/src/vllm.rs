//! vLLM, and servers that speak its API.
//!
//! Ids come with `return_token_ids`: the prompt's at the top of the reply or of its first
//! chunk, the sampled ones in each choice. Parsers hold text back, so chunks with ids and
//! an empty delta are normal. The stop token is in the ids. A logprob of -9999.0 is
//! vLLM's spelling of minus infinity and is read as that, so that nobody trains on it.

use crate::chat_reply::{self, Choice, Finish, ReplyEvents, WireUsage};
use crate::reply_stream::{ReplyReader, streamed, whole};
use crate::request_body::{at_limit, chat_body, name_reasoning_both_ways, without_model_defaults};
use crate::tokenize::count_tokens;
use crate::tokens::{Vocabulary, pair_by_position};
use crate::transport::Transport;
use crate::weight_version::settle_version;
use crate::weight_version::{VersionPage, VersionWatch};
use crate::{
    Engine, EngineEnd, EngineError, EngineEvent, EngineInfo, EngineStream, GenerateRequest,
    TokenEngine, WeightEngine,
};
use async_trait::async_trait;
use polar_convo::{Request, Usage};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// Tells the weight version when the server runs with `VLLM_SERVER_DEV_MODE=1`.
pub(crate) const WEIGHT_INFO: VersionPage = VersionPage("/weight_info");

pub(crate) struct Vllm {
    pub(crate) transport: Transport,
    pub(crate) info: EngineInfo,
    /// It takes ids where it is made for it.
    pub(crate) generates: bool,
}

#[async_trait]
impl Engine for Vllm {
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

impl Vllm {
    async fn generate_as(&self, asked: &GenerateRequest) -> Result<EngineStream, EngineError> {
        let GenerateRequest { request, request_id } = asked;
        let body = serde_json::to_vec(&self.body(request)).map_err(EngineError::malformed)?;
        let watch = match self.info.weight_version {
            Some(_) => Some(VersionWatch::start(WEIGHT_INFO, &self.transport).await),
            None => None,
        };
        let settle = settle_version(watch);
        let reader = VllmReader::new(&self.info, request, request_id);
        if request.stream {
            let body = self.transport.open(CHAT, body, request_id.as_str()).await?;
            Ok(streamed(body, reader, settle, self.transport.clone()))
        } else {
            let reply = self.transport.reply(CHAT, body, request_id.as_str()).await?;
            whole(&reply, reader, settle).await
        }
    }

    fn body(&self, request: &Request) -> Map<String, Value> {
        let mut body = chat_body(request, &self.info, request.stream);
        without_model_defaults(&mut body);
        body.insert("return_token_ids".into(), true.into());
        if let Some(Value::Array(messages)) = body.get_mut("messages") {
            messages.iter_mut().for_each(name_reasoning_both_ways);
        }
        body
    }
}

pub(crate) fn with_infinity(logprob: f32) -> f32 {
    /// JSON has no infinity; what vLLM writes for minus infinity.
    const MINUS_INFINITY: f32 = -9999.0;
    if logprob <= MINUS_INFINITY { f32::NEG_INFINITY } else { logprob }
}

/// Reads vLLM's replies and chunks.
pub(crate) struct VllmReader {
    vocabulary: Vocabulary,
    request_id: String,
    max_tokens: Option<u64>,
    context_window: Option<u64>,
    events: ReplyEvents,
    finish: Finish,
    usage: Option<WireUsage>,
    prompt_tokens: Option<u64>,
    sampled: u64,
    /// Ids whose logprobs came in another number.
    unpaired: u64,
}

impl VllmReader {
    pub(crate) fn new(info: &EngineInfo, request: &Request, request_id: &str) -> Self {
        Self {
            vocabulary: Vocabulary(info.vocab_size),
            request_id: request_id.to_owned(),
            max_tokens: request.sampling.max_tokens,
            context_window: info.context_window,
            events: ReplyEvents::default(),
            finish: Finish::default(),
            usage: None,
            prompt_tokens: None,
            sampled: 0,
            unpaired: 0,
        }
    }

    fn take_choice(
        &mut self,
        mut choice: Choice,
        out: &mut VecDeque<EngineEvent>,
    ) -> Result<(), EngineError> {
        self.finish.take(&mut choice);
        let ids = choice.token_ids.take().unwrap_or_default();
        self.vocabulary.check(&ids)?;
        let logprobs = pair_by_position(&ids, choice.logprobs()).unwrap_or_else(|| {
            self.unpaired += ids.len() as u64;
            vec![None; ids.len()]
        });
        let logprobs = logprobs.into_iter().map(|logprob| logprob.map(with_infinity)).collect();
        self.sampled += ids.len() as u64;
        let events = self.events.take(choice.delta, &self.request_id)?;
        if !events.is_empty() || !ids.is_empty() {
            out.push_back(EngineEvent::Chunk { events, ids, logprobs });
        }
        Ok(())
    }
}

impl ReplyReader for VllmReader {
    fn read(&mut self, data: &[u8], out: &mut VecDeque<EngineEvent>) -> Result<(), EngineError> {
        let reply = chat_reply::read(data)?;
        if let Some(ids) = reply.prompt_token_ids
            && self.prompt_tokens.is_none()
        {
            self.vocabulary.check(&ids)?;
            self.prompt_tokens = Some(ids.len() as u64);
            out.push_back(EngineEvent::PromptIds(ids));
        }
        self.usage = reply.usage.or(self.usage);
        match reply.choices.into_iter().next() {
            Some(choice) => self.take_choice(choice, out),
            None => Ok(()),
        }
    }

    fn finish(&mut self, _out: &mut VecDeque<EngineEvent>) -> Result<EngineEnd, EngineError> {
        let counted = Usage {
            prompt_tokens: self.prompt_tokens.unwrap_or(0),
            completion_tokens: self.sampled,
            ..Usage::default()
        };
        let usage = self.usage.map_or(counted, Usage::from);
        let Some(engine_finish) = self.finish.reason.clone() else {
            return Err(EngineError::malformed("the reply ended without a finish reason"));
        };
        let mut extra = Map::new();
        if self.unpaired > 0 {
            extra.insert("logprobs_not_paired".into(), json!(self.unpaired));
        }
        let limit = at_limit(self.max_tokens, self.context_window, usage);
        Ok(EngineEnd {
            finish: self.finish.normalise(self.events.called(), limit),
            engine_finish,
            stop_sequence: self.finish.stop_sequence.take(),
            usage,
            weight_versions: Vec::new(),
            arrays: BTreeMap::new(),
            extra,
        })
    }
}
