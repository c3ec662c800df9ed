//! Messages and tools to prompt text: a model's own chat template, run as `transformers` runs it.
//!
//! A template is a small program written against Jinja and Python, so this imitates both: how
//! values are printed, what methods strings and dicts have, which errors end a rendering. What is
//! given to a template is prepared as the engine that samples prepares it ([`Preparation`]).
//! Pure: the time of day comes in with the request.

mod content_format;
mod environment;
mod filters;
mod preparation;
mod rewrite;
mod strings;
mod values;

pub use content_format::ContentFormat;
pub use jiff::civil::DateTime as CivilDateTime;
pub use preparation::{Preparation, content_text};

use environment::Refusal;
use minijinja::{Environment, Value as JinjaValue};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::error::Error as _;

/// The template used where no other is asked for.
const DEFAULT: &str = "default";
/// The template used for requests with tools, where a model has one.
const TOOL_USE: &str = "tool_use";

/// The chat templates of one model, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    specials: Map<String, Value>,
    hash: String,
    /// What vLLM and SGLang take each template for.
    formats: BTreeMap<String, [ContentFormat; 2]>,
}

/// What a model's files say about its chat templates.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TemplateFiles {
    /// Name (`default`, `tool_use`, …) and source of each template.
    pub templates: Vec<(String, String)>,
    /// Texts of special tokens by name (`bos_token`, …), given to the template as variables.
    pub specials: Map<String, Value>,
}

/// One request to be rendered.
#[derive(Debug, Clone, Copy)]
pub struct RenderInput<'a> {
    /// The conversation, as [`Preparation::messages`] gives it.
    pub messages: &'a [Value],
    /// The tools, as [`Preparation::tools`] gives them.
    pub tools: Option<&'a [Value]>,
    /// Whether the text ends where the assistant's next turn begins.
    pub add_generation_prompt: bool,
    /// The request's `chat_template_kwargs`, given to the template as variables.
    pub options: &'a Map<String, Value>,
    /// What the template's clock shows.
    pub now: CivilDateTime,
}

/// Why a template can't be used, or gives no text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The files hold no template that could be used.
    #[error(
        "the model has no chat template named {name:?} (it has: {known}); add one to its folder, as chat_template.jinja"
    )]
    Missing {
        /// The name looked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A template is not valid.
    #[error("chat template {template:?} cannot be compiled, line {line}: {reason}")]
    Compile {
        /// The template's name.
        template: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// There is nothing to render.
    #[error("a conversation without messages cannot be rendered; send at least one")]
    NoMessages,
    /// The template itself refuses the conversation.
    #[error("the chat template refuses the conversation: {message}")]
    Refused {
        /// The template's own words.
        message: String,
    },
    /// The template does something with the conversation that can't be done.
    #[error("chat template {template:?} fails on the conversation, line {line}: {reason}")]
    Render {
        /// The template's name.
        template: String,
        /// The line, from 1.
        line: usize,
        /// What it tried.
        reason: String,
    },
}

impl ChatTemplate {
    /// Compiles a model's templates.
    pub fn new(files: TemplateFiles) -> Result<Self, TemplateError> {
        let hash = hash(&files);
        let mut environment = environment::environment();
        let mut formats = BTreeMap::new();
        for (name, source) in files.templates {
            let found = [ContentFormat::of_vllm(&source), ContentFormat::of_sglang(&source)];
            formats.insert(name.clone(), found);
            let source = rewrite::rewritten(&source);
            environment.add_template_owned(name.clone(), source).map_err(|error| {
                TemplateError::Compile {
                    template: name,
                    line: error.line().unwrap_or(1),
                    reason: reason(&error),
                }
            })?;
        }
        let template = Self { environment, specials: files.specials, hash, formats };
        template.named(DEFAULT)?;
        Ok(template)
    }

    /// The prompt text.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<String, TemplateError> {
        if input.messages.is_empty() {
            return Err(TemplateError::NoMessages);
        }
        let template = self.named(self.chosen(input.tools.is_some()))?;
        template.render(self.variables(input)).map_err(|error| {
            let mut causes = std::iter::successors(error.source(), |&cause| cause.source());
            if let Some(refusal) = causes.find_map(|cause| cause.downcast_ref::<Refusal>()) {
                return TemplateError::Refused { message: refusal.0.clone() };
            }
            TemplateError::Render {
                template: error.name().unwrap_or(template.name()).to_owned(),
                line: error.line().unwrap_or(1),
                reason: reason(&error),
            }
        })
    }

    /// SHA-256 over names, sources and special tokens: the same for the same templates.
    pub fn hash(&self) -> String {
        self.hash.clone()
    }

    /// How an engine gives contents to the template that it takes with or without tools.
    pub fn content_format(&self, by: Preparation, with_tools: bool) -> ContentFormat {
        let [vllm, sglang] = self.formats.get(self.chosen(with_tools)).copied().unwrap_or_default();
        match by {
            Preparation::Transformers | Preparation::LlamaCpp | Preparation::TensorRtLlm => {
                ContentFormat::Text
            }
            Preparation::Vllm => vllm,
            Preparation::Sglang => sglang,
        }
    }

    /// Whether the template that is taken with or without tools names the role `developer`.
    pub(crate) fn knows_developers(&self, with_tools: bool) -> bool {
        let source =
            self.named(self.chosen(with_tools)).map(|template| template.source().to_owned());
        source
            .is_ok_and(|source| source.contains("'developer'") || source.contains("\"developer\""))
    }

    /// The name of the template, by the choice that `transformers` makes.
    fn chosen(&self, with_tools: bool) -> &'static str {
        if with_tools && self.formats.contains_key(TOOL_USE) { TOOL_USE } else { DEFAULT }
    }

    fn named(&self, name: &str) -> Result<minijinja::Template<'_, '_>, TemplateError> {
        self.environment.get_template(name).map_err(|_| {
            let names: Vec<&str> = self.environment.templates().map(|(name, _)| name).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            TemplateError::Missing { name: name.to_owned(), known }
        })
    }

    /// What the template sees. A name of the request's own wins over an option, and that over
    /// a special token.
    fn variables(&self, input: &RenderInput<'_>) -> JinjaValue {
        let list =
            |items: &[Value]| -> JinjaValue { items.iter().map(values::from_json).collect() };
        let named = self.specials.iter().chain(input.options);
        let named = named.map(|(name, value)| (name.as_str(), values::from_json(value)));
        let own = [
            ("messages", list(input.messages)),
            ("tools", input.tools.map_or(JinjaValue::from(()), list)),
            ("add_generation_prompt", input.add_generation_prompt.into()),
            (environment::CLOCK, environment::clock(input.now)),
        ];
        std::iter::once(("documents", JinjaValue::from(()))).chain(named).chain(own).collect()
    }
}

/// What minijinja says of an error, without the place.
fn reason(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn hash(files: &TemplateFiles) -> String {
    let mut templates: Vec<_> = files.templates.iter().collect();
    templates.sort();
    let mut specials: Vec<_> = files.specials.iter().collect();
    specials.sort_by_key(|(name, _)| *name);
    let text = serde_json::json!([templates, specials]).to_string();
    hex::encode(Sha256::digest(text))
}

#[cfg(test)]
mod tests;
