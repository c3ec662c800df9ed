//! Fifty sessions while the server and both nodes are killed, again and again.

use crate::child::{start_node, start_server};
use crate::cluster::{Cluster, names, until};
use polar_simulator::Speed;
use polar_types::SessionStatus;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

const SESSIONS: usize = 50;
const KILLS: usize = 10;
/// Model calls of the agent's work.
const CALLS: usize = 3;
const LEASE_TTL: Duration = Duration::from_secs(20);

/// What can be killed.
struct Parts<'a> {
    cluster: &'a Cluster,
    running: [Child; 3],
}

impl<'a> Parts<'a> {
    fn start(cluster: &'a Cluster) -> Self {
        let running = [0, 1, 2].map(|part| spawn(cluster, part));
        Self { cluster, running }
    }

    fn kill_and_restart(&mut self, part: usize) {
        end(&mut self.running[part]);
        self.running[part] = spawn(self.cluster, part);
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        self.running.iter_mut().for_each(end);
    }
}

fn spawn(cluster: &Cluster, part: usize) -> Child {
    match part {
        0 => start_server(cluster.dir.path(), cluster.server_addr, LEASE_TTL),
        node => {
            let state = cluster.state(["", "a", "b"][node]);
            start_node(&state, cluster.server_addr, &cluster.engine_url())
        }
    }
}

/// SIGKILL: no handler runs, nothing is flushed.
fn end(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// How many calls the agents of each session have seen the end of.
fn acknowledged(log: &Path) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for session in std::fs::read_to_string(log).unwrap_or_default().lines() {
        *counts.entry(session.to_owned()).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_4_kill_9_of_server_and_nodes_loses_no_acknowledged_call() {
    let speed = Speed { first_token: Duration::from_millis(100), ..Speed::default() };
    let mut cluster = Cluster::with(LEASE_TTL, speed).await;
    cluster.stop_server().await;
    let mut parts = Parts::start(&cluster);
    cluster.server_is_up().await;
    let log = cluster.state("acknowledged");
    let task = cluster
        .submit(json!({
            "num_samples": SESSIONS,
            "max_attempts": 50,
            "harness": {
                "name": "shell",
                "command": "python3 agent.py",
                "env": {"ACKNOWLEDGED": log.display().to_string()},
            },
        }))
        .await;
    // Spread over the run by what has been done, not by the clock.
    let mut random = std::process::id() as usize;
    eprintln!("random kills from {random}");
    for kill in 1..=KILLS {
        let done = kill * SESSIONS * CALLS / (KILLS + 1);
        until(|| acknowledged(&log).values().sum::<usize>() >= done).await;
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        parts.kill_and_restart((random >> 33) % 3);
    }
    cluster.server_is_up().await;

    let sessions = cluster.ended(&task).await;
    assert_eq!(sessions.len(), SESSIONS);
    let acknowledged = acknowledged(&log);
    for session in &sessions {
        assert_eq!(session.status, SessionStatus::Completed, "{session:?}");
        assert_eq!(session.reward, Some(1.0));
        let reports = session.attempts.iter().filter_map(|attempt| attempt.report.as_ref());
        let kept: u32 = reports.map(|report| report.calls).sum();
        let seen = acknowledged[session.session_id.as_str()];
        assert!(kept as usize >= seen, "{kept} calls kept of {seen}: {session:?}");
    }
    for node in ["a", "b"] {
        until(|| names(&cluster.state(node).join("sessions")).is_empty()).await;
        assert!(names(&cluster.state(node).join("undelivered")).is_empty());
    }
    drop(parts);
    let left = processes_below(cluster.dir.path());
    assert!(left.is_empty(), "{left:?} are left");
}

/// Processes that work in a folder.
fn processes_below(folder: &Path) -> Vec<String> {
    let processes = names(Path::new("/proc")).into_iter();
    let works = |pid: &String| {
        let place = std::fs::read_link(format!("/proc/{pid}/cwd"));
        place.is_ok_and(|place| place.starts_with(folder))
    };
    processes.filter(works).collect()
}
