//! What Prometheus is told.

use crate::support::{Fixture, node_info, report_of};
use polar_types::{
    EndReason, ErrorClass, NodeTrouble, Outcome, RenewItem, RenewRequest, Side, Stage, TroubleKind,
};
use reqwest::{Method, StatusCode};
use serde_json::json;

async fn page(fixture: &Fixture) -> String {
    let answer = fixture.request(Method::GET, "/metrics").send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    answer.text().await.unwrap()
}

/// The value of a sample; none where there is no such sample.
fn value(page: &str, sample: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.map(|number| number.parse().unwrap())
}

#[tokio::test]
async fn sessions_are_counted_by_how_they_end_and_by_what_they_wait_for() {
    let mut fixture = Fixture::start().await;
    fixture.submit(json!({"task_id": "secret-name", "num_samples": 6})).await;
    let (_, session) = fixture.get("/api/sessions/secret-name-s0").await;
    let waits = session["waiting_for"].as_str().unwrap();
    assert!(waits.ends_with("; no node is running"), "{waits}");
    let leases = fixture.lease("n1", 4).await;
    let mut done = report_of(&leases[0], "n1", Outcome::Completed);
    done.times.run_seconds = 7.0;
    fixture.report(&done).await;
    // A repeat counts nothing.
    fixture.report(&done).await;
    let failed = |side, class| Outcome::Failed { side, class, message: "no".to_owned() };
    fixture.report(&report_of(&leases[1], "n1", failed(Side::Harness, ErrorClass::NotFound))).await;
    fixture
        .report(&report_of(&leases[2], "n1", failed(Side::Engine, ErrorClass::Unavailable)))
        .await;
    let trouble = NodeTrouble {
        kind: TroubleKind::Engine,
        message: "gone".to_owned(),
        since: "2026-01-02T03:04:05Z".to_owned(),
        waiting: 1,
    };
    let mut node = node_info("n1", "boot-1");
    node.troubles.push(trouble);
    node.engine_errors = 5;
    let item = RenewItem {
        session_id: leases[3].session_id.clone(),
        epoch: leases[3].epoch,
        stage: Stage::Ready,
        waiting_for: None,
    };
    fixture.post("/api/nodes/n1/renew", &RenewRequest { node, items: vec![item] }).await;

    // Whoever looks at a session is told as much.
    let (_, sessions) = fixture.get("/api/tasks/secret-name/sessions").await;
    let waits = sessions["sessions"][5]["waiting_for"].as_str().unwrap();
    let why = "no node takes sessions now (n1: engine unreachable since 2026-01-02T03:04:05Z, \
               1 session waits: gone)";
    assert!(waits.starts_with("a node") && waits.ends_with(why), "{waits}");
    let (_, session) = fixture.get("/api/sessions/secret-name-s5").await;
    assert_eq!(session["waiting_for"], waits);
    let (_, session) = fixture.get("/api/sessions/secret-name-s3").await;
    assert_eq!(session["waiting_for"], json!(null), "it is no longer queued");

    let told = page(&fixture).await;
    for (sample, expected) in [
        ("polar_sessions_ended_total{reason=\"completed\"}", 1.0),
        ("polar_sessions_ended_total{reason=\"failed_to_start\"}", 1.0),
        ("polar_sessions_ended_total{reason=\"engine_loss\"}", 0.0),
        ("polar_attempts_total{reason=\"engine_loss\"}", 1.0),
        ("polar_sessions_requeued_total", 1.0),
        ("polar_sessions{status=\"queued\"}", 3.0),
        ("polar_sessions{status=\"ready\"}", 1.0),
        ("polar_sessions_waiting{for=\"node\"}", 2.0),
        ("polar_sessions_waiting{for=\"pause_before_retry\"}", 1.0),
        ("polar_sessions_waiting{for=\"engine\"}", 1.0),
        ("polar_stage_seconds_bucket{stage=\"run\",le=\"5\"}", 0.0),
        ("polar_stage_seconds_bucket{stage=\"run\",le=\"10\"}", 1.0),
        ("polar_node_up{node=\"n1\"}", 1.0),
        ("polar_node_trouble{node=\"n1\",kind=\"engine\"}", 1.0),
        ("polar_node_trouble{node=\"n1\",kind=\"disk\"}", 0.0),
        ("polar_node_engine_errors_total{node=\"n1\"}", 5.0),
    ] {
        assert_eq!(value(&told, sample), Some(expected), "{sample} in\n{told}");
    }
    for reason in EndReason::ALL {
        let sample = format!("polar_sessions_ended_total{{reason=\"{}\"}}", reason.as_str());
        assert!(value(&told, &sample).is_some(), "{sample}");
    }
    assert!(!told.contains("secret-name"), "labels without bounds");
    // Nothing is counted twice, and counters begin with the process.
    let ended = "polar_sessions_ended_total{reason=\"completed\"}";
    assert_eq!(value(&page(&fixture).await, ended), Some(1.0));
    fixture.down().await;
    fixture.up().await;
    let told = page(&fixture).await;
    assert_eq!(value(&told, ended), Some(0.0));
    assert_eq!(value(&told, "polar_sessions{status=\"queued\"}"), Some(3.0));
}

#[tokio::test]
async fn promise_9_metrics_need_the_control_token() {
    let fixture = Fixture::start_with(|config| config.control_token = Some("t".to_owned())).await;
    let ask = |token: &str| fixture.request(Method::GET, "/metrics").bearer_auth(token).send();
    assert_eq!(ask("x").await.unwrap().status(), StatusCode::UNAUTHORIZED);
    assert_eq!(ask("t").await.unwrap().status(), StatusCode::OK);
}
