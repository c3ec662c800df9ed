//! llama.cpp's adapter against its recorded replies.

use crate::fake_engine::{
    Answer, Asked, FakeEngine, connect, fixture, generate, recorded, request, with_tool,
};
use polar_convo::FinishReason;
use polar_engine::{EngineKind, EngineOptions};
use serde_json::{Value, json};

fn recorded_reply(kind: &str) -> Value {
    serde_json::from_str(&fixture(&format!("llama/{kind}.json"))).unwrap()
}

/// Plays the pages of a server whose prompt has as many tokens as the recorded one.
pub(crate) fn pages(asked: &Asked) -> Answer {
    match asked.path.as_str() {
        "/v1/models" => Answer::json(json!({"data": [
            {"id": "polar-tiny", "owned_by": "llamacpp", "meta": {"n_vocab": 531}},
        ]})),
        "/props" => Answer::json(json!({
            "build_info": "b1-7e4c0a9", "default_generation_settings": {"n_ctx": 16384},
        })),
        "/apply-template" => {
            let kind = if asked.body.get("tools").is_some() { "tool" } else { "text" };
            Answer::json(json!({"prompt": recorded_reply(kind)["__verbose"]["prompt"]}))
        }
        "/tokenize" => {
            let kind = if asked.body["content"].as_str().unwrap().contains("<tools>") {
                "tool"
            } else {
                "text"
            };
            let count = recorded_reply(kind)["usage"]["prompt_tokens"].as_u64().unwrap();
            Answer::json(json!({"tokens": (0..count).collect::<Vec<u64>>()}))
        }
        _ => Answer::missing(),
    }
}

#[tokio::test]
async fn ids_logprobs_and_calls_are_those_of_the_recorded_reply() {
    let server = recorded("llama", pages).await;
    let engine = connect(&server).await;
    assert_eq!(engine.info().kind, EngineKind::LlamaCpp);
    assert_eq!(engine.info().version.as_deref(), Some("b1-7e4c0a9"));
    assert_eq!(engine.info().context_window, Some(16384));
    assert_eq!(engine.info().vocab_size, Some(531));
    assert_eq!(engine.info().logprob_mode, "raw");
    let recorded = recorded_reply("tool");
    let ids: Vec<u32> = serde_json::from_value(recorded["__verbose"]["tokens"].clone()).unwrap();
    for stream in [false, true] {
        let reply = generate(&engine, with_tool(request(stream))).await.unwrap();
        assert_eq!(reply.ids, ids);
        assert!(reply.logprobs.iter().all(Option::is_some));
        let prompt = reply.prompt_ids.as_ref().unwrap();
        assert_eq!(prompt.len() as u64, reply.end().usage.prompt_tokens);
        assert_eq!(reply.calls()[0].0, "get_weather");
        assert_eq!(reply.end().finish, FinishReason::ToolCalls);
        // The server refuses logprobs with tools in a stream, and drops ids without them.
        assert!(!server.last_chat().streams());
    }
}

#[tokio::test]
async fn tokens_of_a_stop_string_are_kept_without_logprobs() {
    let server = recorded("llama", pages).await;
    let engine = connect(&server).await;
    let mut asked = request(true);
    asked.sampling.stop = vec![" in".to_owned()];
    let reply = generate(&engine, asked).await.unwrap();
    assert_eq!(reply.end().finish, FinishReason::StopSequence);
    assert_eq!(reply.end().stop_sequence.as_deref(), Some(" in"));
    assert_eq!(reply.ids.len() as u64, reply.end().usage.completion_tokens);
    assert_eq!(reply.logprobs.iter().filter(|logprob| logprob.is_none()).count(), 1);
    assert_eq!(reply.logprobs.last(), Some(&None));
}

#[tokio::test]
async fn sampling_is_neutral_unless_asked_otherwise() {
    let server = recorded("llama", pages).await;
    let engine = connect(&server).await;
    generate(&engine, request(false)).await.unwrap();
    let sent = server.last_chat().body;
    assert_eq!(
        (&sent["temperature"], &sent["top_p"], &sent["top_k"], &sent["min_p"]),
        (&json!(1.0), &json!(1.0), &json!(0), &json!(0.0))
    );
    assert_eq!((&sent["top_logprobs"], &sent["verbose"]), (&json!(1), &json!(true)));
    let mut asked = request(false);
    asked.sampling.temperature = Some(0.5);
    asked.sampling.top_k = Some(-1);
    asked.rest.insert("min_p".into(), json!(0.1));
    generate(&engine, asked).await.unwrap();
    let sent = server.last_chat().body;
    assert_eq!(
        (&sent["temperature"], &sent["top_k"], &sent["min_p"]),
        (&json!(0.5), &json!(0), &json!(0.1))
    );
}

#[tokio::test]
async fn promise_3_a_prompt_that_differs_is_missing_and_says_why() {
    type Pages = fn(&Asked) -> Answer;
    let one_more: Pages = |asked| match asked.path.as_str() {
        // The probe's prompts are as recorded; only this conversation's is not.
        "/tokenize" if asked.body["content"] == "other" => {
            let count = recorded_reply("text")["usage"]["prompt_tokens"].as_u64().unwrap() + 1;
            Answer::json(json!({"tokens": vec![1; count as usize]}))
        }
        "/apply-template" if asked.body["messages"][0]["role"] == "system" => {
            Answer::json(json!({"prompt": "other"}))
        }
        _ => pages(asked),
    };
    let other_text: Pages = |asked| match asked.path.as_str() {
        "/apply-template" if asked.body["messages"][0]["role"] == "system" => {
            Answer::json(json!({"prompt": "other"}))
        }
        _ => pages(asked),
    };
    let refused: Pages = |asked| match asked.path.as_str() {
        "/apply-template" if asked.body["messages"][0]["role"] == "system" => Answer::missing(),
        _ => pages(asked),
    };
    for (pages, reason) in
        [(one_more, "the engine had"), (other_text, "differs"), (refused, "Not Found")]
    {
        let server = recorded("llama", pages).await;
        let engine = connect(&server).await;
        let mut asked = request(false);
        asked.messages[0].role = polar_convo::Role::System;
        let reply = generate(&engine, asked).await.unwrap();
        assert_eq!(reply.prompt_ids, None);
        let said = reply.end().extra["prompt_ids_missing"].as_str().unwrap();
        assert!(said.contains(reason), "{said}");
        assert!(!reply.ids.is_empty());
    }
}

#[tokio::test]
async fn promise_2_a_prompt_the_engine_dropped_tokens_from_is_missing() {
    let whole = recorded_reply("text");
    let usage = |name: &str| whole["usage"][name].as_u64().unwrap();
    let sequence = usage("prompt_tokens") + usage("completion_tokens");
    // A reply that ends where the context is full is called truncated too.
    for (window, is_exact) in [(sequence - 1, false), (sequence, true)] {
        let server = FakeEngine::start(move |asked| match asked.path.as_str() {
            "/v1/chat/completions" => {
                let kind = if asked.body.get("tools").is_some() { "tool" } else { "text" };
                let mut reply = recorded_reply(kind);
                reply["__verbose"]["truncated"] = json!(kind == "text");
                Answer::json(reply)
            }
            "/props" => Answer::json(json!({"default_generation_settings": {"n_ctx": window}})),
            _ => pages(asked),
        })
        .await;
        let connected = polar_engine::connect(&server.url, EngineOptions::default()).await;
        if is_exact {
            let reply = generate(&connected.unwrap(), request(false)).await.unwrap();
            assert!(reply.prompt_ids.is_some());
        } else {
            let error = connected.err().unwrap().to_string();
            assert!(error.contains("does not give the prompt's ids"), "{error}");
        }
    }
}

#[tokio::test]
async fn tokens_are_counted_by_the_engines_own_template() {
    let server = recorded("llama", pages).await;
    let engine = connect(&server).await;
    let counted = engine.count_tokens(&with_tool(request(false))).await.unwrap();
    assert_eq!(counted, recorded_reply("tool")["usage"]["prompt_tokens"].as_u64().unwrap());
}
