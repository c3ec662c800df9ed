//! Weights that move under running agents: what a trainer asks for, and how far each engine is.
//!
//! Nodes ask the server, as for everything: it never connects to them.

use crate::{FieldProblem, NodeId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// Longest name of a version.
const LONGEST_VERSION: usize = 128;
/// Longest time that an engine may be held up for new weights, in seconds.
const LONGEST_DEADLINE: f64 = 3600.0;

/// `POST /api/weights`: new weights for every engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WeightUpdateRequest {
    /// Names the weights, in engines and in every trace: a step, a hash. The same version sent
    /// again is the same update.
    pub version: String,
    /// How an engine gets them.
    pub source: WeightSource,
    /// What becomes of calls that are under way.
    #[serde(default)]
    pub mode: UpdateMode,
    /// How long one engine may be held up, in seconds, up to 3600. Calls wait no longer for it.
    #[serde(default = "WeightUpdateRequest::usual_deadline")]
    pub deadline_seconds: f64,
}

impl WeightUpdateRequest {
    fn usual_deadline() -> f64 {
        120.0
    }

    /// What is wrong with it.
    pub fn problems(&self) -> Vec<FieldProblem> {
        let mut found = Vec::new();
        if !is_word(&self.version) {
            let what = format!(
                "must be 1 to {LONGEST_VERSION} letters, digits, `.`, `_`, `-`, `:` or `+`, \
                 beginning with a letter or digit"
            );
            found.push(FieldProblem::new("version", what, r#""17""#));
        }
        if !(self.deadline_seconds > 0.0 && self.deadline_seconds <= LONGEST_DEADLINE) {
            let what = format!("must be more than 0 and at most {LONGEST_DEADLINE}");
            found.push(FieldProblem::new("deadline_seconds", what, "120"));
        }
        self.source.problems(&mut found);
        found
    }

    /// The first field in which another request for the same version differs.
    pub fn differs_in(&self, other: &Self) -> Option<&'static str> {
        if self.source != other.source {
            Some("source")
        } else if self.mode != other.mode {
            Some("mode")
        } else if self.deadline_seconds != other.deadline_seconds {
            Some("deadline_seconds")
        } else {
            None
        }
    }
}

/// Whether a version can stand in a path and a table as it is.
fn is_word(version: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-:+".contains(c);
    version.starts_with(|c: char| c.is_ascii_alphanumeric())
        && version.len() <= LONGEST_VERSION
        && version.chars().all(plain)
}

/// Where an engine has its new weights from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum WeightSource {
    /// A checkpoint on a disk that the engine sees.
    Disk {
        /// Folder of the checkpoint, on the engine's machine.
        path: String,
    },
    /// A LoRA adapter, put in the place of the one of the same name. Sessions sample with it
    /// where the node was given that name as its model.
    Lora {
        /// Name under which the engine serves it.
        name: String,
        /// Folder of the adapter, on the engine's machine.
        path: String,
    },
    /// The engine's own way, as from the trainer's GPUs into the engine's.
    Engine {
        /// What is sent to the engine while it is paused, in order.
        requests: Vec<EngineCall>,
    },
    /// The trainer has moved them itself: only the version is told.
    Label {},
}

impl WeightSource {
    /// Whether it can be had again, for an engine that comes back with old weights.
    pub fn is_repeatable(&self) -> bool {
        matches!(self, Self::Disk { .. } | Self::Lora { .. })
    }

    fn problems(&self, found: &mut Vec<FieldProblem>) {
        let mut must_be_said = |field: &str, value: &str, example: &str| {
            if value.is_empty() {
                found.push(FieldProblem::new(field, "must not be empty", example));
            }
        };
        match self {
            Self::Disk { path } => must_be_said("source.disk.path", path, r#""/ckpt/17""#),
            Self::Lora { name, path } => {
                must_be_said("source.lora.name", name, r#""policy""#);
                must_be_said("source.lora.path", path, r#""/lora/17""#);
            }
            Self::Engine { requests } => {
                if requests.is_empty() {
                    must_be_said("source.engine.requests", "", r#"[{"path": "/update_weights"}]"#);
                }
                for (index, call) in requests.iter().enumerate() {
                    if !call.path.starts_with('/') || call.path.contains("://") {
                        let field = format!("source.engine.requests[{index}].path");
                        let what = "must be a path on the engine, beginning with a slash";
                        found.push(FieldProblem::new(field, what, r#""/update_weights""#));
                    }
                }
            }
            Self::Label {} => {}
        }
    }
}

/// One `POST` to an engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineCall {
    /// Path on the engine, with its query.
    pub path: String,
    /// JSON body.
    #[serde(default)]
    pub body: Map<String, Value>,
}

/// What becomes of calls that are under way when weights change. New calls wait in every mode,
/// and none is ever cut for its harness.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpdateMode {
    /// They end on the old weights first. Every reply is of one version.
    Drain,
    /// They stand still and go on in place with the new weights, behind what the engine has
    /// cached of them.
    #[default]
    Pause,
    /// They are ended in the engine and sampled on, behind their exact ids, by the new weights:
    /// nothing of the old ones is left in the engine.
    Continue,
}

impl UpdateMode {
    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Pause => "pause",
            Self::Continue => "continue",
        }
    }
}

/// How far an engine is with an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WeightState {
    /// Not begun.
    Waiting,
    /// No new call begins, and those under way come to their end or stand still.
    Draining,
    /// It loads.
    Updating,
    /// It is asked for its version and for a token.
    Verifying,
    /// It serves the new weights.
    Current,
    /// It serves its old weights as before: the update did not begin there.
    Unchanged,
    /// It serves nothing, since its weights are not those that are wanted. It is tried again.
    Fenced,
}

impl WeightState {
    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Draining => "draining",
            Self::Updating => "updating",
            Self::Verifying => "verifying",
            Self::Current => "current",
            Self::Unchanged => "unchanged",
            Self::Fenced => "fenced",
        }
    }

    /// Whether nothing more happens by itself, or only that a fenced engine is tried again.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Current | Self::Unchanged | Self::Fenced)
    }
}

/// What an update meant for the calls of one engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct UpdateCalls {
    /// Under way when it began.
    pub in_flight: u64,
    /// Came while it was on, and waited.
    pub held: u64,
    /// Of those under way: went on in place.
    pub kept: u64,
    /// Of those under way: were sampled on behind their ids.
    pub continued: u64,
    /// Tokens that were sampled and thrown away.
    pub tokens_wasted: u64,
}

/// One engine and the weights it has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EngineWeights {
    /// The node it is behind; filled in by the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<NodeId>,
    /// Its URL.
    pub engine: String,
    /// How far it is.
    pub state: WeightState,
    /// The version it serves, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Why it is where it is, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Seconds for which calls were held up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_seconds: Option<f64>,
    /// Its calls.
    #[serde(default)]
    pub calls: UpdateCalls,
    /// When it was heard of last (RFC 3339, UTC); filled in by the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

impl fmt::Display for EngineWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.state.as_str())?;
        match &self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

/// Where an update stands as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpdateStatus {
    /// Some engine has not settled.
    Rolling,
    /// Every engine of every node serves it.
    Current,
    /// Every engine has settled, and some do not serve it.
    Partial,
    /// A newer update has taken its place.
    Superseded,
}

/// An update, as `GET /api/weights/{version}` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WeightUpdate {
    /// What was asked for.
    #[serde(flatten)]
    pub request: WeightUpdateRequest,
    /// Counts updates, from 1.
    pub ordinal: u64,
    /// Where it stands.
    pub status: UpdateStatus,
    /// When it was asked for (RFC 3339, UTC).
    pub requested_at: String,
    /// From then until the last engine had it, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Every engine of every node that is alive, and those that had it before they were lost.
    pub engines: Vec<EngineWeights>,
}

/// Answer to `GET /api/weights`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WeightUpdateList {
    /// The version that every engine is to have; none before the first update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Newest first.
    pub updates: Vec<WeightUpdate>,
}

/// What a node is to bring its engines to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WeightTarget {
    /// Counts updates, from 1.
    pub ordinal: u64,
    /// The update.
    pub update: WeightUpdateRequest,
}

/// `POST /api/nodes/{id}/weights`: how far a node's engines are. Held open until there is
/// another target than the one known, so that a node learns of new weights at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WeightReport {
    /// Who reports.
    pub node_id: NodeId,
    /// The target that the node was last told; absent at first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<u64>,
    /// Its engines, as to that target.
    pub engines: Vec<EngineWeights>,
    /// How long the server may hold the request open, in seconds.
    #[serde(default)]
    pub wait_seconds: f64,
}

/// Answer to [`WeightReport`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WeightOrder {
    /// The newest update, if there was any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<WeightTarget>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> WeightUpdateRequest {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_short_request_is_a_whole_one() {
        let short = read(json!({"version": "17", "source": {"disk": {"path": "/ckpt/17"}}}));
        assert_eq!((short.mode, short.deadline_seconds), (UpdateMode::Pause, 120.0));
        assert!(short.problems().is_empty());
        let label = read(json!({"version": "v", "source": {"label": {}}}));
        assert!(label.problems().is_empty() && !label.source.is_repeatable());
    }

    #[test]
    fn every_wrong_field_is_named() {
        let wrong = read(json!({
            "version": "", "deadline_seconds": 0.0, "source": {"engine": {"requests": [
                {"path": "http://elsewhere/"}]}},
        }));
        let fields: Vec<String> = wrong.problems().into_iter().map(|p| p.field).collect();
        let expected = ["version", "deadline_seconds", "source.engine.requests[0].path"];
        assert_eq!(fields, expected);
        let lora = read(json!({"version": "1", "source": {"lora": {"name": "", "path": ""}}}));
        assert_eq!(lora.problems().len(), 2);
    }

    #[test]
    fn the_field_that_differs_is_named() {
        let one = read(json!({"version": "17", "source": {"disk": {"path": "/a"}}}));
        let mut other = one.clone();
        assert_eq!(one.differs_in(&other), None);
        other.deadline_seconds = 1.0;
        assert_eq!(one.differs_in(&other), Some("deadline_seconds"));
        other.mode = UpdateMode::Drain;
        assert_eq!(one.differs_in(&other), Some("mode"));
        other.source = WeightSource::Label {};
        assert_eq!(one.differs_in(&other), Some("source"));
    }
}
