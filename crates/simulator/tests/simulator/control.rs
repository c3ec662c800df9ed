//! Faults, pauses, aborts, cancellations and refusals.

use crate::support::{Client, events, fold, ids, start, start_with, with};
use futures_util::StreamExt;
use polar_simulator::{Fault, FaultChance, SimulatorConfig, Speed, Vocabulary};
use serde_json::{Value, json};
use std::time::Duration;

fn hello() -> Value {
    json!({
        "messages": [{"role": "user", "content": "hello"}],
        "return_token_ids": true,
        "logprobs": true,
    })
}

/// Asks with a fault and gives status and whatever came of the body.
async fn faulty(client: &Client, fault: &str, body: &Value) -> (u16, Result<String, String>) {
    let request = client.request("/v1/chat/completions", body).header("x-simulate-fault", fault);
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let mut text = String::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        match chunk {
            Ok(chunk) => text.push_str(&String::from_utf8_lossy(&chunk)),
            Err(_) => return (status, Err(text)),
        }
    }
    (status, Ok(text))
}

#[tokio::test]
async fn refusals_have_status_and_retry_after() {
    let client = start(SimulatorConfig::default()).await;
    let fault = "status=429,retry_after=2";
    let request =
        client.request("/v1/chat/completions", &hello()).header("x-simulate-fault", fault);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "2");
    let body: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!(body["error"]["code"], 429);
    assert_eq!(faulty(&client, "status=503", &hello()).await.0, 503);
    assert_eq!(faulty(&client, "nonsense", &hello()).await.0, 400);
    assert_eq!(client.simulator.stats().faults, 2);
}

#[tokio::test]
async fn who_is_taken_to_ask_is_kept_with_the_answer() {
    let policy = "
name: t
rules:
  - {name: busy, role: main, times: 1, when: {last: go}, fault: status=503}
  - {name: work, role: main, when: {last: go}, reply: {text: done}}
default: {text: nobody}
";
    let client = start_with(policy).await;
    for (said, id) in [("go", "a"), ("go", "b"), ("?", "c")] {
        let body = json!({"messages": [{"role": "user", "content": said}]});
        let request = client.request("/v1/chat/completions", &body).header("x-request-id", id);
        request.send().await.unwrap();
    }
    let answers = client.simulator.answers();
    let told: Vec<_> = answers
        .iter()
        .map(|a| (a.request_id.as_str(), a.rule.as_deref(), a.role.as_deref(), a.fault.is_some()))
        .collect();
    assert_eq!(
        told,
        [
            ("a", Some("busy"), Some("main"), true),
            ("b", Some("work"), Some("main"), false),
            ("c", None, None, false),
        ]
    );
}

#[tokio::test]
async fn a_server_that_is_stopped_cuts_its_replies() {
    let Client { simulator, http } = start(SimulatorConfig::default()).await;
    let body = with(&hello(), &json!({"stream": true})).to_string();
    let url = format!("{}/v1/chat/completions", simulator.url());
    let request = http.post(url).header("content-type", "application/json").body(body);
    let response = request.header("x-simulate-fault", "stall_after=3").send().await.unwrap();
    let mut chunks = response.bytes_stream();
    let mut text = String::new();
    while events(&text).0.len() < 3 {
        text.push_str(&String::from_utf8_lossy(&chunks.next().await.unwrap().unwrap()));
    }
    simulator.shutdown().await;
    let cut = async { while let Some(Ok(_)) = chunks.next().await {} };
    tokio::time::timeout(Duration::from_secs(30), cut).await.expect("the reply must break off");
}

#[tokio::test]
async fn a_cut_reply_ends_without_its_end() {
    let client = start(SimulatorConfig::default()).await;
    let streamed = with(&hello(), &json!({"stream": true}));
    let (status, body) = faulty(&client, "cut_after=5", &streamed).await;
    assert_eq!(status, 200);
    let text = body.expect_err("the connection must break");
    let (events, done) = events(&text);
    assert!(!done);
    let folded = fold(&events, 0);
    assert_eq!(ids(&folded["token_ids"]).len(), 5);
    assert!(folded["finish_reason"].is_null());
    assert!(faulty(&client, "cut_after=5", &hello()).await.1.is_err());
    client.until(|stats| stats.running == 0).await;
    assert_eq!(client.simulator.stats().finished, 0);
}

#[tokio::test]
async fn a_stalled_reply_stays_open_until_the_client_leaves() {
    let client = start(SimulatorConfig::default()).await;
    let streamed = with(&hello(), &json!({"stream": true}));
    let request = client.request("/v1/chat/completions", &streamed);
    let response = request.header("x-simulate-fault", "stall_after=3").send().await.unwrap();
    let mut chunks = response.bytes_stream();
    let mut text = String::new();
    while events(&text).0.len() < 4 {
        text.push_str(&String::from_utf8_lossy(&chunks.next().await.unwrap().unwrap()));
    }
    assert_eq!(ids(&fold(&events(&text).0, 0)["token_ids"]).len(), 3);
    assert_eq!(client.simulator.stats().running, 1);
    drop(chunks);
    client.until(|stats| stats.cancelled == 1 && stats.running == 0).await;
}

#[tokio::test]
async fn an_abort_keeps_what_was_sampled() {
    let client = start(SimulatorConfig::default()).await;
    let whole = client.chat(&hello()).await;
    let all = ids(&whole["choices"][0]["token_ids"]);
    let (_, text) = faulty(&client, "abort_after=4", &hello()).await;
    let reply: Value = serde_json::from_str(&text.unwrap()).unwrap();
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "abort");
    assert_eq!(ids(&choice["token_ids"]), all[..4]);
    assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), 4);
    assert_eq!(reply["usage"]["completion_tokens"], 4);
    let (_, text) =
        faulty(&client, "abort_after=4", &with(&hello(), &json!({"stream": true}))).await;
    let folded = fold(&events(&text.unwrap()).0, 0);
    assert_eq!(folded["finish_reason"], "abort");
    assert_eq!(ids(&folded["token_ids"]), all[..4]);
}

#[tokio::test]
async fn data_faults_spoil_what_they_name() {
    let client = start(SimulatorConfig::default()).await;
    for streamed in [false, true] {
        let body = with(&hello(), &json!({"stream": streamed}));
        let take = async |fault: &str| -> (Value, Value) {
            let text = faulty(&client, fault, &body).await.1.unwrap();
            if streamed {
                let events = events(&text).0;
                let folded = fold(&events, 0);
                (events[0]["prompt_token_ids"].clone(), folded)
            } else {
                let reply: Value = serde_json::from_str(&text).unwrap();
                let mut choice = reply["choices"][0].clone();
                choice["logprobs"] = choice["logprobs"]["content"].take();
                (reply["prompt_token_ids"].clone(), choice)
            }
        };
        let count = |value: &Value| value.as_array().map_or(0, Vec::len);
        let (prompt, choice) = take("missing_ids").await;
        assert!(prompt.is_null() && count(&choice["token_ids"]) == 0);
        assert!(count(&choice["logprobs"]) > 0);
        let (_, choice) = take("missing_logprobs").await;
        assert!(count(&choice["logprobs"]) == 0 && count(&choice["token_ids"]) > 0);
        let (_, choice) = take("wrong_counts").await;
        assert_eq!(count(&choice["logprobs"]) + 1, count(&choice["token_ids"]));
        let (_, choice) = take("out_of_vocabulary").await;
        let size = Vocabulary::load().unwrap().size();
        assert!(ids(&choice["token_ids"])[0] >= size);
    }
}

#[tokio::test]
async fn faults_happen_by_rule_and_by_chance() {
    let policy =
        "name: t\nrules: [{name: r, when: {last: boom}, fault: status=500}]\ndefault: {text: fine}";
    let client = start_with(policy).await;
    let boom = json!({"messages": [{"role": "user", "content": "boom"}]});
    assert_eq!(client.post("/v1/chat/completions", &boom).await.0, 500);
    client.chat(&hello()).await;

    let fault =
        Some(FaultChance { fault: "status=503".parse::<Fault>().unwrap(), probability: 0.5 });
    let client = start(SimulatorConfig { fault, seed: 3, ..SimulatorConfig::default() }).await;
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(client.post("/v1/chat/completions", &hello()).await.0);
    }
    assert!(statuses.contains(&200) && statuses.contains(&503), "{statuses:?}");
}

/// A reply of some thousand tokens that takes as long as the test lets it.
fn slow() -> SimulatorConfig {
    let speed = Speed { tokens_per_second: Some(200.0), ..Speed::default() };
    SimulatorConfig { speed, ..SimulatorConfig::default() }
}

fn endless() -> Value {
    with(&hello(), &json!({"ignore_eos": true, "max_tokens": 100_000}))
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_generation() {
    let client = start(slow()).await;
    for streamed in [false, true] {
        let before = client.simulator.stats().cancelled;
        let body = with(&endless(), &json!({"stream": streamed}));
        let request = client.request("/v1/chat/completions", &body);
        let asking = tokio::spawn(async move { request.send().await.unwrap().bytes().await });
        client.until(|stats| stats.running == 1).await;
        asking.abort();
        client.until(|stats| stats.running == 0 && stats.cancelled == before + 1).await;
    }
}

#[tokio::test]
async fn pause_abort_ends_what_runs_and_holds_what_comes() {
    let client = start(slow()).await;
    let request = client.request("/v1/chat/completions", &endless());
    let running = tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() });
    client.until(|stats| stats.running == 1).await;
    assert_eq!(client.post("/pause?mode=abort", &json!({})).await.1["status"], "paused");
    let reply: Value = serde_json::from_str(&running.await.unwrap()).unwrap();
    assert_eq!(reply["choices"][0]["finish_reason"], "abort");

    assert_eq!(client.get("/is_paused").await["is_paused"], true);
    let request =
        client.request("/v1/chat/completions", &with(&hello(), &json!({"max_tokens": 2})));
    let queued = tokio::spawn(async move { request.send().await.unwrap().status() });
    client.until(|stats| stats.requests == 2).await;
    assert_eq!(client.simulator.stats().running, 0);
    client.post("/resume", &json!({})).await;
    assert_eq!(queued.await.unwrap(), 200);
    assert_eq!(client.get("/is_paused").await["is_paused"], false);
}

#[tokio::test]
async fn pause_wait_returns_when_nothing_runs() {
    let client = start(slow()).await;
    let body = with(&hello(), &json!({"ignore_eos": true, "max_tokens": 40}));
    let request = client.request("/v1/chat/completions", &body);
    let running = tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() });
    client.until(|stats| stats.running == 1).await;
    client.post("/pause?mode=wait", &json!({})).await;
    let stats = client.simulator.stats();
    assert_eq!((stats.running, stats.finished, stats.tokens), (0, 1, 40));
    let reply: Value = serde_json::from_str(&running.await.unwrap()).unwrap();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(client.post("/pause?mode=nap", &json!({})).await.0, 400);
}

#[tokio::test]
async fn pause_keep_freezes_and_new_weights_sample_the_rest() {
    let client = start(slow()).await;
    let body = with(&hello(), &json!({"ignore_eos": true, "max_tokens": 60}));
    let request = client.request("/v1/chat/completions", &body);
    let running = tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() });
    client.until(|stats| stats.running == 1).await;
    client.post("/pause?mode=keep", &json!({})).await;
    client.post("/update_weight_version", &json!({"new_version": "step-1"})).await;
    client.post("/resume", &json!({})).await;
    let reply: Value = serde_json::from_str(&running.await.unwrap()).unwrap();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    let scores = |reply: &Value| -> Vec<f64> {
        let content = reply["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
        content.iter().map(|entry| entry["logprob"].as_f64().unwrap()).collect()
    };
    let mixed = scores(&reply);
    let new = scores(&client.chat(&body).await);
    client.post("/update_weight_version", &json!({"new_version": "default"})).await;
    let old = scores(&client.chat(&body).await);
    let switch = mixed.iter().zip(&old).take_while(|(a, b)| a == b).count();
    assert!(switch < 60);
    assert_eq!(mixed[switch..], new[switch..], "switched at {switch}");
}

#[tokio::test]
async fn abort_requests_ends_everything() {
    let client = start(slow()).await;
    let body = with(&endless(), &json!({"stream": true}));
    let request = client.request("/v1/chat/completions", &body);
    let running = tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() });
    client.until(|stats| stats.running == 1 && stats.tokens > 0).await;
    let (_, aborted) = client.post("/abort_requests", &json!({})).await;
    assert_eq!(aborted, json!({"status": "aborted", "aborted": 1}));
    let (events, done) = events(&running.await.unwrap());
    assert!(done);
    assert_eq!(fold(&events, 0)["finish_reason"], "abort");
}

#[tokio::test]
async fn refusals_read_like_vllms() {
    let config = SimulatorConfig { context_window: 100, ..SimulatorConfig::default() };
    let client = start(config).await;
    let long = "word ".repeat(300);
    let ids: Vec<u32> = vec![5; 120];
    let chat = "/v1/chat/completions";
    for (path, body, status, message, param) in [
        (
            chat,
            with(&hello(), &json!({"model": "nope"})),
            404,
            "The model `nope` does not exist. Valid aliases: simulated.",
            json!("model"),
        ),
        (
            chat,
            json!({"messages": [{"role": "user", "content": long}]}),
            400,
            "This model's maximum context length is 100 tokens.",
            json!("input_tokens"),
        ),
        (
            "/v1/completions",
            json!({"prompt": ids}),
            400,
            "However, your prompt contains 120 input tokens, which exceeds this limit even without any \
             output tokens. Please reduce the length of the input prompt.",
            json!("input_tokens"),
        ),
        (
            "/v1/completions",
            json!({"prompt": [5, 99999]}),
            400,
            "Token id 99999 is out of vocabulary",
            json!(null),
        ),
        (
            chat,
            with(&hello(), &json!({"max_tokens": 101})),
            400,
            "max_tokens=101 cannot be greater than max_model_len=100. Please request fewer output tokens.",
            json!("max_tokens"),
        ),
        (
            chat,
            with(&hello(), &json!({"tools": []})),
            400,
            "`tools` must not be an empty array.",
            json!("tools"),
        ),
        (
            chat,
            with(&hello(), &json!({"tool_choice": "auto"})),
            400,
            "When using `tool_choice`, `tools` must be set.",
            json!("tool_choice"),
        ),
        (
            chat,
            with(&hello(), &json!({"logprobs": false, "top_logprobs": 3})),
            400,
            "when using `top_logprobs`, `logprobs` must be set to true.",
            json!("top_logprobs"),
        ),
        (
            chat,
            with(&hello(), &json!({"stream_options": {"include_usage": true}})),
            400,
            "Stream options can only be defined when `stream=True`.",
            json!("stream_options"),
        ),
    ] {
        let (got, reply) = client.post(path, &body).await;
        assert_eq!(got, status, "{reply}");
        let error = &reply["error"];
        assert_eq!(error["code"], status);
        assert_eq!(error["param"], param, "{reply}");
        assert!(error["message"].as_str().unwrap().contains(message), "{reply}");
    }
    assert_eq!(client.post(chat, &json!({"messages": "x"})).await.0, 400);
    assert_eq!(client.post("/v1/nothing", &json!({})).await.0, 404);
    assert_eq!(client.get("/v1/models").await["data"][0]["max_model_len"], 100);
    assert_eq!(client.get("/version").await["version"], "0.32.0");
}

#[tokio::test]
async fn a_limit_that_does_not_fit_beside_the_prompt_is_lowered_or_refused() {
    let config = SimulatorConfig { context_window: 100, ..SimulatorConfig::default() };
    let older = start(SimulatorConfig { lowers_limits: false, ..config.clone() }).await;
    let now = start(config).await;
    let of_text = with(&hello(), &json!({"max_tokens": 100}));
    let of_ids = json!({"prompt": vec![5; 60], "max_tokens": 41});
    let table = [
        (
            "/v1/chat/completions",
            of_text,
            "However, you requested 100 output tokens and your prompt contains at least 1 input \
             tokens, for a total of at least 101 tokens.",
        ),
        (
            "/v1/completions",
            of_ids,
            "However, you requested 41 output tokens and your prompt contains 60 input tokens, \
             for a total of 101 tokens.",
        ),
    ];
    for (path, body, refusal) in table {
        let (status, reply) = now.post(path, &body).await;
        assert_eq!(status, 200, "{reply}");
        assert!(reply["usage"]["total_tokens"].as_u64().unwrap() <= 100, "{reply}");
        let (status, reply) = older.post(path, &body).await;
        assert_eq!((status, &reply["error"]["param"]), (400, &json!("input_tokens")), "{reply}");
        assert!(reply["error"]["message"].as_str().unwrap().contains(refusal), "{reply}");
    }
    let fits = json!({"prompt": vec![5; 60], "max_tokens": 40});
    assert_eq!(older.post("/v1/completions", &fits).await.0, 200);
}

#[tokio::test]
async fn requests_are_kept_for_tests_and_speed_is_kept() {
    let speed = Speed {
        first_token: Duration::from_millis(30),
        tokens_per_second: Some(500.0),
        tokens_per_chunk: 4,
    };
    let config = SimulatorConfig { speed, kept_requests: 2, ..SimulatorConfig::default() };
    let client = start(config).await;
    for name in ["a", "b", "c"] {
        let body = with(&hello(), &json!({"user": name, "max_tokens": 20}));
        let begun = std::time::Instant::now();
        let events = client.stream(&body).await;
        // Never faster than asked for; how much slower is the machine's affair.
        assert!(begun.elapsed() >= Duration::from_millis(30 + 19 * 2));
        assert_eq!(ids(&events[1]["choices"][0]["token_ids"]).len(), 4);
    }
    let seen = client.get("/simulator/requests").await;
    let users: Vec<&Value> = seen.as_array().unwrap().iter().map(|r| &r["body"]["user"]).collect();
    assert_eq!(users, ["b", "c"]);
    assert_eq!(seen[0]["path"], "/v1/chat/completions");
    let stats = client.get("/simulator/stats").await;
    assert_eq!((stats["requests"].as_u64(), stats["tokens"].as_u64()), (Some(3), Some(60)));
    let metrics = client.get("/metrics").await;
    assert!(
        metrics
            .as_str()
            .unwrap()
            .contains("vllm:request_success_total{model_name=\"simulated\"} 3.0")
    );
}
