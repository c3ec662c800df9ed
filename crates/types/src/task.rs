//! A task: one problem, asked for `num_samples` times.
//!
//! [`TaskRequest`] is what a client sends, with short forms and defaults;
//! [`TaskSpec`] is the same with everything resolved and checked. A `TaskSpec` can
//! only be made by [`TaskRequest::resolve`], so the rest of Polar never meets an
//! unchecked one.

mod benchmarks;
mod evaluator;
mod extras;
mod grading;
mod hosts;
mod images;
mod outside;
mod short_form;
mod spec;
mod swebench_instance;
mod written;

pub use benchmarks::{HarborEvaluator, SwebenchEvaluator, SwebenchLogParser};
pub use evaluator::{
    EvaluatorSpec, RewardSource, TestFormat, TestsEvaluator, TestsReward, WeightedEvaluator,
};
pub use extras::{McpServer, Skill};
pub use grading::{GradingSandbox, GradingSpec, OnHack};
pub use hosts::{AllowedHost, NoHost};
pub use outside::{HttpEvaluator, JudgeEvaluator, JudgeInput, KEY_PREFIX, PythonEvaluator};
pub use spec::{
    Budgets, Callback, CallbackFormat, Encoding, HarnessSpec, MountSpec, Network, PrepareStep,
    RuntimeKind, RuntimeSpec, TrajectoryStrategy,
};
pub use swebench_instance::{InstanceError, InstanceTests};

use crate::{
    CallRole, CallbackState, EarlyStop, FieldProblem, GroupId, HistoryPolicy, LeftOut, QueueName,
    SamplingPins, TaskId,
};
use serde::{Deserialize, Serialize, de};
use std::collections::BTreeMap;
use std::fmt;

/// The body of `POST /api/tasks`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// Idempotency key. Submitting the same id with the same body again returns the
    /// stored task; with another body it is a conflict. Minted when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// What the agent is asked to do.
    #[serde(default)]
    pub instruction: String,
    /// Which agent program: a name (`"pi"`) or an object.
    #[schema(value_type = written::HarnessSpecOrWord)]
    pub harness: HarnessSpec,
    /// Where it runs: a name (`"local"`, `"docker"`, `"podman"`, `"apptainer"`) or an object.
    #[serde(default)]
    #[schema(value_type = written::RuntimeSpecOrWord)]
    pub runtime: RuntimeSpec,
    /// How the result is graded: `"none"` or an object.
    #[serde(default)]
    #[schema(value_type = written::EvaluatorSpecOrWord)]
    pub evaluator: EvaluatorSpec,
    /// Where the result is graded, and what of it gets there.
    #[serde(default)]
    pub grading: GradingSpec,
    /// How calls become traces: a name (`"prefix_merging"`) or an object.
    #[serde(default)]
    pub trajectory_strategy: TrajectoryStrategy,
    /// Roles of calls whose tokens are trained. Calls of other roles are kept and counted.
    #[serde(default = "CallRole::trained_by_default")]
    pub train_roles: Vec<CallRole>,
    /// Sessions run for this task.
    #[serde(default = "one", deserialize_with = "counted")]
    pub num_samples: u32,
    /// Sampling parameters that replace the harness's own.
    #[serde(default)]
    pub sampling: SamplingPins,
    /// What the engine gets of the model's earlier turns: what was `sampled`, what the model's
    /// `template` writes of it, or the turns `as_sent` by the harness.
    #[serde(default)]
    pub history: HistoryPolicy,
    /// Time limits per stage, in seconds.
    #[serde(default)]
    pub budgets: Budgets,
    /// Shorthand for `budgets.run_seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
    /// Attempts per session when the infrastructure (not the agent) fails.
    #[serde(default = "three", deserialize_with = "counted")]
    pub max_attempts: u32,
    /// Higher is handed out first.
    #[serde(default)]
    pub priority: i32,
    /// Share of the places beside other tasks of the same priority: one of weight 2 runs twice as
    /// many sessions at a time as one of weight 1.
    #[serde(default = "one", deserialize_with = "counted")]
    pub weight: u32,
    /// Queue that a trainer pulls its batches from.
    #[serde(default)]
    pub queue: QueueName,
    /// When the group has enough, so that its other sessions are cancelled; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<EarlyStop>,
    /// URL told about each ended session: a string or an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<written::CallbackOrWord>)]
    pub callback: Option<Callback>,
    /// Carried through to every result, untouched.
    #[serde(default)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

fn one() -> u32 {
    1
}

fn three() -> u32 {
    3
}

/// Reads a number of things of which there must be some, so that a refusal says so. Zero
/// is left to [`TaskRequest::resolve`], which knows the other limit as well.
fn counted<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    struct Count;
    impl de::Visitor<'_> for Count {
        type Value = u32;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number of 1 or more")
        }
        fn visit_u64<E: de::Error>(self, number: u64) -> Result<u32, E> {
            let too_large = |_| E::invalid_value(de::Unexpected::Unsigned(number), &self);
            u32::try_from(number).map_err(too_large)
        }
        fn visit_i64<E: de::Error>(self, number: i64) -> Result<u32, E> {
            let too_small = |_| E::invalid_value(de::Unexpected::Signed(number), &self);
            u32::try_from(number).map_err(too_small)
        }
    }
    deserializer.deserialize_u32(Count)
}

/// Largest weight of a task.
const MAX_WEIGHT: u32 = 1000;

/// Most sessions one task may ask for.
pub const MAX_SAMPLES: u32 = 4096;

/// What the receiving server knows beyond the request itself.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Names of the shipped harness adapters.
    pub harnesses: Vec<String>,
    /// Finds what is wrong with a harness beyond its shape: an adapter given inline, and
    /// settings that the adapter does not have. Whoever knows adapters gives it.
    pub harness_problems: Option<fn(&HarnessSpec) -> Vec<FieldProblem>>,
    /// Image used when a Docker or Podman runtime names none.
    pub default_image: Option<String>,
}

impl TaskRequest {
    /// Fills in defaults and checks every value. `minted` names the task when the
    /// client did not. Returns all problems at once, never only the first.
    pub fn resolve(self, minted: TaskId, known: &Known) -> Result<TaskSpec, Vec<FieldProblem>> {
        let mut problems = self.sampling.problems("sampling");
        self.harness.check(known, &mut problems);
        let mut runtime = self.runtime;
        let by_docker = matches!(runtime.kind, RuntimeKind::Docker | RuntimeKind::Podman);
        if by_docker && runtime.image.is_none() {
            runtime.image.clone_from(&known.default_image);
        }
        runtime.check(&mut problems);
        self.evaluator.check(&mut problems);
        self.evaluator.check_runtime(&runtime, &mut problems);
        self.grading.check(&mut problems);
        let mut budgets = self.budgets;
        if let Some(seconds) = self.timeout_seconds {
            let said = budgets.run_seconds;
            if said != seconds && said != Budgets::default().run_seconds {
                problems.push(FieldProblem::new(
                    "timeout_seconds",
                    format!("is short for `budgets.run_seconds`, which says {said}; give one"),
                    format!("{said}"),
                ));
            }
            budgets.run_seconds = seconds;
        }
        budgets.check(&mut problems);
        if let Some(callback) = &self.callback {
            callback.check(&mut problems);
        }
        if self.num_samples == 0 || self.num_samples > MAX_SAMPLES {
            problems.push(FieldProblem::new(
                "num_samples",
                format!("must be between 1 and {MAX_SAMPLES}, not {}", self.num_samples),
                "8",
            ));
        }
        if self.train_roles.is_empty() {
            problems.push(FieldProblem::new(
                "train_roles",
                "names no role, so that nothing would be trained",
                r#"["main", "sub_agent"]"#,
            ));
        }
        if self.max_attempts == 0 || self.max_attempts > 100 {
            problems.push(FieldProblem::new(
                "max_attempts",
                format!("must be between 1 and 100, not {}", self.max_attempts),
                "3",
            ));
        }
        if self.weight == 0 || self.weight > MAX_WEIGHT {
            problems.push(FieldProblem::new(
                "weight",
                format!("must be between 1 and {MAX_WEIGHT}, not {}", self.weight),
                "1",
            ));
        }
        let enough = 1..=self.num_samples;
        if let Some(stop) = self.early_stop.filter(|stop| !enough.contains(&stop.usable)) {
            problems.push(FieldProblem::new(
                "early_stop.usable",
                format!(
                    "must be between 1 and `num_samples`, {}, not {}",
                    self.num_samples, stop.usable
                ),
                self.num_samples.max(1).to_string(),
            ));
        }
        if self.instruction.trim().is_empty() && self.harness.command.is_none() {
            problems.push(FieldProblem::new(
                "instruction",
                "must say what the agent is to do",
                r#""Fix the failing test.""#,
            ));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let task_id = self.task_id.unwrap_or(minted);
        Ok(TaskSpec {
            group_id: GroupId::from(&task_id),
            task_id,
            instruction: self.instruction,
            harness: self.harness,
            runtime,
            evaluator: self.evaluator,
            grading: self.grading,
            trajectory_strategy: self.trajectory_strategy,
            train_roles: self.train_roles,
            num_samples: self.num_samples,
            sampling: self.sampling,
            history: self.history,
            budgets,
            max_attempts: self.max_attempts,
            priority: self.priority,
            weight: self.weight,
            queue: self.queue,
            early_stop: self.early_stop,
            callback: self.callback,
            metadata: self.metadata,
        })
    }
}

/// A task with everything resolved. Fields as in [`TaskRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TaskSpec {
    /// Name of the task.
    pub task_id: TaskId,
    /// The sessions a trainer compares with each other; the task itself.
    pub group_id: GroupId,
    /// What the agent is asked to do.
    pub instruction: String,
    /// Which agent program.
    pub harness: HarnessSpec,
    /// Where it runs.
    pub runtime: RuntimeSpec,
    /// How the result is graded.
    pub evaluator: EvaluatorSpec,
    /// Where the result is graded, and what of it gets there.
    #[serde(default)]
    pub grading: GradingSpec,
    /// How calls become traces.
    pub trajectory_strategy: TrajectoryStrategy,
    /// Roles of calls whose tokens are trained.
    #[serde(default = "CallRole::trained_by_default")]
    pub train_roles: Vec<CallRole>,
    /// Sessions run for this task.
    pub num_samples: u32,
    /// Sampling parameters that replace the harness's own.
    pub sampling: SamplingPins,
    /// What the engine gets of the model's earlier turns.
    #[serde(default)]
    pub history: HistoryPolicy,
    /// Time limits per stage.
    pub budgets: Budgets,
    /// Attempts per session when the infrastructure fails.
    pub max_attempts: u32,
    /// Higher is handed out first.
    pub priority: i32,
    /// Share of the places beside other tasks of the same priority.
    #[serde(default = "one")]
    pub weight: u32,
    /// Queue that a trainer pulls its batches from.
    #[serde(default)]
    pub queue: QueueName,
    /// When the group has enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<EarlyStop>,
    /// URL told about each ended session. The secret is never shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<Callback>,
    /// Carried through to every result, untouched.
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

impl TaskSpec {
    /// Where the result is graded.
    pub fn grading_sandbox(&self) -> GradingSandbox {
        self.grading.sandbox.unwrap_or_else(|| self.evaluator.sandbox())
    }
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// At least one session has not ended.
    Running,
    /// Every session has ended, at least one with a trajectory.
    Completed,
    /// Every session has ended and none of them completed or timed out.
    Failed,
    /// Cancelled by the client; every session has ended.
    Cancelled,
}

impl TaskStatus {
    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A task as `GET /api/tasks/{id}` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TaskInfo {
    /// Name of the task.
    pub task_id: TaskId,
    /// Where it stands.
    pub status: TaskStatus,
    /// Harness name.
    pub harness: String,
    /// Sessions asked for.
    pub num_samples: u32,
    /// Queue that a trainer pulls its batches from.
    #[serde(default)]
    pub queue: QueueName,
    /// Number of the batch that it is in, or was left out of while that was made; absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// Why it is in no batch and comes in none; absent where it is in one, or may come in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
    /// Sessions per status, for example `{"running": 3, "completed": 5}`.
    pub sessions: BTreeMap<String, u32>,
    /// Mean reward over the sessions that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_reward: Option<f64>,
    /// How telling the client's URL of the task's end goes, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackState>,
    /// When it was accepted (RFC 3339, UTC).
    pub created_at: String,
    /// When it last changed (RFC 3339, UTC).
    pub updated_at: String,
    /// The client's metadata.
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// Answer to `GET /api/tasks`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TaskPage {
    /// Newest first.
    pub tasks: Vec<TaskInfo>,
    /// Pass as `before` for the next older page; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_before: Option<u64>,
}
