//! A process that is killed in the middle of its work, and what is there afterwards.
//!
//! The child is this test binary again, told by its environment to work on a database until
//! it is killed. It prints a line for each acknowledged call.

use crate::samples::{LIMITS, at, node, report, task};
use polar_store::{EventQuery, SqliteStore, TaskStore};
use polar_types::{EventKind, Outcome, ResultAck, SessionId, TaskId};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

const DATABASE: &str = "POLAR_STORE_CRASH_TEST_DATABASE";
const ROUND: &str = "POLAR_STORE_CRASH_TEST_ROUND";

#[tokio::test]
async fn promise_4_and_5_kill_9_loses_no_acknowledged_submit_and_no_result() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("polar.db");
    let mut submitted: BTreeSet<TaskId> = BTreeSet::new();
    let mut completed: BTreeMap<SessionId, u64> = BTreeMap::new();
    // Killed after ever more acknowledgements, among them in the first moments.
    for (round, lines) in [1, 7, 40, 90, 150, 333].into_iter().enumerate() {
        for line in killed_after(&path, round, lines) {
            let mut words = line.split(' ');
            match (words.next(), words.next(), words.next()) {
                (Some("submitted"), Some(id), None) => {
                    submitted.insert(id.parse().unwrap());
                }
                (Some("completed"), Some(id), Some(epoch)) => {
                    let earlier = completed.insert(id.parse().unwrap(), epoch.parse().unwrap());
                    assert_eq!(earlier, None, "{id} was accepted twice");
                }
                _ => panic!("the child said {line:?}"),
            }
        }
        check(&path, &submitted, &completed).await;
    }
    assert!(submitted.len() > 50 && completed.len() > 50, "the child did little");
}

/// Starts a child, reads so many acknowledgements, kills it with SIGKILL, and returns every
/// acknowledgement that it had printed in full.
fn killed_after(path: &Path, round: usize, lines: usize) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--nocapture", "--quiet"])
        .env(DATABASE, path)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut read = Vec::new();
    let mut line = String::new();
    let mut killed = false;
    loop {
        line.clear();
        if output.read_line(&mut line).unwrap() == 0 {
            break;
        }
        if let Some(ack) = line.strip_prefix("ack ").filter(|ack| ack.ends_with('\n')) {
            read.push(ack.trim_end().to_owned());
        }
        if read.len() >= lines && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    assert!(!child.wait().unwrap().success() && killed, "the child ended by itself");
    read
}

async fn check(path: &Path, submitted: &BTreeSet<TaskId>, completed: &BTreeMap<SessionId, u64>) {
    let store = SqliteStore::open(path, LIMITS).await.unwrap();
    let all = EventQuery { limit: u32::MAX, ..EventQuery::default() };
    let events = store.events(&all).await.unwrap().events;
    for (event, position) in events.iter().zip(1..) {
        assert_eq!(event.seq, position, "the event log has a gap");
    }
    let created = |kind| events.iter().filter(move |event| event.kind == kind);
    for id in submitted {
        store.task(id).await.unwrap();
        let times = created(EventKind::TaskCreated).filter(|e| e.task_id == *id).count();
        assert_eq!(times, 1, "{id} has {times} events");
    }
    for (id, epoch) in completed {
        let session = store.session(id).await.unwrap();
        let kept = session.report().unwrap();
        assert_eq!(kept.epoch.0, *epoch);
        let ends =
            created(EventKind::SessionEnded).filter(|e| e.session_id.as_ref() == Some(id)).count();
        assert_eq!(ends, 1, "{id} has ended {ends} times");
    }
    store.close().await;
}

/// Does nothing unless the test above has started it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let (Some(path), Ok(round)) = (std::env::var_os(DATABASE), std::env::var(ROUND)) else {
        return;
    };
    let store = Arc::new(SqliteStore::open(Path::new(&path), LIMITS).await.unwrap());
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..8 {
        workers.spawn(work(Arc::clone(&store), format!("r{round}w{worker}")));
    }
    workers.join_all().await;
}

async fn work(store: Arc<SqliteStore>, name: String) {
    for index in 0.. {
        let id = format!("{name}t{index}");
        store.submit(vec![task(&id, json!({}))], at(0)).await.unwrap();
        acknowledge(&format!("submitted {id}"));
        // Takes whatever is oldest, also what an earlier child left.
        for lease in store.claim(&node(&name), 1, at(1)).await.unwrap().leases {
            let done = report(&lease, Outcome::Completed);
            if store.complete(&done, at(2)).await.unwrap() == ResultAck::Accepted {
                acknowledge(&format!("completed {} {}", lease.session_id, lease.epoch));
            }
        }
    }
}

fn acknowledge(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ack {what}").and_then(|()| out.flush()).unwrap();
}
