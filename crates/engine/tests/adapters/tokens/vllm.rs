//! What only vLLM does.

use super::{PROMPT, REPLY, answering, request, sample};
use crate::fake_engine::{Answer, fixture};
use crate::place::{Place, probed};
use polar_engine::SampleRequest;
use polar_types::ErrorClass;
use serde_json::{Value, json};

#[tokio::test]
async fn what_generate_has_no_field_for_is_asked_of_completions() {
    let (server, engine) = Place::VllmGenerate
        .serve(|asked| match asked.path.as_str() {
            "/v1/completions" => Place::VllmCompletions.recorded_answer(asked),
            _ => Place::VllmGenerate.recorded_answer(asked),
        })
        .await;
    let mut asked = request(false);
    asked.rest.insert("response_format".into(), json!({"type": "json_object"}));
    let error = sample(&engine, asked).await.err();
    assert_eq!(error.unwrap().class, ErrorClass::NotFound, "this server has no completions");
    let sent = server.last_at("/v1/completions");
    assert_eq!(sent.body["response_format"], json!({"type": "json_object"}));
    assert_eq!(sent.body["prompt"], json!(PROMPT));
}

#[tokio::test]
async fn promise_3_a_place_whose_logprobs_name_no_ids_is_not_used() {
    // As before it gave ids: a string in their place.
    let older = probed(json!({"token": "token_id:7", "logprob": -0.5}));
    let (server, engine) = Place::VllmCompletions
        .serve_beside(
            move |_| Answer::json(&older),
            |asked| Place::VllmCompletions.recorded_answer(asked),
        )
        .await;
    let reply = sample(&engine, request(false)).await.unwrap();
    assert!(reply.logprobs.iter().all(Option::is_some));
    assert_eq!(server.asked_at("/inference/v1/generate").len(), 1, "the probe alone");
    assert_eq!(server.asked_at("/v1/completions").len(), 1);
}

#[tokio::test]
async fn a_prompt_with_other_ids_is_an_error() {
    let (_server, engine) = answering(Place::VllmCompletions, |reply| {
        reply["choices"][0]["prompt_token_ids"][3] = json!(7);
    })
    .await;
    let error = sample(&engine, request(false)).await.unwrap_err();
    assert!(error.message.contains("another prompt"), "{error}");
}

#[tokio::test]
async fn minus_infinity_is_read_as_vllm_writes_it() {
    let (_server, engine) = answering(Place::VllmGenerate, |reply| {
        reply["choices"][0]["logprobs"]["content"][1]["logprob"] = json!(-9999.0);
    })
    .await;
    let reply = sample(&engine, request(false)).await.unwrap();
    assert_eq!(reply.logprobs[1], Some(f32::NEG_INFINITY));
}

/// The second and the last id of the prompt are marks of pictures.
pub(super) fn showing(stream: bool) -> SampleRequest {
    let mut asked = request(stream);
    let mut prompt = PROMPT.to_vec();
    (prompt[1], prompt[14]) = (500, 500);
    asked.prompt = prompt.into();
    asked.picture_mark = Some(500);
    asked.pictures = vec!["data:image/png;base64,AAAA".to_owned(), "http://host/b.png".to_owned()];
    asked
}

/// What it has in context of that, with three ids of one picture and one of the other.
pub(super) fn shown() -> Value {
    let mut had = PROMPT.to_vec();
    had[14] = 500;
    had.splice(1..2, [500, 500, 500]);
    json!({
        "prompt_token_ids": had,
        "mm_placeholders": {"image": [{"offset": 1, "length": 3}, {"offset": 16, "length": 1}]},
    })
}

/// The recorded replies, with this told of the prompt.
async fn telling(
    told: Value,
    stream: bool,
) -> (Value, Result<crate::fake_engine::Generation, polar_engine::EngineError>) {
    let (server, engine) = Place::VllmGenerate
        .serve(move |asked| {
            let name = Place::VllmGenerate.recorded();
            let tell = |piece: &str| {
                let mut piece: Value = serde_json::from_str(piece).unwrap();
                piece.as_object_mut().unwrap().extend(told.as_object().unwrap().clone());
                piece["usage"] = json!({"prompt_tokens": 17, "completion_tokens": 18});
                piece
            };
            if !asked.streams() {
                return Answer::json(tell(&fixture(&format!("{name}.json"))));
            }
            let recorded = fixture(&format!("{name}.sse"));
            let (first, rest) = recorded.split_once("\n\n").unwrap();
            Answer::Stream(format!(
                "data: {}\n\n{rest}",
                tell(first.strip_prefix("data: ").unwrap())
            ))
        })
        .await;
    let reply = sample(&engine, showing(stream)).await;
    (server.last_at(Place::VllmGenerate.path()).body, reply)
}

#[tokio::test]
async fn promise_2_a_prompt_with_pictures_is_the_one_that_the_engine_had() {
    for stream in [false, true] {
        let (sent, reply) = telling(shown(), stream).await;
        let reply = reply.unwrap();
        let had: Vec<u32> = serde_json::from_value(shown()["prompt_token_ids"].clone()).unwrap();
        assert_eq!((reply.prompt_ids, &reply.ids[..]), (Some(had), &REPLY[..]));
        assert_eq!(sent["token_ids"], json!(&*showing(stream).prompt));
        assert_eq!(sent["return_token_ids"], true);
        let parts = json!([
            {"type": "image_url", "url": "data:image/png;base64,AAAA"},
            {"type": "image_url", "url": "http://host/b.png"},
        ]);
        assert_eq!(sent["content_parts"], parts);
    }
}

#[tokio::test]
async fn promise_2_a_prompt_that_is_another_even_without_its_pictures_is_an_error() {
    let changes: [fn(&mut Value); 3] = [
        |told| told["prompt_token_ids"][5] = json!(7),
        |told| drop(told["mm_placeholders"]["image"].as_array_mut().unwrap().pop()),
        // One picture in the place of something that was no mark.
        |told| told["mm_placeholders"]["image"][1]["offset"] = json!(15),
    ];
    for change in changes {
        let mut told = shown();
        change(&mut told);
        let error = telling(told, false).await.1.unwrap_err();
        assert!(error.message.contains("another prompt"), "{error}");
    }
    let reply = telling(json!({}), false).await.1.unwrap();
    assert_eq!(reply.prompt_ids, None);
    let why = reply.end().extra["prompt_ids_missing"].as_str().unwrap();
    assert!(why.contains("does not tell its prompt"), "{why}");
}

#[tokio::test]
async fn pictures_are_refused_where_ids_cannot_show_them() {
    for place in [Place::VllmCompletions, Place::Llama] {
        let (server, engine) = place.recorded_server().await;
        let before = server.asked_at(place.path()).len();
        let error = sample(&engine, showing(false)).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Invalid, "{place:?}: {error}");
        assert!(error.message.contains("no pictures"), "{error}");
        let mark = engine.tokens().unwrap().picture_mark(&PROMPT, "http://host/b.png").await;
        assert_eq!(mark.unwrap(), None);
        assert_eq!(server.asked_at(place.path()).len(), before, "{place:?}");
    }
}

#[tokio::test]
async fn the_mark_of_a_picture_is_found_out_by_showing_one() {
    let mut prompt = PROMPT.to_vec();
    prompt[1] = 500;
    let ask = async |answer: fn(&[u32]) -> Answer| {
        let asked = prompt.clone();
        let (_server, engine) = Place::VllmGenerate.serve(move |_| answer(&asked)).await;
        engine.tokens().unwrap().picture_mark(&prompt, "http://host/b.png").await.unwrap()
    };
    let found = ask(|prompt| {
        let mut had = prompt.to_vec();
        had.splice(1..2, [500; 4]);
        let places = json!({"image": [{"offset": 1, "length": 4}]});
        Answer::json(json!({"choices": [], "prompt_token_ids": had, "mm_placeholders": places}))
    })
    .await;
    assert_eq!(found, Some(500));
    // A model that sees nothing, and a version that does not know the field.
    let refused = |_: &[u32]| Answer::Json(500, r#"{"error": {"message": "no"}}"#.to_owned());
    assert_eq!(ask(refused).await, None);
    assert_eq!(ask(|prompt| Answer::json(json!({"prompt_token_ids": prompt}))).await, None);
}
