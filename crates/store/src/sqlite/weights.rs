//! Weight updates, and how far each engine is with them.

use super::read;
use super::rows::{backend, count, get, json, position, to_json, word};
use super::writer::{Work, Write};
use crate::rules::rfc3339;
use crate::weights::{PushedWeights, Repeat, StoredUpdate, WeightNode, are_all_new, repeat};
use crate::{Limits, StoreError};
use async_trait::async_trait;
use polar_types::{EngineWeights, WeightReport, WeightTarget, WeightUpdate, WeightUpdateRequest};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

pub(super) struct Push {
    pub(super) request: WeightUpdateRequest,
    pub(super) now: i64,
}

#[async_trait]
impl Write for Push {
    type Answer = PushedWeights;

    async fn apply(&self, work: &mut Work<'_>) -> Result<PushedWeights, StoreError> {
        let version = self.request.version.as_str();
        if let Some(update) = updates(work.db, work.limits, Some(version), 1, self.now).await?.pop()
            && let Repeat::Same = repeat(&update, &self.request)?
        {
            return Ok(PushedWeights { update, created: false });
        }
        // Its new place is behind all others, where no engine has said anything yet.
        sqlx::query(
            "INSERT INTO weight_update (version, ordinal, body, requested_at)
             VALUES ($1, (SELECT COALESCE(MAX(ordinal), 0) + 1 FROM weight_update), $2, $3)
             ON CONFLICT (version) DO UPDATE SET ordinal = excluded.ordinal,
                 body = excluded.body, requested_at = excluded.requested_at, done_at = NULL",
        )
        .bind(version)
        .bind(to_json("weight update", &self.request)?)
        .bind(self.now)
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
        work.stored.weights = true;
        let stored = updates(work.db, work.limits, Some(version), 1, self.now).await?.pop();
        let update = stored.ok_or_else(|| StoreError::not_found("weight version", version))?;
        Ok(PushedWeights { update, created: true })
    }
}

pub(super) struct Note {
    pub(super) report: WeightReport,
    pub(super) now: i64,
}

#[async_trait]
impl Write for Note {
    type Answer = ();

    async fn apply(&self, work: &mut Work<'_>) -> Result<(), StoreError> {
        let Some(ordinal) = self.report.known else { return Ok(()) };
        let known = sqlx::query("SELECT 1 FROM weight_update WHERE ordinal = $1")
            .bind(position(ordinal))
            .fetch_optional(&mut *work.db)
            .await
            .map_err(backend)?;
        if known.is_none() {
            return Ok(());
        }
        for engine in &self.report.engines {
            work.stored.weights |= self.note(work.db, ordinal, engine).await?;
        }
        work.stored.weights |= self.forget_gone(work.db, ordinal).await?;
        self.end(work, ordinal).await
    }
}

impl Note {
    /// Whether it is something new.
    async fn note(
        &self,
        db: &mut SqliteConnection,
        ordinal: u64,
        engine: &EngineWeights,
    ) -> Result<bool, StoreError> {
        let told = EngineWeights { node_id: None, at: None, ..engine.clone() };
        // `at` is since when it is in its state.
        let done = sqlx::query(
            "INSERT INTO weight_engine (ordinal, node_id, engine, state, at, report)
             VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (ordinal, node_id, engine) DO UPDATE SET
                 at = CASE WHEN state = excluded.state THEN at ELSE excluded.at END,
                 state = excluded.state, report = excluded.report
             WHERE report <> excluded.report",
        )
        .bind(position(ordinal))
        .bind(self.report.node_id.as_str())
        .bind(&engine.engine)
        .bind(engine.state.as_str())
        .bind(self.now)
        .bind(to_json("engine's weights", &told)?)
        .execute(db)
        .await
        .map_err(backend)?;
        Ok(done.rows_affected() > 0)
    }

    /// Forgets the engines that the node no longer has, and says whether there were any.
    async fn forget_gone(
        &self,
        db: &mut SqliteConnection,
        ordinal: u64,
    ) -> Result<bool, StoreError> {
        let there: Vec<&str> = self.report.engines.iter().map(|one| one.engine.as_str()).collect();
        let done = sqlx::query(
            "DELETE FROM weight_engine WHERE ordinal = $1 AND node_id = $2
             AND engine NOT IN (SELECT value FROM json_each($3))",
        )
        .bind(position(ordinal))
        .bind(self.report.node_id.as_str())
        .bind(to_json("engines", &there)?)
        .execute(db)
        .await
        .map_err(backend)?;
        Ok(done.rows_affected() > 0)
    }

    /// Notes when every engine had the newest weights for the first time.
    async fn end(&self, work: &mut Work<'_>, ordinal: u64) -> Result<(), StoreError> {
        let told = told(work.db, ordinal).await?;
        let nodes = nodes(work.db, work.limits, self.now).await?;
        if !are_all_new(told, &nodes) {
            return Ok(());
        }
        sqlx::query(
            "UPDATE weight_update SET done_at = $2 WHERE ordinal = $1 AND done_at IS NULL
             AND ordinal = (SELECT MAX(ordinal) FROM weight_update)",
        )
        .bind(position(ordinal))
        .bind(self.now)
        .execute(&mut *work.db)
        .await
        .map_err(backend)?;
        Ok(())
    }
}

/// Updates, newest first; or the one of a version.
pub(super) async fn updates(
    db: &mut SqliteConnection,
    limits: &Limits,
    version: Option<&str>,
    limit: u32,
    now: i64,
) -> Result<Vec<WeightUpdate>, StoreError> {
    let rows = sqlx::query(
        "SELECT ordinal, body, requested_at, done_at,
             ordinal = (SELECT MAX(ordinal) FROM weight_update) AS newest
         FROM weight_update WHERE $1 IS NULL OR version = $1 ORDER BY ordinal DESC LIMIT $2",
    )
    .bind(version)
    .bind(i64::from(limit))
    .fetch_all(&mut *db)
    .await
    .map_err(backend)?;
    let nodes = nodes(db, limits, now).await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        let update = stored(row)?;
        let told = told(db, update.ordinal).await?;
        found.push(update.shown(told, &nodes, get(row, "newest")?));
    }
    Ok(found)
}

/// The newest update.
pub(super) async fn target(db: &mut SqliteConnection) -> Result<Option<WeightTarget>, StoreError> {
    let row = sqlx::query("SELECT ordinal, body FROM weight_update ORDER BY ordinal DESC LIMIT 1")
        .fetch_optional(db)
        .await
        .map_err(backend)?;
    row.map(|row| {
        Ok(WeightTarget { ordinal: count(&row, "ordinal")?, update: json(&row, "body")? })
    })
    .transpose()
}

fn stored(row: &SqliteRow) -> Result<StoredUpdate, StoreError> {
    Ok(StoredUpdate {
        request: json(row, "body")?,
        ordinal: count(row, "ordinal")?,
        requested_at: get(row, "requested_at")?,
        done_at: get(row, "done_at")?,
    })
}

/// What was heard of engines with an update.
async fn told(db: &mut SqliteConnection, ordinal: u64) -> Result<Vec<EngineWeights>, StoreError> {
    let rows = sqlx::query(
        "SELECT node_id, at, report FROM weight_engine WHERE ordinal = $1
         ORDER BY node_id, engine",
    )
    .bind(position(ordinal))
    .fetch_all(db)
    .await
    .map_err(backend)?;
    rows.iter()
        .map(|row| {
            let told: EngineWeights = json(row, "report")?;
            let node_id = word(row, "node_id")?;
            Ok(EngineWeights { node_id: Some(node_id), at: Some(rfc3339(get(row, "at")?)), ..told })
        })
        .collect()
}

async fn nodes(
    db: &mut SqliteConnection,
    limits: &Limits,
    now: i64,
) -> Result<Vec<WeightNode>, StoreError> {
    let seen = read::nodes(db, limits, now).await?.into_iter();
    Ok(seen
        .map(|seen| WeightNode {
            node_id: seen.node.node_id,
            engine: seen.node.engine,
            alive: seen.alive,
        })
        .collect())
}
