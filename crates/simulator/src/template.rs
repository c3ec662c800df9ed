//! Messages and tools to prompt text: the chat template, prepared the way vLLM prepares it.
//!
//! Engine parity matters here: `arguments` strings become objects, tools lose keys the
//! engine doesn't know, text parts are joined by newlines.

use crate::SimulatorError;
use crate::python_json;
use minijinja::{Environment, Error, ErrorKind, Value as JinjaValue, context};
use serde_json::{Map, Value};

/// How the line begins that Claude Code puts before its system prompt.
const BILLING_HEADER: &str = "x-anthropic-billing-header";
const TEMPLATE: &str = include_str!("../assets/chat_template.jinja");

/// The chat template of the simulated model.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    /// Loads the shipped template.
    pub fn load() -> Result<Self, SimulatorError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment
            .add_template("chat", TEMPLATE)
            .map_err(|e| SimulatorError::Template(e.to_string()))?;
        Ok(Self { environment })
    }

    /// The prompt text. `options` are the request's `chat_template_kwargs`.
    pub fn render(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
        options: &Map<String, Value>,
    ) -> Result<String, SimulatorError> {
        let messages: Vec<Value> = messages.iter().map(prepare_message).collect();
        let tools: Option<Vec<Value>> = tools.map(|tools| tools.iter().map(prepare_tool).collect());
        let request = context! { messages, tools, add_generation_prompt };
        let variables = context! { ..JinjaValue::from_serialize(options), ..request };
        self.environment
            .get_template("chat")
            .and_then(|template| template.render(variables))
            .map_err(|e| SimulatorError::Template(e.to_string()))
    }
}

fn tojson(value: &JinjaValue) -> Result<JinjaValue, Error> {
    python_json::dumps(value)
        .map(JinjaValue::from_safe_string)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// Text of a message's `content`, whether a string, a list of parts, or nothing.
pub(crate) fn content_text(content: Option<&Value>) -> Option<String> {
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
            // Templates know it by either name.
            if let Some(reasoning) = message.get("reasoning").filter(|r| !r.is_null()) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(messages: &Value, tools: Option<&Value>, options: &Value) -> String {
        let template = ChatTemplate::load().unwrap();
        let tools = tools.map(|tools| tools.as_array().unwrap().as_slice());
        template
            .render(messages.as_array().unwrap(), tools, true, options.as_object().unwrap())
            .unwrap()
    }

    #[test]
    fn plain_turns() {
        let messages = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "\n\nc", "reasoning": "old"},
            {"role": "user", "content": "d"},
        ]);
        let text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n\
            <|im_start|>assistant\nc<|im_end|>\n<|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(render(&messages, None, &json!({})), text);
        let kept = text.replace("assistant\nc", "assistant\n<think>\nold\n</think>\n\nc");
        assert_eq!(render(&messages, None, &json!({"keep_reasoning": true})), kept);
        let closed = format!("{text}<think>\n\n</think>\n\n");
        assert_eq!(render(&messages, None, &json!({"enable_thinking": false})), closed);
    }

    #[test]
    fn history_is_mended_as_in_vllm() {
        let call = |arguments: Value| {
            json!([
                {"role": "system", "content": [
                    {"type": "text", "text": "x-anthropic-billing-header: v=1;"},
                    {"type": "text", "text": "Rules."},
                ]},
                {"role": "user", "content": "q"},
                {"role": "assistant", "reasoning": "hm", "tool_calls": [
                    {"type": "function", "function": {"name": "f", "arguments": arguments}},
                ]},
            ])
        };
        for broken in [json!("{\"a\": "), json!("[1]"), json!("7"), json!(""), json!(null)] {
            let text = render(&call(broken), None, &json!({}));
            assert!(text.starts_with("<|im_start|>system\nRules.<|im_end|>"), "{text}");
            let turn = "assistant\n<think>\nhm\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call><|im_end|>";
            assert!(text.contains(turn), "{text}");
        }
        let text = render(&call(json!({"a": 1})), None, &json!({}));
        assert!(text.contains("\"arguments\": {\"a\": 1}}"));
    }

    #[test]
    fn tools_calls_and_results() {
        let messages = json!([
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": null, "reasoning": "\nhm\n", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\":1,\"a\":1e-7}"}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}},
            ]},
            {"role": "tool", "tool_call_id": "1", "content": "one"},
            {"role": "tool", "tool_call_id": "2", "content": "two"},
        ]);
        let tools = json!([{
            "cache_control": {}, "type": "function",
            "function": {"parameters": {"type": "object"}, "strict": true, "name": "f", "description": "é"},
        }, {"type": "function", "function": {"name": "bare"}}]);
        let text = render(&messages, Some(&tools), &json!({}));
        assert!(text.contains(
            "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"é\", \
             \"parameters\": {\"type\": \"object\"}, \"strict\": true}}\n\
             {\"type\": \"function\", \"function\": {\"name\": \"bare\", \"description\": null, \
             \"parameters\": null}}\n</tools>"
        ));
        assert!(text.ends_with(
            "<|im_start|>assistant\n<think>\nhm\n</think>\n\n\
             <tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": 1e-07}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call><|im_end|>\n\
             <|im_start|>user\n<tool_response>\none\n</tool_response>\n\
             <tool_response>\ntwo\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        ), "{text}");
    }
}
