//! Tasks, nodes, reports and times for tests.

use jiff::{SignedDuration, Timestamp};
use polar_store::{Limits, NewRegrade, NewTask};
use polar_types::{
    ErrorClass, Known, Lease, NodeInfo, NodeRoom, Outcome, ReleaseItem, ReleaseRequest, RenewItem,
    RenewRequest, SessionReport, Side, Slots, Stage, StageTimes, TaskRequest, TokenCounts,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const LIMITS: Limits = Limits {
    lease_ttl: Duration::from_secs(60),
    cancel_grace: Duration::from_secs(30),
    overdue_slack: Duration::from_secs(100),
    queue_limit: Duration::from_secs(10_000),
    retry_pause: Duration::from_secs(5),
    longest_retry_pause: Duration::from_secs(30),
};

/// Seconds a node may hold a session of the default budgets under [`LIMITS`].
pub(crate) const LONGEST_HOLD: i64 = 600 + 1800 + 600 + 100;

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_000_000 + seconds)
}

pub(crate) fn task(id: &str, fields: Value) -> NewTask {
    let mut request = json!({ "task_id": id, "harness": "pi", "instruction": "Do it." });
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let body_hash = request.to_string();
    let request: TaskRequest = serde_json::from_value(request).unwrap();
    let known = Known {
        harnesses: vec!["pi".to_owned()],
        default_image: Some("i".to_owned()),
        ..Known::default()
    };
    let spec = request.resolve(id.parse().unwrap(), &known).unwrap();
    NewTask { spec, body_hash }
}

pub(crate) fn node(name: &str) -> NodeInfo {
    node_with(name, "boot-1", &["local", "docker"])
}

pub(crate) fn node_with(name: &str, boot: &str, runtimes: &[&str]) -> NodeInfo {
    NodeInfo {
        node_id: name.parse().unwrap(),
        boot_id: boot.to_owned(),
        instance_id: format!("folder-of-{name}"),
        version: "0".to_owned(),
        slots: Slots::default(),
        runtimes: runtimes.iter().map(|r| (*r).to_owned()).collect(),
        offers: Vec::new(),
        room: NodeRoom::default(),
        engine: "simulator".to_owned(),
        engines: Vec::new(),
        held: BTreeMap::new(),
        troubles: Vec::new(),
        engine_errors: 0,
    }
}

pub(crate) fn renewal(node: &NodeInfo, leases: &[&Lease], stage: Stage) -> RenewRequest {
    let item = |lease: &&Lease| RenewItem {
        session_id: lease.session_id.clone(),
        epoch: lease.epoch,
        stage,
        waiting_for: None,
    };
    RenewRequest { node: node.clone(), items: leases.iter().map(item).collect() }
}

pub(crate) fn release(node: &NodeInfo, lease: &Lease) -> ReleaseRequest {
    let item = ReleaseItem { session_id: lease.session_id.clone(), epoch: lease.epoch };
    let (node_id, reason) = (node.node_id.clone(), String::new());
    ReleaseRequest { node_id, items: vec![item], reason, failed: false }
}

pub(crate) fn report(lease: &Lease, outcome: Outcome) -> SessionReport {
    SessionReport {
        session_id: lease.session_id.clone(),
        regrade_of: None,
        epoch: lease.epoch,
        node_id: "n1".parse().unwrap(),
        outcome,
        reward: Some(1.0),
        grade_error: None,
        grade_note: None,
        grade: None,
        reason: None,
        reason_detail: None,
        hack_labels: Vec::new(),
        network: Default::default(),
        exit_code: Some(0),
        calls: 3,
        traces: 1,
        tokens: TokenCounts { sampled: 5, trained: 5, ..TokenCounts::default() },
        weight_versions: vec!["1".to_owned()],
        sizes: None,
        forks: BTreeMap::new(),
        roles: Default::default(),
        translation: Default::default(),
        times: StageTimes::default(),
        artifacts: Vec::new(),
    }
}

pub(crate) fn failure(side: Side) -> Outcome {
    Outcome::Failed { side, class: ErrorClass::Internal, message: "it broke".to_owned() }
}

/// Grading again by a command that this word tells apart.
pub(crate) fn new_regrade(session: &str, command: &str) -> NewRegrade {
    let evaluator = json!({ "type": "command", "command": command });
    NewRegrade {
        session: session.parse().unwrap(),
        evaluator: serde_json::from_value(evaluator).unwrap(),
    }
}

/// What a node reports of a lease that is for grading stored work.
pub(crate) fn regrade_report(lease: &Lease, reward: Option<f64>) -> SessionReport {
    let regrade_of = lease.regrade.as_ref().map(|order| order.session_id.clone());
    SessionReport { regrade_of, reward, ..report(lease, Outcome::Completed) }
}
