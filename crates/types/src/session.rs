//! A session: one run of one task, and what became of it.

use crate::{
    CallRole, Epoch, ErrorClass, ForkCause, GradeInfo, Grading, GroupId, HackLabel, NetworkUse,
    NodeId, RegradeInfo, RoleCounts, SessionId, Side, TaskId, TokenCounts, TrainingSizes,
    TranslationCounts,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The stages a session passes on its node, in order.
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
pub enum Stage {
    /// Sandbox up, files in, set-up commands.
    Prepare,
    /// Prepared, waiting for a run slot.
    Ready,
    /// The harness runs.
    Run,
    /// Trajectory built, result evaluated.
    Grade,
    /// Handed to the server.
    Deliver,
}

/// Where a session stands, as the server knows it.
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
pub enum SessionStatus {
    /// Waiting for a node.
    Queued,
    /// Leased; the node prepares its sandbox.
    Preparing,
    /// Prepared; waits for a run slot on its node.
    Ready,
    /// The harness runs.
    Running,
    /// Being graded.
    Grading,
    /// Being handed to the server.
    Delivering,
    /// Ended: the harness came to its own end.
    Completed,
    /// Ended: the harness ran out of its budget; the trajectory holds what it did.
    TimedOut,
    /// Ended: failed, with a reason.
    Failed,
    /// Ended: cancelled.
    Cancelled,
}

impl SessionStatus {
    /// Whether nothing more will happen to the session.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::TimedOut | Self::Failed | Self::Cancelled)
    }

    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Preparing => "preparing",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Grading => "grading",
            Self::Delivering => "delivering",
            Self::Completed => "completed",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl From<Stage> for SessionStatus {
    fn from(stage: Stage) -> Self {
        match stage {
            Stage::Prepare => Self::Preparing,
            Stage::Ready => Self::Ready,
            Stage::Run => Self::Running,
            Stage::Grade => Self::Grading,
            Stage::Deliver => Self::Delivering,
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Outcome {
    /// The harness came to its own end.
    Completed,
    /// The harness ran out of its budget.
    TimedOut,
    /// Something failed. Failures on the side of the sandbox, the engine or Polar are
    /// tried again while attempts are left; those of harness and grader are not.
    Failed {
        /// On whose side.
        side: Side,
        /// What kind.
        class: ErrorClass,
        /// What happened and what to do about it.
        message: String,
    },
    /// Cancelled by the client.
    Cancelled,
}

impl Outcome {
    /// The terminal status a session with this outcome gets when it is not tried again.
    pub fn status(&self) -> SessionStatus {
        match self {
            Self::Completed => SessionStatus::Completed,
            Self::TimedOut => SessionStatus::TimedOut,
            Self::Failed { .. } => SessionStatus::Failed,
            Self::Cancelled => SessionStatus::Cancelled,
        }
    }

    /// What happened, where it failed.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Failed { message, .. } => Some(message),
            Self::Completed | Self::TimedOut | Self::Cancelled => None,
        }
    }

    /// Whether the engine was away: nobody's fault that holds the session.
    pub fn is_engine_outage(&self) -> bool {
        matches!(self, Self::Failed { side: Side::Engine, class: ErrorClass::Unavailable, .. })
    }

    /// Whether another attempt could end differently.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Failed { side: Side::Sandbox | Side::Engine | Side::Polar, .. })
    }
}

/// What became of a session in one word, so that failures can be told apart and counted.
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
pub enum EndReason {
    /// The harness came to its own end, and was graded if that was asked for.
    Completed,
    /// The harness ran out of its budget.
    AgentTimeout,
    /// The harness's program was not found or could not be executed, and made no call.
    FailedToStart,
    /// The harness failed: it ended with an exit code of failure, was killed, or says so.
    HarnessCrash,
    /// The sandbox cannot be made or set up as the task says: an image that is not there, a step of
    /// `runtime.prepare` that fails.
    SetupFailed,
    /// The sandbox was lost, or could not be made now.
    SandboxLoss,
    /// The engine could not be reached, or failed.
    EngineLoss,
    /// Polar itself, or its machine, failed.
    PolarFailure,
    /// There is no reward although one was asked for.
    GraderFailure,
    /// The client cancelled it.
    Cancelled,
}

impl EndReason {
    /// Of an outcome, and of whether an evaluator that was asked for gave no reward.
    pub fn of(outcome: &Outcome, ungraded: bool) -> Self {
        match outcome {
            Outcome::Completed if ungraded => Self::GraderFailure,
            Outcome::Completed => Self::Completed,
            Outcome::TimedOut => Self::AgentTimeout,
            Outcome::Cancelled => Self::Cancelled,
            Outcome::Failed { side, class, .. } => match side {
                Side::Harness if *class == ErrorClass::NotFound => Self::FailedToStart,
                Side::Harness => Self::HarnessCrash,
                Side::Engine => Self::EngineLoss,
                Side::Sandbox if *class == ErrorClass::Invalid => Self::SetupFailed,
                Side::Sandbox => Self::SandboxLoss,
                Side::Grader => Self::GraderFailure,
                Side::Polar => Self::PolarFailure,
            },
        }
    }

    /// All of them, for counts.
    pub const ALL: [Self; 10] = [
        Self::Completed,
        Self::AgentTimeout,
        Self::FailedToStart,
        Self::HarnessCrash,
        Self::SetupFailed,
        Self::SandboxLoss,
        Self::EngineLoss,
        Self::PolarFailure,
        Self::GraderFailure,
        Self::Cancelled,
    ];

    /// Whether it says nothing of the agent's work.
    pub fn is_infrastructure(self) -> bool {
        matches!(
            self,
            Self::SetupFailed | Self::SandboxLoss | Self::EngineLoss | Self::PolarFailure
        )
    }

    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::AgentTimeout => "agent_timeout",
            Self::FailedToStart => "failed_to_start",
            Self::HarnessCrash => "harness_crash",
            Self::SetupFailed => "setup_failed",
            Self::SandboxLoss => "sandbox_loss",
            Self::EngineLoss => "engine_loss",
            Self::PolarFailure => "polar_failure",
            Self::GraderFailure => "grader_failure",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Seconds each stage took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct StageTimes {
    /// Preparing.
    pub prepare_seconds: f64,
    /// Waiting for a run slot.
    pub ready_seconds: f64,
    /// Running.
    pub run_seconds: f64,
    /// Grading.
    pub grade_seconds: f64,
    /// What its sandbox cost, within preparing; absent where there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxStart>,
    /// From the start of the harness to its first call, within running; absent where it made none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub harness_start_seconds: Option<f64>,
    /// What the grader's own sandbox cost; absent where there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grader: Option<SandboxStart>,
}

/// What it took to have a sandbox ready.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct SandboxStart {
    /// Whether it was begun before the session needed it: one that the node keeps ready for its
    /// image (`--warm`), or a grader's that is made while the agent runs.
    pub warm: bool,
    /// How long the session waited for it. Less than the rest together where it is warm.
    pub waited_seconds: f64,
    /// Getting the image: pulling or unpacking it, or waiting for who does; near 0 where the node
    /// has it.
    pub image_seconds: f64,
    /// Making it.
    pub create_seconds: f64,
    /// The steps of `runtime.prepare`, and for a grader's taking the network away.
    pub set_up_seconds: f64,
}

/// A file kept with an attempt: the journal, the trajectory, a log, the diff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Artifact {
    /// `trajectory.json`, `trajectory.safetensors`, `calls.json`, `journal`, `stdout.log`,
    /// `stderr.log`, `grader.log`, `workspace.diff` or `work.tar`.
    pub name: String,
    /// SHA-256 of its bytes in lower-case hex; its address in the blob store.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

/// What a node reports when an attempt has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SessionReport {
    /// Which session.
    pub session_id: SessionId,
    /// Whose stored work was graded, where that was all there was to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regrade_of: Option<SessionId>,
    /// The fencing token it was leased with.
    pub epoch: Epoch,
    /// Which node ran it.
    pub node_id: NodeId,
    /// How it ended.
    pub outcome: Outcome,
    /// The same in one word; absent in reports of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// What is behind the reason, in words; absent where it is `completed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_detail: Option<String>,
    /// The evaluator's number; absent when there is none or it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Why there is no reward although an evaluator was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grade_error: Option<String>,
    /// What to know about the reward that is there: for example that it is 0 because the
    /// evaluator could not be run any more after the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grade_note: Option<String>,
    /// Which evaluator found it, by which rules, and what it saw; absent where nothing was
    /// evaluated, and in reports of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grade: Option<GradeInfo>,
    /// Marks of known ways to get a reward without doing the task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hack_labels: Vec<HackLabel>,
    /// Hosts that were asked for in its sandbox, where `runtime.allowed_hosts` leads to some: what
    /// is refused there may be missing in that list.
    #[serde(default, skip_serializing_if = "NetworkUse::is_empty")]
    pub network: NetworkUse,
    /// Exit code of the harness, when it came to an end by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// LLM calls recorded.
    pub calls: u32,
    /// Traces built from them.
    pub traces: u32,
    /// Where every sampled token went.
    pub tokens: TokenCounts,
    /// Weight versions that sampled its trained tokens, in the order of their first one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weight_versions: Vec<String>,
    /// What a trainer has to run in each layout; absent where nothing was built, and in reports
    /// of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<TrainingSizes>,
    /// How many traces there are by cause; the first one counts as `new_lineage`.
    #[serde(default)]
    pub forks: BTreeMap<ForkCause, u32>,
    /// Calls by role, trained or not.
    #[serde(default)]
    pub roles: BTreeMap<CallRole, RoleCounts>,
    /// Calls of which something did not reach the engine as it was sent.
    #[serde(default, skip_serializing_if = "TranslationCounts::is_empty")]
    pub translation: TranslationCounts,
    /// Seconds per stage.
    pub times: StageTimes,
    /// Files uploaded beforehand.
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
}

impl SessionReport {
    /// Whether there is something to train on, with a reward if one was asked for, and the end
    /// says something of the agent's work.
    pub fn is_usable(&self) -> bool {
        let reason = EndReason::of(&self.outcome, self.grade_error.is_some());
        let is_no_end = matches!(reason, EndReason::Cancelled | EndReason::GraderFailure);
        let is_judged = !reason.is_infrastructure() && !is_no_end && self.grade_error.is_none();
        is_judged && self.tokens.trained > 0
    }
}

/// One attempt as the API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AttemptInfo {
    /// Counted from 1.
    pub attempt: u32,
    /// Its fencing token.
    pub epoch: Epoch,
    /// Who ran it.
    pub node_id: NodeId,
    /// When it was leased (RFC 3339, UTC).
    pub started_at: String,
    /// When it ended (RFC 3339, UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Why it ended, for attempts without an accepted report: `lease_expired`, `overdue`,
    /// `node_restarted`, `released`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// The node's report, when one was accepted or salvaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<SessionReport>,
}

/// Whether the client's URL has been told of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallbackStatus {
    /// To be sent, or sent without success and to be tried again.
    Pending,
    /// Answered with a 2xx status.
    Delivered,
    /// Given up.
    Failed,
}

impl CallbackStatus {
    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
        }
    }
}

/// How telling the client's URL goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CallbackState {
    /// Where it stands.
    pub status: CallbackStatus,
    /// Requests sent so far.
    pub attempts: u32,
    /// What went wrong with the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A session as the API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SessionInfo {
    /// Its name.
    pub session_id: SessionId,
    /// Of which task.
    pub task_id: TaskId,
    /// Which group its reward is compared in.
    pub group_id: GroupId,
    /// Which of the task's samples, from 0.
    pub sample_index: u32,
    /// Where it stands.
    pub status: SessionStatus,
    /// What it waits for, in words, while it has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// All attempts, oldest first; the last one is the session's own.
    pub attempts: Vec<AttemptInfo>,
    /// Reward of the accepted attempt, by its latest grading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Number of that grading; 1 unless its work was graded again.
    #[serde(default = "first_revision")]
    pub revision: u32,
    /// All gradings, oldest first, where its work was graded again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gradings: Vec<Grading>,
    /// The latest order to grade its work again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regrade: Option<RegradeInfo>,
    /// How it ended, once it has; also where no node reported it, such as an expired lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The same in one word, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// What is behind the reason, in words; absent where it is `completed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_detail: Option<String>,
    /// How telling the client's URL goes, once there is something to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackState>,
    /// When it was queued (RFC 3339, UTC).
    pub created_at: String,
    /// When it last changed (RFC 3339, UTC).
    pub updated_at: String,
}

fn first_revision() -> u32 {
    1
}

impl SessionInfo {
    /// Fills in `reason` and `reason_detail` by what else is known of the end; `why` it was
    /// cancelled, should it have been.
    pub fn with_reason(mut self, why: Option<String>) -> Self {
        let Some(outcome) = &self.outcome else { return self };
        let why = why.filter(|_| *outcome == Outcome::Cancelled);
        let told = self.report().filter(|report| report.outcome == *outcome);
        let reason = told.and_then(|report| report.reason);
        let detail = told.and_then(|report| report.reason_detail.clone());
        let detail = detail.or_else(|| outcome.detail().map(str::to_owned)).or(why);
        self.reason = Some(reason.unwrap_or_else(|| EndReason::of(outcome, false)));
        self.reason_detail = detail;
        self
    }

    /// The report that was accepted for the last attempt; never a salvaged one.
    pub fn report(&self) -> Option<&SessionReport> {
        self.attempts.last().filter(|a| a.lost.is_none()).and_then(|a| a.report.as_ref())
    }
}

/// Answer to `GET /api/tasks/{id}/sessions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SessionList {
    /// Of which task.
    pub task_id: TaskId,
    /// By sample index.
    pub sessions: Vec<SessionInfo>,
}
