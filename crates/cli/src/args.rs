//! What the user can type. Close to the words of the command line; no IO here.

mod checks;
mod engines;
mod export;
mod harness;
mod stages;
mod tasks;
mod weights;

pub(crate) use checks::{Drift, Regrade, Verify};
pub(crate) use engines::{
    EngineArgs, EngineChange, EngineKindArg, EngineOf, EngineSettings, EngineWeigh, Engines,
    EnginesArgs, WeightedAddress,
};
pub(crate) use export::{Export, ExportFormat};
pub(crate) use harness::{Harness, HarnessCheck};
pub(crate) use stages::StageArgs;
pub(crate) use tasks::{Import, ImportArgs, ImportHarbor, ImportJsonl, ImportSwebench, Tasks};
pub(crate) use weights::{Weights, WeightsPush, WeightsStatus};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory as _, FromArgMatches as _};
use clap::{Parser, Subcommand, ValueEnum};
use polar_sandbox::AllowedMount;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

/// Train any LLM agent by reinforcement learning, without changing the agent.
///
/// Polar stands between an agent and its inference engine, keeps the exact tokens and
/// logprobs, runs and grades sessions in sandboxes, and hands training traces to your
/// trainer. Start with `polar quickstart`.
#[derive(Debug, Parser)]
#[command(name = "polar", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// Log filter, for example `info` or `polar_gateway=debug`. Logs go to stderr.
    #[arg(long, global = true, env = "POLAR_LOG", default_value = "warn", value_name = "FILTER")]
    pub(crate) log: String,
}

impl Cli {
    /// What was typed, with what the environment says where nothing was. A process with a
    /// command line that cannot be understood ends here, with the reason.
    pub(crate) fn of_process() -> Self {
        let read = Self::command().try_get_matches().and_then(|found| Self::of_matches(&found));
        read.unwrap_or_else(|error| error.exit())
    }

    fn of_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut cli = Self::from_arg_matches(matches)?;
        if let (Command::Run(run), Some((_, found))) = (&mut cli.command, matches.subcommand()) {
            run.settle_place(found).map_err(|what| {
                Self::command().error(clap::error::ErrorKind::ArgumentConflict, what)
            })?;
        }
        Ok(cli)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run real agent CLIs on a demo task with everything embedded, and show the traces.
    Quickstart(Quickstart),
    /// Run a task and show reward, traces and where every token went.
    Run(Run),
    /// Start server, node and proxy in one process.
    Up(Up),
    /// Start the rollout server: takes tasks, hands sessions to gateway nodes.
    RolloutServer(RolloutServer),
    /// Start a gateway node: proxies LLM calls and runs sessions.
    Gateway(GatewayNode),
    /// Show tasks, or one task with its sessions.
    Status(Status),
    /// Cancel a task and end its sessions.
    Cancel(Cancel),
    /// Grade the stored work of a task's sessions again, without running the agent.
    ///
    /// Only rewards change. Returns when it is done, with the old rewards and the new ones; exits
    /// with 1 where one could not be graded, whose result stays as it was.
    Regrade(Regrade),
    /// Print the trajectories of a task.
    Trajectories(Trajectories),
    /// Write traces to a file: tokens as Parquet, messages as JSON lines, or ATIF.
    Export(Box<Export>),
    /// Check that training data is what was sampled: every token once, in its context.
    ///
    /// A task's trajectories are held against the journals that the server keeps. Exits with 1
    /// where something is not as it must be.
    Verify(Box<Verify>),
    /// Show why sessions are more than one trace, and what would heal it.
    Drift(Drift),
    /// Print what an ended session's agent and evaluator printed.
    Logs(Logs),
    /// Give all engines new weights while agents run, or show which they have.
    #[command(subcommand)]
    Weights(Weights),
    /// Show the engines of nodes, or add, drain, remove and weigh them while agents run.
    Engines(Engines),
    /// Make Polar tasks of tasks in another form: Harbor, SWE-bench, lines of JSON.
    #[command(subcommand)]
    Tasks(Tasks),
    /// List, check or install agent CLIs.
    #[command(subcommand)]
    Harness(Harness),
    /// Say what is missing on this machine and how to get it.
    Doctor(Doctor),
    /// Start an engine simulator that speaks vLLM's API and plays a scripted policy.
    SimulateEngine(SimulateEngine),
}

/// How to find a running server.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerAddress {
    /// Rollout server, as `host:port` or a URL.
    #[arg(long, env = "POLAR_SERVER", default_value = "localhost:50051", value_name = "ADDRESS",
        value_parser = checks::address)]
    pub(crate) server: String,

    /// Token of the control API. A server of yours on this machine needs none given: it is
    /// found in `~/.local/state/polar/token`, where such servers keep it.
    #[arg(long, env = "POLAR_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
}

/// What a node needs beside its engine.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeArgs {
    /// Port of the proxy that harnesses talk to; 0 picks a free one.
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    pub(crate) proxy_port: u16,

    /// Address the proxy binds to.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "IP")]
    pub(crate) proxy_host: IpAddr,

    /// Sessions run at a time.
    #[arg(long, default_value_t = 4, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) concurrency: u32,

    #[command(flatten)]
    pub(crate) stages: StageArgs,

    /// How local sandboxes are isolated.
    #[arg(long, value_enum, default_value_t = Isolation::Bubblewrap, value_name = "HOW")]
    pub(crate) local_isolation: Isolation,

    /// Folder of this machine that tasks may have shown in their sandboxes (`runtime.mounts`),
    /// with all below it; PATH:rw lets them write there. May be given several times.
    #[arg(long = "allow-mount", value_name = "PATH[:rw]", value_parser = allowed_mount)]
    pub(crate) allow_mounts: Vec<AllowedMount>,

    /// Name of this node among the server's, stable over restarts; when not given, the host
    /// name and some digits that are kept in the state folder.
    #[arg(long, value_name = "ID")]
    pub(crate) node_id: Option<String>,
}

fn allowed_mount(text: &str) -> Result<AllowedMount, String> {
    let (path, writable) = match text.strip_suffix(":rw") {
        Some(path) => (path, true),
        None => (text, false),
    };
    let path = PathBuf::from(path);
    if !path.is_absolute() {
        return Err("must be an absolute path".to_owned());
    }
    match path.metadata() {
        Ok(found) if found.is_dir() => Ok(AllowedMount { path, writable }),
        Ok(_) => Err("is not a folder".to_owned()),
        Err(error) => Err(format!("tasks could not be shown it: {error}")),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Isolation {
    /// Namespaces by bubblewrap: own processes, files and network.
    Bubblewrap,
    /// None: a plain process with the rights of this one. For trusted agents only.
    Process,
    /// bubblewrap where it works, else a plain process.
    Auto,
}

#[derive(Debug, Args)]
pub(crate) struct Quickstart {
    /// Agent CLIs to run.
    #[arg(long, value_delimiter = ',', default_value = "pi,claude_code", value_name = "NAMES")]
    pub(crate) harness: Vec<String>,

    /// Sessions per agent CLI.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) samples: u32,

    /// How the sandboxes are isolated.
    #[arg(long, value_enum, default_value_t = Isolation::Auto, value_name = "HOW")]
    pub(crate) local_isolation: Isolation,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Task files (YAML or JSON, or `.jsonl` with a task in each line).
    #[arg(value_name = "TASK", required = true)]
    pub(crate) tasks: Vec<PathBuf>,

    /// Sessions to run, instead of the task's `num_samples`.
    #[arg(long, value_name = "N")]
    pub(crate) samples: Option<u32>,

    /// Harness name, or path of an adapter YAML, instead of the task's own.
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) harness: Option<String>,

    /// Send the task to this running server instead of running it here.
    #[arg(long, env = "POLAR_SERVER", value_name = "ADDRESS", value_parser = checks::address)]
    pub(crate) server: Option<String>,

    /// Token of the control API. A server of yours on this machine needs none given: it is
    /// found in `~/.local/state/polar/token`, where such servers keep it.
    #[arg(long, env = "POLAR_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,

    #[command(flatten)]
    pub(crate) engine: EnginesArgs,

    #[command(flatten)]
    pub(crate) node: NodeArgs,

    /// Folder for state that is kept; when not given, nothing is kept.
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

impl Run {
    /// Leaves either a server or an engine: one that was typed wins over the environment.
    fn settle_place(&mut self, found: &ArgMatches) -> Result<(), &'static str> {
        if self.server.is_none() || self.engine.engine.is_empty() {
            return Ok(());
        }
        let is_typed = |id| found.value_source(id) == Some(ValueSource::CommandLine);
        match (is_typed("server"), is_typed("engine")) {
            (true, false) => self.engine.engine.clear(),
            (false, true) => self.server = None,
            (true, true) => {
                return Err("--server sends the task to a running server and --engine runs it \
                            here; say one of them");
            }
            (false, false) => {
                return Err("POLAR_SERVER and POLAR_ENGINE are both set; say --server or \
                            --engine, or unset one of them");
            }
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Port of the control API; 0 picks a free one.
    #[arg(long, default_value_t = 50051, value_name = "PORT")]
    pub(crate) port: u16,

    /// Address the control API binds to.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "IP")]
    pub(crate) host: IpAddr,

    /// Token that the control API asks for. When not given, one is made and kept in
    /// `~/.local/state/polar/token`, where commands and SDK on this machine find it.
    #[arg(long, env = "POLAR_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,

    /// Folder for the database, blobs and running sessions.
    #[arg(long, env = "POLAR_STATE", value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,

    /// Folder of this machine from which tasks of the published API (`POST /rollout/task/submit`)
    /// may have files, with all below it. May be given several times.
    #[arg(long = "upload-folder", value_name = "PATH")]
    pub(crate) upload_folders: Vec<PathBuf>,

    /// Seconds that running sessions may go on after Ctrl-C or SIGTERM.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub(crate) grace_seconds: u32,

    #[command(flatten)]
    pub(crate) engine: EnginesArgs,

    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RolloutServer {
    /// Port of the control API; 0 picks a free one.
    #[arg(long, default_value_t = 50051, value_name = "PORT")]
    pub(crate) port: u16,

    /// Address the control API binds to.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "IP")]
    pub(crate) host: IpAddr,

    /// Token that the control API asks for. When not given, one is made and kept in
    /// `~/.local/state/polar/token`, where commands and SDK on this machine find it.
    #[arg(long, env = "POLAR_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,

    /// Folder for the database and blobs. Must be on a local disk.
    #[arg(long, env = "POLAR_STATE", value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,

    /// Folder of this machine from which tasks of the published API (`POST /rollout/task/submit`)
    /// may have files, with all below it. May be given several times.
    #[arg(long = "upload-folder", value_name = "PATH")]
    pub(crate) upload_folders: Vec<PathBuf>,

    /// Seconds a lease lives without a renewal by its node.
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS")]
    pub(crate) lease_seconds: f64,

    /// Image of docker sessions that name none.
    #[arg(long, value_name = "IMAGE")]
    pub(crate) default_image: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct GatewayNode {
    /// Rollout server to take sessions from. Without it the gateway only proxies, and
    /// sessions are opened by hand through its control port.
    #[arg(long, alias = "rollout_server", env = "POLAR_SERVER", value_name = "ADDRESS",
        value_parser = checks::address)]
    pub(crate) rollout_server: Option<String>,

    /// Token of the rollout server, and of this node's own control API. When not given, the
    /// one in `~/.local/state/polar/token`, which must then be a server's on this machine.
    #[arg(long, env = "POLAR_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,

    /// Port of the proxy that harnesses talk to; 0 picks a free one.
    #[arg(long, visible_alias = "proxy-port", default_value_t = 8080, value_name = "PORT")]
    pub(crate) port: u16,

    /// Address the proxy binds to.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "IP")]
    pub(crate) host: IpAddr,

    /// Port of the node's own control API on loopback; 0 picks a free one.
    #[arg(long, default_value_t = 8081, value_name = "PORT")]
    pub(crate) control_port: u16,

    /// Sessions run at a time.
    #[arg(long, default_value_t = 4, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) concurrency: u32,

    #[command(flatten)]
    pub(crate) stages: StageArgs,

    /// How local sandboxes are isolated.
    #[arg(long, value_enum, default_value_t = Isolation::Bubblewrap, value_name = "HOW")]
    pub(crate) local_isolation: Isolation,

    /// Folder of this machine that tasks may have shown in their sandboxes (`runtime.mounts`),
    /// with all below it; PATH:rw lets them write there. May be given several times.
    #[arg(long = "allow-mount", value_name = "PATH[:rw]", value_parser = allowed_mount)]
    pub(crate) allow_mounts: Vec<AllowedMount>,

    /// Name of this node among the server's, stable over restarts; when not given, the host
    /// name and some digits that are kept in the state folder.
    #[arg(long, value_name = "ID")]
    pub(crate) node_id: Option<String>,

    /// Folder for running sessions.
    #[arg(long, env = "POLAR_STATE", value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,

    /// Seconds that running sessions may go on after Ctrl-C or SIGTERM.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub(crate) grace_seconds: u32,

    #[command(flatten)]
    pub(crate) engine: EnginesArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Task to show with its sessions; all tasks when not given.
    #[arg(value_name = "TASK")]
    pub(crate) task: Option<String>,

    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: ServerAddress,
}

#[derive(Debug, Args)]
pub(crate) struct Cancel {
    /// Task to cancel.
    #[arg(value_name = "TASK")]
    pub(crate) task: String,

    #[command(flatten)]
    pub(crate) server: ServerAddress,
}

#[derive(Debug, Args)]
pub(crate) struct Trajectories {
    /// Task whose trajectories to print.
    #[arg(value_name = "TASK")]
    pub(crate) task: String,

    /// `json`: one array; `jsonl`: one line per session; `text`: tokens coloured by mask.
    #[arg(long, value_enum, default_value_t = Format::Json)]
    pub(crate) format: Format,

    /// Engine to turn ids into text with; the one that sampled them when not given.
    #[arg(long, env = "POLAR_ENGINE", value_name = "ADDRESS", value_parser = checks::address)]
    pub(crate) engine: Option<String>,

    #[command(flatten)]
    pub(crate) server: ServerAddress,
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Session whose texts to print.
    #[arg(value_name = "SESSION")]
    pub(crate) session: String,

    /// Which text; stdout, stderr and grader with a heading each when not given.
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) name: Option<LogName>,

    /// Which attempt, counted from 1; the one that counts when not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempt: Option<u32>,

    #[command(flatten)]
    pub(crate) server: ServerAddress,
}

/// The texts kept of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogName {
    /// What the agent printed.
    #[value(alias = "stdout.log")]
    Stdout,
    /// What the agent printed as errors.
    #[value(alias = "stderr.log")]
    Stderr,
    /// What the evaluator printed.
    #[value(alias = "grader.log")]
    Grader,
    /// What changed in the work folder.
    #[value(alias = "workspace.diff")]
    Diff,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Json,
    Jsonl,
    Text,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) engine: EngineArgs,

    /// Print JSON instead of a list.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SpokenApi {
    #[default]
    Vllm,
    /// `trtllm-serve`, by its published source; answers chats whole only.
    #[value(name = "tensorrt-llm")]
    TensorRtLlm,
}

#[derive(Debug, Args)]
pub(crate) struct SimulateEngine {
    /// Port; 0 picks a free one.
    #[arg(long, default_value_t = 8000, value_name = "PORT")]
    pub(crate) port: u16,

    /// Address to bind to.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "IP")]
    pub(crate) host: IpAddr,

    /// Shipped policy, or path of a policy YAML.
    #[arg(long, default_value = "fix-test", value_name = "NAME|PATH")]
    pub(crate) policy: String,

    /// Model name to serve.
    #[arg(long, default_value = "polar-simulator", value_name = "NAME")]
    pub(crate) model: String,

    /// Write the simulated model's tokenizer and chat template into this folder, for gateways in
    /// token mode.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) model_files: Option<PathBuf>,

    /// Tokens per second of each reply; unlimited when not given.
    #[arg(long, value_name = "RATE")]
    pub(crate) tokens_per_second: Option<f64>,

    /// Milliseconds before the first token.
    #[arg(long, default_value_t = 0, value_name = "MS")]
    pub(crate) first_token_ms: u64,

    /// Tokens in each streamed chunk.
    #[arg(long, default_value_t = 1, value_name = "TOKENS")]
    pub(crate) tokens_per_chunk: usize,

    /// Context window, in tokens.
    #[arg(long, default_value_t = 131_072, value_name = "TOKENS")]
    pub(crate) context_window: usize,

    /// Have no parsers: reasoning and tool calls stay in the text, as in a vLLM started without.
    #[arg(long)]
    pub(crate) raw_text: bool,

    /// Have no place that takes ids alone, as in a vLLM started without `--enable-scale-out`.
    #[arg(long)]
    pub(crate) no_scale_out: bool,

    /// Engine whose API to speak.
    #[arg(long, value_enum, default_value_t, value_name = "ENGINE")]
    pub(crate) speak: SpokenApi,

    /// Seed of whatever is left to chance.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,

    /// Fault to have now and then, for example `status=503` or `cut_after=20`.
    #[arg(long, value_name = "FAULT")]
    pub(crate) fault: Option<polar_simulator::Fault>,

    /// Share of requests that meet the fault.
    #[arg(long, default_value_t = 1.0, value_name = "0..1", requires = "fault")]
    pub(crate) fault_probability: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_unknown_parser_is_told_the_known_ones() {
        let parse =
            |name: &str| Cli::try_parse_from(["polar", "gateway", "--tool-parser", name]).map(drop);
        assert!(parse("auto").is_ok() && parse("qwen3_coder").is_ok());
        let error = parse("herms").unwrap_err().to_string();
        assert!(error.contains("hermes, qwen3_coder, glm45"), "{error}");
    }

    #[test]
    fn a_node_runs_at_least_one_session() {
        for command in [["up", "--concurrency=0"], ["gateway", "--concurrency=0"]] {
            let line = ["polar"].iter().chain(&command);
            let refused = Cli::try_parse_from(line).unwrap_err().to_string();
            assert!(refused.contains("--concurrency"), "{refused}");
        }
    }
}
