//! The words of Polar as types: ids, tasks, sessions, leases, traces, errors.
//!
//! Every other crate speaks these. Nothing here does IO, reads a clock or knows a
//! transport; the JSON shapes are the public ones of the HTTP API and of the SDKs.

pub mod batch;
pub mod demand;
pub mod engines;
mod error;
pub mod event;
mod grade;
pub mod history;
pub mod id;
pub mod network_use;
pub mod node;
pub mod regrade;
pub mod role;
pub mod room;
pub mod sampling;
pub mod session;
pub mod task;
pub mod token_tree;
pub mod trace;
pub mod training_sizes;
pub mod translation;
pub mod weights;

pub use batch::{
    Batch, BatchAnswer, BatchGroup, BatchRequest, BatchSession, EarlyStop, EarlyStopInfo,
    EqualRewards, LeftOut, QueueInfo, QueueList,
};
pub use demand::{Demand, RuntimeOffer, WRITABLE_MOUNTS};
pub use engines::{
    EngineAction, EngineList, EngineOrder, EngineOrderDone, EngineOrderReport, EngineOrders,
    EngineRequest, EngineState, EngineStatus, NodeEngines, engine_weight_problem,
};
pub use error::{ErrorClass, FieldProblem, Side};
pub use event::{Event, EventKind, EventPage};
pub use grade::{GradeInfo, HackLabel, HackPattern, PartRewards, TestCounts};
pub use history::HistoryPolicy;
pub use id::{CallId, Epoch, GroupId, NodeId, QueueName, SessionId, TaskId};
pub use network_use::{HostAnswer, HostUse, NetworkUse};
pub use node::{
    CancelCount, CancelWatch, Lease, LeaseRequest, LeaseResponse, NodeInfo, NodeList, NodeSeen,
    NodeTrouble, ReleaseItem, ReleaseRequest, ReleaseResponse, RenewItem, RenewRequest,
    RenewResponse, ResultAck, Slots, TroubleKind,
};
pub use regrade::{
    Grading, RegradeInfo, RegradeList, RegradeOrder, RegradeRequest, RegradeSkipped, WORK,
};
pub use role::{
    CallOrigin, CallRole, Confidence, HarnessRules, NormaliseRule, ParentLink, PromptPart,
    RoleCondition, RoleCounts, RoleRule, StandInRule,
};
pub use room::{Footprint, NodeRoom};
pub use sampling::SamplingPins;
pub use session::{
    Artifact, AttemptInfo, CallbackState, CallbackStatus, EndReason, Outcome, SandboxStart,
    SessionInfo, SessionList, SessionReport, SessionStatus, Stage, StageTimes,
};
pub use task::{
    AllowedHost, Budgets, Callback, CallbackFormat, Encoding, EvaluatorSpec, GradingSandbox,
    GradingSpec, HarborEvaluator, HarnessSpec, HttpEvaluator, InstanceError, InstanceTests,
    JudgeEvaluator, JudgeInput, KEY_PREFIX, Known, McpServer, MountSpec, Network, NoHost, OnHack,
    PrepareStep, PythonEvaluator, RewardSource, RuntimeKind, RuntimeSpec, Skill, SwebenchEvaluator,
    SwebenchLogParser, TaskInfo, TaskPage, TaskRequest, TaskSpec, TaskStatus, TestFormat,
    TestsEvaluator, TestsReward, TrajectoryStrategy, WeightedEvaluator,
};
pub use token_tree::{TokenTree, TreeLineage, TreeNode};
pub use trace::{
    CallSummary, ForkCause, ForkPoint, LineageInfo, TokenCounts, Trace, Trajectory,
    UntrainedReason, WeightSpan,
};
pub use training_sizes::{LayoutSize, TrainingSizes};
pub use translation::TranslationCounts;
pub use weights::{
    EngineCall, EngineWeights, UpdateCalls, UpdateMode, UpdateStatus, WeightOrder, WeightReport,
    WeightSource, WeightState, WeightTarget, WeightUpdate, WeightUpdateList, WeightUpdateRequest,
};
