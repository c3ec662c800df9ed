//! Ids and logprobs as vLLM gives them behind ids, which TensorRT-LLM does in the same shape.

use crate::chat_reply::{Called, Finish, Logprob, StopMark, WireUsage};
use crate::pictures::Places;
use crate::reply_stream::ReplyReader;
use crate::token_engine::{SentPrompt, noted};
use crate::tokens::{Vocabulary, pair_by_position, pair_exactly};
use crate::vllm::with_infinity;
use crate::{EngineArray, EngineEnd, EngineError, EngineEvent, EngineInfo, SampleRequest, arrays};
use polar_convo::Usage;
use polar_types::WeightSpan;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};

/// A reply, or a chunk of it.
#[derive(Deserialize)]
pub(crate) struct TokenReply {
    #[serde(default)]
    pub(crate) choices: Vec<TokenChoice>,
    #[serde(default)]
    usage: Option<WireUsage>,
    #[serde(default)]
    error: Option<Box<RawValue>>,
    /// Generate, where asked for: the prompt with its pictures, in the first piece.
    #[serde(default)]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    pub(crate) mm_placeholders: Option<Places>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct TokenChoice {
    pub(crate) token_ids: Option<Vec<u32>>,
    pub(crate) logprobs: Option<TokenLogprobs>,
    finish_reason: Option<String>,
    stop_reason: Option<StopMark>,
    /// Completions: of the whole reply or its first chunk.
    prompt_token_ids: Option<Vec<u32>>,
    /// Generate: with the last ids.
    weight_versions: Option<Vec<WeightSpan>>,
    routed_experts: Option<String>,
    /// Generate: the ids left to sample each token of this piece from.
    sampling_mask: Option<Vec<Vec<u32>>>,
}

#[derive(Deserialize)]
pub(crate) struct TokenLogprobs {
    /// Generate.
    #[serde(default)]
    pub(crate) content: Option<Vec<Logprob>>,
    /// Completions.
    #[serde(default)]
    token_logprobs: Option<Vec<Option<f32>>>,
}

impl TokenLogprobs {
    fn pair(self, ids: &[u32]) -> Option<Vec<Option<f32>>> {
        if let Some(entries) = self.content {
            return pair_exactly(ids, &entries);
        }
        let logprobs = self.token_logprobs.unwrap_or_default().into_iter();
        let entries: Vec<Logprob> = logprobs.map(|logprob| Logprob { logprob, id: None }).collect();
        pair_by_position(ids, &entries)
    }
}

/// Reads ids and logprobs.
pub(crate) struct TokenReader {
    vocabulary: Vocabulary,
    prompt: SentPrompt,
    finish: Finish,
    usage: Option<WireUsage>,
    sampled: u64,
    /// Ids whose logprobs came in another number.
    unpaired: u64,
    weight_versions: Vec<WeightSpan>,
    kept_ids: Vec<Vec<u32>>,
    arrays: BTreeMap<String, EngineArray>,
    extra: Map<String, Value>,
}

impl TokenReader {
    pub(crate) fn new(info: &EngineInfo, request: &SampleRequest, not_sent: &[String]) -> Self {
        Self {
            vocabulary: Vocabulary(info.vocab_size),
            prompt: SentPrompt::of(request),
            finish: Finish::default(),
            usage: None,
            sampled: 0,
            unpaired: 0,
            weight_versions: Vec::new(),
            kept_ids: Vec::new(),
            arrays: BTreeMap::new(),
            extra: noted(not_sent),
        }
    }

    fn take_choice(
        &mut self,
        choice: TokenChoice,
        out: &mut VecDeque<EngineEvent>,
    ) -> Result<(), EngineError> {
        if choice.prompt_token_ids.is_some_and(|prompt| !self.prompt.is(&prompt)) {
            return Err(EngineError::malformed(
                "it sampled behind another prompt than it was given",
            ));
        }
        self.finish.note(choice.finish_reason, choice.stop_reason);
        self.weight_versions.extend(choice.weight_versions.into_iter().flatten());
        self.kept_ids.extend(choice.sampling_mask.into_iter().flatten());
        if let Some(text) = choice.routed_experts {
            match arrays::from_npy(&text) {
                Some(array) => drop(self.arrays.insert("routed_experts".to_owned(), array)),
                // Of another form than is known here: kept as it came.
                None => drop(self.extra.insert("routed_experts".to_owned(), text.into())),
            }
        }
        let ids = choice.token_ids.unwrap_or_default();
        if ids.is_empty() {
            return Ok(());
        }
        self.vocabulary.check(&ids)?;
        self.sampled += ids.len() as u64;
        let paired = choice.logprobs.and_then(|logprobs| logprobs.pair(&ids));
        let logprobs = paired.unwrap_or_else(|| {
            self.unpaired += ids.len() as u64;
            vec![None; ids.len()]
        });
        let logprobs = logprobs.into_iter().map(|logprob| logprob.map(with_infinity)).collect();
        out.push_back(EngineEvent::Chunk { events: Vec::new(), ids, logprobs });
        Ok(())
    }
}

impl ReplyReader for TokenReader {
    fn read(&mut self, data: &[u8], out: &mut VecDeque<EngineEvent>) -> Result<(), EngineError> {
        let reply: TokenReply = serde_json::from_slice(data).map_err(EngineError::malformed)?;
        if let Some(error) = reply.error.filter(|error| error.get() != "null") {
            return Err(EngineError::from_stream(error.get().as_bytes()));
        }
        if let Some(had) = reply.prompt_token_ids {
            let places = reply.mm_placeholders.unwrap_or_default();
            self.prompt.shown(had, &places.image, out)?;
        }
        self.usage = reply.usage.or(self.usage);
        if let Some(usage) = self.usage {
            self.prompt.counted(Usage::from(usage).prompt_tokens, out);
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
        let mut extra = std::mem::take(&mut self.extra);
        if self.unpaired > 0 {
            extra.insert("logprobs_not_paired".into(), json!(self.unpaired));
        }
        let mut arrays = std::mem::take(&mut self.arrays);
        if !self.kept_ids.is_empty() {
            arrays::of_kept_ids("sampling_mask", &self.kept_ids, &mut arrays);
        }
        let given = self.prompt.tokens();
        let counted =
            Usage { prompt_tokens: given, completion_tokens: self.sampled, ..Usage::default() };
        let usage = self.usage.map_or(counted, Usage::from);
        self.prompt.ended(usage, &mut extra, out);
        Ok(EngineEnd {
            finish: self.finish.normalise(Called::Nothing, false),
            engine_finish,
            stop_sequence: self.finish.stop_sequence.take(),
            usage,
            weight_versions: std::mem::take(&mut self.weight_versions),
            arrays,
            extra,
        })
    }
}
