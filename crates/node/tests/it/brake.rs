//! A machine that is broken must not spend the attempts of everybody's sessions.

use crate::cluster::Cluster;
use crate::gate::{Gates, OPEN};
use polar_node::Node;
use polar_types::{
    Event, EventKind, EventPage, SessionInfo, SessionStatus, Slots, TaskInfo, TroubleKind,
};
use serde_json::json;
use std::time::Duration;

/// For every session handed out, how many were under way with it.
async fn under_way(cluster: &Cluster, task: &TaskInfo) -> Vec<u32> {
    let page: EventPage = cluster.get("/api/events?after=0").await;
    let mut now = 0;
    let mut at_a_time = Vec::new();
    let is_status = |event: &Event, word: &str| event.data["status"] == word;
    for event in page.events.iter().filter(|event| event.task_id == task.task_id) {
        match event.kind {
            EventKind::SessionStatus if is_status(event, "preparing") => {
                now += 1;
                at_a_time.push(now);
            }
            EventKind::SessionStatus if is_status(event, "queued") => now -= 1,
            EventKind::SessionEnded => now -= 1,
            _ => {}
        }
    }
    at_a_time
}

fn count(sessions: &[SessionInfo], status: SessionStatus) -> usize {
    sessions.iter().filter(|session| session.status == status).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_machine_spends_the_attempts_of_hardly_a_session_and_says_so() {
    let cluster = Cluster::new().await;
    let mut config = cluster.config("a").await;
    config.slots = Slots { prepare: 2, ready: 0, run: 1, grade: 1, warm: 1 };
    let places = config.slots.total();
    let gates = Gates::of(&mut config, OPEN, OPEN);
    gates.break_down(true);
    // All that it has room for is there when it asks for the first time.
    let samples = places as usize + 6;
    // What fails of one task alone may be that task's own.
    let other = cluster.submit(json!({"max_attempts": 1})).await;
    let task = cluster.submit(json!({"num_samples": samples, "max_attempts": 1})).await;
    let node = Node::start(config).await.unwrap();
    let trouble = cluster.trouble("a").await;
    assert_eq!(trouble.kind, TroubleKind::Sandbox);
    assert!(trouble.message.contains("the machine is broken"), "{trouble}");
    // More than one goes back before it is mended.
    cluster
        .event(&task, |kind, data| kind == EventKind::SessionStatus && data["status"] == "queued")
        .await;
    gates.break_down(false);

    let sessions = cluster.ended(&task).await;
    let failed = count(&sessions, SessionStatus::Failed);
    assert!((1..=3).contains(&failed), "{failed} spent their attempt");
    assert_eq!(count(&sessions, SessionStatus::Completed), samples - failed);
    let at_a_time = under_way(&cluster, &task).await;
    let (first, later) = at_a_time.split_at(places as usize - 1);
    assert_eq!(first.iter().max(), Some(&(places - 1)));
    assert_eq!(later[0], 1, "{at_a_time:?}");
    assert!(later.iter().max() > Some(&1), "{at_a_time:?}");
    cluster.ended(&other).await;
    cluster.untroubled("a").await;
    node.shutdown(Duration::ZERO).await;
}

/// A task that asks for what cannot be says nothing about the machine.
#[tokio::test(flavor = "multi_thread")]
async fn a_set_up_command_that_fails_does_not_slow_a_machine() {
    let cluster = Cluster::new().await;
    let mut config = cluster.config("a").await;
    config.slots = Slots { prepare: 2, ready: 0, run: 1, grade: 1, warm: 1 };
    let places = config.slots.total() as usize;
    let gates = Gates::of(&mut config, 0, OPEN);
    let steps = json!([{"type": "exec", "command": "exit 3"}]);
    let runtime = json!({"type": "local", "prepare": steps});
    let change = json!({"num_samples": 2 * places, "max_attempts": 1, "runtime": runtime});
    let task = cluster.submit(change).await;
    let node = Node::start(config).await.unwrap();
    let so_many = |status: SessionStatus, wanted: usize| {
        move |sessions: &[SessionInfo]| count(sessions, status) == wanted
    };
    cluster.sessions_are(&task, so_many(SessionStatus::Preparing, places)).await;
    // One fails; its place is taken while the others are still there.
    gates.making.open(1);
    cluster.sessions_are(&task, so_many(SessionStatus::Failed, 1)).await;
    cluster.sessions_are(&task, so_many(SessionStatus::Preparing, places)).await;
    gates.making.open(OPEN);
    cluster.ended(&task).await;
    node.shutdown(Duration::ZERO).await;
}

/// What a broken machine makes of a journal may be all that there is of a session's calls.
#[tokio::test(flavor = "multi_thread")]
async fn promise_4_no_session_goes_back_whose_journal_cannot_be_read() {
    let cluster = Cluster::new().await;
    let mut config = cluster.config("a").await;
    let gates = Gates::of(&mut config, OPEN, OPEN);
    gates.spoil();
    let other = cluster.submit(json!({"max_attempts": 1})).await;
    let task = cluster.submit(json!({"num_samples": 5, "max_attempts": 1})).await;
    let node = Node::start(config).await.unwrap();
    for task in [other, task] {
        for session in cluster.ended(&task).await {
            let report = session.report().unwrap_or_else(|| panic!("{session:?}"));
            let kept = report.artifacts.iter().find(|artifact| artifact.name == "journal");
            assert!(kept.is_some_and(|journal| journal.size > 0), "{report:?}");
        }
    }
    assert_eq!(cluster.trouble("a").await.kind, TroubleKind::Sandbox);
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_disk_is_almost_full_takes_nothing_and_says_so() {
    let cluster = Cluster::new().await;
    let mut config = cluster.config("a").await;
    config.keep_free_mb = Some(u64::MAX);
    let node = Node::start(config).await.unwrap();
    let task = cluster.submit(json!({})).await;
    let trouble = cluster.trouble("a").await;
    assert_eq!(trouble.kind, TroubleKind::Disk);
    assert!(trouble.message.contains("--keep-free-mb"), "{trouble}");
    let waits = cluster.sessions(&task).await.remove(0);
    assert_eq!(waits.status, SessionStatus::Queued);
    assert!(waits.waiting_for.unwrap().contains("disk fails since"));
    node.shutdown(Duration::ZERO).await;
    // With room it takes it.
    let node = cluster.node("a").await;
    assert_eq!(cluster.ended(&task).await[0].reward, Some(1.0));
    node.shutdown(Duration::ZERO).await;
}
