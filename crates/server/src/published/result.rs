//! What became of a session, in the published Polar's words.
//!
//! Ids, masks and messages pass through as the bytes they are stored as; nothing of a
//! conversation is read here. One session is in memory at a time.

use crate::app::App;
use crate::routes::{hash_of, trajectory_artifact};
use bytes::Bytes;
use futures_util::TryStreamExt;
use jiff::Timestamp;
use polar_blobs::BlobError;
use polar_types::{SessionInfo, SessionStatus, StageTimes, TaskInfo, WeightSpan};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Why a result could not be told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResultError {
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error("the trajectory of session {0} cannot be read: {1}")]
    Unreadable(String, serde_json::Error),
    #[error(transparent)]
    Store(#[from] polar_store::StoreError),
}

/// A session's status.
pub(super) fn status(status: SessionStatus) -> &'static str {
    match status {
        SessionStatus::Queued => "REGISTERED",
        SessionStatus::Preparing => "INITIALIZING",
        SessionStatus::Ready => "READY",
        SessionStatus::Running => "RUNNING",
        SessionStatus::Grading => "EVALUATING",
        SessionStatus::Delivering => "POST_RUN",
        SessionStatus::Completed => "COMPLETED",
        SessionStatus::TimedOut => "TIMEOUT",
        SessionStatus::Failed | SessionStatus::Cancelled => "ERROR",
    }
}

/// Why a session did not complete, in words.
pub(super) fn error(session: &SessionInfo) -> Option<String> {
    match session.status {
        SessionStatus::Cancelled => Some("session cancelled".to_owned()),
        SessionStatus::Failed => {
            Some(session.reason_detail.clone().unwrap_or_else(|| "session failed".to_owned()))
        }
        _ => session.reason_detail.clone(),
    }
}

#[derive(Serialize)]
struct SessionResult<'a> {
    session_id: &'a str,
    task_id: &'a str,
    status: &'static str,
    trajectory: Trajectory<'a>,
    timing: Timing,
    node_id: Option<&'a str>,
    error: Option<String>,
    metadata: &'a serde_json::Map<String, Value>,
}

#[derive(Serialize)]
struct Trajectory<'a> {
    status: &'static str,
    metadata: Value,
    traces: Vec<Trace<'a>>,
    error: Option<String>,
}

/// Whole numbers, which read as either kind of number.
#[derive(Serialize)]
struct Timing {
    register_to_init_queue_ms: u64,
    init_ms: u64,
    run_ms: u64,
    postrun_ms: u64,
}

#[derive(Serialize)]
struct Trace<'a> {
    prompt_ids: &'a RawValue,
    response_ids: &'a RawValue,
    loss_mask: &'a RawValue,
    prompt_messages: &'a RawValue,
    response_messages: &'a RawValue,
    tools: Option<&'a RawValue>,
    finish_reason: Option<&'a RawValue>,
    response_logprobs: Option<Vec<f32>>,
    reward: Option<f64>,
    metadata: TraceMetadata<'a>,
}

/// What the published trace has no field for.
#[derive(Serialize)]
struct TraceMetadata<'a> {
    lineage: &'a RawValue,
    weight_versions: &'a [WeightSpan],
    calls: &'a RawValue,
    /// Rewards of its calls, and where in the response each call ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    turn_scores: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn_ends: Option<&'a RawValue>,
    rollout_id: &'a RawValue,
    group_id: &'a RawValue,
    siblings: &'a RawValue,
    loss_weight: &'a RawValue,
    sampling: &'a RawValue,
}

#[derive(Deserialize)]
struct StoredTrajectory<'a> {
    #[serde(borrow)]
    strategy: &'a RawValue,
    #[serde(borrow)]
    traces: Vec<StoredTrace<'a>>,
    #[serde(borrow, default)]
    tree: Option<&'a RawValue>,
    #[serde(borrow)]
    tokens: &'a RawValue,
    #[serde(borrow)]
    forks: &'a RawValue,
}

#[derive(Deserialize)]
struct StoredTrace<'a> {
    #[serde(borrow)]
    prompt_ids: &'a RawValue,
    #[serde(borrow)]
    response_ids: &'a RawValue,
    #[serde(borrow)]
    loss_mask: &'a RawValue,
    response_logprobs: Vec<Option<f32>>,
    #[serde(borrow)]
    prompt_messages: &'a RawValue,
    #[serde(borrow)]
    response_messages: &'a RawValue,
    #[serde(borrow, default)]
    tools: Option<&'a RawValue>,
    #[serde(borrow, default)]
    finish_reason: Option<&'a RawValue>,
    #[serde(default)]
    reward: Option<f64>,
    weight_versions: Vec<WeightSpan>,
    #[serde(borrow)]
    lineage: &'a RawValue,
    #[serde(borrow)]
    calls: &'a RawValue,
    #[serde(borrow, default)]
    turn_scores: Option<&'a RawValue>,
    #[serde(borrow, default)]
    turn_ends: Option<&'a RawValue>,
    #[serde(borrow)]
    rollout_id: &'a RawValue,
    #[serde(borrow)]
    group_id: &'a RawValue,
    #[serde(borrow)]
    siblings: &'a RawValue,
    #[serde(borrow)]
    loss_weight: &'a RawValue,
    #[serde(borrow)]
    sampling: &'a RawValue,
}

/// An ended session as `SessionResult`, in JSON. `task_id` is the name that the client gave.
pub(super) async fn of_session(
    app: &App,
    task_id: &str,
    task: &TaskInfo,
    session: &SessionInfo,
) -> Result<Bytes, ResultError> {
    let stored = match trajectory_artifact(session) {
        Some(artifact) => {
            let read = app.blobs.get(hash_of(artifact)?, None).await?;
            read.bytes
                .try_fold(Vec::new(), |mut whole, bytes| async move {
                    whole.extend_from_slice(&bytes);
                    Ok(whole)
                })
                .await?
        }
        None => Vec::new(),
    };
    write(task_id, task, session, &stored)
        .map(Bytes::from)
        .map_err(|error| ResultError::Unreadable(session.session_id.to_string(), error))
}

fn write(
    task_id: &str,
    task: &TaskInfo,
    session: &SessionInfo,
    stored: &[u8],
) -> Result<Vec<u8>, serde_json::Error> {
    let stored: Option<StoredTrajectory<'_>> = match stored {
        [] => None,
        bytes => Some(serde_json::from_slice(bytes)?),
    };
    let report = session.report();
    let status = status(session.status);
    let tree = stored.as_ref().is_some_and(|stored| stored.tree.is_some());
    let error = error(session);
    let result = SessionResult {
        session_id: session.session_id.as_str(),
        task_id,
        status,
        trajectory: Trajectory {
            status,
            metadata: metadata(session, stored.as_ref()),
            error: match tree {
                true => Some(format!(
                    "the traces are a tree, for which this API has no form; read \
                     /api/sessions/{}/trajectory",
                    session.session_id
                )),
                false => error.clone(),
            },
            traces: stored.iter().flat_map(|stored| stored.traces.iter().map(trace)).collect(),
        },
        timing: timing(session),
        node_id: report.map(|report| report.node_id.as_str()),
        error,
        metadata: &task.metadata,
    };
    serde_json::to_vec(&result)
}

fn trace<'a>(stored: &'a StoredTrace<'a>) -> Trace<'a> {
    Trace {
        prompt_ids: stored.prompt_ids,
        response_ids: stored.response_ids,
        loss_mask: stored.loss_mask,
        prompt_messages: stored.prompt_messages,
        response_messages: stored.response_messages,
        tools: stored.tools,
        finish_reason: stored.finish_reason,
        response_logprobs: logprobs(&stored.response_logprobs, &stored.weight_versions),
        reward: stored.reward,
        metadata: TraceMetadata {
            lineage: stored.lineage,
            weight_versions: &stored.weight_versions,
            calls: stored.calls,
            turn_scores: stored.turn_scores,
            turn_ends: stored.turn_ends,
            rollout_id: stored.rollout_id,
            group_id: stored.group_id,
            siblings: stored.siblings,
            loss_weight: stored.loss_weight,
            sampling: stored.sampling,
        },
    }
}

/// A number for each position, as the published schema wants it, or none at all.
///
/// Positions that were not sampled have no logprob to tell, and 0.0 stands there as it does in
/// the published Polar's own results. A sampled position whose logprob is missing has no such
/// stand-in: a client could not tell it from one.
fn logprobs(stored: &[Option<f32>], sampled: &[WeightSpan]) -> Option<Vec<f32>> {
    let has_all = |span: &WeightSpan| {
        let range = usize::try_from(span.start).ok()?..usize::try_from(span.end).ok()?;
        stored.get(range).map(|run| run.iter().all(Option::is_some))
    };
    let whole = !sampled.is_empty() && sampled.iter().all(|span| has_all(span) == Some(true));
    whole.then(|| stored.iter().map(|logprob| logprob.unwrap_or(0.0)).collect())
}

fn metadata(session: &SessionInfo, stored: Option<&StoredTrajectory<'_>>) -> Value {
    let grade = session.report().and_then(|report| report.grade.as_ref());
    let evaluation = grade.map(|grade| {
        json!({
            "strategy": grade.evaluator,
            "outcome_reward": grade.reward,
            "trace_rewards": null,
            "error": grade.error,
            "note": grade.note,
        })
    });
    let mut metadata = json!({ "evaluation": evaluation, "reason": session.reason });
    if let Some(stored) = stored {
        metadata["strategy"] = raw(stored.strategy);
        metadata["tokens"] = raw(stored.tokens);
        metadata["forks"] = raw(stored.forks);
    }
    metadata
}

/// Of a value that was read once already.
fn raw(value: &RawValue) -> Value {
    serde_json::from_str(value.get()).unwrap_or_default()
}

fn timing(session: &SessionInfo) -> Timing {
    let ms = |seconds: f64| (seconds.max(0.0) * 1000.0) as u64;
    let none = StageTimes::default();
    let times = session.report().map_or(&none, |report| &report.times);
    let at = |text: &str| text.parse::<Timestamp>().ok();
    let started = session.attempts.first().and_then(|attempt| at(&attempt.started_at));
    let queued = started.zip(at(&session.created_at)).map(|(started, created)| {
        u64::try_from(started.duration_since(created).as_millis()).unwrap_or(0)
    });
    Timing {
        register_to_init_queue_ms: queued.unwrap_or(0),
        init_ms: ms(times.prepare_seconds),
        run_ms: ms(times.run_seconds),
        postrun_ms: ms(times.grade_seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> WeightSpan {
        WeightSpan { version: None, start, end }
    }

    #[test]
    fn promise_3_a_sampled_position_without_a_logprob_takes_the_whole_list_away() {
        let context_between = [Some(-0.5), None, Some(-0.25)];
        let spans = [span(0, 1), span(2, 3)];
        assert_eq!(logprobs(&context_between, &spans), Some(vec![-0.5, 0.0, -0.25]));
        // The same list, of which the position between was sampled as well.
        assert_eq!(logprobs(&context_between, &[span(0, 3)]), None);
        // Nothing was sampled, or more than there is.
        assert_eq!(logprobs(&[None], &[]), None);
        assert_eq!(logprobs(&[Some(-0.5)], &[span(0, 2)]), None);
    }
}
