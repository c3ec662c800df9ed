//! `polar quickstart`: real agent CLIs on a demo task, with everything embedded.

use crate::api::Api;
use crate::args::{Isolation, NodeArgs, Quickstart, StageArgs};
use crate::commands::follow::{self, Followed};
use crate::commands::{simulate_engine, trajectories};
use crate::engines::{self, NodeEngines};
use crate::interrupt::Interrupts;
use crate::runs::RunFolder;
use crate::stack::{self, StackConfig, with_stack};
use crate::{paths, task_file, token};
use anyhow::{Context, Result, bail, ensure};
use polar_engine::Engine;
use polar_session::harness::{HarnessAdapter, Installer};
use polar_simulator::{SimulatorConfig, SimulatorHandle, write_model_files};
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

pub(crate) async fn quickstart(args: Quickstart) -> Result<()> {
    let mut interrupts = Interrupts::listen()?;
    let adapters = args
        .harness
        .iter()
        .map(|name| HarnessAdapter::shipped(name).context("--harness"))
        .collect::<Result<Vec<_>>>()?;
    interrupts.unless(install(&adapters)).await?;

    let folder = interrupts.unless(RunFolder::create(NODE_ID)).await?;
    let mut engine = args.engine.clone();
    let simulator = match args.engine.engine {
        Some(_) => None,
        None => {
            let simulator = start_simulator().await?;
            engine.engine = Some(simulator.url());
            let model = folder.path().join("model");
            write_model_files(&model).with_context(|| {
                format!("write the simulated model's files to {}", model.display())
            })?;
            engine.how.model_files.get_or_insert(model);
            Some(simulator)
        }
    };
    let engine = interrupts.unless(engines::connect_engine(&engine)).await?;
    let followed = demonstrate(&args, engine, folder.path(), &mut interrupts).await;
    let followed = folder.remove_after(followed).await?;
    if let Some(simulator) = simulator {
        simulator.shutdown().await;
    }
    judge(&followed)?;
    say(NEXT_STEPS)
}

const NODE_ID: &str = "quickstart";

/// Runs the demo's tasks, and shows what came of them.
async fn demonstrate(
    args: &Quickstart,
    engine: Arc<dyn Engine>,
    state: &Path,
    interrupts: &mut Interrupts,
) -> Result<Vec<Followed>> {
    let token = token::of_this_process()?;
    let secret = token.secret.clone();
    let config = StackConfig {
        api: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
        token,
        state: state.to_owned(),
        upload_folders: Vec::new(),
        node: NodeArgs {
            proxy_port: 0,
            proxy_host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            concurrency: 2,
            stages: StageArgs::default(),
            local_isolation: chosen_isolation(args.local_isolation).await?,
            allow_mounts: Vec::new(),
            node_id: Some(NODE_ID.to_owned()),
        },
    };
    let tasks = demo_tasks(&args.harness, args.samples)?;
    with_stack(config, NodeEngines::of_one(engine), interrupts, async |stack| {
        let api = Api::new(stack.api_url(), Some(secret))?;
        say(&format!("Running {} on the demo task …", args.harness.join(" and ")))?;
        let followed = follow::submit_and_follow(&api, &tasks).await?;
        say("\nTraces (trained tokens are marked):\n")?;
        for session in followed.iter().flat_map(|task| &task.sessions) {
            if let Some(trajectory) = api.trajectory(session.session_id.as_str()).await? {
                trajectories::print_trajectory(&trajectory, None).await?;
            }
        }
        say("")?;
        follow::print_summary(&api, &followed).await?;
        Ok(followed)
    })
    .await
}

const NEXT_STEPS: &str = "
Next: point it at your own engine and agent. (No `polar` on your PATH yet? Install it from
the source folder: `cargo install --locked --path crates/cli`, or `pip install ./python`.)
  polar up --engine localhost:8000            server, node and proxy in one process
  polar run task.yaml --engine localhost:8000 one task, results here
  polar doctor --engine localhost:8000        checks this machine and your engine";

async fn install(adapters: &[HarnessAdapter]) -> Result<()> {
    let installer = Installer::new(&paths::cache()?);
    for adapter in adapters {
        if !installer.is_installed(adapter) {
            say(&format!("Installing {} {} …", adapter.name, adapter.version))?;
        }
        installer.ensure(adapter).await?;
    }
    Ok(())
}

async fn start_simulator() -> Result<SimulatorHandle> {
    let config = SimulatorConfig {
        policy: simulate_engine::policy("fix-test")?,
        model: "polar-simulator".to_owned(),
        ..SimulatorConfig::default()
    };
    Ok(polar_simulator::serve(config).await?)
}

/// The demo's agents are known and its policy is scripted, so a machine without
/// bubblewrap may run them as plain processes. It is said, so that nobody takes that for
/// isolation.
async fn chosen_isolation(asked: Isolation) -> Result<Isolation> {
    if asked != Isolation::Auto {
        return Ok(asked);
    }
    match stack::bubblewrap_problem().await? {
        None => Ok(Isolation::Bubblewrap),
        Some(problem) => {
            say(&format!("No bubblewrap here, so the demo runs as plain processes ({problem})."))?;
            Ok(Isolation::Process)
        }
    }
}

fn demo_tasks(harnesses: &[String], samples: u32) -> Result<Vec<Value>> {
    harnesses
        .iter()
        .map(|harness| {
            let mut task = task_file::parse(polar_simulator::FIX_TEST_TASK, Path::new("."))?;
            task_file::set_harness(&mut task, harness)?;
            task["task_id"] = json!(format!("quickstart-{harness}"));
            task["num_samples"] = json!(samples);
            Ok(task)
        })
        .collect()
}

fn judge(followed: &[Followed]) -> Result<()> {
    for session in followed.iter().flat_map(|task| &task.sessions) {
        let Some(report) = session.report() else {
            bail!("{} has no report", session.session_id);
        };
        ensure!(
            session.reward == Some(1.0),
            "{} did not repair the test: reward {:?}",
            session.session_id,
            session.reward
        );
        ensure!(
            report.tokens.is_conserved() && report.tokens.trained > 0,
            "{} lost tokens: {:?}",
            session.session_id,
            report.tokens
        );
    }
    Ok(())
}

fn say(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}")?;
    Ok(())
}
