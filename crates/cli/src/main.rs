//! The `polar` command: a thin layer over the library crates. It reads the command line,
//! wires the parts together and prints for people; everything it does is also in the
//! HTTP API.

mod api;
mod args;
mod commands;
mod detokenizer;
mod display;
mod engines;
mod evidence;
mod interrupt;
mod paths;
mod progress;
mod rescoring;
mod runs;
mod stack;
mod task_file;
mod token;

use anyhow::Result;
use args::{Cli, Command};
use interrupt::Interrupted;
use std::io::Write as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    // A sandbox starts this very program inside itself as its helper. That must come
    // before anything else that has side effects.
    if let Some(code) = polar_sandbox::helper::run_if_called() {
        return code;
    }
    let cli = Cli::of_process();
    if let Err(error) = start_logging(&cli.log) {
        return fail(&error);
    }
    // Fails only when a provider is installed already, which then serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error).context("start the async runtime")),
    };
    match runtime.block_on(run(cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

async fn run(command: Command) -> Result<()> {
    match command {
        Command::Quickstart(args) => commands::quickstart::quickstart(args).await,
        Command::Run(args) => commands::run::run(args).await,
        Command::Up(args) => commands::serve::up(args).await,
        Command::RolloutServer(args) => commands::serve::rollout_server(args).await,
        Command::Gateway(args) => commands::serve::gateway(args).await,
        Command::Status(args) => commands::status::status(args).await,
        Command::Engines(args) => commands::engines::engines(args).await,
        Command::Weights(args) => commands::weights::weights(args).await,
        Command::Cancel(args) => commands::status::cancel(args).await,
        Command::Regrade(args) => commands::regrade::regrade(args).await,
        Command::Trajectories(args) => commands::trajectories::trajectories(args).await,
        Command::Export(args) => commands::export::export(*args).await,
        Command::Verify(args) => commands::verify::verify(*args).await,
        Command::Drift(args) => commands::drift::drift(args).await,
        Command::Logs(args) => commands::logs::logs(args).await,
        Command::Tasks(args) => commands::tasks::tasks(args),
        Command::Harness(args) => commands::harness::harness(args).await,
        Command::Doctor(args) => commands::doctor::doctor(args).await,
        Command::SimulateEngine(args) => commands::simulate_engine::simulate_engine(args).await,
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    // A reader that has gone away, as in `polar … | head`, is not a failure to report.
    let is_broken_pipe = error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    });
    if is_broken_pipe {
        return ExitCode::SUCCESS;
    }
    // Nothing is left to do when stderr is closed too.
    let _ = writeln!(std::io::stderr(), "polar: {error:#}");
    match error.downcast_ref::<Interrupted>() {
        Some(interrupted) => interrupted.exit_code().into(),
        None => ExitCode::FAILURE,
    }
}

fn start_logging(filter: &str) -> Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|error| anyhow::anyhow!("--log {filter:?}: {error}; for example `info`"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(display::colours_of(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}
