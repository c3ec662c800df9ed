//! What nodes and the server say to each other. The node asks, the server answers:
//! outbound HTTP only, so nodes work behind firewalls and survive server restarts.

use crate::{Epoch, GroupId, NodeId, SessionId, Stage, TaskSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many sessions a node can hold in each stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Slots {
    /// Sandboxes being prepared at a time.
    pub prepare: u32,
    /// Prepared sessions that may wait for a run slot.
    pub ready: u32,
    /// Harnesses running at a time.
    pub run: u32,
    /// Sessions being graded at a time.
    pub grade: u32,
}

impl Default for Slots {
    fn default() -> Self {
        Self { prepare: 4, ready: 4, run: 8, grade: 4 }
    }
}

impl Slots {
    /// Most sessions a node holds at once.
    pub fn total(&self) -> u32 {
        self.prepare + self.ready + self.run + self.grade
    }
}

/// What a node says of itself with each request for work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NodeInfo {
    /// Its name, stable over restarts.
    pub node_id: NodeId,
    /// New with each start of the process, so that the server notices a restart.
    pub boot_id: String,
    /// Its version of Polar.
    pub version: String,
    /// Its capacity.
    pub slots: Slots,
    /// Runtimes that work there: `local`, `docker`.
    pub runtimes: Vec<String>,
    /// The engine behind its gateway, for people: kind, URL, model.
    pub engine: String,
    /// Sessions it holds per stage.
    #[serde(default)]
    pub held: BTreeMap<String, u32>,
}

/// `POST /api/nodes/{id}/lease`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LeaseRequest {
    /// Who asks.
    pub node: NodeInfo,
    /// Sessions it can take now.
    pub free: u32,
    /// How long the server may hold the request open when there is no work, in seconds.
    #[serde(default)]
    pub wait_seconds: f64,
}

/// A session handed to a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Lease {
    /// Which session.
    pub session_id: SessionId,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// Fencing token; every later message about the session carries it.
    pub epoch: Epoch,
    /// Which of the task's samples, from 0.
    pub sample_index: u32,
    /// Which group its reward is compared in.
    pub group_id: GroupId,
    /// What to do.
    pub task: TaskSpec,
}

/// Answer to [`LeaseRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LeaseResponse {
    /// At most `free` sessions.
    pub leases: Vec<Lease>,
    /// Seconds a lease lives without a renewal. Renew every third of it.
    pub ttl_seconds: f64,
}

/// One held session in a [`RenewRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RenewItem {
    /// Which session.
    pub session_id: SessionId,
    /// Its fencing token.
    pub epoch: Epoch,
    /// Where it stands.
    pub stage: Stage,
    /// What it waits for, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
}

/// `POST /api/nodes/{id}/renew`: all leases of a node in one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RenewRequest {
    /// Who asks.
    pub node: NodeInfo,
    /// Every session it holds.
    pub items: Vec<RenewItem>,
}

/// Answer to [`RenewRequest`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RenewResponse {
    /// Leases that are no longer the node's; it kills these sessions and reports nothing.
    pub lost: Vec<SessionId>,
    /// Sessions the client cancelled; the node ends them and reports `cancelled`.
    pub cancelled: Vec<SessionId>,
}

/// Answer to `POST /api/sessions/{id}/result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResultAck {
    /// Stored; this report is the attempt's.
    Accepted,
    /// The same report was stored before; nothing changed.
    Repeated,
    /// The lease was no longer valid; the report is kept with its attempt for people to
    /// see, and is never delivered to a trainer.
    Stale,
}
