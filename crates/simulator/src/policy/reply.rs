//! What a rule says, and the text a model would sample to say it.

use super::condition::Captures;
use super::conversation::Conversation;
use super::odd_json;
use minijinja::{Environment, context};
use polar_tokens::python_json;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A reply as written in a policy. Strings are templates over `captures`, `turns`
/// (assistant turns so far), `last`, `tool_result`, `instruction`, `model` and `tools`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Reply {
    reasoning: Option<String>,
    text: Option<String>,
    tool_calls: Vec<ScriptedCall>,
    /// Sampled as it stands, marks included, instead of all the above.
    raw: Option<String>,
    finish: Finish,
    spelling: Spelling,
}

/// A tool call as written in a policy.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScriptedCall {
    pub name: String,
    #[serde(default)]
    pub arguments: Map<String, Value>,
    #[serde(default)]
    pub spelling: JsonSpelling,
}

/// How the arguments of a call are spelled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JsonSpelling {
    /// As the chat template spells them.
    #[default]
    Template,
    /// As nothing that parses and writes JSON would: see [`odd_json`].
    Odd,
}

/// How a reply ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Finish {
    /// With the end of the turn.
    #[default]
    Stop,
    /// Cut off, as by the token limit.
    Length,
}

/// Which ids spell the text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Spelling {
    /// Those the tokenizer chooses.
    #[default]
    Canonical,
    /// One id per byte: tokenising the text again gives other ids.
    Bytewise,
}

/// A reply with its templates filled in.
#[derive(Debug, Clone, Default)]
pub(crate) struct SaidReply {
    pub reasoning: Option<String>,
    pub text: String,
    pub calls: Vec<ScriptedCall>,
    pub raw: Option<String>,
    pub cut: bool,
    pub bytewise: bool,
}

impl Reply {
    /// Finds templates that can't be parsed.
    pub(super) fn check(&self) -> Result<(), String> {
        let strings = [&self.reasoning, &self.text, &self.raw].into_iter().flatten();
        let mut arguments = Vec::new();
        for call in &self.tool_calls {
            call.arguments.values().for_each(|value| strings_of(value, &mut arguments));
        }
        let environment = environment();
        for template in strings.map(String::as_str).chain(arguments) {
            environment
                .template_from_str(template)
                .map_err(|e| format!("has a broken template {template:?}: {e}"))?;
        }
        if self.raw.is_some() && (self.text.is_some() || !self.tool_calls.is_empty()) {
            return Err("has `raw` beside `text` or `tool_calls`".to_owned());
        }
        Ok(())
    }

    pub(super) fn say(&self, conversation: &Conversation<'_>, captures: &Captures) -> SaidReply {
        let fill = Fill::new(conversation, captures);
        let text = |template: &Option<String>| template.as_ref().map(|t| fill.text(t));
        SaidReply {
            reasoning: text(&self.reasoning),
            text: text(&self.text).unwrap_or_default(),
            calls: self
                .tool_calls
                .iter()
                .map(|call| ScriptedCall {
                    name: fill.text(&call.name),
                    spelling: call.spelling,
                    arguments: call
                        .arguments
                        .iter()
                        .map(|(key, value)| (key.clone(), fill.value(value)))
                        .collect(),
                })
                .collect(),
            raw: text(&self.raw),
            cut: self.finish == Finish::Length,
            bytewise: self.spelling == Spelling::Bytewise,
        }
    }
}

impl SaidReply {
    /// The text a Qwen3-like model samples. `thinking` when the prompt leaves the
    /// reasoning open, `always_think` when an absent reasoning must be shown as empty,
    /// because the parser takes text without marks for reasoning.
    pub(crate) fn sampled_text(&self, thinking: bool, always_think: bool) -> String {
        if let Some(raw) = &self.raw {
            return raw.clone();
        }
        let mut sampled = String::new();
        let reasoning = self.reasoning.as_deref();
        if thinking && (reasoning.is_some() || always_think) {
            sampled.push_str("<think>\n");
            sampled.push_str(reasoning.unwrap_or_default().trim_matches('\n'));
            sampled.push_str("\n</think>\n\n");
        }
        sampled.push_str(&self.text);
        for (index, call) in self.calls.iter().enumerate() {
            if index > 0 || !self.text.is_empty() {
                sampled.push('\n');
            }
            // A map of JSON values always serialises.
            let name = python_json::dumps(&call.name).unwrap_or_default();
            let arguments = match call.spelling {
                JsonSpelling::Template => python_json::dumps(&call.arguments).unwrap_or_default(),
                JsonSpelling::Odd => odd_json::object(&call.arguments),
            };
            sampled.push_str(&format!(
                "<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
            ));
        }
        sampled
    }
}

fn strings_of<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(items) => items.iter().for_each(|item| strings_of(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| strings_of(field, found)),
        _ => {}
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_keep_trailing_newline(true);
    environment
}

/// Fills templates in with what the conversation has.
struct Fill {
    environment: Environment<'static>,
    variables: minijinja::Value,
}

impl Fill {
    fn new(conversation: &Conversation<'_>, captures: &Captures) -> Self {
        let last = conversation.last().map_or("", |turn| turn.text.as_ref());
        let variables = context! {
            captures,
            turns => conversation.assistant_turns(),
            last,
            tool_result => conversation.fresh_tool_results().next().unwrap_or_default(),
            instruction => conversation.instruction(),
            model => conversation.model,
            tools => conversation.tools,
        };
        Self { environment: environment(), variables }
    }

    fn text(&self, template: &str) -> String {
        if !template.contains("{{") && !template.contains("{%") {
            return template.to_owned();
        }
        // Syntax was checked at load; what is left is an operation on the wrong type.
        self.environment
            .render_str(template, &self.variables)
            .unwrap_or_else(|error| format!("[{error}]"))
    }

    fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => {
                fields.iter().map(|(key, field)| (key.clone(), self.value(field))).collect()
            }
            other => other.clone(),
        }
    }
}
