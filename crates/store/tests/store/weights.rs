//! Weight updates, on both stores.

use crate::samples::{LIMITS, at, node};
use polar_store::{StoreError, TaskStore};
use polar_types::{
    EngineWeights, UpdateCalls, UpdateMode, UpdateStatus, WeightReport, WeightSource, WeightState,
    WeightUpdateRequest,
};

on_every_store!(
    the_same_update_again_is_the_same_and_another_is_refused_by_its_field,
    an_update_is_everywhere_once_every_living_node_says_so,
    an_engine_that_settled_otherwise_makes_it_partial,
    what_did_not_come_through_is_pushed_again_under_its_name,
    older_weights_are_the_newest_when_they_are_pushed_again,
    an_engine_that_its_node_no_longer_has_is_not_waited_for,
);

fn update(version: &str) -> WeightUpdateRequest {
    WeightUpdateRequest {
        version: version.to_owned(),
        source: WeightSource::Disk { path: format!("/ckpt/{version}") },
        mode: UpdateMode::Pause,
        deadline_seconds: 60.0,
    }
}

fn report(node: &str, known: u64, state: WeightState) -> WeightReport {
    WeightReport {
        node_id: node.parse().unwrap(),
        known: Some(known),
        engines: vec![EngineWeights {
            node_id: None,
            engine: "http://engine".to_owned(),
            state,
            version: None,
            reason: None,
            held_seconds: None,
            calls: UpdateCalls::default(),
            at: None,
        }],
        wait_seconds: 0.0,
    }
}

async fn status(store: &dyn TaskStore, version: &str, second: i64) -> UpdateStatus {
    store.weight_update(version, at(second)).await.unwrap().status
}

async fn the_same_update_again_is_the_same_and_another_is_refused_by_its_field(
    store: &dyn TaskStore,
) {
    assert_eq!(store.weight_target().await.unwrap(), None);
    let first = store.push_weights(update("1"), at(0)).await.unwrap();
    let again = store.push_weights(update("1"), at(5)).await.unwrap();
    assert!(first.created && !again.created);
    assert_eq!(first.update, again.update);
    let mut other = update("1");
    other.source = WeightSource::Disk { path: "/elsewhere".to_owned() };
    let refused = store.push_weights(other, at(5)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict(_)));
    assert!(refused.to_string().contains("`source`"), "{refused}");
    store.push_weights(update("2"), at(6)).await.unwrap();
    assert_eq!(status(store, "1", 6).await, UpdateStatus::Superseded);
    let target = store.weight_target().await.unwrap().unwrap();
    assert_eq!((target.ordinal, target.update), (2, update("2")));
    let listed = store.weight_updates(10, at(6)).await.unwrap();
    let versions: Vec<&str> = listed.iter().map(|one| one.request.version.as_str()).collect();
    assert_eq!(versions, ["2", "1"]);
    let unknown = store.weight_update("3", at(6)).await;
    assert!(matches!(unknown, Err(StoreError::NotFound { .. })));
}

async fn an_update_is_everywhere_once_every_living_node_says_so(store: &dyn TaskStore) {
    for name in ["a", "b"] {
        store.claim(&node(name), 0, at(0)).await.unwrap();
    }
    store.push_weights(update("1"), at(1)).await.unwrap();
    let told = store.weight_update("1", at(1)).await.unwrap();
    assert_eq!((told.status, told.engines.len()), (UpdateStatus::Rolling, 2));
    assert!(told.engines.iter().all(|engine| engine.state == WeightState::Waiting));
    store.note_weights(&report("a", 1, WeightState::Updating), at(2)).await.unwrap();
    store.note_weights(&report("a", 1, WeightState::Current), at(3)).await.unwrap();
    assert_eq!(status(store, "1", 3).await, UpdateStatus::Rolling);
    store.note_weights(&report("b", 1, WeightState::Current), at(4)).await.unwrap();
    let done = store.weight_update("1", at(5)).await.unwrap();
    assert_eq!((done.status, done.seconds), (UpdateStatus::Current, Some(3.0)));
    // Said again it is no later, and of another update it is nothing.
    store.note_weights(&report("b", 1, WeightState::Current), at(9)).await.unwrap();
    store.note_weights(&report("b", 7, WeightState::Fenced), at(9)).await.unwrap();
    assert_eq!(store.weight_update("1", at(9)).await.unwrap(), done);
    store.push_weights(update("2"), at(10)).await.unwrap();
    assert_eq!(status(store, "2", 10).await, UpdateStatus::Rolling);
}

/// A node that is lost is not waited for.
async fn an_engine_that_settled_otherwise_makes_it_partial(store: &dyn TaskStore) {
    for name in ["a", "b"] {
        store.claim(&node(name), 0, at(0)).await.unwrap();
    }
    store.push_weights(update("1"), at(1)).await.unwrap();
    store.note_weights(&report("a", 1, WeightState::Current), at(2)).await.unwrap();
    store.note_weights(&report("b", 1, WeightState::Fenced), at(2)).await.unwrap();
    let partial = store.weight_update("1", at(3)).await.unwrap();
    assert_eq!((partial.status, partial.seconds), (UpdateStatus::Partial, None));
    let later = i64::try_from(LIMITS.lease_ttl.as_secs()).unwrap() + 1;
    store.claim(&node("a"), 0, at(later)).await.unwrap();
    let without = store.weight_update("1", at(later)).await.unwrap();
    assert_eq!(without.status, UpdateStatus::Current);
    assert_eq!(without.engines.len(), 1, "{:?}", without.engines);
}

async fn what_did_not_come_through_is_pushed_again_under_its_name(store: &dyn TaskStore) {
    store.claim(&node("a"), 0, at(0)).await.unwrap();
    let first = store.push_weights(update("1"), at(1)).await.unwrap();
    // While it is on its way, the same is the same, and another way is another update.
    let patient = WeightUpdateRequest { deadline_seconds: 600.0, ..update("1") };
    assert!(!store.push_weights(update("1"), at(1)).await.unwrap().created);
    store.push_weights(patient.clone(), at(1)).await.unwrap_err();
    store.note_weights(&report("a", 1, WeightState::Unchanged), at(2)).await.unwrap();
    assert_eq!(status(store, "1", 2).await, UpdateStatus::Partial);
    // Other weights under the name would be what its tokens do not say.
    let other = WeightUpdateRequest { source: WeightSource::Label {}, ..update("1") };
    store.push_weights(other, at(3)).await.unwrap_err();
    let again = store.push_weights(patient.clone(), at(3)).await.unwrap();
    assert!(again.created);
    assert_eq!((again.update.ordinal, again.update.status), (2, UpdateStatus::Rolling));
    assert!(again.update.requested_at > first.update.requested_at);
    let target = store.weight_target().await.unwrap().unwrap();
    assert_eq!((target.ordinal, target.update), (2, patient));
    // What is said of the try before is none of this one.
    store.note_weights(&report("a", 1, WeightState::Current), at(4)).await.unwrap();
    assert_eq!(status(store, "1", 4).await, UpdateStatus::Rolling);
    store.note_weights(&report("a", 2, WeightState::Current), at(5)).await.unwrap();
    let done = store.weight_update("1", at(5)).await.unwrap();
    assert_eq!((done.status, done.seconds), (UpdateStatus::Current, Some(2.0)));
    assert_eq!(store.weight_updates(10, at(5)).await.unwrap().len(), 1);
}

async fn older_weights_are_the_newest_when_they_are_pushed_again(store: &dyn TaskStore) {
    store.claim(&node("a"), 0, at(0)).await.unwrap();
    for (version, second) in [("1", 1), ("2", 2)] {
        store.push_weights(update(version), at(second)).await.unwrap();
        let ordinal = u64::try_from(second).unwrap();
        store.note_weights(&report("a", ordinal, WeightState::Current), at(second)).await.unwrap();
    }
    let back = store.push_weights(update("1"), at(3)).await.unwrap();
    assert!(back.created);
    assert_eq!(store.weight_target().await.unwrap().unwrap().update, update("1"));
    assert_eq!(status(store, "2", 3).await, UpdateStatus::Superseded);
    store.note_weights(&report("a", 3, WeightState::Current), at(4)).await.unwrap();
    assert_eq!(status(store, "1", 4).await, UpdateStatus::Current);
    assert!(!store.push_weights(update("1"), at(5)).await.unwrap().created);
    let listed = store.weight_updates(10, at(6)).await.unwrap();
    let versions: Vec<&str> = listed.iter().map(|one| one.request.version.as_str()).collect();
    assert_eq!(versions, ["1", "2"]);
}

/// A node tells of all its engines, so that what it does not tell of has left it.
async fn an_engine_that_its_node_no_longer_has_is_not_waited_for(store: &dyn TaskStore) {
    for name in ["a", "b"] {
        store.claim(&node(name), 0, at(0)).await.unwrap();
    }
    store.push_weights(update("1"), at(1)).await.unwrap();
    store.note_weights(&report("b", 1, WeightState::Current), at(2)).await.unwrap();
    let mut two = report("a", 1, WeightState::Fenced);
    two.engines.extend(report("a", 1, WeightState::Current).engines);
    two.engines[1].engine = "http://another".to_owned();
    store.note_weights(&two, at(2)).await.unwrap();
    let told = store.weight_update("1", at(3)).await.unwrap();
    assert_eq!((told.status, told.engines.len()), (UpdateStatus::Partial, 3));
    let one = WeightReport { engines: two.engines.split_off(1), ..two };
    store.note_weights(&one, at(4)).await.unwrap();
    let told = store.weight_update("1", at(4)).await.unwrap();
    assert_eq!((told.status, told.seconds), (UpdateStatus::Current, Some(3.0)));
    let left: Vec<&str> = told.engines.iter().map(|engine| engine.engine.as_str()).collect();
    assert_eq!(left, ["http://another", "http://engine"]);
}
