//! The conversation as rules see it.

use polar_tokens::template::content_text;
use serde_json::Value;
use std::borrow::Cow;

/// Messages as role and text, and the tools on offer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Conversation<'a> {
    pub model: Cow<'a, str>,
    pub turns: Vec<Turn<'a>>,
    pub tools: Vec<Cow<'a, str>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Turn<'a> {
    pub role: Cow<'a, str>,
    pub text: Cow<'a, str>,
}

impl<'a> Conversation<'a> {
    pub(crate) fn of_chat(model: &'a str, messages: &'a [Value], tools: &'a [Value]) -> Self {
        let turns = messages
            .iter()
            .map(|message| Turn {
                role: message.get("role").and_then(Value::as_str).unwrap_or_default().into(),
                text: match message.get("content") {
                    Some(Value::String(text)) => text.into(),
                    content => content_text(content).unwrap_or_default().into(),
                },
            })
            .collect();
        let tools = tools
            .iter()
            .filter_map(|tool| tool.pointer("/function/name")?.as_str())
            .map(Cow::from)
            .collect();
        Self { model: model.into(), turns, tools }
    }

    /// Turns of the assistant so far.
    pub(crate) fn assistant_turns(&self) -> usize {
        self.turns.iter().filter(|turn| turn.role == "assistant").count()
    }

    pub(crate) fn last(&self) -> Option<&Turn<'a>> {
        self.turns.last()
    }

    /// Texts of the tool results since the last assistant turn.
    pub(crate) fn fresh_tool_results(&self) -> impl Iterator<Item = &str> {
        let fresh = self.turns.iter().rev().take_while(|turn| turn.role != "assistant");
        fresh.filter(|turn| turn.role == "tool").map(|turn| turn.text.as_ref())
    }

    /// The first user message: usually the task.
    pub(crate) fn instruction(&self) -> &str {
        self.turns.iter().find(|turn| turn.role == "user").map_or("", |turn| &turn.text)
    }
}
