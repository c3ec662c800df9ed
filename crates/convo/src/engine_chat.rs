//! A [`Request`] as the body of an OpenAI chat completion, which every engine takes.
//!
//! Pure and stable: the same history always gives the same messages, whatever dialect or
//! spelling it came in, because a prompt that changes its beginning cannot be merged with
//! the calls before it. Content that is all text is one string; engines would join a
//! list of texts each in their own way.

use crate::reply::{Reply, ReplyBlock};
use crate::{Block, ImageSource, Message, Request, Role, Sampling, Tool, ToolChoice};
use polar_types::SamplingPins;
use serde_json::{Map, Value, json};

/// The body for an engine: model, messages, tools, sampling, `stream`, and what is carried
/// (`rest`). Adapters add what makes their engine return ids and logprobs.
pub fn encode_engine_chat(request: &Request) -> Map<String, Value> {
    let mut body = Map::new();
    body.insert("model".into(), Value::from(request.model.as_str()));
    body.insert("messages".into(), Value::Array(chat_messages(request)));
    // An empty list is an error to some engines.
    if !request.tools.is_empty() {
        body.insert("tools".into(), Value::Array(chat_tools(request)));
        if let Some(choice) = &request.tool_choice {
            body.insert("tool_choice".into(), chat_tool_choice(choice));
        }
    }
    insert_sampling(&mut body, &request.sampling);
    body.insert("stream".into(), Value::Bool(request.stream));
    for (name, value) in &request.rest {
        body.entry(name.as_str()).or_insert_with(|| value.clone());
    }
    body
}

fn insert_sampling(body: &mut Map<String, Value>, sampling: &Sampling) {
    let mut insert = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    };
    insert("temperature", sampling.temperature.map(Value::from));
    insert("top_p", sampling.top_p.map(Value::from));
    insert("top_k", sampling.top_k.map(Value::from));
    insert("max_tokens", sampling.max_tokens.map(Value::from));
    insert("seed", sampling.seed.map(Value::from));
    insert("stop", (!sampling.stop.is_empty()).then(|| Value::from(sampling.stop.clone())));
}

/// Replaces what the harness sent by what the task pins.
pub fn apply_pins(sampling: &mut Sampling, pins: &SamplingPins) {
    fn pin<T: Clone>(value: &mut Option<T>, pin: &Option<T>) {
        if pin.is_some() {
            value.clone_from(pin);
        }
    }
    pin(&mut sampling.temperature, &pins.temperature);
    pin(&mut sampling.top_p, &pins.top_p);
    pin(&mut sampling.top_k, &pins.top_k);
    pin(&mut sampling.max_tokens, &pins.max_tokens);
    pin(&mut sampling.seed, &pins.seed);
    if let Some(stop) = &pins.stop {
        sampling.stop.clone_from(stop);
    }
}

/// The conversation as chat messages.
pub fn chat_messages(request: &Request) -> Vec<Value> {
    let mut out = Vec::with_capacity(request.messages.len() + 1);
    for message in &request.messages {
        if message.role == Role::Assistant {
            out.push(assistant_message(message));
        } else {
            push_messages(message, &mut out);
        }
    }
    out
}

/// The tools as chat functions.
pub fn chat_tools(request: &Request) -> Vec<Value> {
    request.tools.iter().map(tool).collect()
}

/// A reply as the chat message it becomes in the history.
pub fn reply_message(reply: &Reply) -> Value {
    let mut message = AssistantMessage::default();
    for block in &reply.blocks {
        match block {
            ReplyBlock::Text(text) => message.text.push_str(text),
            ReplyBlock::Reasoning(text) => message.reasoning.push_str(text),
            ReplyBlock::ToolCall { id, name, arguments, .. } => message.call(id, name, arguments),
        }
    }
    message.into_value(&Map::new())
}

/// An assistant message: each kind of block taken together, as engines want it.
#[derive(Default)]
struct AssistantMessage {
    text: String,
    /// Instead of `text` where there is more than text.
    parts: Vec<Value>,
    reasoning: String,
    calls: Vec<Value>,
}

impl AssistantMessage {
    fn call(&mut self, id: &str, name: &str, arguments: &str) {
        self.calls.push(json!({
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }));
    }

    fn into_value(self, rest: &Map<String, Value>) -> Value {
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        // Without text still a string: templates may fail on null.
        let content = match self.parts.is_empty() {
            true => Value::String(self.text),
            false => Value::Array(self.parts),
        };
        message.insert("content".into(), content);
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".into(), Value::String(self.reasoning));
        }
        if !self.calls.is_empty() {
            message.insert("tool_calls".into(), Value::Array(self.calls));
        }
        message.extend(rest.clone());
        Value::Object(message)
    }
}

fn assistant_message(message: &Message) -> Value {
    let mut assistant = AssistantMessage::default();
    let only_text = message.blocks.iter().all(|block| {
        !matches!(block, Block::Image(_) | Block::Other(_) | Block::ToolResult { .. })
    });
    for block in &message.blocks {
        match block {
            // What the model says in one turn is one text, wherever it was cut.
            Block::Text(text) if only_text => assistant.text.push_str(text),
            Block::Reasoning { text, .. } => assistant.reasoning.push_str(text),
            Block::ToolCall { id, name, arguments } => assistant.call(id, name, arguments),
            other => assistant.parts.extend(part(other)),
        }
    }
    assistant.into_value(&message.rest)
}

/// A message that is not the model's. One with tool results becomes several, in order: each
/// result is a message of its own.
fn push_messages(message: &Message, out: &mut Vec<Value>) {
    let first = out.len();
    let mut run = 0;
    for (i, block) in message.blocks.iter().enumerate() {
        if let Block::ToolResult { call_id, content, .. } = block {
            push_run(message.role, &message.blocks[run..i], out);
            run = i + 1;
            out.push(json!({
                "role": "tool",
                "tool_call_id": call_id,
                "content": content_value(content),
            }));
        }
    }
    push_run(message.role, &message.blocks[run..], out);
    if out.len() == first {
        out.push(json!({"role": role_name(message.role), "content": ""}));
    }
    if let Some(Value::Object(last)) = out.last_mut() {
        last.extend(message.rest.clone());
    }
}

fn push_run(role: Role, blocks: &[Block], out: &mut Vec<Value>) {
    if !blocks.is_empty() {
        out.push(json!({"role": role_name(role), "content": content_value(blocks)}));
    }
}

/// `developer` is unknown to chat templates, and some leave such a message out in silence.
fn role_name(role: Role) -> &'static str {
    match role {
        Role::Developer => Role::System.as_str(),
        other => other.as_str(),
    }
}

/// One string if all is text, else a list of parts.
fn content_value(blocks: &[Block]) -> Value {
    let mut text = String::new();
    for (i, block) in blocks.iter().enumerate() {
        let Block::Text(more) = block else {
            return Value::Array(blocks.iter().filter_map(part).collect());
        };
        if i > 0 {
            text.push('\n');
        }
        text.push_str(more);
    }
    Value::String(text)
}

/// A content part. Reasoning, calls and results are never content.
fn part(block: &Block) -> Option<Value> {
    match block {
        Block::Text(text) => Some(json!({"type": "text", "text": text})),
        Block::Image(ImageSource::Url(url)) => Some(image_part(url)),
        Block::Image(ImageSource::Base64 { media_type, data }) => {
            Some(image_part(&format!("data:{media_type};base64,{data}")))
        }
        Block::Other(value) => Some(value.clone()),
        Block::Reasoning { .. } | Block::ToolCall { .. } | Block::ToolResult { .. } => None,
    }
}

fn image_part(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn tool(tool: &Tool) -> Value {
    let mut function = Map::new();
    function.insert("name".into(), Value::from(tool.name.as_str()));
    if let Some(description) = &tool.description {
        function.insert("description".into(), Value::from(description.as_str()));
    }
    if !tool.parameters.is_null() {
        function.insert("parameters".into(), tool.parameters.clone());
    }
    function.extend(tool.rest.clone());
    json!({"type": "function", "function": function})
}

/// A choice of tools as the chat field.
pub fn chat_tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Named(name) => json!({"type": "function", "function": {"name": name}}),
    }
}
