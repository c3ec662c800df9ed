//! Sampling parameters that a task pins.

use crate::FieldProblem;
use serde::{Deserialize, Serialize};

/// Values that replace whatever the harness sends. `None` leaves the harness's own; where it
/// sends none, temperature and `top_p` are 1 and all tokens are kept, whatever the engine's or
/// the model's own defaults are.
///
/// Harnesses send no sampling parameters or hard-coded ones, which would silently
/// take a run off policy; pins make the task the one source.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SamplingPins {
    /// Softmax temperature, 0 or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus mass, in (0, 1].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Number of most likely tokens kept; -1 keeps all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// Most tokens sampled per call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Random seed handed to the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Strings that end the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Vec<String>>,
}

impl SamplingPins {
    /// All values out of range, with paths under `prefix`.
    pub fn problems(&self, prefix: &str) -> Vec<FieldProblem> {
        let mut found = Vec::new();
        if self.temperature.is_some_and(|t| !t.is_finite() || t < 0.0) {
            found.push(FieldProblem::new(
                format!("{prefix}.temperature"),
                "must be a number of 0 or more",
                "1.0",
            ));
        }
        if self.top_p.is_some_and(|p| !p.is_finite() || p <= 0.0 || p > 1.0) {
            found.push(FieldProblem::new(
                format!("{prefix}.top_p"),
                "must be above 0 and at most 1",
                "0.95",
            ));
        }
        if self.top_k.is_some_and(|k| k == 0 || k < -1) {
            found.push(FieldProblem::new(
                format!("{prefix}.top_k"),
                "must be -1 (all tokens) or at least 1",
                "-1",
            ));
        }
        if self.max_tokens == Some(0) {
            found.push(FieldProblem::new(
                format!("{prefix}.max_tokens"),
                "must be at least 1",
                "4096",
            ));
        }
        if self.stop.as_ref().is_some_and(|s| s.iter().any(String::is_empty)) {
            found.push(FieldProblem::new(
                format!("{prefix}.stop"),
                "must not hold an empty string",
                r#"["</answer>"]"#,
            ));
        }
        found
    }
}
