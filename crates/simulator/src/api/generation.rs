//! From a checked request to replies ready to be played: prompt, scripts, faults.

use super::chat_request::{ChatFields, SamplingFields, ToolChoice};
use super::error::ApiError;
use super::logprobs::ScorerState;
use super::prefix_cache::CacheUse;
use super::{Simulator, now};
use crate::SimulatorConfig;
use crate::activity::{Answer, Running};
use crate::fault::{self, Fault};
use crate::parsing::Parsers;
use crate::policy::{Conversation, Decision, SaidReply, ScriptedCall};
use crate::sampling::Player;
use crate::script::{Limits, Script};
use crate::transcript;
use crate::weights::{Context, mix, text_seed};
use http::HeaderMap;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// One request on its way through the simulator.
#[derive(Debug)]
pub(super) struct Generation {
    pub simulator: Arc<Simulator>,
    /// Number of the request on this server.
    pub number: u64,
    /// Without the prefix that the API puts before it.
    pub id: String,
    pub created: u64,
    pub fields: SamplingFields,
    pub prompt: Vec<u32>,
    pub prompt_text: Option<String>,
    pub context: Context,
    pub cache: CacheUse,
    pub scripts: Vec<Script>,
    pub parsers: Parsers,
    pub fault: Option<Fault>,
    pub running: Running,
}

/// What kind of reply the prompt asks for.
struct Wish<'a> {
    conversation: Conversation<'a>,
    /// The prompt leaves the reasoning open.
    thinking: bool,
    parsers: Parsers,
    /// The model thinks even where there is nothing to think about.
    always_thinks: bool,
    forced: Option<ScriptedCall>,
    /// Ids at the prompt's end that are the beginning of the reply, which is gone on with.
    begun: usize,
}

impl Generation {
    /// Prepares a chat completion.
    pub(super) fn chat(
        simulator: Arc<Simulator>,
        number: u64,
        headers: &HeaderMap,
        fields: SamplingFields,
        chat: &ChatFields,
    ) -> Result<Self, ApiError> {
        let messages = chat.messages();
        let tools = chat.tools.as_deref().unwrap_or_default();
        let options = chat.template_options(&simulator.config.chat_template_kwargs);
        let thinking = options.get("enable_thinking").and_then(Value::as_bool).unwrap_or(true);
        let (prompt, text) = match chat.own_prompt() {
            Some(ids) => (own_ids(&simulator, ids)?, None),
            None => {
                let text = prompt_text(&simulator, chat, &options)?;
                (simulator.encode_prompt(&text)?, Some(text))
            }
        };
        let choice = chat.tool_choice()?;
        if choice == ToolChoice::Auto && !simulator.config.parse_tools {
            return Err(ApiError::bad_request(
                "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set",
            ));
        }
        let model = simulator.config.model.clone();
        let wish = Wish {
            conversation: Conversation::of_chat(&model, messages, tools),
            thinking,
            parsers: Parsers {
                reasoning: simulator.config.parse_reasoning && thinking,
                tools: simulator.config.parse_tools && choice != ToolChoice::None,
            },
            always_thinks: simulator.config.parse_reasoning && thinking,
            forced: forced_call(&choice, tools),
            begun: 0,
        };
        Self::prepare(simulator, number, headers, fields, (prompt, text), &wish)
    }

    /// Prepares a completion of a text or of ids.
    pub(super) fn completion(
        simulator: Arc<Simulator>,
        number: u64,
        headers: &HeaderMap,
        fields: SamplingFields,
        (prompt, prompt_text): (Vec<u32>, Option<String>),
    ) -> Result<Self, ApiError> {
        let begun = begun_reply(&simulator, &prompt);
        // Marks are kept: they are what a conversation is read back from.
        let text = simulator.vocabulary.decode(&prompt[..prompt.len() - begun], true);
        let model = simulator.config.model.clone();
        let thinking = text.ends_with("<|im_start|>assistant\n");
        let wish = Wish {
            conversation: transcript::read(&model, &text),
            thinking,
            parsers: Parsers { reasoning: false, tools: false },
            // As in chat: what is sampled is a matter of the context alone.
            always_thinks: simulator.config.parse_reasoning && thinking,
            forced: None,
            begun,
        };
        Self::prepare(simulator, number, headers, fields, (prompt, prompt_text), &wish)
    }

    fn prepare(
        simulator: Arc<Simulator>,
        number: u64,
        headers: &HeaderMap,
        fields: SamplingFields,
        (prompt, prompt_text): (Vec<u32>, Option<String>),
        wish: &Wish<'_>,
    ) -> Result<Self, ApiError> {
        in_vocabulary(&fields, simulator.vocabulary.size())?;
        let size = (prompt.len(), prompt_text.is_some());
        let limits = limits(&fields, size, &simulator.config, wish.parsers.tools)?;
        let salt = fields.cache_salt.as_deref().map_or(0, text_seed);
        let (context, cache) = simulator.cache.take(&prompt, salt);
        let seed = mix(simulator.config.seed ^ fields.seed.map_or(0, |seed| mix(seed as u64)));
        let policy = simulator.policy();
        let (asked, begun) = prompt.split_at(prompt.len() - wish.begun);
        // What is said is a matter of what was asked, also where it is half said.
        let chance = if begun.is_empty() { context } else { Context::of(asked) };
        let (mut by_rule, mut answered) = (None, None);
        let mut scripts = Vec::with_capacity(fields.choices());
        for choice in 0..fields.choices() as u64 {
            let seed = chance.key(mix(seed ^ choice));
            let Decision { mut reply, fault, rule, role } = policy.decide(&wish.conversation, seed);
            by_rule = by_rule.or(fault);
            answered.get_or_insert((rule, role));
            force(&mut reply, wish);
            let text = reply.sampled_text(wish.thinking, wish.always_thinks);
            let wanted = if reply.bytewise {
                simulator.vocabulary.encode_bytewise(&text)?
            } else {
                simulator.vocabulary.encode(&text)?
            };
            let left = wanted.strip_prefix(begun).unwrap_or(&wanted);
            let script = Script::play(&simulator.vocabulary, context, left, reply.cut, &limits);
            scripts.push(script);
        }
        let named = headers.get("x-request-id").and_then(|value| value.to_str().ok());
        let named = named.or(fields.request_id.as_deref()).map(str::to_owned);
        let id = named.unwrap_or_else(|| simulator.unique(number, 0));
        let fault = fault_of(&simulator, headers, by_rule, number)?;
        let (rule, role) = answered.unwrap_or_default();
        simulator.activity.answered(Answer {
            request_id: id.clone(),
            rule,
            role,
            fault: fault.clone(),
        });
        if fault.is_some() {
            simulator.activity.fault();
        }
        match fault {
            Some(Fault::Status { code, retry_after }) => {
                return Err(ApiError::simulated(code, retry_after));
            }
            Some(Fault::ContextOverflow) => {
                let window = prompt.len().saturating_sub(1);
                return Err(ApiError::prompt_too_long(prompt.len(), window, prompt_text.is_none()));
            }
            _ => {}
        }
        let running = simulator.activity.queue();
        Ok(Self {
            number,
            id,
            created: now(),
            fields,
            prompt,
            prompt_text,
            context,
            cache,
            scripts,
            parsers: wish.parsers,
            fault,
            running,
            simulator,
        })
    }

    /// Waits before the headers, if that is the fault.
    pub(super) async fn before_headers(&self) {
        if let Some(Fault::SlowHeaders(seconds)) = self.fault
            && let Ok(wait) = Duration::try_from_secs_f64(seconds)
        {
            tokio::time::sleep(wait).await;
        }
    }

    /// Starts playing all choices once the simulator is not paused. At most `batch`
    /// tokens come together.
    pub(super) async fn start(&mut self, batch: usize) -> Vec<Player> {
        self.simulator.control.admit().await;
        self.running.start();
        let speed = self.simulator.config.speed;
        std::mem::take(&mut self.scripts)
            .into_iter()
            .map(|script| {
                let (fault, control) = (self.fault.clone(), &self.simulator.control);
                Player::new(&self.id, script, speed, batch, fault, control)
            })
            .collect()
    }

    /// Tokens a streamed chunk holds.
    pub(super) fn chunk(&self) -> usize {
        self.fields.stream_interval.unwrap_or(self.simulator.config.speed.tokens_per_chunk).max(1)
    }

    /// Tokens that come together when nobody watches.
    pub(super) fn unwatched_batch(&self) -> usize {
        let paced = self.simulator.config.speed.tokens_per_second.is_some();
        if paced { self.chunk() } else { usize::MAX / 2 }
    }

    pub(super) fn scorer(&self) -> ScorerState {
        ScorerState::at(self.context)
    }

    /// Whether ids are shown.
    pub(super) fn shows_ids(&self) -> bool {
        self.fields.return_token_ids.unwrap_or(false) && self.fault != Some(Fault::MissingIds)
    }

    /// The ids as shown; `first` when they begin a reply.
    pub(super) fn shown_ids(&self, ids: &[u32], first: bool) -> Vec<u32> {
        let mut ids = ids.to_vec();
        if first
            && self.fault == Some(Fault::OutOfVocabulary)
            && let Some(id) = ids.first_mut()
        {
            *id = self.simulator.vocabulary.size() + 7;
        }
        ids
    }

    /// Whether the first logprob of each reply is left out.
    pub(super) fn loses_a_logprob(&self) -> bool {
        self.fault == Some(Fault::WrongCounts)
    }

    /// `usage` of the whole request. `reasoning` counts reasoning tokens where they are known.
    pub(super) fn usage(&self, sampled: usize, reasoning: Option<usize>) -> Value {
        let sampled = if self.loses_a_logprob() { sampled + 3 } else { sampled };
        json!({
            "prompt_tokens": self.prompt.len(),
            "total_tokens": self.prompt.len() + sampled,
            "completion_tokens": sampled,
            "prompt_tokens_details": {
                "cached_tokens": self.cache.cached,
                "created_cache_tokens": self.cache.created,
                "multimodal_tokens": null,
            },
            "completion_tokens_details":
                reasoning.map(|tokens| json!({"reasoning_tokens": tokens})),
        })
    }
}

/// How many ids at the prompt's end are the beginning of a reply: those behind the mark that
/// begins the model's turn, where the turn has not ended.
fn begun_reply(simulator: &Simulator, prompt: &[u32]) -> usize {
    let vocabulary = &simulator.vocabulary;
    let mark = vocabulary.encode("<|im_start|>assistant\n").unwrap_or_default();
    let end = vocabulary.encode("<|im_end|>").unwrap_or_default();
    let place = (!mark.is_empty()).then(|| prompt.windows(mark.len()).rposition(|ids| ids == mark));
    let Some(begun) = place.flatten().map(|place| &prompt[place + mark.len()..]) else { return 0 };
    // Reasoning that the template leaves out belongs to the prompt.
    let left_out = vocabulary.encode("<think>\n\n</think>\n\n").unwrap_or_default();
    let begun = begun.strip_prefix(left_out.as_slice()).unwrap_or(begun);
    let has_ended = begun.iter().any(|id| end.contains(id));
    if has_ended { 0 } else { begun.len() }
}

/// Usage as streams have it: without what is null.
pub(super) fn without_nulls(mut usage: Value) -> Value {
    for key in ["prompt_tokens_details", "completion_tokens_details"] {
        if let Some(details) = usage[key].as_object_mut() {
            details.retain(|_, value| !value.is_null());
        }
    }
    if let Some(fields) = usage.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    usage
}

/// The prompt text of a chat.
pub(super) fn prompt_text(
    simulator: &Simulator,
    chat: &ChatFields,
    options: &Map<String, Value>,
) -> Result<String, ApiError> {
    let messages = chat.messages();
    let add_prompt = chat.add_generation_prompt.unwrap_or(true);
    let text = simulator.template.render(messages, chat.tools.as_deref(), add_prompt, options)?;
    if chat.continue_final_message != Some(true) {
        return Ok(text);
    }
    Ok(text.strip_suffix("<|im_end|>\n").map_or(text.clone(), str::to_owned))
}

/// Ids a client gives, each within the vocabulary.
pub(super) fn own_ids(simulator: &Simulator, ids: &[Value]) -> Result<Vec<u32>, ApiError> {
    let size = i64::from(simulator.vocabulary.size());
    ids.iter()
        .map(|id| {
            let id = id
                .as_i64()
                .ok_or_else(|| ApiError::validation("Input should be a valid integer", None))?;
            u32::try_from(id).ok().filter(|_| id < size).ok_or(ApiError::out_of_vocabulary(id))
        })
        .collect()
}

/// Refuses a bias on tokens that there are not, in vLLM's words.
fn in_vocabulary(fields: &SamplingFields, size: u32) -> Result<(), ApiError> {
    let biased = fields.logit_bias.iter().flatten().map(|(id, _)| id.as_str());
    let unknown = |id: &&str| id.parse::<u32>().map_or(true, |id| id >= size);
    let unknown: Vec<_> = biased.filter(unknown).collect();
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(ApiError::bad_request(format!(
            "token_id(s) [{}] in logit_bias contain out-of-vocab token ids. Vocabulary size: {size}",
            unknown.join(", ")
        ))),
    }
}

fn limits(
    fields: &SamplingFields,
    (prompt, of_text): (usize, bool),
    config: &SimulatorConfig,
    tools: bool,
) -> Result<Limits, ApiError> {
    let window = config.context_window;
    if prompt > window {
        return Err(ApiError::prompt_too_long(prompt, window, !of_text));
    }
    if prompt == window {
        let message = "max_tokens must be at least 1, got 0.";
        return Err(ApiError::bad_request(message).of_value("max_tokens", 0));
    }
    let (name, asked) = match fields.max_completion_tokens {
        Some(asked) => ("max_completion_tokens", Some(asked)),
        None => ("max_tokens", fields.max_tokens),
    };
    let asked = asked.and_then(|asked| usize::try_from(asked).ok());
    if let Some(asked) = asked
        && asked > window
    {
        return Err(ApiError::bad_request(format!(
            "{name}={asked} cannot be greater than max_model_len={window}. Please request fewer \
             output tokens."
        ))
        .of_value(name, asked));
    }
    if let Some(asked) = asked
        && asked > window - prompt
        && !config.lowers_limits
    {
        return Err(ApiError::reply_too_long(prompt, asked, window, !of_text));
    }
    Ok(Limits {
        max_tokens: asked.unwrap_or(usize::MAX).min(window - prompt),
        min_tokens: fields.min_tokens.unwrap_or(0),
        stop: fields.stop_strings(),
        stop_token_ids: fields.stop_token_ids.clone().unwrap_or_default(),
        ignore_eos: fields.ignore_eos.unwrap_or(false),
        include_stop: fields.include_stop_str_in_output.unwrap_or(false),
        skip_special: !tools && fields.skip_special_tokens.unwrap_or(true),
    })
}

/// The fault of this request: asked for by header, by rule, or by chance.
fn fault_of(
    simulator: &Simulator,
    headers: &HeaderMap,
    by_rule: Option<Fault>,
    number: u64,
) -> Result<Option<Fault>, ApiError> {
    if let Some(asked) = headers.get(fault::HEADER) {
        let asked = String::from_utf8_lossy(asked.as_bytes());
        let fault = asked.parse::<Fault>().map_err(|e| ApiError::bad_request(e.to_string()))?;
        return Ok(Some(fault));
    }
    let chance = simulator.config.fault.as_ref();
    let by_chance = chance.filter(|chance| chance.hits(simulator.config.seed, number));
    Ok(by_rule.or_else(|| by_chance.map(|chance| chance.fault.clone())))
}

/// A call that constrained decoding would bring about when the policy has none.
fn forced_call(choice: &ToolChoice, tools: &[Value]) -> Option<ScriptedCall> {
    let name =
        |tool: &Value| tool.pointer("/function/name").and_then(Value::as_str).map(str::to_owned);
    let wanted = match choice {
        ToolChoice::Named(name) => Some(name.clone()),
        ToolChoice::Required => tools.first().and_then(name),
        ToolChoice::None | ToolChoice::Auto => None,
    }?;
    let tool = tools.iter().find(|tool| name(tool).as_ref() == Some(&wanted))?;
    let schema = tool.pointer("/function/parameters");
    let required = schema.and_then(|s| s.get("required")).and_then(Value::as_array);
    let arguments = required.into_iter().flatten().filter_map(Value::as_str).map(|field| {
        let schema = schema.and_then(|s| s.get("properties")?.get(field));
        (field.to_owned(), value_for(schema))
    });
    Some(ScriptedCall {
        arguments: arguments.collect(),
        name: wanted,
        spelling: Default::default(),
    })
}

/// Some value that a schema allows.
fn value_for(schema: Option<&Value>) -> Value {
    let first = schema.and_then(|schema| schema.get("enum")?.get(0));
    match schema.and_then(|schema| schema.get("type")?.as_str()) {
        _ if first.is_some() => first.cloned().unwrap_or_default(),
        Some("integer" | "number") => json!(0),
        Some("boolean") => json!(false),
        Some("array") => json!([]),
        Some("object") => json!({}),
        _ => json!("simulated"),
    }
}

/// Makes the reply call what it must call.
fn force(reply: &mut SaidReply, wish: &Wish<'_>) {
    let Some(forced) = &wish.forced else { return };
    reply.raw = None;
    reply.text.clear();
    reply.calls.retain(|call| {
        call.name == forced.name || wish.conversation.tools.iter().any(|tool| *tool == call.name)
    });
    if reply.calls.is_empty() {
        reply.calls.push(forced.clone());
    }
}
