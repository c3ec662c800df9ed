//! Sandboxes that take their time to go away, or to come: nobody waits for them who does
//! not have to, and nobody forgets them.

use crate::cluster::{Cluster, names, until, within};
use crate::gate::{Gates, OPEN};
use polar_node::Node;
use polar_types::{CallSummary, NodeList, Outcome, SessionInfo, SessionStatus, Slots, TaskInfo};
use serde_json::json;
use std::collections::HashSet;
use std::time::Duration;

/// Waits until this many sessions of a task have ended.
async fn so_many_ended(cluster: &Cluster, task: &TaskInfo, wanted: usize) {
    cluster
        .sessions_are(task, |sessions| {
            sessions.iter().filter(|session| session.status.is_terminal()).count() == wanted
        })
        .await;
}

fn lost(session: &SessionInfo) -> Option<&str> {
    session.attempts.last().and_then(|attempt| attempt.lost.as_deref())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_does_not_wait_for_its_sandbox_to_be_gone() {
    let cluster = Cluster::new().await;
    let mut config = cluster.config("a").await;
    config.slots = Slots { prepare: 1, ready: 0, run: 1, grade: 2, warm: 0 };
    let places = config.slots.total() as usize;
    let gates = Gates::of(&mut config, OPEN, 0);
    let node = Node::start(config).await.unwrap();
    let task = cluster.submit(json!({"num_samples": 8})).await;

    // Delivered while their sandboxes are still there, with the grading slots.
    so_many_ended(&cluster, &task, 2).await;
    let sessions = cluster.sessions(&task).await;
    for session in sessions.iter().filter(|session| session.status.is_terminal()) {
        assert_eq!(session.status, SessionStatus::Completed, "{session:?}");
        let folder = format!("a/sessions/{}.e1", session.session_id);
        assert!(cluster.state(&folder).exists(), "the sandbox has its files there");
    }

    gates.removing.open(OPEN);
    for session in cluster.ended(&task).await {
        assert_eq!((session.status, session.attempts.len()), (SessionStatus::Completed, 1));
    }
    until(|| names(&cluster.state("a/sessions")).is_empty()).await;
    assert!(gates.most() <= places, "{} sandboxes at a time", gates.most());
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_7_a_node_does_not_end_before_its_sandboxes() {
    let cluster = Cluster::new().await;
    let mut config = cluster.config("a").await;
    let gates = Gates::of(&mut config, OPEN, 0);
    let node = Node::start(config).await.unwrap();
    let task = cluster.submit(json!({})).await;
    assert_eq!(cluster.ended(&task).await[0].status, SessionStatus::Completed);

    let mut end = tokio::spawn(node.shutdown(Duration::ZERO));
    let early = tokio::time::timeout(Duration::from_millis(500), &mut end).await;
    assert!(early.is_err(), "it ended with {} sandboxes", gates.live());
    gates.removing.open(1);
    within(end).await.unwrap();
    assert_eq!(gates.live(), 0);
    assert!(names(&cluster.state("a/sessions")).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_7_a_sandbox_that_comes_too_late_is_removed_and_delays_nobody() {
    let cluster = Cluster::new().await;
    let mut config = cluster.config("a").await;
    let gates = Gates::of(&mut config, 0, OPEN);
    let node = Node::start(config).await.unwrap();
    let task = cluster.submit(json!({})).await;
    let prepares = |sessions: &[SessionInfo]| sessions[0].status == SessionStatus::Preparing;
    cluster.sessions_are(&task, prepares).await;
    cluster.cancel(&task).await;
    let session = cluster.ended(&task).await.remove(0);
    assert_eq!(session.attempts[0].report.as_ref().unwrap().outcome, Outcome::Cancelled);

    gates.making.open(1);
    until(|| gates.most() == 1 && gates.live() == 0).await;
    until(|| names(&cluster.state("a/sessions")).is_empty()).await;
    node.shutdown(Duration::ZERO).await;
}

/// Renewals of a node, by when it was heard of.
async fn renews(cluster: &Cluster, times: usize) {
    let mut heard = HashSet::new();
    let mut looks = tokio::time::interval(Duration::from_millis(50));
    within(async {
        while heard.len() <= times {
            looks.tick().await;
            let nodes: NodeList = cluster.get("/api/nodes").await;
            heard.insert(nodes.nodes[0].last_seen_at.clone());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_5_what_a_draining_node_gives_back_costs_no_attempt_however_long_it_takes() {
    let cluster = Cluster::with_lease_ttl(Duration::from_secs(3)).await;
    let mut config = cluster.config("a").await;
    let gates = Gates::of(&mut config, OPEN, 0);
    let node = Node::start(config).await.unwrap();
    let marks = cluster.state("marks");
    std::fs::create_dir(&marks).unwrap();
    // The first run of each session does its work and then hangs.
    let mark = format!("{}/$POLAR_SESSION_ID", marks.display());
    let command = format!("python3 agent.py; [ -e {mark} ] || {{ touch {mark}; sleep 600; }}");
    let task = cluster
        .submit(json!({
            "harness": {"name": "shell", "command": command},
            "num_samples": 2,
            "max_attempts": 1,
        }))
        .await;
    until(|| names(&marks).len() == 2).await;
    let end = tokio::spawn(node.shutdown(Duration::ZERO));

    // Each goes back when it has stopped, not when the last one has …
    gates.removing.open(1);
    let released = |wanted| {
        move |sessions: &[SessionInfo]| {
            sessions.iter().filter(|session| lost(session) == Some("released")).count() == wanted
        }
    };
    cluster.sessions_are(&task, released(1)).await;
    assert!(!end.is_finished(), "the other one has not stopped");
    // … and keeps its lease meanwhile, through more than two of its lives.
    renews(&cluster, 8).await;
    assert!(released(1)(&cluster.sessions(&task).await));
    gates.removing.open(1);
    within(end).await.unwrap();
    let sessions = cluster.sessions(&task).await;
    assert!(released(2)(&sessions), "{sessions:?}");

    // What they had asked the model is kept, and the next run is the result.
    assert!(names(&cluster.state("a/sessions")).is_empty());
    let node = cluster.node("b").await;
    for session in cluster.ended(&task).await {
        assert_eq!((session.status, session.attempts.len()), (SessionStatus::Completed, 2));
        let path = format!("/api/sessions/{}/calls?attempt=1", session.session_id);
        assert_eq!(cluster.get::<Vec<CallSummary>>(&path).await.len(), 3);
        assert_eq!(session.report().unwrap().node_id.as_str(), "b");
    }
    node.shutdown(Duration::ZERO).await;
}
