//! A harness: holds a conversation in its dialect and gives replies back, word for word unless it is
//! told to be careless.

use polar_convo::Dialect;
use polar_wire::sse::SseParser;
use serde_json::{Map, Value, json};

pub(crate) struct Harness {
    http: reqwest::Client,
    base: String,
    secret: String,
    dialect: Dialect,
    stream: bool,
    messages: Vec<Value>,
    /// Tokens that a reply may have.
    pub(crate) limit: u64,
    /// Goes with every request.
    pub(crate) rest: Map<String, Value>,
    /// Drops reasoning where the dialect lets it, trims text, and writes arguments anew.
    pub(crate) is_careless: bool,
}

impl Harness {
    pub(crate) fn new(base: &str, secret: &str, dialect: Dialect, stream: bool) -> Self {
        Self {
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            base: base.to_owned(),
            secret: secret.to_owned(),
            dialect,
            stream,
            messages: Vec::new(),
            limit: 64,
            rest: Map::new(),
            is_careless: false,
        }
    }

    /// Whether the last reply waits for results.
    pub(crate) fn has_calls(&self) -> bool {
        self.messages.last().is_some_and(|message| !call_ids(message).is_empty())
    }

    /// Says something, or answers the tool calls of the last reply; false when the engine
    /// failed, in which case nothing was said.
    pub(crate) async fn turn(&mut self, text: &str) -> bool {
        let said = self.messages.len();
        self.say(text);
        let request = self.http.post(format!("{}{}", self.base, self.path()));
        let answer = request.bearer_auth(&self.secret).json(&self.body()).send().await.unwrap();
        let status = answer.status();
        let bytes = answer.bytes().await.unwrap();
        let said_so = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("reply_unreadable");
        if status.is_server_error() || (status.is_client_error() && said_so(&bytes)) {
            println!("{}", String::from_utf8_lossy(&bytes));
            self.messages.truncate(said);
            return false;
        }
        assert!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&bytes));
        let mut reply = match (self.dialect, self.stream) {
            (Dialect::Chat, false) => whole(&bytes)["choices"][0]["message"].clone(),
            (Dialect::Chat, true) => chat_of_stream(&bytes),
            (Dialect::Messages, false) => {
                json!({"role": "assistant", "content": whole(&bytes)["content"]})
            }
            (Dialect::Messages, true) => messages_of_stream(&bytes),
            (Dialect::Responses, false) => whole(&bytes)["output"].clone(),
            (Dialect::Responses, true) => items_of_stream(&bytes),
            (Dialect::Google, false) => whole(&bytes)["candidates"][0]["content"].clone(),
            (Dialect::Google, true) => content_of_stream(&bytes),
        };
        if self.is_careless {
            spell_anew(&mut reply);
        }
        match reply {
            // The items of a reply.
            Value::Array(items) => self.messages.extend(items),
            message => self.messages.push(message),
        }
        true
    }

    /// Asks for a reply that goes on for long, and hangs up once it has begun.
    pub(crate) async fn hang_up(&mut self, text: &str) {
        self.say(text);
        let request = self.http.post(format!("{}{}", self.base, self.path()));
        let sent = request.bearer_auth(&self.secret).json(&self.body()).send();
        let mut answer = sent.await.unwrap();
        let mut told = String::new();
        while told.matches("data: ").count() < 5 {
            told += &String::from_utf8_lossy(&answer.chunk().await.unwrap().unwrap());
        }
    }

    /// llama.cpp refuses to give a reply that its parser cannot read: then asks differently.
    pub(crate) async fn insist(&mut self, said: &str) {
        let mut asked = said.to_owned();
        while !self.turn(&asked).await {
            asked.push('!');
            assert!(asked.len() < said.len() + 10, "the engine fails again and again");
        }
    }

    fn path(&self) -> &'static str {
        match (self.dialect, self.stream) {
            (Dialect::Chat, _) => "/v1/chat/completions",
            (Dialect::Messages, _) => "/v1/messages",
            (Dialect::Responses, _) => "/v1/responses",
            (Dialect::Google, false) => "/v1beta/models/any:generateContent",
            (Dialect::Google, true) => "/v1beta/models/any:streamGenerateContent?alt=sse",
        }
    }

    fn body(&self) -> Value {
        let schema = json!({
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city."}},
            "required": ["city"],
        });
        let (name, description) = ("get_weather", "Tells the weather in a city.");
        let tool = match self.dialect {
            Dialect::Chat => json!({"type": "function", "function": {
                "name": name, "description": description, "parameters": schema,
            }}),
            Dialect::Messages => {
                json!({"name": name, "description": description, "input_schema": schema})
            }
            Dialect::Responses => json!({
                "type": "function", "name": name, "description": description, "parameters": schema,
            }),
            Dialect::Google => {
                return json!({
                    "contents": self.messages,
                    "generationConfig": {"maxOutputTokens": self.limit},
                    "tools": [{"functionDeclarations": [{
                        "name": name, "description": description, "parametersJsonSchema": schema,
                    }]}],
                });
            }
        };
        let (limit, conversation) = match self.dialect {
            Dialect::Chat | Dialect::Messages => ("max_tokens", "messages"),
            Dialect::Responses | Dialect::Google => ("max_output_tokens", "input"),
        };
        let mut body = json!({
            "model": "any",
            limit: self.limit,
            "stream": self.stream,
            conversation: self.messages,
            "tools": [tool],
        });
        body.as_object_mut().unwrap().extend(self.rest.clone());
        body
    }

    fn say(&mut self, text: &str) {
        let calls = match self.dialect {
            Dialect::Responses => open_call_items(&self.messages),
            _ => self.messages.last().map(call_ids).unwrap_or_default(),
        };
        match (self.dialect, calls.is_empty()) {
            (Dialect::Google, _) => {
                let answers = self.messages.last().map(function_responses).unwrap_or_default();
                let said = if answers.is_empty() { vec![json!({"text": text})] } else { answers };
                self.messages.push(json!({"role": "user", "parts": said}));
            }
            (_, true) => self.messages.push(json!({"role": "user", "content": text})),
            (Dialect::Chat, false) => self.messages.extend(
                calls
                    .into_iter()
                    .map(|id| json!({"role": "tool", "tool_call_id": id, "content": "cloudy"})),
            ),
            (Dialect::Responses, false) => self.messages.extend(calls.into_iter().map(
                |id| json!({"type": "function_call_output", "call_id": id, "output": "cloudy"}),
            )),
            (Dialect::Messages, false) => {
                let results: Vec<Value> = calls
                    .into_iter()
                    .map(
                        |id| json!({"type": "tool_result", "tool_use_id": id, "content": "cloudy"}),
                    )
                    .collect();
                self.messages.push(json!({"role": "user", "content": results}));
            }
        }
    }
}

/// A turn as many harnesses keep it. Messages ask for thoughts to be given back; Chat has no field
/// for them.
fn spell_anew(turn: &mut Value) {
    let message = turn.as_object_mut().unwrap();
    message.retain(|name, _| !name.starts_with("reasoning"));
    match &mut message["content"] {
        Value::String(text) => *text = text.trim().to_owned(),
        Value::Array(blocks) => {
            for text in blocks.iter_mut().filter_map(|block| block.get_mut("text")) {
                *text = text.as_str().unwrap().trim().into();
            }
        }
        _ => {}
    }
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let arguments = &mut call["function"]["arguments"];
        if let Ok(parsed) = serde_json::from_str::<Value>(arguments.as_str().unwrap()) {
            *arguments = parsed.to_string().into();
        }
    }
}

fn whole(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

fn call_ids(message: &Value) -> Vec<Value> {
    let chat = message["tool_calls"].as_array().into_iter().flatten();
    let blocks = message["content"].as_array().into_iter().flatten();
    let used = blocks.filter(|block| block["type"] == "tool_use");
    chat.chain(used).map(|call| call["id"].clone()).collect()
}

/// Ids of the calls in the items at the end that the model has said.
fn open_call_items(items: &[Value]) -> Vec<Value> {
    let said = items.iter().rev().take_while(|item| {
        item["role"] == "assistant"
            || ["reasoning", "function_call"].iter().any(|kind| item["type"] == *kind)
    });
    let calls = said.filter(|item| item["type"] == "function_call");
    let mut ids: Vec<Value> = calls.map(|call| call["call_id"].clone()).collect();
    ids.reverse();
    ids
}

fn function_responses(content: &Value) -> Vec<Value> {
    let parts = content["parts"].as_array().into_iter().flatten();
    parts
        .map(|part| &part["functionCall"])
        .filter(|call| call.is_object())
        .map(|call| {
            json!({"functionResponse": {
                "id": call["id"], "name": call["name"], "response": {"output": "cloudy"},
            }})
        })
        .collect()
}

/// Pieces of one text become one part; a signature goes with the part that it ends.
fn content_of_stream(bytes: &[u8]) -> Value {
    let mut parts: Vec<Value> = Vec::new();
    for event in events(bytes) {
        assert!(event["error"].is_null(), "{event}");
        let content = &event["candidates"][0]["content"];
        for part in content["parts"].as_array().into_iter().flatten() {
            match parts.last_mut() {
                Some(last)
                    if part["text"].is_string()
                        && last["text"].is_string()
                        && last["thought"] == part["thought"] =>
                {
                    append(&mut last["text"], &part["text"]);
                    if !part["thoughtSignature"].is_null() {
                        last["thoughtSignature"] = part["thoughtSignature"].clone();
                    }
                }
                _ => parts.push(part.clone()),
            }
        }
    }
    json!({"role": "model", "parts": parts})
}

fn items_of_stream(bytes: &[u8]) -> Value {
    let done = events(bytes).into_iter().filter(|e| e["type"] == "response.output_item.done");
    done.map(|event| event["item"].clone()).collect()
}

fn events(bytes: &[u8]) -> Vec<Value> {
    let mut parser = SseParser::new(1 << 20);
    parser.push(bytes);
    let mut events = Vec::new();
    while let Some(event) = parser.next_event().unwrap() {
        if !event.is_done() {
            events.push(serde_json::from_slice(event.data).unwrap());
        }
    }
    assert!(!parser.has_partial_event());
    events
}

fn append(target: &mut Value, more: &Value) {
    if let Some(more) = more.as_str() {
        *target = Value::String(target.as_str().unwrap_or_default().to_owned() + more);
    }
}

fn chat_of_stream(bytes: &[u8]) -> Value {
    let mut message = json!({"role": "assistant", "content": ""});
    for chunk in events(bytes) {
        let delta = &chunk["choices"][0]["delta"];
        for name in ["content", "reasoning_content", "reasoning"] {
            if !delta[name].is_null() {
                append(&mut message[name], &delta[name]);
            }
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if message["tool_calls"].is_null() {
                message["tool_calls"] = json!([]);
            }
            let calls = message["tool_calls"].as_array_mut().unwrap();
            if calls.len() == index {
                calls.push(json!({"type": "function", "function": {"arguments": ""}}));
            }
            if !call["id"].is_null() {
                calls[index]["id"] = call["id"].clone();
            }
            let function = &mut calls[index]["function"];
            if !call["function"]["name"].is_null() {
                function["name"] = call["function"]["name"].clone();
            }
            append(&mut function["arguments"], &call["function"]["arguments"]);
        }
    }
    message
}

fn messages_of_stream(bytes: &[u8]) -> Value {
    let mut blocks: Vec<Value> = Vec::new();
    let mut input = String::new();
    for event in events(bytes) {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                input.clear();
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let (block, delta) = (blocks.last_mut().unwrap(), &event["delta"]);
                for name in ["text", "thinking", "signature"] {
                    if !delta[name].is_null() {
                        append(&mut block[name], &delta[name]);
                    }
                }
                input.push_str(delta["partial_json"].as_str().unwrap_or_default());
            }
            "content_block_stop" => {
                let block = blocks.last_mut().unwrap();
                if block["type"] == "tool_use" {
                    let parsed = serde_json::from_str(&input);
                    block["input"] = parsed.unwrap_or_else(|_| Value::Object(Map::new()));
                }
            }
            "error" => panic!("{event}"),
            _ => {}
        }
    }
    json!({"role": "assistant", "content": blocks})
}
