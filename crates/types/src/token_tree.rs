//! Token sequences of a session as a tree, for trainers whose attention follows one.

use crate::{CallId, CallRole, LineageInfo, WeightSpan};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A session's traces with what they share stored once.
///
/// Only context is shared: tokens that another sequence was sampled behind. What was sampled
/// twice is there twice, even where it reads the same, for each has its own logprob; so every
/// sampled token is trained once, and the path of a sequence holds before it exactly what the
/// engine had.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TokenTree {
    /// Runs of tokens. A parent comes before its children.
    pub nodes: Vec<TreeNode>,
    /// The sequences, in order of their first call. Each is the path from a root to its last
    /// node; what `prefix_merging` makes a trace of.
    pub lineages: Vec<TreeLineage>,
    /// Messages and sets of tools, as of OpenAI's chat API. Each distinct one is there once;
    /// lineages name them by their index.
    pub values: Vec<Value>,
}

/// A run of tokens that all sequences below it share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TreeNode {
    /// Index of the node before it; null where sequences begin.
    #[serde(default)]
    pub parent: Option<u32>,
    /// The tokens; at least one.
    pub ids: Vec<u32>,
    /// 1 where the token is to be trained on. As long as `ids`.
    pub loss_mask: Vec<u8>,
    /// Logprob of each sampled token as the engine gave it, null for all others. As long as
    /// `ids`.
    pub logprobs: Vec<Option<f32>>,
    /// Which weights sampled what; runs over the node, sampled positions only.
    pub weight_versions: Vec<WeightSpan>,
    /// The calls that sampled in it, oldest first.
    pub calls: Vec<CallId>,
    /// Who made them; where there are none, who made the call whose context it was first.
    pub role: CallRole,
}

/// One sequence of a tree: a trace without its tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TreeLineage {
    /// Index of the node it ends with.
    pub last_node: u32,
    /// Tokens of its path before its own first sampled one: `prompt_ids` of the trace.
    pub prompt_tokens: u64,
    /// Messages of the first prompt, by their index in `values`.
    pub prompt_messages: Vec<u32>,
    /// Messages after it, in order, by their index in `values`.
    pub response_messages: Vec<u32>,
    /// Tools offered, by their index in `values`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<u32>,
    /// Why the last reply ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// Where it comes from; `parent` is the index of a lineage.
    pub lineage: LineageInfo,
    /// The calls it is made of, oldest first.
    pub calls: Vec<CallId>,
    /// Its own reward, where the evaluator gave it one; else that of the rollout is its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// As of a trace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turn_scores: Vec<Option<f64>>,
    /// As of a trace: counted from behind its `prompt_tokens`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turn_ends: Vec<u64>,
    /// As of a trace.
    #[schema(value_type = Object)]
    pub sampling: Value,
}
