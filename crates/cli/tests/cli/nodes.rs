//! Several nodes on one machine: one for each of its GPUs.

use crate::support::{User, shown, until};
use std::collections::BTreeMap;

#[test]
fn nodes_of_one_machine_get_names_of_their_own_and_a_name_that_is_taken_is_refused() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let (_server, [server]) = user.start(&["rollout-server", "--port=0"], ["control API"]);
    let gateway = |state: &str, more: &[&str]| {
        let state = format!("--state={}", user.path(state).display());
        let node = ["gateway", "--rollout-server", &server, "--engine", &engine, &state];
        let ports = ["--port=0", "--control-port=0", "--local-isolation=process"];
        [&node[..], &ports, more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let start = |arguments: Vec<String>| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        user.start(&arguments, ["control  "]).0
    };
    let _first = start(gateway("gpu0", &[]));
    let _second = start(gateway("gpu1", &[]));
    let third = start(gateway("gpu2", &["--node-id=taken"]));
    until("three nodes to be seen", || boots(&user, &server).len() == 3);

    let same = gateway("gpu3", &["--node-id=taken"]);
    let same: Vec<&str> = same.iter().map(String::as_str).collect();
    let refused = user.run(&same);
    let said = shown(&refused);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    for part in ["409", "\"taken\"", "another running node", "--node-id"] {
        assert!(said.contains(part), "{said}");
    }

    // Killed and started again, the node that has the name goes on at once.
    let before = boots(&user, &server);
    drop(third);
    let _again = start(gateway("gpu2", &["--node-id=taken"]));
    until("the node to be seen again", || boots(&user, &server)["taken"] != before["taken"]);
    assert_eq!(boots(&user, &server).len(), 3);
}

/// The processes that the server knows, by the names of their nodes.
fn boots(user: &User, server: &str) -> BTreeMap<String, String> {
    let status = user.run(&["status", "--server", server, "--json"]);
    assert!(status.status.success(), "{}", shown(&status));
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let nodes = status["nodes"].as_array().unwrap().iter().map(|seen| &seen["node"]);
    nodes.map(|node| (text(&node["node_id"]), text(&node["boot_id"]))).collect()
}
