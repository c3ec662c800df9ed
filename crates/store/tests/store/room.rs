//! Memory and disk of nodes, told once and run against each store.

use crate::samples::{at, node, task};
use polar_store::{Claimed, TaskStore};
use polar_types::{NodeInfo, NodeRoom};
use serde_json::json;

on_every_store!(
    a_node_gets_what_it_has_room_for_and_nothing_overtakes_what_waits,
    a_session_that_fits_nowhere_is_handed_to_nobody,
    what_asks_for_nothing_waits_for_no_room,
);

fn with_memory(name: &str, free: u64, all: u64) -> NodeInfo {
    let room = NodeRoom { memory_mb: Some(all), free_memory_mb: Some(free), ..NodeRoom::default() };
    NodeInfo { room, ..node(name) }
}

fn names(claimed: &Claimed) -> Vec<&str> {
    claimed.leases.iter().map(|lease| lease.session_id.as_str()).collect()
}

fn limited(memory_mb: u64) -> serde_json::Value {
    json!({ "type": "local", "memory_mb": memory_mb })
}

async fn a_node_gets_what_it_has_room_for_and_nothing_overtakes_what_waits(store: &dyn TaskStore) {
    let tasks = vec![
        task("small", json!({ "priority": 2, "runtime": limited(300) })),
        task("large", json!({ "priority": 1, "runtime": limited(800) })),
        task("tiny", json!({ "num_samples": 3, "runtime": limited(16) })),
    ];
    store.submit(tasks, at(0)).await.unwrap();
    let claimed = store.claim(&with_memory("n1", 1000, 1000), 9, at(1)).await.unwrap();
    assert_eq!((names(&claimed), claimed.lacks_room), (vec!["small-s0"], true));
    // However often it asks, the large one is next, on the first node that has the room.
    let claimed = store.claim(&with_memory("n1", 700, 1000), 9, at(2)).await.unwrap();
    assert_eq!((names(&claimed), claimed.lacks_room), (vec![], true));
    let claimed = store.claim(&with_memory("n2", 832, 1000), 9, at(3)).await.unwrap();
    assert_eq!(
        (names(&claimed), claimed.lacks_room),
        (vec!["large-s0", "tiny-s0", "tiny-s1"], true)
    );
    let claimed = store.claim(&with_memory("n1", 700, 1000), 9, at(4)).await.unwrap();
    assert_eq!((names(&claimed), claimed.lacks_room), (vec!["tiny-s2"], false));
}

async fn a_session_that_fits_nowhere_is_handed_to_nobody(store: &dyn TaskStore) {
    let tasks = vec![
        task("large", json!({ "priority": 1, "runtime": limited(1001) })),
        task("small", json!({ "runtime": limited(16) })),
    ];
    store.submit(tasks, at(0)).await.unwrap();
    // It holds up nobody where it could never run.
    let claimed = store.claim(&with_memory("n1", 1000, 1000), 9, at(1)).await.unwrap();
    assert_eq!((names(&claimed), claimed.lacks_room), (vec!["small-s0"], false));
}

async fn what_asks_for_nothing_waits_for_no_room(store: &dyn TaskStore) {
    store.submit(vec![task("plain", json!({ "num_samples": 2 }))], at(0)).await.unwrap();
    let claimed = store.claim(&with_memory("n1", 0, 1000), 1, at(1)).await.unwrap();
    assert_eq!((names(&claimed), claimed.lacks_room), (vec!["plain-s0"], false));
    // Nodes of older versions do not say what they have.
    store.submit(vec![task("large", json!({ "runtime": limited(9999) }))], at(2)).await.unwrap();
    assert_eq!(names(&store.claim(&node("n2"), 9, at(3)).await.unwrap()), ["large-s0", "plain-s1"]);
}
