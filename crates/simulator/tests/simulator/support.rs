//! A client for tests: plain requests, folded streams, and conditions waited for.

use polar_simulator::{Policy, SimulatorConfig, SimulatorHandle, serve};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Longest wait for anything in a test.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    pub(crate) simulator: SimulatorHandle,
    pub(crate) http: reqwest::Client,
}

pub(crate) async fn start(config: SimulatorConfig) -> Client {
    // Another test of the same process may have installed it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
    Client { simulator: serve(config).await.unwrap(), http }
}

pub(crate) async fn start_with(policy: &str) -> Client {
    let policy = Policy::from_yaml(policy).unwrap();
    start(SimulatorConfig { policy, ..SimulatorConfig::default() }).await
}

impl Client {
    pub(crate) fn request(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        let request = self.http.post(format!("{}{path}", self.simulator.url()));
        request.header("content-type", "application/json").body(body.to_string())
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.request(path, body).send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let url = format!("{}{path}", self.simulator.url());
        let text = self.http.get(url).send().await.unwrap().text().await.unwrap();
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    }

    /// A chat completion that must succeed.
    pub(crate) async fn chat(&self, body: &Value) -> Value {
        let (status, reply) = self.post("/v1/chat/completions", body).await;
        assert_eq!(status, 200, "{reply}");
        reply
    }

    /// The events of a streamed chat completion that must succeed.
    pub(crate) async fn stream(&self, body: &Value) -> Vec<Value> {
        let body = with(body, &json!({"stream": true}));
        let response = self.request("/v1/chat/completions", &body).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let text = response.text().await.unwrap();
        let (events, done) = events(&text);
        assert!(done, "no [DONE] in {text}");
        events
    }

    /// Waits until the counters satisfy `condition`.
    pub(crate) async fn until(&self, condition: impl Fn(&polar_simulator::Stats) -> bool) {
        let started = Instant::now();
        while !condition(&self.simulator.stats()) {
            assert!(started.elapsed() < PATIENCE, "{:?}", self.simulator.stats());
            tokio::task::yield_now().await;
        }
    }
}

/// Events of a stream, and whether it was complete.
pub(crate) fn events(text: &str) -> (Vec<Value>, bool) {
    let data = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let (done, events): (Vec<_>, Vec<_>) = data.partition(|data| *data == "[DONE]");
    (events.iter().filter_map(|data| serde_json::from_str(data).ok()).collect(), !done.is_empty())
}

/// `base` with the fields of `more`.
pub(crate) fn with(base: &Value, more: &Value) -> Value {
    let mut merged = base.as_object().unwrap().clone();
    merged.extend(more.as_object().unwrap().clone());
    Value::Object(merged)
}

/// A streamed choice put together to the shape of a choice in one piece.
pub(crate) fn fold(events: &[Value], index: u64) -> Value {
    let mut message = Map::new();
    let (mut ids, mut logprobs) = (Vec::new(), Vec::new());
    let (mut finish, mut stop) = (Value::Null, Value::Null);
    let mut calls: Vec<Value> = Vec::new();
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    for choice in choices.filter(|choice| choice["index"] == index) {
        for key in ["role", "content", "reasoning"] {
            if let Some(text) = choice["delta"][key].as_str() {
                let so_far = message.get(key).and_then(Value::as_str).unwrap_or_default();
                let joined = format!("{so_far}{text}");
                message.insert(key.to_owned(), joined.into());
            }
        }
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let place = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            if place == calls.len() {
                assert!(call["function"]["name"].is_string(), "the name comes first: {call}");
                calls.push(json!({
                    "id": call["id"],
                    "type": call["type"],
                    "function": {"name": call["function"]["name"], "arguments": ""},
                }));
            }
            if let Some(text) = call["function"]["arguments"].as_str() {
                let so_far = calls[place]["function"]["arguments"].as_str().unwrap().to_owned();
                calls[place]["function"]["arguments"] = format!("{so_far}{text}").into();
            }
        }
        ids.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
        logprobs.extend(choice["logprobs"]["content"].as_array().into_iter().flatten().cloned());
        if !choice["finish_reason"].is_null() {
            assert!(finish.is_null(), "two finish reasons");
            finish = choice["finish_reason"].clone();
            stop = choice["stop_reason"].clone();
        }
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    json!({
        "message": message, "token_ids": ids, "logprobs": logprobs,
        "finish_reason": finish, "stop_reason": stop,
    })
}

pub(crate) fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

pub(crate) fn weather_tool() -> Value {
    json!([{"type": "function", "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }}])
}
