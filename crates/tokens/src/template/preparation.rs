//! How engines prepare messages and tools before their template sees them.

use super::{ChatTemplate, ContentFormat};
use jiff::civil::DateTime;
use serde_json::{Map, Value, json};

/// How the line begins that Claude Code puts before its system prompt.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// Who prepares messages and tools for a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preparation {
    /// `transformers`' `apply_chat_template`: everything is given as it is.
    Transformers,
    /// vLLM: `arguments` become objects, messages and tools lose keys it doesn't know, texts of
    /// one content are lines.
    Vllm,
    /// SGLang: the same in its own order of keys; texts of one content have blanks between them,
    /// and every tool has a `defer_loading`.
    Sglang,
    /// llama.cpp: as vLLM, but what is absent of a tool is empty, and numbers with a fraction or an
    /// exponent keep six digits.
    LlamaCpp,
    /// TensorRT-LLM: as vLLM, but every tool has a `strict`, contents are always texts, and of
    /// arguments that are no JSON the text stays.
    TensorRtLlm,
}

impl Preparation {
    /// The messages as a template is given them that wants their contents as texts.
    pub fn messages(&self, messages: &[Value]) -> Vec<Value> {
        self.messages_as(ContentFormat::Text, messages)
    }

    /// The messages as this template is given them.
    pub fn messages_for(
        &self,
        template: &ChatTemplate,
        messages: &[Value],
        with_tools: bool,
    ) -> Vec<Value> {
        let prepared = self.messages_as(template.content_format(*self, with_tools), messages);
        let has_developers = prepared.iter().any(|message| role(message) == "developer");
        if *self == Self::Vllm && has_developers && !template.knows_developers(with_tools) {
            return under_one_system_message(prepared);
        }
        prepared
    }

    /// The template's arguments: those of a request, and what is always given.
    pub fn options(&self, options: &Map<String, Value>, now: DateTime) -> Map<String, Value> {
        let mut given = Map::new();
        if *self == Self::LlamaCpp {
            given.insert("enable_thinking".to_owned(), true.into());
            for (name, format) in [("datetime", "%b %d %Y"), ("date_string", "%d %b %Y")] {
                given.insert(name.to_owned(), now.strftime(format).to_string().into());
            }
        }
        given.extend(options.clone());
        given
    }

    fn messages_as(&self, format: ContentFormat, messages: &[Value]) -> Vec<Value> {
        match self {
            Self::Transformers => messages.to_vec(),
            Self::Vllm => messages.iter().map(|message| vllm_message(message, format)).collect(),
            Self::Sglang => {
                messages.iter().map(|message| sglang_message(message, format)).collect()
            }
            Self::LlamaCpp => messages.iter().map(llama_message).collect(),
            Self::TensorRtLlm => messages.iter().map(tensorrt_message).collect(),
        }
    }

    /// The tools as the template is given them.
    pub fn tools(&self, tools: &[Value]) -> Vec<Value> {
        match self {
            Self::Transformers => tools.to_vec(),
            Self::Vllm => tools.iter().map(vllm_tool).collect(),
            Self::Sglang => tools.iter().map(sglang_tool).collect(),
            Self::LlamaCpp => tools.iter().map(llama_tool).collect(),
            Self::TensorRtLlm => tools.iter().map(tensorrt_tool).collect(),
        }
    }
}

/// Text of a message's `content`, whether a string, a list of parts, or nothing.
pub fn content_text(content: Option<&Value>) -> Option<String> {
    match content? {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(part_text).filter(|text| !text.is_empty());
            Some(texts.collect::<Vec<_>>().join("\n"))
        }
        _ => None,
    }
}

/// Text of a part that is one.
fn part_text(part: &Value) -> Option<&str> {
    part.as_str().or_else(|| part.get("text")?.as_str())
}

fn vllm_message(message: &Value, format: ContentFormat) -> Value {
    let role = role(message);
    let mut prepared = Map::new();
    prepared.insert("role".to_owned(), role.into());
    let content = message.get("content");
    let stripped = (role == "system").then(|| without_billing_header(content));
    prepared
        .insert("content".to_owned(), vllm_content(role, stripped.as_ref().or(content), format));
    match role {
        "assistant" => {
            if let Some(Value::Array(calls)) = message.get("tool_calls")
                && !calls.is_empty()
            {
                let calls = calls.iter().map(vllm_call).collect();
                prepared.insert("tool_calls".to_owned(), calls);
            }
            // Clients send it and templates know it by either name.
            let reasoning = given(message, "reasoning").or(given(message, "reasoning_content"));
            if let Some(reasoning) = reasoning {
                prepared.insert("reasoning".to_owned(), reasoning.clone());
                prepared.insert("reasoning_content".to_owned(), reasoning);
            }
        }
        "tool" => {
            if let Some(id) = message.get("tool_call_id") {
                prepared.insert("tool_call_id".to_owned(), id.clone());
            }
        }
        _ => {}
    }
    if let Some(name) = message.get("name").filter(|name| name.is_string()) {
        prepared.insert("name".to_owned(), name.clone());
    }
    Value::Object(prepared)
}

/// Where a template knows no developers, vLLM makes them the system, and one message of all its
/// messages, which comes first.
fn under_one_system_message(messages: Vec<Value>) -> Vec<Value> {
    let is_of_system = |message: &Value| matches!(role(message), "system" | "developer");
    let (of_system, others): (Vec<Value>, Vec<Value>) =
        messages.into_iter().partition(is_of_system);
    let texts = of_system.iter().filter_map(|message| content_text(message.get("content")));
    let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
    let system = json!({"role": "system", "content": texts.join("\n\n")});
    std::iter::once(system).chain(others).collect()
}

fn vllm_content(role: &str, content: Option<&Value>, format: ContentFormat) -> Value {
    if format == ContentFormat::Text {
        return content_text(content).unwrap_or_default().into();
    }
    let parts: Vec<Value> = match content {
        Some(Value::String(text)) => vec![text_part(text)],
        Some(Value::Array(parts)) => parts.iter().filter_map(vllm_part).collect(),
        _ => Vec::new(),
    };
    // Few templates take a list as a tool's result.
    if role == "tool" && parts.iter().all(|part| part["type"] == "text") {
        return joined(&parts, "\n");
    }
    Value::Array(parts)
}

fn vllm_part(part: &Value) -> Option<Value> {
    if let Some(text) = part.as_str() {
        return Some(text_part(text));
    }
    match part["type"].as_str()? {
        "tool_reference" => Some(json!({"type": "tool_reference", "name": part["name"]})),
        kind => media(kind).or_else(|| Some(text_part(part_text(part)?))),
    }
}

/// What stands for a medium where the engine has taken the medium itself out.
fn media(kind: &str) -> Option<Value> {
    let kind = match kind {
        "image_url" | "input_image" => "image",
        "video_url" => "video",
        "audio_url" | "input_audio" => "audio",
        _ => return None,
    };
    Some(json!({"type": kind}))
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn joined(parts: &[Value], separator: &str) -> Value {
    parts.iter().filter_map(part_text).collect::<Vec<_>>().join(separator).into()
}

fn sglang_message(message: &Value, format: ContentFormat) -> Value {
    let role = role(message);
    let mut prepared = Map::new();
    prepared.insert("role".to_owned(), role.into());
    prepared.insert("content".to_owned(), sglang_content(role, message.get("content"), format));
    // Of a user's message it reads nothing else.
    if role == "user" {
        return Value::Object(prepared);
    }
    for key in ["tool_call_id", "name", "reasoning_content"] {
        given(message, key).map(|value| prepared.insert(key.to_owned(), value));
    }
    if let Some(Value::Array(calls)) = message.get("tool_calls") {
        let calls = calls.iter().map(|call| {
            let function = &with_parsed_arguments(call)["function"];
            let function = json!({"name": function["name"], "arguments": function["arguments"]});
            json!({
                "id": call["id"], "index": call["index"], "type": "function", "function": function,
            })
        });
        prepared.insert("tool_calls".to_owned(), calls.collect());
    }
    Value::Object(prepared)
}

fn sglang_content(role: &str, content: Option<&Value>, format: ContentFormat) -> Value {
    let parts = match content {
        Some(Value::Array(parts)) => parts,
        Some(Value::String(text)) => return text.as_str().into(),
        _ => return "".into(),
    };
    let texts =
        parts.iter().filter(|part| matches!(part["type"].as_str(), Some("text" | "input_text")));
    let texts: Vec<Value> = texts.filter_map(|part| Some(text_part(part_text(part)?))).collect();
    if format == ContentFormat::Text {
        return joined(&texts, " ");
    }
    let known = |part: &Value| match part["type"].as_str()? {
        "text" | "input_text" => Some(text_part(part_text(part)?)),
        "tool_reference" => Some(part.clone()),
        kind => media(kind),
    };
    let parts: Vec<Value> = parts.iter().filter_map(known).collect();
    match role == "tool" && parts.len() == texts.len() {
        true => joined(&parts, " "),
        false => Value::Array(parts),
    }
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

/// A value that is there and not null.
fn given(object: &Value, key: &str) -> Option<Value> {
    object.get(key).filter(|value| !value.is_null()).cloned()
}

/// System content without the line that Claude Code puts first and changes with every
/// request.
fn without_billing_header(content: Option<&Value>) -> Value {
    let strip = |text: &str| {
        if text.starts_with(BILLING_HEADER) {
            text.split_once('\n').map(|(_, rest)| rest.to_owned()).filter(|rest| !rest.is_empty())
        } else {
            Some(text.to_owned())
        }
    };
    match content {
        Some(Value::String(text)) => strip(text).map(Value::from).unwrap_or_default(),
        Some(Value::Array(parts)) => parts
            .iter()
            .filter_map(part_text)
            .filter_map(strip)
            .map(|text| text_part(&text))
            .collect(),
        _ => Value::Null,
    }
}

/// Arguments become an object; what is not the text of one becomes an empty one.
fn with_parsed_arguments(call: &Value) -> Value {
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

/// The keys that vLLM knows, in its order.
fn vllm_call(call: &Value) -> Value {
    let call = with_parsed_arguments(call);
    let function = &call["function"];
    json!({
        "id": call["id"],
        "function": {"arguments": function["arguments"], "name": function["name"]},
        "type": call["type"],
    })
}

/// The keys that vLLM knows, in its order; description and parameters are null when absent.
fn vllm_tool(tool: &Value) -> Value {
    let field = |key: &str| given(&tool["function"], key);
    let deferred = given(tool, "defer_loading");
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

/// The keys that SGLang knows: those given in the order given, then those it adds.
fn sglang_tool(tool: &Value) -> Value {
    let deferred = given(tool, "defer_loading");
    let mut known = Map::new();
    for key in ["description", "name", "parameters"] {
        known.insert(key.to_owned(), given(&tool["function"], key).unwrap_or_default());
    }
    given(&tool["function"], "strict").map(|value| known.insert("strict".to_owned(), value));
    let inner = given(&tool["function"], "defer_loading").or(deferred.clone());
    inner.map(|value| known.insert("defer_loading".to_owned(), value));

    let order = tool["function"].as_object().into_iter().flatten().map(|(key, _)| key.clone());
    let mut function = Map::new();
    for key in order.chain(known.keys().cloned()).collect::<Vec<_>>() {
        if let Some(value) = known.get(&key) {
            function.entry(key).or_insert_with(|| value.clone());
        }
    }
    let kind = given(tool, "type").unwrap_or_else(|| "function".into());
    json!({"type": kind, "function": function, "defer_loading": deferred})
}

fn llama_message(message: &Value) -> Value {
    let role = match role(message) {
        "developer" => "system",
        other => other,
    };
    let mut prepared = Map::new();
    prepared.insert("role".to_owned(), role.into());
    let content = content_text(message.get("content")).unwrap_or_default();
    prepared.insert("content".to_owned(), content.into());
    if let Some(Value::Array(calls)) = message.get("tool_calls")
        && !calls.is_empty()
    {
        let calls = calls.iter().map(|call| {
            let function = &call["function"];
            let arguments = match &function["arguments"] {
                Value::String(text) => {
                    serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into())
                }
                other => other.clone(),
            };
            let arguments = in_six_digits(&arguments);
            let function = json!({"name": function["name"], "arguments": arguments});
            json!({"type": "function", "function": function, "id": call["id"]})
        });
        prepared.insert("tool_calls".to_owned(), calls.collect());
    }
    for key in ["reasoning_content", "name", "tool_call_id"] {
        given(message, key).map(|value| prepared.insert(key.to_owned(), value));
    }
    Value::Object(prepared)
}

fn llama_tool(tool: &Value) -> Value {
    let field = |key: &str, absent: Value| given(&tool["function"], key).unwrap_or(absent);
    json!({"type": "function", "function": {
        "name": field("name", "".into()),
        "description": field("description", "".into()),
        "parameters": in_six_digits(&field("parameters", json!({}))),
    }})
}

fn tensorrt_message(message: &Value) -> Value {
    let role = role(message);
    let mut prepared = Map::new();
    prepared.insert("role".to_owned(), role.into());
    let content = content_text(message.get("content")).unwrap_or_default();
    prepared.insert("content".to_owned(), content.into());
    match role {
        "assistant" => {
            let reasoning = given(message, "reasoning").or(given(message, "reasoning_content"));
            reasoning.map(|text| prepared.insert("reasoning_content".to_owned(), text));
            if let Some(Value::Array(calls)) = message.get("tool_calls") {
                let calls = calls.iter().map(with_arguments_where_they_parse).collect();
                prepared.insert("tool_calls".to_owned(), calls);
            }
        }
        "tool" => {
            let id = message.get("tool_call_id");
            id.map(|id| prepared.insert("tool_call_id".to_owned(), id.clone()));
        }
        _ => {}
    }
    Value::Object(prepared)
}

/// Arguments become an object; what is not the text of one stays as it is.
fn with_arguments_where_they_parse(call: &Value) -> Value {
    let mut call = call.clone();
    if let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) {
        let parsed = match function.get("arguments") {
            None | Some(Value::Null) => Some(json!({})),
            Some(Value::String(text)) => serde_json::from_str(text).ok().filter(Value::is_object),
            Some(_) => None,
        };
        parsed.map(|object| function.insert("arguments".to_owned(), object));
    }
    call
}

/// The keys that TensorRT-LLM knows, in its order; null when absent.
fn tensorrt_tool(tool: &Value) -> Value {
    let field = |key: &str| given(&tool["function"], key);
    json!({"type": "function", "function": {
        "name": field("name"),
        "description": field("description"),
        "parameters": field("parameters"),
        "strict": field("strict"),
    }})
}

/// Numbers as llama.cpp has them once its template writes them: floats as C's `%g`, integers in 64
/// bits with a sign. Floats from a million on to 1e16, which it writes with an exponent, are left to
/// the template's own spelling.
fn in_six_digits(value: &Value) -> Value {
    /// Above, a float's integer is written with an exponent.
    const INTEGERS: f64 = 1e6;
    match value {
        Value::Array(items) => items.iter().map(in_six_digits).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.clone(), in_six_digits(value))).collect()
        }
        Value::Number(number) if number.is_f64() => {
            let rounded = number.as_f64().and_then(|float| format!("{float:.5e}").parse().ok());
            match rounded {
                Some(rounded) if f64::fract(rounded) == 0.0 && rounded.abs() < INTEGERS => {
                    format!("{rounded:.0}")
                        .parse::<i64>()
                        .map_or_else(|_| value.clone(), Value::from)
                }
                Some(rounded) => rounded.into(),
                None => value.clone(),
            }
        }
        Value::Number(number) => match number.as_u64() {
            Some(large) => large.cast_signed().into(),
            None => value.clone(),
        },
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(texts: &[&str]) -> Value {
        texts.iter().map(|text| text_part(text)).collect()
    }

    fn prepared(by: Preparation, format: ContentFormat, message: Value) -> Value {
        by.messages_as(format, &[message]).remove(0)
    }

    #[test]
    fn contents_have_the_form_that_each_engine_gives_them() {
        use ContentFormat::{Parts, Text};
        use Preparation::{Sglang, Vllm};
        let user = |content: &Value| json!({"role": "user", "content": content});
        let two = parts(&["a", "", "b"]);
        for (by, format, content, expected) in [
            (Vllm, Text, two.clone(), json!("a\nb")),
            (Vllm, Parts, two.clone(), two.clone()),
            (Vllm, Parts, json!("a"), parts(&["a"])),
            (Vllm, Parts, json!(null), json!([])),
            (Vllm, Text, json!(null), json!("")),
            (Sglang, Text, two.clone(), json!("a  b")),
            (Sglang, Parts, two.clone(), two.clone()),
            (Sglang, Parts, json!("a"), json!("a")),
            (Sglang, Parts, json!(null), json!("")),
        ] {
            assert_eq!(
                prepared(by, format, user(&content))["content"],
                expected,
                "{by:?} {format:?}"
            );
        }
        let image = json!([{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": "?"}]);
        let seen = json!([{"type": "image"}, {"type": "text", "text": "?"}]);
        assert_eq!(prepared(Vllm, Parts, user(&image))["content"], seen);
        assert_eq!(prepared(Sglang, Parts, user(&image))["content"], seen);
        let result = json!({"role": "tool", "tool_call_id": "1", "content": two});
        assert_eq!(prepared(Vllm, Parts, result.clone())["content"], "a\n\nb");
        assert_eq!(prepared(Sglang, Parts, result)["content"], "a  b");
        for name in ["reasoning", "reasoning_content"] {
            let turn =
                prepared(Vllm, Text, json!({"role": "assistant", "content": "", name: "hm"}));
            assert_eq!(
                (&turn["reasoning"], &turn["reasoning_content"]),
                (&json!("hm"), &json!("hm"))
            );
        }
        let system = json!({"role": "system", "content": "x-anthropic-billing-header: 1\nRules."});
        assert_eq!(prepared(Vllm, Parts, system)["content"], parts(&["Rules."]));
    }

    #[test]
    fn vllm_orders_the_keys_of_calls_as_its_types_do() {
        let call =
            json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let message = json!({"role": "assistant", "content": "", "tool_calls": [call]});
        assert_eq!(
            prepared(Preparation::Vllm, ContentFormat::Text, message)["tool_calls"][0].to_string(),
            r#"{"id":"1","function":{"arguments":{},"name":"f"},"type":"function"}"#
        );
    }

    #[test]
    fn vllm_makes_developers_the_system_where_the_template_knows_none() {
        let template = |source: &str| {
            let templates = [("default".to_owned(), source.to_owned())].into_iter().collect();
            ChatTemplate::new(super::super::TemplateFiles { templates, specials: Map::new() })
                .unwrap()
        };
        let message = |role: &str, text: &str| json!({"role": role, "content": text});
        let messages = [message("system", "a"), message("user", "u"), message("developer", "b")];
        let under_one = [message("system", "a\n\nb"), message("user", "u")];
        for (source, expected) in [
            ("{{ messages[0].content }}", &under_one[..]),
            ("{{ messages[0].content if messages[0].role == 'developer' }}", &messages),
        ] {
            let prepared = Preparation::Vllm.messages_for(&template(source), &messages, false);
            assert_eq!(prepared, expected, "{source}");
        }
    }

    #[test]
    fn sglang_orders_keys_and_leaves_nulls_as_its_models_do() {
        let call = json!({"type": "function", "function": {"arguments": "{\"b\": 1, \"a\": 2}", "name": "f"}});
        let message = json!({
            "tool_calls": [call], "name": null, "reasoning_content": "hm", "content": null,
            "role": "assistant", "extra": 1,
        });
        let message = prepared(Preparation::Sglang, ContentFormat::Text, message);
        assert_eq!(
            message.to_string(),
            r#"{"role":"assistant","content":"","reasoning_content":"hm","tool_calls":[{"id":null,"index":null,"type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}}]}"#
        );
        let tool = json!({"function": {"parameters": {}, "name": "f", "x": 1}, "type": "function", "cache": 1});
        let tool = Preparation::Sglang.tools(&[tool]).remove(0);
        assert_eq!(
            tool.to_string(),
            r#"{"type":"function","function":{"parameters":{},"name":"f","description":null},"defer_loading":null}"#
        );
    }

    /// As b10434's `/apply-template` was seen to do it.
    #[test]
    fn llama_cpp_fills_up_tools_and_shortens_numbers() {
        let arguments = r#"{"z": [1.0, 1e16, 1.5e-7, 123456789012345678901234567890, 0.1, 1e5, 123456.7, 3.0000000000000004, 18446744073709551615], "a": 1}"#;
        let message = json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}},
        ]});
        let prepared = prepared(Preparation::LlamaCpp, ContentFormat::Text, message);
        let written =
            crate::python_json::dumps(&prepared["tool_calls"][0]["function"]["arguments"]);
        assert_eq!(
            written.unwrap(),
            r#"{"z": [1, 1e+16, 1.5e-07, 1.23457e+29, 0.1, 100000, 123457, 3, -1], "a": 1}"#
        );
        assert_eq!(prepared["content"], "");
        let tool =
            json!({"function": {"strict": true, "name": "f"}, "cache": 1, "type": "function"});
        let tool = Preparation::LlamaCpp.tools(&[tool]).remove(0);
        assert_eq!(
            tool.to_string(),
            r#"{"type":"function","function":{"name":"f","description":"","parameters":{}}}"#
        );
        let parts = json!({"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
        let said = json!({"role": "system", "content": "a\nb"});
        assert_eq!(llama_message(&parts), said);
    }

    /// As its source (`chat_utils.py`, `openai_protocol.py`) has it.
    #[test]
    fn tensorrt_llm_fills_up_tools_and_keeps_arguments_that_do_not_parse() {
        let by = Preparation::TensorRtLlm;
        let call = |arguments: &str| json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let message = json!({
            "role": "assistant", "content": null, "name": "n", "reasoning": "hm",
            "tool_calls": [call(r#"{"b": 1, "a": 2}"#), call("{")],
        });
        assert_eq!(
            prepared(by, ContentFormat::Text, message).to_string(),
            r#"{"role":"assistant","content":"","reasoning_content":"hm","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}},{"id":"1","type":"function","function":{"name":"f","arguments":"{"}}]}"#
        );
        let result = json!({"role": "tool", "tool_call_id": "1", "content": parts(&["a", "b"])});
        assert_eq!(
            prepared(by, ContentFormat::Text, result).to_string(),
            r#"{"role":"tool","content":"a\nb","tool_call_id":"1"}"#
        );
        let tool = json!({"cache": 1, "function": {"parameters": {}, "name": "f", "x": 1}});
        assert_eq!(
            by.tools(&[tool])[0].to_string(),
            r#"{"type":"function","function":{"name":"f","description":null,"parameters":{},"strict":null}}"#
        );
    }
}
