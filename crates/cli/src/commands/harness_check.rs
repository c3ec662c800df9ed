//! `polar harness check`: runs an adapter's CLI once and says what works.

use crate::args::HarnessCheck;
use crate::commands::harness::adapter;
use crate::interrupt::Interrupts;
use crate::runs::RunFolder;
use crate::stack;
use anyhow::{Context, Result, ensure};
use polar_engine::{Engine, EngineOptions};
use polar_session::check::{
    CHECK_POLICY, CheckOptions, CheckReport, Finding, Verdict, check_harness,
};
use polar_session::harness::HarnessAdapter;
use polar_simulator::{Policy, SimulatorConfig, SimulatorHandle};
use polar_types::HarnessSpec;
use std::io::Write as _;
use std::sync::Arc;

pub(crate) async fn check(args: HarnessCheck) -> Result<()> {
    let adapter = adapter(&args.name)?;
    let name = adapter.name.clone();
    let mut interrupts = Interrupts::listen()?;
    let folder = interrupts.unless(RunFolder::create(NODE_ID)).await?;
    let report = interrupts.unless(report(args, adapter, &folder)).await;
    let report = folder.remove_after(report).await?;
    print(&report)?;
    ensure!(report.passed(), "{name} does not work yet; see what failed above");
    Ok(())
}

const NODE_ID: &str = "harness-check";

async fn report(
    args: HarnessCheck,
    adapter: HarnessAdapter,
    folder: &RunFolder,
) -> Result<CheckReport> {
    let (engine, _simulator) = engine(&args).await?;
    let providers = stack::providers(args.local_isolation, NODE_ID, &folder.node()).await?;
    let local = providers.into_iter().find(|provider| provider.kind() == "local");
    let provider = local.context("there is no local sandbox")?;
    provider.check().await?;

    let harness = HarnessSpec {
        command: args.command,
        model: args.model,
        ..HarnessSpec::named(adapter.name.clone())
    };
    let report = check_harness(CheckOptions {
        adapter,
        harness,
        engine,
        provider,
        image: None,
        cache: crate::paths::cache()?,
        folder: folder.path().join("check"),
        run_seconds: args.timeout,
    })
    .await?;
    Ok(report)
}

/// The engine asked for, or the simulator with a model that knows the check's task.
async fn engine(args: &HarnessCheck) -> Result<(Arc<dyn Engine>, Option<SimulatorHandle>)> {
    if args.engine.engine.is_some() {
        return Ok((stack::connect_engine(&args.engine).await?, None));
    }
    let simulator = polar_simulator::serve(SimulatorConfig {
        policy: Policy::from_yaml(CHECK_POLICY)?,
        model: "polar-simulator".to_owned(),
        ..SimulatorConfig::default()
    })
    .await?;
    let engine = polar_engine::connect(&simulator.url(), EngineOptions::default()).await?;
    Ok((engine, Some(simulator)))
}

fn print(report: &CheckReport) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for finding in &report.findings {
        let Finding { subject, verdict, found, mend } = finding;
        writeln!(out, "{} {subject:<11} {found}", mark(*verdict))?;
        if let Some(mend) = mend {
            writeln!(out, "  {:<11} → {mend}", "")?;
        }
    }
    if !report.passed() && !report.output.is_empty() {
        writeln!(out, "\nWhat it printed last:\n{}", report.output)?;
    }
    Ok(())
}

fn mark(verdict: Verdict) -> char {
    match verdict {
        Verdict::Passed => '✓',
        Verdict::Warning => '!',
        Verdict::Failed => '✗',
    }
}
