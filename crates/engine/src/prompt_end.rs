//! Whether a prompt ends inside of reasoning, so that the reply begins there.
//!
//! Templates open the reasoning or not, depending on model and request, and the text of a reply
//! does not tell. The ids of the prompt do.

use crate::request_body::prompt_body;
use crate::transport::Transport;
use polar_convo::{Dialect, Message, Request, Role};
use polar_tokens::parse::{ParserFamily, ReplyStart};
use polar_tokens::tokenizer::Tokenizer;
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Knows the marks of reasoning as ids, and remembers how prompts end.
pub(crate) struct PromptEnd {
    transport: Transport,
    model: String,
    marks: ReasoningMarks,
    /// By what a request says about rendering.
    usual: Mutex<HashMap<String, ReplyStart>>,
}

/// The marks around reasoning, as ids; none where they are not known.
#[derive(Debug, Default)]
pub(crate) struct ReasoningMarks {
    open: Vec<u32>,
    close: Vec<u32>,
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<u32>,
}

/// Ids at the end of a prompt that may hold the marks: an empty block of reasoning, and line
/// breaks.
const TAIL: usize = 16;

/// Kinds of requests to remember.
const REMEMBERED: usize = 64;

impl ReasoningMarks {
    /// Of a family, by the model's own tokenizer.
    pub(crate) fn of(tokenizer: &Tokenizer, family: ParserFamily) -> Self {
        let ids = |mark| tokenizer.encode(mark).unwrap_or_default();
        let marks = family.reasoning_marks();
        marks
            .map_or_else(Self::default, |(open, close)| Self { open: ids(open), close: ids(close) })
    }

    /// Where the reply to this prompt begins, if that can be told.
    pub(crate) fn start(&self, prompt: &[u32]) -> Option<ReplyStart> {
        if self.open.is_empty() || self.close.is_empty() || self.open == self.close {
            return None;
        }
        let tail = &prompt[prompt.len().saturating_sub(TAIL)..];
        let last = |mark: &[u32]| tail.windows(mark.len()).rposition(|ids| ids == mark);
        Some(match last(&self.open) > last(&self.close) {
            true => ReplyStart::InReasoning,
            false => ReplyStart::Fresh,
        })
    }
}

impl PromptEnd {
    /// Asks the engine for the ids of the marks. Without marks, or where the engine does not
    /// tell, nothing is known of any prompt.
    pub(crate) async fn learn(
        transport: Transport,
        model: &str,
        marks: Option<(&str, &str)>,
    ) -> Self {
        let mut ids = [Vec::new(), Vec::new()];
        if let Some((open, close)) = marks {
            for (ids, mark) in ids.iter_mut().zip([open, close]) {
                let question = json!({"model": model, "prompt": mark, "add_special_tokens": false});
                let tokens = transport.ask::<Tokens>("/tokenize", &question).await;
                *ids = tokens.map(|answer| answer.tokens).unwrap_or_default();
            }
        }
        let [open, close] = ids;
        let marks = ReasoningMarks { open, close };
        Self { transport, model: model.to_owned(), marks, usual: Mutex::default() }
    }

    /// Where the reply to this prompt begins, if that can be told.
    pub(crate) fn start(&self, prompt: &[u32]) -> Option<ReplyStart> {
        self.marks.start(prompt)
    }

    /// Where replies to such requests begin, for engines that tell the prompt too late.
    pub(crate) async fn usual_start(&self, request: &Request) -> ReplyStart {
        let mut question = Request::new(Dialect::Chat, "");
        question.messages = vec![Message::text(Role::User, "Hello.")];
        question.rest.clone_from(&request.rest);
        let body = prompt_body(&question, &self.model);
        let key = json!(body).to_string();
        if let Some(start) = self.remembered().get(&key) {
            return *start;
        }
        let Ok(answer) = self.transport.ask::<Tokens>("/tokenize", &body).await else {
            return ReplyStart::Usual;
        };
        let start = self.start(&answer.tokens).unwrap_or_default();
        let mut usual = self.remembered();
        if usual.len() >= REMEMBERED {
            usual.clear();
        }
        usual.insert(key, start);
        start
    }

    fn remembered(&self) -> MutexGuard<'_, HashMap<String, ReplyStart>> {
        self.usual.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
