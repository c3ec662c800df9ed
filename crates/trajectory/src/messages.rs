//! What a harness did to a reply before it sent it back, read off the messages.
//!
//! Works on OpenAI chat messages; knows nothing of tokens.

use serde_json::Value;

/// How a message that came back differs from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Difference {
    /// Says the same: empty and absent content, or one text as string and as list.
    None,
    /// The reasoning is no longer there.
    ReasoningGone,
    /// Tool arguments mean the same and are spelled differently.
    ArgumentsRespelled,
    /// It says something else.
    Other,
}

/// Compares two messages at the same place of two histories.
pub(crate) fn difference(before: &Value, after: &Value) -> Difference {
    if role(before) != role(after) || content(before) != content(after) {
        return Difference::Other;
    }
    let arguments = compare_tool_calls(before, after);
    let (had, has) = (reasoning(before), reasoning(after));
    if arguments == Difference::Other || before["tool_call_id"] != after["tool_call_id"] {
        Difference::Other
    } else if had == has {
        arguments
    } else if has.is_empty() {
        // Reasoning comes before the tool calls, so its loss is where the tokens part.
        Difference::ReasoningGone
    } else {
        Difference::Other
    }
}

/// `system`, `user`, `assistant` or `tool`.
pub(crate) fn role(message: &Value) -> &str {
    message["role"].as_str().unwrap_or_default()
}

/// Whether a message belongs to the fixed front of a prompt and not to the conversation.
pub(crate) fn is_header(message: &Value) -> bool {
    is_header_role(role(message))
}

/// Whether messages of a role belong there.
pub(crate) fn is_header_role(role: &str) -> bool {
    matches!(role, "system" | "developer")
}

/// The text of a message, its parts joined.
pub(crate) fn text(message: &Value) -> String {
    content(message).0
}

/// The reasoning of a reply, empty when it has none.
pub(crate) fn reasoning(message: &Value) -> &str {
    let of = |key: &str| message[key].as_str().filter(|text| !text.is_empty());
    of("reasoning_content").or_else(|| of("reasoning")).unwrap_or_default()
}

/// Content with its spellings made one: text parts joined, other parts as they are.
fn content(message: &Value) -> (String, Vec<&Value>) {
    let mut text = String::new();
    let mut others = Vec::new();
    match &message["content"] {
        Value::String(whole) => text.push_str(whole),
        Value::Array(parts) => {
            for part in parts {
                match (part["type"].as_str(), part["text"].as_str()) {
                    (Some("text"), Some(piece)) => text.push_str(piece),
                    _ => others.push(part),
                }
            }
        }
        Value::Null => {}
        other => others.push(other),
    }
    (text, others)
}

/// Pictures and whatever else a message holds beside text.
pub(crate) fn parts_beside_text(message: &Value) -> Vec<Value> {
    let (_, parts) = content(message);
    parts.into_iter().cloned().collect()
}

fn compare_tool_calls(before: &Value, after: &Value) -> Difference {
    let calls = |message: &Value| message["tool_calls"].as_array().cloned().unwrap_or_default();
    let (before, after) = (calls(before), calls(after));
    if before.len() != after.len() {
        return Difference::Other;
    }
    let mut result = Difference::None;
    for (before, after) in before.iter().zip(&after) {
        let (before, after) = (&before["function"], &after["function"]);
        if before["name"] != after["name"] {
            return Difference::Other;
        }
        let (old, new) = (&before["arguments"], &after["arguments"]);
        if old == new {
            continue;
        }
        if parsed(old) != parsed(new) {
            return Difference::Other;
        }
        result = Difference::ArgumentsRespelled;
    }
    result
}

/// Arguments as the value they spell, numbers compared by their size: `1.0` came back as `1`.
fn parsed(arguments: &Value) -> Option<Value> {
    let value: Value = match arguments.as_str() {
        Some(text) => serde_json::from_str(text).ok()?,
        None => arguments.clone(),
    };
    Some(with_plain_numbers(value))
}

fn with_plain_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().map_or(Value::Number(number), Value::from),
        Value::Array(items) => items.into_iter().map(with_plain_numbers).collect(),
        Value::Object(entries) => Value::Object(
            entries.into_iter().map(|(key, item)| (key, with_plain_numbers(item))).collect(),
        ),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with_arguments(arguments: &str) -> Value {
        let call = json!({"id": "c1", "type": "function",
            "function": {"name": "bash", "arguments": arguments}});
        json!({"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [call]})
    }

    #[test]
    fn differences_are_named_for_what_was_done() {
        let before = with_arguments(r#"{"command": "ls\/", "n": 1e4, "limit": 1.0}"#);
        let respelled = with_arguments(r#"{"limit":1,"command":"ls/","n":10000}"#);
        let mut stripped = before.clone();
        stripped["reasoning_content"] = json!("");
        let mut both = respelled.clone();
        both.as_object_mut().unwrap().shift_remove("reasoning_content");
        let mut trimmed = before.clone();
        trimmed["reasoning_content"] = json!("h");
        let mut filled = before.clone();
        filled["content"] = json!("");
        let mut renamed = before.clone();
        renamed["tool_calls"][0]["function"]["name"] = json!("sh");
        let cases = [
            (&before, Difference::None),
            (&respelled, Difference::ArgumentsRespelled),
            (&stripped, Difference::ReasoningGone),
            (&both, Difference::ReasoningGone),
            (&trimmed, Difference::Other),
            (&filled, Difference::None),
            (&renamed, Difference::Other),
            (&with_arguments(r#"{"command":"ls/","n":10000,"limit":2}"#), Difference::Other),
            (&with_arguments("{\"command\""), Difference::Other),
        ];
        for (after, expected) in cases {
            assert_eq!(difference(&before, after), expected, "{after}");
        }
        let text = json!({"role": "user", "content": "ab"});
        let parts = json!({"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
        assert_eq!(difference(&text, &parts), Difference::None);
    }
}
