//! Where engines take ids, and what they were recorded to answer there.

use crate::fake_engine::{Answer, Asked, FakeEngine, connect, fixture};
use crate::{llama_cpp, sglang, vllm};
use polar_engine::Engine;
use serde_json::{Value, json};
use std::sync::Arc;

/// The places where the engines take ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// vLLM with `--enable-scale-out`.
    VllmGenerate,
    /// vLLM without.
    VllmCompletions,
    Sglang,
    Llama,
}

pub(crate) const ALL: [Place; 4] =
    [Place::VllmGenerate, Place::VllmCompletions, Place::Sglang, Place::Llama];

impl Place {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::VllmGenerate => "/inference/v1/generate",
            Self::VllmCompletions => "/v1/completions",
            Self::Sglang => "/generate",
            Self::Llama => "/completion",
        }
    }

    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::VllmGenerate | Self::VllmCompletions => "vllm",
            Self::Sglang => "sglang",
            Self::Llama => "llama",
        }
    }

    pub(crate) fn recorded(self) -> String {
        let name = match self {
            Self::VllmGenerate => "generate",
            Self::VllmCompletions => "completion",
            Self::Sglang | Self::Llama => "ids",
        };
        format!("{}/{name}", self.folder())
    }

    pub(crate) fn streams(self) -> bool {
        self != Self::Llama
    }

    pub(crate) fn prompt(self, body: &Value) -> &Value {
        match self {
            Self::VllmGenerate => &body["token_ids"],
            Self::Sglang => &body["input_ids"],
            Self::VllmCompletions | Self::Llama => &body["prompt"],
        }
    }

    pub(crate) fn sampling(self, body: &Value) -> &Value {
        match self {
            Self::VllmGenerate | Self::Sglang => &body["sampling_params"],
            Self::VllmCompletions | Self::Llama => body,
        }
    }

    pub(crate) fn page(self, asked: &Asked) -> Answer {
        match self {
            Self::VllmGenerate | Self::VllmCompletions => vllm::pages(asked),
            Self::Sglang => sglang::pages(asked),
            Self::Llama => llama_cpp::pages(asked),
        }
    }

    /// As the server answered.
    pub(crate) fn recorded_answer(self, asked: &Asked) -> Answer {
        let stops = self.sampling(&asked.body).get("stop").is_some();
        let name = format!("{}{}", self.recorded(), if stops { "_stop" } else { "" });
        match asked.streams() {
            true => Answer::Stream(fixture(&format!("{name}.sse"))),
            false => Answer::json(fixture(&format!("{name}.json"))),
        }
    }

    /// A server that answers what is asked there as a test says.
    pub(crate) async fn serve(
        self,
        answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> (FakeEngine, Arc<dyn Engine>) {
        let disabled = json!({"error": {"message": "disabled"}}).to_string();
        self.serve_beside(move |_| Answer::Json(403, disabled.clone()), answer).await
    }

    /// The same, beside a place at `/inference/v1/generate` that answers by `other`.
    pub(crate) async fn serve_beside(
        self,
        other: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
        answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> (FakeEngine, Arc<dyn Engine>) {
        let server = FakeEngine::start(move |asked| {
            let folder = self.folder();
            match asked.path.as_str() {
                "/v1/chat/completions" if asked.body["logit_bias"].get("-1").is_some() => {
                    Answer::Json(400, fixture(&format!("{folder}/no_such_id.json")))
                }
                "/v1/chat/completions" => {
                    let kind = if asked.body.get("tools").is_some() { "tool" } else { "text" };
                    match asked.streams() {
                        true => Answer::Stream(fixture(&format!("{folder}/{kind}.sse"))),
                        false => Answer::json(fixture(&format!("{folder}/{kind}.json"))),
                    }
                }
                path if path == self.path() => {
                    match self == Self::VllmGenerate && is_probe(asked) {
                        true => Answer::json(probed(json!({"token_id": 7, "logprob": -0.5}))),
                        false => answer(asked),
                    }
                }
                "/inference/v1/generate" => other(asked),
                _ => self.page(asked),
            }
        })
        .await;
        let engine = connect(&server).await;
        (server, engine)
    }

    pub(crate) async fn recorded_server(self) -> (FakeEngine, Arc<dyn Engine>) {
        self.serve(move |asked| self.recorded_answer(asked)).await
    }
}

/// The answer to it, with this logprob.
pub(crate) fn probed(logprob: Value) -> Value {
    json!({"choices": [{"token_ids": [7], "logprobs": {"content": [logprob]}}]})
}

/// The question whether ids are taken there at all.
fn is_probe(asked: &Asked) -> bool {
    asked.body["token_ids"] == json!([0])
}
