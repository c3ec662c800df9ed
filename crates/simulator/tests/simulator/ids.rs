//! Ids in and ids out: the same context gives the same reply and the same numbers, by whichever way
//! it came.

use crate::support::{Client, events, ids, start, start_with, weather_tool, with};
use polar_simulator::SimulatorConfig;
use serde_json::{Value, json};

const GENERATE: &str = "/inference/v1/generate";
const COMPLETIONS: &str = "/v1/completions";

const POLICY: &str = r#"
name: t
rules:
  - name: call
    when: {tools: [get_weather], last_role: user}
    reply:
      reasoning: Let me look it up.
      text: One moment.
      tool_calls: [{name: get_weather, arguments: {city: Oslo}}]
  - name: answer
    when: {last_role: tool}
    reply: {text: "It is {{ tool_result }}, grüß dich 🎉."}
default: {reasoning: Easy., text: "one two three four five"}
"#;

/// Sampled ids and the logprob of each.
type Sampled = (Vec<u32>, Vec<f64>);

fn numbers(list: &Value, key: &str) -> Vec<f64> {
    list.as_array().into_iter().flatten().map(|entry| entry[key].as_f64().unwrap()).collect()
}

/// Of one choice or chunk, whichever place it is of.
fn sampled(choice: &Value) -> Sampled {
    let logprobs = &choice["logprobs"];
    let scored = match logprobs["token_logprobs"].as_array() {
        Some(list) => list.iter().map(|logprob| logprob.as_f64().unwrap()).collect(),
        None => numbers(&logprobs["content"], "logprob"),
    };
    (ids(&choice["token_ids"]), scored)
}

fn body(path: &str, prompt: &[u32], sampling: &Value) -> Value {
    match path {
        GENERATE => json!({
            "token_ids": prompt, "sampling_params": with(&json!({"logprobs": 0}), sampling),
        }),
        _ => with(
            &json!({"prompt": prompt, "logprobs": 0, "return_token_ids": true, "max_tokens": 500}),
            sampling,
        ),
    }
}

async fn whole(client: &Client, path: &str, body: &Value) -> Value {
    let (status, reply) = client.post(path, body).await;
    assert_eq!(status, 200, "{reply}");
    reply
}

async fn streamed(client: &Client, path: &str, body: &Value) -> Vec<Value> {
    let more = json!({"stream": true, "stream_options": {"include_usage": true}});
    let response = client.request(path, &with(body, &more)).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let (events, done) = events(&response.text().await.unwrap());
    assert!(done);
    events
}

/// What a stream says in all, and how it ends.
fn folded(events: &[Value]) -> (Sampled, Value) {
    let choices: Vec<&Value> =
        events.iter().flat_map(|event| event["choices"].as_array().unwrap()).collect();
    let mut all = Sampled::default();
    for choice in &choices {
        let (ids, logprobs) = sampled(choice);
        all.0.extend(ids);
        all.1.extend(logprobs);
    }
    ((all.0, all.1), choices.last().unwrap()["finish_reason"].clone())
}

#[tokio::test]
async fn a_context_gives_one_reply_by_whichever_way_it_comes() {
    let client = start_with(POLICY).await;
    let hello = json!([{"role": "user", "content": "Weather?"}]);
    let call = json!({"role": "assistant", "content": "", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}},
    ]});
    let result = json!([hello[0], call, {"role": "tool", "tool_call_id": "c", "content": "sunny"}]);
    let no_thinking = json!({"enable_thinking": false});
    for asked in [
        json!({"messages": hello}),
        json!({"messages": hello, "tools": weather_tool()}),
        json!({"messages": result, "tools": weather_tool()}),
        json!({"messages": hello, "chat_template_kwargs": no_thinking}),
    ] {
        let asked = with(&asked, &json!({"return_token_ids": true, "logprobs": true}));
        let chat = client.chat(&asked).await;
        let prompt = ids(&chat["prompt_token_ids"]);
        let expected = sampled(&chat["choices"][0]);
        assert!(!expected.0.is_empty() && expected.0.len() == expected.1.len());
        for path in [GENERATE, COMPLETIONS] {
            let reply = whole(&client, path, &body(path, &prompt, &json!({}))).await;
            assert_eq!(sampled(&reply["choices"][0]), expected, "{path}");
            assert_eq!(reply["usage"]["completion_tokens"], expected.0.len());
            assert_eq!(reply["choices"][0]["finish_reason"], "stop");
            let events = streamed(&client, path, &body(path, &prompt, &json!({}))).await;
            let (tokens, finish) = folded(&events);
            assert_eq!(tokens, expected, "{path}");
            assert_eq!(finish, "stop");
            let usage = &events.last().unwrap()["usage"];
            assert_eq!(usage["completion_tokens"], expected.0.len());
            assert_eq!(usage["prompt_tokens"], prompt.len());
        }
        // And each is what the same ids score as part of a prompt.
        let sequence: Vec<u32> = prompt.iter().chain(&expected.0).copied().collect();
        let question = json!({"prompt": sequence, "max_tokens": 1, "prompt_logprobs": 0});
        let scores = whole(&client, COMPLETIONS, &question).await;
        for (place, (id, logprob)) in expected.0.iter().zip(&expected.1).enumerate() {
            let entry = &scores["choices"][0]["prompt_logprobs"][prompt.len() + place];
            assert_eq!(entry[id.to_string()]["logprob"].as_f64(), Some(*logprob));
        }
    }
}

#[tokio::test]
async fn generate_tells_ids_ranks_and_weights() {
    let client = start_with(POLICY).await;
    let question = body(GENERATE, &[5, 6, 7], &json!({"max_tokens": 4, "logprobs": 2}));
    let question = with(&question, &json!({"return_token_ids": true, "request_id": "mine"}));
    let reply = whole(&client, GENERATE, &question).await;
    assert_eq!(reply["request_id"], "generate-tokens-mine");
    assert_eq!(reply["prompt_token_ids"], json!([5, 6, 7]));
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let span = json!([{"version": "default", "start": 0, "end": 4}]);
    assert_eq!(choice["weight_versions"], span);
    let entries = choice["logprobs"]["content"].as_array().unwrap();
    for (entry, id) in entries.iter().zip(choice["token_ids"].as_array().unwrap()) {
        assert_eq!((&entry["token_id"], &entry["top_logprobs"][0]["token_id"]), (id, id));
        assert!(entry["rank"].as_u64().unwrap() >= 1);
    }
    let events = streamed(&client, GENERATE, &question).await;
    assert_eq!(events[0]["prompt_token_ids"], json!([5, 6, 7]));
    let with_spans: Vec<&Value> = events
        .iter()
        .filter_map(|event| event["choices"][0].get("weight_versions"))
        .filter(|spans| !spans.is_null())
        .collect();
    assert_eq!(with_spans, [&span], "on the last chunk only");
}

#[tokio::test]
async fn a_stop_ends_a_reply_of_ids() {
    let client = start_with(POLICY).await;
    for path in [GENERATE, COMPLETIONS] {
        let all = whole(&client, path, &body(path, &[5, 6], &json!({}))).await;
        let (all, _) = sampled(&all["choices"][0]);
        let reply = whole(&client, path, &body(path, &[5, 6], &json!({"stop": ["ee fo"]}))).await;
        assert_eq!(reply["choices"][0]["stop_reason"], "ee fo");
        let (ids, logprobs) = sampled(&reply["choices"][0]);
        assert!(ids.len() < all.len() && all.starts_with(&ids) && ids.len() == logprobs.len());
        let stop = json!({"stop_token_ids": [all[3]]});
        let reply = whole(&client, path, &body(path, &[5, 6], &stop)).await;
        assert_eq!(reply["choices"][0]["stop_reason"], all[3]);
    }
}

#[tokio::test]
async fn what_cannot_be_generated_from_is_refused() {
    let client = start(SimulatorConfig { context_window: 100, ..SimulatorConfig::default() }).await;
    let refused = async |body: &Value, words: &str| {
        let (status, reply) = client.post(GENERATE, body).await;
        assert_eq!(status, 400, "{reply}");
        assert!(reply["error"].to_string().contains(words), "{reply}");
    };
    refused(&body(GENERATE, &[9_999_999], &json!({})), "out of vocabulary").await;
    refused(&body(GENERATE, &[5; 101], &json!({})), "maximum model length of 100").await;
    refused(&body(GENERATE, &[], &json!({})), "at least 1 item").await;
    refused(&json!({"token_ids": [5]}), "sampling_params").await;
    // More than fits is lowered, not refused.
    let most = json!({"max_tokens": 1000, "ignore_eos": true});
    let reply = whole(&client, GENERATE, &body(GENERATE, &[5; 90], &most)).await;
    assert_eq!(reply["usage"]["completion_tokens"], 10);
}

#[tokio::test]
async fn without_the_switch_there_is_no_place_for_ids_alone() {
    let config = SimulatorConfig { scale_out: false, ..SimulatorConfig::default() };
    let client = start(config).await;
    let (status, reply) = client.post(GENERATE, &body(GENERATE, &[5], &json!({}))).await;
    assert_eq!(status, 403);
    assert_eq!(reply["error"]["type"], "PermissionDeniedError");
}

#[tokio::test]
async fn faults_happen_to_ids_as_well() {
    let client = start_with(POLICY).await;
    for path in [GENERATE, COMPLETIONS] {
        let ask = async |fault: &str, stream: bool| {
            let body = with(&body(path, &[5, 6], &json!({})), &json!({"stream": stream}));
            client.request(path, &body).header("x-simulate-fault", fault).send().await.unwrap()
        };
        for stream in [false, true] {
            let text = ask("missing_ids", stream).await.text().await.unwrap();
            assert!(text.contains(r#""token_ids":null"#), "{text}");
            let text = ask("missing_logprobs", stream).await.text().await.unwrap();
            assert!(text.contains(r#""logprobs":null"#), "{text}");
            assert!(ask("cut_after=2", stream).await.text().await.is_err(), "{path} {stream}");
            assert_eq!(ask("status=429", stream).await.status(), 429);
        }
        let text = ask("abort_after=2", true).await.text().await.unwrap();
        assert!(text.contains(r#""finish_reason":"abort""#), "{text}");
    }
}
