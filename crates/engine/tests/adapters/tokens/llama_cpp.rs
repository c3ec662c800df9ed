//! What only llama.cpp does.

use super::{PROMPT, answering, request, sample};
use crate::place::Place;
use polar_types::ErrorClass;

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
