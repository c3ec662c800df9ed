//! Ids in and ids out, against the engines' recorded replies: what holds of all, and in a module each
//! what one does alone.

mod llama_cpp;
mod sglang;
mod tensorrt;
mod vllm;

use crate::fake_engine::{Answer, FakeEngine, Generation, collect, fixture};
use crate::place::{ALL, Place};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt;
use polar_convo::{FinishReason, Sampling};
use polar_engine::{Engine, EngineError, EngineEvent, NOT_SENT, SampleRequest};
use polar_types::ErrorClass;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What the replies were recorded behind.
const PROMPT: [u32; 15] =
    [521, 335, 198, 423, 292, 269, 283, 284, 471, 30, 522, 198, 521, 328, 198];
const REPLY: [u32; 18] =
    [527, 40, 360, 363, 374, 366, 371, 13, 528, 322, 283, 284, 470, 292, 463, 332, 0, 522];
/// It ends with the word that ended it.
const STOPPED: usize = 12;

fn request(stream: bool) -> SampleRequest {
    let mut sampling = Sampling { max_tokens: Some(24), ..Sampling::default() };
    sampling.say_defaults();
    SampleRequest {
        prompt: Arc::from(PROMPT),
        pictures: Vec::new(),
        picture_mark: None,
        sampling,
        stop_token_ids: Vec::new(),
        request_id: "call-1".to_owned(),
        session: Some("session-1".to_owned()),
        stream,
        rest: Map::new(),
    }
}

fn stopping(stream: bool) -> SampleRequest {
    let mut request = request(stream);
    request.sampling.stop = vec![" in".to_owned(), " how".to_owned()];
    request
}

async fn sample(
    engine: &Arc<dyn Engine>,
    request: SampleRequest,
) -> Result<Generation, EngineError> {
    collect(engine.tokens().unwrap().sample(request).await?).await
}

/// Every place, whole and streamed where it streams.
fn ways() -> impl Iterator<Item = (Place, bool)> {
    ALL.into_iter().flat_map(|place| [(place, false), (place, true)])
}

#[tokio::test]
async fn promise_3_ids_and_logprobs_come_as_they_were_sampled() {
    for (place, stream) in ways() {
        let (server, engine) = place.recorded_server().await;
        let reply = sample(&engine, request(stream)).await.unwrap();
        assert_eq!(reply.ids, REPLY, "{place:?} {stream}");
        assert!(reply.events.is_empty(), "text is the caller's part");
        assert_eq!(reply.prompt_ids.as_deref(), Some(&PROMPT[..]));
        assert_eq!(reply.chunks > 1, stream && place.streams(), "{place:?} {stream}");
        let logprobs: Vec<f32> = reply.logprobs.iter().map(|logprob| logprob.unwrap()).collect();
        // All engines run the same model, whose first reply is sure and second token is not.
        assert!((logprobs[0] + 0.002_435).abs() < 1e-5, "{place:?}: {logprobs:?}");
        assert!((logprobs[1] + 0.613_7).abs() < 1e-3, "{place:?}: {logprobs:?}");
        let end = reply.end();
        assert_eq!(end.finish, FinishReason::Stop, "{place:?}");
        assert_eq!((end.usage.prompt_tokens, end.usage.completion_tokens), (15, 18));
        assert!(end.extra.is_empty(), "{:?}", end.extra);
        let asked = server.last_at(place.path());
        assert_eq!(*place.prompt(&asked.body), json!(PROMPT));
        assert_eq!(asked.streams(), stream && place.streams());
        assert_eq!(asked.headers["x-request-id"], "call-1");
        assert_eq!(asked.headers["x-session-id"], "session-1");
    }
}

#[tokio::test]
async fn a_stop_string_ends_a_reply_and_its_ids_stay() {
    for (place, stream) in ways() {
        let (server, engine) = place.recorded_server().await;
        let reply = sample(&engine, stopping(stream)).await.unwrap();
        assert_eq!(reply.ids, REPLY[..STOPPED], "{place:?}");
        let end = reply.end();
        assert_eq!(end.finish, FinishReason::StopSequence);
        assert_eq!(end.stop_sequence.as_deref(), Some(" in"));
        let asked = server.last_at(place.path());
        assert_eq!(place.sampling(&asked.body)["stop"], json!([" in", " how"]));
        // llama.cpp has no logprob for the word that matched.
        let known = reply.logprobs.iter().flatten().count();
        assert_eq!(known, if place == Place::Llama { STOPPED - 1 } else { STOPPED });
        assert!(reply.logprobs[0].is_some());
    }
}

#[tokio::test]
async fn weight_versions_come_with_the_reply() {
    for (place, version) in [(Place::VllmGenerate, "default"), (Place::Sglang, "v0")] {
        for stream in [false, true] {
            let (_server, engine) = place.recorded_server().await;
            let reply = sample(&engine, request(stream)).await.unwrap();
            let [span] = reply.end().weight_versions.as_slice() else { panic!("{place:?}") };
            assert_eq!(span.version.as_deref(), Some(version));
            assert_eq!((span.start, span.end), (0, 18));
        }
    }
}

#[tokio::test]
async fn all_samplers_are_said() {
    for place in ALL {
        let (server, engine) = place.recorded_server().await;
        sample(&engine, request(false)).await.unwrap();
        let asked = server.last_at(place.path());
        let sent = place.sampling(&asked.body);
        for (name, value) in [("temperature", 1.0), ("top_p", 1.0), ("min_p", 0.0)] {
            assert_eq!(sent[name], json!(value), "{place:?} {name}");
        }
        assert_eq!(sent["top_k"], if place == Place::Llama { 0 } else { -1 }, "{place:?}");
        let (penalty, most) = match place {
            Place::VllmGenerate | Place::VllmCompletions => ("repetition_penalty", "max_tokens"),
            Place::Sglang => ("repetition_penalty", "max_new_tokens"),
            Place::Llama => ("repeat_penalty", "n_predict"),
        };
        assert_eq!((&sent[penalty], &sent[most]), (&json!(1.0), &json!(24)), "{place:?}");
    }
}

#[tokio::test]
async fn carried_fields_are_sent_where_they_are_known_and_named_where_not() {
    for place in ALL {
        let (server, engine) = place.recorded_server().await;
        let mut asked = request(false);
        for (name, value) in [
            ("min_p", json!(0.2)),
            ("repetition_penalty", json!(1.1)),
            ("logit_bias", json!({"7": -1})),
            ("echo", json!(true)),
            ("n", json!(2)),
        ] {
            asked.rest.insert(name.into(), value);
        }
        let reply = sample(&engine, asked).await.unwrap();
        let asked = server.last_at(place.path());
        let sent = place.sampling(&asked.body);
        assert_eq!(sent["min_p"], json!(0.2), "{place:?}");
        assert_eq!(sent["logit_bias"], json!({"7": -1}));
        let penalty = if place == Place::Llama { "repeat_penalty" } else { "repetition_penalty" };
        assert_eq!(sent[penalty], json!(1.1));
        for own in ["echo", "n"] {
            assert!(sent.get(own).is_none() && asked.body.get(own).is_none());
        }
        assert_eq!(reply.end().extra[NOT_SENT], json!(["echo", "n"]), "{place:?}");
    }
}

#[tokio::test]
async fn a_schema_is_said_in_the_engines_words() {
    let format = json!({"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}});
    let expected = [
        (Place::Sglang, json!(r#"{"type":"integer"}"#)),
        (Place::Llama, json!({"type": "integer"})),
    ];
    for (place, schema) in expected {
        let (server, engine) = place.recorded_server().await;
        let mut asked = request(false);
        asked.rest.insert("response_format".into(), format.clone());
        sample(&engine, asked).await.unwrap();
        let asked = server.last_at(place.path());
        assert_eq!(place.sampling(&asked.body)["json_schema"], schema, "{place:?}");
    }
}

#[tokio::test]
async fn promise_3_an_id_outside_the_vocabulary_never_reaches_an_engine() {
    for place in ALL {
        let (server, engine) = place.recorded_server().await;
        let size = engine.info().vocab_size.unwrap();
        let tokens = engine.tokens().unwrap();
        let before = server.asked_at(place.path()).len();
        let mut in_prompt = request(false);
        in_prompt.prompt = Arc::from([1, size]);
        let mut in_stops = request(false);
        in_stops.stop_token_ids = vec![size + 1];
        for asked in [in_prompt, in_stops] {
            let error = tokens.sample(asked).await.err().unwrap();
            assert_eq!(error.class, ErrorClass::Invalid, "{place:?}: {error}");
            assert!(error.message.contains("outside the vocabulary"), "{error}");
        }
        assert!(tokens.score(&[1, size], 0).await.is_err());
        assert_eq!(server.asked_at(place.path()).len(), before, "{place:?}");
    }
}

#[tokio::test]
async fn a_prompt_that_fills_the_window_is_told_with_its_numbers() {
    for place in ALL {
        let (server, engine) = place.recorded_server().await;
        let window = engine.info().context_window.unwrap();
        let before = server.asked_at(place.path()).len();
        let mut asked = request(true);
        asked.prompt = vec![1; usize::try_from(window).unwrap()].into();
        let error = sample(&engine, asked).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::ContextOverflow, "{place:?}");
        let used = error.context.unwrap();
        assert_eq!((used.tokens, used.window), (window, window));
        assert_eq!(server.asked_at(place.path()).len(), before, "{place:?}");
        let mut empty = request(false);
        empty.prompt = Arc::from([]);
        assert_eq!(sample(&engine, empty).await.unwrap_err().class, ErrorClass::Invalid);
    }
}

#[tokio::test]
async fn a_limit_that_does_not_fit_beside_the_prompt_is_lowered_to_what_is_left() {
    for place in ALL {
        let (server, engine) = place.recorded_server().await;
        let left = engine.info().context_window.unwrap() - 15;
        for most in [None, Some(left + 1), Some(u64::from(u32::MAX))] {
            let mut asked = request(false);
            asked.sampling.max_tokens = most;
            sample(&engine, asked).await.unwrap();
            let asked = server.last_at(place.path());
            let sent = place.sampling(&asked.body);
            let names = ["max_tokens", "max_new_tokens", "n_predict"];
            let sent = names.iter().find_map(|name| sent.get(*name));
            assert_eq!(sent, Some(&json!(left)), "{place:?} {most:?}");
        }
    }
}

/// An engine with a smaller window than it told says in its own words what does not fit.
#[tokio::test]
async fn an_engines_own_refusal_is_understood() {
    let too_long = [
        (Place::VllmGenerate, "vllm/generate_too_long.json"),
        (Place::VllmCompletions, "vllm/too_long.json"),
        (Place::Sglang, "sglang/ids_too_long.json"),
        (Place::Llama, "llama/ids_too_long.json"),
    ];
    for (place, body) in too_long {
        let (_server, engine) = place.serve(move |_| Answer::Json(400, fixture(body))).await;
        let error = sample(&engine, request(false)).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::ContextOverflow, "{place:?}: {error}");
        assert!(error.context.is_some(), "{place:?}: {error}");
    }
    // SGLang accepts a stream before it looks at the request.
    let (_server, engine) =
        Place::Sglang.serve(|_| Answer::Stream(fixture("sglang/ids_too_long.sse"))).await;
    let error = engine.tokens().unwrap().sample(request(true)).await.err().unwrap();
    assert_eq!(error.class, ErrorClass::ContextOverflow);
}

#[tokio::test]
async fn a_cut_stream_is_an_error_behind_what_came() {
    for place in ALL.into_iter().filter(|place| place.streams()) {
        let (_server, engine) = place
            .serve(move |_| {
                let whole = fixture(&format!("{}.sse", place.recorded()));
                Answer::Cut(whole[..whole.len() / 2].to_owned())
            })
            .await;
        let error = sample(&engine, request(true)).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Unavailable, "{place:?}: {error}");
    }
}

#[tokio::test]
async fn a_stream_without_an_end_is_an_error() {
    for place in ALL.into_iter().filter(|place| place.streams()) {
        let (_server, engine) =
            place.serve(|_| Answer::Stream("data: [DONE]\n\n".to_owned())).await;
        let error = sample(&engine, request(true)).await.unwrap_err();
        assert!(error.message.contains("finish reason"), "{place:?}: {error}");
    }
}

#[tokio::test]
async fn dropping_a_sampling_closes_its_connection() {
    for place in ALL.into_iter().filter(|place| place.streams()) {
        let (mut server, engine) = place
            .serve(move |_| {
                let whole = fixture(&format!("{}.sse", place.recorded()));
                let (first, _) = whole.split_once("\n\n").unwrap();
                Answer::Hang(format!("{first}\n\n"))
            })
            .await;
        let stream = engine.tokens().unwrap().sample(request(true)).await.unwrap();
        drop(stream);
        assert_eq!(server.client_left().await, place.path());
    }
}

/// Or else nothing could be kept of a reply that nobody waits for to its end.
#[tokio::test]
async fn promise_3_a_prompt_is_confirmed_with_the_first_piece_that_counts_it() {
    for place in ALL.into_iter().filter(|place| place.streams()) {
        let (server, engine) = place
            .serve(move |_| {
                let whole = fixture(&format!("{}.sse", place.recorded()));
                let (first, _) = whole.split_once("\n\n").unwrap();
                let mut piece: Value =
                    serde_json::from_str(first.strip_prefix("data: ").unwrap()).unwrap();
                if place != Place::Sglang {
                    piece["usage"] = json!({"prompt_tokens": PROMPT.len(), "completion_tokens": 1});
                }
                Answer::Hang(format!("data: {piece}\n\n"))
            })
            .await;
        let mut stream = engine.tokens().unwrap().sample(request(true)).await.unwrap();
        let EngineEvent::PromptIds(prompt) = stream.next().await.unwrap().unwrap() else {
            panic!("{place:?}")
        };
        assert_eq!(prompt, PROMPT);
        let EngineEvent::Chunk { ids, .. } = stream.next().await.unwrap().unwrap() else {
            panic!("{place:?}")
        };
        assert_eq!(ids, REPLY[..ids.len()]);
        if place != Place::Sglang {
            let asked = server.last_at(place.path());
            assert_eq!(asked.body["stream_options"]["continuous_usage_stats"], true);
        }
    }
}

/// The recorded whole reply, changed.
async fn answering(
    place: Place,
    change: impl Fn(&mut Value) + Send + Sync + 'static,
) -> (FakeEngine, Arc<dyn Engine>) {
    place
        .serve(move |_| {
            let text = fixture(&format!("{}.json", place.recorded()));
            let mut reply: Value = serde_json::from_str(&text).unwrap();
            change(&mut reply);
            Answer::json(reply)
        })
        .await
}

/// Takes the first logprob out of whichever list it is in.
fn lose_a_logprob(reply: &mut Value) {
    for path in [
        "/choices/0/logprobs/content",
        "/choices/0/logprobs/token_logprobs",
        "/meta_info/output_token_logprobs",
    ] {
        if let Some(list) = reply.pointer_mut(path) {
            list.as_array_mut().unwrap().remove(0);
        }
    }
}

#[tokio::test]
async fn promise_3_logprobs_in_another_number_than_ids_are_missing() {
    for place in [Place::VllmGenerate, Place::VllmCompletions, Place::Sglang] {
        let (_server, engine) = answering(place, lose_a_logprob).await;
        let reply = sample(&engine, request(false)).await.unwrap();
        assert_eq!(reply.ids, REPLY);
        assert!(reply.logprobs.iter().all(Option::is_none), "{place:?}");
        assert_eq!(reply.end().extra["logprobs_not_paired"], 18, "{place:?}");
    }
}

#[tokio::test]
async fn promise_3_logprobs_of_other_ids_are_missing() {
    let swapped = [
        (Place::VllmGenerate, "/choices/0/logprobs/content/3/token_id"),
        (Place::Sglang, "/meta_info/output_token_logprobs/3/1"),
        (Place::Llama, "/completion_probabilities/3/id"),
    ];
    for (place, path) in swapped {
        let (_server, engine) =
            answering(place, move |reply| *reply.pointer_mut(path).unwrap() = json!(500)).await;
        let reply = sample(&engine, request(false)).await.unwrap();
        assert!(reply.logprobs.iter().all(Option::is_none), "{place:?}");
        assert!(reply.end().extra.contains_key("logprobs_not_paired"));
    }
}

#[tokio::test]
async fn promise_3_a_prompt_of_another_length_is_not_confirmed() {
    let counts = [
        (Place::VllmGenerate, "/usage/prompt_tokens"),
        (Place::VllmCompletions, "/usage/prompt_tokens"),
        (Place::Sglang, "/meta_info/prompt_tokens"),
        (Place::Llama, "/tokens_evaluated"),
    ];
    for (place, path) in counts {
        let (_server, engine) =
            answering(place, move |reply| *reply.pointer_mut(path).unwrap() = json!(16)).await;
        let reply = sample(&engine, request(false)).await.unwrap();
        assert_eq!(reply.prompt_ids, None, "{place:?}");
        assert_eq!(reply.end().usage.prompt_tokens, 16);
        let why = reply.end().extra["prompt_ids_missing"].as_str().unwrap();
        assert_eq!(why, "15 ids were sent, the engine had 16");
    }
}

#[tokio::test]
async fn a_sampled_id_outside_the_vocabulary_is_an_error() {
    let ids = [
        (Place::VllmGenerate, "/choices/0/token_ids/2"),
        (Place::VllmCompletions, "/choices/0/token_ids/2"),
        (Place::Sglang, "/output_ids/2"),
        (Place::Llama, "/tokens/2"),
    ];
    for (place, path) in ids {
        let (_server, engine) =
            answering(place, move |reply| *reply.pointer_mut(path).unwrap() = json!(99999)).await;
        let error = sample(&engine, request(false)).await.unwrap_err();
        assert!(error.message.contains("99999"), "{place:?}: {error}");
    }
}

#[tokio::test]
async fn an_aborted_reply_keeps_what_was_sampled() {
    for place in [Place::VllmGenerate, Place::VllmCompletions, Place::Sglang] {
        let (_server, engine) = answering(place, |reply| {
            for (path, reason) in [
                ("/choices/0/finish_reason", json!("abort")),
                ("/meta_info/finish_reason", json!({"type": "abort", "message": "Aborted"})),
            ] {
                if let Some(place) = reply.pointer_mut(path) {
                    *place = reason;
                }
            }
        })
        .await;
        let reply = sample(&engine, request(false)).await.unwrap();
        assert_eq!(reply.end().finish, FinishReason::Abort, "{place:?}");
        assert_eq!(reply.ids, REPLY);
    }
}

#[tokio::test]
async fn an_end_that_only_the_caller_knows_ends_the_turn() {
    for place in ALL {
        let (server, engine) = place.recorded_server().await;
        let mut asked = request(false);
        asked.stop_token_ids = vec![13];
        let reply = sample(&engine, asked).await.unwrap();
        let sent = server.last_at(place.path());
        match place {
            // It is not told, so the reply goes on, and is cut.
            Place::Llama => {
                assert_eq!(reply.ids, REPLY[..8]);
                assert_eq!(reply.logprobs.len(), 8);
                assert_eq!(reply.end().usage.completion_tokens, 8);
                let cut = json!({"id": 13, "dropped": 10});
                assert_eq!(reply.end().extra["cut_at_stop_token"], cut);
            }
            _ => assert_eq!(place.sampling(&sent.body)["stop_token_ids"], json!([13])),
        }
        assert_eq!(reply.end().finish, FinishReason::Stop);
    }
}

#[tokio::test]
async fn experts_are_kept_with_their_shape() {
    // Two experts in one layer, for each of 32 tokens: NumPy's file format in vLLM, bare in SGLang.
    let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (32, 1, 2), }\n";
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
    file.extend(header.as_bytes());
    file.extend([3; 64]);
    let npy = STANDARD.encode(file);
    let (_server, engine) = answering(Place::VllmGenerate, move |reply| {
        reply["choices"][0]["routed_experts"] = json!(npy);
    })
    .await;
    let reply = sample(&engine, request(false)).await.unwrap();
    let array = &reply.end().arrays["routed_experts"];
    assert_eq!((array.dtype.as_str(), array.shape.as_slice()), ("uint8", &[32, 1, 2][..]));
    assert_eq!(STANDARD.decode(&array.data).unwrap(), [3; 64]);
    let bare = STANDARD.encode([1; 32 * 2 * 4]);
    let (_server, engine) = answering(Place::Sglang, move |reply| {
        reply["meta_info"]["routed_experts"] = json!(bare);
    })
    .await;
    let reply = sample(&engine, request(false)).await.unwrap();
    let array = &reply.end().arrays["routed_experts"];
    assert_eq!((array.dtype.as_str(), array.shape.as_slice()), ("int32", &[32, 2][..]));
    // What cannot be read is kept as it came.
    let (_server, engine) = answering(Place::VllmGenerate, |reply| {
        reply["choices"][0]["routed_experts"] = json!("?");
    })
    .await;
    let reply = sample(&engine, request(false)).await.unwrap();
    assert_eq!(reply.end().extra["routed_experts"], "?");
}

#[tokio::test]
async fn a_sequence_is_scored_by_the_engine() {
    let sequence: Vec<u32> = PROMPT.iter().chain(&REPLY).copied().collect();
    let places =
        [(Place::VllmCompletions, "vllm/scores.json"), (Place::Sglang, "sglang/scores.json")];
    for (place, recorded) in places {
        let (server, engine) = place.serve(move |_| Answer::json(fixture(recorded))).await;
        let scores = engine.tokens().unwrap().score(&sequence, 15).await.unwrap();
        assert_eq!(scores.len(), sequence.len());
        assert!(scores[..15].iter().all(Option::is_none), "{place:?}");
        assert!((scores[15].unwrap() + 0.002_435).abs() < 1e-5, "{place:?}: {scores:?}");
        assert!(scores[15..].iter().all(Option::is_some), "{place:?}");
        let sent = server.last_at(place.path()).body;
        assert_eq!(*place.prompt(&sent), json!(sequence));
        let other: Vec<u32> = sequence.iter().rev().copied().collect();
        match place {
            // Keyed by id, so that none is found.
            Place::VllmCompletions => {
                let scores = engine.tokens().unwrap().score(&other, 0).await.unwrap();
                assert!(scores[0].is_none());
            }
            _ => assert!(engine.tokens().unwrap().score(&other, 15).await.is_err()),
        }
        assert!(engine.tokens().unwrap().score(&sequence[1..], 15).await.is_err(), "{place:?}");
    }
}

#[tokio::test]
async fn the_engines_own_rendering_is_told() {
    for place in ALL {
        let (_server, engine) = place.recorded_server().await;
        let asked = crate::fake_engine::request(false);
        let ids = engine.tokens().unwrap().render(&asked).await.unwrap();
        assert!(!ids.is_empty(), "{place:?}");
    }
}
