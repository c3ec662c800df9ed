//! Training data: traces, and where every sampled token went.

use crate::{
    CallId, CallOrigin, CallRole, EndReason, GroupId, RoleCounts, SessionId, TaskId, TokenTree,
    TrainingSizes, TrajectoryStrategy, TranslationCounts,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Why a sampled token is in no trace with mask 1.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum UntrainedReason {
    /// The harness never saw the reply to its end.
    Undelivered,
    /// The engine gave no token ids, so there is nothing exact to train on.
    IdsMissing,
    /// The engine gave no logprob for the token.
    LogprobMissing,
    /// The engine ended the reply with an error or an abort.
    EngineAborted,
    /// The call has a role that the task does not train: title, summary, probe.
    SideCall,
}

/// Where every sampled token of a session went.
/// Invariant: `sampled == trained + untrained.values().sum()`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TokenCounts {
    /// Tokens the engine sampled.
    pub sampled: u64,
    /// Tokens in exactly one trace with mask 1.
    pub trained: u64,
    /// The rest, by reason.
    #[serde(default)]
    pub untrained: BTreeMap<UntrainedReason, u64>,
    /// Positions in responses that were not sampled there, mask 0: tool output, user turns.
    pub context: u64,
}

impl TokenCounts {
    /// Whether no token is lost and none is counted twice.
    pub fn is_conserved(&self) -> bool {
        self.sampled == self.trained + self.untrained.values().sum::<u64>()
    }

    /// Adds another session's counts.
    pub fn add(&mut self, other: &Self) {
        self.sampled += other.sampled;
        self.trained += other.trained;
        self.context += other.context;
        for (reason, count) in &other.untrained {
            *self.untrained.entry(*reason).or_default() += count;
        }
    }
}

/// Why a call starts a new trace instead of extending one.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ForkCause {
    /// The first call, or one that shares no conversation with any before it.
    NewLineage,
    /// An earlier message was changed, dropped or inserted.
    HistoryRewritten,
    /// The reasoning of an earlier reply is gone from the prompt.
    ReasoningStripped,
    /// The arguments of an earlier tool call came back with another spelling.
    ToolArgumentsReserialised,
    /// The set of tools offered changed.
    ToolsChanged,
    /// The same text came back as other tokens.
    Retokenised,
    /// An earlier reply was cut at its token limit and its end was closed or dropped.
    TruncatedTurn,
    /// The reply that the call would go on from never came: the harness hung up on it, or it broke off.
    Unanswered,
    /// The same prompt was asked again.
    Retry,
    /// A second call continues from a reply that another call already continued.
    Branch,
    /// The strategy makes a trace of each call.
    PerRequest,
}

impl ForkCause {
    /// All there are.
    pub const ALL: [Self; 11] = [
        Self::NewLineage,
        Self::HistoryRewritten,
        Self::ReasoningStripped,
        Self::ToolArgumentsReserialised,
        Self::ToolsChanged,
        Self::Retokenised,
        Self::TruncatedTurn,
        Self::Unanswered,
        Self::Retry,
        Self::Branch,
        Self::PerRequest,
    ];
}

/// Where a forked call's prompt leaves the sequence it comes closest to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ForkPoint {
    /// Why.
    pub cause: ForkCause,
    /// The call whose tokens it comes closest to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<CallId>,
    /// Tokens shared with it.
    pub shared_tokens: u64,
    /// First token of the nearest sequence that differs; absent where it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<u32>,
    /// Token in its place; absent where the new prompt ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<u32>,
}

/// Where a trace comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LineageInfo {
    /// Who made its calls; the same for all of them.
    pub role: CallRole,
    /// Index of the trace it forked from, when it shares tokens with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// Why it is a trace of its own.
    pub fork: ForkPoint,
}

/// Which weights sampled a run of response positions, `start..end`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WeightSpan {
    /// The engine's version label; absent when it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// First response position.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// One token sequence to train on. `prompt_ids ‖ response_ids` is the whole sequence;
/// before each position with mask 1 it holds exactly the engine's context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Trace {
    /// Context before the first sampled token.
    pub prompt_ids: Vec<u32>,
    /// Everything after it: sampled tokens and the context between them.
    pub response_ids: Vec<u32>,
    /// 1 where the token is to be trained on. As long as `response_ids`.
    pub loss_mask: Vec<u8>,
    /// Logprob of each response token as the engine gave it; null where there is none.
    /// As long as `response_ids`.
    pub response_logprobs: Vec<Option<f32>>,
    /// Messages of the first prompt, as OpenAI chat messages.
    pub prompt_messages: Vec<Value>,
    /// Messages after it, in order, as OpenAI chat messages.
    pub response_messages: Vec<Value>,
    /// Tools offered, as OpenAI tool definitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Value>,
    /// Why the last reply ended: `stop`, `tool_calls`, `length`, `cancelled` by the harness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// Its own reward where the evaluator gave it one, else that of the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Rewards of its calls, which are the agent's turns, null where one has none; none at all
    /// where no call has one. As long as `calls`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turn_scores: Vec<Option<f64>>,
    /// One past the last response position that each call sampled, where its reward belongs in
    /// a row of rewards per token. As long as `calls`; absent in traces of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turn_ends: Vec<u64>,
    /// Which weights sampled what; runs over the response, sampled positions only.
    pub weight_versions: Vec<WeightSpan>,
    /// Where it comes from.
    pub lineage: LineageInfo,
    /// The calls it is made of, oldest first.
    pub calls: Vec<CallId>,
    /// The session; shared by all its traces, so that a trainer can weigh rollouts.
    pub rollout_id: SessionId,
    /// Sessions compared with each other.
    pub group_id: GroupId,
    /// Traces of this rollout.
    pub siblings: u32,
    /// `1 / siblings`: weight that makes every rollout count once.
    pub loss_weight: f64,
    /// Sampling parameters used, engine and logprob mode of the last call; with `carried` what
    /// else its engine was told, with `tool_choice` a choice that was forced, with `varied` the
    /// names of what was not the same in all calls.
    #[schema(value_type = Object)]
    pub sampling: Value,
}

/// All traces of one session, and how they were built.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Trajectory {
    /// Of which session.
    pub session_id: SessionId,
    /// Of which task.
    pub task_id: TaskId,
    /// Sessions compared with each other.
    pub group_id: GroupId,
    /// How the traces were built.
    pub strategy: TrajectoryStrategy,
    /// Reward of the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// What became of the session; absent in trajectories of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// What is behind the reason, in words; absent where it is `completed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_detail: Option<String>,
    /// In order of their first call; none where there is a `tree`.
    pub traces: Vec<Trace>,
    /// The traces as a tree, for the strategy `prefix_tree`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<TokenTree>,
    /// Where every sampled token went.
    pub tokens: TokenCounts,
    /// What a trainer has to run in this layout and in the others; absent in trajectories of
    /// older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<TrainingSizes>,
    /// How many traces there are by cause; the first one counts as `new_lineage`.
    pub forks: BTreeMap<ForkCause, u32>,
    /// Roles whose calls are trained; tokens of others are counted as `side_call`.
    #[serde(default = "CallRole::trained_by_default")]
    pub train_roles: Vec<CallRole>,
    /// Calls by role, trained or not.
    #[serde(default)]
    pub roles: BTreeMap<CallRole, RoleCounts>,
    /// Calls of which something did not reach the engine as it was sent.
    #[serde(default, skip_serializing_if = "TranslationCounts::is_empty")]
    pub translation: TranslationCounts,
}

impl Trajectory {
    /// Weight versions that sampled its trained tokens, in the order of their first one.
    pub fn weight_versions(&self) -> Vec<String> {
        let of_traces = self.traces.iter().flat_map(|trace| &trace.weight_versions);
        let of_tree = self.tree.iter().flat_map(|tree| &tree.nodes);
        let of_tree = of_tree.flat_map(|node| &node.weight_versions);
        let mut versions: Vec<String> = Vec::new();
        for version in of_traces.chain(of_tree).filter_map(|span| span.version.as_ref()) {
            if !versions.contains(version) {
                versions.push(version.clone());
            }
        }
        versions
    }

    /// Traces, or lineages of the tree.
    pub fn lineages(&self) -> usize {
        self.tree.as_ref().map_or(self.traces.len(), |tree| tree.lineages.len())
    }
}

/// One call as `GET /api/sessions/{id}/calls` shows it: everything but the ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CallSummary {
    /// Which call.
    pub call_id: CallId,
    /// Dialect the harness spoke: `chat`, `messages`, `responses`, `google`.
    pub dialect: String,
    /// Who made it; absent in lists of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<CallOrigin>,
    /// When it came in (RFC 3339, UTC).
    pub started_at: String,
    /// Seconds until its last token.
    pub seconds: f64,
    /// URL of the engine it was asked of, on a node that has or had several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Sampled tokens.
    pub sampled_tokens: u64,
    /// Whether the harness got the whole reply; absent when the process died meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered: Option<bool>,
    /// Normalised finish reason.
    pub finish_reason: String,
    /// Trace it went into; absent when it is in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<u32>,
    /// Why it forked, when it starts a trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<ForkPoint>,
    /// Its reply, as an OpenAI chat message.
    #[schema(value_type = Object)]
    pub reply: Value,
    /// Error, when it ended in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
