//! Where engines are and how they are used.

use super::ServerAddress;
use clap::{Args, Subcommand, ValueEnum};
use polar_engine::{ParserChoice, ReasoningFormat, ToolFormat};
use polar_types::engine_weight_problem;
use std::path::PathBuf;

/// One engine.
#[derive(Debug, Clone, Args)]
pub(crate) struct EngineArgs {
    /// Inference server, as `host:port` or a URL.
    #[arg(
        long = "engine",
        visible_alias = "inference-server",
        alias = "inference_server",
        env = "POLAR_ENGINE",
        value_name = "ADDRESS",
        value_parser = super::checks::address
    )]
    pub(crate) engine: Option<String>,

    #[command(flatten)]
    pub(crate) how: EngineSettings,
}

/// The engines of a node.
#[derive(Debug, Clone, Args)]
pub(crate) struct EnginesArgs {
    /// Inference server, as `host:port` or a URL. Several of the same model may be given, one after
    /// the other or with commas: sessions are spread over them. One with `=2` behind it gets twice
    /// the sessions of one without.
    #[arg(
        long = "engine",
        visible_alias = "inference-server",
        alias = "inference_server",
        env = "POLAR_ENGINE",
        value_name = "ADDRESS[=WEIGHT]",
        value_delimiter = ',',
        value_parser = weighted_address
    )]
    pub(crate) engine: Vec<WeightedAddress>,

    #[command(flatten)]
    pub(crate) how: EngineSettings,
}

/// Where an engine is, and its share of new sessions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WeightedAddress {
    pub(crate) address: String,
    pub(crate) weight: f64,
}

/// How engines are used.
#[derive(Debug, Clone, Args)]
pub(crate) struct EngineSettings {
    /// Kind of the inference server; found out when not given.
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) engine_kind: Option<EngineKindArg>,

    /// Model to ask the engine for; its only one when not given.
    #[arg(long, value_name = "NAME")]
    pub(crate) engine_model: Option<String>,

    /// API key for the engine.
    #[arg(long, env = "POLAR_ENGINE_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub(crate) engine_api_key: Option<String>,

    /// Parse tool calls in Polar, out of the engine's raw text: the name of a parser as in vLLM and
    /// SGLang, or `auto` for the one of the model's chat template.
    #[arg(long, env = "POLAR_TOOL_PARSER", value_name = "NAME")]
    pub(crate) tool_parser: Option<ParserChoice<ToolFormat>>,

    /// Parse reasoning in Polar, out of the engine's raw text: the name of a parser, or `auto`.
    #[arg(long, env = "POLAR_REASONING_PARSER", value_name = "NAME")]
    pub(crate) reasoning_parser: Option<ParserChoice<ReasoningFormat>>,

    /// Make prompts in Polar and give the engine ids, so that every turn goes on from exactly what
    /// was sampled. Needs the model's files: see --model-files.
    #[arg(long, env = "POLAR_TOKEN_MODE")]
    pub(crate) token_mode: bool,

    /// Folder with the model's tokenizer.json and chat template, for --token-mode, which this switches
    /// on; where the engine has its model from when not given, if that is on this machine.
    #[arg(long, env = "POLAR_MODEL_FILES", value_name = "FOLDER")]
    pub(crate) model_files: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineKindArg {
    Vllm,
    Sglang,
    #[value(name = "llamacpp", alias = "llama-cpp")]
    LlamaCpp,
    #[value(name = "tensorrt-llm", aliases = ["tensorrt_llm", "trtllm"])]
    TensorRtLlm,
}

/// `host:port`, or with a weight `host:port=2`.
fn weighted_address(text: &str) -> Result<WeightedAddress, String> {
    let Some((place, weight)) = text.rsplit_once('=') else {
        return Ok(WeightedAddress { address: super::checks::address(text)?, weight: 1.0 });
    };
    Ok(WeightedAddress { address: super::checks::address(place)?, weight: self::weight(weight)? })
}

pub(super) fn weight(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>();
    let number =
        number.map_err(|_| format!("the weight {text:?} is no number; say `=2`, for example"))?;
    match engine_weight_problem(number) {
        Some(problem) => Err(problem),
        None => Ok(number),
    }
}

/// Which engines nodes have, and changes of that.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Engines {
    #[command(subcommand)]
    pub(crate) change: Option<EngineChange>,

    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: ServerAddress,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EngineChange {
    /// Add an engine to a running node: it is checked, brought to the weights that all have, and
    /// gets sessions.
    Add(EngineWeigh),
    /// Let an engine take no more calls. Those under way end there, and its sessions go to others.
    Drain(EngineOf),
    /// Let a drained engine take calls again.
    Resume(EngineOf),
    /// Drain an engine, and take it away once nothing is under way there.
    Remove(EngineOf),
    /// Give an engine another share of new sessions.
    Weight(EngineWeigh),
}

/// An engine of a node.
#[derive(Debug, Args)]
pub(crate) struct EngineOf {
    /// The engine, as `host:port` or a URL.
    #[arg(value_name = "ADDRESS", value_parser = super::checks::address)]
    pub(crate) engine: String,

    /// The node; the one that has the engine, or the only one, when not given.
    #[arg(long, value_name = "ID")]
    pub(crate) node: Option<String>,

    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: ServerAddress,
}

/// An engine and its weight.
#[derive(Debug, Args)]
pub(crate) struct EngineWeigh {
    #[command(flatten)]
    pub(crate) of: EngineOf,

    /// Its share of new sessions beside the weights of the others: with 2 it gets twice those of
    /// one with 1.
    #[arg(long, default_value_t = 1.0, value_name = "WEIGHT", value_parser = weight)]
    pub(crate) weight: f64,
}
