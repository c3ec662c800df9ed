//! What can be asked of stored work, and what not.

use crate::support::{Fixture, report_of, shell_task};
use polar_types::{EndReason, ErrorClass, Outcome, SessionReport, Side};
use reqwest::StatusCode;
use serde_json::{Value, json};

/// A task with a session that can be graded again, one whose work was not kept, one that was lost
/// and one that has not ended.
async fn task(fixture: &Fixture, fields: Value) {
    let mut task = shell_task(json!({
        "task_id": "t", "num_samples": 4, "max_attempts": 1,
        "evaluator": {"type": "command", "command": "true"},
    }));
    task.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    fixture.submit(task).await;
    let leases = fixture.lease("n1", 3).await;
    let mut kept = report_of(&leases[0], "n1", Outcome::Completed);
    for name in ["trajectory.json", "work.tar"] {
        kept.artifacts.push(fixture.upload(name, name).await);
    }
    let unkept = report_of(&leases[1], "n1", Outcome::Completed);
    let lost = Outcome::Failed {
        side: Side::Sandbox,
        class: ErrorClass::Unavailable,
        message: "gone".to_owned(),
    };
    let lost = report_of(&leases[2], "n1", lost);
    for report in [kept, unkept, lost] {
        fixture.report(&report).await;
    }
}

#[tokio::test]
async fn what_can_be_graded_again_is_and_the_rest_says_why_not() {
    let fixture = Fixture::start().await;
    task(&fixture, json!({})).await;
    let (status, answer) = fixture.post("/api/tasks/t/regrade", &json!({})).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(answer["regrades"].as_array().unwrap().len(), 1);
    assert_eq!(answer["regrades"][0]["session_id"], "t-s0");
    let why: Vec<_> = answer["skipped"].as_array().unwrap().iter().map(|s| &s["reason"]).collect();
    for (why, words) in why.iter().zip(["work was not kept", "sandbox_loss", "not ended"]) {
        assert!(why.as_str().unwrap().contains(words), "{why}");
    }
    // Asked again it is the same order, by another evaluator a conflict.
    let (status, again) = fixture.post("/api/tasks/t/regrade", &json!({})).await;
    assert_eq!((status, &again), (StatusCode::OK, &answer));
    let other = json!({"evaluator": {"type": "command", "command": "false"}});
    let (status, answer) = fixture.post("/api/tasks/t/regrade", &other).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer}");

    let leases = fixture.lease("n1", 9).await;
    let lease = leases.iter().find(|lease| lease.regrade.is_some()).unwrap();
    let (_, session) = fixture.get("/api/sessions/t-s0").await;
    assert_eq!(session["regrade"]["status"], "preparing");
    let report = SessionReport {
        regrade_of: Some("t-s0".parse().unwrap()),
        reward: Some(0.5),
        reason: Some(EndReason::Completed),
        ..report_of(lease, "n1", Outcome::Completed)
    };
    fixture.report(&report).await;
    let (_, session) = fixture.get("/api/sessions/t-s0").await;
    assert_eq!((&session["reward"], &session["revision"]), (&json!(0.5), &json!(2)));
    assert_eq!(session["gradings"][0]["reward"], 1.0);
    let (_, page) = fixture.get("/api/events?kinds=session.regraded").await;
    assert_eq!(page["events"].as_array().unwrap().len(), 1);
    assert_eq!(page["events"][0]["data"]["reward"], 0.5);
}

#[tokio::test]
async fn every_field_of_an_order_that_cannot_be_is_named() {
    let fixture = Fixture::start().await;
    task(&fixture, json!({"grading": {"sandbox": "session"}})).await;
    let good = json!({"type": "command", "command": "true"});
    for (request, field, words) in [
        (json!({}), "evaluator", "the agent's own sandbox, which is gone"),
        (json!({"evaluator": "none"}), "evaluator", "gives no reward"),
        (json!({"evaluator": {"type": "harbor"}}), "runtime.type", "no /tests"),
        (json!({"evaluator": {"type": "command", "command": ""}}), "evaluator.command", "must be"),
        (json!({"evaluators": []}), "evaluators", "did you mean `evaluator`"),
        (json!({"evaluator": good, "sessions": ["x"]}), "sessions[0]", "no session of this task"),
        (json!({"evaluator": good, "sessions": ["t-s0", "t-s1"]}), "sessions[1]", "not kept"),
        (json!({"evaluator": good, "sessions": []}), "sessions", "names none"),
    ] {
        let (status, answer) = fixture.post("/api/tasks/t/regrade", &request).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{request}: {answer}");
        let problem = &answer["error"]["problems"][0];
        assert_eq!(problem["field"], field, "{answer}");
        assert!(problem["problem"].as_str().unwrap().contains(words), "{answer}");
    }
    let (status, _) = fixture.post("/api/tasks/none/regrade", &json!({})).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    // An evaluator that needs the work folder alone is another matter, and one that runs nowhere.
    let (status, answer) = fixture.post("/api/tasks/t/regrade", &json!({"evaluator": good})).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
}
