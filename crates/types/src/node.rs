//! What nodes and the server say to each other. The node asks, the server answers:
//! outbound HTTP only, so nodes work behind firewalls and survive server restarts.

use crate::{
    EngineStatus, Epoch, GroupId, NodeId, NodeRoom, RegradeOrder, RuntimeOffer, SessionId, Stage,
    TaskSpec,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// How many sessions a node can hold in each stage. With no place to prepare or to grade in,
/// that is done in the run slot; with neither, stages do not overlap.
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
    /// Graders' sandboxes that may be made, and wait, while agents still run. With 0 each is
    /// made once it is needed.
    pub warm: u32,
}

impl Default for Slots {
    fn default() -> Self {
        Self { prepare: 4, ready: 4, run: 8, grade: 4, warm: 8 }
    }
}

impl Slots {
    /// For so many harnesses at a time: prepared ahead and graded behind, so that run slots
    /// never wait for either.
    pub fn of_concurrency(run: u32) -> Self {
        let ahead = run.div_ceil(2);
        Self { prepare: ahead, ready: ahead, run, grade: ahead, warm: run }
    }

    /// Most sessions a node holds at once. Each has a sandbox; beside them there are at most
    /// `warm` and `grade` sandboxes of graders.
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
    /// Kept in its state folder, so that the server tells a restart of the same node from
    /// another one that goes by its name. Empty from nodes that keep none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instance_id: String,
    /// Its version of Polar.
    pub version: String,
    /// Its capacity.
    pub slots: Slots,
    /// Runtimes that work there: `local`, `docker`.
    pub runtimes: Vec<String>,
    /// What each of them can be asked for there; nothing from nodes of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offers: Vec<RuntimeOffer>,
    /// Memory and disk that its sandboxes may take.
    #[serde(default, skip_serializing_if = "NodeRoom::is_unlimited")]
    pub room: NodeRoom,
    /// The engines behind its gateway, for people: kind, URL, model of each.
    pub engine: String,
    /// Each of them, and how it is; nothing from nodes of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<EngineStatus>,
    /// Sessions it holds per stage.
    #[serde(default)]
    pub held: BTreeMap<String, u32>,
    /// What keeps it from beginning sessions now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<NodeTrouble>,
    /// Calls that its engine failed since it started, those among them that were held and went
    /// well later.
    #[serde(default)]
    pub engine_errors: u64,
}

/// Something that keeps a node from beginning sessions. It takes none meanwhile, or one to
/// see whether it is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NodeTrouble {
    /// What is out of order.
    pub kind: TroubleKind,
    /// What was seen of it.
    pub message: String,
    /// Since when (RFC 3339, UTC).
    pub since: String,
    /// Sessions that the node holds and that wait until it is over.
    #[serde(default)]
    pub waiting: u32,
}

impl fmt::Display for NodeTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            TroubleKind::Engine => "engine unreachable",
            TroubleKind::Sandbox => "sandboxes fail",
            TroubleKind::Disk => "disk fails",
        };
        write!(f, "{what} since {}", self.since)?;
        match self.waiting {
            0 => {}
            1 => write!(f, ", 1 session waits")?,
            waiting => write!(f, ", {waiting} sessions wait")?,
        }
        write!(f, ": {}", self.message)
    }
}

/// What of a node can be out of order.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum TroubleKind {
    /// Its engine cannot be reached, or fails every call.
    Engine,
    /// Sandboxes fail one after the other.
    Sandbox,
    /// Folders of sessions cannot be made, or there is no room left for them.
    Disk,
}

impl TroubleKind {
    /// All of them, for counts.
    pub const ALL: [Self; 3] = [Self::Engine, Self::Sandbox, Self::Disk];

    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Sandbox => "sandbox",
            Self::Disk => "disk",
        }
    }
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
    /// Where only stored work is to be graded, by the task's evaluator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regrade: Option<RegradeOrder>,
}

/// Answer to [`LeaseRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LeaseResponse {
    /// At most `free` sessions.
    pub leases: Vec<Lease>,
    /// Seconds a lease lives without a renewal. Renew every third of it.
    pub ttl_seconds: f64,
    /// Whether the next session would have come too, had the node room for it: ask again when
    /// there is more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lacks_room: bool,
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
    /// Leases that are no longer the node's; it ends these sessions. Calls it has recorded
    /// for them it may still report: they are kept with the attempt, see
    /// [`ResultAck::Stale`].
    pub lost: Vec<SessionId>,
    /// Sessions the client cancelled; the node ends them and reports `cancelled`.
    pub cancelled: Vec<SessionId>,
}

/// `POST /api/nodes/{id}/cancels`: held open until running sessions are cancelled, so that
/// the node need not wait for its next renewal to learn which.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CancelWatch {
    /// The count that the node was last told; absent at first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<u64>,
    /// How long the server may hold the request open, in seconds.
    #[serde(default)]
    pub wait_seconds: f64,
}

/// Answer to [`CancelWatch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CancelCount {
    /// Changes whenever running sessions were cancelled, on any node. When it is another
    /// than the one known, the node renews and is told its own.
    pub count: u64,
}

/// One session in a [`ReleaseRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReleaseItem {
    /// Which session.
    pub session_id: SessionId,
    /// Its fencing token.
    pub epoch: Epoch,
}

/// `POST /api/nodes/{id}/release`: a node that drains gives sessions back unfinished. They
/// are queued again without spending one of their attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReleaseRequest {
    /// Who gives back.
    pub node_id: NodeId,
    /// What it gives back; it has already stopped these.
    pub items: Vec<ReleaseItem>,
    /// Why, in words, for the server's log.
    #[serde(default)]
    pub reason: String,
    /// Whether they failed there, so that each pauses before it is tried again: it may be the
    /// task that fails, and every node would take it and give it back at once.
    #[serde(default)]
    pub failed: bool,
}

/// Answer to [`ReleaseRequest`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReleaseResponse {
    /// Sessions that were the node's and are queued again (or ended, when cancelled).
    pub released: Vec<SessionId>,
}

/// A node as `GET /api/nodes` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NodeSeen {
    /// What it last said of itself.
    pub node: NodeInfo,
    /// Sessions leased to it now.
    pub leased: u32,
    /// When it first asked for work (RFC 3339, UTC).
    pub first_seen_at: String,
    /// When it last asked for work or renewed (RFC 3339, UTC).
    pub last_seen_at: String,
    /// Whether it was heard of within the last lease time.
    pub alive: bool,
}

/// Answer to `GET /api/nodes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NodeList {
    /// By name.
    pub nodes: Vec<NodeSeen>,
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
