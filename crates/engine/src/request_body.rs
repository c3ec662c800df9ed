//! The body of a chat completion, before an adapter adds how its engine returns ids.

use crate::EngineInfo;
use polar_convo::{Request, Sampling, chat_messages, chat_tools, encode_engine_chat};
use serde_json::{Map, Value, json};

/// Fields that change what comes back to Polar. A harness cannot set them; each adapter
/// sets its own.
const POLARS_OWN: &[&str] = &[
    "echo",
    "include_reasoning",
    "logprobs",
    "n",
    "prompt_logprobs",
    "return_meta_info",
    "return_prompt_token_ids",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "separate_reasoning",
    "stream_options",
    "stream_reasoning",
    "top_logprobs",
    "verbose",
];

/// The request for the served model, with logprobs of the sampled tokens.
pub(crate) fn chat_body(request: &Request, info: &EngineInfo, stream: bool) -> Map<String, Value> {
    let mut body = encode_engine_chat(request);
    for name in POLARS_OWN {
        body.remove(*name);
    }
    body.insert("model".into(), info.model.as_str().into());
    let most = request.sampling.max_tokens;
    if most.is_some_and(|most| info.context_window.is_some_and(|window| most >= window)) {
        // More than fits is as good as no limit, but refused; agents made for large models
        // ask for it in every request.
        body.remove("max_tokens");
    }
    if request.sampling.top_k.is_some_and(|k| k <= 0) {
        // Both spellings mean all tokens, but SGLang refuses 0.
        body.insert("top_k".into(), (-1).into());
    }
    body.insert("stream".into(), stream.into());
    if stream {
        body.insert("stream_options".into(), json!({"include_usage": true}));
    }
    body.insert("logprobs".into(), true.into());
    body.insert("top_logprobs".into(), 0.into());
    body
}

/// Says what a request leaves open. Models come with advice on sampling in their
/// `generation_config.json`, which vLLM and SGLang follow where a request says nothing: the
/// policy would be bent, by a repetition penalty even, and no record would show it.
pub(crate) fn without_model_defaults(body: &mut Map<String, Value>) {
    let neutral = [
        ("temperature", json!(1.0)),
        ("top_p", json!(1.0)),
        ("top_k", json!(-1)),
        ("min_p", json!(0.0)),
        ("repetition_penalty", json!(1.0)),
    ];
    for (name, value) in neutral {
        body.entry(name).or_insert(value);
    }
}

/// Sampling in the words of vLLM, which Chat and SGLang share for the most part.
pub(crate) fn sampling_fields(sampling: &Sampling) -> Map<String, Value> {
    let mut fields = Map::new();
    let numbers = [
        ("temperature", sampling.temperature.map(Value::from)),
        ("top_p", sampling.top_p.map(Value::from)),
        ("top_k", sampling.top_k.map(|k| if k <= 0 { -1 } else { k }.into())),
        ("max_tokens", sampling.max_tokens.map(Value::from)),
        ("seed", sampling.seed.map(Value::from)),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            fields.insert(name.into(), number);
        }
    }
    if !sampling.stop.is_empty() {
        fields.insert("stop".into(), json!(sampling.stop));
    }
    fields
}

/// Moves the fields that are named so, as far as there are any.
pub(crate) fn carry(from: &mut Map<String, Value>, names: &[&str], to: &mut Map<String, Value>) {
    for name in names {
        if let Some(value) = from.remove(*name) {
            to.insert((*name).to_owned(), value);
        }
    }
}

/// The JSON schema that Chat's `response_format` asks for.
pub(crate) fn schema_of(format: &Value) -> Option<Value> {
    match format["type"].as_str()? {
        "json_schema" => Some(format["json_schema"]["schema"].clone()),
        "json_object" => Some(json!({"type": "object"})),
        _ => None,
    }
}

/// The prompt alone, as the engines' `/tokenize` and `/apply-template` take it.
pub(crate) fn prompt_body(request: &Request, model: &str) -> Map<String, Value> {
    /// What changes how a prompt is rendered.
    const RENDERING: &[&str] = &[
        "add_generation_prompt",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "reasoning_effort",
    ];
    let mut body = Map::new();
    body.insert("model".into(), model.into());
    let mut messages = chat_messages(request);
    messages.iter_mut().for_each(name_reasoning_both_ways);
    body.insert("messages".into(), messages.into());
    if !request.tools.is_empty() {
        body.insert("tools".into(), chat_tools(request).into());
    }
    for name in RENDERING {
        if let Some(value) = request.rest.get(*name) {
            body.insert((*name).into(), value.clone());
        }
    }
    body
}

/// Versions of vLLM, and paths of one version, differ in the name under which they read earlier
/// reasoning; each ignores the other name.
pub(crate) fn name_reasoning_both_ways(message: &mut Value) {
    if let Value::Object(message) = message
        && let Some(reasoning) = message.get("reasoning_content").cloned()
    {
        message.insert("reasoning".into(), reasoning);
    }
}

/// Whether as many tokens were sampled as the request or the context window allows.
pub(crate) fn at_limit(
    max_tokens: Option<u64>,
    context_window: Option<u64>,
    usage: polar_convo::Usage,
) -> bool {
    let room = context_window.map(|window| window.saturating_sub(usage.prompt_tokens));
    [max_tokens, room]
        .into_iter()
        .flatten()
        .min()
        .is_some_and(|most| usage.completion_tokens >= most)
}
