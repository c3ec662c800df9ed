//! What the user can type after `polar verify`, `polar drift` and `polar regrade`.

use super::{EngineArgs, ServerAddress};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Tasks on a server, journals, or exported trajectories (JSON, JSONL). A trajectory is held
    /// against the journal of its session where that is given too.
    #[arg(value_name = "TASK|FILE", required = true)]
    pub(crate) targets: Vec<String>,

    /// Share of the traces to score again on an engine with the same weights, which --engine
    /// names: 0.1 is every tenth.
    #[arg(long, value_name = "0..1", requires = "engine", value_parser = share)]
    pub(crate) rescore: Option<f64>,

    /// Largest difference of a logprob that is right; above it the exit code is 1. How exact an
    /// engine is differs: 32-bit floats on a CPU are within 2e-5, bfloat16 on a GPU within some
    /// tenths, and a wrong token before is mostly far above.
    #[arg(long, value_name = "NUMBER", requires = "rescore", value_parser = difference)]
    pub(crate) max_delta: Option<f64>,

    /// Print JSON instead of lines.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,

    #[command(flatten)]
    pub(crate) server: ServerAddress,
}

#[derive(Debug, Args)]
pub(crate) struct Regrade {
    /// Task whose sessions to grade again.
    #[arg(value_name = "TASK")]
    pub(crate) task: String,

    /// One of its sessions; may be given several times. All that can be when not given.
    #[arg(long = "session", value_name = "SESSION")]
    pub(crate) sessions: Vec<String>,

    /// File with another evaluator: YAML or JSON, or a task file, whose `evaluator` is taken. The
    /// task's own when not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) evaluator: Option<PathBuf>,

    /// Print the sessions as JSON instead of lines.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: ServerAddress,
}

#[derive(Debug, Args)]
pub(crate) struct Drift {
    /// Tasks on a server, journals, or exported trajectories (JSON, JSONL).
    #[arg(value_name = "TASK|FILE", required = true)]
    pub(crate) targets: Vec<String>,

    /// Print JSON instead of text.
    #[arg(long)]
    pub(crate) json: bool,

    /// Engine to turn ids into text with; the one that sampled them when not given.
    #[arg(long, env = "POLAR_ENGINE", value_name = "ADDRESS", value_parser = address)]
    pub(crate) engine: Option<String>,

    #[command(flatten)]
    pub(crate) server: ServerAddress,
}

/// A variable that is set to nothing would otherwise be an address like any other.
pub(super) fn address(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("it is empty; say `host:port` or a URL, or unset the variable".to_owned()),
        address => Ok(address.to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("a share is a number above 0 and up to 1, for example 0.1".to_owned()),
    }
}

fn difference(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(most) if most >= 0.0 && most.is_finite() => Ok(most),
        _ => Err("a difference is a number from 0 on, for example 2e-5".to_owned()),
    }
}
