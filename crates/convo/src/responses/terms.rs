//! What a request says about the form of its reply.

use super::tools::ClientTool;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What a Responses request says about the form of its reply. Made by the decoder; the reply's
/// encoder and the gateway read it.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponsesTerms {
    /// Tools that are more to the client than a function, by the name the model calls.
    pub(super) tools: BTreeMap<String, ClientTool>,
    /// Whether reasoning is told as a summary, since the client asked for one, or in full.
    pub(super) summary: bool,
    /// Whether reasoning carries what lets the client send it back unchanged.
    pub(super) encrypted: bool,
    /// Whether the conversation is kept, for a request that goes on from its reply.
    pub(super) store: bool,
    /// How many messages at the front are instructions, which go for one request only.
    pub(super) instructions: usize,
    /// Fields of the request that the reply repeats.
    pub(super) echo: Map<String, Value>,
}

impl Default for ResponsesTerms {
    /// What a request means that says nothing.
    fn default() -> Self {
        Self {
            tools: BTreeMap::new(),
            summary: false,
            encrypted: false,
            store: true,
            instructions: 0,
            echo: said_nothing(),
        }
    }
}

fn said_nothing() -> Map<String, Value> {
    let fields = [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("max_tool_calls", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("previous_response_id", Value::Null),
        ("prompt_cache_key", Value::Null),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("safety_identifier", Value::Null),
        ("service_tier", Value::Null),
        ("store", json!(true)),
        ("temperature", json!(1.0)),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_logprobs", json!(0)),
        ("top_p", json!(1.0)),
        ("truncation", json!("disabled")),
        ("user", Value::Null),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

impl ResponsesTerms {
    /// Notes a field that the reply repeats.
    pub(super) fn note(&mut self, name: &str, value: &polar_wire::json::Node<'_>) {
        if let Some(echoed) = self.echo.get_mut(name) {
            *echoed = value.clone().into_value();
        }
    }
}
