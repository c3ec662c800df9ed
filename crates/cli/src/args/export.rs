//! What the user can type after `polar export`.

use super::ServerAddress;
use clap::{Args, ValueEnum};
use polar_types::{CallRole, EndReason};
use serde::de::DeserializeOwned;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Tasks whose traces to write.
    #[arg(value_name = "TASK", required = true)]
    pub(crate) tasks: Vec<String>,

    /// `parquet`: a row of tokens for each trace; `jsonl`: a line of OpenAI messages, for
    /// supervised fine-tuning; `atif`: a line of Harbor's trajectory format.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: ExportFormat,

    /// File to write; with --held-out the folder of `train` and `test` files.
    #[arg(long, value_name = "PATH")]
    pub(crate) out: PathBuf,

    /// Only traces with a reward of at least this.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) min_reward: Option<f64>,

    /// Only traces with a reward of at most this.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) max_reward: Option<f64>,

    /// Only traces of these roles: `main`, `sub_agent`, ….
    #[arg(long, value_delimiter = ',', value_name = "ROLES", value_parser = word::<CallRole>)]
    pub(crate) role: Vec<CallRole>,

    /// Only sessions that ended so: `completed`, `agent_timeout`, ….
    #[arg(long, value_delimiter = ',', value_name = "REASONS", value_parser = word::<EndReason>)]
    pub(crate) reason: Vec<EndReason>,

    /// Only traces with at most so many tokens, of prompt and response together.
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u64>,

    /// Leave out traces with the same tokens as one before.
    #[arg(long)]
    pub(crate) dedupe: bool,

    /// Share of the groups to write to a file of their own, to test with. By the hash of a
    /// group's id, so that a group is on the same side in every export.
    #[arg(long, value_name = "0..1", value_parser = held_out)]
    pub(crate) held_out: Option<f64>,

    #[command(flatten)]
    pub(crate) server: ServerAddress,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    Parquet,
    Jsonl,
    Atif,
}

impl ExportFormat {
    /// The ending of its files.
    pub(crate) fn ending(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Jsonl | Self::Atif => "jsonl",
        }
    }
}

/// A word as JSON spells it.
fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|error: serde_json::Error| error.to_string())
}

fn held_out(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err("a share is a number between 0 and 1, for example 0.1".to_owned()),
    }
}
