//! What becomes of a history that a harness does not keep as it was sampled.

use serde::{Deserialize, Serialize};

/// What the engine gets of an earlier turn of the model that its harness has dropped or trimmed.
///
/// Either way each call's record says what was done, and a call's arguments get their sampled
/// spelling back where the harness has only spelled them otherwise.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum HistoryPolicy {
    /// Reasoning that the harness leaves out, and blanks that it trims, are put back, so that the
    /// model goes on from what it sampled and a session stays one sequence to train on. The
    /// model's template still decides which reasoning it shows.
    #[default]
    Restored,
    /// The engine gets what the harness sends, as it would without Polar: each turn that lost its
    /// reasoning begins a new trace.
    AsSent,
}
