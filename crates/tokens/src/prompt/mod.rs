//! Prompts as ids: a conversation rendered once, and from then on only what is new in it.
//!
//! The ids of a conversation that goes on are
//!
//! ```text
//! prompt(k+1) = prompt(k) ‖ sampled(k) ‖ tail
//! ```
//!
//! so that the model has in context exactly what it sampled, whatever a tokenizer would make of
//! its text. The tail is what the model's own template puts between the end of the turn and the
//! next generation, see [`tail`](self#tails). [`PromptMemory`] knows the calls of a session and
//! finds the one that a request goes on from. Nothing here knows engines, dialects or harnesses.
//!
//! # Tails
//!
//! A tail is found without the conversation before it: a short stand-in is rendered, in which
//! the last turn of the model ends in a text that is known again, and what stands behind the
//! mark that ends the turn is the tail. The whole conversation is rendered where a template
//!
//! - repeats something of it in the tail, such as the tools before the last question;
//! - writes another tail behind earlier calls and results, because it numbers them or writes the
//!   first otherwise; a second, longer stand-in shows that;
//! - does not take the stand-in.
//!
//! The turn keeps its text: a few templates write it behind the mark that ends the calls, and then
//! it is of the tail. The known text stands in a turn's calls, or in its text where a template
//! writes no calls.
//!
//! | a turn of the model ended | the tail is |
//! |---|---|
//! | with the mark that the template puts there | what the template puts behind the mark |
//! | with another stop token | the same: the token stands in the mark's place |
//! | without one, at a limit or a stop string, or before anything was sampled | the mark, and what the template puts behind it |
//! | … and the mark is what begins the next turn (GLM) | the mark of the turn that comes, unless it was sampled, and what is behind it |
//!
//! Marks that are added to a turn are context, never trained.

mod memory;
mod tail;

pub use memory::{Basis, Plan, PromptKey, PromptMemory};
pub use tail::TurnEnd;

use crate::template::{ChatTemplate, Preparation, RenderInput, TemplateError};
use crate::tokenizer::{Tokenizer, TokenizerError};
use jiff::civil::DateTime;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Makes prompts for one model.
#[derive(Debug)]
pub struct PromptRenderer {
    template: ChatTemplate,
    tokenizer: Arc<Tokenizer>,
    preparation: Preparation,
    stop_ids: Vec<u32>,
}

/// What a prompt is made of.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// As OpenAI chat messages.
    pub messages: &'a [Value],
    /// As OpenAI tool definitions.
    pub tools: &'a [Value],
    /// Arguments for the template, such as `enable_thinking`.
    pub options: &'a Map<String, Value>,
    /// The date that templates write into prompts; the same for a whole session.
    pub now: DateTime,
}

/// Why there is no prompt.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The template did not take the conversation.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The text could not be made ids of.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// It cannot be told where a turn of the model ends in what the template writes.
    #[error(
        "the chat template ends a turn of the model without a special token, so that no later \
         turn can be put behind what was sampled; use chat mode for this model"
    )]
    NoEndMark,
}

impl PromptRenderer {
    /// `stop_ids` end a turn of the model.
    pub fn new(
        template: ChatTemplate,
        tokenizer: Arc<Tokenizer>,
        preparation: Preparation,
        stop_ids: Vec<u32>,
    ) -> Self {
        Self { template, tokenizer, preparation, stop_ids }
    }

    /// Ids of a whole conversation, up to where the model goes on.
    pub fn prompt(&self, conversation: &Conversation<'_>) -> Result<Vec<u32>, PromptError> {
        let text = self.text(conversation, conversation.messages, conversation.tools, true)?;
        Ok(self.tokenizer.encode(&text)?)
    }

    /// Whether the template writes the model's turn before the last message as it wrote it when
    /// that was the last. An error where no reply can be followed by anything.
    pub fn only_adds(&self, conversation: &Conversation<'_>) -> Result<bool, PromptError> {
        let from = conversation.messages.len() - 1;
        self.tail(conversation, from, None)?;
        let text =
            |messages, goes_on| self.text(conversation, messages, conversation.tools, goes_on);
        let before = text(&conversation.messages[..from], false)?;
        Ok(text(conversation.messages, true)?.starts_with(&before))
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The model's template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// Tokens that end a turn of the model.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// Whether a template may end a turn with it: a special token, even if no model stops there.
    fn may_end_a_turn(&self, id: u32) -> bool {
        self.stop_ids.contains(&id) || self.tokenizer.is_special(id)
    }

    /// What the template makes of messages, with the conversation's arguments.
    fn text(
        &self,
        conversation: &Conversation<'_>,
        messages: &[Value],
        tools: &[Value],
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let messages = self.preparation.messages_for(&self.template, messages, !tools.is_empty());
        let tools = self.preparation.tools(tools);
        self.template.render(&RenderInput {
            messages: &messages,
            tools: (!tools.is_empty()).then_some(&*tools),
            add_generation_prompt,
            options: &self.preparation.options(conversation.options, conversation.now),
            now: conversation.now,
        })
    }
}
