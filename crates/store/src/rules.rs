//! The decisions that do not depend on where things are kept: what follows the end of an
//! attempt, which deadline a session gets, what an event says.

use crate::{Limits, StoreError};
use jiff::Timestamp;
use polar_types::{
    Budgets, EndReason, ErrorClass, NodeInfo, Outcome, ReleaseRequest, SessionId, SessionReport,
    SessionStatus, Side, Stage, TaskSpec, TaskStatus,
};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::time::Duration;

/// A released lease spends no attempt so often; after that it does, so that a node that
/// takes and gives back for ever comes to an end too.
const RELEASES_FORGIVEN: u32 = 16;

/// An attempt that the engine was lost to spends none so often. With the pauses in between an
/// engine may be away for the better part of an hour, even where its node does not notice.
const ENGINE_LOSSES_FORGIVEN: u32 = 12;

/// Where a session stands when its attempt ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    /// Number of the attempt that ends, from 1.
    pub(crate) attempt: u32,
    /// Attempts spent before this one.
    pub(crate) spent: u32,
    /// Attempts that may be spent.
    pub(crate) max_attempts: u32,
    /// Whether the client wants it ended.
    pub(crate) cancel_requested: bool,
}

/// Why a lease ended without an accepted report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    LeaseExpired,
    Overdue,
    NodeRestarted,
    Released,
    /// Given back because it failed there.
    ReleasedFailed,
}

impl From<&ReleaseRequest> for Loss {
    fn from(request: &ReleaseRequest) -> Self {
        if request.failed { Self::ReleasedFailed } else { Self::Released }
    }
}

impl Loss {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::LeaseExpired => "lease_expired",
            Self::Overdue => "overdue",
            Self::NodeRestarted => "node_restarted",
            Self::Released | Self::ReleasedFailed => "released",
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::LeaseExpired => "its node stopped renewing the lease",
            Self::Overdue => "its node held it longer than all its budgets allow",
            Self::NodeRestarted => "its node was started anew",
            Self::Released => "its node gave it back",
            Self::ReleasedFailed => "it failed on a node that is out of order",
        }
    }
}

/// What follows the end of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    /// Attempts spent, with this one.
    pub(crate) spent: u32,
    pub(crate) next: Next,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Next {
    /// Queued for another attempt, for this reason; after a pause when waiting may help.
    Again { because: String, paused: bool },
    /// Nothing more.
    End(End),
}

/// How a session ends.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct End {
    pub(crate) outcome: Outcome,
    pub(crate) reason: EndReason,
    pub(crate) reward: Option<f64>,
    /// Whether a trainer can use it.
    pub(crate) usable: bool,
}

impl End {
    /// One that no node reported.
    pub(crate) fn of(outcome: Outcome) -> Self {
        Self { reason: EndReason::of(&outcome, false), outcome, reward: None, usable: false }
    }

    /// One that a node reported. What was lost has no reward, whatever the node says.
    fn reported(report: &SessionReport) -> Self {
        let outcome = report.outcome.clone();
        let is_lost = EndReason::of(&outcome, false).is_infrastructure();
        let reason = EndReason::of(&outcome, report.grade_error.is_some());
        let reward = report.reward.filter(|_| !is_lost);
        Self { outcome, reason, reward, usable: report.is_usable() }
    }
}

/// After a report by the holder of the lease.
pub(crate) fn after_report(standing: Standing, report: &SessionReport) -> Verdict {
    let outcome = &report.outcome;
    let forgiven = standing.attempt.saturating_sub(1).saturating_sub(standing.spent);
    let is_forgiven = outcome.is_engine_outage() && forgiven < ENGINE_LOSSES_FORGIVEN;
    let spent = standing.spent.saturating_add(u32::from(!is_forgiven));
    let next = match outcome {
        Outcome::Failed { .. } if standing.cancel_requested => {
            Next::End(End::of(Outcome::Cancelled))
        }
        Outcome::Failed { message, .. }
            if outcome.is_retryable() && spent < standing.max_attempts =>
        {
            Next::Again { because: message.clone(), paused: true }
        }
        _ => Next::End(End::reported(report)),
    };
    Verdict { spent, next }
}

/// After a lease was lost.
pub(crate) fn after_loss(standing: Standing, loss: Loss) -> Verdict {
    let is_released = matches!(loss, Loss::Released | Loss::ReleasedFailed);
    let forgiven =
        is_released && standing.attempt < standing.max_attempts.saturating_add(RELEASES_FORGIVEN);
    let spent = standing.spent.saturating_add(u32::from(!forgiven));
    let next = if standing.cancel_requested {
        Next::End(End::of(Outcome::Cancelled))
    } else if spent < standing.max_attempts {
        // The node was at fault, and another one may take it now, unless the task may be.
        let paused = loss == Loss::ReleasedFailed;
        Next::Again { because: loss.in_words().to_owned(), paused }
    } else {
        Next::End(End::of(lost_for_good(loss, spent)))
    };
    Verdict { spent, next }
}

fn lost_for_good(loss: Loss, spent: u32) -> Outcome {
    let class = match loss {
        Loss::Overdue => ErrorClass::Timeout,
        Loss::LeaseExpired | Loss::NodeRestarted | Loss::Released | Loss::ReleasedFailed => {
            ErrorClass::Unavailable
        }
    };
    Outcome::Failed {
        side: Side::Polar,
        class,
        message: format!(
            "{}, and no attempt is left after {spent}; look at the node's log, or raise \
             max_attempts",
            loss.in_words()
        ),
    }
}

/// The end of a session that no node took in time.
pub(crate) fn never_taken(runtime: &str, limit: Duration) -> End {
    End::of(Outcome::Failed {
        side: Side::Polar,
        class: ErrorClass::Unavailable,
        message: format!(
            "no node took it within {} seconds; is a node with the {runtime} runtime running?",
            limit.as_secs()
        ),
    })
}

/// The end of a session whose stored task cannot be read.
pub(crate) fn unreadable(why: &str) -> End {
    End::of(Outcome::Failed {
        side: Side::Polar,
        class: ErrorClass::Internal,
        message: format!("{why}; submit the task again under another task_id"),
    })
}

/// Where a task stands once all its sessions have ended.
pub(crate) fn task_end(cancel_requested: bool, any_with_trajectory: bool) -> TaskStatus {
    match (cancel_requested, any_with_trajectory) {
        (true, _) => TaskStatus::Cancelled,
        (false, true) => TaskStatus::Completed,
        (false, false) => TaskStatus::Failed,
    }
}

/// Whether a session that ended so counts as having a trajectory.
pub(crate) fn has_trajectory(status: SessionStatus) -> bool {
    matches!(status, SessionStatus::Completed | SessionStatus::TimedOut)
}

/// Why the sessions that are left of a task are ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancelling {
    /// The client wants no more of it.
    Asked,
    /// Its group has as many usable sessions as are enough.
    EnoughUsable,
    /// Its group is too many versions behind the trainer.
    Stale,
}

impl Cancelling {
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Asked => "the client cancelled its task",
            Self::EnoughUsable => {
                "its group had as many usable sessions as are enough (`early_stop.usable`)"
            }
            Self::Stale => {
                "its group was more versions behind the trainer than a batch may be \
                 (`max_staleness`)"
            }
        }
    }
}

/// What a session that was never leased waits for.
pub(crate) fn waiting_for_node(runtime: &str) -> String {
    format!("a node with a free slot and the {runtime} runtime")
}

/// What a session waits for after an attempt that does not count as its end.
pub(crate) fn waiting_for_retry(verdict: &Verdict, max_attempts: u32, because: &str) -> String {
    let next = verdict.spent + 1;
    format!("a node, for attempt {next} of {max_attempts}: {because}")
}

/// How long to wait before the next attempt, after so many.
pub(crate) fn retry_pause(attempts: u32, limits: &Limits) -> Duration {
    let factor = 4_u32.saturating_pow(attempts.saturating_sub(1));
    limits.retry_pause.saturating_mul(factor).min(limits.longest_retry_pause)
}

/// How long a node may hold a session once it no longer waits for a place there.
pub(crate) fn longest_hold(budgets: &Budgets, limits: &Limits) -> Duration {
    let seconds = budgets.prepare_seconds + budgets.run_seconds + budgets.grade_seconds;
    let working = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
    working.saturating_add(limits.overdue_slack)
}

/// Whether a session on a node waits for a place or its sandbox: time that its budgets
/// do not count. The node ends a preparation that takes too long by itself.
pub(crate) fn waits_on_node(stage: Stage) -> bool {
    matches!(stage, Stage::Prepare | Stage::Ready)
}

/// Deadline of a session that still waits on its node. Waiting there has the same end as
/// waiting for a node.
pub(crate) fn deadline_in_wait(leased_at: i64, hold: Duration, limits: &Limits, now: i64) -> i64 {
    plus(now.min(plus(leased_at, limits.queue_limit)), hold)
}

pub(crate) fn millis(at: Timestamp) -> i64 {
    at.as_millisecond()
}

pub(crate) fn plus(at: i64, span: Duration) -> i64 {
    at.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
}

pub(crate) fn timestamp(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH)
}

pub(crate) fn rfc3339(millis: i64) -> String {
    timestamp(millis).to_string()
}

pub(crate) fn task_created(harness: &str, num_samples: u32) -> Value {
    json!({ "harness": harness, "num_samples": num_samples })
}

pub(crate) fn task_ended(status: TaskStatus) -> Value {
    json!({ "status": status.as_str() })
}

pub(crate) fn session_status(status: SessionStatus, attempt: u32, node: &str) -> Value {
    json!({ "status": status.as_str(), "attempt": attempt, "node_id": node })
}

pub(crate) fn session_requeued(attempt: u32, node: &str, because: &str) -> Value {
    json!({ "status": "queued", "attempt": attempt, "node_id": node, "because": because })
}

pub(crate) fn session_ended(end: &End, attempt: u32, node: Option<&str>) -> Value {
    let End { outcome, reason, reward, usable: _ } = end;
    let (status, reason) = (outcome.status().as_str(), reason.as_str());
    let mut data = json!({ "status": status, "reason": reason, "attempt": attempt });
    if let Value::Object(fields) = &mut data {
        if let Some(node) = node {
            fields.insert("node_id".to_owned(), json!(node));
        }
        if let Some(reward) = reward {
            fields.insert("reward".to_owned(), json!(reward));
        }
        if let Outcome::Failed { message, .. } = outcome {
            fields.insert("message".to_owned(), json!(message));
        }
    }
    data
}

/// The same for every sending: each thing ends once.
pub(crate) fn callback_id(ended: &str, what: polar_types::EventKind) -> String {
    format!("{ended}:{}", what.as_str())
}

/// The node that was last heard of under a name.
pub(crate) struct NameHolder {
    pub(crate) info: NodeInfo,
    pub(crate) last_seen: i64,
    /// When the last of its leases runs out, if it holds any. Later than a lease time from
    /// when it was heard of where the server was away and gave leases a fresh term.
    pub(crate) leased_until: Option<i64>,
}

/// Refuses a node while another one goes by its name: each would take the other's sessions.
/// A restart is no other node, and takes over at once.
pub(crate) fn check_name(
    asking: &NodeInfo,
    holder: &NameHolder,
    limits: &Limits,
    now: i64,
) -> Result<(), StoreError> {
    let known = &holder.info;
    let same_instance = !asking.instance_id.is_empty() && asking.instance_id == known.instance_id;
    let heard_until = plus(holder.last_seen, limits.lease_ttl);
    let free_at = holder.leased_until.map_or(heard_until, |until| until.max(heard_until));
    if asking.boot_id == known.boot_id || same_instance || free_at <= now {
        return Ok(());
    }
    let seconds = |millis: i64| u64::try_from(millis).unwrap_or(0).div_ceil(1000);
    Err(StoreError::NameInUse {
        name: asking.node_id.to_string(),
        silent_for: seconds(now.saturating_sub(holder.last_seen)),
        free_in: seconds(free_at.saturating_sub(now)),
    })
}

/// Nodes not heard of for so long are forgotten.
pub(crate) const NODE_MEMORY: Duration = Duration::from_secs(24 * 3600);

/// What a leased session waits for once its task is cancelled.
pub(crate) const WAITING_FOR_CANCEL: &str = "its node to end it, as the task is cancelled";

pub(crate) fn not_ended(session: &SessionId) -> StoreError {
    StoreError::conflict(format!(
        "session {session} has not ended, so that there is no stored work of it yet"
    ))
}

pub(crate) fn is_being_regraded(session: &SessionId) -> StoreError {
    StoreError::conflict(format!(
        "the stored work of session {session} is being graded again by another evaluator; wait \
         until that has ended"
    ))
}

/// A task whose id is taken, as it is stored and as it was sent.
pub(crate) fn other_body(stored: &Value, sent: &TaskSpec) -> StoreError {
    let id = sent.task_id.as_str();
    let sent = serde_json::to_value(sent).unwrap_or_default();
    let field = differing_field(stored, &sent).unwrap_or_default();
    let differs = if field.is_empty() { String::new() } else { format!(": {field} differs") };
    let message = format!(
        "task {id:?} is already stored with another body{differs}; submit the same body again, or \
         choose another task_id"
    );
    let before = stored.pointer(&format!("/{}", field.replace('.', "/")));
    let before = before.unwrap_or(&Value::Null).to_string();
    match field.as_str() {
        "" => StoreError::conflict(message),
        field => StoreError::conflict_in(
            (field, "is not what this task was stored with", before),
            message,
        ),
    }
}

/// The first field that is not the same in both, with the fields that it is in.
fn differing_field(one: &Value, other: &Value) -> Option<String> {
    let (Value::Object(one), Value::Object(other)) = (one, other) else {
        return (one != other).then(String::new);
    };
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    names.into_iter().find_map(|name| {
        let null = Value::Null;
        let (one, other) = (one.get(name).unwrap_or(&null), other.get(name).unwrap_or(&null));
        let within = differing_field(one, other)?;
        Some(if within.is_empty() { name.clone() } else { format!("{name}.{within}") })
    })
}

pub(crate) fn session_ids_taken(task: &polar_types::TaskId) -> StoreError {
    let problem = "is cut to the names of another task's sessions";
    StoreError::conflict_in(
        ("task_id", problem, r#""a-shorter-name""#),
        format!(
            "the sessions of task {:?} would have the names of another task's sessions, since \
             long task ids are cut; choose a shorter task_id",
            task.as_str()
        ),
    )
}

/// Which of two tasks is handed out first: the more urgent, then the one that has less of its
/// share, then the older. A task's first session never waits for a second one of another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Turn {
    pub(crate) priority: i64,
    /// Leased sessions by weight.
    pub(crate) share: f64,
    pub(crate) ordinal: u64,
}

impl Turn {
    pub(crate) fn cmp(&self, other: &Self) -> Ordering {
        let by_priority = other.priority.cmp(&self.priority);
        by_priority.then(self.share.total_cmp(&other.share)).then(self.ordinal.cmp(&other.ordinal))
    }
}
