//! `polar weights`.

use super::ServerAddress;
use clap::{Args, Subcommand, ValueEnum};
use polar_types::UpdateMode;

#[derive(Debug, Subcommand)]
pub(crate) enum Weights {
    /// Give every engine of every node other weights.
    Push(WeightsPush),
    /// Show the newest updates, and how far each engine is with them.
    Status(WeightsStatus),
}

#[derive(Debug, Args)]
pub(crate) struct WeightsPush {
    /// Names the weights, in engines and in traces: a step, a hash.
    #[arg(value_name = "VERSION")]
    pub(crate) version: String,

    #[command(flatten)]
    pub(crate) source: SourceArgs,

    /// What becomes of calls that are under way.
    #[arg(long, value_enum, default_value = "pause", value_name = "MODE")]
    pub(crate) mode: ModeArg,

    /// How long one engine may be held up, in seconds.
    #[arg(long, default_value_t = 120.0, value_name = "SECONDS")]
    pub(crate) deadline: f64,

    /// Wait until every engine is through with it, and exit with 1 where some does not serve it.
    #[arg(long)]
    pub(crate) wait: bool,

    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: ServerAddress,
}

/// Where engines have them from.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct SourceArgs {
    /// A checkpoint: its folder on the engine's machine.
    #[arg(long, value_name = "PATH")]
    pub(crate) disk: Option<String>,

    /// A LoRA adapter: its name in the engine, and its folder there.
    #[arg(long, value_name = "NAME=PATH")]
    pub(crate) lora: Option<String>,

    /// They are there already: only tell the version.
    #[arg(long)]
    pub(crate) label: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ModeArg {
    /// They end on the old weights first.
    Drain,
    /// They stand still and go on in place.
    Pause,
    /// They are sampled on behind their exact ids.
    Continue,
}

impl From<ModeArg> for UpdateMode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Drain => Self::Drain,
            ModeArg::Pause => Self::Pause,
            ModeArg::Continue => Self::Continue,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct WeightsStatus {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: ServerAddress,
}
