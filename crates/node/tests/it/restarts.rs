//! A node that is killed loses nothing that was acknowledged and leaves nothing behind.

use crate::child::start_node;
use crate::cluster::{Cluster, names, runs, until};
use polar_session::AttemptFolder;
use polar_types::{ErrorClass, Lease, Outcome, SessionStatus, Side};
use serde_json::json;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn promise_4_kill_9_of_a_node_loses_no_acknowledged_call() {
    let cluster = Cluster::new().await;
    let state = cluster.state("a");
    let mut killed = start_node(&state, cluster.server_addr, &cluster.engine_url());

    // The agent's first run ends its work and then hangs; its second one ends.
    let pid = cluster.state("pid");
    let command = format!(
        "python3 agent.py; if [ ! -e {0} ]; then echo $$ > {0}; sleep 600; fi",
        pid.display()
    );
    let task = cluster.submit(json!({"harness": {"name": "shell", "command": command}})).await;
    until(|| std::fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n'))).await;
    killed.kill().unwrap();
    killed.wait().unwrap();

    let node = cluster.node("a").await;
    let session = cluster.ended(&task).await.remove(0);
    assert_eq!(session.status, SessionStatus::Completed, "{session:?}");
    assert_eq!(session.attempts.len(), 2);
    let salvaged = session.attempts[0].report.as_ref().unwrap();
    assert_eq!((salvaged.calls, salvaged.traces), (3, 1), "all calls of the killed run");
    assert!(salvaged.tokens.trained > 0);
    match &salvaged.outcome {
        Outcome::Failed { side: Side::Polar, class: ErrorClass::Unavailable, message } => {
            assert!(message.contains("node restarted"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    let report = session.report().unwrap();
    assert_eq!((report.calls, report.reward), (3, Some(1.0)));

    // Promise 7: the killed run's processes and folders are gone too.
    assert!(!runs(&std::fs::read_to_string(&pid).unwrap()));
    until(|| names(&cluster.state("a/sessions")).is_empty()).await;
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_4_a_report_that_was_not_delivered_is_delivered_by_the_next_start() {
    let mut cluster = Cluster::new().await;
    let state = cluster.state("a");
    let mut killed = start_node(&state, cluster.server_addr, &cluster.engine_url());
    let go = cluster.state("go");
    let started = cluster.state("started");
    let command = format!(
        "touch {}; while [ ! -e {} ]; do sleep 0.05; done; python3 agent.py",
        started.display(),
        go.display()
    );
    let task = cluster.submit(json!({"harness": {"name": "shell", "command": command}})).await;
    until(|| started.exists()).await;
    cluster.stop_server().await;
    std::fs::write(&go, "").unwrap();
    let report = || {
        let folders = names(&state.join("sessions"));
        folders.iter().any(|name| state.join("sessions").join(name).join("report.json").exists())
    };
    until(report).await;
    killed.kill().unwrap();
    killed.wait().unwrap();

    cluster.start_server().await;
    let node = cluster.node("a").await;
    let session = cluster.ended(&task).await.remove(0);
    assert_eq!((session.status, session.reward), (SessionStatus::Completed, Some(1.0)));
    assert_eq!(session.attempts.len(), 1, "it is not run again");
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_4_what_the_server_refuses_is_kept() {
    let cluster = Cluster::new().await;
    let node = cluster.node("a").await;
    node.shutdown(Duration::ZERO).await;
    // An attempt of a session that this server has never heard of.
    let task = cluster.submit(json!({"task_id": "known"})).await;
    let lease: Lease = serde_json::from_value(json!({
        "session_id": "unknown-s0", "attempt": 1, "epoch": 7, "sample_index": 0,
        "group_id": "unknown",
        "task": {
            "task_id": "unknown", "group_id": "unknown", "instruction": "x",
            "harness": "pi", "runtime": "local", "evaluator": "none",
            "trajectory_strategy": "prefix_merging", "num_samples": 1, "sampling": {},
            "budgets": {}, "max_attempts": 1, "priority": 0, "metadata": {},
        },
    }))
    .unwrap();
    AttemptFolder::create(&cluster.state("a/sessions"), &lease).unwrap();
    let node = cluster.node("a").await;
    until(|| names(&cluster.state("a/undelivered")) == ["unknown-s0.e7"]).await;
    let sessions = cluster.ended(&task).await;
    assert_eq!(sessions[0].status, SessionStatus::Completed, "work goes on");
    node.shutdown(Duration::ZERO).await;
}
