//! Logprobs of a reply or a prompt, in the shapes of the two completion APIs.

use super::Simulator;
use crate::Vocabulary;
use crate::weights::{Context, Distribution, Logprob};
use polar_tokens::detokenizer::IncrementalText;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// `logprobs` of a chat choice.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ChatLogprobs {
    pub content: Vec<ChatToken>,
}

/// One sampled token.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ChatToken {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
    top_logprobs: Vec<TopToken>,
}

#[derive(Debug, Clone, Serialize)]
struct TopToken {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

/// A token with its chances.
#[derive(Debug, Clone)]
pub(super) struct Scored {
    pub id: u32,
    pub text: String,
    pub logprob: Logprob,
    /// The token itself first, then the likeliest others.
    pub all: Vec<(u32, String, Logprob)>,
}

/// Scores tokens one after the other.
#[derive(Debug)]
pub(super) struct Scorer<'a> {
    vocabulary: &'a Vocabulary,
    context: Context,
    text: IncrementalText,
}

/// Where a [`Scorer`] is, without its borrow.
#[derive(Debug)]
pub(super) struct ScorerState {
    context: Context,
    text: IncrementalText,
}

impl ScorerState {
    pub(super) fn at(context: Context) -> Self {
        Self { context, text: IncrementalText::default() }
    }

    pub(super) fn resume(self, simulator: &Simulator) -> Scorer<'_> {
        Scorer { vocabulary: &simulator.vocabulary, context: self.context, text: self.text }
    }
}

impl Scorer<'_> {
    pub(super) fn pause(self) -> ScorerState {
        ScorerState { context: self.context, text: self.text }
    }

    /// The next token, sampled by weights `version`, with the `top` likeliest.
    pub(super) fn score(&mut self, id: u32, version: &str, top: usize) -> Scored {
        let chances = self.context.distribution(version, self.vocabulary.size());
        let before = self.text.clone();
        let text = self.text.push(self.vocabulary.bytes(id));
        let all = self.alternatives(&chances, id, &text, &before, top);
        self.context = self.context.then(id);
        Scored { id, text, logprob: chances.of(id), all }
    }

    fn alternatives(
        &self,
        chances: &Distribution,
        id: u32,
        text: &str,
        before: &IncrementalText,
        top: usize,
    ) -> Vec<(u32, String, Logprob)> {
        let others = chances.top(top).into_iter().filter(|(other, _)| *other != id);
        std::iter::once((id, text.to_owned(), chances.of(id)))
            .chain(others.map(|(other, logprob)| {
                let text = before.clone().push(self.vocabulary.bytes(other));
                (other, text, logprob)
            }))
            .collect()
    }
}

impl Scored {
    /// As chat completions show it. `top` is `top_logprobs` of the request.
    pub(super) fn into_chat(self, top: usize, as_ids: bool) -> ChatToken {
        let spell = |id: u32, text: String| if as_ids { format!("token_id:{id}") } else { text };
        ChatToken {
            bytes: self.text.as_bytes().to_vec(),
            token: spell(self.id, self.text),
            logprob: f64::from(self.logprob.value),
            top_logprobs: self
                .all
                .into_iter()
                .take(top)
                .map(|(id, text, logprob)| {
                    let token = spell(id, text);
                    let bytes = token.as_bytes().to_vec();
                    TopToken { token, logprob: f64::from(logprob.value), bytes }
                })
                .collect(),
        }
    }
}

impl Scored {
    /// As the place for ids shows it. `top` is `logprobs` of the request.
    pub(super) fn into_ids(self, top: usize) -> Value {
        let entry = |id: u32, logprob: Logprob| {
            let value = f64::from(logprob.value);
            json!({"token_id": id, "logprob": value, "rank": logprob.rank})
        };
        let mut shown = entry(self.id, self.logprob);
        let all = self.all.iter().take(top.max(1));
        shown["top_logprobs"] = all.map(|(id, _, logprob)| entry(*id, *logprob)).collect();
        shown
    }
}

/// `prompt_logprobs`: null for the first token, then each token with the `top` likeliest.
pub(super) fn prompt_logprobs(simulator: &Simulator, prompt: &[u32], top: usize) -> Vec<Value> {
    let version = simulator.control.weights();
    let mut scorer = ScorerState::at(Context::empty()).resume(simulator);
    let scored: Vec<Value> = prompt
        .iter()
        .map(|id| {
            let all = scorer.score(*id, &version, top).all;
            let entries: Map<String, Value> = all
                .into_iter()
                .map(|(id, text, logprob)| {
                    let entry = json!({
                        "logprob": f64::from(logprob.value),
                        "rank": logprob.rank,
                        "decoded_token": text,
                    });
                    (id.to_string(), entry)
                })
                .collect();
            Value::Object(entries)
        })
        .collect();
    std::iter::once(Value::Null).chain(scored.into_iter().skip(1)).take(prompt.len()).collect()
}
