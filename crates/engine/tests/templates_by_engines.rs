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
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Deserialize)]
struct File {
    /// The folder of the model that the engines serve.
    model: String,
    /// Special tokens by llama.cpp.
    llama_specials: Map<String, Value>,
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

/// Where llama.cpp makes another prompt of a template than the template itself does, and why.
const BY_LLAMA_CPP: [(&str, &str); 12] = [
    (
        "Apertus-8B-Instruct",
        "it thinks only when asked to, whatever llama.cpp tells other templates",
    ),
    ("Apriel-1.6-15b-Thinker-fixed", "ends of lines in a list's texts are written as they are"),
    ("unsloth-Apriel-1.5", "ends of lines in a list's texts are written as they are"),
    ("LFM2.5-8B-A1B", "reasoning is kept in past turns"),
    ("StepFun3.5-Flash", "all contents are trimmed"),
    ("deepseek-ai-DeepSeek-V4", "results keep the order they came in"),
    ("deepseek-ai-DeepSeek-V4-Flash-0731", "results keep the order they came in"),
    ("google-gemma-4-31B-it", "results are moved into the turn of their calls"),
    ("google-gemma-4-31B-it-interleaved", "results are moved into the turn of their calls"),
    ("mistralai-Ministral-3-14B-Reasoning-2512", "reasoning becomes a part of the content"),
    ("unsloth-mistral-Devstral-Small-2507", "text beside reasoning is lost"),
    ("openai-gpt-oss-120b", "reasoning before a call is kept beside its text"),
];

/// Conversations that llama.cpp takes otherwise, whatever the template.
fn is_taken_otherwise_by_llama_cpp(case: &Case) -> bool {
    // The model's turn is gone on with.
    let ends_with_the_model =
        case.messages.last().is_none_or(|message| message["role"] == "assistant");
    // Of floats it writes six digits, or six places, by which of two ways a template goes.
    let has_small_floats = case.name.contains("hard arguments") || case.name == "arguments as text";
    ends_with_the_model || has_small_floats
}

/// A model whose template is another.
struct Model {
    stops: Vec<u32>,
    specials: Map<String, Value>,
    tokenizer: Arc<Tokenizer>,
}

impl Model {
    fn renderer(&self, source: &str, preparation: Preparation) -> Option<PromptRenderer> {
        let templates = TemplateFiles {
            templates: [("default".to_owned(), source.to_owned())].into_iter().collect(),
            specials: self.specials.clone(),
        };
        let template = ChatTemplate::new(templates).ok()?;
        let stops = self.stops.clone();
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
    /// By template, the first error and how many there are.
    only_ours_refused: BTreeMap<String, (String, usize)>,
    /// By template.
    unlike: BTreeMap<String, Vec<String>>,
}

impl Compared {
    fn all(
        model: &Model,
        file: &File,
        preparation: Preparation,
        prompts: for<'a> fn(&'a Template) -> Option<&'a [Prompt]>,
        is_left_out: fn(&Case) -> bool,
    ) -> Self {
        let mut compared = Self::default();
        for template in &file.templates {
            let Some(theirs) = prompts(template) else { continue };
            let renderer = model.renderer(&template.source, preparation);
            let pairs = file.cases.iter().zip(theirs);
            for (case, theirs) in pairs.filter(|(case, _)| !is_left_out(case)) {
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
            (Err(error), Ok(_)) => {
                let refused = self.only_ours_refused.entry(template.name.clone());
                refused.or_insert((error, 0)).1 += 1;
                return;
            }
            (Ok(ours), Ok(theirs)) => first_difference(model, &theirs, &ours),
        };
        let tools = case.tools.as_ref().map_or(0, Vec::len);
        let options = Value::Object(case.chat_template_kwargs.clone());
        let said = format!("{}, {tools} tools, {options}: {difference}", case.name);
        self.unlike.entry(template.name.clone()).or_default().push(said);
    }

    fn print(&self, engine: &str) {
        println!(
            "{engine}: {} prompts equal, {} refused by both, refused by the engine alone: {:#?}, by \
             Polar alone: {:#?}",
            self.equal, self.refused, self.only_theirs_refused, self.only_ours_refused
        );
    }

    /// That no prompt is another but those of these templates, each of which has one.
    fn check(&self, known: &[(&str, &str)]) {
        let known: BTreeSet<&str> = known.iter().map(|(template, _)| *template).collect();
        let found: BTreeSet<&str> = self.unlike.keys().map(String::as_str).collect();
        assert_eq!(found, known, "{:#?}", self.unlike);
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
    let (stops, specials) = (files.stop_token_ids, files.templates.specials);
    (file, Model { stops, specials, tokenizer })
}

#[test]
fn promise_2_prompts_are_those_of_vllm() {
    let (file, model) = read();
    let compared =
        Compared::all(&model, &file, Preparation::Vllm, |template| Some(&template.vllm), |_| false);
    compared.print("vLLM");
    compared.check(&[]);
    assert!(compared.only_ours_refused.is_empty(), "{:#?}", compared.only_ours_refused);
}

/// Its own Jinja takes templates that others refuse: Polar refuses those too, and goes on with
/// messages.
#[test]
fn promise_2_prompts_are_those_of_llama_cpp() {
    let (file, mut model) = read();
    model.specials.clone_from(&file.llama_specials);
    let compared = Compared::all(
        &model,
        &file,
        Preparation::LlamaCpp,
        |template| template.llama.as_deref(),
        is_taken_otherwise_by_llama_cpp,
    );
    compared.print("llama.cpp");
    compared.check(&BY_LLAMA_CPP);
}
