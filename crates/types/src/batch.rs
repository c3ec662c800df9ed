//! Batches of groups for a trainer: what it asks for, and what it is given.
//!
//! A queue is a sequence of batches, numbered from 1, for one trainer. The trainer's cursor is
//! the number of the last batch it is done with. Asking again with the same cursor gives the
//! same batch, so that each group is trained once across restarts of either side.

use crate::{
    Artifact, EndReason, FieldProblem, GroupId, HackLabel, QueueName, SessionId, SessionStatus,
    TaskId, TokenCounts,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most groups in one batch.
pub const MAX_BATCH_GROUPS: u32 = 4096;

/// Longest time to wait for a batch, in seconds.
pub const MAX_BATCH_WAIT: f64 = 50.0;

/// The body of `POST /api/batches/next`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    /// Which queue; tasks name the one they go to.
    #[serde(default)]
    pub queue: QueueName,
    /// The cursor: number of the last batch that the trainer is done with, 0 before the first.
    pub after: u64,
    /// Groups wanted.
    #[serde(default = "one")]
    pub groups: u32,
    /// Groups that are enough once `wait_seconds` are over; as many as wanted when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_groups: Option<u32>,
    /// Weight version that the trainer is at, against which staleness is told: in versions as they
    /// were pushed to `/api/weights`, or as numbers where they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Most versions that a group may be behind `version`; those further behind are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_staleness: Option<u64>,
    /// What becomes of groups whose rewards are all the same.
    #[serde(default)]
    pub equal_rewards: EqualRewards,
    /// Usable sessions that a group must have; groups with fewer are left out.
    #[serde(default = "one")]
    pub min_usable: u32,
    /// Groups of the batch after the cursor that the trainer does not want: they are left out
    /// and others take their place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reject: Vec<TaskId>,
    /// Most groups that are begun and in no batch yet; no further group is begun meanwhile. Kept
    /// until the next request; no limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ahead: Option<u32>,
    /// How long to wait for the batch, up to 50 seconds.
    #[serde(default)]
    pub wait_seconds: f64,
}

fn one() -> u32 {
    1
}

impl BatchRequest {
    /// Everything that is wrong with it.
    pub fn problems(&self) -> Vec<FieldProblem> {
        let mut problems = Vec::new();
        if self.groups == 0 || self.groups > MAX_BATCH_GROUPS {
            let what = format!("must be between 1 and {MAX_BATCH_GROUPS}, not {}", self.groups);
            problems.push(FieldProblem::new("groups", what, "8"));
        }
        if let Some(min) = self.min_groups.filter(|min| *min == 0 || *min > self.groups) {
            let what = format!("must be between 1 and `groups`, {}, not {min}", self.groups);
            problems.push(FieldProblem::new("min_groups", what, "1"));
        }
        if self.max_staleness.is_some() && self.version.is_none() {
            let what = "is told against the trainer's own version, which is missing";
            problems.push(FieldProblem::new("version", what, r#""17""#));
        }
        if self.min_usable == 0 {
            let what = "must be 1 or more: there is nothing to train on in a group without";
            problems.push(FieldProblem::new("min_usable", what, "2"));
        }
        let enough = self.min_groups.unwrap_or(self.groups);
        if let Some(most) = self.max_ahead.filter(|most| *most < enough) {
            let what = format!(
                "must be {enough} or more, the groups that are waited for, or they would never be \
                 begun; not {most}"
            );
            problems.push(FieldProblem::new("max_ahead", what, "32"));
        }
        if !(0.0..=MAX_BATCH_WAIT).contains(&self.wait_seconds) {
            let what = format!("must be between 0 and {MAX_BATCH_WAIT}, not {}", self.wait_seconds);
            problems.push(FieldProblem::new("wait_seconds", what, "30"));
        }
        problems
    }
}

/// What becomes of groups whose rewards are all the same: their advantages are all zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EqualRewards {
    /// They are given like others.
    #[default]
    Keep,
    /// They are left out.
    LeaveOut,
}

/// Why a group is in no batch.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum LeftOut {
    /// Its task was cancelled.
    Cancelled,
    /// It has fewer usable sessions than `min_usable`.
    TooFewUsable,
    /// All its rewards are the same.
    EqualRewards,
    /// It is more versions behind than `max_staleness`.
    Stale,
    /// The trainer did not want it.
    Rejected,
}

impl LeftOut {
    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::TooFewUsable => "too_few_usable",
            Self::EqualRewards => "equal_rewards",
            Self::Stale => "stale",
            Self::Rejected => "rejected",
        }
    }
}

/// Answer to `POST /api/batches/next`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BatchAnswer {
    /// The batch after the cursor; absent when there are not enough groups yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// Ready groups that were held back, because it cannot be told how far their versions are behind
    /// `version`: their engine tells none, or no version was pushed to `/api/weights` yet.
    #[serde(default)]
    pub held_back: u64,
    /// What there is beside it.
    pub state: QueueInfo,
}

/// Where a queue stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct QueueInfo {
    /// Which queue.
    pub queue: QueueName,
    /// Number of its last batch; 0 before the first.
    pub last: u64,
    /// Groups that have ended and are in no batch. Some of them may be left out.
    pub ready: u64,
    /// Groups with sessions that have not ended, begun or not.
    pub running: u64,
    /// Groups that are begun and in no batch.
    pub ahead: u64,
    /// Most of them, as last asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ahead: Option<u32>,
    /// Groups that are in no batch and come in none, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<LeftOut, u64>,
}

/// Answer to `GET /api/queues`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct QueueList {
    /// Queues that tasks were submitted to or batches asked of, by name.
    pub queues: Vec<QueueInfo>,
}

/// Groups to train on together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Batch {
    /// Of which queue.
    pub queue: QueueName,
    /// Its number, from 1, without gaps. The trainer's cursor once it is done with it.
    pub number: u64,
    /// When it was made (RFC 3339, UTC).
    pub made_at: String,
    /// Its groups, oldest first.
    pub groups: Vec<BatchGroup>,
    /// Groups left out while it was made, by reason.
    #[serde(default)]
    pub left_out: BTreeMap<LeftOut, u64>,
}

/// The sessions of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BatchGroup {
    /// The task.
    pub task_id: TaskId,
    /// As in the rows of its traces.
    pub group_id: GroupId,
    /// Versions that its oldest tokens are behind the one asked for; absent where none was asked
    /// for or the engine tells none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staleness: Option<u64>,
    /// Mean reward over its usable sessions: each counts once, however many traces it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_reward: Option<f64>,
    /// What stopping early did; absent where all sessions came to their own end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<EarlyStopInfo>,
    /// All its sessions, by sample index; train on the usable ones.
    pub sessions: Vec<BatchSession>,
    /// The task's own.
    #[serde(default)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// When a group has enough: stopping it early saves time, and favours short rollouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EarlyStop {
    /// Usable sessions that are enough: the others are cancelled then.
    pub usable: u32,
}

/// The bias that stopping a group early brings: what was cancelled had run longer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EarlyStopInfo {
    /// Sessions that were cancelled.
    pub cancelled: u32,
    /// Mean of the tokens sampled in usable sessions.
    pub usable_mean_tokens: f64,
    /// Mean of the tokens that cancelled sessions had sampled until then; absent where none of
    /// them had begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled_mean_tokens: Option<f64>,
}

/// One session of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BatchSession {
    /// Which session; `rollout_id` of its traces.
    pub session_id: SessionId,
    /// Its place in the group.
    pub sample_index: u32,
    /// How it ended.
    pub status: SessionStatus,
    /// The same in more words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// Whether it is to be trained on: it has tokens to train on, a reward if one was asked for,
    /// and neither was it cancelled nor is its end the fault of the infrastructure.
    pub usable: bool,
    /// The evaluator's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Traces of its trajectory.
    pub traces: u32,
    /// Where its sampled tokens went.
    pub tokens: TokenCounts,
    /// Versions that sampled its trained tokens, in the order of their first one.
    #[serde(default)]
    pub weight_versions: Vec<String>,
    /// Marks of known ways to get a reward without doing the task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hack_labels: Vec<HackLabel>,
    /// Its trajectory, to be had at `/api/blobs/{sha256}` or with the batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trajectory: Option<Artifact>,
    /// The same as arrays of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrays: Option<Artifact>,
}
