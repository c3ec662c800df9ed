//! Queries. They run beside the writer, each on one consistent snapshot.

use super::rows::{
    attempt_info, backend, callback_state, count, get, json, optional_json, position, session_info,
    task_info, word,
};
use crate::rules::{plus, rfc3339};
use crate::{EventQuery, Limits, Live, StoreError, TaskQuery};
use polar_types::{
    AttemptInfo, CallbackState, Demand, Event, EventKind, EventPage, NodeSeen, SessionId,
    SessionInfo, TaskId, TaskInfo, TaskPage, TaskSpec,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, QueryBuilder, Sqlite, SqliteConnection};
use std::collections::{BTreeMap, HashMap};

pub(super) async fn task(db: &mut SqliteConnection, id: &TaskId) -> Result<TaskInfo, StoreError> {
    let row = sqlx::query(
        "SELECT task_id, status, harness, num_samples, queue, batch, left_out, created_at, updated_at,
             metadata
         FROM task WHERE task_id = $1",
    )
    .bind(id.as_str())
    .fetch_optional(&mut *db)
    .await
    .map_err(backend)?
    .ok_or_else(|| StoreError::not_found("task", id))?;
    let mut info = task_info(&row)?;
    let mut tallies = tallies(db, std::slice::from_ref(&info)).await?;
    if let Some(tally) = tallies.remove(info.task_id.as_str()) {
        tally.into_task(&mut info);
    }
    Ok(info)
}

pub(super) async fn demand(db: &mut SqliteConnection, id: &TaskId) -> Result<Demand, StoreError> {
    let row = sqlx::query("SELECT demand FROM task WHERE task_id = $1")
        .bind(id.as_str())
        .fetch_optional(&mut *db)
        .await
        .map_err(backend)?
        .ok_or_else(|| StoreError::not_found("task", id))?;
    json(&row, "demand")
}

pub(super) async fn tasks(
    db: &mut SqliteConnection,
    query: &TaskQuery,
) -> Result<TaskPage, StoreError> {
    let mut select = QueryBuilder::<Sqlite>::new(
        "SELECT task_id, status, harness, num_samples, queue, batch, left_out, created_at, updated_at,
             metadata, ordinal
         FROM task WHERE ordinal < ",
    );
    select.push_bind(query.before.map_or(i64::MAX, position));
    if let Some(status) = query.status {
        select.push(" AND status = ").push_bind(status.as_str());
    }
    if let Some(harness) = &query.harness {
        select.push(" AND harness = ").push_bind(harness);
    }
    select.push(" ORDER BY ordinal DESC LIMIT ").push_bind(i64::from(query.limit));
    let rows = select.build().fetch_all(&mut *db).await.map_err(backend)?;
    let mut tasks = rows.iter().map(task_info).collect::<Result<Vec<_>, _>>()?;
    let mut tallies = tallies(db, &tasks).await?;
    for task in &mut tasks {
        if let Some(tally) = tallies.remove(task.task_id.as_str()) {
            tally.into_task(task);
        }
    }
    let full = rows.len() as u64 == u64::from(query.limit);
    let next_before = match rows.last().filter(|_| full) {
        Some(last) => Some(count(last, "ordinal")?),
        None => None,
    };
    Ok(TaskPage { tasks, next_before })
}

/// What a task's sessions add up to.
#[derive(Default)]
struct Tally {
    sessions: BTreeMap<String, u32>,
    rewards: f64,
    rewarded: u32,
    callback: Option<CallbackState>,
}

impl Tally {
    fn into_task(self, task: &mut TaskInfo) {
        task.sessions = self.sessions;
        task.mean_reward = (self.rewarded > 0).then(|| self.rewards / f64::from(self.rewarded));
        task.callback = self.callback;
    }
}

async fn tallies(
    db: &mut SqliteConnection,
    tasks: &[TaskInfo],
) -> Result<HashMap<String, Tally>, StoreError> {
    let mut tallies: HashMap<String, Tally> = HashMap::new();
    if tasks.is_empty() {
        return Ok(tallies);
    }
    let mut sessions = QueryBuilder::<Sqlite>::new(
        "SELECT task_id, status, COUNT(*) AS number, COALESCE(SUM(reward), 0.0) AS rewards,
             COUNT(reward) AS rewarded
         FROM session WHERE regrade_of IS NULL AND task_id IN (",
    );
    push_ids(&mut sessions, tasks);
    sessions.push(") GROUP BY task_id, status");
    for row in sessions.build().fetch_all(&mut *db).await.map_err(backend)? {
        let tally = tallies.entry(get(&row, "task_id")?).or_default();
        tally.sessions.insert(get(&row, "status")?, count(&row, "number")?);
        tally.rewards += get::<f64, _>(&row, "rewards")?;
        tally.rewarded += count::<u32>(&row, "rewarded")?;
    }
    let mut callbacks = QueryBuilder::<Sqlite>::new(
        "SELECT task_id, status, attempts, error FROM callback
         WHERE session_id IS NULL AND task_id IN (",
    );
    push_ids(&mut callbacks, tasks);
    callbacks.push(")");
    for row in callbacks.build().fetch_all(&mut *db).await.map_err(backend)? {
        tallies.entry(get(&row, "task_id")?).or_default().callback = Some(callback_state(&row)?);
    }
    Ok(tallies)
}

fn push_ids(query: &mut QueryBuilder<Sqlite>, tasks: &[TaskInfo]) {
    let mut ids = query.separated(", ");
    for task in tasks {
        ids.push_bind(task.task_id.as_str().to_owned());
    }
}

/// Sessions with the latest that was asked for to grade their stored work again.
const SESSIONS: &str = "SELECT session.*, latest.revision AS latest_revision,
     latest.status AS latest_status, latest.waiting_for AS latest_waiting_for,
     latest.outcome AS latest_outcome
     FROM session LEFT JOIN session AS latest ON latest.regrade_of = session.session_id
         AND latest.revision = (SELECT MAX(revision) FROM session AS every
             WHERE every.regrade_of = session.session_id)
     WHERE session.regrade_of IS NULL";

/// How ids of callbacks end that tell of a session's end.
const END_OF_SESSION: &str = ":session.ended";

pub(super) async fn spec(db: &mut SqliteConnection, id: &TaskId) -> Result<TaskSpec, StoreError> {
    let row = sqlx::query("SELECT spec FROM task WHERE task_id = $1")
        .bind(id.as_str())
        .fetch_optional(&mut *db)
        .await
        .map_err(backend)?
        .ok_or_else(|| StoreError::not_found("task", id))?;
    json(&row, "spec")
}

pub(super) async fn sessions(
    db: &mut SqliteConnection,
    task: &TaskId,
) -> Result<Vec<SessionInfo>, StoreError> {
    let select = format!("{SESSIONS} AND session.task_id = $1 ORDER BY session.sample_index");
    let sessions = sqlx::query(AssertSqlSafe(select))
        .bind(task.as_str())
        .fetch_all(&mut *db)
        .await
        .map_err(backend)?;
    if sessions.is_empty() {
        return Err(StoreError::not_found("task", task));
    }
    let attempts = sqlx::query("SELECT * FROM attempt WHERE task_id = $1 ORDER BY attempt")
        .bind(task.as_str())
        .fetch_all(&mut *db)
        .await
        .map_err(backend)?;
    let callbacks = sqlx::query("SELECT * FROM callback WHERE task_id = $1")
        .bind(task.as_str())
        .fetch_all(&mut *db)
        .await
        .map_err(backend)?;
    assemble(&sessions, &attempts, &callbacks)
}

pub(super) async fn session(
    db: &mut SqliteConnection,
    id: &SessionId,
) -> Result<SessionInfo, StoreError> {
    let select = format!("{SESSIONS} AND session.session_id = $1");
    let sessions = sqlx::query(AssertSqlSafe(select))
        .bind(id.as_str())
        .fetch_all(&mut *db)
        .await
        .map_err(backend)?;
    let attempts = sqlx::query("SELECT * FROM attempt WHERE session_id = $1 ORDER BY attempt")
        .bind(id.as_str())
        .fetch_all(&mut *db)
        .await
        .map_err(backend)?;
    let callbacks = match sessions.first() {
        None => Vec::new(),
        Some(row) => sqlx::query("SELECT * FROM callback WHERE task_id = $1 AND session_id = $2")
            .bind(get::<String, _>(row, "task_id")?)
            .bind(id.as_str())
            .fetch_all(&mut *db)
            .await
            .map_err(backend)?,
    };
    assemble(&sessions, &attempts, &callbacks)?
        .pop()
        .ok_or_else(|| StoreError::not_found("session", id))
}

fn assemble(
    sessions: &[SqliteRow],
    attempts: &[SqliteRow],
    callbacks: &[SqliteRow],
) -> Result<Vec<SessionInfo>, StoreError> {
    let mut attempts_of: HashMap<String, Vec<AttemptInfo>> = HashMap::new();
    for row in attempts {
        attempts_of.entry(get(row, "session_id")?).or_default().push(attempt_info(row)?);
    }
    let mut callback_of: HashMap<String, CallbackState> = HashMap::new();
    for row in callbacks {
        let is_end = get::<String, _>(row, "callback_id")?.ends_with(END_OF_SESSION);
        let session = get::<Option<String>, _>(row, "session_id")?;
        if let Some(session) = session.filter(|_| is_end) {
            callback_of.insert(session, callback_state(row)?);
        }
    }
    sessions
        .iter()
        .map(|row| {
            let mut info = session_info(row)?;
            info.attempts = attempts_of.remove(info.session_id.as_str()).unwrap_or_default();
            info.callback = callback_of.remove(info.session_id.as_str());
            Ok(info.with_reason(get(row, "cancel_why")?))
        })
        .collect()
}

pub(super) async fn events(
    db: &mut SqliteConnection,
    query: &EventQuery,
) -> Result<EventPage, StoreError> {
    let mut select = QueryBuilder::<Sqlite>::new("SELECT * FROM event WHERE seq > ");
    select.push_bind(position(query.after));
    if let Some(task) = &query.task_id {
        select.push(" AND task_id = ").push_bind(task.as_str());
    }
    if !query.kinds.is_empty() {
        let mut kinds = select.push(" AND kind IN (").separated(", ");
        for kind in &query.kinds {
            kinds.push_bind(kind.as_str());
        }
        select.push(")");
    }
    select.push(" ORDER BY seq LIMIT ").push_bind(i64::from(query.limit));
    let rows = select.build().fetch_all(&mut *db).await.map_err(backend)?;
    let events = rows.iter().map(event).collect::<Result<Vec<_>, _>>()?;
    let full = events.len() as u64 == u64::from(query.limit);
    let cursor = match events.last().filter(|_| full) {
        Some(last) => last.seq,
        // Everything up to here was looked at, also what the filter left out.
        None => last_event(db).await?.max(query.after),
    };
    Ok(EventPage { events, cursor })
}

pub(super) async fn last_event(db: &mut SqliteConnection) -> Result<u64, StoreError> {
    let row = sqlx::query("SELECT value FROM counter WHERE name = 'event'")
        .fetch_one(db)
        .await
        .map_err(backend)?;
    count(&row, "value")
}

/// A row of `event`.
pub(super) fn event(row: &SqliteRow) -> Result<Event, StoreError> {
    let session: Option<String> = get(row, "session_id")?;
    Ok(Event {
        seq: count(row, "seq")?,
        at: rfc3339(get(row, "at")?),
        kind: word::<EventKind>(row, "kind")?,
        task_id: word(row, "task_id")?,
        session_id: session.map(|_| word(row, "session_id")).transpose()?,
        data: optional_json(row, "data")?.unwrap_or_default(),
    })
}

pub(super) async fn live(db: &mut SqliteConnection) -> Result<Live, StoreError> {
    let rows = sqlx::query(
        "SELECT status, COUNT(*) AS number FROM session
         WHERE status IN ('queued', 'preparing', 'ready', 'running', 'grading', 'delivering')
         GROUP BY status",
    )
    .fetch_all(&mut *db)
    .await
    .map_err(backend)?;
    let counts = rows.iter().map(|row| Ok((word(row, "status")?, count(row, "number")?)));
    let by_status = counts.collect::<Result<_, StoreError>>()?;
    let row = sqlx::query("SELECT COUNT(*) AS number FROM session WHERE available_at > 0")
        .fetch_one(db)
        .await
        .map_err(backend)?;
    Ok(Live { by_status, paused: count(&row, "number")? })
}

pub(super) async fn nodes(
    db: &mut SqliteConnection,
    limits: &Limits,
    now: i64,
) -> Result<Vec<NodeSeen>, StoreError> {
    let rows = sqlx::query(
        "SELECT info, first_seen, last_seen,
             (SELECT COUNT(*) FROM session WHERE session.node_id = node.node_id) AS leased
         FROM node ORDER BY node_id",
    )
    .fetch_all(db)
    .await
    .map_err(backend)?;
    rows.iter()
        .map(|row| {
            let last_seen: i64 = get(row, "last_seen")?;
            Ok(NodeSeen {
                node: json(row, "info")?,
                leased: count(row, "leased")?,
                first_seen_at: rfc3339(get(row, "first_seen")?),
                last_seen_at: rfc3339(last_seen),
                alive: plus(last_seen, limits.lease_ttl) > now,
            })
        })
        .collect()
}
