//! A trainer that pulls batches, over HTTP.

use crate::support::{Fixture, json_of, report_of};
use polar_types::{Lease, Outcome};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;

async fn next(server: &Fixture, body: Value) -> Value {
    let (status, answer) = server.post("/api/batches/next", &body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

async fn end(server: &Fixture, lease: &Lease, reward: f64) {
    let mut report = report_of(lease, "n1", Outcome::Completed);
    report.reward = Some(reward);
    let trajectory = format!("{{\"session_id\": \"{}\"}}", lease.session_id);
    let arrays = format!("arrays of {}\n", lease.session_id);
    report.artifacts = vec![
        server.upload("trajectory.json", trajectory).await,
        server.upload("trajectory.safetensors", arrays).await,
    ];
    assert_eq!(server.report(&report).await, json!("accepted"));
}

fn tasks_of(answer: &Value) -> Vec<&str> {
    let groups = answer["batch"]["groups"].as_array().unwrap();
    groups.iter().map(|group| group["task_id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn promise_5_each_group_is_trained_once_over_restarts_of_either_side() {
    let mut server = Fixture::start().await;
    for task in 0..6 {
        server.submit(json!({ "task_id": format!("t{task}"), "num_samples": 2 })).await;
    }
    let mut trained = Vec::new();
    let mut cursor = 0;
    while trained.len() < 6 {
        // Server and trainer are killed in turn, before a group ends, between its sessions, and
        // between the giving of a batch and the next question.
        for lease in server.lease("n1", 3).await {
            end(&server, &lease, f64::from(lease.sample_index)).await;
            server.down().await;
            server.up().await;
        }
        let ask = json!({ "after": cursor, "groups": 2, "min_groups": 1, "wait_seconds": 0.01 });
        let answer = next(&server, ask.clone()).await;
        if answer["batch"].is_null() {
            continue;
        }
        server.down().await;
        server.up().await;
        assert_eq!(next(&server, ask).await["batch"], answer["batch"]);
        trained.extend(tasks_of(&answer).into_iter().map(str::to_owned));
        cursor = answer["batch"]["number"].as_u64().unwrap();
    }
    let once: BTreeSet<&String> = trained.iter().collect();
    assert_eq!((once.len(), trained.len()), (6, 6));
}

#[tokio::test]
async fn a_trainer_waits_for_its_batch_and_gets_the_trajectories_with_it() {
    let server = Fixture::start().await;
    server.submit(json!({ "task_id": "t", "num_samples": 2, "queue": "train" })).await;
    let leases = server.lease("n1", 2).await;
    end(&server, &leases[0], 1.0).await;
    let ask = json!({ "queue": "train", "after": 0, "wait_seconds": 50 });
    let (answer, ()) = tokio::join!(next(&server, ask), end(&server, &leases[1], 0.0));
    assert_eq!(tasks_of(&answer), ["t"]);
    assert_eq!(answer["batch"]["groups"][0]["mean_reward"], json!(0.5));
    let (_, again) = server.get("/api/batches/train/1").await;
    assert_eq!(again, answer["batch"]);
    let (_, all) = server.get("/api/batches/train/1/trajectories").await;
    assert_eq!(all, json!([{ "session_id": "t-s0" }, { "session_id": "t-s1" }]));
    let lines = server.request(Method::GET, "/api/batches/train/1/trajectories?format=jsonl");
    assert_eq!(lines.send().await.unwrap().text().await.unwrap().lines().count(), 2);
    for path in ["/api/batches/train/1/trajectories", "/api/tasks/t/trajectories"] {
        let (_, arrays) = server.get(&format!("{path}?format=safetensors")).await;
        assert_eq!(arrays["text"], "arrays of t-s0\narrays of t-s1\n", "{path}");
    }
    let (_, queues) = server.get("/api/queues").await;
    assert_eq!(queues["queues"][0]["last"], json!(1));
    assert_eq!(answer["state"], queues["queues"][0]);
}

#[tokio::test]
async fn a_session_says_that_it_waits_for_the_trainer() {
    let server = Fixture::start().await;
    next(&server, json!({ "after": 0, "max_ahead": 1 })).await;
    server.submit(json!({ "task_id": "a", "num_samples": 2 })).await;
    server.submit(json!({ "task_id": "b" })).await;
    assert_eq!(server.lease("n1", 1).await.len(), 1);
    let waiting = async |session: &str| {
        let (_, session) = server.get(&format!("/api/sessions/{session}")).await;
        session["waiting_for"].as_str().unwrap().to_owned()
    };
    assert!(waiting("b-s0").await.contains("1 of at most 1 groups ahead"));
    assert!(waiting("a-s1").await.contains("a node with a free slot"));
    let (_, sessions) = server.get("/api/tasks/b/sessions").await;
    assert!(sessions["sessions"][0]["waiting_for"].as_str().unwrap().contains("`max_ahead`"));
}

#[tokio::test]
async fn fewer_groups_are_given_only_when_the_wait_is_over() {
    let server = Fixture::start().await;
    server.submit(json!({ "task_id": "t" })).await;
    end(&server, &server.lease("n1", 1).await[0], 1.0).await;
    let short = json!({ "after": 0, "groups": 2, "wait_seconds": 0.01 });
    let none = next(&server, short).await;
    assert_eq!((none["batch"].is_null(), &none["state"]["ready"]), (true, &json!(1)));
    let enough = json!({ "after": 0, "groups": 2, "min_groups": 1, "wait_seconds": 0.01 });
    assert_eq!(tasks_of(&next(&server, enough).await), ["t"]);
}

#[tokio::test]
async fn what_is_wrong_with_a_request_for_a_batch_is_named() {
    let server = Fixture::start().await;
    let cases = [
        (json!({}), "after"),
        (json!({ "after": 0, "groups": 0 }), "groups"),
        (json!({ "after": 0, "groups": 2, "min_groups": 3 }), "min_groups"),
        (json!({ "after": 0, "max_staleness": 1 }), "version"),
        (json!({ "after": 0, "min_usable": 0 }), "min_usable"),
        (json!({ "after": 0, "max_ahead": 0 }), "max_ahead"),
        (json!({ "after": 0, "groups": 3, "max_ahead": 2 }), "max_ahead"),
        (json!({ "after": 0, "wait_seconds": 51 }), "wait_seconds"),
        (json!({ "after": 0, "queue": "a/b" }), "queue"),
        (json!({ "after": 0, "equal_rewards": "drop" }), "equal_rewards"),
        (json!({ "after": 0, "staleness": 1 }), "staleness"),
    ];
    for (body, field) in cases {
        let (status, answer) = server.post("/api/batches/next", &body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{body}: {answer}");
        assert_eq!(answer["error"]["problems"][0]["field"], field, "{answer}");
    }
    let (status, answer) = server.post("/api/batches/next", &json!({ "after": 3 })).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer}");
    let problem = &answer["error"]["problems"][0];
    assert_eq!((&problem["field"], &problem["example"]), (&json!("after"), &json!("0")));
    for (path, wanted) in [
        ("/api/batches/default/1", StatusCode::NOT_FOUND),
        ("/api/batches/default/one", StatusCode::UNPROCESSABLE_ENTITY),
        ("/api/batches/a%20b/1", StatusCode::UNPROCESSABLE_ENTITY),
    ] {
        let (status, answer) = json_of(server.request(Method::GET, path)).await;
        assert_eq!(status, wanted, "{path}: {answer}");
    }
    let (status, answer) = server
        .post(
            "/api/tasks",
            &json!({ "harness": "pi", "instruction": "x", "early_stop": { "usable": 2 } }),
        )
        .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
    assert_eq!(answer["error"]["problems"][0]["field"], "early_stop.usable");
}
