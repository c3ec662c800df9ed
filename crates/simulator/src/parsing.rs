//! From sampled text to a message, as vLLM does it with its `qwen3` reasoning parser and
//! `hermes` tool parser: what it drops, keeps and misreads included.
//!
//! The whole-text parser and the streaming one differ where vLLM's do: a finished reply
//! has its arguments dumped anew, a streamed one passes their text on; broken JSON is
//! content in a finished reply and a broken call in a streamed one.

mod hermes;
mod reasoning;
mod stream;

pub(crate) use stream::{Delta, StreamParser};

use serde::Serialize;

/// Which parsers look at a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parsers {
    /// The reply starts inside a reasoning block.
    pub reasoning: bool,
    /// Tool calls are looked for.
    pub tools: bool,
}

/// A complete reply.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Parsed {
    pub reasoning: Option<String>,
    pub content: Option<String>,
    pub calls: Vec<Call>,
}

/// One parsed tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Call {
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// Parses a complete reply.
pub(crate) fn parse(text: &str, parsers: Parsers) -> Parsed {
    let (reasoning, content) =
        if parsers.reasoning { reasoning::split(text) } else { (None, Some(text.to_owned())) };
    if !parsers.tools {
        return Parsed { reasoning, content, calls: Vec::new() };
    }
    let text = content.as_deref().unwrap_or_default();
    match hermes::calls(text) {
        Some((before, calls)) => {
            let content = Some(before).filter(|before| !before.trim().is_empty());
            Parsed { reasoning, content: content.map(str::to_owned), calls }
        }
        None => Parsed { reasoning, content, calls: Vec::new() },
    }
}

/// Bytes at the end of `text` that may be the beginning of `tag`.
fn held_back(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|length| text.ends_with(&tag[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Parsers = Parsers { reasoning: true, tools: true };

    fn parsed(reasoning: Option<&str>, content: Option<&str>, calls: &[(&str, &str)]) -> Parsed {
        Parsed {
            reasoning: reasoning.map(str::to_owned),
            content: content.map(str::to_owned),
            calls: calls
                .iter()
                .map(|(name, arguments)| Call {
                    name: (*name).into(),
                    arguments: (*arguments).into(),
                })
                .collect(),
        }
    }

    /// Each pair is what vLLM 0.32 made of the text.
    #[test]
    fn whole_replies_parse_as_in_vllm() {
        for (text, expected) in [
            ("Hello  \n there \n\n", parsed(Some("Hello  \n there \n\n"), None, &[])),
            (
                "<think>\n plan \n\n</think>\n\n answer \n",
                parsed(Some("\n plan \n\n"), Some("\n\n answer \n"), &[]),
            ),
            ("plan\n</think>\n\nanswer", parsed(Some("plan\n"), Some("\n\nanswer"), &[])),
            ("<think>\nplan", parsed(Some("\nplan"), None, &[])),
            (
                "<think>\nneed\n</think>\n\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>",
                parsed(Some("\nneed\n"), None, &[("get_time", "{}")]),
            ),
            (
                "<think>\n<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>\n</think>\n\nok",
                parsed(Some("\n"), None, &[("a", "{}")]),
            ),
            (
                "<tool_call>\n{\"name\": \"t\", \"arguments\": {\"city\":\"Oslo\" , \"n\": 1.0}}\n</tool_call>\n trailing",
                parsed(None, None, &[("t", "{\"city\": \"Oslo\", \"n\": 1.0}")]),
            ),
            (
                "<tool_call>{\"arguments\": {\"é\": \"ü\\u00e9\"}, \"name\": \"a\"}</tool_call>",
                parsed(None, None, &[("a", "{\"é\": \"üé\"}")]),
            ),
            (
                "I will look. \n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
                parsed(Some("I will look. \n"), None, &[("get_time", "{\"city\": \"Oslo\"}")]),
            ),
            (
                "<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"b\", \"arguments\": {\"x\": [1,2]}}\n</tool_call>",
                parsed(None, None, &[("a", "{}"), ("b", "{\"x\": [1, 2]}")]),
            ),
            (
                "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {\"city\": Oslo}}\n</tool_call>",
                parsed(
                    None,
                    Some(
                        "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {\"city\": Oslo}}\n</tool_call>",
                    ),
                    &[],
                ),
            ),
            (
                "<tool_call>\n{\"name\": \"a\", \"arguments\": \"{\\\"city\\\": 1}\"}\n</tool_call>",
                parsed(None, None, &[("a", "\"{\\\"city\\\": 1}\"")]),
            ),
            (
                "<tool_call>\n{\"name\": \"get_weather\", \"",
                parsed(None, Some("<tool_call>\n{\"name\": \"get_weather\", \""), &[]),
            ),
            ("", parsed(None, None, &[])),
        ] {
            assert_eq!(parse(text, BOTH), expected, "{text:?}");
        }
        let plain = Parsers { reasoning: false, tools: false };
        assert_eq!(parse("<tool_call>x", plain), parsed(None, Some("<tool_call>x"), &[]));
        assert_eq!(parse("", plain), parsed(None, Some(""), &[]));
    }
}
