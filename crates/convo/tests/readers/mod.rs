//! Clients that read a stream into the body that a unary request would have got.
//!
//! They are written from the dialects' rules, not from the encoders: they refuse what strict
//! clients refuse (blocks that overlap, wrong indexes, empty deltas, anything after the end).

use polar_convo::{Dialect, UNPARSED_ARGUMENTS};
use polar_wire::sse::SseParser;
use serde_json::{Map, Value, json};

pub(crate) type Events = Vec<(String, Value)>;

/// The events of a stream that arrives in pieces of some size.
pub(crate) fn events(stream: &[u8], piece: usize) -> Events {
    let mut parser = SseParser::new(1 << 20);
    let mut events = Vec::new();
    for bytes in stream.chunks(piece) {
        parser.push(bytes);
        while let Ok(Some(event)) = parser.next_event() {
            let data = if event.is_done() {
                json!("[DONE]")
            } else {
                serde_json::from_slice(event.data).unwrap_or(Value::Null)
            };
            events.push((event.event.to_owned(), data));
        }
    }
    assert!(!parser.has_partial_event());
    events
}

/// Reads the events of a stream into the body that a unary request would have got.
pub(crate) fn read(dialect: Dialect, events: Events) -> Value {
    match dialect {
        Dialect::Chat => read_chat(events),
        Dialect::Messages => read_messages(events),
        Dialect::Responses => read_responses(events),
        Dialect::Google => read_google(chunks(events)),
    }
}

/// The chunks of a Google stream, whose events have no names.
pub(crate) fn chunks(events: Events) -> Vec<Value> {
    assert!(events.iter().all(|(name, _)| name.is_empty()));
    events.into_iter().map(|(_, chunk)| chunk).collect()
}

/// Reads a Chat stream into the body a unary request would have got.
fn read_chat(events: Events) -> Value {
    let mut body = json!({});
    let (mut content, mut reasoning) = (Value::Null, Value::Null);
    let mut calls: Vec<Value> = Vec::new();
    let (mut function, mut logprobs) = (Value::Null, Value::Null);
    let (mut finish, mut usage, mut done) = (Value::Null, Value::Null, false);
    for (name, mut chunk) in events {
        assert!(!done && name.is_empty());
        if chunk == "[DONE]" {
            done = true;
            continue;
        }
        assert_eq!(chunk["object"], "chat.completion.chunk");
        for field in ["id", "created", "model"] {
            body[field] = chunk[field].take();
        }
        if let Some(counts) = chunk.get_mut("usage") {
            usage = counts.take();
        }
        let Some(choice) = chunk["choices"].get_mut(0) else { continue };
        assert!(finish.is_null(), "nothing may follow the finish reason");
        finish = choice["finish_reason"].take();
        let delta = choice["delta"].as_object().cloned().unwrap_or_default();
        if let Some(told) = choice.get("logprobs") {
            if logprobs.is_null() {
                logprobs = json!({"content": [], "refusal": null});
            }
            let told = told["content"].as_array().unwrap().clone();
            logprobs["content"].as_array_mut().unwrap().extend(told);
        }
        append(&mut content, delta.get("content"));
        append(&mut reasoning, delta.get("reasoning_content"));
        if let Some(call) = delta.get("function_call") {
            if function.is_null() {
                function = json!({"name": call["name"], "arguments": ""});
            }
            append(&mut function["arguments"], call.get("arguments"));
        }
        for call in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            let index = call["index"].as_u64().unwrap_or(99) as usize;
            if index == calls.len() {
                let function = json!({"name": call["function"]["name"], "arguments": ""});
                calls.push(json!({"id": call["id"], "type": "function", "function": function}));
            }
            append(&mut calls[index]["function"]["arguments"], call["function"].get("arguments"));
        }
    }
    assert!(done, "the stream must end with [DONE]");
    let mut message = json!({"role": "assistant", "content": content});
    if !reasoning.is_null() {
        message["reasoning_content"] = reasoning;
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    if !function.is_null() {
        message["function_call"] = function;
    }
    body["object"] = "chat.completion".into();
    body["choices"] = json!([{
        "index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish,
    }]);
    body["usage"] = usage;
    body
}

fn append(to: &mut Value, more: Option<&Value>) {
    if let Some(more) = more.and_then(Value::as_str).filter(|more| !more.is_empty()) {
        *to = Value::String(to.as_str().unwrap_or_default().to_owned() + more);
    }
}

/// Reads a Messages stream into the body a unary request would have got.
fn read_messages(events: Events) -> Value {
    let mut message = Value::Null;
    let mut content: Vec<Value> = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let mut stopped = false;
    for (name, mut event) in events {
        assert!(!stopped, "nothing may follow message_stop");
        assert_eq!(event["type"], name.as_str());
        match name.as_str() {
            "ping" => {}
            "message_start" => {
                assert!(message.is_null());
                message = event["message"].take();
            }
            "content_block_start" => {
                assert!(open.is_none() && event["index"] == content.len());
                open = Some((content.len(), String::new()));
                content.push(event["content_block"].take());
            }
            "content_block_delta" => {
                let (index, json_text) = open.as_mut().expect("an open block");
                assert_eq!(event["index"], *index);
                apply_delta(&mut content[*index], &event["delta"], json_text);
            }
            "content_block_stop" => {
                let (index, json_text) = open.take().expect("an open block");
                assert_eq!(event["index"], index);
                if content[index]["type"] == "tool_use" {
                    content[index]["input"] = parse_input(&json_text);
                }
            }
            "message_delta" => {
                assert!(open.is_none());
                message["stop_reason"] = event["delta"]["stop_reason"].take();
                message["stop_sequence"] = event["delta"]["stop_sequence"].take();
                message["usage"] = event["usage"].take();
            }
            "message_stop" => stopped = true,
            other => panic!("unknown event {other}"),
        }
    }
    assert!(stopped, "the stream must end with message_stop");
    message["content"] = Value::Array(content);
    message
}

fn apply_delta(block: &mut Value, delta: &Value, json_text: &mut String) {
    let (kind, field) = match delta["type"].as_str() {
        Some("text_delta") => ("text", "text"),
        Some("thinking_delta") => ("thinking", "thinking"),
        Some("signature_delta") => ("thinking", "signature"),
        Some("input_json_delta") => {
            assert_eq!(block["type"], "tool_use");
            let fragment = delta["partial_json"].as_str().unwrap_or_default();
            assert!(!fragment.is_empty());
            return json_text.push_str(fragment);
        }
        other => panic!("unknown delta {other:?}"),
    };
    assert_eq!(block["type"], kind);
    assert!(delta[field].as_str().is_some_and(|more| !more.is_empty()));
    append(&mut block[field], delta.get(field));
}

fn parse_input(json_text: &str) -> Value {
    if json_text.trim().is_empty() {
        return json!({});
    }
    match serde_json::from_str::<Map<String, Value>>(json_text) {
        Ok(object) => Value::Object(object),
        Err(_) => json!({ UNPARSED_ARGUMENTS: json_text }),
    }
}

/// Reads a Responses stream into the body a unary request would have got, by its deltas alone,
/// and checks that whatever is told again is what the deltas have told.
fn read_responses(events: Events) -> Value {
    let mut created = Value::Null;
    let mut output: Vec<Value> = Vec::new();
    let mut open: Option<Value> = None;
    let mut told = None;
    for (number, (name, mut event)) in events.into_iter().enumerate() {
        assert!(told.is_none(), "nothing may follow the end");
        assert_eq!(event["type"], name.as_str());
        assert_eq!(event["sequence_number"], number);
        if let Some(index) = event.get("output_index") {
            assert_eq!(*index, output.len());
        }
        if let Some(id) = event.get("item_id") {
            assert_eq!(Some(id), open.as_ref().and_then(|item| item.get("id")));
        }
        match name.as_str() {
            "response.created" => {
                assert!(created.is_null() && number == 0);
                created = event["response"].take();
            }
            "response.in_progress" => assert_eq!(event["response"], created),
            "response.output_item.added" => {
                assert!(open.is_none());
                open = Some(event["item"].take());
            }
            "response.output_item.done" => {
                let (mut whole, mut read) = (event["item"].take(), open.take().unwrap());
                let sealed = whole["encrypted_content"].take();
                if !sealed.is_null() {
                    read["encrypted_content"] = sealed.clone();
                    whole["encrypted_content"] = sealed;
                } else if let Some(fields) = whole.as_object_mut() {
                    fields.remove("encrypted_content");
                }
                if whole["type"] != "reasoning" {
                    read["status"] = whole["status"].clone();
                }
                assert_eq!(whole, read);
                output.push(read);
            }
            "response.completed" | "response.incomplete" => {
                assert!(open.is_none());
                told = Some(event["response"].take());
            }
            of_item => apply_item_event(of_item, &event, open.as_mut().expect("an open item")),
        }
    }
    let mut told = told.expect("the stream must end");
    assert_eq!(told["output"], Value::Array(output.clone()));
    told["output"] = Value::Array(output);
    told
}

fn apply_item_event(name: &str, event: &Value, item: &mut Value) {
    let parts = match item["type"].as_str() {
        Some("reasoning") if name.contains("summary") => "summary",
        _ => "content",
    };
    let last = |item: &mut Value| item[parts].as_array_mut().unwrap().last_mut().unwrap().take();
    let name = name.strip_prefix("response.").unwrap();
    match name {
        "content_part.added" | "reasoning_summary_part.added" => {
            assert_eq!(event["part"]["text"], "");
            item[parts].as_array_mut().unwrap().push(event["part"].clone());
        }
        "content_part.done" | "reasoning_summary_part.done" => {
            let part = last(item);
            assert_eq!(event["part"], part);
            item[parts] = json!([part]);
        }
        "output_text.delta" | "reasoning_text.delta" | "reasoning_summary_text.delta" => {
            let mut part = last(item);
            append(&mut part["text"], event.get("delta"));
            item[parts] = json!([part]);
        }
        "output_text.done" | "reasoning_text.done" | "reasoning_summary_text.done" => {
            assert_eq!(event["text"], item[parts][0]["text"]);
        }
        "function_call_arguments.delta" => append(&mut item["arguments"], event.get("delta")),
        "function_call_arguments.done" => assert_eq!(event["arguments"], item["arguments"]),
        "custom_tool_call_input.delta" => {
            assert_ne!(event["delta"], "");
            append(&mut item["input"], event.get("delta"));
        }
        "custom_tool_call_input.done" => assert_eq!(event["input"], item["input"]),
        other => panic!("unknown event {other}"),
    }
}

/// Reads a Google stream into the body a unary request would have got, as the official clients
/// do: the parts of all chunks in a row, texts of one kind joined.
pub(crate) fn read_google(chunks: Vec<Value>) -> Value {
    let mut body = Value::Null;
    let mut parts: Vec<Value> = Vec::new();
    let mut ended = false;
    for mut chunk in chunks {
        assert!(!ended, "nothing may follow the finish reason");
        let candidate = &chunk["candidates"][0];
        assert_eq!(candidate["content"]["role"], "model");
        let new = candidate["content"]["parts"].as_array().cloned().unwrap_or_default();
        assert!(!new.is_empty(), "clients take a chunk without parts for a broken reply");
        ended = candidate["finishReason"].is_string();
        assert_eq!(chunk["usageMetadata"].is_object(), ended);
        new.into_iter().for_each(|part| add_part(&mut parts, part));
        chunk["candidates"][0]["content"]["parts"].take();
        body = chunk;
    }
    assert!(ended, "the stream must end with a finish reason");
    if parts.is_empty() {
        parts.push(json!({"text": ""}));
    }
    body["candidates"][0]["content"]["parts"] = Value::Array(parts);
    body
}

fn add_part(parts: &mut Vec<Value>, part: Value) {
    if part == json!({"text": ""}) {
        return;
    }
    match parts.last_mut() {
        Some(last)
            if part["text"].is_string()
                && last["text"].is_string()
                && last["thought"] == part["thought"]
                && last["thoughtSignature"].is_null() =>
        {
            let joined = last["text"].as_str().unwrap().to_owned() + part["text"].as_str().unwrap();
            last["text"] = joined.into();
            if let Some(signature) = part.get("thoughtSignature") {
                last["thoughtSignature"] = signature.clone();
            }
        }
        _ => parts.push(part),
    }
}
