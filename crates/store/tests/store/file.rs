//! What only a store on disk has: the file itself.

use crate::samples::{LIMITS, at, node, report, task};
use polar_store::{SqliteStore, StoreError, TaskStore};
use polar_types::{Outcome, ResultAck, TaskStatus};
use serde_json::json;
use sqlx::Connection;
use std::os::unix::fs::PermissionsExt;

#[tokio::test]
async fn everything_is_there_after_closing_and_opening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new").join("polar.db");
    let store = SqliteStore::open(&path, LIMITS).await.unwrap();
    store.submit(vec![task("t", json!({ "num_samples": 2 }))], at(0)).await.unwrap();
    let leases = store.claim(&node("n1"), 2, at(0)).await.unwrap().leases;
    store.complete(&report(&leases[0], Outcome::Completed), at(1)).await.unwrap();
    let before = store.sessions(&"t".parse().unwrap()).await.unwrap();
    store.close().await;

    let store = SqliteStore::open(&path, LIMITS).await.unwrap();
    assert_eq!(store.sessions(&"t".parse().unwrap()).await.unwrap(), before);
    assert_eq!(*store.signals().events().borrow(), 4);
    assert_eq!(store.extend_leases(at(500)).await.unwrap(), 1);
    assert!(store.expire(at(500)).await.unwrap().requeued.is_empty());
    let ack = store.complete(&report(&leases[1], Outcome::Completed), at(501)).await.unwrap();
    assert_eq!(ack, ResultAck::Accepted);
    assert_eq!(store.task(&"t".parse().unwrap()).await.unwrap().status, TaskStatus::Completed);
}

#[tokio::test]
async fn promise_5_a_second_opener_is_refused_until_the_first_lets_go() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("polar.db");
    let first = SqliteStore::open(&path, LIMITS).await.unwrap();
    let second = SqliteStore::open(&path, LIMITS).await.err().unwrap();
    assert!(matches!(second, StoreError::InUse { .. }), "{second}");
    first.close().await;
    SqliteStore::open(&path, LIMITS).await.unwrap();
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("polar.db");
    SqliteStore::open(&path, LIMITS).await.unwrap().close().await;
    let url = format!("sqlite://{}", path.display());
    let mut db = sqlx::SqliteConnection::connect(&url).await.unwrap();
    sqlx::query("INSERT INTO schema_version (version) VALUES (99)").execute(&mut db).await.unwrap();
    db.close().await.unwrap();
    let refused = SqliteStore::open(&path, LIMITS).await.err().unwrap();
    assert!(matches!(refused, StoreError::TooNew { found: 99, .. }), "{refused}");
}

#[tokio::test]
async fn promise_6_a_task_that_cannot_be_read_ends_and_does_not_block_the_queue() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("polar.db");
    let store = SqliteStore::open(&path, LIMITS).await.unwrap();
    let tasks = vec![task("bad", json!({ "num_samples": 2 })), task("good", json!({}))];
    store.submit(tasks, at(0)).await.unwrap();
    store.close().await;
    let url = format!("sqlite://{}", path.display());
    let mut db = sqlx::SqliteConnection::connect(&url).await.unwrap();
    let damage = "UPDATE task SET spec = '{\"task_id\": \"bad\"}' WHERE task_id = 'bad'";
    sqlx::query(damage).execute(&mut db).await.unwrap();
    db.close().await.unwrap();

    let store = SqliteStore::open(&path, LIMITS).await.unwrap();
    let leases = store.claim(&node("n1"), 9, at(1)).await.unwrap().leases;
    assert_eq!(leases.len(), 1);
    assert_eq!(leases[0].task.task_id.as_str(), "good");
    assert_eq!(store.task(&"bad".parse().unwrap()).await.unwrap().status, TaskStatus::Failed);
}

#[tokio::test]
async fn many_writers_at_once_all_get_their_answer() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("polar.db"), LIMITS).await.unwrap();
    let store = std::sync::Arc::new(store);
    let mut writers = tokio::task::JoinSet::new();
    for index in 0..200 {
        let store = std::sync::Arc::clone(&store);
        writers.spawn(async move {
            // Every other one is refused, and takes none of its neighbours with it.
            let id = format!("t{}", index / 2);
            store.submit(vec![task(&id, json!({ "priority": index }))], at(0)).await.is_ok()
        });
    }
    let stored = writers.join_all().await.into_iter().filter(|stored| *stored).count();
    assert_eq!(stored, 100);
    let leases = store.claim(&node("n1"), 1000, at(1)).await.unwrap().leases;
    assert_eq!(leases.len(), 100);
}

#[tokio::test]
async fn promise_9_only_the_user_can_read_the_database() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let path = state.join("polar.db");
    let modes = || {
        let entries = std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap());
        let mut modes: Vec<_> = entries
            .map(|entry| {
                let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
                (entry.file_name().into_string().unwrap(), mode)
            })
            .collect();
        modes.sort();
        modes
    };
    let private = ["polar.db", "polar.db-shm", "polar.db-wal", "polar.db.lock"]
        .map(|name| (name.to_owned(), 0o600));
    let store = SqliteStore::open(&path, LIMITS).await.unwrap();
    store.submit(vec![task("t", json!({}))], at(0)).await.unwrap();
    assert_eq!(modes(), private);
    assert_eq!(std::fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);
    store.close().await;

    // Files of an earlier version, which everybody could read.
    for (name, _) in modes() {
        let readable = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(state.join(name), readable).unwrap();
    }
    let store = SqliteStore::open(&path, LIMITS).await.unwrap();
    store.submit(vec![task("u", json!({}))], at(0)).await.unwrap();
    assert_eq!(modes(), private);
    store.close().await;
}
