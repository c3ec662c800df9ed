//! What the probe refuses, and what it says to change.

use crate::fake_engine::{Answer, Asked, FakeEngine, fixture, recorded};
use crate::vllm::pages;
use polar_engine::{EngineKind, EngineOptions, Outcome, ProbeError, ProbeReport, TokenModeOptions};
use serde_json::{Value, json};

/// A vLLM whose whole and streamed replies have been tampered with.
async fn tampered(tamper: fn(&mut Value)) -> FakeEngine {
    FakeEngine::start(move |asked| {
        if asked.path != "/v1/chat/completions" {
            return pages(asked);
        }
        if asked.body["logit_bias"].get("-1").is_some() {
            return Answer::Json(400, fixture("vllm/no_such_id.json"));
        }
        if asked.streams() {
            return Answer::Stream(tampered_stream(&fixture("vllm/tool.sse"), tamper));
        }
        let mut reply: Value = serde_json::from_str(&fixture("vllm/text.json")).unwrap();
        tamper(&mut reply);
        Answer::json(reply)
    })
    .await
}

fn tampered_stream(recorded: &str, tamper: fn(&mut Value)) -> String {
    let mut out = String::new();
    for data in recorded.split("\n\n").filter_map(|event| event.strip_prefix("data: ")) {
        let data = match serde_json::from_str::<Value>(data) {
            Ok(mut chunk) => {
                tamper(&mut chunk);
                chunk.to_string()
            }
            Err(_) => data.to_owned(),
        };
        out.push_str(&format!("data: {data}\n\n"));
    }
    out
}

async fn refusal(tamper: fn(&mut Value)) -> ProbeReport {
    let server = tampered(tamper).await;
    match polar_engine::probe(&server.url, EngineOptions::default()).await {
        Err(ProbeError::Unfit(report)) => *report,
        Err(error) => panic!("{error}"),
        Ok((_, report)) => panic!("passed: {report:?}"),
    }
}

fn failed(report: &ProbeReport, name: &str) -> bool {
    let check = report.checks.iter().find(|check| check.name == name).unwrap();
    assert_eq!(check.outcome == Outcome::Failed, check.advice.is_some(), "{check:?}");
    check.outcome == Outcome::Failed
}

#[tokio::test]
async fn promise_3_an_engine_without_prompt_ids_is_refused() {
    let report = refusal(|reply| reply["prompt_token_ids"] = Value::Null).await;
    assert!(failed(&report, "whole reply: prompt ids"));
    assert!(failed(&report, "streamed reply: prompt ids"));
    assert!(!failed(&report, "whole reply: sampled ids"));
    let message = ProbeError::Unfit(Box::new(report)).to_string();
    assert!(message.contains("return_token_ids") && message.contains("update vLLM"), "{message}");
}

#[tokio::test]
async fn promise_3_an_engine_without_sampled_ids_is_refused() {
    let report = refusal(|reply| {
        if let Some(choice) = reply["choices"].get_mut(0) {
            choice["token_ids"] = Value::Null;
        }
    })
    .await;
    assert!(failed(&report, "whole reply: sampled ids"));
    assert!(failed(&report, "streamed reply: sampled ids"));
}

#[tokio::test]
async fn promise_3_an_engine_that_loses_ids_of_a_stream_is_refused() {
    // What some versions do where a parser holds text back.
    let report = refusal(|reply| {
        if let Some(choice) = reply["choices"].get_mut(0)
            && choice["delta"] == json!({})
        {
            choice["token_ids"] = Value::Null;
        }
    })
    .await;
    assert!(!failed(&report, "whole reply: sampled ids"));
    assert!(failed(&report, "streamed reply: sampled ids"));
}

#[tokio::test]
async fn promise_3_an_engine_without_logprobs_is_refused() {
    let report = refusal(|reply| {
        if let Some(choice) = reply["choices"].get_mut(0) {
            choice["logprobs"] = Value::Null;
        }
    })
    .await;
    assert!(failed(&report, "whole reply: logprobs"));
    assert!(failed(&report, "streamed reply: logprobs"));
}

#[tokio::test]
async fn promise_3_logits_are_not_taken_for_logprobs() {
    let report = refusal(|reply| {
        if let Some(entries) = reply["choices"].get_mut(0) {
            for entry in entries["logprobs"]["content"].as_array_mut().into_iter().flatten() {
                entry["logprob"] = json!(12.5);
            }
        }
    })
    .await;
    assert!(failed(&report, "whole reply: logprobs"));
}

#[tokio::test]
async fn an_engine_that_refuses_tools_is_usable_with_a_warning() {
    let server = FakeEngine::start(|asked| {
        let message = r#"{"error":{"message":"\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set"}}"#;
        match asked.path.as_str() {
            "/v1/chat/completions" if asked.body.get("tools").is_some() => {
                Answer::Json(400, message.to_owned())
            }
            "/v1/chat/completions" if asked.body["logit_bias"].get("-1").is_some() => {
                Answer::Json(400, fixture("vllm/no_such_id.json"))
            }
            "/v1/chat/completions" if asked.streams() => Answer::Stream(fixture("vllm/text.sse")),
            "/v1/chat/completions" => Answer::json(fixture("vllm/text.json")),
            _ => pages(asked),
        }
    })
    .await;
    let (_, report) = polar_engine::probe(&server.url, EngineOptions::default()).await.unwrap();
    let tools = report.checks.iter().find(|check| check.name == "tools").unwrap();
    assert_eq!(tools.outcome, Outcome::Warning);
    let advice = tools.advice.as_ref().unwrap();
    assert!(advice.contains("--enable-auto-tool-choice"), "{advice}");
    assert!(advice.contains("--tool-parser auto"), "{advice}");
}

#[tokio::test]
async fn the_meaning_of_logprobs_is_measured() {
    fn forced(logprob: f64) -> impl Fn(&Asked) -> Answer {
        move |asked| {
            if asked.path != "/v1/chat/completions" {
                return pages(asked);
            }
            match asked.body["logit_bias"].as_object().map(|bias| bias.keys().next().unwrap()) {
                Some(id) if id == "-1" => Answer::Json(400, fixture("vllm/no_such_id.json")),
                Some(id) => Answer::json(json!({
                    "choices": [{
                        "message": {"content": "x"}, "finish_reason": "length",
                        "token_ids": [id.parse::<u32>().unwrap()],
                        "logprobs": {"content": [{"logprob": logprob}]},
                    }],
                    "prompt_token_ids": [1],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1},
                })),
                None if asked.streams() => Answer::Stream(fixture("vllm/tool.sse")),
                None => Answer::json(fixture("vllm/text.json")),
            }
        }
    }
    for (logprob, mode) in [(-7.8, "raw"), (0.0, "processed")] {
        let server = FakeEngine::start(forced(logprob)).await;
        let engine = crate::fake_engine::connect(&server).await;
        assert_eq!(engine.info().logprob_mode, mode);
    }
}

#[tokio::test]
async fn a_model_that_is_not_served_is_named_beside_those_that_are() {
    let server = recorded("vllm", pages).await;
    let options = EngineOptions { model: Some("other".to_owned()), ..EngineOptions::default() };
    let error = polar_engine::connect(&server.url, options).await.err().unwrap().to_string();
    assert!(error.contains("`other`") && error.contains("polar-tiny"), "{error}");
}

#[tokio::test]
async fn something_that_is_no_engine_is_refused() {
    let server = FakeEngine::start(|_| Answer::missing()).await;
    let error = polar_engine::connect(&server.url, EngineOptions::default()).await.err().unwrap();
    assert!(error.to_string().contains("no OpenAI-style inference server"), "{error}");
    let server = FakeEngine::start(|asked| match asked.path.as_str() {
        "/v1/models" => Answer::json(json!({"data": [{"id": "m", "owned_by": "someone"}]})),
        _ => Answer::missing(),
    })
    .await;
    let error = polar_engine::connect(&server.url, EngineOptions::default()).await.err().unwrap();
    assert!(error.to_string().contains("say which one it is with --engine-kind"), "{error}");
}

#[tokio::test]
async fn an_engine_under_another_name_is_known_by_its_pages() {
    let server = recorded("vllm", |asked| match asked.path.as_str() {
        "/v1/models" => Answer::json(json!({"data": [{"id": "polar-tiny", "owned_by": "router"}]})),
        _ => pages(asked),
    })
    .await;
    assert_eq!(crate::fake_engine::connect(&server).await.info().kind, EngineKind::Vllm);
}

#[tokio::test]
async fn an_engine_that_is_not_the_one_that_was_named_is_told_apart_from_an_old_one() {
    for (name, kind) in [("sglang", EngineKind::Sglang), ("llamacpp", EngineKind::LlamaCpp)] {
        let server = recorded("vllm", pages).await;
        let options = EngineOptions { kind: Some(kind), ..EngineOptions::default() };
        let error = polar_engine::connect(&server.url, options).await.err().unwrap();
        let ProbeError::OtherKind { asked, answers, .. } = &error else { panic!("{error}") };
        assert_eq!((*asked, *answers), (kind, EngineKind::Vllm), "{name}");
        let said = error.to_string();
        assert!(said.contains("leave --engine-kind out") && said.contains("vLLM"), "{said}");
        assert!(!said.contains("update"), "{said}");
    }
}

/// Where token mode looks for the model's files when nobody gives them, and what it says of that.
#[tokio::test]
async fn token_mode_says_where_it_has_looked_for_the_models_files() {
    let beside = tempfile::tempdir().unwrap();
    let file = beside.path().join("model.gguf").to_string_lossy().into_owned();
    let refusal = async |model_path: Option<String>| {
        let server = recorded("llama", move |asked| match (asked.path.as_str(), &model_path) {
            ("/props", Some(path)) => Answer::json(json!({
                "model_path": path, "default_generation_settings": {"n_ctx": 16384},
            })),
            _ => crate::llama_cpp::pages(asked),
        })
        .await;
        let token_mode = Some(TokenModeOptions::default());
        let options = EngineOptions { token_mode, ..EngineOptions::default() };
        polar_engine::connect(&server.url, options).await.err().unwrap().to_string()
    };
    let said = refusal(None).await;
    assert!(said.contains("does not say where") && said.contains("--model-files"), "{said}");
    let said = refusal(Some("/elsewhere/models/qwen.gguf".to_owned())).await;
    assert!(said.contains("\"/elsewhere/models\", which is no folder on this"), "{said}");
    let folder = beside.path().to_string_lossy().into_owned();
    let said = refusal(Some(file.clone())).await;
    assert!(said.contains(&format!("{folder} has no tokenizer.json")), "{said}");
    assert!(
        said.contains("looked where the engine says") && said.contains("--model-files"),
        "{said}"
    );
    std::fs::write(beside.path().join("tokenizer.json"), "{}").unwrap();
    let said = refusal(Some(file.clone())).await;
    assert!(said.contains(&format!("{folder} has no chat template")), "{said}");
    // Another model's files are taken, and found to be another model's.
    polar_simulator::write_model_files(beside.path()).unwrap();
    let said = refusal(Some(file)).await;
    assert!(!said.contains(&folder) && said.starts_with("token mode: "), "{said}");
}

#[tokio::test]
async fn the_simulator_tells_its_vocabulary_as_vllm_does() {
    let simulator =
        polar_simulator::serve(polar_simulator::SimulatorConfig::default()).await.unwrap();
    let (engine, report) =
        polar_engine::probe(&simulator.url(), EngineOptions::default()).await.unwrap();
    assert!(engine.info().vocab_size.is_some(), "{report}");
    let told = report.checks.iter().find(|check| check.name == "vocabulary").unwrap();
    assert_eq!(told.outcome, Outcome::Passed, "{told:?}");
}
