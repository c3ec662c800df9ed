//! How engines prepare messages and tools before their template sees them.

use serde_json::{Map, Value};

/// How the line begins that Claude Code puts before its system prompt.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// Who prepares messages and tools for a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preparation {
    /// `transformers`' `apply_chat_template`: everything is given as it is.
    Transformers,
    /// vLLM: `arguments` become objects, tools lose keys it doesn't know, text parts are joined
    /// by newlines.
    Vllm,
    /// SGLang: as vLLM, but tools carry `defer_loading`.
    Sglang,
}

impl Preparation {
    /// The messages as the template is given them.
    pub fn messages(&self, messages: &[Value]) -> Vec<Value> {
        match self {
            Self::Transformers => messages.to_vec(),
            Self::Vllm | Self::Sglang => messages.iter().map(prepare_message).collect(),
        }
    }

    /// The tools as the template is given them.
    pub fn tools(&self, tools: &[Value]) -> Vec<Value> {
        match self {
            Self::Transformers => tools.to_vec(),
            Self::Vllm | Self::Sglang => tools.iter().map(prepare_tool).collect(),
        }
    }
}

/// Text of a message's `content`, whether a string, a list of parts, or nothing.
pub fn content_text(content: Option<&Value>) -> Option<String> {
    match content? {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(part_text);
            Some(texts.collect::<Vec<_>>().join("\n"))
        }
        _ => None,
    }
}

/// Text of a part that has any.
fn part_text(part: &Value) -> Option<&str> {
    let text = part.as_str().or_else(|| part.get("text")?.as_str());
    text.filter(|text| !text.is_empty())
}

fn prepare_message(message: &Value) -> Value {
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    let mut prepared = Map::new();
    prepared.insert("role".to_owned(), role.into());
    let content = match role {
        "system" => without_billing_header(message.get("content")),
        _ => content_text(message.get("content")).unwrap_or_default(),
    };
    prepared.insert("content".to_owned(), content.into());
    if let Some(name) = message.get("name").filter(|name| name.is_string()) {
        prepared.insert("name".to_owned(), name.clone());
    }
    match role {
        "assistant" => {
            if let Some(Value::Array(calls)) = message.get("tool_calls")
                && !calls.is_empty()
            {
                let calls = calls.iter().map(prepare_call).collect();
                prepared.insert("tool_calls".to_owned(), calls);
            }
            // Clients and templates know it by either name.
            let reasoning = message.get("reasoning").or_else(|| message.get("reasoning_content"));
            if let Some(reasoning) = reasoning.filter(|reasoning| !reasoning.is_null()) {
                prepared.insert("reasoning".to_owned(), reasoning.clone());
                prepared.insert("reasoning_content".to_owned(), reasoning.clone());
            }
        }
        "tool" => {
            if let Some(id) = message.get("tool_call_id") {
                prepared.insert("tool_call_id".to_owned(), id.clone());
            }
        }
        _ => {}
    }
    Value::Object(prepared)
}

/// System text without the line that Claude Code puts first and changes with every
/// request.
fn without_billing_header(content: Option<&Value>) -> String {
    let strip = |text: &str| {
        if text.starts_with(BILLING_HEADER) {
            text.split_once('\n').map(|(_, rest)| rest.to_owned()).filter(|rest| !rest.is_empty())
        } else {
            Some(text.to_owned())
        }
    };
    match content {
        Some(Value::String(text)) => strip(text).unwrap_or_default(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(part_text).filter_map(strip).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// Arguments become an object; what is not the text of one becomes an empty one.
fn prepare_call(call: &Value) -> Value {
    let mut call = call.clone();
    if let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) {
        let object = match function.get("arguments") {
            Some(Value::Object(object)) => Some(object.clone()),
            Some(Value::String(text)) => serde_json::from_str(text).ok(),
            _ => None,
        };
        function.insert("arguments".to_owned(), Value::Object(object.unwrap_or_default()));
    }
    call
}

/// The keys that vLLM knows, in its order; description and parameters are null when absent.
fn prepare_tool(tool: &Value) -> Value {
    let given = |value: Option<&Value>| value.filter(|value| !value.is_null()).cloned();
    let field = |key: &str| given(tool.get("function").and_then(|function| function.get(key)));
    let deferred = given(tool.get("defer_loading"));
    let mut function = Map::new();
    for key in ["name", "description", "parameters"] {
        function.insert(key.to_owned(), field(key).unwrap_or_default());
    }
    let optional = [
        ("strict", field("strict")),
        ("defer_loading", field("defer_loading").or(deferred.clone())),
    ];
    for (key, value) in optional {
        value.map(|value| function.insert(key.to_owned(), value));
    }
    let mut prepared = Map::new();
    prepared.insert("type".to_owned(), "function".into());
    prepared.insert("function".to_owned(), Value::Object(function));
    deferred.map(|value| prepared.insert("defer_loading".to_owned(), value));
    Value::Object(prepared)
}
