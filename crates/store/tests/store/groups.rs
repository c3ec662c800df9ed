//! Groups and batches, told once and run against each store.

use crate::samples::{at, failure, node, renewal, report, task};
use polar_store::{StoreError, TaskStore};
use polar_types::{
    Batch, BatchRequest, Lease, LeftOut, Outcome, SessionReport, SessionStatus, Side, Stage,
    TaskStatus,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

on_every_store!(
    promise_5_a_batch_is_the_same_until_the_cursor_is_past_it,
    groups_come_oldest_first_and_those_left_out_are_counted,
    promise_5_a_group_is_in_one_batch_whatever_is_taken_out_of_it,
    staleness_is_told_against_the_trainers_version_and_bounded,
    what_was_sampled_before_the_first_push_is_older_than_it,
    versions_are_as_far_apart_as_they_were_asked_for,
    what_runs_of_a_group_that_is_too_stale_is_ended,
    no_group_is_begun_beyond_the_most_ahead,
    a_group_that_has_enough_is_stopped_early,
    queues_do_not_share_groups,
    a_cursor_that_was_never_given_is_refused,
    a_batch_that_lost_all_its_groups_is_passed_over,
);

fn request(after: u64, fields: Value) -> BatchRequest {
    let mut request = json!({ "after": after });
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(request).unwrap()
}

async fn next(store: &dyn TaskStore, after: u64, fields: Value) -> Option<Batch> {
    let request = request(after, fields);
    store.next_batch(&request, request.groups, at(100)).await.unwrap().batch
}

/// Pushes weights, and tells how far an engine came with them.
async fn push(store: &dyn TaskStore, version: &str, state: &str) {
    let update = json!({ "version": version, "source": { "label": {} } });
    let update = serde_json::from_value(update).unwrap();
    let pushed = store.push_weights(update, at(0)).await.unwrap().update;
    let engine = json!({ "engine": "http://e", "state": state });
    let report = json!({ "node_id": "n1", "known": pushed.ordinal, "engines": [engine] });
    store.note_weights(&serde_json::from_value(report).unwrap(), at(0)).await.unwrap();
}

fn names(batch: &Batch) -> Vec<&str> {
    batch.groups.iter().map(|group| group.task_id.as_str()).collect()
}

/// Submits tasks of two samples and hands all their sessions out.
async fn leased(store: &dyn TaskStore, ids: &[&str], fields: Value) -> BTreeMap<String, Lease> {
    let mut rest = json!({ "num_samples": 2 });
    rest.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let tasks = ids.iter().map(|id| task(id, rest.clone())).collect();
    store.submit(tasks, at(0)).await.unwrap();
    let leases = store.claim(&node("n1"), 1000, at(1)).await.unwrap().leases;
    leases.into_iter().map(|lease| (lease.session_id.to_string(), lease)).collect()
}

fn rewarded(lease: &Lease, reward: f64, version: &str) -> SessionReport {
    let mut report = report(lease, Outcome::Completed);
    report.reward = Some(reward);
    report.weight_versions = vec![version.to_owned()];
    report
}

async fn end(store: &dyn TaskStore, leases: &BTreeMap<String, Lease>, id: &str, reward: f64) {
    store.complete(&rewarded(&leases[id], reward, "1"), at(2)).await.unwrap();
}

/// Ends both sessions of a task, with different rewards.
async fn end_both(store: &dyn TaskStore, leases: &BTreeMap<String, Lease>, task: &str) {
    end(store, leases, &format!("{task}-s0"), 1.0).await;
    end(store, leases, &format!("{task}-s1"), 0.0).await;
}

async fn promise_5_a_batch_is_the_same_until_the_cursor_is_past_it(store: &dyn TaskStore) {
    let leases = leased(store, &["a", "b", "c"], json!({})).await;
    end_both(store, &leases, "b").await;
    assert_eq!(next(store, 0, json!({ "groups": 2 })).await, None);
    end_both(store, &leases, "c").await;
    let first = next(store, 0, json!({ "groups": 2 })).await.unwrap();
    assert_eq!((first.number, names(&first)), (1, vec!["b", "c"]));
    // The one that is ready now is older, and still comes later.
    end_both(store, &leases, "a").await;
    for _ in 0..2 {
        assert_eq!(next(store, 0, json!({ "groups": 2 })).await.unwrap(), first);
    }
    // However many are asked for.
    assert_eq!(next(store, 0, json!({ "groups": 3 })).await.unwrap(), first);
    let second = next(store, 1, json!({})).await.unwrap();
    assert_eq!((second.number, names(&second)), (2, vec!["a"]));
    // A trainer that starts again from an older cursor finds what it had.
    assert_eq!(next(store, 0, json!({ "groups": 2 })).await.unwrap(), first);
    assert_eq!(store.batch(&Default::default(), 1).await.unwrap(), first);
    assert_eq!(next(store, 2, json!({})).await, None);
}

async fn groups_come_oldest_first_and_those_left_out_are_counted(store: &dyn TaskStore) {
    let ids = ["equal", "lost", "gone", "alone", "good"];
    let leases = leased(store, &ids, json!({ "max_attempts": 1 })).await;
    end_both(store, &leases, "good").await;
    end(store, &leases, "equal-s0", 1.0).await;
    end(store, &leases, "equal-s1", 1.0).await;
    end(store, &leases, "alone-s0", 1.0).await;
    for id in ["alone-s1", "lost-s0", "lost-s1"] {
        let report = report(&leases[id], failure(Side::Sandbox));
        store.complete(&report, at(3)).await.unwrap();
    }
    store.cancel(&"gone".parse().unwrap(), at(3)).await.unwrap();
    end_both(store, &leases, "gone").await;
    let filters = json!({ "equal_rewards": "leave_out", "min_usable": 2 });
    let batch = next(store, 0, filters).await.unwrap();
    assert_eq!(names(&batch), ["good"]);
    let left_out =
        [(LeftOut::EqualRewards, 1), (LeftOut::Cancelled, 1), (LeftOut::TooFewUsable, 2)];
    assert_eq!(batch.left_out, left_out.into());
    for (id, reason) in [
        ("good", None),
        ("equal", Some(LeftOut::EqualRewards)),
        ("gone", Some(LeftOut::Cancelled)),
        ("lost", Some(LeftOut::TooFewUsable)),
    ] {
        let task = store.task(&id.parse().unwrap()).await.unwrap();
        assert_eq!((task.batch, task.left_out), (Some(1), reason), "{id}");
    }
    let group = &batch.groups[0];
    assert_eq!(group.mean_reward, Some(0.5));
    assert_eq!(group.sessions.iter().map(|s| s.reward).collect::<Vec<_>>(), [Some(1.0), Some(0.0)]);
    assert_eq!(store.queue(&Default::default()).await.unwrap().ready, 0);
}

async fn promise_5_a_group_is_in_one_batch_whatever_is_taken_out_of_it(store: &dyn TaskStore) {
    let leases = leased(store, &["a", "b", "c", "d"], json!({})).await;
    for task in ["a", "b", "c", "d"] {
        end_both(store, &leases, task).await;
    }
    let first = next(store, 0, json!({ "groups": 2 })).await.unwrap();
    assert_eq!(names(&first), ["a", "b"]);
    let again = next(store, 0, json!({ "groups": 2, "reject": ["a"] })).await.unwrap();
    assert_eq!((again.number, names(&again)), (1, vec!["b", "c"]));
    assert_eq!(again.left_out, [(LeftOut::Rejected, 1)].into());
    assert_eq!(next(store, 0, json!({ "groups": 2 })).await.unwrap(), again);
    let stranger = request(0, json!({ "groups": 2, "reject": ["b", "d"] }));
    let refused = store.next_batch(&stranger, 2, at(100)).await.unwrap_err().to_string();
    assert!(refused.contains("names d, which is not in batch 1"), "{refused}");
    // Sent again after a lost answer, a rejection is no other.
    assert_eq!(next(store, 0, json!({ "groups": 2, "reject": ["a"] })).await.unwrap(), again);
    // With too few to fill it, it waits for more, and keeps what it has.
    let answer = next(store, 0, json!({ "groups": 2, "reject": ["b", "c"] })).await;
    assert_eq!(answer, None);
    let short = request(0, json!({ "groups": 2 }));
    let short = store.next_batch(&short, 1, at(100)).await.unwrap().batch.unwrap();
    assert_eq!((short.number, names(&short)), (1, vec!["d"]));
    let second = next(store, 1, json!({})).await;
    assert_eq!(second, None);
    let past = request(0, json!({ "reject": ["d"] }));
    let more = leased(store, &["e"], json!({})).await;
    end_both(store, &more, "e").await;
    assert_eq!(names(&next(store, 1, json!({})).await.unwrap()), ["e"]);
    let refused = store.next_batch(&past, 1, at(100)).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
}

async fn staleness_is_told_against_the_trainers_version_and_bounded(store: &dyn TaskStore) {
    let leases = leased(store, &["old", "mixed", "unknown", "new"], json!({})).await;
    let versions =
        [("old", "1", "1"), ("mixed", "2", "3"), ("unknown", "x", "3"), ("new", "3", "3")];
    for (task, one, other) in versions {
        for (index, version) in [one, other].iter().enumerate() {
            let report = rewarded(&leases[&format!("{task}-s{index}")], index as f64, version);
            store.complete(&report, at(2)).await.unwrap();
        }
    }
    let at_3 = json!({ "groups": 2, "version": "3", "max_staleness": 1 });
    let batch = next(store, 0, at_3).await.unwrap();
    assert_eq!(names(&batch), ["mixed", "new"]);
    let staleness: Vec<_> = batch.groups.iter().map(|group| group.staleness).collect();
    assert_eq!(staleness, [Some(1), Some(0)]);
    assert_eq!(batch.left_out, [(LeftOut::Stale, 1)].into());
    let state = store.queue(&Default::default()).await.unwrap();
    assert_eq!((state.ready, state.left_out), (1, batch.left_out));
    // The trainer comes back with newer weights, and the batch it never trained has aged.
    let at_4 = json!({ "groups": 2, "version": "4", "max_staleness": 1 });
    assert_eq!(next(store, 0, at_4.clone()).await, None);
    let answer = store.next_batch(&request(0, at_4), 1, at(100)).await.unwrap();
    // What cannot be compared is held back, and comes once nobody asks how old it is.
    assert_eq!(answer.held_back, 1);
    let batch = answer.batch.unwrap();
    assert_eq!((names(&batch), batch.left_out[&LeftOut::Stale]), (vec!["new"], 2));
    assert_eq!(names(&next(store, 1, json!({})).await.unwrap()), ["unknown"]);
}

async fn what_was_sampled_before_the_first_push_is_older_than_it(store: &dyn TaskStore) {
    let leases = leased(store, &["a"], json!({})).await;
    for (session, reward) in [("a-s0", 1.0), ("a-s1", 0.0)] {
        store.complete(&rewarded(&leases[session], reward, "default"), at(2)).await.unwrap();
    }
    let ask = json!({ "version": "first", "max_staleness": 1 });
    let answer = store.next_batch(&request(0, ask.clone()), 1, at(3)).await.unwrap();
    assert_eq!((answer.batch, answer.held_back, answer.state.ready), (None, 1, 1));
    push(store, "first", "current").await;
    let mistyped = json!({ "version": "frist", "max_staleness": 1 });
    let refused = store.next_batch(&request(0, mistyped), 1, at(5)).await.unwrap_err();
    assert!(refused.to_string().contains(r#"the newest is "first""#), "{refused}");
    let batch = next(store, 0, ask).await.unwrap();
    assert_eq!((names(&batch), batch.groups[0].staleness), (vec!["a"], Some(1)));
}

async fn versions_are_as_far_apart_as_they_were_asked_for(store: &dyn TaskStore) {
    // Those that no engine was given are no step.
    for (version, state) in [
        ("start", "current"),
        ("refused", "unchanged"),
        ("step-10", "current"),
        ("late", "draining"),
        ("step-20", "fenced"),
    ] {
        push(store, version, state).await;
    }
    let leases = leased(store, &["a", "b"], json!({})).await;
    for (session, version) in
        [("a-s0", "start"), ("a-s1", "step-20"), ("b-s0", "step-10"), ("b-s1", "step-20")]
    {
        store.complete(&rewarded(&leases[session], 1.0, version), at(2)).await.unwrap();
    }
    let ask = json!({ "version": "step-20", "max_staleness": 1 });
    let batch = next(store, 0, ask).await.unwrap();
    assert_eq!((names(&batch), batch.groups[0].staleness), (vec!["b"], Some(1)));
    assert_eq!(batch.left_out, [(LeftOut::Stale, 1)].into());
}

async fn what_runs_of_a_group_that_is_too_stale_is_ended(store: &dyn TaskStore) {
    let leases = leased(store, &["old", "new"], json!({})).await;
    store.complete(&rewarded(&leases["old-s0"], 1.0, "1"), at(2)).await.unwrap();
    store.complete(&rewarded(&leases["new-s0"], 1.0, "3"), at(2)).await.unwrap();
    let ask = json!({ "version": "3", "max_staleness": 1 });
    assert_eq!(next(store, 0, ask.clone()).await, None);
    let running = leases.values().collect::<Vec<_>>();
    let answer = store.renew(&renewal(&node("n1"), &running, Stage::Run), at(3)).await.unwrap();
    let cancelled: Vec<_> = answer.cancelled.iter().map(|id| id.as_str()).collect();
    assert_eq!(cancelled, ["old-s1"]);
    store.complete(&report(&leases["old-s1"], Outcome::Cancelled), at(4)).await.unwrap();
    let told = store.session(&"old-s1".parse().unwrap()).await.unwrap().reason_detail.unwrap();
    assert!(told.contains("`max_staleness`"), "{told}");
    store.complete(&rewarded(&leases["new-s1"], 1.0, "3"), at(4)).await.unwrap();
    let batch = next(store, 0, ask).await.unwrap();
    assert_eq!((names(&batch), batch.left_out[&LeftOut::Stale]), (vec!["new"], 1));
}

async fn no_group_is_begun_beyond_the_most_ahead(store: &dyn TaskStore) {
    let most = json!({ "max_ahead": 2 });
    assert_eq!(next(store, 0, most.clone()).await, None);
    let leases = leased(store, &["a", "b", "c", "d"], json!({})).await;
    let begun: Vec<_> = leases.keys().map(String::as_str).collect();
    assert_eq!(begun, ["a-s0", "a-s1", "b-s0", "b-s1"]);
    let state = store.queue(&Default::default()).await.unwrap();
    assert_eq!((state.ahead, state.running, state.max_ahead), (2, 4, Some(2)));
    end_both(store, &leases, "a").await;
    assert!(store.claim(&node("n1"), 9, at(3)).await.unwrap().leases.is_empty());
    let woken = store.signals().work();
    let before = *woken.borrow();
    assert_eq!(names(&next(store, 0, most).await.unwrap()), ["a"]);
    assert!(*woken.borrow() > before, "nodes are not told");
    let next_one = store.claim(&node("n1"), 9, at(3)).await.unwrap().leases;
    assert_eq!(next_one.len(), 2);
    assert_eq!(next_one[0].task.task_id.as_str(), "c");
    // Without a limit the rest may begin.
    assert_eq!(next(store, 1, json!({ "max_ahead": null })).await, None);
    assert_eq!(store.claim(&node("n1"), 9, at(3)).await.unwrap().leases.len(), 2);
}

async fn a_group_that_has_enough_is_stopped_early(store: &dyn TaskStore) {
    let stop = json!({ "num_samples": 5, "early_stop": { "usable": 2 }, "max_attempts": 1 });
    store.submit(vec![task("t", stop)], at(0)).await.unwrap();
    let leases = store.claim(&node("n1"), 4, at(1)).await.unwrap().leases;
    store.complete(&rewarded(&leases[0], 1.0, "1"), at(2)).await.unwrap();
    store.complete(&report(&leases[1], failure(Side::Sandbox)), at(2)).await.unwrap();
    let untouched = store.session(&leases[2].session_id).await.unwrap();
    assert_eq!(untouched.status, SessionStatus::Preparing);
    store.complete(&rewarded(&leases[2], 0.0, "1"), at(2)).await.unwrap();
    let queued = store.session(&"t-s4".parse().unwrap()).await.unwrap();
    assert_eq!(queued.status, SessionStatus::Cancelled);
    assert!(queued.reason_detail.unwrap().contains("`early_stop.usable`"));
    let mut cancelled = report(&leases[3], Outcome::Cancelled);
    cancelled.tokens.sampled = 40;
    store.complete(&cancelled, at(3)).await.unwrap();
    let told = store.session(&leases[3].session_id).await.unwrap().reason_detail.unwrap();
    assert!(told.contains("`early_stop.usable`"), "{told}");
    let whole = store.session(&leases[0].session_id).await.unwrap();
    assert_eq!(whole.reason_detail, None);
    let ended = store.task(&"t".parse().unwrap()).await.unwrap();
    assert_eq!(ended.status, TaskStatus::Completed);
    let batch = next(store, 0, json!({ "min_usable": 2 })).await.unwrap();
    let told = batch.groups[0].early_stop.unwrap();
    assert_eq!((told.cancelled, told.usable_mean_tokens), (2, 5.0));
    assert_eq!(told.cancelled_mean_tokens, Some(40.0));
}

async fn queues_do_not_share_groups(store: &dyn TaskStore) {
    let train = leased(store, &["t"], json!({ "queue": "train" })).await;
    let eval = leased(store, &["e"], json!({ "queue": "eval" })).await;
    end_both(store, &train, "t").await;
    end_both(store, &eval, "e").await;
    assert_eq!(names(&next(store, 0, json!({ "queue": "eval" })).await.unwrap()), ["e"]);
    assert_eq!(names(&next(store, 0, json!({ "queue": "train" })).await.unwrap()), ["t"]);
    // A slip of the pen makes no queue.
    assert_eq!(next(store, 0, json!({ "queue": "trian", "max_ahead": 4 })).await, None);
    let queues = store.queues().await.unwrap();
    let queues: Vec<_> = queues.iter().map(|queue| (queue.queue.as_str(), queue.last)).collect();
    assert_eq!(queues, [("eval", 1), ("train", 1)]);
}

async fn a_cursor_that_was_never_given_is_refused(store: &dyn TaskStore) {
    let refused = store.next_batch(&request(1, json!({})), 1, at(0)).await.unwrap_err();
    assert!(refused.to_string().contains("`after` cannot be 1"), "{refused}");
    assert!(store.batch(&Default::default(), 1).await.is_err());
    assert!(store.batch(&Default::default(), 0).await.is_err());
}

/// A trainer that comes back from an older cursor gets what is to be trained on, and never nothing.
async fn a_batch_that_lost_all_its_groups_is_passed_over(store: &dyn TaskStore) {
    let leases = leased(store, &["a", "b", "c", "d"], json!({})).await;
    end_both(store, &leases, "a").await;
    let first = next(store, 0, json!({})).await.unwrap();
    assert_eq!((first.number, names(&first)), (1, vec!["a"]));
    // Another rank is further, and the batch that nobody has trained has aged.
    let aged = json!({ "version": "9", "max_staleness": 1 });
    assert_eq!(next(store, 0, aged).await, None);
    end_both(store, &leases, "b").await;
    end_both(store, &leases, "c").await;
    let second = next(store, 1, json!({})).await.unwrap();
    assert_eq!((second.number, names(&second)), (2, vec!["b"]));
    let third = next(store, 2, json!({})).await.unwrap();
    assert_eq!((third.number, names(&third)), (3, vec!["c"]));
    assert_eq!(next(store, 0, json!({})).await.unwrap(), second);
    assert_eq!(next(store, 2, json!({})).await.unwrap(), third);
    // The newest one is filled again where it lost all.
    assert_eq!(next(store, 2, json!({ "reject": ["c"] })).await, None);
    end_both(store, &leases, "d").await;
    let again = next(store, 2, json!({})).await.unwrap();
    assert_eq!((again.number, names(&again)), (3, vec!["d"]));
    assert_eq!(store.batch(&Default::default(), 1).await.unwrap().groups, []);
}
