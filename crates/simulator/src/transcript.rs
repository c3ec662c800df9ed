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
            let text = match role {
                "assistant" => Cow::Owned(said(text)),
                _ => Cow::Borrowed(text),
            };
            conversation.turns.push(Turn { role: Cow::Borrowed(role), text });
        }
    }
    conversation
}

/// What a turn of the model says beside its reasoning and its calls, which messages hold apart.
fn said(turn: &str) -> String {
    let spoken = turn.split_once("</think>").map_or(turn, |(_, spoken)| spoken);
    let mut parts = spoken.split("<tool_call>");
    let first = parts.next().unwrap_or_default();
    let behind = parts.filter_map(|call| call.split_once("</tool_call>").map(|(_, rest)| rest));
    std::iter::once(first).chain(behind).collect::<String>().trim().to_owned()
}

fn tools(system: &str) -> Vec<Cow<'_, str>> {
    // A system prompt may have such a block of its own (pi's has), of other lines.
    let blocks = system.split("<tools>\n").skip(1).filter_map(|rest| rest.split_once("</tools>"));
    blocks
        .flat_map(|(listed, _)| listed.lines())
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
            {"role": "system", "content": "Be brief.\n<tools>\n- f: looks\n</tools>"},
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "So.", "reasoning": "Hm.", "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": "{\"say\": \"q\"}"}},
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
        assert_eq!(read.turns[2].text, "So.");
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
