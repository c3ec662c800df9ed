//! TensorRT-LLM's shapes, as its published source has them.

use crate::support::{events, start};
use polar_simulator::{EngineApi, Policy, SimulatorConfig};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const RENDER: &str = "/v1/chat/completions/render";

fn config() -> SimulatorConfig {
    let policy = "{name: p, default: {reasoning: Hm., text: Fine.}}";
    SimulatorConfig {
        policy: Policy::from_yaml(policy).unwrap(),
        speaks: EngineApi::TensorRtLlm,
        ..SimulatorConfig::default()
    }
}

fn question() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "q"}]})
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn ids_come_only_where_no_text_is_made() {
    let client = start(config()).await;
    let body = json!({"model": "m", "prompt": [5, 6, 7], "logprobs": 1, "max_tokens": 2});
    let (status, reply) = client.post(COMPLETIONS, &body).await;
    assert_eq!(status, 200, "{reply}");
    let choice = &reply["choices"][0];
    assert!(choice["token_ids"].is_null() && choice["text"] != "", "{reply}");
    let (_, reply) = client.post(COMPLETIONS, &with(body, json!({"detokenize": false}))).await;
    let choice = &reply["choices"][0];
    assert_eq!(choice["text"], "");
    assert_eq!(choice["token_ids"].as_array().unwrap().len(), 2);
    assert_eq!(choice["logprobs"]["token_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(reply["usage"]["prompt_tokens"], 3);
}

#[tokio::test]
async fn a_stop_token_is_told_only_where_it_is_asked_for() {
    let client = start(config()).await;
    let ask = async |more: Value| {
        let body = json!({"model": "m", "prompt": [5, 6, 7], "detokenize": false, "logprobs": 1});
        client.post(COMPLETIONS, &with(body, more)).await.1["choices"][0].clone()
    };
    let whole = ask(json!({})).await["token_ids"].clone();
    let second = &whole[1];
    let cut = ask(json!({"stop_token_ids": [second]})).await;
    assert_eq!(cut["token_ids"], json!([whole[0]]), "{cut}");
    let asked = json!({"stop_token_ids": [second], "include_stop_str_in_output": true});
    let kept = ask(asked).await;
    assert_eq!(kept["token_ids"], json!([whole[0], second]));
    assert_eq!(kept["stop_reason"], *second);
}

#[tokio::test]
async fn pieces_of_a_stream_have_new_ids_and_the_count_so_far() {
    let client = start(config()).await;
    let body = json!({
        "model": "m", "prompt": [5, 6, 7], "detokenize": false, "logprobs": 1, "max_tokens": 3,
        "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
    });
    let text = client.request(COMPLETIONS, &body).send().await.unwrap().text().await.unwrap();
    let (events, done) = events(&text);
    assert!(done);
    let counts: Vec<&Value> = events.iter().map(|e| &e["usage"]["completion_tokens"]).collect();
    assert_eq!(counts, [1, 2, 3, 3]);
    assert!(
        events[..3].iter().all(|e| e["choices"][0]["token_ids"].as_array().unwrap().len() == 1)
    );
    assert_eq!(events[3]["choices"], json!([]));
}

#[tokio::test]
async fn fields_that_it_does_not_know_are_refused() {
    let client = start(config()).await;
    let ids = json!({"model": "m", "prompt": [5]});
    for (path, body) in [
        (COMPLETIONS, with(ids.clone(), json!({"return_token_ids": true}))),
        (CHAT, with(question(), json!({"return_token_ids": true}))),
        (
            CHAT,
            with(
                question(),
                json!({"tools": [
                    {"type": "function", "function": {"name": "f", "cache": 1}},
                ]}),
            ),
        ),
    ] {
        let (status, refusal) = client.post(path, &body).await;
        assert_eq!(status, 400, "{refusal}");
        assert!(refusal["error"].as_str().unwrap().contains("extra_forbidden"), "{refusal}");
    }
    let (status, refusal) = client.post(COMPLETIONS, &with(ids, json!({"top_k": -1}))).await;
    assert_eq!((status, &refusal["object"], &refusal["code"]), (400, &json!("error"), &json!(400)));
}

#[tokio::test]
async fn chats_tell_no_ids_and_how_long_their_prompt_was() {
    let client = start(SimulatorConfig { renders: true, ..config() }).await;
    let (_, reply) = client.post(CHAT, &question()).await;
    let message = &reply["choices"][0]["message"];
    assert_eq!(message["content"].as_str().unwrap().trim(), "Fine.");
    assert_eq!(message["reasoning_content"].as_str().unwrap().trim(), "Hm.");
    assert!(!reply.to_string().contains("token_ids\":["), "{reply}");
    let (_, rendered) = client.post(RENDER, &question()).await;
    let length = rendered["token_ids"].as_array().unwrap().len();
    assert_eq!(reply["usage"]["prompt_tokens"], length);
    let unset = start(config()).await;
    assert_eq!(unset.post(RENDER, &question()).await.0, 404);
}
