//! A server that is killed while clients and nodes work with it.
//!
//! The child is this test binary again, told by its environment to serve a folder until it
//! is killed.

use crate::support::{Fixture, ManualClock, config, report_of, shell_task};
use polar_server::Server;
use polar_types::Outcome;
use serde_json::json;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const FOLDER: &str = "POLAR_SERVER_CRASH_TEST_FOLDER";

/// What was acknowledged: submitted tasks, and sessions with the hash of their trajectory.
#[derive(Default)]
struct Acknowledged {
    tasks: BTreeSet<String>,
    results: BTreeSet<(String, String)>,
}

#[tokio::test]
async fn promise_4_kill_9_of_the_server_loses_no_accepted_task_result_or_file() {
    let mut server = Fixture::start().await;
    server.down().await;
    let mut all = Acknowledged::default();
    for (round, calls) in [3, 20, 60, 110].into_iter().enumerate() {
        let (mut child, url) = start_child(server.data.path());
        server.point_to(url);
        let made = AtomicUsize::new(0);
        let kill_at = AtomicUsize::new(calls);
        let child = std::sync::Mutex::new(&mut child);
        let killer = || {
            if made.fetch_add(1, Ordering::Relaxed) + 1 == kill_at.load(Ordering::Relaxed) {
                child.lock().unwrap().kill().unwrap();
            }
        };
        let workers = (0..6).map(|worker| work(&server, format!("r{round}w{worker}"), &killer));
        for done in futures_util::future::join_all(workers).await {
            all.tasks.extend(done.tasks);
            all.results.extend(done.results);
        }
        child.lock().unwrap().wait().unwrap();
        server.up().await;
        check(&server, &all).await;
        server.down().await;
    }
    assert!(all.tasks.len() > 20 && all.results.len() > 20, "little was done");
}

/// Submits, leases and reports until the server is gone.
async fn work(server: &Fixture, name: String, acknowledged: &impl Fn()) -> Acknowledged {
    let mut done = Acknowledged::default();
    for index in 0.. {
        let id = format!("{name}t{index}");
        let task = shell_task(json!({ "task_id": id }));
        if server.try_post("/api/tasks", &task).await.is_none() {
            break;
        }
        done.tasks.insert(id);
        acknowledged();
        let Some(lease) = server.try_lease(&name).await else { break };
        let text = format!("{{\"session\":\"{}\"}}", lease.session_id);
        let Some(file) = server.try_upload("trajectory.json", text).await else { break };
        let mut report = report_of(&lease, &name, Outcome::Completed);
        let hash = file.sha256.clone();
        report.artifacts = vec![file];
        let path = format!("/api/sessions/{}/result", lease.session_id);
        match server.try_post(&path, &report).await {
            Some(ack) if ack == "accepted" => {
                done.results.insert((lease.session_id.to_string(), hash));
                acknowledged();
            }
            Some(other) => panic!("{other}"),
            None => break,
        }
    }
    done
}

async fn check(server: &Fixture, all: &Acknowledged) {
    for id in &all.tasks {
        assert_eq!(server.get(&format!("/api/tasks/{id}")).await.0, 200, "{id} is lost");
    }
    for (id, hash) in &all.results {
        let (_, session) = server.get(&format!("/api/sessions/{id}")).await;
        assert_eq!(session["status"], "completed", "the result of {id} is lost");
        let kept = &session["attempts"].as_array().unwrap().last().unwrap()["report"];
        assert_eq!(kept["artifacts"][0]["sha256"], json!(hash));
        let (_, trajectory) = server.get(&format!("/api/sessions/{id}/trajectory")).await;
        assert_eq!(trajectory, json!({ "session": id }));
    }
    let path = "/api/events?limit=1000&kinds=session.ended";
    let (_, page) = server.get(path).await;
    let ended: Vec<_> =
        page["events"].as_array().unwrap().iter().map(|e| &e["session_id"]).collect();
    for (id, _) in &all.results {
        let times = ended.iter().filter(|ended| **ended == id).count();
        assert_eq!(times, 1, "the end of {id} is told {times} times");
    }
}

fn start_child(folder: &Path) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--nocapture", "--quiet"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let url = lines.find_map(|line| line.unwrap().strip_prefix("serving ").map(str::to_owned));
    (child, url.expect("the child did not serve"))
}

/// Does nothing unless the test above has started it.
#[tokio::test]
async fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let mut config = config(Path::new(&folder), &ManualClock::new());
    config.clock = Arc::new(polar_server::SystemClock);
    let server = Server::start(config).await.unwrap();
    println!("serving http://{}", server.addr());
    server.ended().await;
}
