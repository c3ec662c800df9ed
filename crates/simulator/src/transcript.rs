//! A rendered prompt read back as a conversation, so that policies also work for
//! requests that bring token ids instead of messages.

use crate::policy::{Conversation, Turn};
use serde_json::Value;
use std::borrow::Cow;

const RESPONSE: &str = "<tool_response>\n";
const RESPONSE_END: &str = "\n</tool_response>";

/// What a ChatML prompt says. Text without ChatML marks is one user message.
pub(crate) fn read<'a>(model: &'a str, prompt: &'a str) -> Conversation<'a> {
    let mut conversation = Conversation { model: Cow::Borrowed(model), ..Conversation::default() };
    if !prompt.contains("<|im_start|>") {
        let turn = Turn { role: Cow::Borrowed("user"), text: Cow::Borrowed(prompt) };
        conversation.turns.push(turn);
        return conversation;
    }
    for part in prompt.split("<|im_start|>").skip(1) {
        // A turn that has not ended is the one about to be sampled.
        let Some((turn, _)) = part.split_once("<|im_end|>") else { continue };
        let (role, text) = turn.split_once('\n').unwrap_or((turn, ""));
        if role == "system" {
            conversation.tools.extend(tools(text));
        }
        if role == "user" && text.starts_with(RESPONSE) {
            let results = text.split(RESPONSE).skip(1).map(|result| Turn {
                role: Cow::Borrowed("tool"),
                text: Cow::Borrowed(result.trim_end().strip_suffix(RESPONSE_END).unwrap_or(result)),
            });
            conversation.turns.extend(results);
        } else {
            conversation.turns.push(Turn { role: Cow::Borrowed(role), text: Cow::Borrowed(text) });
        }
    }
    conversation
}

fn tools(system: &str) -> Vec<Cow<'_, str>> {
    let listed = system
        .split_once("<tools>\n")
        .and_then(|(_, rest)| rest.split_once("</tools>"))
        .map_or("", |(listed, _)| listed);
    listed
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|tool| Some(Cow::Owned(tool.pointer("/function/name")?.as_str()?.to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChatTemplate;
    use serde_json::{Map, json};

    #[test]
    fn a_rendered_conversation_reads_back() {
        let messages = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"type": "function", "function": {"name": "f", "arguments": "{}"}},
            ]},
            {"role": "tool", "content": "one\n"},
            {"role": "tool", "content": "two"},
        ]);
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
        let prompt = ChatTemplate::load()
            .unwrap()
            .render(
                messages.as_array().unwrap(),
                tools.as_array().map(Vec::as_slice),
                true,
                &Map::new(),
            )
            .unwrap();
        let read = read("m", &prompt);
        let roles: Vec<&str> = read.turns.iter().map(|turn| turn.role.as_ref()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "tool"]);
        assert_eq!(read.tools, ["f"]);
        assert_eq!(read.instruction(), "q");
        let mut results: Vec<&str> = read.fresh_tool_results().collect();
        results.sort_unstable();
        assert_eq!(results, ["one\n", "two"]);
    }

    #[test]
    fn plain_text_is_a_user_message() {
        assert_eq!(read("m", "hello").last().unwrap().text, "hello");
    }
}
