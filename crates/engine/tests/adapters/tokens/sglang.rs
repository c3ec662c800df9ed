//! What only SGLang does.

use super::vllm::{showing, shown};
use super::{PROMPT, REPLY, request, sample};
use crate::fake_engine::{Answer, fixture};
use crate::place::Place;
use serde_json::{Value, json};

#[tokio::test]
async fn a_refused_limit_is_lowered_once() {
    const REFUSAL: &str = "Requested token count exceeds the model's maximum context length of 100 \
                           tokens. You requested a total of 115 tokens: 15 tokens from the input \
                           messages and 100 tokens for the completion.";
    for stream in [false, true] {
        let (server, engine) = Place::Sglang
            .serve(|asked| {
                let refused = asked.body["sampling_params"]["max_new_tokens"] == 100;
                let error = json!({"error": {"message": REFUSAL, "code": 400}});
                match (refused, asked.streams()) {
                    (true, true) => Answer::Stream(format!("data: {error}\n\ndata: [DONE]\n\n")),
                    (true, false) => Answer::Json(400, error.to_string()),
                    _ => Place::Sglang.recorded_answer(asked),
                }
            })
            .await;
        let mut asked = request(stream);
        asked.sampling.max_tokens = Some(100);
        let reply = sample(&engine, asked).await.unwrap();
        assert_eq!(reply.ids, REPLY);
        let sent = server.last_at("/generate").body;
        assert_eq!(sent["sampling_params"]["max_new_tokens"], 85);
        assert_ne!(sent["rid"], "call-1", "the engine may still know the refused one");
    }
}

#[tokio::test]
async fn a_stream_of_new_ids_alone_is_read_like_one_of_all_ids() {
    // As with `--incremental-streaming-output`: one or two new ids an event, in the ways events
    // are made up.
    let whole: Value = serde_json::from_str(&fixture("sglang/ids.json")).unwrap();
    let logprobs = whole["meta_info"]["output_token_logprobs"].as_array().unwrap().clone();
    let event = |range: std::ops::Range<usize>| {
        let mut event = whole.clone();
        event["output_ids"] = json!(REPLY[range.clone()]);
        event["meta_info"]["output_token_logprobs"] = json!(logprobs[range.clone()]);
        event["meta_info"]["completion_tokens"] = json!(range.end);
        if range.end < REPLY.len() {
            event["meta_info"]["finish_reason"] = Value::Null;
        }
        format!("data: {event}\n\n")
    };
    let events = [event(0..1), event(1..3), event(3..3), event(3..18)].concat();
    let (_server, engine) =
        Place::Sglang.serve(move |_| Answer::Stream(format!("{events}data: [DONE]\n\n"))).await;
    let reply = sample(&engine, request(true)).await.unwrap();
    assert_eq!(reply.ids, REPLY);
    assert!(reply.logprobs.iter().all(Option::is_some));
    assert_eq!(reply.chunks, 3);
}

#[tokio::test]
async fn ids_that_run_ahead_of_their_logprobs_wait_for_them() {
    // SGLang writes an event only when it is fetched: its list of ids may have grown by then.
    let recorded = fixture("sglang/ids.sse");
    let mut events: Vec<Value> = recorded
        .split("\n\n")
        .filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok())
        .collect();
    events[4]["output_ids"] = json!(REPLY[..7]);
    let events: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    let (_server, engine) =
        Place::Sglang.serve(move |_| Answer::Stream(format!("{events}data: [DONE]\n\n"))).await;
    let reply = sample(&engine, request(true)).await.unwrap();
    assert_eq!(reply.ids, REPLY);
    assert!(reply.logprobs.iter().all(Option::is_some));
}

#[tokio::test]
async fn what_was_left_to_sample_from_is_kept() {
    let (server, engine) =
        Place::Sglang.serve(|_| Answer::json(fixture("sglang/ids_mask.json"))).await;
    let mut asked = request(false);
    asked.rest.insert("return_sampling_mask".into(), true.into());
    let reply = sample(&engine, asked).await.unwrap();
    assert_eq!(server.last_at("/generate").body["return_sampling_mask"], true);
    let arrays = &reply.end().arrays;
    let shape = |name: &str| (arrays[name].dtype.as_str(), arrays[name].shape.clone());
    let sampled = reply.ids.len() as u64;
    // Three were left each time.
    assert_eq!(shape("sampling_mask"), ("uint32", vec![3 * sampled]));
    assert_eq!(shape("sampling_mask_offsets"), ("uint32", vec![sampled + 1]));
    assert_eq!(shape("sampling_logprobs"), ("float32", vec![sampled]));
}

/// SGLang calls the last id of the vocabulary 0.
#[tokio::test]
async fn promise_3_a_score_of_another_id_is_refused() {
    let sequence: Vec<u32> = PROMPT.iter().chain(&REPLY).copied().collect();
    let called = |id: u32| {
        let mut reply: Value = serde_json::from_str(&fixture("sglang/scores.json")).unwrap();
        reply["meta_info"]["input_token_logprobs"][4][1] = json!(id);
        Place::Sglang.serve(move |_| Answer::json(&reply))
    };
    let (_server, engine) = called(0).await;
    let tokens = engine.tokens().unwrap();
    let error = tokens.score(&sequence, 15).await.unwrap_err();
    assert!(error.message.contains("another prompt"), "{error}");
    let mut of_last = sequence.clone();
    of_last[18] = engine.info().vocab_size.unwrap() - 1;
    assert!(tokens.score(&of_last, 15).await.unwrap()[18].is_some());
    let (_server, engine) = called(7).await;
    assert!(engine.tokens().unwrap().score(&of_last, 15).await.is_err());
}

#[tokio::test]
async fn promise_2_a_prompt_with_pictures_is_the_one_that_the_engine_had() {
    let had = shown()["prompt_token_ids"].clone();
    for stream in [false, true] {
        for changed in [false, true] {
            let mut told = had.clone();
            if changed {
                told[5] = json!(7);
            }
            let (server, engine) = Place::Sglang
                .serve(move |asked| {
                    let tell = |piece: &str| {
                        let mut piece: Value = serde_json::from_str(piece).unwrap();
                        piece["prompt_token_ids"] = told.clone();
                        piece["meta_info"]["prompt_tokens"] = json!(17);
                        piece
                    };
                    if !asked.streams() {
                        return Answer::json(tell(&fixture("sglang/ids.json")));
                    }
                    let recorded = fixture("sglang/ids.sse");
                    let pieces = recorded.split("\n\n").filter_map(|it| it.strip_prefix("data: "));
                    let pieces = pieces.filter(|piece| *piece != "[DONE]");
                    let told: String =
                        pieces.map(|piece| format!("data: {}\n\n", tell(piece))).collect();
                    Answer::Stream(format!("{told}data: [DONE]\n\n"))
                })
                .await;
            let reply = sample(&engine, showing(stream)).await;
            if changed {
                let error = reply.unwrap_err();
                assert!(error.message.contains("another prompt"), "{error}");
                continue;
            }
            let reply = reply.unwrap();
            assert_eq!((json!(reply.prompt_ids), &reply.ids[..]), (had.clone(), &REPLY[..]));
            let sent = server.last_at("/generate").body;
            assert_eq!(sent["image_data"], json!(showing(stream).pictures));
            assert_eq!(sent["return_prompt_token_ids"], true);
        }
    }
}
