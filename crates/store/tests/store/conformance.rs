//! What every store does, told once and run against each.

use crate::samples::{
    LIMITS, LONGEST_HOLD, at, failure, node, node_with, release, renewal, report, task,
};
use polar_store::{CallbackResult, EventQuery, Expired, Live, StoreError, TaskQuery, TaskStore};
use polar_types::{
    CallbackStatus, EndReason, ErrorClass, EventKind, Lease, NodeInfo, Outcome, ReleaseRequest,
    ResultAck, SessionStatus, Side, Stage, TaskStatus,
};
use serde_json::json;
use std::collections::BTreeMap;

on_every_store!(
    submitting_again_returns_what_is_stored,
    a_batch_is_stored_whole_or_not_at_all,
    work_is_handed_out_by_priority_then_share_then_age_and_by_runtime,
    tasks_of_one_priority_share_places_by_weight,
    a_task_keeps_its_share_whatever_comes_after_it,
    promise_5_a_session_has_one_holder,
    promise_5_a_result_is_accepted_once,
    failures_of_the_infrastructure_are_tried_again_and_others_are_not,
    attempts_lost_to_the_engine_are_spent_of_a_budget_of_their_own,
    a_failed_attempt_is_tried_again_after_ever_longer_pauses,
    promise_6_every_lost_session_ends_after_its_last_attempt,
    promise_6_a_session_that_no_node_takes_ends,
    promise_6_a_session_held_for_too_long_is_taken_away,
    waiting_for_a_place_on_the_node_takes_nothing_of_the_budgets,
    promise_6_a_session_that_waits_on_its_node_for_ever_is_taken_away,
    the_time_the_server_was_away_takes_nothing_of_the_budgets,
    promise_6_a_cancelled_session_gets_no_more_time_by_waiting,
    a_release_spends_no_attempt_but_not_for_ever,
    what_failed_where_it_is_given_back_pauses_before_it_is_tried_again,
    cancelling_ends_what_is_queued_and_asks_for_the_rest,
    a_cancelled_session_is_not_tried_again,
    a_node_that_restarts_loses_what_it_held,
    a_second_node_of_the_same_name_is_refused_while_the_first_is_heard_of,
    nodes_that_keep_no_instance_id_are_told_apart_by_their_boot_id,
    events_have_no_gaps_and_a_filter_moves_the_cursor,
    sessions_that_have_not_ended_are_counted_by_where_they_stand,
    callbacks_stay_until_they_are_settled,
    tasks_are_listed_newest_first_in_pages,
    long_ids_that_collide_are_refused,
    what_is_not_there_is_said_so,
);

async fn submitting_again_returns_what_is_stored(store: &dyn TaskStore) {
    let first = store.submit(vec![task("t", json!({}))], at(0)).await.unwrap().remove(0);
    assert!(first.created);
    let again = store.submit(vec![task("t", json!({}))], at(9)).await.unwrap().remove(0);
    assert!(!again.created);
    assert_eq!(again.task, first.task);
    let other = store.submit(vec![task("t", json!({ "num_samples": 2 }))], at(9)).await;
    assert!(matches!(other, Err(StoreError::Conflict(_))), "{other:?}");
    let told = other.unwrap_err().to_string();
    assert!(told.contains("num_samples differs"), "{told}");
    let runtime = json!({ "runtime": { "type": "local", "env": { "A": "1" } } });
    let other = store.submit(vec![task("t", runtime)], at(9)).await.unwrap_err().to_string();
    assert!(other.contains("runtime.env.A differs"), "{other}");
    assert_eq!(store.task(&"t".parse().unwrap()).await.unwrap(), first.task);
}

async fn a_batch_is_stored_whole_or_not_at_all(store: &dyn TaskStore) {
    store.submit(vec![task("b", json!({}))], at(0)).await.unwrap();
    let batch = vec![
        task("a", json!({ "num_samples": 3 })),
        task("b", json!({ "priority": 1 })),
        task("c", json!({})),
    ];
    assert!(matches!(store.submit(batch, at(1)).await, Err(StoreError::Conflict(_))));
    let page = store.tasks(&TaskQuery::default()).await.unwrap();
    assert_eq!(page.tasks.len(), 1);
    assert!(store.session(&"a-s0".parse().unwrap()).await.is_err());
    assert_eq!(store.events(&all_events()).await.unwrap().cursor, 1);

    let batch = vec![task("a", json!({})), task("b", json!({})), task("a", json!({}))];
    let stored = store.submit(batch, at(1)).await.unwrap();
    assert_eq!(stored.iter().map(|s| s.created).collect::<Vec<_>>(), [true, false, false]);
}

async fn work_is_handed_out_by_priority_then_share_then_age_and_by_runtime(store: &dyn TaskStore) {
    let docker = json!({ "runtime": "docker", "priority": 9 });
    let tasks = vec![
        task("old", json!({ "num_samples": 2 })),
        task("new", json!({})),
        task("urgent", json!({ "priority": 5 })),
        task("boxed", docker),
        task("later", json!({ "priority": -1 })),
    ];
    store.submit(tasks, at(0)).await.unwrap();
    let local = node_with("n1", "boot-1", &["local"]);
    let leases = store.claim(&local, 4, at(1)).await.unwrap().leases;
    let ids: Vec<_> = leases.iter().map(|lease| lease.session_id.to_string()).collect();
    assert_eq!(ids, ["urgent-s0", "old-s0", "new-s0", "old-s1"]);
    let docker = node_with("n2", "boot-1", &["docker"]);
    let leases = store.claim(&docker, 4, at(1)).await.unwrap().leases;
    assert_eq!(leases.len(), 1);
    assert_eq!(leases[0].session_id.as_str(), "boxed-s0");
    assert_eq!(store.claim(&local, 4, at(1)).await.unwrap().leases.len(), 1);
    assert!(
        store.claim(&node_with("n3", "boot-1", &[]), 4, at(1)).await.unwrap().leases.is_empty()
    );
}

/// How many of each task are leased, after so many leases.
fn tally<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> BTreeMap<String, u32> {
    let mut tally = BTreeMap::new();
    for lease in leases {
        *tally.entry(lease.task.task_id.to_string()).or_default() += 1;
    }
    tally
}

fn counts(pairs: &[(&str, u32)]) -> BTreeMap<String, u32> {
    pairs.iter().map(|(task, count)| ((*task).to_owned(), *count)).collect()
}

async fn tasks_of_one_priority_share_places_by_weight(store: &dyn TaskStore) {
    let tasks = vec![
        task("a", json!({ "num_samples": 40 })),
        task("b", json!({ "num_samples": 40, "weight": 3 })),
        task("c", json!({ "num_samples": 2 })),
        task("low", json!({ "num_samples": 9, "priority": -1, "weight": 100 })),
    ];
    store.submit(tasks, at(0)).await.unwrap();
    // Whether they are asked for one by one or together.
    let mut leases = store.claim(&node("n1"), 7, at(1)).await.unwrap().leases;
    for _ in 0..8 {
        leases.extend(store.claim(&node("n2"), 1, at(1)).await.unwrap().leases);
    }
    assert_eq!(tally(&leases), counts(&[("a", 4), ("b", 9), ("c", 2)]));
    // A place that one leaves goes to whoever has least of its share.
    for (index, lease) in leases.iter().filter(|l| l.task.task_id.as_str() == "b").enumerate() {
        if index < 6 {
            store.complete(&report(lease, Outcome::Completed), at(2)).await.unwrap();
        }
    }
    let next = store.claim(&node("n1"), 6, at(3)).await.unwrap().leases;
    assert_eq!(tally(&next), counts(&[("b", 6)]));
    // One that fails and pauses has no place, and is due again after its pause.
    for lease in next.iter().filter(|l| l.task.task_id.as_str() == "b") {
        store.complete(&report(lease, failure(Side::Sandbox)), at(4)).await.unwrap();
    }
    let rest = store.claim(&node("n1"), 100, at(5)).await.unwrap().leases;
    assert_eq!(tally(&rest)["low"], 9, "the queue is empty but for what pauses");
    assert_eq!(tally(&rest)["b"], 40 - 9 - 6);
    let due = store.claim(&node("n1"), 100, at(9)).await.unwrap().leases;
    assert_eq!(tally(&due), counts(&[("b", 6)]));
}

/// However many tasks come after it, one that waits has a place as soon as it has none.
async fn a_task_keeps_its_share_whatever_comes_after_it(store: &dyn TaskStore) {
    store.submit(vec![task("old", json!({ "num_samples": 5 }))], at(0)).await.unwrap();
    let mut of_old = 0;
    for round in 0..10 {
        let flood = (0..3).map(|i| task(&format!("new-{round}-{i}"), json!({}))).collect();
        store.submit(flood, at(round)).await.unwrap();
        let lease = store.claim(&node("n1"), 1, at(round)).await.unwrap().leases.remove(0);
        of_old += u32::from(lease.task.task_id.as_str() == "old");
        store.complete(&report(&lease, Outcome::Completed), at(round)).await.unwrap();
    }
    assert_eq!(of_old, 5);
}

async fn sessions_that_have_not_ended_are_counted_by_where_they_stand(store: &dyn TaskStore) {
    assert_eq!(store.live().await.unwrap(), Live::default());
    store.submit(vec![task("t", json!({ "num_samples": 6 }))], at(0)).await.unwrap();
    let leases = store.claim(&node("n1"), 4, at(0)).await.unwrap().leases;
    store.renew(&renewal(&node("n1"), &[&leases[0]], Stage::Run), at(1)).await.unwrap();
    store.complete(&report(&leases[1], failure(Side::Sandbox)), at(1)).await.unwrap();
    store.complete(&report(&leases[2], Outcome::Completed), at(1)).await.unwrap();
    let live = store.live().await.unwrap();
    let by_status =
        [(SessionStatus::Queued, 3), (SessionStatus::Preparing, 1), (SessionStatus::Running, 1)];
    assert_eq!(live, Live { by_status: BTreeMap::from(by_status), paused: 1 });
}

async fn promise_5_a_session_has_one_holder(store: &dyn TaskStore) {
    store.submit(vec![task("t", json!({}))], at(0)).await.unwrap();
    let old = store.claim(&node("n1"), 9, at(0)).await.unwrap().leases.remove(0);
    assert!(store.claim(&node("n2"), 9, at(0)).await.unwrap().leases.is_empty());
    let held = std::slice::from_ref(&old.session_id);
    // Renewed in time, it stays; a moment too late, it is gone.
    let renew = renewal(&node("n1"), &[&old], Stage::Run);
    assert!(store.renew(&renew, at(59)).await.unwrap().lost.is_empty());
    assert!(store.expire(at(118)).await.unwrap().requeued.is_empty());
    assert_eq!(store.expire(at(119)).await.unwrap().requeued, held);
    assert_eq!(store.renew(&renew, at(119)).await.unwrap().lost, held);
    // Even before anybody else has it.
    let late = report(&old, Outcome::Completed);
    assert_eq!(store.complete(&late, at(119)).await.unwrap(), ResultAck::Stale);

    let new = store.claim(&node("n2"), 9, at(120)).await.unwrap().leases.remove(0);
    assert!(new.epoch > old.epoch);
    assert_eq!(store.complete(&late, at(121)).await.unwrap(), ResultAck::Stale);
    assert_eq!(store.release(&release(&node("n1"), &old), at(121)).await.unwrap(), []);
    assert_eq!(store.renew(&renew, at(121)).await.unwrap().lost, held);
    let session = store.session(&old.session_id).await.unwrap();
    assert_eq!(session.status, SessionStatus::Preparing);
    assert_eq!(session.attempts[0].lost.as_deref(), Some("lease_expired"));
    assert!(session.attempts[0].report.is_some(), "the late report is kept to look at");
    assert!(session.report().is_none(), "and is not the session's");
}

async fn promise_5_a_result_is_accepted_once(store: &dyn TaskStore) {
    let told =
        json!({ "num_samples": 2, "callback": { "url": "http://trainer/x", "secret": "s" } });
    store.submit(vec![task("t", told)], at(0)).await.unwrap();
    let leases = store.claim(&node("n1"), 9, at(1)).await.unwrap().leases;
    assert!(leases[0].task.callback.is_none(), "a node never sees the client's secret");
    let done = report(&leases[0], Outcome::Completed);
    assert_eq!(store.complete(&done, at(2)).await.unwrap(), ResultAck::Accepted);
    assert_eq!(store.complete(&done, at(3)).await.unwrap(), ResultAck::Repeated);
    let mut other = report(&leases[0], failure(Side::Harness));
    other.reward = None;
    assert_eq!(store.complete(&other, at(3)).await.unwrap(), ResultAck::Repeated);
    let session = store.session(&leases[0].session_id).await.unwrap();
    assert_eq!((session.status, session.reward), (SessionStatus::Completed, Some(1.0)));
    assert_eq!(session.report(), Some(&done));

    let timed_out = report(&leases[1], Outcome::TimedOut);
    assert_eq!(store.complete(&timed_out, at(4)).await.unwrap(), ResultAck::Accepted);
    let task = store.task(&"t".parse().unwrap()).await.unwrap();
    assert_eq!((task.status, task.mean_reward), (TaskStatus::Completed, Some(1.0)));
    let ends =
        EventQuery { kinds: vec![EventKind::SessionEnded, EventKind::TaskEnded], ..all_events() };
    let ends = store.events(&ends).await.unwrap().events;
    assert_eq!(ends.iter().filter(|e| e.kind == EventKind::SessionEnded).count(), 2);
    assert_eq!(ends.iter().filter(|e| e.kind == EventKind::TaskEnded).count(), 1);
    assert_eq!(store.due_callbacks(at(4), 9).await.unwrap().len(), 3);
}

async fn failures_of_the_infrastructure_are_tried_again_and_others_are_not(store: &dyn TaskStore) {
    let cases = [
        (failure(Side::Sandbox), SessionStatus::Queued),
        (failure(Side::Engine), SessionStatus::Queued),
        (failure(Side::Polar), SessionStatus::Queued),
        (failure(Side::Harness), SessionStatus::Failed),
        (failure(Side::Grader), SessionStatus::Failed),
        (Outcome::TimedOut, SessionStatus::TimedOut),
        (Outcome::Cancelled, SessionStatus::Cancelled),
    ];
    for (index, (outcome, expected)) in cases.into_iter().enumerate() {
        let id = format!("t{index}");
        store.submit(vec![task(&id, json!({ "max_attempts": 2 }))], at(0)).await.unwrap();
        let lease = store.claim(&node("n1"), 1, at(0)).await.unwrap().leases.remove(0);
        store.complete(&report(&lease, outcome.clone()), at(1)).await.unwrap();
        let session = store.session(&lease.session_id).await.unwrap();
        assert_eq!(session.status, expected, "{outcome:?}");
        if expected == SessionStatus::Queued {
            let again = store.claim(&node("n1"), 1, at(6)).await.unwrap().leases.remove(0);
            assert_eq!(again.attempt, 2);
            store.complete(&report(&again, outcome), at(7)).await.unwrap();
            let session = store.session(&lease.session_id).await.unwrap();
            assert_eq!(session.status, SessionStatus::Failed);
        }
        let ended = store.task(&id.parse().unwrap()).await.unwrap().status;
        let with_trajectory = expected == SessionStatus::TimedOut;
        let wanted = if with_trajectory { TaskStatus::Completed } else { TaskStatus::Failed };
        assert_eq!(ended, wanted);
    }
}

async fn attempts_lost_to_the_engine_are_spent_of_a_budget_of_their_own(store: &dyn TaskStore) {
    store.submit(vec![task("t", json!({ "max_attempts": 2 }))], at(0)).await.unwrap();
    let id = "t-s0".parse().unwrap();
    let engine = || Outcome::Failed {
        side: Side::Engine,
        class: ErrorClass::Unavailable,
        message: "it was away".to_owned(),
    };
    for attempt in 1..=13 {
        // One of its own in between changes nothing of the other budget.
        let outcome = if attempt == 4 { failure(Side::Sandbox) } else { engine() };
        let lease = store.claim(&node("n1"), 1, at(attempt * 100)).await.unwrap().leases.remove(0);
        assert_eq!(i64::from(lease.attempt), attempt);
        let done = report(&lease, outcome);
        store.complete(&done, at(attempt * 100)).await.unwrap();
        let session = store.session(&id).await.unwrap();
        assert_eq!(session.status, SessionStatus::Queued, "attempt {attempt}");
        assert_eq!((session.reason, session.reward), (None, None));
    }
    let lease = store.claim(&node("n1"), 1, at(9_000)).await.unwrap().leases.remove(0);
    store.complete(&report(&lease, engine()), at(9_000)).await.unwrap();
    let session = store.session(&id).await.unwrap();
    assert_eq!(session.status, SessionStatus::Failed);
    assert_eq!((session.reason, session.reward), (Some(EndReason::EngineLoss), None));
    assert_eq!(session.reason_detail.as_deref(), session.outcome.unwrap().detail());

    // An engine that answers with nonsense is there.
    store.submit(vec![task("u", json!({ "max_attempts": 1 }))], at(0)).await.unwrap();
    let lease = store.claim(&node("n1"), 1, at(9_000)).await.unwrap().leases.remove(0);
    store.complete(&report(&lease, failure(Side::Engine)), at(9_000)).await.unwrap();
    let session = store.session(&"u-s0".parse().unwrap()).await.unwrap();
    assert_eq!(session.status, SessionStatus::Failed);
}

async fn a_failed_attempt_is_tried_again_after_ever_longer_pauses(store: &dyn TaskStore) {
    store.submit(vec![task("t", json!({ "max_attempts": 5 }))], at(0)).await.unwrap();
    let mut now = 0;
    for pause in [5, 20, 30, 30] {
        let lease = store.claim(&node("n1"), 1, at(now)).await.unwrap().leases.remove(0);
        store.complete(&report(&lease, failure(Side::Sandbox)), at(now)).await.unwrap();
        let work = store.signals().work();
        store.expire(at(now + pause - 1)).await.unwrap();
        assert!(store.claim(&node("n1"), 1, at(now + pause - 1)).await.unwrap().leases.is_empty());
        assert!(!work.has_changed().unwrap(), "nodes are woken in vain");
        store.expire(at(now + pause)).await.unwrap();
        assert!(work.has_changed().unwrap(), "nodes that wait are not woken");
        now += pause;
    }
    // Another node may go on at once where the node was at fault.
    store.claim(&node("n1"), 1, at(now)).await.unwrap();
    store.submit(vec![task("u", json!({}))], at(now)).await.unwrap();
    store.claim(&node("n1"), 1, at(now)).await.unwrap();
    assert_eq!(store.expire(at(now + 60)).await.unwrap().requeued.len(), 1);
    assert_eq!(store.claim(&node("n2"), 1, at(now + 60)).await.unwrap().leases.len(), 1);
}

async fn promise_6_every_lost_session_ends_after_its_last_attempt(store: &dyn TaskStore) {
    store.submit(vec![task("t", json!({ "max_attempts": 3 }))], at(0)).await.unwrap();
    for attempt in 1..=3 {
        let lease = store.claim(&node("n1"), 1, at(attempt * 100)).await.unwrap().leases.remove(0);
        assert_eq!(i64::from(lease.attempt), attempt);
        let expired = store.expire(at(attempt * 100 + 60)).await.unwrap();
        assert_eq!(expired.ended.len(), usize::from(attempt == 3));
    }
    let session = store.session(&"t-s0".parse().unwrap()).await.unwrap();
    assert_eq!(session.status, SessionStatus::Failed);
    let Some(Outcome::Failed { side: Side::Polar, message, .. }) = session.outcome else {
        panic!("{:?}", session.outcome)
    };
    assert!(message.contains("stopped renewing"), "{message}");
    assert_eq!(store.task(&"t".parse().unwrap()).await.unwrap().status, TaskStatus::Failed);
    assert!(store.claim(&node("n1"), 1, at(9999)).await.unwrap().leases.is_empty());
}

async fn promise_6_a_session_that_no_node_takes_ends(store: &dyn TaskStore) {
    store.submit(vec![task("t", json!({ "runtime": "docker" }))], at(0)).await.unwrap();
    assert!(store.expire(at(9_999)).await.unwrap().ended.is_empty());
    assert_eq!(store.expire(at(10_000)).await.unwrap().ended.len(), 1);
    let session = store.session(&"t-s0".parse().unwrap()).await.unwrap();
    let Some(Outcome::Failed { message, .. }) = session.outcome else {
        panic!("{:?}", session.outcome)
    };
    assert!(message.contains("docker runtime"), "{message}");
}

async fn promise_6_a_session_held_for_too_long_is_taken_away(store: &dyn TaskStore) {
    store.submit(vec![task("t", json!({ "max_attempts": 1 }))], at(0)).await.unwrap();
    let lease = store.claim(&node("n1"), 1, at(0)).await.unwrap().leases.remove(0);
    is_overdue_at(store, &lease, LONGEST_HOLD).await;
}

/// Holds whatever the node renews until then, and not a moment longer.
async fn is_overdue_at(store: &dyn TaskStore, lease: &Lease, deadline: i64) {
    for stage in [Stage::Run, Stage::Grade, Stage::Deliver] {
        let renew = renewal(&node("n1"), &[lease], stage);
        assert!(store.renew(&renew, at(deadline - 1)).await.unwrap().lost.is_empty());
    }
    assert_eq!(store.expire(at(deadline - 1)).await.unwrap(), Expired::default());
    store.expire(at(deadline)).await.unwrap();
    let session = store.session(&lease.session_id).await.unwrap();
    assert_eq!(session.attempts[0].lost.as_deref(), Some("overdue"));
}

async fn waiting_for_a_place_on_the_node_takes_nothing_of_the_budgets(store: &dyn TaskStore) {
    store.submit(vec![task("t", json!({}))], at(0)).await.unwrap();
    let lease = store.claim(&node("n1"), 1, at(0)).await.unwrap().leases.remove(0);
    let mut waited = 0;
    for stage in [Stage::Prepare, Stage::Ready, Stage::Ready] {
        waited += LONGEST_HOLD - 1;
        let renew = renewal(&node("n1"), &[&lease], stage);
        assert!(store.renew(&renew, at(waited)).await.unwrap().lost.is_empty());
        assert_eq!(store.expire(at(waited)).await.unwrap(), Expired::default());
    }
    is_overdue_at(store, &lease, waited + LONGEST_HOLD).await;
}

async fn promise_6_a_session_that_waits_on_its_node_for_ever_is_taken_away(store: &dyn TaskStore) {
    store.submit(vec![task("t", json!({}))], at(0)).await.unwrap();
    let lease = store.claim(&node("n1"), 1, at(0)).await.unwrap().leases.remove(0);
    let renew = renewal(&node("n1"), &[&lease], Stage::Ready);
    let queue_limit = i64::try_from(LIMITS.queue_limit.as_secs()).unwrap();
    let mut now = 0;
    while store.session(&lease.session_id).await.unwrap().attempts[0].lost.is_none() {
        now += 50;
        assert!(now <= queue_limit + LONGEST_HOLD, "it waits for ever");
        store.renew(&renew, at(now)).await.unwrap();
        store.expire(at(now)).await.unwrap();
    }
    assert_eq!(now, queue_limit + LONGEST_HOLD);
}

async fn the_time_the_server_was_away_takes_nothing_of_the_budgets(store: &dyn TaskStore) {
    let cancelled = "c".parse().unwrap();
    store.submit(vec![task("t", json!({})), task("c", json!({}))], at(0)).await.unwrap();
    let leases = store.claim(&node("n1"), 2, at(0)).await.unwrap().leases;
    let renew = renewal(&node("n1"), &[&leases[0], &leases[1]], Stage::Run);
    store.renew(&renew, at(10)).await.unwrap();
    store.cancel(&cancelled, at(10)).await.unwrap();
    // Away from then on, and started twice before the node comes through.
    let back = 2 * LONGEST_HOLD;
    assert_eq!(store.extend_leases(at(back - 5)).await.unwrap(), 2);
    assert_eq!(store.extend_leases(at(back)).await.unwrap(), 2);
    // The node has as long to end what was cancelled as if the server had been there.
    assert_eq!(store.expire(at(back + 29)).await.unwrap(), Expired::default());
    assert_eq!(store.expire(at(back + 30)).await.unwrap().ended, [leases[1].session_id.clone()]);
    is_overdue_at(store, &leases[0], LONGEST_HOLD + back - 10).await;
}

async fn promise_6_a_cancelled_session_gets_no_more_time_by_waiting(store: &dyn TaskStore) {
    store.submit(vec![task("t", json!({}))], at(0)).await.unwrap();
    let lease = store.claim(&node("n1"), 1, at(0)).await.unwrap().leases.remove(0);
    store.cancel(&"t".parse().unwrap(), at(1)).await.unwrap();
    let renew = renewal(&node("n1"), &[&lease], Stage::Ready);
    assert_eq!(store.renew(&renew, at(30)).await.unwrap().cancelled.len(), 1);
    assert_eq!(store.expire(at(31)).await.unwrap().ended, [lease.session_id]);
}

async fn a_release_spends_no_attempt_but_not_for_ever(store: &dyn TaskStore) {
    store.submit(vec![task("t", json!({ "max_attempts": 1 }))], at(0)).await.unwrap();
    let mut releases = 0;
    while let Some(lease) = store.claim(&node("n1"), 1, at(releases)).await.unwrap().leases.pop() {
        let released = store.release(&release(&node("n1"), &lease), at(releases)).await.unwrap();
        assert_eq!(released, [lease.session_id]);
        releases += 1;
        assert!(releases < 100, "a session that is always given back never ends");
    }
    assert!(releases > 1);
    let session = store.session(&"t-s0".parse().unwrap()).await.unwrap();
    assert_eq!(session.status, SessionStatus::Failed);
}

/// Else a task that fails everywhere goes round and round between nodes that are out of order.
async fn what_failed_where_it_is_given_back_pauses_before_it_is_tried_again(store: &dyn TaskStore) {
    store.submit(vec![task("t", json!({ "max_attempts": 1 }))], at(0)).await.unwrap();
    let lease = store.claim(&node("n1"), 1, at(0)).await.unwrap().leases.remove(0);
    let failed = ReleaseRequest { failed: true, ..release(&node("n1"), &lease) };
    store.release(&failed, at(1)).await.unwrap();
    for name in ["n1", "n2"] {
        assert_eq!(store.claim(&node(name), 1, at(5)).await.unwrap().leases, [], "{name}");
    }
    // It has spent nothing.
    let again = store.claim(&node("n2"), 1, at(6)).await.unwrap().leases.remove(0);
    assert_eq!((again.session_id.clone(), again.attempt), (lease.session_id, 2));
    let done = report(&again, Outcome::Completed);
    assert_eq!(store.complete(&done, at(7)).await.unwrap(), ResultAck::Accepted);
}

async fn cancelling_ends_what_is_queued_and_asks_for_the_rest(store: &dyn TaskStore) {
    store.submit(vec![task("t", json!({ "num_samples": 3 }))], at(0)).await.unwrap();
    let leases = store.claim(&node("n1"), 2, at(0)).await.unwrap().leases;
    let id = "t".parse().unwrap();
    let asked = store.cancel(&id, at(1)).await.unwrap();
    assert_eq!(asked.status, TaskStatus::Running);
    assert_eq!(asked.sessions["cancelled"], 1);
    assert_eq!(store.cancel(&id, at(2)).await.unwrap(), asked, "asking again changes nothing");
    let renew = renewal(&node("n1"), &[&leases[0], &leases[1]], Stage::Run);
    assert_eq!(store.renew(&renew, at(3)).await.unwrap().cancelled.len(), 2);
    store.complete(&report(&leases[0], Outcome::Cancelled), at(4)).await.unwrap();
    // The other is never reported, though its node goes on renewing.
    store.renew(&renew, at(30)).await.unwrap();
    assert_eq!(store.expire(at(31)).await.unwrap().ended, [leases[1].session_id.clone()]);
    let task = store.task(&id).await.unwrap();
    assert_eq!((task.status, task.sessions["cancelled"]), (TaskStatus::Cancelled, 3));
    assert_eq!(store.cancel(&id, at(99)).await.unwrap(), task);
}

async fn a_cancelled_session_is_not_tried_again(store: &dyn TaskStore) {
    store.submit(vec![task("t", json!({}))], at(0)).await.unwrap();
    let lease = store.claim(&node("n1"), 1, at(0)).await.unwrap().leases.remove(0);
    store.cancel(&"t".parse().unwrap(), at(1)).await.unwrap();
    store.complete(&report(&lease, failure(Side::Sandbox)), at(2)).await.unwrap();
    let session = store.session(&lease.session_id).await.unwrap();
    assert_eq!(session.status, SessionStatus::Cancelled);
}

async fn a_node_that_restarts_loses_what_it_held(store: &dyn TaskStore) {
    store.submit(vec![task("t", json!({ "num_samples": 2 }))], at(0)).await.unwrap();
    let old = store.claim(&node("n1"), 1, at(0)).await.unwrap().leases.remove(0);
    let other = store.claim(&node("n2"), 1, at(0)).await.unwrap().leases.remove(0);
    let anew = node_with("n1", "boot-2", &["local"]);
    let new = store.claim(&anew, 1, at(1)).await.unwrap().leases.remove(0);
    assert_eq!(new.session_id, old.session_id);
    assert!(new.epoch > old.epoch);
    let session = store.session(&old.session_id).await.unwrap();
    assert_eq!(session.attempts[0].lost.as_deref(), Some("node_restarted"));
    let renew = renewal(&node("n2"), &[&other], Stage::Run);
    assert!(store.renew(&renew, at(2)).await.unwrap().lost.is_empty());
    let nodes = store.nodes(at(2)).await.unwrap();
    assert_eq!(nodes.iter().map(|n| n.leased).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(nodes[0].node.boot_id, "boot-2");
}

async fn a_second_node_of_the_same_name_is_refused_while_the_first_is_heard_of(
    store: &dyn TaskStore,
) {
    store.submit(vec![task("t", json!({ "num_samples": 2 }))], at(0)).await.unwrap();
    let first = node("n1");
    let held = store.claim(&first, 1, at(0)).await.unwrap().leases.remove(0);
    let second = NodeInfo {
        instance_id: "another folder".to_owned(),
        ..node_with("n1", "boot-2", &["local"])
    };
    let ttl = LIMITS.lease_ttl.as_secs() as i64;
    for now in [1, ttl - 1] {
        let refused = store.claim(&second, 1, at(now)).await.unwrap_err();
        assert!(matches!(refused, StoreError::NameInUse { .. }), "{refused}");
        assert_eq!(refused.class(), ErrorClass::Conflict);
        assert!(refused.to_string().contains("--node-id"), "{refused}");
        let refused = store.renew(&renewal(&second, &[], Stage::Run), at(now)).await.unwrap_err();
        assert!(matches!(refused, StoreError::NameInUse { .. }), "{refused}");
    }
    // Nor does asking keep a name, or cost who has it anything.
    let answer = store.renew(&renewal(&first, &[&held], Stage::Run), at(ttl - 1)).await.unwrap();
    assert!(answer.lost.is_empty());
    assert_eq!(store.nodes(at(ttl - 1)).await.unwrap()[0].node.boot_id, "boot-1");

    // A lease that a restart of the server gave a fresh term counts as heard of.
    store.extend_leases(at(2 * ttl)).await.unwrap();
    store.claim(&second, 1, at(3 * ttl - 1)).await.unwrap_err();
    // Silent for a lease time, it has lost the name, and is refused itself from then on.
    assert_eq!(store.claim(&second, 1, at(3 * ttl)).await.unwrap().leases.len(), 1);
    let refused = store.renew(&renewal(&first, &[&held], Stage::Run), at(3 * ttl)).await;
    assert!(matches!(refused, Err(StoreError::NameInUse { .. })), "{refused:?}");
}

async fn nodes_that_keep_no_instance_id_are_told_apart_by_their_boot_id(store: &dyn TaskStore) {
    let keeps_none = |boot| NodeInfo { instance_id: String::new(), ..node_with("n1", boot, &[]) };
    store.claim(&keeps_none("boot-1"), 1, at(0)).await.unwrap();
    store.claim(&keeps_none("boot-1"), 1, at(1)).await.unwrap();
    store.claim(&keeps_none("boot-2"), 1, at(1)).await.unwrap_err();
}

async fn events_have_no_gaps_and_a_filter_moves_the_cursor(store: &dyn TaskStore) {
    let mut signal = store.signals().events();
    store.submit(vec![task("a", json!({})), task("b", json!({}))], at(0)).await.unwrap();
    assert!(signal.has_changed().unwrap());
    assert_eq!(*signal.borrow_and_update(), 2);
    // A write that is refused leaves no hole.
    store.submit(vec![task("c", json!({})), task("a", json!({"priority": 1}))], at(0)).await.ok();
    let lease = store.claim(&node("n1"), 1, at(0)).await.unwrap().leases.remove(0);
    store.complete(&report(&lease, Outcome::Completed), at(1)).await.unwrap();
    let page = store.events(&all_events()).await.unwrap();
    let numbers: Vec<u64> = page.events.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert_eq!(page.cursor, 5);
    assert_eq!(*signal.borrow_and_update(), 5);

    let two = store.events(&EventQuery { limit: 2, ..all_events() }).await.unwrap();
    assert_eq!((two.events.len(), two.cursor), (2, 2));
    let ended = EventQuery { kinds: vec![EventKind::TaskEnded], ..all_events() };
    let ended = store.events(&ended).await.unwrap();
    assert_eq!((ended.events.len(), ended.cursor), (1, 5));
    let of_b = EventQuery { task_id: Some("b".parse().unwrap()), ..all_events() };
    let of_b = store.events(&of_b).await.unwrap();
    assert_eq!((of_b.events.len(), of_b.cursor), (1, 5));
    let none = store.events(&EventQuery { after: 5, ..all_events() }).await.unwrap();
    assert_eq!((none.events.len(), none.cursor), (0, 5));
}

async fn callbacks_stay_until_they_are_settled(store: &dyn TaskStore) {
    let told = json!({ "callback": { "url": "http://trainer/x", "secret": "s" } });
    store.submit(vec![task("t", told), task("quiet", json!({}))], at(0)).await.unwrap();
    for lease in store.claim(&node("n1"), 2, at(0)).await.unwrap().leases {
        store.complete(&report(&lease, Outcome::Completed), at(5)).await.unwrap();
    }
    assert!(store.due_callbacks(at(4), 9).await.unwrap().is_empty());
    assert_eq!(store.next_callback_at().await.unwrap(), Some(at(5)));
    let due = store.due_callbacks(at(5), 9).await.unwrap();
    let ids: Vec<_> = due.iter().map(|callback| callback.callback_id.as_str()).collect();
    assert_eq!(ids, ["t-s0:session.ended", "t:task.ended"]);
    assert_eq!((due[0].url.as_str(), due[0].secret.as_deref()), ("http://trainer/x", Some("s")));

    let retry = CallbackResult::Retry { at: at(50), error: "refused".to_owned() };
    store.settle_callback(ids[0], retry).await.unwrap();
    store.settle_callback(ids[1], CallbackResult::Delivered).await.unwrap();
    assert!(store.due_callbacks(at(49), 9).await.unwrap().is_empty());
    assert_eq!(store.due_callbacks(at(50), 9).await.unwrap()[0].attempts, 1);
    let failed = CallbackResult::Failed { error: "gone".to_owned() };
    store.settle_callback(ids[0], failed.clone()).await.unwrap();
    assert!(store.settle_callback(ids[0], failed).await.is_err(), "it is settled");
    assert_eq!(store.next_callback_at().await.unwrap(), None);
    let state = store.session(&"t-s0".parse().unwrap()).await.unwrap().callback.unwrap();
    assert_eq!((state.status, state.attempts), (CallbackStatus::Failed, 2));
    assert_eq!(state.error.as_deref(), Some("gone"));
    let state = store.task(&"t".parse().unwrap()).await.unwrap().callback.unwrap();
    assert_eq!(state.status, CallbackStatus::Delivered);
}

async fn tasks_are_listed_newest_first_in_pages(store: &dyn TaskStore) {
    for index in 0..5 {
        store.submit(vec![task(&format!("t{index}"), json!({}))], at(index)).await.unwrap();
    }
    let mut query = TaskQuery { limit: 2, ..TaskQuery::default() };
    let mut seen = Vec::new();
    loop {
        let page = store.tasks(&query).await.unwrap();
        seen.extend(page.tasks.iter().map(|task| task.task_id.to_string()));
        match page.next_before {
            Some(before) => query.before = Some(before),
            None => break,
        }
    }
    assert_eq!(seen, ["t4", "t3", "t2", "t1", "t0"]);
    store.cancel(&"t3".parse().unwrap(), at(9)).await.unwrap();
    let cancelled = TaskQuery { status: Some(TaskStatus::Cancelled), ..TaskQuery::default() };
    assert_eq!(store.tasks(&cancelled).await.unwrap().tasks[0].task_id.as_str(), "t3");
    let other = TaskQuery { harness: Some("shell".to_owned()), ..TaskQuery::default() };
    assert!(store.tasks(&other).await.unwrap().tasks.is_empty());
}

async fn long_ids_that_collide_are_refused(store: &dyn TaskStore) {
    let (one, two) = ("x".repeat(128), format!("{}y", "x".repeat(127)));
    store.submit(vec![task(&one, json!({}))], at(0)).await.unwrap();
    let refused = store.submit(vec![task(&two, json!({}))], at(0)).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
}

async fn what_is_not_there_is_said_so(store: &dyn TaskStore) {
    let missing = |result: Result<(), StoreError>| {
        assert!(matches!(result, Err(StoreError::NotFound { .. })), "{result:?}");
    };
    let id = "nope".parse().unwrap();
    missing(store.task(&id).await.map(drop));
    missing(store.sessions(&id).await.map(drop));
    missing(store.cancel(&id, at(0)).await.map(drop));
    missing(store.session(&"nope".parse().unwrap()).await.map(drop));
    missing(store.settle_callback("nope", CallbackResult::Delivered).await);
    store.submit(vec![task("t", json!({}))], at(0)).await.unwrap();
    let mut lease = store.claim(&node("n1"), 1, at(0)).await.unwrap().leases.remove(0);
    lease.epoch.0 += 1;
    missing(store.complete(&report(&lease, Outcome::Completed), at(1)).await.map(drop));
    store.close().await;
    assert!(matches!(store.expire(at(0)).await, Err(StoreError::Closed)));
    assert!(matches!(store.tasks(&TaskQuery::default()).await, Err(StoreError::Closed)));
}

fn all_events() -> EventQuery {
    EventQuery { limit: 1000, ..EventQuery::default() }
}
