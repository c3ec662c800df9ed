//! What a gateway adds to a call: latency, CPU and memory, with capture on, against the
//! engine called directly in the same run.
//!
//! The engine is a server that replays canned vLLM replies, so that its own work is
//! small and the same in every arm. Arms are the engine itself, `polar gateway`, and,
//! when its virtual environment is given, rllm-model-gateway. Arms take turns within
//! each repeat, so that a machine whose speed drifts does not favour one.

mod arms;
mod engine;
mod load;
mod report;

use anyhow::Result;
use arms::Arm;
use clap::{Parser, Subcommand};
use load::Case;
use report::Row;
use std::path::PathBuf;

#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure.
    Run {
        /// The `polar` binary, built with `--release`.
        #[arg(long, default_value = "target/release/polar")]
        polar: PathBuf,
        /// The `rllm-model-gateway` program; left out when not given.
        #[arg(long)]
        rllm: Option<PathBuf>,
        /// Times the whole matrix is measured.
        #[arg(long, default_value_t = 3)]
        repeats: u32,
        /// Concurrent calls.
        #[arg(long, value_delimiter = ',', default_value = "1,64")]
        concurrency: Vec<usize>,
        /// Prompt tokens.
        #[arg(long, value_delimiter = ',', default_value = "1000,8000,32000")]
        prompt: Vec<usize>,
        /// Sampled tokens per call.
        #[arg(long, default_value_t = 200)]
        sampled: usize,
        /// Calls per measurement and arm.
        #[arg(long, default_value_t = 200)]
        calls: usize,
        /// Also write every row as a line of JSON here.
        #[arg(long)]
        json: Option<PathBuf>,
    },
    /// Serve canned replies; started by `run`.
    #[command(hide = true)]
    Engine,
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        match Cli::parse().command {
            Command::Engine => engine::serve().await,
            Command::Run { polar, rllm, repeats, concurrency, prompt, sampled, calls, json } => {
                let engine = arms::start_engine().await?;
                let mut arms = vec![Arm::direct(&engine)];
                arms.push(Arm::polar(&engine, &polar).await?);
                if let Some(program) = rllm {
                    arms.push(Arm::rllm(&engine, &program).await?);
                }
                let cases = matrix(&concurrency, &prompt, sampled, calls);
                let mut rows = Vec::new();
                for repeat in 0..repeats {
                    for case in &cases {
                        for arm in &arms {
                            rows.push(Row::measure(repeat, case, arm).await?);
                        }
                    }
                }
                report::print(&rows, &cases, &arms, json.as_deref())
            }
        }
    })
}

fn matrix(concurrency: &[usize], prompt: &[usize], sampled: usize, calls: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for &prompt in prompt {
        for &concurrency in concurrency {
            for stream in [false, true] {
                cases.push(Case {
                    prompt,
                    sampled,
                    concurrency,
                    stream,
                    calls: calls.max(concurrency * 2),
                });
            }
        }
    }
    cases
}
