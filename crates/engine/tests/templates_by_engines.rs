//! Prompts that Polar makes with published chat templates, against those that engines make.
//!
//! `tests/templates/by_engines.py` writes the file that `POLAR_ENGINE_TEMPLATES` names.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking and show what they compared"
)]

use jiff::ZonedDateTime;
use polar_engine::ModelFiles;
use polar_tokens::prompt::{Conversation, PromptRenderer};
use polar_tokens::template::{ChatTemplate, Preparation, TemplateFiles};
use polar_tokens::tokenizer::Tokenizer;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Deserialize)]
struct File {
    /// The folder of the model that the engines serve.
    model: String,
    cases: Vec<Case>,
    templates: Vec<Template>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
}

#[derive(Deserialize)]
struct Template {
    name: String,
    source: String,
    vllm: Vec<Prompt>,
    /// None where it does not start with such a template.
    llama: Option<Vec<Prompt>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Ids { ids: Vec<u32> },
    Text { text: String },
    Refused { refused: String },
}

/// A model whose template is another.
struct Model {
    files: ModelFiles,
    tokenizer: Arc<Tokenizer>,
}

impl Model {
    fn renderer(&self, source: &str, preparation: Preparation) -> Option<PromptRenderer> {
        let templates = TemplateFiles {
            templates: [("default".to_owned(), source.to_owned())].into_iter().collect(),
            specials: self.files.templates.specials.clone(),
        };
        let template = ChatTemplate::new(templates).ok()?;
        let stops = self.files.stop_token_ids.clone();
        Some(PromptRenderer::new(template, self.tokenizer.clone(), preparation, stops))
    }
}

/// How the prompts of one engine came out.
#[derive(Default)]
struct Compared {
    equal: usize,
    /// Neither makes a prompt.
    refused: usize,
    /// Requests that the engine does not take, and Polar would.
    only_theirs_refused: BTreeMap<String, usize>,
    unlike: Vec<String>,
}

impl Compared {
    fn all(
        model: &Model,
        file: &File,
        preparation: Preparation,
        prompts: for<'a> fn(&'a Template) -> Option<&'a [Prompt]>,
    ) -> Self {
        let mut compared = Self::default();
        for template in &file.templates {
            let Some(theirs) = prompts(template) else { continue };
            let renderer = model.renderer(&template.source, preparation);
            for (case, theirs) in file.cases.iter().zip(theirs) {
                let ours = match &renderer {
                    Some(renderer) => made(renderer, case),
                    None => Err("the template is not understood".to_owned()),
                };
                compared.add(model, template, case, ours, theirs);
            }
        }
        compared
    }

    fn add(
        &mut self,
        model: &Model,
        template: &Template,
        case: &Case,
        ours: Result<Vec<u32>, String>,
        theirs: &Prompt,
    ) {
        let theirs = match theirs {
            Prompt::Ids { ids } => Ok(ids.clone()),
            Prompt::Text { text } => Ok(model.tokenizer.encode(text).unwrap()),
            Prompt::Refused { refused } => Err(refused),
        };
        let difference = match (ours, theirs) {
            (Ok(ours), Ok(theirs)) if ours == theirs => {
                self.equal += 1;
                return;
            }
            (Err(_), Err(_)) => {
                self.refused += 1;
                return;
            }
            (Ok(_), Err(refused)) => {
                let words: String = refused.chars().take(90).collect();
                *self.only_theirs_refused.entry(words).or_default() += 1;
                return;
            }
            (Ok(ours), Ok(theirs)) => first_difference(model, &theirs, &ours),
            (Err(error), Ok(_)) => format!("refused here: {error}"),
        };
        let tools = case.tools.as_ref().map_or(0, Vec::len);
        let options = Value::Object(case.chat_template_kwargs.clone());
        let place = format!("{} / {}, {tools} tools, {options}", template.name, case.name);
        self.unlike.push(format!("{place}: {difference}"));
    }

    fn check(self, engine: &str) {
        println!(
            "{engine}: {} prompts equal, {} refused by both, refused by the engine alone: {:#?}",
            self.equal, self.refused, self.only_theirs_refused
        );
        assert!(self.unlike.is_empty(), "{}:\n{}", self.unlike.len(), self.unlike.join("\n"));
    }
}

fn made(renderer: &PromptRenderer, case: &Case) -> Result<Vec<u32>, String> {
    let conversation = Conversation {
        messages: &case.messages,
        tools: case.tools.as_deref().unwrap_or_default(),
        options: &case.chat_template_kwargs,
        now: ZonedDateTime::now().datetime(),
    };
    renderer.prompt(&conversation).map_err(|error| error.to_string())
}

fn first_difference(model: &Model, theirs: &[u32], ours: &[u32]) -> String {
    let shared = theirs.iter().zip(ours).take_while(|(a, b)| a == b).count();
    let around = |ids: &[u32]| {
        let end = ids.len().min(shared + 30);
        model.tokenizer.decode(&ids[shared.saturating_sub(10)..end])
    };
    format!("the engine has {:?}, Polar {:?}", around(theirs), around(ours))
}

fn read() -> (File, Model) {
    let path = std::env::var("POLAR_ENGINE_TEMPLATES")
        .expect("POLAR_ENGINE_TEMPLATES names the file that tests/templates/by_engines.py wrote");
    let file: File = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let files = ModelFiles::read(&file.model).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_json(&files.tokenizer_json).unwrap());
    (file, Model { files, tokenizer })
}

#[test]
fn promise_2_prompts_are_those_of_vllm() {
    let (file, model) = read();
    Compared::all(&model, &file, Preparation::Vllm, |template| Some(&template.vllm)).check("vLLM");
}

#[test]
fn promise_2_prompts_are_those_of_llama_cpp() {
    let (file, model) = read();
    Compared::all(&model, &file, Preparation::LlamaCpp, |template| template.llama.as_deref())
        .check("llama.cpp");
}
