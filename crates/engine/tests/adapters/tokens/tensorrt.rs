//! TensorRT-LLM, against a simulator that speaks its API as strictly as its published source, and
//! against replies in the shapes that the source gives them.

use super::{PROMPT, request, sample};
use crate::fake_engine::{
    Answer, Asked, FakeEngine, Generation, generate, request as chat, with_tool,
};
use polar_convo::FinishReason;
use polar_engine::{
    Engine, EngineKind, EngineOptions, ModelFiles, NOT_SENT, Outcome, ProbeError, ProbeReport,
    Rendering, TokenModeError, TokenModeOptions,
};
use polar_simulator::{
    ChatTemplate, EngineApi, SimulatorConfig, SimulatorHandle, Vocabulary, serve, write_model_files,
};
use polar_tokens::template::Preparation;
use polar_types::ErrorClass;
use serde_json::{Map, Value, json};
use std::sync::Arc;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn config() -> SimulatorConfig {
    SimulatorConfig { speaks: EngineApi::TensorRtLlm, kept_requests: 64, ..Default::default() }
}

/// The files of the model that the simulator plays, with this put before its template.
fn files(before: &str) -> TokenModeOptions {
    let folder = tempfile::tempdir().unwrap();
    write_model_files(folder.path()).unwrap();
    let template = folder.path().join("chat_template.jinja");
    let source = before.to_owned() + &std::fs::read_to_string(&template).unwrap();
    std::fs::write(template, source).unwrap();
    TokenModeOptions { files: Some(ModelFiles::read(folder.path()).unwrap()) }
}

async fn probe(
    config: SimulatorConfig,
    token_mode: Option<TokenModeOptions>,
) -> (SimulatorHandle, Result<(Arc<dyn Engine>, ProbeReport), ProbeError>) {
    let simulator = serve(config).await.unwrap();
    let options = EngineOptions { token_mode, ..EngineOptions::default() };
    let probed = polar_engine::probe(&simulator.url(), options).await;
    (simulator, probed)
}

async fn connected(config: SimulatorConfig) -> (SimulatorHandle, Arc<dyn Engine>) {
    let (simulator, probed) = probe(config, Some(files(""))).await;
    (simulator, probed.unwrap().0)
}

fn last(simulator: &SimulatorHandle, path: &str) -> Value {
    simulator.requests().into_iter().rfind(|seen| seen.path == path).unwrap().body
}

#[tokio::test]
async fn it_is_found_out_and_serves_in_token_mode_alone() {
    let (_simulator, probed) = probe(config(), None).await;
    let error = probed.err().unwrap();
    assert!(matches!(error, ProbeError::NeedsTokenMode), "{error}");
    assert!(error.to_string().contains("--model-files"), "{error}");
    let (_simulator, engine) = connected(config()).await;
    let info = engine.info();
    assert_eq!(info.kind, EngineKind::TensorRtLlm);
    assert_eq!(info.kind.name(), "TensorRT-LLM");
    assert_eq!(json!(info.kind), "tensorrt_llm");
    assert_eq!(info.version.as_deref(), Some("1.3.0rc-simulated"));
    assert!(info.token_mode.is_some() && info.context_window.is_none());
}

/// Both APIs of the simulator sample the same behind the same ids.
#[tokio::test]
async fn promise_3_ids_and_logprobs_come_as_they_were_sampled() {
    let vllm = serve(SimulatorConfig::default()).await.unwrap();
    let vllm = polar_engine::connect(&vllm.url(), EngineOptions::default()).await.unwrap();
    let (simulator, engine) = connected(config()).await;
    let expected = sample(&vllm, request(false)).await.unwrap();
    assert!(!expected.ids.is_empty());
    for stream in [false, true] {
        let reply = sample(&engine, request(stream)).await.unwrap();
        assert_eq!((&reply.ids, &reply.logprobs), (&expected.ids, &expected.logprobs));
        assert_eq!(reply.prompt_ids.as_deref(), Some(&PROMPT[..]));
        assert_eq!(reply.chunks > 1, stream);
        assert_eq!(reply.end().usage.completion_tokens, reply.ids.len() as u64);
        assert!(reply.end().extra.is_empty() && reply.end().weight_versions.is_empty());
        let sent = last(&simulator, COMPLETIONS);
        assert_eq!((&sent["detokenize"], &sent["logprobs"]), (&json!(false), &json!(1)));
        assert_eq!((&sent["top_k"], &sent["min_p"]), (&json!(0), &json!(0.0)));
    }
}

#[tokio::test]
async fn an_end_of_the_turn_stays_in_the_ids() {
    let (_simulator, engine) = connected(config()).await;
    let whole = sample(&engine, request(false)).await.unwrap().ids;
    for stream in [false, true] {
        let mut asked = request(stream);
        asked.stop_token_ids = vec![whole[2]];
        let reply = sample(&engine, asked).await.unwrap();
        assert_eq!(reply.ids, whole[..3]);
        assert_eq!(reply.end().finish, FinishReason::Stop);
    }
}

#[tokio::test]
async fn fields_that_it_would_refuse_are_named_and_not_sent() {
    let (simulator, engine) = connected(config()).await;
    let mut asked = request(false);
    asked.sampling.top_k = Some(7);
    for (name, value) in [("min_p", json!(0.2)), ("cache_salt", json!("s")), ("n", json!(2))] {
        asked.rest.insert(name.into(), value);
    }
    let reply = sample(&engine, asked).await.unwrap();
    let mut not_sent: Vec<&Value> =
        reply.end().extra[NOT_SENT].as_array().unwrap().iter().collect();
    not_sent.sort_by_key(|name| name.as_str());
    assert_eq!(not_sent, ["cache_salt", "n"]);
    let sent = last(&simulator, COMPLETIONS);
    assert_eq!((&sent["min_p"], &sent["top_k"]), (&json!(0.2), &json!(7)));
}

#[tokio::test]
async fn promise_3_a_call_of_messages_comes_back_without_ids_and_says_why() {
    let (simulator, engine) = connected(config()).await;
    for stream in [false, true] {
        let mut asked = with_tool(chat(stream));
        asked.rest.insert("metadata".into(), json!({"a": 1}));
        asked.tools[0].rest.insert("cache_control".into(), json!({}));
        let reply = generate(&engine, asked).await.unwrap();
        assert!(!reply.text().is_empty());
        assert!(reply.ids.is_empty() && reply.prompt_ids.is_none());
        let end = reply.end();
        assert!(end.usage.completion_tokens > 0);
        let why = end.extra["ids_missing"].as_str().unwrap();
        assert!(why.contains("tell no ids"), "{why}");
        assert_eq!(end.extra[NOT_SENT], json!(["metadata"]));
        let sent = last(&simulator, CHAT);
        assert_eq!(sent["tools"][0]["function"]["name"], "get_weather");
    }
}

#[tokio::test]
async fn its_prompts_are_compared_by_ids_where_it_tells_them() {
    let prompts = |report: &ProbeReport| {
        report.checks.iter().find(|check| check.name == "prompts").unwrap().clone()
    };
    let telling = SimulatorConfig { renders: true, ..config() };
    let (_simulator, probed) = probe(telling.clone(), Some(files(""))).await;
    let (engine, report) = probed.unwrap();
    assert_eq!(prompts(&report).outcome, Outcome::Passed);
    let tokens = engine.tokens().unwrap();
    let Rendering::Ids(ids) = tokens.rendering(&chat(false)).await.unwrap() else { panic!() };
    assert_eq!(tokens.render(&chat(false)).await.unwrap(), ids);
    // By their length elsewhere, which is said.
    let (_simulator, probed) = probe(config(), Some(files(""))).await;
    let (engine, report) = probed.unwrap();
    let check = prompts(&report);
    assert_eq!(check.outcome, Outcome::Warning);
    assert!(check.detail.contains("not compared"), "{check:?}");
    assert!(check.advice.unwrap().contains("TRTLLM_ENABLE_RENDER_ENDPOINTS"));
    let tokens = engine.tokens().unwrap();
    let length = Rendering::Length(ids.len() as u64);
    assert_eq!(tokens.rendering(&chat(false)).await.unwrap(), length);
    assert_eq!(engine.count_tokens(&chat(false)).await.unwrap(), ids.len() as u64);
    let error = tokens.render(&chat(false)).await.unwrap_err();
    assert!(error.message.contains("TRTLLM_ENABLE_RENDER_ENDPOINTS"), "{error}");
    // With another template it is not begun.
    let (_simulator, probed) = probe(telling, Some(files("So: "))).await;
    let error = probed.err().unwrap();
    assert!(matches!(error, ProbeError::TokenMode(TokenModeError::Disagrees(_))), "{error}");
    let (_simulator, probed) = probe(config(), Some(files("So: "))).await;
    let error = probed.err().unwrap();
    assert!(matches!(error, ProbeError::TokenMode(TokenModeError::OtherLength { .. })), "{error}");
}

#[tokio::test]
async fn what_does_not_fit_is_told_as_an_overflow() {
    let small = SimulatorConfig { context_window: 600, ..config() };
    let (_simulator, engine) = connected(small).await;
    let mut asked = request(false);
    asked.prompt = vec![1; 700].into();
    let error = sample(&engine, asked).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::ContextOverflow, "{error}");
    assert_eq!(error.context.unwrap().window, 600);
    let mut asked = request(false);
    asked.sampling.max_tokens = Some(100_000);
    assert!(sample(&engine, asked).await.is_ok(), "it lowers a limit itself");
}

#[tokio::test]
async fn it_says_that_it_does_not_score() {
    let (_simulator, engine) = connected(config()).await;
    let error = engine.tokens().unwrap().score(&PROMPT, 0).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Invalid);
    assert!(error.message.contains("does not tell the logprobs"), "{error}");
}

/// Answers a start by the book, and whole replies changed.
fn changed(asked: &Asked, change: fn(&mut Value)) -> Answer {
    match asked.path.as_str() {
        "/v1/models" => Answer::json(json!({"data": [{"id": "m", "owned_by": "tensorrt_llm"}]})),
        CHAT => {
            let template = ChatTemplate::load_for(Preparation::TensorRtLlm).unwrap();
            let messages = asked.body["messages"].as_array().unwrap();
            let tools = asked.body["tools"].as_array().map(Vec::as_slice);
            let prompt = template.render(messages, tools, true, &Map::new()).unwrap();
            let tokens = Vocabulary::load().unwrap().encode(&prompt).unwrap().len();
            Answer::json(json!({"choices": [], "usage": {"prompt_tokens": tokens}}))
        }
        COMPLETIONS => {
            let tokens = asked.body["prompt"].as_array().unwrap().len();
            let mut reply = json!({
                "choices": [{
                    "index": 0, "text": "", "token_ids": [7, 8, 9], "finish_reason": "stop",
                    "stop_reason": null, "logprobs": {"token_logprobs": [-1.0, -9999.0, -0.5]},
                }],
                "usage": {"prompt_tokens": tokens, "completion_tokens": 3},
            });
            if asked.streams() {
                return Answer::Stream(format!("data: {reply}\n\ndata: [DONE]\n\n"));
            }
            change(&mut reply);
            Answer::json(reply)
        }
        _ => Answer::missing(),
    }
}

async fn saying(change: fn(&mut Value)) -> Generation {
    let server = FakeEngine::start(move |asked: &Asked| changed(asked, change)).await;
    let options = EngineOptions { token_mode: Some(files("")), ..EngineOptions::default() };
    let engine = polar_engine::connect(&server.url, options).await.unwrap();
    sample(&engine, request(false)).await.unwrap()
}

#[tokio::test]
async fn promise_3_what_is_not_told_is_missing() {
    let reply = saying(|_| ()).await;
    assert_eq!(reply.ids, [7, 8, 9]);
    assert_eq!(reply.logprobs, [Some(-1.0), Some(f32::NEG_INFINITY), Some(-0.5)]);
    let reply = saying(|reply| reply["choices"][0]["logprobs"] = Value::Null).await;
    assert_eq!(reply.logprobs, [None; 3]);
    let reply = saying(|reply| {
        reply["choices"][0]["logprobs"]["token_logprobs"] = json!([-1.0, -2.0]);
    })
    .await;
    assert_eq!(reply.logprobs, [None; 3]);
    let reply = saying(|reply| reply["usage"]["prompt_tokens"] = json!(14)).await;
    assert_eq!(reply.prompt_ids, None);
    assert!(reply.end().extra.contains_key("prompt_ids_missing"));
}

#[tokio::test]
async fn a_reply_that_was_broken_off_is_no_end_of_the_turn() {
    for change in [
        (|reply| reply["choices"][0]["finish_reason"] = json!("cancelled")) as fn(&mut Value),
        |reply| reply["choices"][0]["finish_reason"] = json!("timeout"),
    ] {
        let reply = saying(change).await;
        assert_eq!((reply.end().finish, reply.ids.len()), (FinishReason::Abort, 3));
    }
}

/// Behind a router the list of models may say nothing of whose it is.
#[tokio::test]
async fn it_is_known_by_a_page_of_its_own() {
    let server = FakeEngine::start(|asked| match asked.path.as_str() {
        "/v1/models" => Answer::json(json!({"data": [{"id": "m", "owned_by": "us"}]})),
        "/steady_clock_offset" | "/version" => Answer::json(json!({"version": "1.2.1"})),
        _ => Answer::missing(),
    })
    .await;
    let error = polar_engine::connect(&server.url, EngineOptions::default()).await.err().unwrap();
    assert!(matches!(error, ProbeError::NeedsTokenMode), "{error}");
}

#[tokio::test]
async fn promise_3_tritons_front_end_is_refused_with_what_to_use() {
    let models = json!({"data": [{"id": "llama", "owned_by": "Triton Inference Server"}]});
    let server = FakeEngine::start(move |_| Answer::json(&models)).await;
    let error = polar_engine::connect(&server.url, EngineOptions::default()).await.err().unwrap();
    assert!(matches!(error, ProbeError::TritonFrontEnd), "{error}");
    assert!(error.to_string().contains("trtllm-serve"), "{error}");
}
