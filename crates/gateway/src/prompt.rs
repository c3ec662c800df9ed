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
    /// Of each call so far, by its place in the journal, with the length of its prompt and reply.
    chains: Mutex<HashMap<u32, (ChainHash, usize)>>,
    /// The date that templates write; a prompt may not change at midnight.
    now: DateTime,
}

/// How a call's prompt gets to the engine.
#[derive(Debug)]
pub(crate) enum Prompt {
    /// As ids, with the pictures that their marks stand for.
    Ids { plan: Plan, pictures: Vec<String> },
    /// As messages, which the engine renders.
    Messages { key: PromptKey, why: WhyMessages, shows_pictures: bool },
}

/// Why a call is not made of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhyMessages {
    /// It shows pictures that cannot be shown behind ids.
    Pictures,
    /// The engine is to force a call, by the grammar of its own parser.
    ForcedCall,
    /// The engine is to force a form.
    StructuredOutput,
    /// It says how the engine is to render.
    RenderingTerms,
}

impl WhyMessages {
    /// `sees` says that pictures can be shown behind ids.
    fn of(request: &Request, sees: bool) -> Option<Self> {
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
        let stays_away = |block: &Block| match block {
            Block::Image(_) => !sees,
            _ => true,
        };
        if shows(request, stays_away) {
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

/// Whether a conversation shows something that is no text, and of this kind.
fn shows(request: &Request, kind: impl Fn(&Block) -> bool) -> bool {
    fn any(blocks: &[Block], kind: &impl Fn(&Block) -> bool) -> bool {
        blocks.iter().any(|block| match block {
            Block::Image(_) | Block::Other(_) => kind(block),
            Block::ToolResult { content, .. } => any(content, kind),
            Block::Text(_) | Block::Reasoning { .. } | Block::ToolCall { .. } => false,
        })
    }
    request.messages.iter().any(|message| any(&message.blocks, &kind))
}

/// Where the pictures of messages in Chat's terms are, in order.
fn pictures(messages: &[Value]) -> Vec<String> {
    let parts = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    parts.filter_map(|part| Some(part["image_url"]["url"].as_str()?.to_owned())).collect()
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
        let why = WhyMessages::of(request, self.mode.sees());
        let shows_pictures = shows(request, |_| true);
        let options = template_options(&request.rest)?;
        let prompts = Arc::clone(self);
        let plan = move || {
            let (messages, tools, now) = (&messages, &tools, prompts.now);
            let conversation = Conversation { messages, tools, options: &options, now };
            let as_messages =
                |why| Prompt::Messages { key: PromptKey::of(&conversation), why, shows_pictures };
            if let Some(why) = why {
                return Ok(as_messages(why));
            }
            let memory = lock(&prompts.memory);
            let plan = memory.plan(prompts.mode.prompts(), &conversation, prompts.history)?;
            let pictures = if shows_pictures { pictures(messages) } else { Vec::new() };
            Ok(match pictures.is_empty() || prompts.mode.shows(&plan.ids, pictures.len()) {
                true => Prompt::Ids { plan, pictures },
                false => as_messages(WhyMessages::Pictures),
            })
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
        let number = match prompt {
            Prompt::Ids { plan, .. } => plan.tail().0,
            // Rendered by the engine, which renders as we do.
            Prompt::Messages { .. } => None,
        };
        // By what the engine had, in which pictures are longer than in the plan.
        let (parent, before) = match number {
            Some(number) => {
                let (chain, length) = *lock(&self.chains).get(&number)?;
                (Some(chain), length)
            }
            None => (None, 0),
        };
        let tail = prompt_ids.get(before..)?;
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
            let length = record.prompt_ids.as_ref().map_or(0, Vec::len) + sampled.len();
            lock(&self.chains).insert(index, (fingerprint.chain, length));
        }
        let mut memory = lock(&self.memory);
        match (prompt, &record.prompt_ids) {
            (Prompt::Ids { plan, .. }, _) => memory.remember(plan, &record.reply, sampled, index),
            // Ids stand for pictures that the next prompt has to show again.
            (Prompt::Messages { shows_pictures: true, .. }, _) | (_, None) => {}
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
            Self::Ids { plan, pictures } => {
                let mut note = Map::new();
                note.insert("mode".to_owned(), "token".into());
                if !pictures.is_empty() {
                    note.insert("pictures".to_owned(), pictures.len().into());
                }
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
fn template_options(rest: &Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    let mut options = match rest.get("chat_template_kwargs") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(given)) => given.clone(),
        Some(other) => {
            let problem = format!("chat_template_kwargs: is {other}; send an object of arguments");
            let error = ApiError::new(ErrorClass::Invalid, problem);
            return Err(ApiError { field: Some("chat_template_kwargs".to_owned()), ..error });
        }
    };
    if let Some(effort) = rest.get("reasoning_effort").filter(|effort| effort.is_string()) {
        options.entry("reasoning_effort").or_insert_with(|| effort.clone());
    }
    Ok(options)
}

/// A prompt that cannot be made, as the harness is told.
fn refused(error: &PromptError) -> ApiError {
    let class = match error {
        PromptError::Template(TemplateError::Refused { .. }) => ErrorClass::Invalid,
        _ => ErrorClass::Internal,
    };
    ApiError::new(class, format!("no prompt can be made of this conversation: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polar_convo::{Dialect, ImageSource, Message, Role, chat_messages};

    fn conversation() -> Request {
        let picture = |url: &str| Block::Image(ImageSource::Url(url.to_owned()));
        let mut request = Request::new(Dialect::Messages, "m");
        let mut question = Message::text(Role::User, "And this?");
        question.blocks.insert(0, picture("http://host/b.png"));
        let mut result = Message::text(Role::User, "");
        result.blocks = vec![Block::ToolResult {
            call_id: "1".to_owned(),
            content: vec![Block::Text("seen".to_owned()), picture("http://host/a.png")],
            is_error: false,
        }];
        request.messages = vec![result, question];
        request
    }

    #[test]
    fn pictures_are_found_in_the_order_of_the_messages() {
        let found = pictures(&chat_messages(&conversation()));
        assert_eq!(found, ["http://host/a.png", "http://host/b.png"]);
        assert!(pictures(&[json!({"role": "user", "content": "http://host/a.png"})]).is_empty());
    }

    #[test]
    fn pictures_go_as_messages_where_they_cannot_be_shown_behind_ids() {
        let mut request = conversation();
        assert_eq!(WhyMessages::of(&request, false), Some(WhyMessages::Pictures));
        assert_eq!(WhyMessages::of(&request, true), None);
        request.rest.insert("response_format".to_owned(), json!({"type": "json_object"}));
        assert_eq!(WhyMessages::of(&request, true), Some(WhyMessages::StructuredOutput));
        // Sounds and the like are nothing that could be shown.
        request.messages[1].blocks.push(Block::Other(json!({"type": "input_audio"})));
        assert_eq!(WhyMessages::of(&request, true), Some(WhyMessages::Pictures));
    }
}
