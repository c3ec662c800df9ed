//! Handing sessions out, and keeping leases alive.

use super::ending::{self, SessionRow};
use super::events::append;
use super::rows::{backend, count, get, json, optional_json, position, to_json, word};
use super::turns::{self, Moved};
use super::writer::{Work, Write};
use crate::rules::{self, Loss, NameHolder, longest_hold, plus};
use crate::{Claimed, Limits, StoreError};
use async_trait::async_trait;
use polar_types::{
    Epoch, EventKind, Footprint, Lease, NodeInfo, RegradeOrder, RenewItem, RenewRequest,
    RenewResponse, SessionId, SessionStatus, Stage, TaskSpec,
};
use std::collections::HashMap;
use std::time::Duration;

pub(super) struct Claim {
    pub(super) node: NodeInfo,
    pub(super) free: u32,
    pub(super) now: i64,
}

#[async_trait]
impl Write for Claim {
    type Answer = Claimed;

    async fn apply(&self, work: &mut Work<'_>) -> Result<Claimed, StoreError> {
        check_name(work, &self.node, self.now).await?;
        self.take_over(work).await?;
        note_node(work, &self.node, self.now).await?;
        turns::end_pauses(work, self.now).await?;
        let demands = turns::demands(work, &self.node).await?;
        let mut specs: HashMap<String, Result<TaskSpec, String>> = HashMap::new();
        let mut claimed = Claimed::default();
        let mut room = self.node.room;
        while claimed.leases.len() < self.free as usize {
            let Some((id, task_id)) = turns::next(work, &demands).await? else { break };
            if !specs.contains_key(&task_id) {
                specs.insert(task_id.clone(), load_spec(work, &task_id).await?);
            }
            match specs.get(&task_id) {
                Some(Ok(spec)) => {
                    let footprint = Footprint::of(&spec.runtime);
                    if !room.fits(footprint) {
                        claimed.lacks_room = true;
                        break;
                    }
                    room = room.with(footprint);
                    claimed.leases.push(self.lease(work, &id, spec.clone()).await?);
                }
                Some(Err(unreadable)) => self.give_up(work, &id, unreadable).await?,
                None => {}
            }
        }
        Ok(claimed)
    }
}

impl Claim {
    /// A process that may ask under the name of an earlier one has taken its place; what
    /// the earlier one held runs nowhere.
    async fn take_over(&self, work: &mut Work<'_>) -> Result<(), StoreError> {
        let held = sqlx::query(
            "SELECT session_id FROM session WHERE node_id = $1 AND boot_id <> $2
             ORDER BY session_id",
        )
        .bind(self.node.node_id.as_str())
        .bind(&self.node.boot_id)
        .fetch_all(&mut *work.db)
        .await
        .map_err(backend)?;
        for row in held {
            let id: String = get(&row, "session_id")?;
            let session = SessionRow::load(work, &id).await?;
            ending::lose(work, &session, Loss::NodeRestarted, self.now).await?;
        }
        Ok(())
    }

    /// Ends a session whose task cannot be read, so that it does not block the queue.
    async fn give_up(&self, work: &mut Work<'_>, id: &str, why: &str) -> Result<(), StoreError> {
        let session = SessionRow::load(work, id).await?;
        ending::end(work, &session, &rules::unreadable(why), self.now).await
    }

    async fn lease(
        &self,
        work: &mut Work<'_>,
        id: &str,
        mut task: TaskSpec,
    ) -> Result<Lease, StoreError> {
        let node = self.node.node_id.as_str();
        let hold = longest_hold(&task.budgets, work.limits);
        let row = sqlx::query(
            "UPDATE session SET status = 'preparing', waiting_for = NULL, attempt = attempt + 1,
                 epoch = epoch + 1, node_id = $2, boot_id = $3, expires_at = $4,
                 deadline_at = $5, available_at = NULL, updated_at = $6, leased_at = $6,
                 hold = $7
             WHERE session_id = $1
             RETURNING session_id, group_id, attempt, epoch, sample_index, regrade",
        )
        .bind(id)
        .bind(node)
        .bind(&self.node.boot_id)
        .bind(plus(self.now, work.limits.lease_ttl))
        .bind(plus(self.now, hold))
        .bind(self.now)
        .bind(plus(0, hold))
        .fetch_one(&mut *work.db)
        .await
        .map_err(backend)?;
        let handed_out = Moved { queued: -1, leased: 1 };
        turns::moved(work, task.task_id.as_str(), handed_out).await?;
        let attempt: u32 = count(&row, "attempt")?;
        let epoch: u64 = count(&row, "epoch")?;
        sqlx::query(
            "INSERT INTO attempt (session_id, attempt, task_id, epoch, node_id, started_at)
             VALUES ($1, $2, $3, $4, $5, $6)",
        )
        .bind(id)
        .bind(i64::from(attempt))
        .bind(task.task_id.as_str())
        .bind(position(epoch))
        .bind(node)
        .bind(self.now)
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
        let regrade: Option<RegradeOrder> = optional_json(&row, "regrade")?;
        match &regrade {
            Some(order) => order.apply(&mut task),
            None => {
                let data = rules::session_status(SessionStatus::Preparing, attempt, node);
                let kind = EventKind::SessionStatus;
                append(work, self.now, kind, task.task_id.as_str(), Some(id), &data).await?;
            }
        }
        // The server tells the client's URL; its secret is no node's business.
        task.callback = None;
        Ok(Lease {
            session_id: word(&row, "session_id")?,
            attempt,
            epoch: Epoch(epoch),
            sample_index: count(&row, "sample_index")?,
            group_id: word(&row, "group_id")?,
            task,
            regrade,
        })
    }
}

/// The task, or why what is stored of it cannot be read.
async fn load_spec(
    work: &mut Work<'_>,
    task_id: &str,
) -> Result<Result<TaskSpec, String>, StoreError> {
    let row = sqlx::query("SELECT spec FROM task WHERE task_id = $1")
        .bind(task_id)
        .fetch_one(&mut *work.db)
        .await
        .map_err(backend)?;
    Ok(json(&row, "spec").map_err(|error| error.to_string()))
}

async fn check_name(work: &mut Work<'_>, node: &NodeInfo, now: i64) -> Result<(), StoreError> {
    let row = sqlx::query(
        "SELECT info, last_seen,
             (SELECT MAX(expires_at) FROM session WHERE session.node_id = node.node_id)
                 AS leased_until
         FROM node WHERE node_id = $1",
    )
    .bind(node.node_id.as_str())
    .fetch_optional(&mut *work.db)
    .await
    .map_err(backend)?;
    let Some(row) = row else { return Ok(()) };
    let holder = NameHolder {
        info: json(&row, "info")?,
        last_seen: get(&row, "last_seen")?,
        leased_until: get(&row, "leased_until")?,
    };
    rules::check_name(node, &holder, work.limits, now)
}

async fn note_node(work: &mut Work<'_>, node: &NodeInfo, now: i64) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO node (node_id, boot_id, info, first_seen, last_seen)
         VALUES ($1, $2, $3, $4, $4)
         ON CONFLICT (node_id) DO UPDATE SET boot_id = excluded.boot_id,
             info = excluded.info, last_seen = excluded.last_seen",
    )
    .bind(node.node_id.as_str())
    .bind(&node.boot_id)
    .bind(to_json("info", node)?)
    .bind(now)
    .execute(&mut *work.db)
    .await
    .map_err(backend)?;
    Ok(())
}

pub(super) struct Renew {
    pub(super) request: RenewRequest,
    pub(super) now: i64,
}

#[async_trait]
impl Write for Renew {
    type Answer = RenewResponse;

    async fn apply(&self, work: &mut Work<'_>) -> Result<RenewResponse, StoreError> {
        check_name(work, &self.request.node, self.now).await?;
        note_node(work, &self.request.node, self.now).await?;
        let mut answer = RenewResponse::default();
        for item in &self.request.items {
            let id: &SessionId = &item.session_id;
            let found = SessionRow::find(work, id.as_str()).await?;
            let Some(session) = found.filter(|s| s.is_leased_with(item.epoch.0)) else {
                answer.lost.push(id.clone());
                continue;
            };
            self.renew(work, &session, item).await?;
            if session.standing.cancel_requested {
                answer.cancelled.push(id.clone());
            }
        }
        Ok(answer)
    }
}

impl Renew {
    async fn renew(
        &self,
        work: &mut Work<'_>,
        session: &SessionRow,
        item: &RenewItem,
    ) -> Result<(), StoreError> {
        let status = SessionStatus::from(item.stage);
        let changed = status != session.status;
        sqlx::query(
            "UPDATE session SET expires_at = $2, status = $3, waiting_for = $4,
                 updated_at = CASE WHEN $5 THEN $6 ELSE updated_at END,
                 deadline_at = COALESCE($7, deadline_at)
             WHERE session_id = $1",
        )
        .bind(session.session_id.as_str())
        .bind(plus(self.now, work.limits.lease_ttl))
        .bind(status.as_str())
        .bind(item.waiting_for.as_deref())
        .bind(changed)
        .bind(self.now)
        .bind(self.deadline_in_wait(session, item.stage, work.limits))
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
        if changed && session.regrade.is_none() {
            let node = session.node_id.as_deref().unwrap_or_default();
            let data = rules::session_status(status, session.standing.attempt, node);
            let id = Some(session.session_id.as_str());
            let kind = EventKind::SessionStatus;
            append(work, self.now, kind, &session.task_id, id, &data).await?;
        }
        Ok(())
    }
}

impl Renew {
    /// The deadline of a session that still waits here; `None` where it stays as it is.
    fn deadline_in_wait(&self, session: &SessionRow, stage: Stage, limits: &Limits) -> Option<i64> {
        if session.standing.cancel_requested || !rules::waits_on_node(stage) {
            return None;
        }
        let (leased_at, hold) = session.leased_at.zip(session.hold)?;
        let hold = Duration::from_millis(hold.try_into().ok()?);
        Some(rules::deadline_in_wait(leased_at, hold, limits, self.now))
    }
}

pub(super) struct ExtendLeases {
    pub(super) now: i64,
}

#[async_trait]
impl Write for ExtendLeases {
    type Answer = u64;

    async fn apply(&self, work: &mut Work<'_>) -> Result<u64, StoreError> {
        let done = sqlx::query(
            "UPDATE session SET expires_at = $1,
                 deadline_at = deadline_at
                     + CASE WHEN expires_at < $1 THEN $1 - expires_at ELSE 0 END
             WHERE node_id IS NOT NULL",
        )
        .bind(plus(self.now, work.limits.lease_ttl))
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
        Ok(done.rows_affected())
    }
}
