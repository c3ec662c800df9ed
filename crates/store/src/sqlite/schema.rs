//! The tables, and how a file of an older version becomes one of this version.
//!
//! Types and statements are those that SQLite and PostgreSQL share; times are Unix
//! milliseconds, states are words, documents are JSON text.

use super::rows::backend;
use crate::StoreError;
use sqlx::{Connection, Row, SqliteConnection};
use std::path::Path;

/// One script per version, applied in order, each in a transaction of its own. A script
/// that has been released is never changed; a new version adds one.
const VERSIONS: [&str; 8] =
    [VERSION_1, VERSION_2, VERSION_3, VERSION_4, VERSION_5, VERSION_6, VERSION_7, VERSION_8];

const VERSION_1: &str = "
CREATE TABLE counter (
    name  TEXT PRIMARY KEY,
    value BIGINT NOT NULL
);
INSERT INTO counter (name, value) VALUES ('event', 0), ('task', 0), ('session', 0);

CREATE TABLE task (
    task_id          TEXT PRIMARY KEY,
    ordinal          BIGINT NOT NULL UNIQUE,
    body_hash        TEXT NOT NULL,
    spec             TEXT NOT NULL,
    metadata         TEXT NOT NULL,
    callback         TEXT,
    harness          TEXT NOT NULL,
    num_samples      BIGINT NOT NULL,
    live_sessions    BIGINT NOT NULL,
    status           TEXT NOT NULL,
    cancel_requested BOOLEAN NOT NULL,
    created_at       BIGINT NOT NULL,
    updated_at       BIGINT NOT NULL
);
CREATE INDEX task_by_status ON task (status, ordinal);
CREATE INDEX task_by_harness ON task (harness, ordinal);

CREATE TABLE session (
    session_id       TEXT PRIMARY KEY,
    task_id          TEXT NOT NULL REFERENCES task (task_id),
    group_id         TEXT NOT NULL,
    ordinal          BIGINT NOT NULL,
    sample_index     BIGINT NOT NULL,
    priority         BIGINT NOT NULL,
    runtime          TEXT NOT NULL,
    max_attempts     BIGINT NOT NULL,
    status           TEXT NOT NULL,
    waiting_for      TEXT,
    cancel_requested BOOLEAN NOT NULL,
    attempt          BIGINT NOT NULL,
    spent            BIGINT NOT NULL,
    epoch            BIGINT NOT NULL,
    node_id          TEXT,
    boot_id          TEXT,
    expires_at       BIGINT,
    deadline_at      BIGINT,
    outcome          TEXT,
    reward           DOUBLE PRECISION,
    created_at       BIGINT NOT NULL,
    updated_at       BIGINT NOT NULL
);
CREATE INDEX session_of_task ON session (task_id, sample_index);
CREATE INDEX session_queue ON session (status, priority DESC, ordinal);
CREATE INDEX session_of_node ON session (node_id);
CREATE INDEX session_expiry ON session (expires_at);
CREATE INDEX session_deadline ON session (deadline_at);

CREATE TABLE attempt (
    session_id TEXT NOT NULL REFERENCES session (session_id),
    attempt    BIGINT NOT NULL,
    task_id    TEXT NOT NULL,
    epoch      BIGINT NOT NULL,
    node_id    TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at   BIGINT,
    lost       TEXT,
    report     TEXT,
    PRIMARY KEY (session_id, attempt)
);
CREATE INDEX attempt_of_task ON attempt (task_id);

CREATE TABLE event (
    seq        BIGINT PRIMARY KEY,
    at         BIGINT NOT NULL,
    kind       TEXT NOT NULL,
    task_id    TEXT NOT NULL,
    session_id TEXT,
    data       TEXT NOT NULL
);
CREATE INDEX event_of_task ON event (task_id, seq);

CREATE TABLE callback (
    callback_id TEXT PRIMARY KEY,
    task_id     TEXT NOT NULL,
    session_id  TEXT,
    event_seq   BIGINT NOT NULL,
    status      TEXT NOT NULL,
    attempts    BIGINT NOT NULL,
    next_at     BIGINT,
    error       TEXT,
    created_at  BIGINT NOT NULL
);
CREATE INDEX callback_due ON callback (next_at);
CREATE INDEX callback_of_task ON callback (task_id);

CREATE TABLE node (
    node_id    TEXT PRIMARY KEY,
    boot_id    TEXT NOT NULL,
    info       TEXT NOT NULL,
    first_seen BIGINT NOT NULL,
    last_seen  BIGINT NOT NULL
);
";

/// A queued session is not handed out before `available_at`.
const VERSION_2: &str = "
ALTER TABLE session ADD COLUMN available_at BIGINT;
CREATE INDEX session_available ON session (available_at);
";

/// When the lease began, and for how many milliseconds a node may hold the session once it
/// no longer waits there. Both stay NULL in leases of older versions, whose deadline is
/// not moved.
const VERSION_3: &str = "
ALTER TABLE session ADD COLUMN leased_at BIGINT;
ALTER TABLE session ADD COLUMN hold BIGINT;
";

/// Whose turn it is: `queued` sessions could be handed out now, `leased` ones are, and `share` is
/// the latter by weight. Which of the tasks with the same demand comes next is one step in
/// `task_turn`, and which of its sessions one step in `session_turn`.
const VERSION_4: &str = r#"
ALTER TABLE task ADD COLUMN priority BIGINT NOT NULL DEFAULT 0;
ALTER TABLE task ADD COLUMN weight BIGINT NOT NULL DEFAULT 1;
ALTER TABLE task ADD COLUMN demand TEXT NOT NULL DEFAULT '';
ALTER TABLE task ADD COLUMN queued BIGINT NOT NULL DEFAULT 0;
ALTER TABLE task ADD COLUMN leased BIGINT NOT NULL DEFAULT 0;
ALTER TABLE task ADD COLUMN share DOUBLE PRECISION NOT NULL DEFAULT 0;
UPDATE task SET
    priority = COALESCE(
        (SELECT MAX(priority) FROM session WHERE session.task_id = task.task_id), 0),
    demand = COALESCE(
        (SELECT '{"runtime":"' || MAX(runtime) || '"}' FROM session
         WHERE session.task_id = task.task_id), ''),
    queued = (SELECT COUNT(*) FROM session WHERE session.task_id = task.task_id
              AND status = 'queued' AND available_at IS NULL),
    leased = (SELECT COUNT(*) FROM session WHERE session.task_id = task.task_id
              AND node_id IS NOT NULL);
UPDATE task SET share = leased;
CREATE INDEX task_turn ON task (demand, priority DESC, share, ordinal) WHERE queued > 0;
CREATE INDEX session_turn ON session (task_id, ordinal)
    WHERE status = 'queued' AND available_at IS NULL;
"#;

/// Batches. A task is in one batch of its queue, or left out while one was made. `begun` is set
/// with its first lease, `usable` with the end of a session; both stay false in what ended before.
const VERSION_5: &str = "
ALTER TABLE task ADD COLUMN queue TEXT NOT NULL DEFAULT 'default';
ALTER TABLE task ADD COLUMN early_stop BIGINT;
ALTER TABLE task ADD COLUMN begun BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE task ADD COLUMN batch BIGINT;
ALTER TABLE task ADD COLUMN left_out TEXT;
ALTER TABLE session ADD COLUMN usable BOOLEAN NOT NULL DEFAULT FALSE;
UPDATE task SET begun = TRUE WHERE EXISTS
    (SELECT 1 FROM session WHERE session.task_id = task.task_id AND attempt > 0);
CREATE INDEX task_ready ON task (queue, ordinal)
    WHERE status <> 'running' AND batch IS NULL;
CREATE INDEX task_running ON task (queue) WHERE status = 'running';
CREATE INDEX task_ahead ON task (queue) WHERE begun AND batch IS NULL;
CREATE INDEX task_batch ON task (queue, batch, ordinal);
CREATE INDEX task_left_out ON task (queue, left_out) WHERE left_out IS NOT NULL;

CREATE TABLE queue (
    queue     TEXT PRIMARY KEY,
    last      BIGINT NOT NULL,
    max_ahead BIGINT
);
CREATE TABLE batch (
    queue   TEXT NOT NULL,
    number  BIGINT NOT NULL,
    made_at BIGINT NOT NULL,
    settled BOOLEAN NOT NULL,
    PRIMARY KEY (queue, number)
);
";

/// Weight updates, and how far each engine is with them.
const VERSION_6: &str = "
CREATE TABLE weight_update (
    version      TEXT PRIMARY KEY,
    ordinal      BIGINT NOT NULL UNIQUE,
    body         TEXT NOT NULL,
    requested_at BIGINT NOT NULL,
    done_at      BIGINT
);
CREATE TABLE weight_engine (
    ordinal BIGINT NOT NULL,
    node_id TEXT NOT NULL,
    engine  TEXT NOT NULL,
    state   TEXT NOT NULL,
    at      BIGINT NOT NULL,
    report  TEXT NOT NULL,
    PRIMARY KEY (ordinal, node_id, engine)
);
";

/// A row with `regrade_of` is no session but grades the stored work of one, by the order in
/// `regrade`; its `revision` is the one that it makes of that session's result. `gradings` has all
/// that a session had, where there were several.
const VERSION_7: &str = "
ALTER TABLE session ADD COLUMN regrade_of TEXT;
ALTER TABLE session ADD COLUMN regrade TEXT;
ALTER TABLE session ADD COLUMN revision BIGINT NOT NULL DEFAULT 1;
ALTER TABLE session ADD COLUMN gradings TEXT;
CREATE INDEX session_regrades ON session (regrade_of, revision) WHERE regrade_of IS NOT NULL;
";

/// Why a session was asked to end, in words.
const VERSION_8: &str = "
ALTER TABLE session ADD COLUMN cancel_why TEXT;
";

/// Brings the file to the newest version; refuses one that is newer still.
pub(super) async fn migrate(db: &mut SqliteConnection, path: &Path) -> Result<(), StoreError> {
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")
        .execute(&mut *db)
        .await
        .map_err(backend)?;
    let found: i64 = sqlx::query("SELECT COALESCE(MAX(version), 0) FROM schema_version")
        .fetch_one(&mut *db)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(backend)?;
    let known = VERSIONS.len() as i64;
    if found > known {
        return Err(StoreError::TooNew { path: path.to_owned(), found, known });
    }
    for (script, version) in VERSIONS.iter().zip(1_i64..).skip_while(|(_, v)| *v <= found) {
        let mut step = db.begin().await.map_err(backend)?;
        sqlx::raw_sql(*script).execute(&mut *step).await.map_err(backend)?;
        sqlx::query("INSERT INTO schema_version (version) VALUES ($1)")
            .bind(version)
            .execute(&mut *step)
            .await
            .map_err(backend)?;
        step.commit().await.map_err(backend)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_of_any_older_version_becomes_one_of_this_and_keeps_its_rows() {
        for old in 1..VERSIONS.len() {
            let mut db = SqliteConnection::connect("sqlite::memory:").await.unwrap();
            let setup = "CREATE TABLE schema_version (version BIGINT NOT NULL)";
            sqlx::raw_sql(setup).execute(&mut db).await.unwrap();
            for (script, version) in VERSIONS[..old].iter().zip(1_i64..) {
                sqlx::raw_sql(*script).execute(&mut db).await.unwrap();
                let noted = sqlx::query("INSERT INTO schema_version VALUES ($1)").bind(version);
                noted.execute(&mut db).await.unwrap();
            }
            let row = "INSERT INTO event VALUES (1, 0, 'task.created', 't', NULL, '{}')";
            sqlx::raw_sql(row).execute(&mut db).await.unwrap();
            for _ in 0..2 {
                migrate(&mut db, Path::new("x")).await.unwrap();
                let newest: i64 = sqlx::query_scalar("SELECT MAX(version) FROM schema_version")
                    .fetch_one(&mut db)
                    .await
                    .unwrap();
                assert_eq!(newest, VERSIONS.len() as i64);
            }
            let rows = "SELECT COUNT(*) FROM event, (SELECT COUNT(available_at), COUNT(hold) FROM session)";
            let rows: i64 = sqlx::query_scalar(rows).fetch_one(&mut db).await.unwrap();
            assert_eq!(rows, 1);
        }
    }
}
