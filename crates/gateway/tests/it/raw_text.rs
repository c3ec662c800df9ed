//! An engine that gives raw text or ids, with Polar's parsers, beside one that parses itself:
//! harnesses get the same from all, in every dialect.

use crate::{Rig, dialects, say, simulated_model, within};
use polar_engine::{EngineOptions, ParserChoice, ParserOptions};
use polar_simulator::{Policy, SimulatorConfig, SimulatorHandle};
use serde_json::{Value, json};

const POLICY: &str = r#"
name: calls
rules:
  - name: two calls
    when: {instruction: two calls}
    reply:
      reasoning: I think of <b>.
      text: Let me look.
      tool_calls:
        - name: look
          arguments: {path: "src/grüße 漢字", deep: {"a": [1, null, "</x>"]}}
        - name: now
          arguments: {}
  - name: odd spacing
    when: {instruction: odd spacing}
    reply:
      raw: "<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"path\" :\"a\\u0062\",\n  \"n\": 1.0}}\n</tool_call>"
  - name: broken
    when: {instruction: broken}
    reply:
      raw: "<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"path\": }}\n</tool_call>"
  - name: nameless
    when: {instruction: nameless}
    reply:
      raw: "<think>\nHm.\n</think>\n\nSo <tool_call>\n{look}\n</tool_call>"
default:
  text: Nothing.
"#;

/// Who takes replies apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parsed {
    ByEngine,
    /// Of the text that the engine gives.
    HereOfText,
    /// Of the ids that it gives.
    HereOfIds,
}

async fn before_simulator(parsed: Parsed) -> (Rig, SimulatorHandle) {
    before(parsed, POLICY).await
}

/// A gateway before an engine that replies by a policy.
pub(crate) async fn before(parsed: Parsed, policy: &str) -> (Rig, SimulatorHandle) {
    let policy = Policy::from_yaml(policy).unwrap();
    let parses = parsed == Parsed::ByEngine;
    let config = SimulatorConfig {
        policy,
        parse_reasoning: parses,
        parse_tools: parses,
        ..SimulatorConfig::default()
    };
    let auto =
        ParserOptions { tools: Some(ParserChoice::Auto), reasoning: Some(ParserChoice::Auto) };
    let parsers = if parses { ParserOptions::default() } else { auto };
    let token_mode = (parsed == Parsed::HereOfIds).then(simulated_model);
    Rig::before_simulator(config, EngineOptions { parsers, token_mode, ..Default::default() }).await
}

/// The same two tools in each dialect.
pub(crate) fn offer(path: &str, body: &mut Value) {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}});
    let tools = ["look", "now"].map(|name| match path {
        "/v1/messages" => json!({"name": name, "input_schema": schema}),
        "/v1/responses" => json!({"type": "function", "name": name, "parameters": schema}),
        "/v1/chat/completions" => {
            json!({"type": "function", "function": {"name": name, "parameters": schema}})
        }
        _ => json!({"name": name, "parameters": schema}),
    });
    crate::limit(body, 1000);
    body["tools"] = match path.starts_with("/v1beta") {
        true => json!([{"functionDeclarations": tools}]),
        false => json!(tools),
    };
}

/// All JSON of a body, whole or as a stream of events.
pub(crate) fn documents(body: &str) -> Vec<Value> {
    match serde_json::from_str(body) {
        Ok(whole) => vec![whole],
        Err(_) => {
            let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
            data.filter(|data| *data != "[DONE]")
                .map(|data| serde_json::from_str(data).unwrap())
                .collect()
        }
    }
}

/// How many tokens are said to be reasoning.
fn thought(told: &str) -> Option<u64> {
    const PLACES: [&str; 4] = [
        "/usage/completion_tokens_details/reasoning_tokens",
        "/usage/output_tokens_details/reasoning_tokens",
        "/response/usage/output_tokens_details/reasoning_tokens",
        "/usageMetadata/thoughtsTokenCount",
    ];
    documents(told).into_iter().rev().find_map(|document| {
        PLACES.iter().find_map(|place| document.pointer(place).and_then(Value::as_u64))
    })
}

/// The calls a harness reads: names, and arguments as text.
pub(crate) fn calls(path: &str, body: &str) -> Vec<(String, String)> {
    let mut calls: Vec<(String, String)> = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for document in documents(body) {
        if path == "/v1/chat/completions" {
            let choice = &document["choices"][0];
            let told = [&choice["message"], &choice["delta"]];
            let told = told.iter().filter_map(|message| message["tool_calls"].as_array());
            for call in told.flatten() {
                let function = &call["function"];
                if function["name"].is_string() {
                    calls.push((text(&function["name"]), String::new()));
                }
                calls.last_mut().unwrap().1.push_str(&text(&function["arguments"]));
            }
        } else if path == "/v1/messages" {
            let blocks = document["content"].as_array().into_iter().flatten();
            let blocks = blocks.chain([&document["content_block"]]);
            for block in blocks.filter(|block| block["type"] == "tool_use") {
                let input = block["input"].as_object().unwrap();
                let whole = document["type"] == "message";
                let input = if whole { json!(input).to_string() } else { String::new() };
                calls.push((text(&block["name"]), input));
            }
            if document["delta"]["type"] == "input_json_delta" {
                calls.last_mut().unwrap().1.push_str(&text(&document["delta"]["partial_json"]));
            }
        } else if path == "/v1/responses" {
            let output =
                document["output"].as_array().or(document["response"]["output"].as_array());
            let last = ["response.completed", "response.incomplete"];
            let is_last = document["type"].as_str().is_some_and(|kind| last.contains(&kind));
            let complete = document["type"].is_null() || is_last;
            for item in output.into_iter().flatten().filter(|_| complete) {
                if item["type"] == "function_call" {
                    calls.push((text(&item["name"]), text(&item["arguments"])));
                }
            }
        } else {
            let parts = document["candidates"][0]["content"]["parts"].as_array();
            let told = parts.into_iter().flatten().filter_map(|part| part.get("functionCall"));
            calls.extend(told.map(|call| {
                (text(&call["name"]), call.get("args").unwrap_or(&json!({})).to_string())
            }));
        }
    }
    calls
}

fn parsed(calls: &[(String, String)]) -> Vec<(&str, Value)> {
    let parse = |text: &str| serde_json::from_str(text).unwrap();
    calls.iter().map(|(name, arguments)| (name.as_str(), parse(arguments))).collect()
}

pub(crate) async fn ask(rig: &Rig, secret: &str, path: &str, body: &Value) -> String {
    let response = within("the reply", rig.post(path, secret, body).send()).await.unwrap();
    assert_eq!(response.status(), 200);
    within("the body", response.text()).await.unwrap()
}

#[tokio::test]
async fn a_raw_engine_and_one_with_parsers_give_the_same_calls_in_every_dialect() {
    same_as_by_engine(Parsed::HereOfText).await;
}

#[tokio::test]
async fn token_mode_and_an_engine_with_parsers_give_the_same_calls_in_every_dialect() {
    same_as_by_engine(Parsed::HereOfIds).await;
}

async fn same_as_by_engine(parsed_here: Parsed) {
    let (raw, raw_engine) = before_simulator(parsed_here).await;
    let (own, _own_engine) = before_simulator(Parsed::ByEngine).await;
    let (raw_session, own_session) = (raw.open("raw"), own.open("own"));
    for instruction in ["two calls", "odd spacing"] {
        for stream in [false, true] {
            for (path, mut body) in dialects(stream) {
                offer(path, &mut body);
                say(&mut body, instruction.to_owned());
                let from_raw = ask(&raw, raw_session.secret(), path, &body).await;
                let from_own = ask(&own, own_session.secret(), path, &body).await;
                assert!(!from_raw.contains("tool_call>"), "{path}: {from_raw}");
                let (given, expected) = (calls(path, &from_raw), calls(path, &from_own));
                assert!(!expected.is_empty(), "{path}: {from_own}");
                assert_eq!(parsed(&given), parsed(&expected), "{path} {stream}");
                if parsed_here == Parsed::HereOfIds {
                    let [here, there] = [&from_raw, &from_own].map(|told| thought(told));
                    assert_eq!(here, there, "{path} {stream}: {from_raw}");
                    // Chat's streams tell usage where it is asked for, Anthropic counts no reasoning.
                    let tells = path != "/v1/messages" && !(stream && path.contains("/chat/"));
                    assert!(!tells || here > Some(0), "{path}: {from_raw}");
                }
                if instruction == "odd spacing" && path != "/v1/messages" && !path.contains("beta")
                {
                    assert_eq!(given[0].1, "{\"path\" :\"a\\u0062\",\n  \"n\": 1.0}", "{path}");
                }
            }
        }
    }
    raw_session.close().unwrap();
    own_session.close().unwrap();
    let (raw_record, own_record) = (raw.recorded("raw"), own.recorded("own"));
    assert_eq!(raw_record.calls().len(), 16);
    for (from_raw, from_own) in raw_record.calls().iter().zip(own_record.calls()) {
        let prompts = (raw_record.prompt_ids(from_raw), own_record.prompt_ids(from_own));
        assert!(prompts.0.is_some());
        assert_eq!(prompts.0, prompts.1, "the tools are in the prompt");
        assert_eq!(raw_record.sampled_ids(from_raw), own_record.sampled_ids(from_own));
        assert_eq!(from_raw.logprobs, from_own.logprobs);
        assert_eq!(from_raw.meta.finish_reason, "tool_calls");
        let replies = (raw_record.reply(from_raw), own_record.reply(from_own));
        assert_eq!(replies.0["reasoning_content"], replies.1["reasoning_content"]);
        assert_eq!(
            from_raw.meta.extra["parsers"],
            json!({"tools": "hermes", "reasoning": "qwen3"})
        );
    }
    drop(raw_engine);
}

#[tokio::test]
async fn a_malformed_call_is_told_as_it_is_and_recorded() {
    malformed(Parsed::HereOfText).await;
    malformed(Parsed::HereOfIds).await;
}

async fn malformed(parsed: Parsed) {
    let (rig, _engine) = before_simulator(parsed).await;
    let session = rig.open("s");
    for stream in [false, true] {
        let (path, mut body) = dialects(stream).into_iter().nth(1).unwrap();
        offer(path, &mut body);
        say(&mut body, "broken".to_owned());
        let told = ask(&rig, session.secret(), path, &body).await;
        assert_eq!(calls(path, &told), [("look".to_owned(), "{\"path\": }".to_owned())]);
        say(&mut body, "nameless".to_owned());
        let told = ask(&rig, session.secret(), path, &body).await;
        assert_eq!(calls(path, &told), []);
        assert!(told.contains("look}"), "{told}");
    }
    session.close().unwrap();
    let recorded = rig.recorded("s");
    for pair in recorded.calls().chunks(2) {
        let (broken, nameless) = (&pair[0].meta.extra, &pair[1].meta.extra);
        assert_eq!(broken["malformed_calls"], json!([0]));
        assert_eq!(
            broken["parse_faults"],
            json!([{
                "index": 0, "name": "look", "fault": "not_json",
                "raw": "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"path\": }}\n</tool_call>",
            }])
        );
        assert_eq!(
            nameless["parse_faults"],
            json!([{
                "index": null, "name": null, "fault": "unexpected",
                "raw": "<tool_call>\n{look}\n</tool_call>",
            }])
        );
        assert_eq!(pair[1].meta.finish_reason, "stop");
    }
}

#[tokio::test]
async fn without_tools_a_call_is_text_and_reasoning_is_parsed() {
    without_tools(Parsed::HereOfText).await;
    without_tools(Parsed::HereOfIds).await;
}

async fn without_tools(parsed: Parsed) {
    let (rig, _engine) = before_simulator(parsed).await;
    let session = rig.open("s");
    for stream in [false, true] {
        for (path, mut body) in dialects(stream) {
            say(&mut body, "odd spacing".to_owned());
            let told = ask(&rig, session.secret(), path, &body).await;
            assert_eq!(calls(path, &told), [], "{path}");
            assert!(!told.contains("think>"), "{path}: {told}");
        }
    }
    session.close().unwrap();
    let recorded = rig.recorded("s");
    for call in recorded.calls() {
        let reply = recorded.reply(call);
        assert_eq!(call.meta.finish_reason, "stop");
        assert_eq!(reply["reasoning_content"], "\nHm.\n");
        let said = reply["content"].as_str().unwrap();
        assert!(said.contains("<tool_call>\n{\"name\": \"look\""), "{said}");
    }
}
