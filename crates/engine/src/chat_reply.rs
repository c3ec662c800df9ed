//! The reply of a chat completion, whole or a chunk of a stream, as far as it is acted on.
//!
//! All engines share this shape and differ in where ids are; each field that only
//! some engines send says which. Parsed straight from the bytes, without a tree: what is
//! not named here (token strings, top logprobs) is skipped, not built.

use crate::EngineError;
use polar_convo::{FinishReason, ReplyEvent, Usage};
use polar_types::WeightSpan;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// A chat completion or one of its chunks.
#[derive(Deserialize)]
pub(crate) struct ChatReply<'a> {
    #[serde(default)]
    pub(crate) choices: Vec<Choice>,
    #[serde(default)]
    pub(crate) usage: Option<WireUsage>,
    /// vLLM: in a whole reply and in the first chunk.
    #[serde(default)]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    /// SGLang, where asked for: in a whole reply and in the chunk before the usage.
    #[serde(default)]
    pub(crate) sglext: Option<SglangExtension>,
    /// SGLang: weight versions of a whole reply.
    #[serde(default)]
    pub(crate) metadata: Option<SglangMetadata>,
    /// llama.cpp, where asked for: the reply in its own form.
    #[serde(default, rename = "__verbose")]
    pub(crate) verbose: Option<LlamaVerbose>,
    /// An error in a stream that began well.
    #[serde(default, borrow)]
    pub(crate) error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(crate) struct Choice {
    /// `message` in a whole reply.
    #[serde(default, alias = "message")]
    pub(crate) delta: Delta,
    #[serde(default)]
    pub(crate) logprobs: Option<Logprobs>,
    #[serde(default)]
    pub(crate) finish_reason: Option<String>,
    /// vLLM: the stop string that matched, or the id of a stop token.
    #[serde(default)]
    pub(crate) stop_reason: Option<StopMark>,
    /// SGLang: the same.
    #[serde(default)]
    pub(crate) matched_stop: Option<StopMark>,
    /// vLLM: ids of this piece.
    #[serde(default)]
    pub(crate) token_ids: Option<Vec<u32>>,
    /// SGLang: ids of a whole reply.
    #[serde(default)]
    pub(crate) response_token_ids: Option<Vec<u32>>,
    /// SGLang: ids of the prompt of a whole reply.
    #[serde(default)]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum StopMark {
    Text(String),
    Token(i64),
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Delta {
    content: Option<String>,
    /// Name in vLLM.
    reasoning: Option<String>,
    /// Name in SGLang, llama.cpp, TensorRT-LLM and older versions of vLLM.
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Deserialize)]
struct CallDelta {
    /// Absent in whole replies, where the position counts.
    #[serde(default)]
    index: Option<u32>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    function: FunctionDelta,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct FunctionDelta {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Logprobs {
    #[serde(default)]
    pub(crate) content: Option<Vec<Logprob>>,
}

#[derive(Deserialize)]
pub(crate) struct Logprob {
    #[serde(default)]
    pub(crate) logprob: Option<f32>,
    /// llama.cpp, and vLLM where it gives ids.
    #[serde(default, alias = "token_id")]
    pub(crate) id: Option<u32>,
}

impl Choice {
    pub(crate) fn logprobs(&self) -> &[Logprob] {
        self.logprobs.as_ref().and_then(|logprobs| logprobs.content.as_deref()).unwrap_or_default()
    }
}

#[derive(Deserialize)]
pub(crate) struct SglangExtension {
    #[serde(default)]
    pub(crate) input_ids: Option<Vec<u32>>,
    /// One list a choice.
    #[serde(default)]
    pub(crate) output_ids: Option<Vec<Vec<u32>>>,
}

#[derive(Deserialize)]
pub(crate) struct SglangMetadata {
    #[serde(default)]
    pub(crate) weight_version: Option<String>,
    #[serde(default)]
    pub(crate) weight_versions: Option<Vec<WeightSpan>>,
}

#[derive(Deserialize)]
pub(crate) struct LlamaVerbose {
    /// The prompt the engine had, as text.
    #[serde(default)]
    pub(crate) prompt: Option<String>,
    /// The sampled ids.
    #[serde(default)]
    pub(crate) tokens: Vec<u32>,
    /// `eos`, `limit`, `word` or `none`.
    #[serde(default)]
    pub(crate) stop_type: Option<String>,
    #[serde(default)]
    pub(crate) stopping_word: Option<String>,
    #[serde(default)]
    pub(crate) truncated: bool,
}

/// Counts, under each engine's names.
#[derive(Deserialize, Default, Clone, Copy)]
#[serde(default)]
pub(crate) struct WireUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
    /// SGLang.
    reasoning_tokens: Option<u64>,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(default)]
struct CompletionDetails {
    reasoning_tokens: Option<u64>,
}

impl From<WireUsage> for Usage {
    fn from(usage: WireUsage) -> Self {
        let details = usage.completion_tokens_details.unwrap_or_default();
        Self {
            prompt_tokens: usage.prompt_tokens.unwrap_or(0),
            completion_tokens: usage.completion_tokens.unwrap_or(0),
            cached_tokens: usage.prompt_tokens_details.unwrap_or_default().cached_tokens,
            reasoning_tokens: details.reasoning_tokens.or(usage.reasoning_tokens),
        }
    }
}

/// Reads a reply or a chunk; an error the engine put into a stream is an error here.
pub(crate) fn read(data: &[u8]) -> Result<ChatReply<'_>, EngineError> {
    let reply: ChatReply<'_> = serde_json::from_slice(data).map_err(EngineError::malformed)?;
    match reply.error {
        Some(error) if error.get() != "null" => {
            Err(EngineError::from_stream(error.get().as_bytes()))
        }
        _ => Ok(reply),
    }
}

/// Turns deltas into events; remembers which tool calls have begun.
#[derive(Default)]
pub(crate) struct ReplyEvents {
    /// By index: begun, or an id that came before its name.
    calls: Vec<CallState>,
    /// Arguments of the last call.
    arguments: String,
}

/// What a reply has of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Called {
    /// None.
    Nothing,
    /// As far as can be told whole ones.
    Whole,
    /// The last one's arguments are not the object that they would be.
    Cut,
}

#[derive(Default)]
struct CallState {
    begun: bool,
    id: Option<String>,
}

/// More calls in one reply than any model makes; bounds what an engine can make us hold.
const MOST_CALLS: u32 = 4096;

impl ReplyEvents {
    /// The events of one delta, in the order the model wrote: reasoning, text, calls.
    pub(crate) fn take(
        &mut self,
        delta: Delta,
        request_id: &str,
    ) -> Result<Vec<ReplyEvent>, EngineError> {
        let mut events = Vec::new();
        let reasoning = delta.reasoning.or(delta.reasoning_content);
        if let Some(text) = reasoning.filter(|text| !text.is_empty()) {
            events.push(ReplyEvent::Reasoning(text));
        }
        if let Some(text) = delta.content.filter(|text| !text.is_empty()) {
            events.push(ReplyEvent::Text(text));
        }
        for (position, call) in (0..).zip(delta.tool_calls.into_iter().flatten()) {
            self.take_call(call, position, request_id, &mut events)?;
        }
        Ok(events)
    }

    /// What the reply has called.
    pub(crate) fn called(&self) -> Called {
        let is_object = || {
            self.arguments.trim_start().starts_with('{')
                && serde_json::from_str::<IgnoredAny>(&self.arguments).is_ok()
        };
        match self.calls.iter().any(|call| call.begun) {
            false => Called::Nothing,
            true if is_object() => Called::Whole,
            true => Called::Cut,
        }
    }

    fn take_call(
        &mut self,
        call: CallDelta,
        position: u32,
        request_id: &str,
        events: &mut Vec<ReplyEvent>,
    ) -> Result<(), EngineError> {
        let index = call.index.unwrap_or(position);
        if index >= MOST_CALLS {
            return Err(EngineError::malformed(format_args!("tool call number {index}")));
        }
        if self.calls.len() <= index as usize {
            self.calls.resize_with(index as usize + 1, CallState::default);
        }
        let state = &mut self.calls[index as usize];
        if !state.begun {
            state.id = state.id.take().or(call.id);
            if let Some(name) = call.function.name {
                state.begun = true;
                self.arguments.clear();
                // A call needs an id so that its result can name it.
                let id = state.id.take().filter(|id| !id.is_empty());
                let id = id.unwrap_or_else(|| format!("call_{request_id}_{index}"));
                events.push(ReplyEvent::ToolCall { index, id, name });
            }
        }
        if let Some(fragment) = call.function.arguments.filter(|text| !text.is_empty()) {
            if !state.begun {
                return Err(EngineError::malformed("arguments of a tool call without a name"));
            }
            if index as usize + 1 == self.calls.len() {
                self.arguments.push_str(&fragment);
            }
            events.push(ReplyEvent::ToolArguments { index, fragment });
        }
        Ok(())
    }
}

/// What is known of how a reply ended.
#[derive(Default)]
pub(crate) struct Finish {
    /// The engine's word; `None` until it says one.
    pub(crate) reason: Option<String>,
    /// The stop string that matched.
    pub(crate) stop_sequence: Option<String>,
    /// The stop token that matched, where the engine tells it.
    pub(crate) stop_token: Option<i64>,
}

impl Finish {
    pub(crate) fn take(&mut self, choice: &mut Choice) {
        let mark = choice.stop_reason.take().or(choice.matched_stop.take());
        self.note(choice.finish_reason.take(), mark);
    }

    pub(crate) fn note(&mut self, reason: Option<String>, mark: Option<StopMark>) {
        if reason.is_some() {
            self.reason = reason;
        }
        match mark {
            Some(StopMark::Text(text)) => self.stop_sequence = Some(text),
            Some(StopMark::Token(id)) => self.stop_token = Some(id),
            None => {}
        }
    }

    /// The normalised reason. `at_limit` says that as many tokens were sampled as allowed:
    /// engines report `tool_calls` even when it was the limit that ended the reply, and
    /// `stop` when tools were called under a forced choice. They report `tool_calls` as well where a
    /// stop string was sampled in a call.
    pub(crate) fn normalise(&self, called: Called, at_limit: bool) -> FinishReason {
        let reason = self.reason.as_deref().unwrap_or_default();
        let marked = self.stop_sequence.is_some() || self.stop_token.is_some();
        match reason {
            // The last three are TensorRT-LLM's.
            "abort" | "error" | "cancelled" | "timeout" | "not_finished" => FinishReason::Abort,
            "length" => FinishReason::Length,
            "tool_calls" | "function_call" if at_limit && !marked => FinishReason::Length,
            _ if self.stop_sequence.is_some() && called == Called::Cut => {
                FinishReason::StopSequence
            }
            "tool_calls" | "function_call" => FinishReason::ToolCalls,
            _ if called != Called::Nothing => FinishReason::ToolCalls,
            _ if self.stop_sequence.is_some() => FinishReason::StopSequence,
            _ => FinishReason::Stop,
        }
    }
}
