//! llama.cpp with ids in and ids out, by its own `/completion`.
//!
//! Every reply is asked for whole: a stream leaves out the ids of tokens inside an unfinished
//! character. Logprobs have the holes that chat replies have. It ends a turn only at the ends that the
//! model's file names; at another id that was asked for as an end, the reply is cut here.

use crate::chat_reply::{Called, Finish, Logprob};
use crate::llama_cpp::{CONTEXT_SHIFTED, LlamaCpp, render};
use crate::reply_stream::{ReplyReader, whole};
use crate::request_body::{carry, sampling_fields, schema_of};
use crate::token_engine::{SampleRequest, SentPrompt, TokenEngine, noted};
use crate::tokens::{Vocabulary, pair_by_id};
use crate::weight_version::settle_version;
use crate::{EngineEnd, EngineError, EngineEvent, EngineInfo, EngineStream};
use async_trait::async_trait;
use bytes::Bytes;
use polar_convo::{Request, Usage};
use polar_types::ErrorClass;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const COMPLETION: &str = "/completion";

/// Before it answers, the server reads a reply with a parser even where it was asked with ids, and
/// fails it (HTTP 500) where its bytes are no characters: what was sampled would be lost. This is
/// its own parser that reads nothing, in the form in which the server hands parsers on.
const CHAT_PARSER: (&str, &str) =
    ("chat_parser", r#"{"parsers": [{"type": "epsilon"}], "rules": {}, "root": 0}"#);

/// Says that a reply went on behind an end that the server does not know, and was cut there.
const CUT_AT: &str = "cut_at_stop_token";

/// Carried fields that say how to sample.
const ABOUT_SAMPLING: &[&str] = &[
    "frequency_penalty",
    "grammar",
    "ignore_eos",
    "json_schema",
    "logit_bias",
    "min_p",
    "presence_penalty",
    "repeat_penalty",
];

#[async_trait]
impl TokenEngine for LlamaCpp {
    async fn sample(&self, mut request: SampleRequest) -> Result<EngineStream, EngineError> {
        request.shows_no_picture()?;
        request.fit(&self.info)?;
        let (mut body, not_sent) = sample_body(&request);
        let reader = LlamaTokenReader::new(&self.info, &request, &not_sent);
        let reply = match self.complete(&body, &request).await {
            // A version that hands parsers on in another form.
            Err(error) if error.status == Some(400) && error.message.contains(CHAT_PARSER.0) => {
                body.remove(CHAT_PARSER.0);
                self.complete(&body, &request).await?
            }
            replied => replied?,
        };
        whole(&reply, reader, settle_version(None)).await
    }

    async fn score(&self, _ids: &[u32], _from: usize) -> Result<Vec<Option<f32>>, EngineError> {
        Err(EngineError::new(
            ErrorClass::Invalid,
            "llama.cpp does not tell the logprobs of a given sequence; score it on vLLM or SGLang \
             with the same weights",
        ))
    }

    async fn render(&self, request: &Request) -> Result<Vec<u32>, EngineError> {
        Ok(render(self.transport.clone(), self.prompt(request)).await?.ids)
    }
}

impl LlamaCpp {
    async fn complete(
        &self,
        body: &Map<String, Value>,
        request: &SampleRequest,
    ) -> Result<Bytes, EngineError> {
        let body = serde_json::to_vec(body).map_err(EngineError::malformed)?;
        self.transport.reply(COMPLETION, body, request.names()).await
    }
}

/// The question, and which carried fields it has no place for.
fn sample_body(request: &SampleRequest) -> (Map<String, Value>, Vec<String>) {
    let mut rest = request.rest.clone();
    let mut body = sampling_fields(&request.sampling);
    carry(&mut rest, ABOUT_SAMPLING, &mut body);
    if let Some(schema) = rest.get("response_format").and_then(schema_of) {
        rest.remove("response_format");
        body.insert("json_schema".into(), schema);
    }
    if let Some(penalty) = rest.remove("repetition_penalty") {
        body.insert("repeat_penalty".into(), penalty);
    }
    if let Some(most) = body.remove("max_tokens") {
        body.insert("n_predict".into(), most);
    }
    // Its own defaults cut the distribution down, and may have been set at its start.
    for (name, neutral) in [
        ("temperature", json!(1.0)),
        ("top_p", json!(1.0)),
        ("min_p", json!(0.0)),
        ("typical_p", json!(1.0)),
        ("repeat_penalty", json!(1.0)),
        ("dry_multiplier", json!(0.0)),
        ("xtc_probability", json!(0.0)),
    ] {
        body.entry(name).or_insert(neutral);
    }
    let top_k = request.sampling.top_k.filter(|k| *k > 0).unwrap_or(0);
    body.insert("top_k".into(), top_k.into());
    // With none asked for, the sampled token's own logprob is left out as well.
    body.insert("n_probs".into(), 1.into());
    body.insert("return_tokens".into(), true.into());
    body.insert("cache_prompt".into(), true.into());
    body.insert("prompt".into(), json!(&*request.prompt));
    body.insert(CHAT_PARSER.0.into(), CHAT_PARSER.1.into());
    (body, rest.into_iter().map(|(name, _)| name).collect())
}

#[derive(Deserialize)]
struct TokenReply {
    #[serde(default)]
    tokens: Option<Vec<u32>>,
    #[serde(default)]
    completion_probabilities: Vec<Logprob>,
    #[serde(default)]
    tokens_evaluated: u64,
    #[serde(default)]
    tokens_predicted: u64,
    #[serde(default)]
    truncated: bool,
    /// `eos`, `limit`, `word` or `none`.
    #[serde(default)]
    stop_type: Option<String>,
    #[serde(default)]
    stopping_word: Option<String>,
    #[serde(default)]
    timings: Timings,
    #[serde(default)]
    error: Option<Box<RawValue>>,
}

#[derive(Deserialize, Default)]
struct Timings {
    #[serde(default)]
    cache_n: Option<u64>,
}

/// Reads the one reply.
struct LlamaTokenReader {
    vocabulary: Vocabulary,
    context_window: Option<u64>,
    prompt: Arc<[u32]>,
    stop_token_ids: Vec<u32>,
    finish: Finish,
    usage: Usage,
    extra: Map<String, Value>,
}

impl LlamaTokenReader {
    fn new(info: &EngineInfo, request: &SampleRequest, not_sent: &[String]) -> Self {
        Self {
            vocabulary: Vocabulary(info.vocab_size),
            context_window: info.context_window,
            prompt: Arc::clone(&request.prompt),
            stop_token_ids: request.stop_token_ids.clone(),
            finish: Finish::default(),
            usage: Usage::default(),
            extra: noted(not_sent),
        }
    }

    fn take_end(&mut self, reply: &mut TokenReply) {
        self.usage = Usage {
            prompt_tokens: reply.tokens_evaluated,
            completion_tokens: reply.tokens_predicted,
            cached_tokens: reply.timings.cache_n,
            reasoning_tokens: None,
        };
        let sequence = reply.tokens_evaluated + reply.tokens_predicted;
        // A reply that just fills the context is called truncated as well, and is whole.
        if reply.truncated && self.context_window.is_none_or(|window| sequence > window) {
            self.extra.insert(CONTEXT_SHIFTED.into(), true.into());
        }
        self.finish.reason = reply.stop_type.take();
        if self.finish.reason.as_deref() == Some("word") {
            let word = reply.stopping_word.take();
            self.finish.stop_sequence = word.filter(|word| !word.is_empty());
        }
    }

    /// Drops what was sampled behind an end of the turn that the server does not know.
    fn cut(&mut self, ids: &mut Vec<u32>, logprobs: &mut Vec<Option<f32>>) {
        let Some(end) = ids.iter().position(|id| self.stop_token_ids.contains(id)) else { return };
        if end + 1 == ids.len() {
            self.finish.reason = Some("eos".to_owned());
            return;
        }
        self.extra.insert(CUT_AT.into(), json!({"id": ids[end], "dropped": ids.len() - end - 1}));
        ids.truncate(end + 1);
        logprobs.truncate(end + 1);
        self.usage.completion_tokens = ids.len() as u64;
        self.finish = Finish { reason: Some("eos".to_owned()), ..Finish::default() };
    }
}

impl ReplyReader for LlamaTokenReader {
    fn read(&mut self, data: &[u8], out: &mut VecDeque<EngineEvent>) -> Result<(), EngineError> {
        let mut reply: TokenReply = serde_json::from_slice(data).map_err(EngineError::malformed)?;
        if let Some(error) = reply.error.take().filter(|error| error.get() != "null") {
            return Err(EngineError::from_stream(error.get().as_bytes()));
        }
        self.take_end(&mut reply);
        let mut ids = reply.tokens.unwrap_or_default();
        self.vocabulary.check(&ids)?;
        let given = &reply.completion_probabilities;
        let mut logprobs = pair_by_id(&ids, given).unwrap_or_else(|| {
            let counts = json!({"ids": ids.len(), "logprobs": given.len()});
            self.extra.insert("logprobs_not_paired".into(), counts);
            vec![None; ids.len()]
        });
        self.cut(&mut ids, &mut logprobs);
        if !ids.is_empty() {
            out.push_back(EngineEvent::Chunk { events: Vec::new(), ids, logprobs });
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut VecDeque<EngineEvent>) -> Result<EngineEnd, EngineError> {
        let Some(engine_finish) = self.finish.reason.clone() else {
            return Err(EngineError::malformed("the reply ended without a stop type"));
        };
        let finish = match engine_finish.as_str() {
            "limit" => polar_convo::FinishReason::Length,
            _ => self.finish.normalise(Called::Nothing, false),
        };
        let mut extra = std::mem::take(&mut self.extra);
        match extra.contains_key(CONTEXT_SHIFTED) {
            false => SentPrompt::new(&self.prompt).ended(self.usage, &mut extra, out),
            true => {
                let reason = "the engine dropped tokens from its context while it sampled; start \
                              it without --context-shift";
                extra.insert("prompt_ids_missing".into(), reason.into());
            }
        }
        Ok(EngineEnd {
            finish,
            engine_finish,
            stop_sequence: self.finish.stop_sequence.take(),
            usage: self.usage,
            weight_versions: Vec::new(),
            arrays: BTreeMap::new(),
            extra,
        })
    }
}
