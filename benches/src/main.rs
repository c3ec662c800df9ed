//! What a gateway adds to a call: latency, CPU and memory, with capture on, against the
//! engine called directly in the same run.
//!
//! The engine is a server that replays canned vLLM replies, so that its own work is
//! small and the same in every arm. Arms are the engine itself, a relay that only copies
//! bytes (the least that anything between costs on the machine), `polar gateway`, and,
//! when its program is given, rllm-model-gateway. `--dialects` adds an arm for each dialect of
//! the gateway. Arms take turns within
//! each repeat, so that a machine whose speed drifts does not favour one.

mod arms;
mod dialect;
mod engine;
mod load;
mod relay;
mod report;

use anyhow::Result;
use arms::Arm;
use clap::{Args, Parser, Subcommand};
use dialect::Dialect;
use load::Case;
use report::Row;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure.
    Run(Options),
    /// Serve canned replies; started by `run`.
    #[command(hide = true)]
    Engine,
    /// Copy bytes to and from an address; started by `run`.
    #[command(hide = true)]
    Relay { to: SocketAddr },
}

#[derive(Debug, Args)]
struct Options {
    /// The `polar` binary, built with `--release`.
    #[arg(long, default_value = "target/release/polar")]
    polar: PathBuf,
    /// The `rllm-model-gateway` program; left out when not given.
    #[arg(long)]
    rllm: Option<PathBuf>,
    /// Times the whole matrix is measured.
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// Dialects spoken to `polar gateway`; all others are spoken to in Chat.
    #[arg(long, value_delimiter = ',', default_value = "chat")]
    dialects: Vec<Dialect>,
    /// Concurrent calls.
    #[arg(long, value_delimiter = ',', default_value = "1,64")]
    concurrency: Vec<usize>,
    /// Prompt tokens.
    #[arg(long, value_delimiter = ',', default_value = "1000,8000,32000")]
    prompt: Vec<usize>,
    /// Sampled tokens per call.
    #[arg(long, default_value_t = 200)]
    sampled: usize,
    /// Microseconds between the tokens that the engine streams.
    #[arg(long, default_value_t = 0)]
    interval: usize,
    /// Calls per measurement and arm.
    #[arg(long, default_value_t = 200)]
    calls: usize,
    /// Also write every row as a line of JSON here.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        match Cli::parse().command {
            Command::Engine => engine::serve().await,
            Command::Relay { to } => relay::serve(to).await,
            Command::Run(options) => measure(&options).await,
        }
    })
}

async fn measure(options: &Options) -> Result<()> {
    let engine = arms::start_engine().await?;
    let mut arms = vec![Arm::direct(&engine), Arm::relay(&engine).await?];
    arms.extend(Arm::polar(&engine, &options.polar, &options.dialects).await?);
    if let Some(program) = &options.rllm {
        arms.push(Arm::rllm(&engine, program).await?);
    }
    let cases = matrix(options);
    let mut rows = Vec::new();
    for repeat in 0..options.repeats {
        for case in &cases {
            // Another arm is first each time, as the first one finds caches cold.
            for arm in arms.iter().cycle().skip(repeat as usize).take(arms.len()) {
                rows.push(Row::measure(repeat, case, arm).await?);
            }
        }
    }
    report::print(&rows, &cases, &arms, options.json.as_deref())
}

fn matrix(options: &Options) -> Vec<Case> {
    let mut cases = Vec::new();
    for &prompt in &options.prompt {
        for &concurrency in &options.concurrency {
            for stream in [false, true] {
                cases.push(Case {
                    prompt,
                    sampled: options.sampled,
                    concurrency,
                    stream,
                    interval: options.interval,
                    calls: options.calls.max(concurrency * 2),
                });
            }
        }
    }
    cases
}
