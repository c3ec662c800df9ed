//! SGLang's adapter against its recorded replies.

use crate::fake_engine::{
    Answer, Asked, FakeEngine, connect, fixture, generate, recorded, request, with_tool,
};
use crate::vllm::{asked_again, recorded_tokens};
use polar_convo::FinishReason;
use polar_engine::{EngineKind, Outcome};
use serde_json::json;

pub(crate) fn pages(asked: &Asked) -> Answer {
    match asked.path.as_str() {
        "/v1/models" => Answer::json(json!({"data": [
            {"id": "polar-tiny", "owned_by": "sglang", "max_model_len": 16384},
        ]})),
        "/server_info" => Answer::json(json!({"version": "0.5.23"})),
        "/model_info" => Answer::json(json!({"weight_version": "v0", "tool_call_parser": "qwen"})),
        "/tokenize" => Answer::json(json!({"count": 153, "tokens": [1]})),
        _ => Answer::missing(),
    }
}

#[tokio::test]
async fn what_the_engine_is_is_found_out() {
    let server = recorded("sglang", pages).await;
    let engine = connect(&server).await;
    let info = engine.info();
    assert_eq!(info.kind, EngineKind::Sglang);
    assert_eq!(info.version.as_deref(), Some("0.5.23"));
    assert_eq!(info.vocab_size, Some(531));
    assert_eq!(info.weight_version.as_deref(), Some("v0"));
    assert_eq!(engine.count_tokens(&request(false)).await.unwrap(), 153);
}

#[tokio::test]
async fn whole_and_streamed_replies_give_ids_and_logprobs() {
    let server = recorded("sglang", pages).await;
    let engine = connect(&server).await;
    for kind in ["text", "tool", "stop"] {
        for stream in [false, true] {
            let mut asked = request(stream);
            if kind == "tool" {
                asked = with_tool(asked);
            } else if kind == "stop" {
                asked.sampling.stop = vec![" in".to_owned()];
            }
            let reply = generate(&engine, asked).await.unwrap();
            assert_eq!(reply.ids.len() as u64, reply.end().usage.completion_tokens, "{kind}");
            let prompt = reply.prompt_ids.as_ref().unwrap();
            assert_eq!(prompt.len() as u64, reply.end().usage.prompt_tokens);
            assert!(reply.logprobs.iter().all(Option::is_some), "{kind} {stream}");
            let spans = &reply.end().weight_versions;
            assert_eq!(spans[0].version.as_deref(), Some("v0"));
            assert_eq!((spans[0].start, spans[0].end), (0, reply.ids.len() as u64));
            if !stream || kind != "tool" {
                let name = format!("sglang/{kind}.json");
                let (ids, logprobs) = recorded_tokens(&name, "response_token_ids");
                assert_eq!(reply.ids, ids, "{kind} {stream}");
                for (given, recorded) in reply.logprobs.iter().zip(&logprobs) {
                    assert!((given.unwrap() - recorded.unwrap()).abs() < 1e-4);
                }
            }
        }
    }
}

#[tokio::test]
async fn each_form_of_reply_is_asked_for_ids_in_its_own_way() {
    let server = recorded("sglang", pages).await;
    let engine = connect(&server).await;
    let mut asked = request(false);
    asked.sampling.top_k = Some(0);
    generate(&engine, asked).await.unwrap();
    let sent = server.last_chat().body;
    assert_eq!(sent["top_k"], -1);
    assert_eq!(sent["return_token_ids"], true);
    assert_eq!(sent["rid"], "call-1");
    generate(&engine, request(true)).await.unwrap();
    let sent = server.last_chat().body;
    assert!(sent.get("return_token_ids").is_none());
    assert_eq!(sent["return_input_ids_in_sglext"], true);
    assert_eq!(sent["return_output_ids_in_sglext"], true);
}

#[tokio::test]
async fn stop_strings_and_calls_are_told() {
    let server = recorded("sglang", pages).await;
    let engine = connect(&server).await;
    for stream in [false, true] {
        let mut asked = request(stream);
        asked.sampling.stop = vec![" in".to_owned()];
        let reply = generate(&engine, asked).await.unwrap();
        assert_eq!(reply.end().finish, FinishReason::StopSequence);
        assert_eq!(reply.end().stop_sequence.as_deref(), Some(" in"));
    }
    let reply = generate(&engine, with_tool(request(false))).await.unwrap();
    assert_eq!(reply.end().finish, FinishReason::ToolCalls);
    assert_eq!(reply.calls()[0].0, "get_weather");
}

#[tokio::test]
async fn a_split_by_a_weight_update_is_kept() {
    let server = FakeEngine::start(|asked| match asked.path.as_str() {
        "/v1/chat/completions" if asked.body["logit_bias"].get("-1").is_some() => {
            Answer::Json(400, fixture("sglang/no_such_id.json"))
        }
        "/v1/chat/completions" if asked.streams() => Answer::Stream(fixture("sglang/text.sse")),
        "/v1/chat/completions" => Answer::json(json!({
            "choices": [{
                "message": {"content": "x"}, "finish_reason": "abort", "matched_stop": null,
                "prompt_token_ids": [1, 2], "response_token_ids": [5, 6, 7],
                "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.5}, {"logprob": -0.5}]},
            }],
            "usage": {"prompt_tokens": 2, "completion_tokens": 3, "reasoning_tokens": 0},
            "metadata": {"weight_version": "v1", "weight_versions": [
                {"version": "v0", "start": 0, "end": 2}, {"version": "v1", "start": 2, "end": 3},
            ]},
        })),
        _ => pages(asked),
    })
    .await;
    let engine = connect(&server).await;
    let reply = generate(&engine, request(false)).await.unwrap();
    let spans = &reply.end().weight_versions;
    assert_eq!(spans.len(), 2);
    assert_eq!((spans[1].version.as_deref(), spans[1].start, spans[1].end), (Some("v1"), 2, 3));
    assert_eq!(reply.end().finish, FinishReason::Abort);
}

#[tokio::test]
async fn an_engine_without_versions_has_no_spans() {
    let server = recorded("sglang", |asked| match asked.path.as_str() {
        "/model_info" => Answer::json(json!({"tool_call_parser": "qwen"})),
        _ => pages(asked),
    })
    .await;
    let engine = connect(&server).await;
    let reply = generate(&engine, request(true)).await.unwrap();
    assert!(reply.end().weight_versions.is_empty());
}

#[tokio::test]
async fn a_server_without_a_tool_parser_is_usable_with_a_warning() {
    let server = recorded("sglang", |asked| match asked.path.as_str() {
        "/model_info" => Answer::json(json!({"weight_version": "v0", "tool_call_parser": null})),
        _ => pages(asked),
    })
    .await;
    let probed = polar_engine::probe(&server.url, polar_engine::EngineOptions::default()).await;
    let (_, report) = probed.unwrap();
    let tools = report.checks.iter().find(|check| check.name == "tools").unwrap();
    assert_eq!(tools.outcome, Outcome::Warning);
    assert!(tools.advice.as_ref().unwrap().contains("--tool-call-parser"));
}

#[tokio::test]
async fn a_limit_that_does_not_fit_beside_the_prompt_is_lowered() {
    let refusal = "Requested token count exceeds the model's maximum context length of 16384 \
                   tokens. You requested a total of 17000 tokens: 1000 tokens from the input \
                   messages and 16000 tokens for the completion.";
    for stream in [false, true] {
        let (refused, taken) = asked_again("sglang", pages, refusal, stream).await;
        assert_eq!(taken.body["max_tokens"], 15384);
        assert_ne!(taken.body["rid"], refused.body["rid"]);
    }
}
