//! What the user can type after `polar harness`.

use super::{EngineArgs, Isolation};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum Harness {
    /// List the shipped adapters and whether each is installed.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Install an adapter's CLI into Polar's cache.
    Install {
        /// Adapter name, or path of an adapter YAML.
        #[arg(value_name = "NAME|PATH")]
        name: String,
    },
    /// Run an adapter's CLI through scenarios and say what works.
    ///
    /// Against the simulator, which plays each scenario's script, unless an engine is given.
    Check(Box<HarnessCheck>),
}

#[derive(Debug, Args)]
pub(crate) struct HarnessCheck {
    /// Adapter names, or paths of adapter YAMLs.
    #[arg(value_name = "NAME|PATH", required_unless_present = "all")]
    pub(crate) names: Vec<String>,

    /// Check all shipped adapters.
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,

    /// Scenario to run, or path of a scenario YAML; may be given again. All that need no
    /// fault when not given.
    #[arg(long = "scenario", value_name = "NAME|PATH", conflicts_with = "faults")]
    pub(crate) scenarios: Vec<String>,

    /// Run the scenarios in which the engine fails.
    #[arg(long)]
    pub(crate) faults: bool,

    /// Check the newest version that runs on this machine's Node or Python, too.
    #[arg(long, conflicts_with = "at")]
    pub(crate) newest: bool,

    /// Check this version in the place of the pinned one.
    #[arg(long = "version", id = "at", value_name = "VERSION")]
    pub(crate) version: Option<String>,

    /// Where they run.
    #[arg(long, value_enum, default_value_t = CheckRuntime::Local, value_name = "KIND")]
    pub(crate) runtime: CheckRuntime,

    /// Image, for all but the local one.
    #[arg(long, value_name = "IMAGE", required_if_eq_any([
        ("runtime", "docker"), ("runtime", "podman"), ("runtime", "apptainer"),
    ]))]
    pub(crate) image: Option<String>,

    /// Scenarios run at a time.
    #[arg(long, default_value_t = 2, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) parallel: u32,

    /// Take warnings for failures, as for adapters that ship.
    #[arg(long)]
    pub(crate) strict: bool,

    /// Keep what the sessions leave (journal, outputs, trajectory) in this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,

    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,

    /// Write the table to this file, as Markdown.
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,

    /// Command line, for the `shell` harness.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) command: Option<String>,

    /// Model name the harness is told.
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,

    /// Longest run of a scenario, in seconds.
    #[arg(long, default_value_t = 120.0, value_name = "SECONDS")]
    pub(crate) timeout: f64,

    /// How the sandbox is isolated.
    #[arg(long, value_enum, default_value_t = Isolation::Auto, value_name = "HOW")]
    pub(crate) local_isolation: Isolation,
}

/// Where a check runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckRuntime {
    Local,
    Docker,
    Podman,
    Apptainer,
}

impl CheckRuntime {
    /// The kind of sandbox.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Apptainer => "apptainer",
        }
    }
}
