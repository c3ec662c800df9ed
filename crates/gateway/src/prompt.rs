//! The prompts of a session in token mode: made here, put behind what was sampled, remembered.
//!
//! A call that token mode cannot serve goes to the engine as a chat completion, with the reason in
//! its record. Its ids are remembered like any other's, so that the next call goes on from them.

use crate::session::lock;
use jiff::ZonedDateTime;
use jiff::civil::DateTime;
use polar_convo::{ApiError, Block, Request, ToolChoice};
use polar_engine::TokenMode;
use polar_record::{CallFingerprint, CallRecord, ChainHash};
use polar_tokens::prompt::{Basis, Conversation, Plan, PromptError, PromptKey, PromptMemory};
use polar_tokens::template::TemplateError;
use polar_types::{CallId, ErrorClass, HistoryPolicy};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// What one session needs for prompts of its own.
pub(crate) struct SessionPrompts {
    pub(crate) mode: Arc<TokenMode>,
    history: HistoryPolicy,
    memory: Mutex<PromptMemory>,
    /// Of each call so far, by its place in the journal.
    chains: Mutex<HashMap<u32, ChainHash>>,
    /// The date that templates write; a prompt may not change at midnight.
    now: DateTime,
}

/// How a call's prompt gets to the engine.
#[derive(Debug)]
pub(crate) enum Prompt {
    /// As ids.
    Ids(Plan),
    /// As messages, which the engine renders.
    Messages { key: PromptKey, why: WhyMessages },
}

/// Why a call is not made of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhyMessages {
    /// It shows pictures, which ids do not hold.
    Pictures,
    /// The engine is to force a call, by the grammar of its own parser.
    ForcedCall,
    /// The engine is to force a form.
    StructuredOutput,
    /// It says how the engine is to render.
    RenderingTerms,
}

impl WhyMessages {
    fn of(request: &Request) -> Option<Self> {
        const FORMS: [&str; 10] = [
            "response_format",
            "structured_outputs",
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "json_schema",
            "regex",
            "ebnf",
            "grammar",
        ];
        const TERMS: [&str; 3] =
            ["chat_template", "add_generation_prompt", "continue_final_message"];
        let says = |names: &[&str]| names.iter().any(|name| request.rest.contains_key(*name));
        let is_forced =
            matches!(request.tool_choice, Some(ToolChoice::Required | ToolChoice::Named(_)));
        if request.messages.iter().any(|message| message.blocks.iter().any(is_no_text)) {
            Some(Self::Pictures)
        } else if is_forced && !request.tools.is_empty() {
            Some(Self::ForcedCall)
        } else if says(&FORMS) {
            Some(Self::StructuredOutput)
        } else if says(&TERMS) {
            Some(Self::RenderingTerms)
        } else {
            None
        }
    }

    /// The name kept in records.
    fn as_str(self) -> &'static str {
        match self {
            Self::Pictures => "pictures",
            Self::ForcedCall => "forced_call",
            Self::StructuredOutput => "structured_output",
            Self::RenderingTerms => "rendering_terms",
        }
    }
}

fn is_no_text(block: &Block) -> bool {
    match block {
        Block::Image(_) | Block::Other(_) => true,
        Block::ToolResult { content, .. } => content.iter().any(is_no_text),
        Block::Text(_) | Block::Reasoning { .. } | Block::ToolCall { .. } => false,
    }
}

impl SessionPrompts {
    pub(crate) fn new(mode: Arc<TokenMode>, history: HistoryPolicy) -> Self {
        let now = ZonedDateTime::now().datetime();
        Self { mode, history, memory: Mutex::default(), chains: Mutex::default(), now }
    }

    /// The prompt of a request that reads as `messages` and `tools` in Chat's terms. Long ones take
    /// a while, which other calls do not wait for.
    pub(crate) async fn plan(
        self: &Arc<Self>,
        request: &Request,
        messages: Vec<Value>,
        tools: Vec<Value>,
    ) -> Result<Prompt, ApiError> {
        let why = WhyMessages::of(request);
        let options = template_options(&request.rest);
        let prompts = Arc::clone(self);
        let plan = move || {
            let (messages, tools, now) = (&messages, &tools, prompts.now);
            let conversation = Conversation { messages, tools, options: &options, now };
            if let Some(why) = why {
                return Ok(Prompt::Messages { key: PromptKey::of(&conversation), why });
            }
            let memory = lock(&prompts.memory);
            let plan = memory.plan(prompts.mode.prompts(), &conversation, prompts.history)?;
            Ok(Prompt::Ids(plan))
        };
        match tokio::task::spawn_blocking(plan).await {
            Ok(planned) => planned.map_err(|error| refused(&error)),
            Err(stopped) => Err(ApiError::new(ErrorClass::Internal, stopped.to_string())),
        }
    }

    /// What a call's tokens were made with; nothing where they are not known.
    pub(crate) fn fingerprint(
        &self,
        prompt: &Prompt,
        record: &CallRecord,
    ) -> Option<CallFingerprint> {
        let (prompt_ids, sampled) = (record.prompt_ids.as_ref()?, record.sampled_ids.as_ref()?);
        let (number, tail) = match prompt {
            Prompt::Ids(plan) => plan.tail(),
            // Rendered by the engine, which renders as we do.
            Prompt::Messages { .. } => (None, prompt_ids.as_slice()),
        };
        let parent = match number {
            Some(number) => Some(*lock(&self.chains).get(&number)?),
            None => None,
        };
        let prompts = self.mode.prompts();
        Some(CallFingerprint {
            template: prompts.template().hash(),
            tokenizer: prompts.tokenizer().hash().to_owned(),
            extends: number.map(CallId::of_index),
            chain: ChainHash::step(parent.as_ref(), tail, sampled),
        })
    }

    /// Notes what became of a prompt. `index` is the call's place in the journal.
    pub(crate) fn remember(&self, prompt: &Prompt, record: &CallRecord, index: u32) {
        let Some(sampled) = &record.sampled_ids else { return };
        if let Some(fingerprint) = &record.meta.fingerprint {
            lock(&self.chains).insert(index, fingerprint.chain);
        }
        let mut memory = lock(&self.memory);
        match (prompt, &record.prompt_ids) {
            (Prompt::Ids(plan), _) => memory.remember(plan, &record.reply, sampled, index),
            // Ids stand for pictures that the next prompt has to show again.
            (Prompt::Messages { why: WhyMessages::Pictures, .. }, _) | (_, None) => {}
            (Prompt::Messages { key, .. }, Some(ids)) => {
                let plan = Plan::rendered_elsewhere(*key, ids.clone());
                memory.remember(&plan, &record.reply, sampled, index);
            }
        }
    }
}

impl Prompt {
    /// What a call's record says of it.
    pub(crate) fn note(&self) -> Value {
        match self {
            Self::Ids(plan) => {
                let mut note = Map::new();
                note.insert("mode".to_owned(), "token".into());
                let (number, end) = match plan.basis {
                    Basis::Rendered => return Value::Object(note),
                    Basis::Call { number, end } => (number, end.map(|end| end.as_str())),
                    Basis::Rewritten { number } => (number, Some("rewritten")),
                };
                note.insert("behind".to_owned(), json!(CallId::of_index(number)));
                if let Some(end) = end {
                    note.insert("turn_end".to_owned(), end.into());
                }
                Value::Object(note)
            }
            Self::Messages { why, .. } => json!({"mode": "chat", "why": why.as_str()}),
        }
    }
}

/// Arguments for the template, as engines take them.
fn template_options(rest: &Map<String, Value>) -> Map<String, Value> {
    let given = rest.get("chat_template_kwargs").and_then(Value::as_object);
    let mut options = given.cloned().unwrap_or_default();
    if let Some(effort) = rest.get("reasoning_effort").filter(|effort| effort.is_string()) {
        options.entry("reasoning_effort").or_insert_with(|| effort.clone());
    }
    options
}

/// A prompt that cannot be made, as the harness is told.
fn refused(error: &PromptError) -> ApiError {
    let class = match error {
        PromptError::Template(TemplateError::Refused { .. }) => ErrorClass::Invalid,
        _ => ErrorClass::Internal,
    };
    ApiError::new(class, format!("no prompt can be made of this conversation: {error}"))
}
