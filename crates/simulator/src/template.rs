//! Messages and tools to prompt text: the chat template, prepared the way vLLM prepares it.
//!
//! Engine parity matters here: `arguments` strings become objects, tools lose keys the
//! engine doesn't know, text parts are joined by newlines.

use crate::SimulatorError;
use crate::python_json;
use minijinja::{Environment, Error, ErrorKind, Value as JinjaValue, context};
use serde_json::{Map, Value};

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
        Value::Array(parts) => Some(
            parts
                .iter()
                .filter_map(|part| part.get("text")?.as_str())
                .collect::<Vec<_>>()
                .join("\n"),
        ),
        _ => None,
    }
}

fn prepare_message(message: &Value) -> Value {
    let mut prepared = Map::new();
    for key in ["role", "name", "tool_call_id"] {
        if let Some(value) = message.get(key) {
            prepared.insert(key.to_owned(), value.clone());
        }
    }
    let content = content_text(message.get("content")).map_or(Value::Null, Value::String);
    prepared.insert("content".to_owned(), content);
    if let Some(reasoning) = message.get("reasoning").or_else(|| message.get("reasoning_content")) {
        prepared.insert("reasoning".to_owned(), reasoning.clone());
        prepared.insert("reasoning_content".to_owned(), reasoning.clone());
    }
    if let Some(Value::Array(calls)) = message.get("tool_calls") {
        let calls = calls.iter().map(prepare_call).collect();
        prepared.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    Value::Object(prepared)
}

fn prepare_call(call: &Value) -> Value {
    let mut call = call.clone();
    let parsed = match call.pointer("/function/arguments") {
        Some(Value::String(text)) if text.trim().is_empty() => Some(Value::Object(Map::new())),
        Some(Value::String(text)) => serde_json::from_str(text).ok(),
        _ => None,
    };
    if let (Some(parsed), Some(place)) = (parsed, call.pointer_mut("/function/arguments")) {
        *place = parsed;
    }
    call
}

fn prepare_tool(tool: &Value) -> Value {
    let mut function = Map::new();
    for key in ["name", "description", "parameters"] {
        if let Some(value) = tool.get("function").and_then(|function| function.get(key)) {
            function.insert(key.to_owned(), value.clone());
        }
    }
    let mut prepared = Map::new();
    let kind = tool.get("type").cloned().unwrap_or_else(|| "function".into());
    prepared.insert("type".to_owned(), kind);
    prepared.insert("function".to_owned(), Value::Object(function));
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
        }]);
        let text = render(&messages, Some(&tools), &json!({}));
        assert!(text.contains(
            "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"é\", \
             \"parameters\": {\"type\": \"object\"}}}\n</tools>"
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
