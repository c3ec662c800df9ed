//! One holder at a time, over expiry, restarts and cancellation.

use crate::support::{DEADLINE, Fixture, node_info, report_of};
use polar_store::Limits;
use polar_types::{Lease, LeaseRequest, Outcome, RenewItem, RenewRequest, Stage};
use reqwest::StatusCode;
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn promise_5_an_expired_lease_is_handed_out_anew_and_the_old_result_refused() {
    let server = Fixture::start().await;
    server.submit(json!({ "task_id": "t" })).await;
    let old = server.lease("n1", 1).await.remove(0);
    server.clock.advance(server.limits.lease_ttl);
    server.until("/api/sessions/t-s0", |session| session["status"] == "queued").await;

    let new = server.lease("n2", 1).await.remove(0);
    assert_eq!(new.session_id, old.session_id);
    assert!(new.epoch > old.epoch);
    assert_eq!(new.attempt, 2);

    let stale = server.report(&report_of(&old, "n1", Outcome::Completed)).await;
    assert_eq!(stale, json!("stale"));
    let (_, session) = server.get("/api/sessions/t-s0").await;
    assert_eq!(session["status"], "preparing");
    assert_eq!(session["attempts"][0]["lost"], "lease_expired");
    assert_eq!(session["attempts"][0]["report"]["outcome"]["type"], "completed");

    let accepted = server.report(&report_of(&new, "n2", Outcome::Completed)).await;
    assert_eq!(accepted, json!("accepted"));
    let (_, page) = server.get("/api/events?kinds=session.ended").await;
    assert_eq!(page["events"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_restart_of_the_server_costs_no_node_its_sessions() {
    let mut server = Fixture::start().await;
    server.submit(json!({ "task_id": "t" })).await;
    let lease = server.lease("n1", 1).await.remove(0);
    server.down().await;
    // Longer than the lease lives, and than its node may hold the session.
    server.clock.advance(server.limits.lease_ttl + longest_hold(&lease, &server.limits));
    server.up().await;
    let renewal = RenewRequest {
        node: node_info("n1", "boot-1"),
        items: vec![RenewItem {
            session_id: lease.session_id.clone(),
            epoch: lease.epoch,
            stage: Stage::Run,
            waiting_for: None,
        }],
    };
    let (status, answer) = server.post("/api/nodes/n1/renew", &renewal).await;
    assert_eq!((status, answer), (StatusCode::OK, json!({ "lost": [], "cancelled": [] })));
    assert_eq!(server.report(&report_of(&lease, "n1", Outcome::Completed)).await, "accepted");
}

#[tokio::test]
async fn cancelling_ends_queued_sessions_and_asks_nodes_for_the_others() {
    let server = Fixture::start().await;
    server.submit(json!({ "task_id": "t", "num_samples": 2 })).await;
    let lease = server.lease("n1", 1).await.remove(0);
    let (_, task) = server.delete("/api/tasks/t").await;
    assert_eq!(task["sessions"], json!({ "cancelled": 1, "preparing": 1 }));
    let renewal = json!({
        "node": node_info("n1", "boot-1"),
        "items": [{ "session_id": lease.session_id, "epoch": lease.epoch, "stage": "prepare" }],
    });
    let (_, answer) = server.post("/api/nodes/n1/renew", &renewal).await;
    assert_eq!(answer["cancelled"], json!([lease.session_id]));
    server.report(&report_of(&lease, "n1", Outcome::Cancelled)).await;
    let (_, task) = server.get("/api/tasks/t").await;
    assert_eq!(task["status"], "cancelled");
}

#[tokio::test]
async fn a_node_is_told_at_once_that_something_it_may_hold_is_cancelled() {
    let server = Fixture::start().await;
    server.submit(json!({ "task_id": "held" })).await;
    server.submit(json!({ "task_id": "queued" })).await;
    server.lease("n1", 1).await;
    let path = "/api/nodes/n1/cancels";
    let (_, before) = server.post(path, &json!({ "wait_seconds": 50.0 })).await;
    // Nothing of it is on a node.
    server.delete("/api/tasks/queued").await;
    let (_, same) = server.post(path, &json!({ "known": before["count"] })).await;
    assert_eq!(same, before);

    let watched = json!({ "known": before["count"], "wait_seconds": 50.0 });
    let ((_, after), _) =
        tokio::join!(server.post(path, &watched), server.delete("/api/tasks/held"));
    assert_ne!(after, before);
}

#[tokio::test]
async fn a_node_that_never_ends_a_cancelled_session_loses_it() {
    let server = Fixture::start_with(|config| {
        // Its node goes on renewing the lease.
        config.limits.lease_ttl = config.limits.cancel_grace * 2;
    })
    .await;
    server.submit(json!({ "task_id": "t" })).await;
    server.lease("n1", 1).await;
    server.delete("/api/tasks/t").await;
    server.clock.advance(server.limits.cancel_grace);
    let task = server.until("/api/tasks/t", |task| task["status"] != "running").await;
    assert_eq!(task["status"], "cancelled");
}

#[tokio::test]
async fn a_request_for_work_is_held_open_until_there_is_some() {
    let server = Fixture::start().await;
    let ask = LeaseRequest { node: node_info("n1", "boot-1"), free: 4, wait_seconds: 40.0 };
    let asked = server.post("/api/nodes/n1/lease", &ask);
    let submitted = async {
        // Only once the node is known is its request being held.
        server.until("/api/nodes", |list| list["nodes"][0]["alive"] == true).await;
        server.submit(json!({ "num_samples": 3 })).await
    };
    let ((_, answer), _) =
        tokio::time::timeout(DEADLINE, async { tokio::join!(asked, submitted) }).await.unwrap();
    assert_eq!(answer["leases"].as_array().unwrap().len(), 3);
    assert_eq!(answer["ttl_seconds"], json!(server.limits.lease_ttl.as_secs_f64()));
}

fn longest_hold(lease: &Lease, limits: &Limits) -> Duration {
    let budgets = &lease.task.budgets;
    let working = budgets.prepare_seconds + budgets.run_seconds + budgets.grade_seconds;
    Duration::from_secs_f64(working) + limits.overdue_slack
}
