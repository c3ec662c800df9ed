//! What an engine answers, in one shape for all dialects.

use crate::chat::terms::ChatTerms;
use crate::google::terms::GoogleTerms;
use crate::{Block, ResponsesTerms};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::sync::Arc;

/// What is known before the first token.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplyHead {
    /// Id of the reply, in the dialect's own form.
    pub id: String,
    /// Model name to show: the one the harness asked for.
    pub model: String,
    /// Unix seconds.
    pub created: i64,
    /// Prompt tokens, when the engine says so before the first token.
    pub prompt_tokens: Option<u64>,
    /// What a Chat request says about the form of its reply.
    pub chat: ChatTerms,
    /// What a Responses request says about the form of its reply.
    pub responses: Option<Arc<ResponsesTerms>>,
    /// What a request of Google's dialect says about the form of its reply.
    pub google: GoogleTerms,
}

/// A piece of a reply as the engine samples it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyEvent {
    /// More of the visible text.
    Text(String),
    /// More of the reasoning.
    Reasoning(String),
    /// A tool call begins. `index` counts the calls of this reply from zero.
    ToolCall {
        /// Position among the calls of this reply.
        index: u32,
        /// Pairs it with its result.
        id: String,
        /// Tool name.
        name: String,
    },
    /// More of a call's arguments (a fragment of JSON text). Comes after its call and before
    /// anything else but more of the same.
    ToolArguments {
        /// Which call.
        index: u32,
        /// The fragment.
        fragment: String,
    },
}

impl ReplyEvent {
    /// Whether nothing is new in it.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(more) | Self::Reasoning(more) => more.is_empty(),
            Self::ToolArguments { fragment, .. } => fragment.is_empty(),
            Self::ToolCall { .. } => false,
        }
    }
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its turn.
    Stop,
    /// One of the request's stop strings was sampled.
    StopSequence,
    /// The model called tools.
    ToolCalls,
    /// The token limit was reached.
    Length,
    /// The engine ended it: pause, weight update, abort.
    Abort,
}

impl FinishReason {
    /// Whether the reply did not end by the model's own will, so that its last call may be cut.
    /// Engines say [`FinishReason::ToolCalls`] where a stop string came behind whole calls.
    pub(crate) fn may_cut(self) -> bool {
        matches!(self, Self::Length | Self::Abort | Self::StopSequence)
    }

    /// The name kept in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::StopSequence => "stop_sequence",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::Abort => "abort",
        }
    }
}

/// Token counts as the engine reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens sampled, the end-of-turn token included.
    pub completion_tokens: u64,
    /// Prompt tokens found in the engine's prefix cache, when it says so.
    pub cached_tokens: Option<u64>,
    /// Sampled tokens that are reasoning, when it says so.
    pub reasoning_tokens: Option<u64>,
}

/// How a reply ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyEnd {
    /// Why.
    pub finish: FinishReason,
    /// The stop string that matched.
    pub stop_sequence: Option<String>,
    /// Token counts.
    pub usage: Usage,
}

/// A whole reply: the fold of its events.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// In order of appearance.
    pub blocks: Vec<ReplyBlock>,
    /// Its tokens, for a client that wants to know their logprobs.
    pub tokens: Vec<SampledToken>,
}

/// A token of a reply, as its engine gave it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampledToken {
    /// Its id.
    pub id: u32,
    /// How likely it was.
    pub logprob: f32,
}

impl SampledToken {
    /// The tokens of a step of a reply; those without a logprob are left out.
    pub fn zip(ids: &[u32], logprobs: &[Option<f32>]) -> impl Iterator<Item = Self> {
        let tokens = ids.iter().zip(logprobs);
        tokens.filter_map(|(&id, &logprob)| {
            logprob.filter(|logprob| logprob.is_finite()).map(|logprob| Self { id, logprob })
        })
    }
}

/// A piece of a whole reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyBlock {
    /// Visible text.
    Text(String),
    /// Reasoning.
    Reasoning(String),
    /// A tool call with its whole arguments as JSON text.
    ToolCall {
        /// Position among the calls of this reply.
        index: u32,
        /// Pairs it with its result.
        id: String,
        /// Tool name.
        name: String,
        /// JSON text.
        arguments: String,
    },
}

impl Reply {
    /// Positions of the calls whose arguments are not a JSON object. They reach a harness as
    /// sampled where its dialect can carry them, see [`crate::UNPARSED_ARGUMENTS`].
    pub fn malformed_calls(&self) -> Vec<u32> {
        let malformed = |block: &ReplyBlock| match block {
            ReplyBlock::ToolCall { index, arguments, .. } => {
                parse_arguments(arguments).is_none().then_some(*index)
            }
            _ => None,
        };
        self.blocks.iter().filter_map(malformed).collect()
    }

    /// Takes the next event in.
    pub fn push(&mut self, event: &ReplyEvent) {
        match event {
            ReplyEvent::Text(more) => match self.blocks.last_mut() {
                Some(ReplyBlock::Text(text)) => text.push_str(more),
                _ if more.is_empty() => {}
                _ => self.blocks.push(ReplyBlock::Text(more.clone())),
            },
            ReplyEvent::Reasoning(more) => match self.blocks.last_mut() {
                Some(ReplyBlock::Reasoning(text)) => text.push_str(more),
                _ if more.is_empty() => {}
                _ => self.blocks.push(ReplyBlock::Reasoning(more.clone())),
            },
            ReplyEvent::ToolCall { index, id, name } => self.blocks.push(ReplyBlock::ToolCall {
                index: *index,
                id: id.clone(),
                name: name.clone(),
                arguments: String::new(),
            }),
            ReplyEvent::ToolArguments { index, fragment } => {
                let call = self.blocks.iter_mut().rev().find_map(|block| match block {
                    ReplyBlock::ToolCall { index: i, arguments, .. } if i == index => {
                        Some(arguments)
                    }
                    _ => None,
                });
                if let Some(arguments) = call {
                    arguments.push_str(fragment);
                }
            }
        }
    }
}

impl From<&ReplyBlock> for Block {
    /// What was said, as a part of the conversation that it becomes.
    fn from(block: &ReplyBlock) -> Self {
        match block {
            ReplyBlock::Text(text) => Self::Text(text.clone()),
            ReplyBlock::Reasoning(text) => Self::Reasoning { text: text.clone(), signature: None },
            ReplyBlock::ToolCall { id, name, arguments, .. } => {
                Self::ToolCall { id: id.clone(), name: name.clone(), arguments: arguments.clone() }
            }
        }
    }
}

/// Arguments of a reply's call as it is told: what [`parse_arguments`] gives, but nothing of a call
/// that the reply's end cut before its arguments. Nobody may take that for a whole call without any.
pub(crate) fn told_arguments(arguments: &str, is_cut: bool) -> Option<&RawValue> {
    match is_cut && arguments.trim().is_empty() {
        true => None,
        false => parse_arguments(arguments),
    }
}

/// Arguments as the JSON object they should be, in the model's own spelling. A call without
/// any arguments has an empty object.
pub(crate) fn parse_arguments(arguments: &str) -> Option<&RawValue> {
    let text = if arguments.trim().is_empty() { "{}" } else { arguments };
    serde_json::from_str::<&RawValue>(text).ok().filter(|value| value.get().starts_with('{'))
}
