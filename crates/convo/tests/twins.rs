//! A conversation begun in any dialect gives the engine the same messages as its twins in the
//! others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use polar_convo::{Dialect, chat_messages, chat_tools, encode_engine_chat};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// What the model does in a turn.
#[derive(Debug, Clone)]
struct Turn {
    reasoning: Option<String>,
    text: Option<String>,
    /// Tool, argument and result of each call.
    calls: Vec<(String, Value, String)>,
    /// What the user says then, after the results.
    user: String,
}

impl Turn {
    /// One in which nothing is said is nothing in Responses.
    fn says_something(&self) -> bool {
        self.reasoning.is_some() || self.text.is_some() || !self.calls.is_empty()
    }
}

#[derive(Debug, Clone)]
struct Conversation {
    system: Option<String>,
    user: String,
    turns: Vec<Turn>,
}

fn text() -> impl Strategy<Value = String> {
    "[a-zA-Zäß\\\\\"\n\t {}:,0-9\u{2028}🙂]{1,20}"
}

fn turn() -> impl Strategy<Value = Turn> {
    let value = prop_oneof![
        text().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        Just(json!([1, {"a": null}, true])),
    ];
    let calls = prop::collection::vec(("[a-z_]{1,8}", value, text()), 0..3);
    (prop::option::of(text()), prop::option::of(text()), calls, text())
        .prop_map(|(reasoning, text, calls, user)| Turn { reasoning, text, calls, user })
}

fn conversation() -> impl Strategy<Value = Conversation> {
    (prop::option::of(text()), text(), prop::collection::vec(turn(), 0..5))
        .prop_map(|(system, user, turns)| Conversation { system, user, turns })
}

/// The id of a call, in the form that is minted where a dialect has none.
fn id(made: &mut u32) -> String {
    *made += 1;
    format!("call{:05}", *made - 1)
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"value": {"type": "string"}}})
}

fn in_chat(conversation: &Conversation) -> Value {
    let mut messages = Vec::new();
    if let Some(system) = &conversation.system {
        messages.push(json!({"role": "system", "content": system}));
    }
    messages.push(json!({"role": "user", "content": conversation.user}));
    let mut made = 0;
    for turn in &conversation.turns {
        let ids: Vec<_> = turn.calls.iter().map(|_| id(&mut made)).collect();
        let calls: Vec<_> = std::iter::zip(&ids, &turn.calls)
            .map(|(id, (name, value, _))| {
                let arguments = json!({"value": value}).to_string();
                json!({"id": id, "type": "function",
                    "function": {"name": name, "arguments": arguments}})
            })
            .collect();
        let mut message = json!({"role": "assistant", "content": turn.text});
        if let Some(reasoning) = &turn.reasoning {
            message["reasoning_content"] = json!(reasoning);
        }
        if !calls.is_empty() {
            message["tool_calls"] = json!(calls);
        }
        messages.push(message);
        for (id, (_, _, result)) in std::iter::zip(ids, &turn.calls) {
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
        }
        messages.push(json!({"role": "user", "content": turn.user}));
    }
    let function = json!({"name": "read", "description": "Reads.", "parameters": schema()});
    json!({"model": "m", "messages": messages, "tools": [{"type": "function", "function": function}]})
}

fn in_google(conversation: &Conversation, ids: bool) -> Value {
    let mut contents = vec![json!({"role": "user", "parts": [{"text": conversation.user}]})];
    let mut made = 0;
    for turn in &conversation.turns {
        let (mut parts, mut results) = (Vec::new(), Vec::new());
        parts.extend(turn.reasoning.as_ref().map(|text| json!({"text": text, "thought": true})));
        parts.extend(turn.text.as_ref().map(|text| json!({"text": text})));
        for (name, value, result) in &turn.calls {
            let id = ids.then(|| id(&mut made));
            parts.push(json!({"functionCall": {"id": id, "name": name, "args": {"value": value}}}));
            results.push(json!({"functionResponse": {
                "id": id, "name": name, "response": {"output": result},
            }}));
        }
        results.push(json!({"text": turn.user}));
        contents.push(json!({"role": "model", "parts": parts}));
        contents.push(json!({"role": "user", "parts": results}));
    }
    let mut body = Map::new();
    body.insert("contents".to_owned(), Value::Array(contents));
    if let Some(system) = &conversation.system {
        body.insert("systemInstruction".to_owned(), json!({"parts": [{"text": system}]}));
    }
    let parameters = json!({"type": "OBJECT", "properties": {"value": {"type": "STRING"}}});
    let declaration = json!({"name": "read", "description": "Reads.", "parameters": parameters});
    body.insert("tools".to_owned(), json!([{"functionDeclarations": [declaration]}]));
    Value::Object(body)
}

fn in_messages(conversation: &Conversation) -> Value {
    let mut messages = vec![json!({"role": "user", "content": conversation.user})];
    let mut made = 0;
    for turn in &conversation.turns {
        let (mut blocks, mut results) = (Vec::new(), Vec::new());
        blocks.extend(
            turn.reasoning
                .as_ref()
                .map(|text| json!({"type": "thinking", "thinking": text, "signature": "s"})),
        );
        blocks.extend(turn.text.as_ref().map(|text| json!({"type": "text", "text": text})));
        for (name, value, result) in &turn.calls {
            let id = id(&mut made);
            blocks.push(
                json!({"type": "tool_use", "id": id, "name": name, "input": {"value": value}}),
            );
            results.push(json!({"type": "tool_result", "tool_use_id": id, "content": result}));
        }
        results.push(json!({"type": "text", "text": turn.user}));
        messages.push(json!({"role": "assistant", "content": blocks}));
        messages.push(json!({"role": "user", "content": results}));
    }
    let tool = json!({"name": "read", "description": "Reads.", "input_schema": schema()});
    let mut body = json!({"model": "m", "max_tokens": 9, "messages": messages, "tools": [tool]});
    if let Some(system) = &conversation.system {
        body["system"] = json!(system);
    }
    body
}

fn in_responses(conversation: &Conversation) -> Value {
    let mut input = vec![json!({"role": "user", "content": conversation.user})];
    let mut made = 0;
    for turn in &conversation.turns {
        input.extend(turn.reasoning.as_ref().map(|text| {
            let content = json!([{"type": "reasoning_text", "text": text}]);
            json!({"type": "reasoning", "summary": [], "content": content})
        }));
        input.extend(turn.text.as_ref().map(|text| {
            let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
            json!({"type": "message", "role": "assistant", "content": content})
        }));
        let mut results = Vec::new();
        for (name, value, result) in &turn.calls {
            let id = id(&mut made);
            let arguments = json!({"value": value}).to_string();
            input.push(json!({
                "type": "function_call", "call_id": id, "name": name, "arguments": arguments,
            }));
            results.push(json!({"type": "function_call_output", "call_id": id, "output": result}));
        }
        input.extend(results);
        input.push(json!({"role": "user", "content": turn.user}));
    }
    let tool = json!({
        "type": "function", "name": "read", "description": "Reads.", "parameters": schema(),
    });
    let mut body = json!({"model": "m", "input": input, "tools": [tool]});
    if let Some(system) = &conversation.system {
        body["instructions"] = json!(system);
    }
    body
}

/// The same with `functions`, which know one call a turn and no ids.
fn in_functions(conversation: &Conversation) -> Value {
    let mut body = in_chat(conversation);
    let names: Vec<_> = conversation.turns.iter().flat_map(|turn| &turn.calls).collect();
    let mut results = names.iter().map(|(name, ..)| name);
    for message in body["messages"].as_array_mut().unwrap() {
        let message = message.as_object_mut().unwrap();
        if let Some(calls) = message.remove("tool_calls") {
            message.insert("function_call".to_owned(), calls[0]["function"].clone());
        }
        if message.remove("tool_call_id").is_some() {
            message.insert("role".to_owned(), json!("function"));
            message.insert("name".to_owned(), json!(results.next().unwrap()));
        }
    }
    let tools = body.as_object_mut().unwrap().remove("tools").unwrap();
    body["functions"] = json!([tools[0]["function"]]);
    body
}

proptest! {
    #[test]
    fn twins_give_the_engine_the_same_messages(conversation in conversation()) {
        let seen = |dialect: Dialect, body: Value| {
            let request = dialect.decode_request(body.to_string().as_bytes()).unwrap();
            (chat_messages(&request), chat_tools(&request))
        };
        let chat = seen(Dialect::Chat, in_chat(&conversation));
        prop_assert_eq!(&seen(Dialect::Google, in_google(&conversation, true)), &chat);
        prop_assert_eq!(&seen(Dialect::Google, in_google(&conversation, false)), &chat);
        prop_assert_eq!(&seen(Dialect::Messages, in_messages(&conversation)), &chat);
        if conversation.turns.iter().all(Turn::says_something) {
            let responses = in_responses(&conversation);
            prop_assert_eq!(&seen(Dialect::Responses, responses), &chat);
        }
        if conversation.turns.iter().all(|turn| turn.calls.len() <= 1) {
            prop_assert_eq!(&seen(Dialect::Chat, in_functions(&conversation)), &chat);
        }
    }
    /// Nothing is lost or added on the way: the engine gets what was said, word for word, and
    /// what it gets is read as the same again.
    #[test]
    fn what_is_said_is_what_the_engine_gets(conversation in conversation()) {
        let body = in_chat(&conversation);
        let request = Dialect::Chat.decode_request(body.to_string().as_bytes()).unwrap();
        let mut said = body["messages"].as_array().unwrap().clone();
        // Templates may fail on a content that is null.
        for message in said.iter_mut().filter(|message| message["content"].is_null()) {
            message["content"] = json!("");
        }
        prop_assert_eq!(&chat_messages(&request), &said);
        prop_assert_eq!(json!(chat_tools(&request)), body["tools"].clone());
        let sent = Value::Object(encode_engine_chat(&request)).to_string();
        let read = Dialect::Chat.decode_request(sent.as_bytes()).unwrap();
        prop_assert_eq!(&chat_messages(&read), &said);
        prop_assert_eq!(read.tools, request.tools);
    }
}
