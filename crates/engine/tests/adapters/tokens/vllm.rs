//! What only vLLM does.

use super::{PROMPT, answering, request, sample};
use crate::fake_engine::Answer;
use crate::place::{Place, probed};
use polar_types::ErrorClass;
use serde_json::json;

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
