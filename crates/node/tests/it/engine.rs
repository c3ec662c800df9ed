//! An engine that goes away costs no session anything but time.

use crate::cluster::{Cluster, within};
use polar_node::Node;
use polar_types::{EventKind, NodeList, SessionStatus, Slots, TroubleKind};
use serde_json::json;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn sessions_wait_for_an_engine_that_is_away_and_spend_nothing() {
    let mut cluster = Cluster::new().await;
    let mut config = cluster.config("a").await;
    config.slots = Slots { prepare: 1, ready: 1, run: 1, grade: 1, warm: 0 };
    let samples = config.slots.total() + 2;
    cluster.stop_engine().await;
    let node = Node::start(config).await.unwrap();
    let task = cluster.submit(json!({"num_samples": samples, "max_attempts": 1})).await;

    // The first finds out by its call, which waits; another is prepared; the rest stay queued.
    cluster
        .sessions_are(&task, |sessions| {
            sessions.iter().any(|session| {
                let waiting = session.waiting_for.as_deref().unwrap_or_default();
                session.status == SessionStatus::Running
                    && waiting.contains("engine unreachable since")
                    && waiting.contains("calls that wait: 1")
            })
        })
        .await;
    let trouble = cluster.trouble("a").await;
    assert_eq!(trouble.kind, TroubleKind::Engine);
    assert!(trouble.message.contains("no engine can be reached"), "{trouble}");
    within(async {
        let mut looks = tokio::time::interval(Duration::from_millis(50));
        while cluster.trouble("a").await.waiting == 0 {
            looks.tick().await;
        }
    })
    .await;

    cluster.start_engine().await;
    let sessions = cluster.ended(&task).await;
    for session in &sessions {
        assert_eq!(session.status, SessionStatus::Completed, "{session:?}");
        assert_eq!((session.attempts.len(), session.reward), (1, Some(1.0)));
    }
    cluster.untroubled("a").await;
    node.shutdown(Duration::ZERO).await;
}

/// While it is away a node takes nothing, and the server still hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_its_engine_takes_no_session_and_stays_alive() {
    let mut cluster = Cluster::with_lease_ttl(Duration::from_secs(9)).await;
    let mut config = cluster.config("a").await;
    config.gateway.engine_questions = Duration::from_millis(50);
    let node = Node::start(config).await.unwrap();
    cluster.stop_engine().await;
    cluster.trouble("a").await;
    // Asked for before the loss, and still to come.
    let first = cluster.submit(json!({"num_samples": 1})).await;
    let seen = || async { cluster.get::<NodeList>("/api/nodes").await.nodes.remove(0) };
    let heard = seen().await.last_seen_at;
    within(async {
        let mut looks = tokio::time::interval(Duration::from_millis(100));
        // Longer than any request for work is held open.
        let mut times = std::collections::BTreeSet::from([heard]);
        while times.len() < 5 {
            looks.tick().await;
            let node = seen().await;
            assert!(node.alive);
            times.insert(node.last_seen_at);
        }
    })
    .await;
    let second = cluster.submit(json!({"num_samples": 3, "max_attempts": 1})).await;
    let untouched = cluster.sessions(&second).await;
    assert!(untouched.iter().all(|session| session.attempts.is_empty()), "{untouched:?}");

    cluster.start_engine().await;
    for task in [first, second] {
        for session in cluster.ended(&task).await {
            assert_eq!(session.status, SessionStatus::Completed, "{session:?}");
            assert_eq!(session.attempts.len(), 1);
        }
    }
    node.shutdown(Duration::ZERO).await;
}

/// An agent whose time runs out meanwhile is lost; another attempt is made, which costs the session
/// none of its own.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_lost_to_the_engine_is_made_anew_and_is_no_reward_of_0() {
    let mut cluster = Cluster::new().await;
    let config = cluster.config("a").await;
    cluster.stop_engine().await;
    let node = Node::start(config).await.unwrap();
    let budgets = json!({"run_seconds": 8.0});
    let evaluator = json!({"type": "command", "command": "true"});
    let change = json!({"max_attempts": 1, "budgets": budgets, "evaluator": evaluator});
    let task = cluster.submit(change).await;
    cluster
        .event(&task, |kind, data| kind == EventKind::SessionStatus && data["status"] == "queued")
        .await;
    let session = cluster.sessions(&task).await.remove(0);
    let report = session.attempts[0].report.as_ref().unwrap();
    assert_eq!(report.reason, Some(polar_types::EndReason::EngineLoss), "{report:?}");
    assert_eq!((report.reward, session.reason), (None, None));
    cluster.start_engine().await;
    let session = cluster.ended(&task).await.remove(0);
    assert_eq!(session.status, SessionStatus::Completed, "{session:?}");
    assert!(session.attempts.len() >= 2, "{session:?}");
    assert!(session.reward.is_some(), "{session:?}");
    node.shutdown(Duration::ZERO).await;
}
