//! What becomes of a history that is not sent, or not rendered, as it was sampled.

use serde::{Deserialize, Serialize};

/// What the engine gets of an earlier turn of the model.
///
/// Harnesses drop reasoning and trim text, and the chat templates of reasoning models leave out
/// what was thought before the last question. Either way each call's record says what was done,
/// and a call's arguments get their sampled spelling back where the harness has only spelled
/// them otherwise.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum HistoryPolicy {
    /// What was sampled. Reasoning that the harness leaves out, and blanks that it trims, are put
    /// back. In token mode the engine gets the sampled ids themselves, also where the model's
    /// template would leave reasoning out: a conversation stays one sequence to train on, and
    /// grows by its reasoning. In chat mode the engine renders, so that it is as `template` there.
    #[default]
    Sampled,
    /// What the model's own template writes of it. What the harness dropped is put back, and the
    /// template decides what it shows: a turn that it writes otherwise begins a new trace.
    Template,
    /// What the harness sends, as the model would get it without Polar: each turn that lost its
    /// reasoning begins a new trace.
    AsSent,
}
