//! Asking the engine without Polar: the same call once more, and the logprob of each
//! token of a given sequence.

use crate::engine_under_test::{EngineUnderTest, NOT_STARTED};
use polar_engine::EngineKind;
use polar_record::CallRecord;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// What one generation took in and gave.
pub(crate) struct Tokens {
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampled: Vec<u32>,
    pub(crate) logprobs: Vec<f32>,
}

fn take<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

impl EngineUnderTest {
    /// The call as it was recorded, sent to the engine in its own form.
    pub(crate) async fn again(&self, record: &CallRecord) -> Tokens {
        let mut body = json!({
            "model": "polar-tiny",
            "messages": record.messages,
            "tools": record.tools,
            "logprobs": true,
            "top_p": 1.0,
        });
        for (name, value) in record.meta.sampling.as_object().unwrap() {
            body[name] = value.clone();
        }
        if self.gives_raw_text && self.kind == EngineKind::Vllm && record.tools.is_some() {
            // Refuses a free choice without a parser; the prompt is the same.
            body["tool_choice"] = json!("none");
        }
        match self.kind {
            EngineKind::TensorRtLlm => panic!("{NOT_STARTED}"),
            EngineKind::LlamaCpp => self.again_from_llama(body).await,
            EngineKind::Vllm | EngineKind::Sglang => {
                body["return_token_ids"] = json!(true);
                let reply = self.post("/v1/chat/completions", &body).await;
                let choice = &reply["choices"][0];
                let (prompt, sampled) = match self.kind {
                    EngineKind::Vllm => (&reply["prompt_token_ids"], &choice["token_ids"]),
                    _ => (&choice["prompt_token_ids"], &choice["response_token_ids"]),
                };
                let entries = choice["logprobs"]["content"].as_array().unwrap();
                Tokens {
                    prompt: take(prompt),
                    sampled: take(sampled),
                    logprobs: entries.iter().map(|entry| take(&entry["logprob"])).collect(),
                }
            }
        }
    }

    async fn again_from_llama(&self, mut body: Value) -> Tokens {
        for (name, value) in [
            ("top_logprobs", json!(1)),
            ("top_k", json!(0)),
            ("min_p", json!(0)),
            ("verbose", json!(true)),
            ("return_tokens", json!(true)),
        ] {
            body[name] = value;
        }
        let reply = self.post("/v1/chat/completions", &body).await;
        let text = &reply["__verbose"]["prompt"];
        let question = json!({"content": text, "parse_special": true, "add_special": false});
        let entries = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
        Tokens {
            prompt: take(&self.post("/tokenize", &question).await["tokens"]),
            sampled: take(&reply["__verbose"]["tokens"]),
            logprobs: entries.iter().map(|entry| take(&entry["logprob"])).collect(),
        }
    }

    /// The engine's logprob of each token from `from` on, given all tokens before it.
    pub(crate) async fn score(&self, ids: &[u32], from: usize) -> Vec<Option<f32>> {
        match self.kind {
            EngineKind::Vllm => {
                let body = json!({
                    "model": "polar-tiny", "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0,
                });
                let reply = self.post("/v1/completions", &body).await;
                let scored = reply["choices"][0]["prompt_logprobs"].as_array().unwrap();
                let scores = ids.iter().zip(scored).skip(from);
                scores.map(|(id, entry)| take(&entry[id.to_string()]["logprob"])).collect()
            }
            EngineKind::Sglang => {
                let body = json!({
                    "input_ids": ids, "return_logprob": true, "logprob_start_len": 0,
                    "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
                });
                let reply = self.post("/generate", &body).await;
                let scored = reply["meta_info"]["input_token_logprobs"].as_array().unwrap();
                assert_eq!(scored.len(), ids.len());
                scored.iter().skip(from).map(|entry| take(&entry[0])).collect()
            }
            EngineKind::LlamaCpp => {
                let mut scores = Vec::new();
                for end in from..ids.len() {
                    scores.push(self.score_from_llama(&ids[..end], ids[end]).await);
                }
                scores
            }
            EngineKind::TensorRtLlm => panic!("{NOT_STARTED}"),
        }
    }

    /// llama.cpp has no logprobs of prompts, so the token is forced; its logprob is taken before
    /// the bias. There is none for a token that is part of a character.
    async fn score_from_llama(&self, context: &[u32], next: u32) -> Option<f32> {
        let body = json!({
            "prompt": context, "n_predict": 1, "n_probs": 1, "cache_prompt": true,
            "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
            "logit_bias": [[next, 1000]],
        });
        let reply = match self.try_post("/completion", &body).await {
            Ok(reply) => reply,
            // What it says when a reply ends within a character.
            Err(said) if said.contains("does not match the expected") => return None,
            Err(said) => panic!("{said}"),
        };
        let entry = &reply["completion_probabilities"][0];
        if entry.is_null() {
            return None;
        }
        assert_eq!(entry["id"], next);
        Some(take(&entry["logprob"]))
    }
}
