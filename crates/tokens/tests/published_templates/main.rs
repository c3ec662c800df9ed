//! Published chat templates, rendered here and by `transformers`, and what they put behind a turn of
//! the model.
//!
//! `tests/templates/expected.py` writes the file that `POLAR_TEMPLATE_CASES` names.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod rendering;
mod tails;

use polar_tokens::template::{ChatTemplate, CivilDateTime, TemplateError, TemplateFiles};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

#[derive(Deserialize)]
pub(crate) struct File {
    pub(crate) transformers: String,
    pub(crate) now: CivilDateTime,
    pub(crate) specials: Map<String, Value>,
    pub(crate) cases: Vec<Case>,
    pub(crate) templates: Vec<Template>,
}

#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) options: Map<String, Value>,
    pub(crate) add_generation_prompt: bool,
}

#[derive(Deserialize)]
pub(crate) struct Template {
    pub(crate) name: String,
    pub(crate) sources: BTreeMap<String, String>,
    pub(crate) expected: Vec<Expected>,
}

#[derive(Deserialize, Debug)]
#[serde(untagged)]
pub(crate) enum Expected {
    Text {
        text: String,
    },
    Refused {
        refused: String,
        /// The template's words by `raise_exception`, not Jinja's or Python's.
        own_words: bool,
    },
}

/// Families that must be there, without a difference.
pub(crate) const FAMILIES: [&str; 17] = [
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Qwen3.5-4B",
    "Qwen3-Coder",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "GLM-4.6",
    "GLM-4.7-Flash",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "openai-gpt-oss-120b",
    "Kimi-K2-Instruct",
    "Kimi-K2-Thinking",
    "SmolLM2-135M-Instruct",
    "HuggingFaceTB-SmolLM3-3B",
];

impl File {
    fn read() -> Self {
        let path = std::env::var("POLAR_TEMPLATE_CASES")
            .expect("POLAR_TEMPLATE_CASES names the file that tests/templates/expected.py wrote");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }
}

fn compile(
    template: &Template,
    specials: &Map<String, Value>,
) -> Result<ChatTemplate, TemplateError> {
    ChatTemplate::new(TemplateFiles {
        templates: template.sources.clone().into_iter().collect(),
        specials: specials.clone(),
    })
}

fn described(case: &Case) -> String {
    let tools = case.tools.as_ref().map_or(0, Vec::len);
    let prompt = if case.add_generation_prompt { "prompt" } else { "no prompt" };
    format!("{}, {tools} tools, {prompt}, {}", case.name, Value::Object(case.options.clone()))
}
