//! Stored work that is graded again on a node.

use crate::cluster::Cluster;
use polar_node::Node;
use polar_types::{EventKind, SessionInfo, SessionStatus, TaskInfo, Trajectory};
use serde_json::{Value, json};
use std::time::Duration;

fn command(command: &str) -> Value {
    json!({ "type": "command", "command": command })
}

async fn done(cluster: &Cluster, task: &TaskInfo, revision: u32) -> SessionInfo {
    cluster
        .event(task, |kind, data| {
            let ended = [EventKind::SessionRegraded, EventKind::SessionRegradeFailed];
            ended.contains(&kind) && data["revision"] == revision
        })
        .await;
    cluster.sessions(task).await.remove(0)
}

/// All of a trajectory but its rewards.
fn without_rewards(mut trajectory: Trajectory) -> Value {
    polar_trajectory::set_rewards(&mut trajectory, None, &Default::default());
    serde_json::to_value(trajectory).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_1_a_regrade_changes_rewards_and_nothing_else() {
    let mut cluster = Cluster::new().await;
    // New, changed, executable, in folders, and removed.
    let agent = "python3 agent.py && mkdir -p a/b && echo x > a/b/c && chmod +x a/b/c && rm old";
    let prepare = json!([
        {"type": "write_file", "path": "agent.py", "content": crate::cluster::AGENT},
        {"type": "write_file", "path": "old", "content": ""},
        {"type": "exec", "command": "echo run >> \"$RUNS\""},
    ]);
    let runs = cluster.dir.path().join("runs").display().to_string();
    let changes = json!({
        "evaluator": command("false"),
        "harness": {"name": "shell", "command": agent},
        "runtime": {"type": "local", "prepare": prepare, "env": {"RUNS": runs}},
    });
    let task = cluster.submit(changes).await;
    let node = cluster.node("a").await;
    let first = cluster.ended(&task).await.remove(0);
    assert_eq!((first.reward, first.revision), (Some(0.0), 1), "{first:?}");
    let before = cluster.trajectory(&first).await;
    // No agent could run from here on.
    cluster.stop_engine().await;

    let all = "grep -q hello hello.txt && test -x a/b/c && ! test -e old && test -e agent.py";
    let answer = cluster.regrade(&task, json!({"evaluator": command(all)})).await;
    assert_eq!(answer["regrades"][0]["revision"], 2, "{answer}");
    let now = done(&cluster, &task, 2).await;
    assert_eq!((now.reward, now.revision), (Some(1.0), 2), "{now:?}");
    assert_eq!(now.status, SessionStatus::Completed);
    let versions = now.gradings.iter().map(|g| g.grade.as_ref().unwrap().version.as_str());
    assert!(versions.clone().all(|version| version.starts_with("command/1+polar.")));
    assert_eq!(versions.count(), 2);
    let after = cluster.trajectory(&now).await;
    assert_eq!((after.reward, after.traces[0].reward), (Some(1.0), Some(1.0)));
    assert_eq!(without_rewards(after), without_rewards(before.clone()));

    // Rewards of turns, by what is stored of the calls.
    let code = "def grade(context):\n    assert len(context['calls']) == 3\n    \
        return {'reward': 0.5, 'rewards': {'turns': [1, None, 0], 'traces': [0.75]}}\n";
    let request =
        json!({"sessions": [now.session_id], "evaluator": {"type": "python", "code": code}});
    cluster.regrade(&task, request).await;
    let now = done(&cluster, &task, 3).await;
    assert_eq!(now.reward, Some(0.5), "{now:?}");
    let after = cluster.trajectory(&now).await;
    assert_eq!(after.traces[0].turn_scores, [Some(1.0), None, Some(0.0)]);
    assert_eq!((after.reward, after.traces[0].reward), (Some(0.5), Some(0.75)));
    assert_eq!(without_rewards(after), without_rewards(before));
    node.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_regrade_that_cannot_grade_says_why_and_leaves_the_result() {
    let cluster = Cluster::new().await;
    let task = cluster.submit(json!({"evaluator": "none"})).await;
    let node = cluster.node("a").await;
    let first = cluster.ended(&task).await.remove(0);
    assert_eq!(first.reward, None);
    for (evaluator, why, revision) in [
        (command("no-such-program-of-tests"), "`no-such-program-of-tests` is not there", 2),
        (json!({"type": "command", "command": "echo x", "reward": "stdout"}), "no line", 3),
    ] {
        cluster.regrade(&task, json!({"evaluator": evaluator})).await;
        let now = done(&cluster, &task, revision).await;
        let told = now.regrade.clone().unwrap();
        assert_eq!(told.status, SessionStatus::Failed);
        assert!(told.error.as_ref().unwrap().contains(why), "{told:?}");
        assert_eq!((now.reward, now.revision, now.gradings.len()), (None, 1, 0));
    }
    // What was never graded can be, all the same.
    cluster.regrade(&task, json!({"evaluator": command("grep -q hello hello.txt")})).await;
    let now = done(&cluster, &task, 4).await;
    assert_eq!((now.reward, now.revision), (Some(1.0), 4));
    node.shutdown(Duration::ZERO).await;
}

/// The next process of the node delivers a failure, and the order is tried again.
#[tokio::test(flavor = "multi_thread")]
async fn a_regrade_outlives_its_node() {
    let cluster = Cluster::new().await;
    let task = cluster.submit(json!({})).await;
    let node = cluster.node("a").await;
    cluster.ended(&task).await;
    let go = cluster.dir.path().join("go");
    let begun = cluster.dir.path().join("begun");
    let wait =
        format!("touch {}; until test -e {}; do sleep 0.01; done", begun.display(), go.display());
    cluster.regrade(&task, json!({"evaluator": command(&wait)})).await;
    crate::cluster::until(|| begun.exists()).await;
    let waits = cluster.sessions(&task).await.remove(0).regrade.unwrap();
    assert!(!waits.status.is_terminal(), "{waits:?}");
    node.shutdown(Duration::ZERO).await;
    std::fs::write(go, "").unwrap();
    let node = Node::start(cluster.config("a").await).await.unwrap();
    let now = done(&cluster, &task, 2).await;
    assert_eq!((now.reward, now.revision, now.attempts.len()), (Some(1.0), 2, 1));
    node.shutdown(Duration::ZERO).await;
}
