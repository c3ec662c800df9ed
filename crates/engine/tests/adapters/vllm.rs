//! vLLM's adapter against its recorded replies.

use crate::fake_engine::{
    Answer, Asked, FakeEngine, connect, fixture, generate, recorded, request, with_tool,
};
use polar_convo::{FinishReason, ReplyEvent};
use polar_engine::EngineKind;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) fn pages(asked: &Asked) -> Answer {
    match asked.path.as_str() {
        "/v1/models" => Answer::json(json!({"data": [
            {"id": "adapter", "owned_by": "vllm", "parent": "polar-tiny"},
            {"id": "polar-tiny", "owned_by": "vllm", "parent": null, "max_model_len": 16384},
        ]})),
        "/version" => Answer::json(json!({"version": "0.32.0"})),
        "/tokenize" => Answer::json(json!({"count": 120, "tokens": [1], "max_model_len": 16384})),
        _ => Answer::missing(),
    }
}

/// Ids and logprobs of a recorded whole reply, read without the adapter.
pub(crate) fn recorded_tokens(name: &str, ids: &str) -> (Vec<u32>, Vec<Option<f32>>) {
    let reply: Value = serde_json::from_str(&fixture(name)).unwrap();
    let choice = &reply["choices"][0];
    let ids = serde_json::from_value(choice[ids].clone()).unwrap();
    let entries = choice["logprobs"]["content"].as_array().unwrap();
    (ids, entries.iter().map(|entry| entry["logprob"].as_f64().map(|l| l as f32)).collect())
}

#[tokio::test]
async fn what_the_engine_is_is_found_out() {
    let server = recorded("vllm", pages).await;
    let engine = connect(&server).await;
    let info = engine.info();
    assert_eq!(info.kind, EngineKind::Vllm);
    assert_eq!(info.model, "polar-tiny");
    assert_eq!(info.version.as_deref(), Some("0.32.0"));
    assert_eq!(info.context_window, Some(16384));
    assert_eq!(info.vocab_size, Some(531));
    assert_eq!(info.weight_version, None);
    assert_eq!(engine.count_tokens(&request(false)).await.unwrap(), 120);
}

#[tokio::test]
async fn whole_and_streamed_replies_give_the_same_tokens() {
    let server = recorded("vllm", pages).await;
    let engine = connect(&server).await;
    for kind in ["text", "tool"] {
        let (ids, logprobs) = recorded_tokens(&format!("vllm/{kind}.json"), "token_ids");
        for stream in [false, true] {
            let asked = if kind == "tool" { with_tool(request(stream)) } else { request(stream) };
            let reply = generate(&engine, asked).await.unwrap();
            assert_eq!(reply.ids, ids, "{kind} {stream}");
            assert_eq!(reply.ids.len() as u64, reply.end().usage.completion_tokens);
            let prompt = reply.prompt_ids.as_ref().unwrap();
            assert_eq!(prompt.len() as u64, reply.end().usage.prompt_tokens);
            for (given, recorded) in reply.logprobs.iter().zip(&logprobs) {
                assert!((given.unwrap() - recorded.unwrap()).abs() < 1e-4);
            }
        }
    }
}

#[tokio::test]
async fn a_streamed_tool_call_keeps_the_ids_its_parser_holds_back() {
    let server = recorded("vllm", pages).await;
    let engine = connect(&server).await;
    let whole = generate(&engine, with_tool(request(false))).await.unwrap();
    let streamed = generate(&engine, with_tool(request(true))).await.unwrap();
    assert_eq!(whole.end().finish, FinishReason::ToolCalls);
    assert_eq!(streamed.end().finish, FinishReason::ToolCalls);
    assert_eq!(whole.calls()[0].0, "get_weather");
    let parse = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
    assert_eq!(parse(&whole.calls()[0].1), parse(&streamed.calls()[0].1));
    // More chunks with ids than with something to see.
    assert!(streamed.chunks > streamed.events.len());
}

#[tokio::test]
async fn a_matched_stop_string_is_told_and_its_tokens_kept() {
    let server = recorded("vllm", pages).await;
    let engine = connect(&server).await;
    let (ids, _) = recorded_tokens("vllm/stop.json", "token_ids");
    for stream in [false, true] {
        let mut asked = request(stream);
        asked.sampling.stop = vec![" in".to_owned()];
        let reply = generate(&engine, asked).await.unwrap();
        assert_eq!(reply.end().finish, FinishReason::StopSequence);
        assert_eq!(reply.end().engine_finish, "stop");
        assert_eq!(reply.end().stop_sequence.as_deref(), Some(" in"));
        assert_eq!(reply.ids, ids);
        assert_eq!(reply.text().trim(), "The weather");
    }
}

#[tokio::test]
async fn what_is_sent_makes_the_engine_return_ids() {
    let server = recorded("vllm", pages).await;
    let engine = connect(&server).await;
    let mut asked = request(true);
    asked.rest.insert("include_reasoning".into(), false.into());
    asked.rest.insert("n".into(), 2.into());
    asked.rest.insert("min_tokens".into(), 3.into());
    generate(&engine, asked).await.unwrap();
    let sent = server.last_chat();
    assert_eq!(sent.body["model"], "polar-tiny");
    assert_eq!(sent.body["return_token_ids"], true);
    assert_eq!(sent.body["logprobs"], true);
    assert_eq!(sent.body["top_logprobs"], 0);
    assert_eq!(sent.body["stream_options"], json!({"include_usage": true}));
    assert_eq!(sent.body["min_tokens"], 3);
    for absent in ["include_reasoning", "n", "tools"] {
        assert!(sent.body.get(absent).is_none(), "{absent} was sent");
    }
    assert_eq!(sent.headers["x-request-id"], "call-1");
}

#[tokio::test]
async fn the_models_own_advice_on_sampling_is_not_followed_unseen() {
    let server = recorded("vllm", pages).await;
    let engine = connect(&server).await;
    generate(&engine, request(true)).await.unwrap();
    let sent = server.last_chat().body;
    assert_eq!((&sent["temperature"], &sent["top_p"]), (&json!(1.0), &json!(1.0)));
    assert_eq!((&sent["top_k"], &sent["min_p"]), (&json!(-1), &json!(0.0)));
    assert_eq!(sent["repetition_penalty"], 1.0);
    let mut asked = request(true);
    asked.sampling.temperature = Some(0.5);
    asked.rest.insert("repetition_penalty".into(), json!(1.1));
    generate(&engine, asked).await.unwrap();
    let sent = server.last_chat().body;
    assert_eq!((&sent["temperature"], &sent["repetition_penalty"]), (&json!(0.5), &json!(1.1)));
}

#[tokio::test]
async fn promise_9_a_login_in_the_engines_url_is_used_and_never_shown() {
    let server = recorded("vllm", pages).await;
    let url = server.url.replace("http://", "http://polar:hush@");
    let engine = polar_engine::connect(&url, polar_engine::EngineOptions::default()).await.unwrap();
    assert_eq!(server.last_chat().headers["authorization"], "Basic cG9sYXI6aHVzaA==");
    assert_eq!(engine.info().url, server.url);
    drop(server);
    let nobody = "http://polar:hush@127.0.0.1:1";
    let error = polar_engine::connect(nobody, polar_engine::EngineOptions::default()).await.err();
    let error = error.unwrap().to_string();
    assert!(error.contains("http://127.0.0.1:1") && !error.contains("hush"), "{error}");
}

#[tokio::test]
async fn a_limit_above_the_context_window_is_no_limit() {
    let server = recorded("vllm", pages).await;
    let engine = connect(&server).await;
    for (asked_for, sent) in [(100, json!(100)), (16384, Value::Null), (32000, Value::Null)] {
        let mut asked = request(false);
        asked.sampling.max_tokens = Some(asked_for);
        generate(&engine, asked).await.unwrap();
        assert_eq!(server.last_chat().body["max_tokens"], sent);
    }
}

/// What engines say to a limit that does not fit beside the prompt, and what is asked
/// for after it: `None` is no limit.
pub(crate) const TOO_MUCH_IN_ALL: &[(&str, Option<u64>)] = &[
    (
        "This model's maximum context length is 16384 tokens. However, you requested 16000 output \
         tokens and your prompt contains 1000 input tokens, for a total of 17000 tokens.",
        Some(15384),
    ),
    (
        "This model's maximum context length is 16384 tokens. However, you requested 16000 output \
         tokens and your prompt contains at least 385 input tokens, for a total of at least 16385 \
         tokens.",
        None,
    ),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 16000. This model's maximum context \
         length is 16384 tokens and your request has 1000 input tokens (16000 > 16384 - 1000).",
        Some(15384),
    ),
];

/// An engine that is asked for too much says so once: what it is asked for then.
pub(crate) async fn asked_again(
    name: &'static str,
    pages: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    refusal: &'static str,
    stream: bool,
) -> (Asked, Asked) {
    let server = FakeEngine::start(move |asked| match asked.path.as_str() {
        "/v1/chat/completions" if asked.body["logit_bias"].get("-1").is_some() => {
            Answer::Json(400, fixture(&format!("{name}/no_such_id.json")))
        }
        "/v1/chat/completions" if asked.body["max_tokens"] == 16000 => {
            Answer::Json(400, json!({"error": {"message": refusal, "code": 400}}).to_string())
        }
        "/v1/chat/completions" if asked.streams() => {
            Answer::Stream(fixture(&format!("{name}/text.sse")))
        }
        "/v1/chat/completions" => Answer::json(fixture(&format!("{name}/text.json"))),
        _ => pages(asked),
    })
    .await;
    let engine = connect(&server).await;
    let mut asked = request(stream);
    asked.sampling.max_tokens = Some(16000);
    let before = server.chats().len();
    let reply = generate(&engine, asked).await.unwrap();
    assert_eq!(reply.end().finish, FinishReason::Stop);
    match &server.chats()[before..] {
        [refused, taken] => (refused.clone(), taken.clone()),
        others => panic!("asked {} times", others.len()),
    }
}

#[tokio::test]
async fn a_limit_that_does_not_fit_beside_the_prompt_is_lowered() {
    for (refusal, lowered) in TOO_MUCH_IN_ALL {
        for stream in [false, true] {
            let (refused, taken) = asked_again("vllm", pages, refusal, stream).await;
            assert_eq!(taken.body["max_tokens"], json!(lowered), "{refusal}");
            assert_eq!(taken.body["messages"], refused.body["messages"]);
            assert_ne!(taken.headers["x-request-id"], refused.headers["x-request-id"]);
        }
    }
}

#[tokio::test]
async fn an_engine_that_refuses_again_is_not_asked_a_third_time() {
    let (refusal, _) = TOO_MUCH_IN_ALL[0];
    let server = FakeEngine::start(move |asked| match asked.path.as_str() {
        "/v1/chat/completions" if asked.body["logit_bias"].get("-1").is_some() => {
            Answer::Json(400, fixture("vllm/no_such_id.json"))
        }
        "/v1/chat/completions" if asked.body["max_tokens"].as_u64() > Some(10000) => {
            Answer::Json(400, json!({"error": {"message": refusal, "code": 400}}).to_string())
        }
        "/v1/chat/completions" if asked.streams() => Answer::Stream(fixture("vllm/tool.sse")),
        "/v1/chat/completions" => Answer::json(fixture("vllm/text.json")),
        _ => pages(asked),
    })
    .await;
    let engine = connect(&server).await;
    let before = server.chats().len();
    let mut asked = request(true);
    asked.sampling.max_tokens = Some(16000);
    let error = generate(&engine, asked).await.unwrap_err();
    assert_eq!(error.class, polar_types::ErrorClass::ContextOverflow);
    assert_eq!(server.chats().len(), before + 2);
}

/// A server that answers every generation with this, once the probe is over.
async fn answering(reply: Value) -> (FakeEngine, Arc<dyn polar_engine::Engine>) {
    let probing = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let probed = Arc::clone(&probing);
    let server = FakeEngine::start(move |asked| match asked.path.as_str() {
        "/v1/chat/completions" if !probing.load(Ordering::SeqCst) => Answer::json(&reply),
        "/v1/chat/completions" if asked.body["logit_bias"].get("-1").is_some() => {
            Answer::Json(400, fixture("vllm/no_such_id.json"))
        }
        "/v1/chat/completions" if asked.streams() => Answer::Stream(fixture("vllm/tool.sse")),
        "/v1/chat/completions" => Answer::json(fixture("vllm/text.json")),
        _ => pages(asked),
    })
    .await;
    let engine = connect(&server).await;
    probed.store(false, Ordering::SeqCst);
    (server, engine)
}

fn whole_reply(message: Value, finish: &str, ids: &[u32], logprobs: &[f64]) -> Value {
    let entries: Vec<Value> = logprobs.iter().map(|l| json!({"logprob": l})).collect();
    json!({
        "choices": [{
            "index": 0, "message": message, "finish_reason": finish, "stop_reason": null,
            "token_ids": ids, "logprobs": {"content": entries},
        }],
        "prompt_token_ids": [1, 2, 3],
        "usage": {
            "prompt_tokens": 3, "completion_tokens": ids.len(),
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
    })
}

#[tokio::test]
async fn an_aborted_reply_keeps_what_was_sampled() {
    let reply = whole_reply(json!({"content": "part"}), "abort", &[5, 6], &[-0.5, -9999.0]);
    let (_server, engine) = answering(reply).await;
    let reply = generate(&engine, request(false)).await.unwrap();
    assert_eq!(reply.end().finish, FinishReason::Abort);
    assert_eq!(reply.ids, [5, 6]);
    // As vLLM writes minus infinity.
    assert_eq!(reply.logprobs, [Some(-0.5), Some(f32::NEG_INFINITY)]);
    assert_eq!(reply.end().usage.cached_tokens, Some(2));
    assert_eq!(reply.end().usage.reasoning_tokens, Some(1));
}

#[tokio::test]
async fn reasoning_is_found_under_either_name() {
    for name in ["reasoning", "reasoning_content"] {
        let message = json!({"content": "yes", name: "hm"});
        let (_server, engine) = answering(whole_reply(message, "stop", &[5], &[-0.5])).await;
        let reply = generate(&engine, request(false)).await.unwrap();
        let expected = [ReplyEvent::Reasoning("hm".to_owned()), ReplyEvent::Text("yes".to_owned())];
        assert_eq!(reply.events, expected);
    }
}

#[tokio::test]
async fn a_call_cut_by_the_limit_is_not_taken_for_a_finished_one() {
    let call = json!({"id": "c", "function": {"name": "f", "arguments": "{}"}});
    let message = json!({"content": null, "tool_calls": [call]});
    let (_server, engine) =
        answering(whole_reply(message, "tool_calls", &[5, 6], &[-0.5, -0.5])).await;
    let mut limited = with_tool(request(false));
    limited.sampling.max_tokens = Some(2);
    let reply = generate(&engine, limited).await.unwrap();
    assert_eq!(reply.end().finish, FinishReason::Length);
    assert_eq!(reply.end().engine_finish, "tool_calls");
    let mut roomy = with_tool(request(false));
    roomy.sampling.max_tokens = Some(3);
    let reply = generate(&engine, roomy).await.unwrap();
    assert_eq!(reply.end().finish, FinishReason::ToolCalls);
}

#[tokio::test]
async fn a_forced_call_is_a_call_though_the_engine_says_stop() {
    let call = json!({"id": "", "function": {"name": "f", "arguments": "{}"}});
    let message = json!({"content": "", "tool_calls": [call]});
    let (_server, engine) = answering(whole_reply(message, "stop", &[5], &[-0.5])).await;
    let reply = generate(&engine, with_tool(request(false))).await.unwrap();
    assert_eq!(reply.end().finish, FinishReason::ToolCalls);
    let ReplyEvent::ToolCall { id, .. } = &reply.events[0] else { panic!("no call") };
    assert!(!id.is_empty());
}

#[tokio::test]
async fn an_id_outside_the_vocabulary_is_an_error() {
    let (_server, engine) =
        answering(whole_reply(json!({"content": "x"}), "stop", &[5, 99999], &[-0.5, -0.5])).await;
    let error = generate(&engine, request(false)).await.unwrap_err();
    assert!(error.message.contains("99999"), "{error}");
    assert_eq!(error.class, polar_types::ErrorClass::Unavailable);
}

#[tokio::test]
async fn logprobs_in_another_number_than_ids_are_missing() {
    let (_server, engine) =
        answering(whole_reply(json!({"content": "x"}), "stop", &[5, 6], &[-0.5])).await;
    let reply = generate(&engine, request(false)).await.unwrap();
    assert_eq!(reply.logprobs, [None, None]);
    assert_eq!(reply.end().extra["logprobs_not_paired"], 2);
}

#[tokio::test]
async fn weight_versions_are_told_only_where_they_are_certain() {
    let asked_versions = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked_versions);
    // The probe asks once for itself and twice a generation; the weights change later.
    let server = recorded("vllm", move |asked| match asked.path.as_str() {
        "/weight_info" => {
            let count = counter.fetch_add(1, Ordering::SeqCst);
            let version = if count < 10 { "step-1" } else { "step-2" };
            Answer::json(json!({"weight_version": version}))
        }
        _ => pages(asked),
    })
    .await;
    let engine = connect(&server).await;
    assert_eq!(engine.info().weight_version.as_deref(), Some("step-1"));
    asked_versions.store(0, Ordering::SeqCst);
    let reply = generate(&engine, request(true)).await.unwrap();
    let spans = &reply.end().weight_versions;
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0].version.as_deref(), Some("step-1"));
    assert_eq!((spans[0].start, spans[0].end), (0, reply.ids.len() as u64));
    asked_versions.store(9, Ordering::SeqCst);
    let reply = generate(&engine, request(true)).await.unwrap();
    assert_eq!(reply.end().weight_versions[0].version, None);
    assert_eq!(reply.end().extra["weight_version_before"], "step-1");
}

#[tokio::test]
async fn a_prompt_of_eight_thousand_tokens_comes_whole() {
    let ids: Vec<u32> = (0..8192).map(|i| i % 500).collect();
    let mut reply = whole_reply(json!({"content": "x"}), "stop", &[5], &[-0.5]);
    reply["prompt_token_ids"] = json!(ids);
    let (_server, engine) = answering(reply).await;
    let reply = generate(&engine, request(false)).await.unwrap();
    assert_eq!(reply.prompt_ids, Some(ids));
}
