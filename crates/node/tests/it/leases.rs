//! Work comes from the server and goes back to it, once.

use crate::cluster::{Cluster, names, runs, until, within};
use polar_types::{CallSummary, EventKind, NodeList, Outcome, SessionStatus, Trajectory};
use serde_json::json;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread")]
async fn a_task_runs_to_its_end_and_leaves_nothing() {
    let cluster = Cluster::new().await;
    let node = cluster.node("a").await;
    let task = cluster.submit(json!({"num_samples": 12})).await;
    let sessions = cluster.ended(&task).await;
    assert_eq!(sessions.len(), 12);
    for session in &sessions {
        assert_eq!(session.status, SessionStatus::Completed, "{session:?}");
        assert_eq!((session.reward, session.attempts.len()), (Some(1.0), 1));
        let report = session.report().unwrap();
        assert_eq!((report.calls, report.traces), (3, 1));
        assert!(report.tokens.is_conserved());
        let trajectory = cluster.trajectory(session).await;
        assert_eq!(trajectory.tokens, report.tokens);
        assert_eq!(trajectory.traces[0].rollout_id, session.session_id);
    }
    until(|| names(&cluster.state("a/sessions")).is_empty()).await;
    assert!(names(&cluster.state("a/undelivered")).is_empty());
    let nodes: NodeList = cluster.get("/api/nodes").await;
    assert_eq!(nodes.nodes[0].node.runtimes, ["local"]);
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_ends_its_sessions_with_their_calls() {
    let cluster = Cluster::new().await;
    let node = cluster.node("a").await;
    let pid = cluster.state("pid");
    let command = format!("python3 agent.py; echo $$ > {}; sleep 600", pid.display());
    let task = cluster.submit(json!({"harness": {"name": "shell", "command": command}})).await;
    until(|| pid.exists()).await;
    cluster.cancel(&task).await;
    let session = cluster.ended(&task).await.remove(0);
    assert_eq!(session.status, SessionStatus::Cancelled);
    let report = session.attempts[0].report.as_ref().unwrap();
    assert_eq!((&report.outcome, report.calls), (&Outcome::Cancelled, 3));
    until(|| !runs(&std::fs::read_to_string(&pid).unwrap())).await;
    until(|| names(&cluster.state("a/sessions")).is_empty()).await;
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stages_and_cancels_do_not_wait_for_the_next_renewal() {
    // Renewed every 200 seconds, which is longer than anything here may take.
    let cluster = Cluster::with_lease_ttl(Duration::from_secs(600)).await;
    let node = cluster.node("a").await;
    let command = |command: &str| json!({"harness": {"name": "shell", "command": command}});
    // The first renewal comes early, before the server has said how long leases live.
    let task = cluster.submit(command("sleep 6")).await;
    cluster.ended(&task).await;

    let task = cluster.submit(command("sleep 600")).await;
    cluster.sessions_are(&task, |all| all[0].status == SessionStatus::Running).await;
    cluster.cancel(&task).await;
    let session = cluster.ended(&task).await.remove(0);
    assert_eq!(session.status, SessionStatus::Cancelled);
    node.shutdown(Duration::ZERO).await;
}

/// A way to the server that can be cut.
struct Line {
    listener: TcpListener,
    server: std::net::SocketAddr,
}

impl Line {
    async fn to(server: std::net::SocketAddr) -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap(), server }
    }

    fn addr(&self) -> std::net::SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Carries connections until `cut`; then drops them all.
    async fn carry(&self, cut: impl Future<Output = ()>) {
        let mut connections = JoinSet::new();
        let serve = async {
            loop {
                let (mut near, _) = self.listener.accept().await.unwrap();
                let server = self.server;
                connections.spawn(async move {
                    let Ok(mut far) = TcpStream::connect(server).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        };
        tokio::select! {
            () = serve => {}
            () = cut => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_5_a_lost_lease_is_given_up_and_its_session_has_one_result() {
    let cluster = Cluster::with_lease_ttl(Duration::from_secs(2)).await;
    let line = Line::to(cluster.server_addr).await;
    let mut config = cluster.config("cut").await;
    config.server.as_mut().unwrap().url = format!("http://{}", line.addr());
    let cut = polar_node::Node::start(config).await.unwrap();

    // The first run hangs, the second one works: the first is the one that is cut off.
    let pid = cluster.state("pid");
    let command = format!(
        "python3 agent.py; if [ ! -e {0} ]; then echo $$ > {0}; sleep 600; fi",
        pid.display()
    );
    let task = cluster.submit(json!({"harness": {"name": "shell", "command": command}})).await;
    within(line.carry(until(|| pid.exists()))).await;
    let first = std::fs::read_to_string(&pid).unwrap();

    let other = cluster.node("other").await;
    let session = cluster.ended(&task).await.remove(0);
    assert_eq!(session.status, SessionStatus::Completed, "{session:?}");
    assert_eq!(session.attempts.len(), 2);
    assert_eq!(session.attempts[1].node_id.as_str(), "other");
    assert!(runs(&first), "a node that is cut off goes on: it cannot know");

    // Back again, it is told and gives up.
    within(line.carry(until(|| !runs(&first)))).await;
    let mut held = cut.held();
    let empty = async {
        held.wait_for(Vec::is_empty).await.unwrap();
    };
    within(line.carry(empty)).await;
    // What it had recorded is kept apart: for people to look at, never for training.
    within(line.carry(until(|| names(&cluster.state("cut/sessions")).is_empty()))).await;
    let again = cluster.sessions(&task).await.remove(0);
    assert_eq!(again.report(), session.report(), "the result stays the one accepted");
    assert_eq!(again.attempts[0].lost.as_deref(), Some("lease_expired"));
    let kept = again.attempts[0].report.as_ref().expect("the calls of the lost attempt");
    assert_eq!((kept.calls, kept.traces, kept.reward), (3, 1, None));
    let path = format!("/api/sessions/{}/calls", session.session_id);
    let calls: Vec<CallSummary> = cluster.get(&format!("{path}?attempt=1")).await;
    assert_eq!(calls.len(), 3);
    let trained: Vec<Trajectory> =
        cluster.get(&format!("/api/tasks/{}/trajectories", task.task_id)).await;
    assert_eq!(trained, [cluster.trajectory(&session).await], "one result, one trajectory");
    within(line.carry(cut.shutdown(Duration::ZERO))).await;
    other.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_drains_gives_back_what_it_cannot_finish() {
    let cluster = Cluster::new().await;
    let node = cluster.node("a").await;
    let pid = cluster.state("pid");
    let command = format!(
        "if [ ! -e {0} ]; then echo $$ > {0}; sleep 600; fi; python3 agent.py",
        pid.display()
    );
    let task = cluster.submit(json!({"harness": {"name": "shell", "command": command}})).await;
    until(|| pid.exists()).await;
    within(node.shutdown(Duration::ZERO)).await;
    assert!(!runs(&std::fs::read_to_string(&pid).unwrap()));
    assert!(names(&cluster.state("a/sessions")).is_empty());

    let node = cluster.node("b").await;
    let session = cluster.ended(&task).await.remove(0);
    assert_eq!(session.status, SessionStatus::Completed);
    assert_eq!(session.attempts[0].lost.as_deref(), Some("released"));
    assert!(session.attempts[0].report.is_none(), "it had asked the model nothing");
    assert_eq!(session.attempts[1].node_id.as_str(), "b");
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_drains_lets_running_sessions_end() {
    let cluster = Cluster::new().await;
    let node = cluster.node("a").await;
    let (started, go) = (cluster.state("started"), cluster.state("go"));
    let command = format!(
        "touch {}; while [ ! -e {} ]; do sleep 0.05; done; python3 agent.py",
        started.display(),
        go.display()
    );
    let task = cluster.submit(json!({"harness": {"name": "shell", "command": command}})).await;
    until(|| started.exists()).await;
    let drained = tokio::spawn(node.shutdown(Duration::from_secs(120)));
    std::fs::write(&go, "").unwrap();
    within(drained).await.unwrap();
    let session = cluster.ended(&task).await.remove(0);
    assert_eq!((session.status, session.attempts.len()), (SessionStatus::Completed, 1));
    assert!(names(&cluster.state("a/sessions")).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_5_results_survive_a_server_that_is_away() {
    let mut cluster = Cluster::new().await;
    let node = cluster.node("a").await;
    let (started, go) = (cluster.state("started"), cluster.state("go"));
    let command = format!(
        "touch {}; while [ ! -e {} ]; do sleep 0.05; done; python3 agent.py",
        started.display(),
        go.display()
    );
    let task = cluster
        .submit(json!({"harness": {"name": "shell", "command": command}, "num_samples": 2}))
        .await;
    cluster
        .event(&task, |kind, data| kind == EventKind::SessionStatus && data["status"] != "queued")
        .await;
    until(|| started.exists()).await;
    cluster.stop_server().await;
    std::fs::write(&go, "").unwrap();
    // Both run and are graded without a server, and wait to be delivered.
    let mut held = node.held();
    let waits = |held: &Vec<polar_node::HeldSession>| {
        held.len() == 2 && held.iter().all(|s| s.stage == polar_types::Stage::Deliver)
    };
    within(held.wait_for(waits)).await.unwrap();
    cluster.start_server().await;
    for session in cluster.ended(&task).await {
        assert_eq!(session.status, SessionStatus::Completed);
        assert_eq!(session.attempts.len(), 1, "{session:?}");
    }
    until(|| names(&cluster.state("a/sessions")).is_empty()).await;
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_disk_gives_sessions_back_unspent() {
    let cluster = Cluster::new().await;
    let node = cluster.node("a").await;
    let sessions = cluster.state("a/sessions");
    std::fs::remove_dir(&sessions).unwrap();
    std::fs::write(&sessions, "in the way").unwrap();
    let task = cluster.submit(json!({"max_attempts": 1})).await;
    let lost = |session: &polar_types::SessionInfo| {
        session.attempts.iter().any(|attempt| attempt.lost.as_deref() == Some("released"))
    };
    within(async {
        let mut looks = tokio::time::interval(Duration::from_millis(50));
        while !cluster.sessions(&task).await.iter().any(lost) {
            looks.tick().await;
        }
    })
    .await;
    std::fs::remove_file(&sessions).unwrap();
    std::fs::create_dir(&sessions).unwrap();
    let session = cluster.ended(&task).await.remove(0);
    assert_eq!(session.status, SessionStatus::Completed, "{session:?}");
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_name_another_took_while_it_was_cut_off_gives_up_and_ends() {
    let cluster = Cluster::with_lease_ttl(Duration::from_secs(2)).await;
    let line = Line::to(cluster.server_addr).await;
    let mut config = cluster.config("cut").await;
    config.server.as_mut().unwrap().url = format!("http://{}", line.addr());
    let cut = polar_node::Node::start(config).await.unwrap();
    let pid = cluster.state("pid");
    let command = format!("echo $$ > {}; sleep 600", pid.display());
    let harness = json!({"name": "shell", "command": command});
    let task = cluster.submit(json!({"harness": harness, "max_attempts": 1})).await;
    within(line.carry(until(|| pid.exists()))).await;
    cluster.ended(&task).await;

    let mut config = cluster.config("other").await;
    config.node_id = "cut".parse().unwrap();
    within(async {
        let mut looks = tokio::time::interval(Duration::from_millis(50));
        while cluster.get::<NodeList>("/api/nodes").await.nodes[0].alive {
            looks.tick().await;
        }
    })
    .await;
    let other = polar_node::Node::start(config).await.unwrap();
    let boot = || async { cluster.get::<NodeList>("/api/nodes").await.nodes[0].clone() };
    let old = boot().await;
    within(async {
        let mut looks = tokio::time::interval(Duration::from_millis(50));
        while boot().await.node.boot_id == old.node.boot_id {
            looks.tick().await;
        }
    })
    .await;

    let ousted = async {
        let refused = cut.refused().await;
        assert!(matches!(*refused, polar_node::NodeError::NameInUse { .. }), "{refused}");
    };
    within(line.carry(ousted)).await;
    assert!(!runs(&std::fs::read_to_string(&pid).unwrap()), "it gave up what it held");
    within(cut.shutdown(Duration::ZERO)).await;
    other.shutdown(Duration::ZERO).await;
}
