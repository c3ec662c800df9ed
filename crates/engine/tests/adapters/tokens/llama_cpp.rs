//! What only llama.cpp does.

use super::{PROMPT, REPLY, answering, request, sample};
use crate::fake_engine::Answer;
use crate::place::Place;
use polar_types::ErrorClass;
use serde_json::{Value, json};

#[tokio::test]
async fn promise_3_a_missing_logprob_leaves_a_hole_of_its_own() {
    let (_server, engine) = answering(Place::Llama, |reply| {
        reply["completion_probabilities"].as_array_mut().unwrap().remove(4);
    })
    .await;
    let reply = sample(&engine, request(false)).await.unwrap();
    let holes: Vec<usize> = (0..18).filter(|at| reply.logprobs[*at].is_none()).collect();
    assert_eq!(holes, [4]);
}

#[tokio::test]
async fn llama_cpp_says_that_it_does_not_score() {
    let (_server, engine) = Place::Llama.recorded_server().await;
    let error = engine.tokens().unwrap().score(&PROMPT, 0).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Invalid);
    assert!(error.message.contains("llama.cpp does not tell"), "{error}");
}

/// The server reads every reply with a parser, which fails those whose bytes are no characters.
#[tokio::test]
async fn the_server_is_told_to_read_no_reply_unless_it_does_not_know_how() {
    let (server, engine) = Place::Llama.recorded_server().await;
    sample(&engine, request(false)).await.unwrap();
    let asked = server.last_at(Place::Llama.path());
    let parser: Value = serde_json::from_str(asked.body["chat_parser"].as_str().unwrap()).unwrap();
    assert_eq!(parser["parsers"], json!([{"type": "epsilon"}]));
    let (server, engine) = Place::Llama
        .serve(|asked| match asked.body.get("chat_parser") {
            Some(_) => {
                let said = json!({"error": {"code": 400, "message": "Field 'chat_parser': no"}});
                Answer::Json(400, said.to_string())
            }
            None => Place::Llama.recorded_answer(asked),
        })
        .await;
    let reply = sample(&engine, request(false)).await.unwrap();
    assert_eq!(reply.ids, REPLY);
    assert_eq!(server.asked_at(Place::Llama.path()).len(), 2);
}
