//! TensorRT-LLM's `trtllm-serve`, written against its published source.
//!
//! Its chat completions tell neither the ids of the prompt nor those sampled, so it is used in token
//! mode, and a call that cannot be made of ids (pictures, a forced call, a form of the reply) comes
//! back without any: they are missing, and the record says why. It refuses every field that it
//! does not know, so only those are sent that it has. It has no weight versions, and neither tells
//! the size of its vocabulary nor its context window.

use crate::chat_reply::{self, Finish, ReplyEvents, WireUsage};
use crate::reply_stream::{ReplyReader, whole};
use crate::request_body::{at_limit, chat_body, prompt_body};
use crate::token_engine::{NOT_SENT, Rendering};
use crate::transport::Transport;
use crate::vllm::CHAT;
use crate::weight_version::settle_version;
use crate::{
    Engine, EngineEnd, EngineError, EngineEvent, EngineInfo, EngineStream, GenerateRequest,
    TokenEngine,
};
use async_trait::async_trait;
use polar_convo::{Request, Usage};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};

/// A page that it alone has, and that can be read by anyone without taking something away.
pub(crate) const OWN_PAGE: &str = "/steady_clock_offset";

/// Says in a record why a reply has no ids.
const IDS_MISSING: &str = "ids_missing";

/// Fields of chat completions that it has and Polar or a harness may send.
const CHAT_FIELDS: &[&str] = &[
    "add_generation_prompt",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "lora_request",
    "max_tokens",
    "messages",
    "min_p",
    "min_tokens",
    "mm_processor_kwargs",
    "model",
    "parallel_tool_calls",
    "presence_penalty",
    "priority",
    "reasoning_effort",
    "repetition_penalty",
    "response_format",
    "seed",
    "skip_special_tokens",
    "stop",
    "stop_token_ids",
    "stream",
    "temperature",
    "thinking_token_budget",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
    "top_p_min",
    "user",
];

pub(crate) struct TensorRtLlm {
    pub(crate) transport: Transport,
    pub(crate) info: EngineInfo,
}

#[async_trait]
impl Engine for TensorRtLlm {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    /// Always asked whole: without ids there is nothing to save of a reply that is cut.
    async fn generate(&self, asked: GenerateRequest) -> Result<EngineStream, EngineError> {
        let GenerateRequest { request, request_id } = asked;
        let (body, not_sent) = self.chat_body(&request);
        let body = serde_json::to_vec(&body).map_err(EngineError::malformed)?;
        let reply = self.transport.reply(CHAT, body, request_id.as_str()).await?;
        let reader = ChatReader {
            request_id,
            max_tokens: request.sampling.max_tokens,
            not_sent,
            ..ChatReader::default()
        };
        whole(&reply, reader, settle_version(None)).await
    }

    async fn count_tokens(&self, request: &Request) -> Result<u64, EngineError> {
        match self.rendering(request).await? {
            Rendering::Ids(ids) => Ok(ids.len() as u64),
            Rendering::Length(tokens) => Ok(tokens),
        }
    }

    async fn health(&self) -> Result<(), EngineError> {
        self.transport.answers("/health").await
    }

    fn tokens(&self) -> Option<&dyn TokenEngine> {
        Some(self)
    }
}

impl TensorRtLlm {
    /// The question, and which of its fields there is no place for.
    fn chat_body(&self, request: &Request) -> (Map<String, Value>, Vec<String>) {
        let mut body = chat_body(request, &self.info, false);
        // Asked for by Polar of other engines; without ids they belong to nothing.
        body.remove("logprobs");
        body.remove("top_logprobs");
        body.remove("top_k");
        if let Some(k) = request.sampling.top_k.filter(|k| *k > 0) {
            body.insert("top_k".into(), k.into());
        }
        without_model_defaults(&mut body);
        only_known_keys_of_tools(&mut body);
        let (known, others): (Vec<_>, Vec<_>) =
            body.into_iter().partition(|(name, _)| CHAT_FIELDS.contains(&name.as_str()));
        (known.into_iter().collect(), others.into_iter().map(|(name, _)| name).collect())
    }

    /// The prompt alone, in fields that it has.
    pub(crate) fn prompt_body(&self, request: &Request) -> Map<String, Value> {
        let mut body = prompt_body(request, &self.info.model);
        only_known_keys_of_tools(&mut body);
        body.retain(|name, _| CHAT_FIELDS.contains(&name.as_str()));
        body
    }

    /// How many tokens the server counts in a prompt that it makes: it samples one behind it.
    pub(crate) async fn prompt_length(
        &self,
        mut prompt: Map<String, Value>,
    ) -> Result<u64, EngineError> {
        #[derive(Deserialize)]
        struct Counted {
            usage: Count,
        }
        #[derive(Deserialize)]
        struct Count {
            prompt_tokens: u64,
        }
        prompt.insert("max_tokens".into(), 1.into());
        let counted: Counted = self.transport.ask(CHAT, &prompt).await?;
        Ok(counted.usage.prompt_tokens)
    }
}

/// Says what a request leaves open, which it would take from the model's advice on sampling.
pub(crate) fn without_model_defaults(body: &mut Map<String, Value>) {
    let all_tokens = |k: &Value| k.as_i64().is_some_and(|k| k <= 0);
    if body.get("top_k").is_none_or(all_tokens) {
        // The others' -1 is refused.
        body.insert("top_k".into(), 0.into());
    }
    for (name, neutral) in [
        ("temperature", json!(1.0)),
        ("top_p", json!(1.0)),
        ("min_p", json!(0.0)),
        ("repetition_penalty", json!(1.0)),
    ] {
        body.entry(name).or_insert(neutral);
    }
}

fn only_known_keys_of_tools(body: &mut Map<String, Value>) {
    const OF_FUNCTION: [&str; 4] = ["name", "description", "parameters", "strict"];
    let tools = body.get_mut("tools").and_then(Value::as_array_mut);
    for tool in tools.into_iter().flatten().filter_map(Value::as_object_mut) {
        tool.retain(|key, _| key == "type" || key == "function");
        if let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) {
            function.retain(|key, _| OF_FUNCTION.contains(&key.as_str()));
        }
    }
}

/// Reads a whole chat completion, which has everything but ids.
#[derive(Default)]
struct ChatReader {
    request_id: String,
    max_tokens: Option<u64>,
    not_sent: Vec<String>,
    events: ReplyEvents,
    finish: Finish,
    usage: Option<WireUsage>,
}

impl ReplyReader for ChatReader {
    fn read(&mut self, data: &[u8], out: &mut VecDeque<EngineEvent>) -> Result<(), EngineError> {
        let reply = chat_reply::read(data)?;
        self.usage = reply.usage.or(self.usage);
        let Some(mut choice) = reply.choices.into_iter().next() else { return Ok(()) };
        self.finish.take(&mut choice);
        let events = self.events.take(choice.delta, &self.request_id)?;
        if !events.is_empty() {
            out.push_back(EngineEvent::Chunk { events, ids: Vec::new(), logprobs: Vec::new() });
        }
        Ok(())
    }

    fn finish(&mut self, _out: &mut VecDeque<EngineEvent>) -> Result<EngineEnd, EngineError> {
        let Some(engine_finish) = self.finish.reason.clone() else {
            return Err(EngineError::malformed("the reply ended without a finish reason"));
        };
        let usage = self.usage.map(Usage::from).unwrap_or_default();
        let why = "TensorRT-LLM's chat completions tell no ids; such a call is not trained";
        let mut extra = Map::from_iter([(IDS_MISSING.to_owned(), Value::from(why))]);
        if !self.not_sent.is_empty() {
            extra.insert(NOT_SENT.to_owned(), json!(self.not_sent));
        }
        let limit = at_limit(self.max_tokens, None, usage);
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
