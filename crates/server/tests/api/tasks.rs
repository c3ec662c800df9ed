//! A task from its submission to its trajectory, over HTTP.

use crate::support::{Fixture, json_of, report_of, shell_task};
use polar_types::Outcome;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

#[tokio::test]
async fn a_task_runs_from_submission_to_trajectory() {
    let server = Fixture::start().await;
    let task =
        server.submit(json!({ "task_id": "t", "num_samples": 2, "metadata": {"k": 1} })).await;
    assert_eq!(task["status"], "running");
    assert_eq!(task["sessions"], json!({ "queued": 2 }));
    assert_eq!(task["metadata"], json!({ "k": 1 }));

    let leases = server.lease("n1", 8).await;
    assert_eq!(leases.len(), 2);
    for (index, lease) in leases.iter().enumerate() {
        let trajectory = format!("{{\"session_id\": \"{}\",\n \"traces\": []}}", lease.session_id);
        let mut report = report_of(lease, "n1", Outcome::Completed);
        report.reward = Some(index as f64);
        report.artifacts = vec![
            server.upload("trajectory.json", trajectory).await,
            server.upload("calls.json", "[]").await,
            server.upload("stdout.log", format!("out {index}")).await,
            server.upload("workspace.diff", "--- a").await,
        ];
        assert_eq!(server.report(&report).await, json!("accepted"));
        assert_eq!(server.report(&report).await, json!("repeated"));
    }

    let (_, task) = server.get("/api/tasks/t").await;
    assert_eq!(task["status"], "completed");
    assert_eq!(task["sessions"], json!({ "completed": 2 }));
    assert_eq!(task["mean_reward"], json!(0.5));

    let (_, all) = server.get("/api/tasks/t/trajectories").await;
    let ids: Vec<_> = all.as_array().unwrap().iter().map(|t| t["session_id"].clone()).collect();
    assert_eq!(ids, ["t-s0", "t-s1"]);
    let lines = server.request(Method::GET, "/api/tasks/t/trajectories?format=jsonl");
    let lines = lines.send().await.unwrap().text().await.unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(Value::Array(lines), all);
    let accepted = server
        .request(Method::GET, "/api/tasks/t/trajectories")
        .header("accept", "application/x-ndjson");
    assert_eq!(accepted.send().await.unwrap().text().await.unwrap().lines().count(), 2);
    let (_, none) = server.get("/api/tasks/t/trajectories?status=timed_out,failed").await;
    assert_eq!(none, json!([]));

    let (_, one) = server.get("/api/sessions/t-s1/trajectory").await;
    assert_eq!(one, all[1]);
    let (_, calls) = server.get("/api/sessions/t-s1/calls").await;
    assert_eq!(calls, json!([]));
    let (_, out) = server.get("/api/sessions/t-s1/logs").await;
    assert_eq!(out, json!({ "text": "out 1" }));
    let (_, diff) = server.get("/api/sessions/t-s1/logs?stream=diff").await;
    assert_eq!(diff, json!({ "text": "--- a" }));
    let (status, missing) = server.get("/api/sessions/t-s1/logs?stream=grader").await;
    assert_eq!((status, &missing["error"]["code"]), (StatusCode::NOT_FOUND, &json!("not_found")));

    let (_, sessions) = server.get("/api/tasks/t/sessions").await;
    assert_eq!(sessions["sessions"][1]["attempts"][0]["report"]["reward"], json!(1.0));
    assert_eq!(sessions["sessions"][1]["outcome"], json!({ "type": "completed" }));
}

#[tokio::test]
async fn a_body_is_read_whatever_its_content_type() {
    let server = Fixture::start().await;
    let body = shell_task(json!({})).to_string();
    let form = server
        .request(Method::POST, "/api/tasks")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(body.clone());
    assert_eq!(json_of(form).await.0, StatusCode::CREATED);
    let none = server.request(Method::POST, "/api/tasks").body(body);
    assert_eq!(json_of(none).await.0, StatusCode::CREATED);
}
