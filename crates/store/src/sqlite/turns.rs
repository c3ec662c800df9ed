//! Whose turn it is: the counts by which tasks share places, and the next session by them.
//!
//! Every change of a session between queued, leased and ended passes through here, in the same
//! transaction. With the counts in the task's row, and in an index, a lease costs the same
//! however many sessions wait.

use super::ending::SessionRow;
use super::rows::{backend, count, get};
use super::writer::Work;
use crate::StoreError;
use crate::rules::Turn;
use polar_types::{Demand, NodeInfo, SessionStatus};
use std::collections::BTreeMap;

/// What becomes of a task's counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moved {
    /// Sessions that could be handed out now.
    pub(super) queued: i64,
    /// Sessions that nodes hold.
    pub(super) leased: i64,
}

impl Moved {
    /// A session that ends.
    pub(super) fn out_of(session: &SessionRow) -> Self {
        let is_due = session.status == SessionStatus::Queued && session.available_at.is_none();
        Self { queued: -i64::from(is_due), leased: -i64::from(session.node_id.is_some()) }
    }
}

/// Notes a move of one of a task's sessions, or of several.
pub(super) async fn moved(
    work: &mut Work<'_>,
    task: &str,
    Moved { queued, leased }: Moved,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE task SET queued = queued + $2, leased = leased + $3,
             share = (leased + $3) * 1.0 / weight, begun = begun OR $3 > 0
         WHERE task_id = $1",
    )
    .bind(task)
    .bind(queued)
    .bind(leased)
    .execute(&mut *work.db)
    .await
    .map_err(backend)?;
    Ok(())
}

/// Ends the pauses before another attempt that are over by now.
pub(super) async fn end_pauses(work: &mut Work<'_>, now: i64) -> Result<(), StoreError> {
    let over = sqlx::query(
        "UPDATE session SET available_at = NULL WHERE available_at <= $1 RETURNING task_id",
    )
    .bind(now)
    .fetch_all(&mut *work.db)
    .await
    .map_err(backend)?;
    let mut due: BTreeMap<String, i64> = BTreeMap::new();
    for row in &over {
        *due.entry(get(row, "task_id")?).or_default() += 1;
    }
    for (task, queued) in due {
        moved(work, &task, Moved { queued, leased: 0 }).await?;
    }
    work.stored.queued |= !over.is_empty();
    Ok(())
}

/// What queued tasks ask of nodes, as stored: those that this node can do.
pub(super) async fn demands(
    work: &mut Work<'_>,
    node: &NodeInfo,
) -> Result<Vec<String>, StoreError> {
    // From one to the next by the index, past all that ask for the same.
    let rows = sqlx::query(
        "WITH RECURSIVE asked (demand) AS (
             SELECT MIN(demand) FROM task WHERE queued > 0
             UNION ALL
             SELECT (SELECT MIN(demand) FROM task WHERE queued > 0 AND demand > asked.demand)
             FROM asked WHERE asked.demand IS NOT NULL
         )
         SELECT demand FROM asked WHERE demand IS NOT NULL",
    )
    .fetch_all(&mut *work.db)
    .await
    .map_err(backend)?;
    let mut met = Vec::new();
    for row in &rows {
        let stored: String = get(row, "demand")?;
        // What cannot be read is met by nobody; the session ends when its time is up.
        let demand: Option<Demand> = serde_json::from_str(&stored).ok();
        if demand.is_some_and(|demand| demand.is_met_by(node)) {
            met.push(stored);
        }
    }
    Ok(met)
}

/// The session to hand out next among tasks with these demands, with its task.
pub(super) async fn next(
    work: &mut Work<'_>,
    demands: &[String],
) -> Result<Option<(String, String)>, StoreError> {
    loop {
        let mut first: Option<(Turn, String)> = None;
        for demand in demands {
            if let Some(task) = first_task(work, demand).await?
                && first.as_ref().is_none_or(|(turn, _)| task.0.cmp(turn).is_lt())
            {
                first = Some(task);
            }
        }
        let Some((_, task)) = first else { return Ok(None) };
        if let Some(session) = first_session(work, &task).await? {
            return Ok(Some((session, task)));
        }
        // Cannot be. Were it so, the count would keep everybody else from their turn.
        tracing::error!(task, "queued sessions were miscounted; counting them again");
        recount(work, &task).await?;
    }
}

async fn first_task(
    work: &mut Work<'_>,
    demand: &str,
) -> Result<Option<(Turn, String)>, StoreError> {
    let row = sqlx::query(
        "SELECT task_id, priority, share, ordinal FROM task
         WHERE queued > 0 AND demand = $1
             AND (begun OR queue NOT IN
                 (SELECT queue FROM queue WHERE max_ahead <=
                     (SELECT COUNT(*) FROM task AS other
                      WHERE other.queue = queue.queue AND other.begun AND other.batch IS NULL)))
         ORDER BY priority DESC, share, ordinal LIMIT 1",
    )
    .bind(demand)
    .fetch_optional(&mut *work.db)
    .await
    .map_err(backend)?;
    let Some(row) = row else { return Ok(None) };
    let turn = Turn {
        priority: get(&row, "priority")?,
        share: get(&row, "share")?,
        ordinal: count(&row, "ordinal")?,
    };
    Ok(Some((turn, get(&row, "task_id")?)))
}

async fn first_session(work: &mut Work<'_>, task: &str) -> Result<Option<String>, StoreError> {
    let row = sqlx::query(
        "SELECT session_id FROM session
         WHERE task_id = $1 AND status = 'queued' AND available_at IS NULL
         ORDER BY ordinal LIMIT 1",
    )
    .bind(task)
    .fetch_optional(&mut *work.db)
    .await
    .map_err(backend)?;
    row.map(|row| get(&row, "session_id")).transpose()
}

async fn recount(work: &mut Work<'_>, task: &str) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE task SET queued = (SELECT COUNT(*) FROM session WHERE session.task_id = $1
             AND status = 'queued' AND available_at IS NULL)
         WHERE task_id = $1",
    )
    .bind(task)
    .execute(&mut *work.db)
    .await
    .map_err(backend)?;
    Ok(())
}
