//! SGLang with ids in and ids out, by its own `/generate`.
//!
//! Each event of a stream repeats the whole reply so far, unless the server was started with
//! `--incremental-streaming-output`; which of both an event is shows in its counts. An error in a
//! streamed request comes as the stream's first event, so that one is waited for.

use crate::chat_reply::{Called, Finish, Logprob, StopMark};
use crate::pictures;
use crate::reply_stream::{ReplyReader, streamed, whole};
use crate::request_body::{carry, sampling_fields, schema_of, without_model_defaults};
use crate::sglang::Sglang;
use crate::token_engine::{SampleOnce, SentPrompt, check_sequence, noted, sample_fitting};
use crate::tokenize::render;
use crate::tokens::{Vocabulary, pair_exactly};
use crate::weight_version::settle_version;
use crate::{
    EngineArray, EngineEnd, EngineError, EngineEvent, EngineInfo, EngineStream, SampleRequest,
    TokenEngine, arrays,
};
use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use polar_convo::{Request, Usage};
use polar_types::{ErrorClass, WeightSpan};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};

const GENERATE: &str = "/generate";

/// What the server calls the last id of its vocabulary in a prompt's logprobs: it takes it for one
/// outside. The logprob is the right one's.
const CALLED_INSTEAD: u32 = 0;

/// Carried fields that say how to sample. The server refuses names it does not know.
const ABOUT_SAMPLING: &[&str] = &[
    "custom_params",
    "ebnf",
    "frequency_penalty",
    "ignore_eos",
    "json_schema",
    "logit_bias",
    "min_new_tokens",
    "min_p",
    "presence_penalty",
    "regex",
    "repetition_penalty",
    "skip_special_tokens",
    "stop_regex",
];

/// Carried fields about the request.
const ABOUT_REQUEST: &[&str] = &[
    "cache_salt",
    "custom_logit_processor",
    "extra_key",
    "lora_path",
    "priority",
    "return_routed_experts",
    "return_sampling_mask",
];

#[async_trait]
impl TokenEngine for Sglang {
    async fn sample(&self, request: SampleRequest) -> Result<EngineStream, EngineError> {
        sample_fitting(self, &self.info, request).await
    }

    async fn score(&self, ids: &[u32], from: usize) -> Result<Vec<Option<f32>>, EngineError> {
        check_sequence(ids, &self.info)?;
        // Told of each id is how likely it was behind those before it, from this place on.
        let start = from.saturating_sub(1).min(ids.len() - 1);
        let body = json!({
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": true,
            "logprob_start_len": start,
        });
        let body = serde_json::to_vec(&body).map_err(EngineError::malformed)?;
        let reply = self.transport.reply(GENERATE, body, "polar-score").await?;
        let reply: TokenReply = serde_json::from_slice(&reply).map_err(EngineError::malformed)?;
        let entries = reply.meta_info.input_token_logprobs.unwrap_or_default();
        let last = self.info.vocab_size.map(|size| size - 1);
        let is_of = |entry: &Entry, id: u32| {
            entry.1 == id || (entry.1 == CALLED_INSTEAD && Some(id) == last)
        };
        let fits = entries.len() == ids.len() - start
            && entries.iter().zip(&ids[start..]).all(|(entry, id)| is_of(entry, *id));
        if !fits {
            return Err(EngineError::malformed("logprobs of another prompt than it was given"));
        }
        let known = entries.into_iter().zip(start..);
        let known = known.map(|(entry, place)| entry.0.filter(|_| place >= from));
        Ok(std::iter::repeat_n(None, start).chain(known).collect())
    }

    /// Asks it to sample one token behind the picture.
    async fn picture_mark(
        &self,
        prompt: &[u32],
        picture: &str,
    ) -> Result<Option<u32>, EngineError> {
        let body = json!({
            "input_ids": prompt,
            "image_data": [picture],
            "sampling_params": {"max_new_tokens": 1},
            "return_prompt_token_ids": true,
        });
        match self.transport.ask::<TokenReply>(GENERATE, &body).await {
            Ok(reply) => {
                let had = reply.prompt_token_ids.unwrap_or_default();
                Ok(pictures::repeated_mark(prompt, &had))
            }
            // Its model sees nothing, or what the template writes is no mark: of a mark without a
            // picture, a version never answers.
            Err(error) if error.status.is_some() || error.class == ErrorClass::Timeout => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn render(&self, request: &Request) -> Result<Vec<u32>, EngineError> {
        render(&self.transport, request, &self.info.model).await
    }
}

#[async_trait]
impl SampleOnce for Sglang {
    async fn sample_once(&self, request: &SampleRequest) -> Result<EngineStream, EngineError> {
        let (body, not_sent) = sample_body(request);
        let body = serde_json::to_vec(&body).map_err(EngineError::malformed)?;
        let reader = SglangTokenReader::new(&self.info, request, &not_sent);
        let settle = settle_version(None);
        if request.stream {
            let body = self.transport.open(GENERATE, body, request.names()).await?;
            begun(streamed(body, reader, settle, self.transport.clone())).await
        } else {
            let reply = self.transport.reply(GENERATE, body, request.names()).await?;
            whole(&reply, reader, settle).await
        }
    }
}

/// Waits for the first event; an error in its place is the answer.
async fn begun(mut events: EngineStream) -> Result<EngineStream, EngineError> {
    let first = events.next().await.transpose()?;
    Ok(Box::pin(stream::iter(first.map(Ok)).chain(events)))
}

/// The question, and which carried fields it has no place for.
fn sample_body(request: &SampleRequest) -> (Map<String, Value>, Vec<String>) {
    let mut rest = request.rest.clone();
    let mut sampling = sampling_fields(&request.sampling);
    carry(&mut rest, ABOUT_SAMPLING, &mut sampling);
    for (chats, own, from) in [
        ("max_tokens", "max_new_tokens", None),
        ("seed", "sampling_seed", None),
        ("min_tokens", "min_new_tokens", Some(&mut rest)),
    ] {
        let value = match from {
            Some(rest) => rest.remove(chats),
            None => sampling.remove(chats),
        };
        if let Some(value) = value {
            sampling.insert(own.into(), value);
        }
    }
    if let Some(schema) = rest.get("response_format").and_then(schema_of) {
        rest.remove("response_format");
        sampling.insert("json_schema".into(), schema.to_string().into());
    }
    without_model_defaults(&mut sampling);
    // Without one the reply would end after 128; null is as long as there is room.
    sampling.entry("max_new_tokens").or_insert(Value::Null);
    if !request.stop_token_ids.is_empty() {
        sampling.insert("stop_token_ids".into(), json!(request.stop_token_ids));
    }
    let mut body = Map::new();
    carry(&mut rest, ABOUT_REQUEST, &mut body);
    if let Some(session) = &request.session {
        body.insert("session_id".into(), session.as_str().into());
    }
    body.insert("input_ids".into(), json!(&*request.prompt));
    if !request.pictures.is_empty() {
        body.insert("image_data".into(), json!(request.pictures));
        body.insert("return_prompt_token_ids".into(), true.into());
    }
    body.insert("sampling_params".into(), sampling.into());
    body.insert("return_logprob".into(), true.into());
    body.insert("rid".into(), request.request_id.as_str().into());
    body.insert("stream".into(), request.stream.into());
    (body, rest.into_iter().map(|(name, _)| name).collect())
}

#[derive(Deserialize)]
struct TokenReply {
    #[serde(default)]
    output_ids: Option<Vec<u32>>,
    #[serde(default)]
    meta_info: MetaInfo,
    #[serde(default)]
    error: Option<Box<RawValue>>,
    /// Where asked for: the prompt with its pictures, in each event.
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
}

/// A logprob, its id and its text.
#[derive(Deserialize)]
struct Entry(Option<f32>, u32, IgnoredAny);

#[derive(Deserialize, Default)]
#[serde(default)]
struct MetaInfo {
    finish_reason: Option<FinishReason>,
    prompt_tokens: u64,
    completion_tokens: u64,
    cached_tokens: Option<u64>,
    weight_version: Option<String>,
    weight_versions: Option<Vec<WeightSpan>>,
    input_token_logprobs: Option<Vec<Entry>>,
    output_token_logprobs: Option<Vec<Entry>>,
    /// The ids left to sample each token from.
    output_token_sampling_mask: Option<Vec<Vec<u32>>>,
    /// Logprobs among those.
    output_token_sampling_logprobs: Option<Vec<f32>>,
    /// Of all tokens but the last, those of the prompt first.
    routed_experts: Option<String>,
}

#[derive(Deserialize)]
struct FinishReason {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    matched: Option<StopMark>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    status_code: Option<u16>,
}

/// Reads ids and logprobs, each once.
struct SglangTokenReader {
    vocabulary: Vocabulary,
    prompt: SentPrompt,
    picture_mark: Option<u32>,
    finish: Finish,
    usage: Usage,
    /// Ids given so far.
    sampled: u64,
    /// Ids whose logprobs came in another number.
    unpaired: u64,
    kept_ids: Vec<Vec<u32>>,
    kept_logprobs: Vec<f32>,
    weight_versions: Vec<WeightSpan>,
    weight_version: Option<String>,
    routed_experts: Option<String>,
    extra: Map<String, Value>,
}

impl SglangTokenReader {
    fn new(info: &EngineInfo, request: &SampleRequest, not_sent: &[String]) -> Self {
        Self {
            vocabulary: Vocabulary(info.vocab_size),
            prompt: SentPrompt::of(request),
            picture_mark: request.picture_mark,
            finish: Finish::default(),
            usage: Usage::default(),
            sampled: 0,
            unpaired: 0,
            kept_ids: Vec::new(),
            kept_logprobs: Vec::new(),
            weight_versions: Vec::new(),
            weight_version: None,
            routed_experts: None,
            extra: noted(not_sent),
        }
    }

    /// What is new in an event. While a reply grows, lists may be of different lengths: a list of
    /// ids may already have the next one.
    fn take_tokens(
        &mut self,
        ids: &[u32],
        logprobs: &[Logprob],
        ended: bool,
        out: &mut VecDeque<EngineEvent>,
    ) -> Result<(), EngineError> {
        let (ids, logprobs) = match ended {
            true => (ids, logprobs),
            false => {
                let both = ids.len().min(logprobs.len());
                (&ids[..both], &logprobs[..both])
            }
        };
        if ids.is_empty() {
            return Ok(());
        }
        self.vocabulary.check(ids)?;
        self.sampled += ids.len() as u64;
        let logprobs = pair_exactly(ids, logprobs).unwrap_or_else(|| {
            self.unpaired += ids.len() as u64;
            vec![None; ids.len()]
        });
        out.push_back(EngineEvent::Chunk { events: Vec::new(), ids: ids.to_vec(), logprobs });
        Ok(())
    }

    fn take_meta(&mut self, meta: &mut MetaInfo, whole: bool) -> Result<bool, EngineError> {
        self.usage = Usage {
            prompt_tokens: meta.prompt_tokens,
            completion_tokens: meta.completion_tokens,
            cached_tokens: meta.cached_tokens,
            reasoning_tokens: None,
        };
        let kept = meta.output_token_sampling_mask.take().unwrap_or_default();
        let logprobs = meta.output_token_sampling_logprobs.take().unwrap_or_default();
        if whole {
            self.kept_ids.clear();
            self.kept_logprobs.clear();
        }
        self.kept_ids.extend(kept);
        self.kept_logprobs.extend(logprobs);
        self.weight_versions = meta.weight_versions.take().unwrap_or_default();
        self.weight_version = meta.weight_version.take();
        self.routed_experts = meta.routed_experts.take().or(self.routed_experts.take());
        let Some(reason) = meta.finish_reason.take() else { return Ok(false) };
        if let Some(status) = reason.status_code.filter(|status| *status >= 400) {
            let message = reason.message.unwrap_or_default();
            let body = json!({"message": message}).to_string();
            return Err(EngineError::from_answer(status, None, body.as_bytes()));
        }
        self.finish.note(Some(reason.kind), reason.matched);
        Ok(true)
    }
}

impl ReplyReader for SglangTokenReader {
    fn read(&mut self, data: &[u8], out: &mut VecDeque<EngineEvent>) -> Result<(), EngineError> {
        let mut reply: TokenReply = serde_json::from_slice(data).map_err(EngineError::malformed)?;
        if let Some(error) = reply.error.filter(|error| error.get() != "null") {
            return Err(EngineError::from_stream(error.get().as_bytes()));
        }
        let ids = reply.output_ids.take().unwrap_or_default();
        // An event of new ids alone has fewer than there are.
        let whole = ids.len() as u64 >= reply.meta_info.completion_tokens;
        let known = match whole {
            true => usize::try_from(self.sampled).unwrap_or(usize::MAX),
            false => 0,
        };
        let entries = reply.meta_info.output_token_logprobs.take().unwrap_or_default();
        let logprobs: Vec<Logprob> = entries
            .into_iter()
            .skip(known)
            .map(|Entry(logprob, id, _)| Logprob { logprob, id: Some(id) })
            .collect();
        let Some(new) = ids.get(known..) else {
            return Err(EngineError::malformed("ids of a reply were taken back"));
        };
        let ended = self.take_meta(&mut reply.meta_info, whole)?;
        match reply.prompt_token_ids.filter(|_| self.prompt.awaits_pictures()) {
            Some(had) => self.prompt.shown_by(self.picture_mark, had, out)?,
            None => self.prompt.counted(self.usage.prompt_tokens, out),
        }
        self.take_tokens(new, &logprobs, ended, out)
    }

    fn finish(&mut self, out: &mut VecDeque<EngineEvent>) -> Result<EngineEnd, EngineError> {
        let Some(engine_finish) = self.finish.reason.clone() else {
            return Err(EngineError::malformed("the reply ended without a finish reason"));
        };
        let mut extra = std::mem::take(&mut self.extra);
        if self.unpaired > 0 {
            extra.insert("logprobs_not_paired".into(), json!(self.unpaired));
        }
        let usage = self.usage;
        let mut weight_versions = std::mem::take(&mut self.weight_versions);
        if weight_versions.is_empty() && self.weight_version.is_some() {
            let version = self.weight_version.take();
            weight_versions.push(WeightSpan { version, start: 0, end: usage.completion_tokens });
        }
        let mut arrays: BTreeMap<String, EngineArray> = BTreeMap::new();
        if !self.kept_ids.is_empty() {
            arrays::of_kept_ids("sampling_mask", &self.kept_ids, &mut arrays);
            arrays.insert("sampling_logprobs".to_owned(), arrays::of_floats(&self.kept_logprobs));
        }
        if let Some(text) = self.routed_experts.take() {
            let rows = (usage.prompt_tokens + usage.completion_tokens).saturating_sub(1);
            match arrays::from_rows(&text, rows) {
                Some(array) => drop(arrays.insert("routed_experts".to_owned(), array)),
                // Of another form than is known here: kept as it came.
                None => drop(extra.insert("routed_experts".to_owned(), text.into())),
            }
        }
        self.prompt.ended(usage, &mut extra, out);
        Ok(EngineEnd {
            finish: self.finish.normalise(Called::Nothing, false),
            engine_finish,
            stop_sequence: self.finish.stop_sequence.take(),
            usage,
            weight_versions,
            arrays,
            extra,
        })
    }
}
