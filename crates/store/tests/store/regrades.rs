//! Stored work that is graded again.

use crate::samples::{
    at, failure, new_regrade, node, regrade_report, release, renewal, report, task,
};
use polar_store::{EventQuery, StoreError, TaskStore};
use polar_types::{
    Artifact, Event, EventKind, Lease, Outcome, ResultAck, SessionInfo, SessionReport,
    SessionStatus, Side, Stage, TaskStatus,
};
use serde_json::json;

on_every_store!(
    promise_5_a_regrade_makes_one_new_revision_and_one_event,
    a_regrade_that_comes_to_nothing_changes_nothing,
    promise_5_a_regrade_has_one_holder_and_is_tried_again_when_it_is_lost,
    a_task_neither_waits_for_a_regrade_nor_shows_it,
    what_is_being_regraded_is_left_at_that,
    what_has_not_ended_cannot_be_regraded,
    promise_6_cancelling_a_task_ends_its_regrades,
);

fn artifact(name: &str, sha256: &str) -> Artifact {
    Artifact { name: name.to_owned(), sha256: sha256.to_owned(), size: 1 }
}

async fn ended(store: &dyn TaskStore, samples: u32) -> Vec<SessionReport> {
    let new = task("t", json!({ "num_samples": samples, "callback": "http://trainer/x" }));
    store.submit(vec![new], at(0)).await.unwrap();
    let mut reports = Vec::new();
    for lease in store.claim(&node("n1"), samples, at(0)).await.unwrap().leases {
        let mut done = report(&lease, Outcome::TimedOut);
        done.reward = Some(0.25);
        done.artifacts = vec![artifact("trajectory.json", "old"), artifact("work.tar", "work")];
        store.complete(&done, at(1)).await.unwrap();
        reports.push(done);
    }
    reports
}

async fn session(store: &dyn TaskStore) -> SessionInfo {
    store.session(&"t-s0".parse().unwrap()).await.unwrap()
}

async fn regrade(store: &dyn TaskStore, now: i64) -> Lease {
    store.regrade(vec![new_regrade("t-s0", "new")], at(now)).await.unwrap();
    store.claim(&node("n1"), 9, at(now)).await.unwrap().leases.remove(0)
}

async fn events(store: &dyn TaskStore, kinds: &[EventKind]) -> Vec<Event> {
    let query = EventQuery { limit: 1000, kinds: kinds.to_vec(), ..EventQuery::default() };
    store.events(&query).await.unwrap().events
}

async fn promise_5_a_regrade_makes_one_new_revision_and_one_event(store: &dyn TaskStore) {
    let first = ended(store, 1).await.remove(0);
    let before = events(store, &[]).await.len();
    let lease = regrade(store, 10).await;
    // The node is told whose work it is, and by what to grade it.
    let order = lease.regrade.as_ref().unwrap();
    assert_eq!((order.session_id.as_str(), order.revision), ("t-s0", 2));
    assert_eq!(order.artifacts, first.artifacts);
    let evaluator = new_regrade("t-s0", "new").evaluator;
    assert_eq!((&order.evaluator, &lease.task.evaluator), (&evaluator, &evaluator));
    assert_eq!((lease.session_id.as_str(), &lease.task.callback), ("t-s0.r2", &None));
    let mut done = regrade_report(&lease, Some(1.0));
    done.artifacts = vec![artifact("trajectory.json", "new")];
    assert_eq!(store.complete(&done, at(12)).await.unwrap(), ResultAck::Accepted);
    assert_eq!(store.complete(&done, at(13)).await.unwrap(), ResultAck::Repeated);

    let now = session(store).await;
    assert_eq!((now.reward, now.revision, now.status), (Some(1.0), 2, SessionStatus::TimedOut));
    let rewards: Vec<_> = now.gradings.iter().map(|g| (g.revision, g.reward)).collect();
    assert_eq!(rewards, [(1, Some(0.25)), (2, Some(1.0))]);
    let report = now.report().unwrap();
    assert_eq!((report.reward, report.calls), (Some(1.0), first.calls));
    let names: Vec<_> = report.artifacts.iter().map(|a| a.sha256.as_str()).collect();
    assert_eq!(names, ["new", "work"]);
    assert_eq!(now.regrade.unwrap().status, SessionStatus::Completed);
    assert_eq!(store.task(&"t".parse().unwrap()).await.unwrap().mean_reward, Some(1.0));

    let told = events(store, &[]).await.split_off(before);
    let [event] = &told[..] else { panic!("{told:?}") };
    assert_eq!(event.kind, EventKind::SessionRegraded);
    assert_eq!(event.session_id.as_ref().unwrap().as_str(), "t-s0");
    assert_eq!((&event.data["revision"], &event.data["reward"]), (&json!(2), &json!(1.0)));
    assert_eq!(event.data["previous_reward"], json!(0.25));
    // And whoever asked to be called is, beside the call of the session's end.
    let due = store.due_callbacks(at(20), 9).await.unwrap();
    let ids: Vec<_> = due.iter().map(|due| due.callback_id.as_str()).collect();
    assert_eq!(ids, ["t-s0:session.ended", "t:task.ended", "t-s0.r2:session.regraded"]);

    // The next one has a number of its own.
    let lease = regrade(store, 30).await;
    assert_eq!(lease.regrade.as_ref().unwrap().revision, 3);
    store.complete(&regrade_report(&lease, Some(0.5)), at(31)).await.unwrap();
    let revisions: Vec<_> = session(store).await.gradings.iter().map(|g| g.revision).collect();
    assert_eq!(revisions, [1, 2, 3]);
}

async fn promise_6_cancelling_a_task_ends_its_regrades(store: &dyn TaskStore) {
    ended(store, 2).await;
    let id = "t".parse().unwrap();
    let before = session(store).await;
    let lease = regrade(store, 10).await;
    store.regrade(vec![new_regrade("t-s1", "new")], at(11)).await.unwrap();
    let told = store.cancel(&id, at(12)).await.unwrap();
    assert_eq!(told.status, TaskStatus::Completed, "it has ended as it did");
    // One that waits ends at once, the node of the other is told.
    let waited = store.session(&"t-s1".parse().unwrap()).await.unwrap().regrade.unwrap();
    assert_eq!(waited.status, SessionStatus::Cancelled);
    assert_eq!(waited.error.as_deref(), Some("it was cancelled"));
    let answer = store.renew(&renewal(&node("n1"), &[&lease], Stage::Grade), at(13)).await.unwrap();
    assert_eq!(answer.cancelled, std::slice::from_ref(&lease.session_id));
    let mut done = regrade_report(&lease, None);
    done.outcome = Outcome::Cancelled;
    store.complete(&done, at(14)).await.unwrap();
    let now = session(store).await;
    assert_eq!(now.regrade.as_ref().unwrap().status, SessionStatus::Cancelled);
    assert_eq!((now.reward, now.revision), (before.reward, 1));
    assert_eq!(events(store, &[EventKind::SessionRegradeFailed]).await.len(), 2);
    assert!(store.claim(&node("n1"), 9, at(15)).await.unwrap().leases.is_empty());
    // What is asked for later is done.
    let lease = regrade(store, 20).await;
    store.complete(&regrade_report(&lease, Some(1.0)), at(21)).await.unwrap();
    assert_eq!(session(store).await.reward, Some(1.0));
}

async fn a_regrade_that_comes_to_nothing_changes_nothing(store: &dyn TaskStore) {
    ended(store, 1).await;
    let before = session(store).await;
    let same = |now: &SessionInfo| {
        let now = SessionInfo { regrade: None, ..now.clone() };
        assert_eq!(now, before);
    };
    // No reward; an evaluator that cannot run; a node that knows nothing of grading.
    let no_number = |lease: &Lease| SessionReport {
        grade_error: Some("no number".to_owned()),
        ..regrade_report(lease, None)
    };
    let broken = |lease: &Lease| SessionReport {
        outcome: failure(Side::Grader),
        ..regrade_report(lease, None)
    };
    let reports: [&dyn Fn(&Lease) -> SessionReport; 2] = [&no_number, &broken];
    for (report, why) in reports.into_iter().zip(["no number", "it broke"]) {
        let lease = regrade(store, 10).await;
        store.complete(&report(&lease), at(11)).await.unwrap();
        let now = session(store).await;
        same(&now);
        let told = now.regrade.unwrap();
        assert_eq!((told.status, told.error.as_deref()), (SessionStatus::Failed, Some(why)));
    }
    let lease = regrade(store, 10).await;
    let ran = report(&lease, Outcome::Completed);
    store.complete(&ran, at(11)).await.unwrap();
    same(&session(store).await);
    let failed = events(store, &[EventKind::SessionRegradeFailed]).await;
    assert_eq!((failed.len(), &failed[0].data["error"]), (2, &json!("no number")));
    assert_eq!(events(store, &[EventKind::SessionRegraded]).await, []);
}

async fn promise_5_a_regrade_has_one_holder_and_is_tried_again_when_it_is_lost(
    store: &dyn TaskStore,
) {
    ended(store, 1).await;
    let old = regrade(store, 10).await;
    let expired = store.expire(at(100)).await.unwrap();
    assert_eq!(expired.requeued, std::slice::from_ref(&old.session_id));
    let new = store.claim(&node("n2"), 1, at(100)).await.unwrap().leases.remove(0);
    assert_eq!((new.attempt, &new.regrade), (2, &old.regrade));
    let late = regrade_report(&old, Some(0.0));
    assert_eq!(store.complete(&late, at(101)).await.unwrap(), ResultAck::Stale);
    store.release(&release(&node("n2"), &new), at(102)).await.unwrap();
    let last = store.claim(&node("n1"), 1, at(103)).await.unwrap().leases.remove(0);
    store.complete(&regrade_report(&last, Some(1.0)), at(104)).await.unwrap();
    assert_eq!(session(store).await.reward, Some(1.0));
    // Nothing of that is told as a session's.
    let told = events(store, &[EventKind::SessionStatus]).await;
    assert!(told.iter().all(|event| event.session_id.as_ref().unwrap().as_str() == "t-s0"));
}

async fn a_task_neither_waits_for_a_regrade_nor_shows_it(store: &dyn TaskStore) {
    ended(store, 2).await;
    let id = "t".parse().unwrap();
    let lease = regrade(store, 10).await;
    let task = store.task(&id).await.unwrap();
    assert_eq!(task.status, TaskStatus::Completed);
    assert_eq!(task.sessions.into_iter().collect::<Vec<_>>(), [("timed_out".to_owned(), 2)]);
    let sessions = store.sessions(&id).await.unwrap();
    assert_eq!(sessions.len(), 2);
    let waits = sessions[0].regrade.as_ref().unwrap();
    assert_eq!((waits.status, waits.revision), (SessionStatus::Preparing, 2));
    assert!(sessions[1].regrade.is_none());
    assert!(matches!(store.session(&lease.session_id).await, Err(StoreError::NotFound { .. })));
    // No cancel ends it: the task has ended already.
    store.cancel(&id, at(11)).await.unwrap();
    store.complete(&regrade_report(&lease, Some(1.0)), at(12)).await.unwrap();
    assert_eq!(session(store).await.revision, 2);
    assert_eq!(events(store, &[EventKind::TaskEnded]).await.len(), 1);
}

async fn what_is_being_regraded_is_left_at_that(store: &dyn TaskStore) {
    ended(store, 1).await;
    let again = vec![new_regrade("t-s0", "new")];
    let first = store.regrade(again.clone(), at(10)).await.unwrap();
    assert_eq!(store.regrade(again.clone(), at(11)).await.unwrap(), first);
    let other = store.regrade(vec![new_regrade("t-s0", "other")], at(11)).await;
    assert!(matches!(other, Err(StoreError::Conflict(_))), "{other:?}");
    assert_eq!(store.claim(&node("n1"), 9, at(12)).await.unwrap().leases.len(), 1);
}

async fn what_has_not_ended_cannot_be_regraded(store: &dyn TaskStore) {
    ended(store, 1).await;
    store.submit(vec![task("u", json!({}))], at(5)).await.unwrap();
    let both = vec![new_regrade("t-s0", "new"), new_regrade("u-s0", "new")];
    let refused = store.regrade(both, at(6)).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    // All or none.
    assert_eq!(session(store).await.regrade, None);
    let unknown = store.regrade(vec![new_regrade("x-s0", "new")], at(6)).await;
    assert!(matches!(unknown, Err(StoreError::NotFound { .. })), "{unknown:?}");
}
