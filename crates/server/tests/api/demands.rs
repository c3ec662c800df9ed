//! Tasks that no node can run.

use crate::support::{Fixture, node_info, shell_task};
use polar_types::{LeaseRequest, NodeInfo, RuntimeOffer};
use reqwest::StatusCode;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A node whose local sandboxes have no limits of the kernel's.
fn plain_node() -> NodeInfo {
    let why = "no cgroups may be made; run the node as root";
    NodeInfo {
        offers: vec![RuntimeOffer {
            runtime: "local".to_owned(),
            holds: BTreeSet::new(),
            refuses: BTreeMap::from([("memory_mb".to_owned(), why.to_owned())]),
        }],
        ..node_info("n1", "boot-1")
    }
}

async fn ask_for_work(fixture: &Fixture, node: NodeInfo) {
    let path = format!("/api/nodes/{}/lease", node.node_id);
    let ask = LeaseRequest { node, free: 0, wait_seconds: 0.0 };
    let (status, answer) = fixture.post(&path, &ask).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
}

fn apptainer(name: &str) -> Value {
    shell_task(json!({ "task_id": name, "runtime": { "type": "apptainer", "image": "/a.sif" } }))
}

fn limited(name: &str) -> Value {
    shell_task(json!({ "task_id": name, "runtime": { "type": "local", "memory_mb": 64 } }))
}

#[tokio::test]
async fn a_task_that_no_node_can_run_is_refused_with_field_runtime_and_mend() {
    let fixture = Fixture::start().await;
    // Nobody is there who could say.
    for task in [apptainer("early"), limited("early-too")] {
        let (status, answer) = fixture.post("/api/tasks", &task).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }
    ask_for_work(&fixture, plain_node()).await;
    for (task, field, words) in [
        (apptainer("a"), "runtime.type", vec!["no node offers apptainer", "local", "polar doctor"]),
        (limited("b"), "runtime.memory_mb", vec!["local runtime", "n1: no cgroups", "as root"]),
    ] {
        let (status, answer) = fixture.post("/api/tasks", &task).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
        let problem = &answer["error"]["problems"][0];
        assert_eq!(problem["field"], field);
        let said = problem["problem"].as_str().unwrap();
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    let (status, answer) =
        fixture.post("/api/tasks", &json!([shell_task(json!({})), limited("c")])).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(answer["error"]["problems"][0]["field"], "tasks[1].runtime.memory_mb");

    // What was accepted before says what it waits for, and may be submitted again.
    for (name, why) in [
        ("early", "no node offers apptainer"),
        ("early-too", "runtime.memory_mb: no node can hold to this with the local runtime"),
    ] {
        let (_, session) = fixture.get(&format!("/api/sessions/{name}-s0")).await;
        let waits = session["waiting_for"].as_str().unwrap();
        assert!(waits.contains(why), "{waits}");
        let (_, all) = fixture.get(&format!("/api/tasks/{name}/sessions")).await;
        assert_eq!(all["sessions"][0]["waiting_for"], waits);
    }
    let (status, _) = fixture.post("/api/tasks", &apptainer("early")).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_node_that_can_is_enough_and_gets_it() {
    let fixture = Fixture::start().await;
    ask_for_work(&fixture, plain_node()).await;
    ask_for_work(&fixture, node_info("n2", "boot-1")).await;
    let (status, answer) = fixture.post("/api/tasks", &limited("b")).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    // The other one is not given it.
    let ask = LeaseRequest { node: plain_node(), free: 1, wait_seconds: 0.0 };
    let (_, answer) = fixture.post("/api/nodes/n1/lease", &ask).await;
    assert_eq!(answer["leases"], json!([]));
    assert_eq!(fixture.lease("n2", 1).await.len(), 1);
}
