//! `polar harness check`: runs adapters' CLIs through scenarios and says what works.

use crate::args::HarnessCheck;
use crate::commands::harness::adapter;
use crate::commands::harness_results::{CheckResult, Found, Results};
use crate::interrupt::Interrupts;
use crate::runs::RunFolder;
use crate::{engines, stack};
use anyhow::{Context, Result, ensure};
use futures_util::StreamExt as _;
use polar_engine::Engine;
use polar_sandbox::SandboxProvider;
use polar_session::check::{CheckOptions, Scenario, ScenarioKind, check_harness};
use polar_session::harness::{HarnessAdapter, Installer};
use polar_types::HarnessSpec;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

pub(crate) async fn check(args: HarnessCheck) -> Result<()> {
    let scenarios = scenarios(&args)?;
    let mut interrupts = Interrupts::listen()?;
    let adapters = interrupts.unless(adapters(&args)).await?;
    let folder = interrupts.unless(RunFolder::create(NODE_ID)).await?;
    let results = interrupts.unless(run(&args, &adapters, &scenarios, &folder)).await;
    let results = Results {
        all: folder.remove_after(results).await?,
        runtime: args.runtime.as_str(),
        engine: args.engine.engine.clone(),
        token_mode: args.engine.how.token_mode || args.engine.how.model_files.is_some(),
        strict: args.strict,
    };
    let mut out = std::io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&results.as_json())?)?,
        false => write!(out, "{}", results.as_text())?,
    }
    if let Some(path) = &args.markdown {
        std::fs::write(path, results.as_markdown())
            .with_context(|| format!("write {}", path.display()))?;
    }
    let failed = results.failed();
    ensure!(failed == 0, "{failed} of {} did not pass; see what failed above", results.all.len());
    Ok(())
}

const NODE_ID: &str = "harness-check";

/// Harnesses without a command of their own, which cannot be checked by name.
const COMMANDLESS: &str = "shell";

/// The adapters in the versions asked for.
async fn adapters(args: &HarnessCheck) -> Result<Vec<HarnessAdapter>> {
    let chosen = if args.all {
        let shipped = HarnessAdapter::list()?;
        shipped.into_iter().filter(|adapter| adapter.name != COMMANDLESS).collect()
    } else {
        args.names.iter().map(|name| adapter(name)).collect::<Result<Vec<_>>>()?
    };
    let installer = Installer::new(&crate::paths::cache()?);
    let mut versions = Vec::new();
    for adapter in chosen {
        let other = match &args.version {
            Some(version) => Some(adapter.with_version(version)?),
            None if args.newest && adapter.install.is_some() => {
                let newest = installer.newest_version(&adapter).await?;
                let newer = newest != adapter.version;
                let newest = newer.then(|| adapter.with_version(&newest)).transpose()?;
                versions.push(adapter);
                newest
            }
            None => Some(adapter),
        };
        versions.extend(other);
    }
    Ok(versions)
}

fn scenarios(args: &HarnessCheck) -> Result<Vec<Scenario>> {
    let asked: Result<Vec<_>, _> = args.scenarios.iter().map(|name| scenario(name)).collect();
    let asked = asked?;
    if !asked.is_empty() {
        return Ok(asked);
    }
    if args.engine.engine.is_some() {
        // A real model follows no script, and this one asks for nothing unusual.
        return Ok(vec![Scenario::shipped("write_file")?]);
    }
    let kind = if args.faults { ScenarioKind::Fault } else { ScenarioKind::Work };
    Ok(Scenario::all(kind)?)
}

/// A shipped scenario by name, or one of the user's by path.
fn scenario(choice: &str) -> Result<Scenario> {
    if !Path::new(choice).is_file() {
        return Ok(Scenario::shipped(choice)?);
    }
    let text = std::fs::read_to_string(choice).with_context(|| format!("read {choice}"))?;
    Ok(Scenario::from_yaml(choice, &text)?)
}

/// Every adapter in every scenario, in order, so many at a time.
async fn run(
    args: &HarnessCheck,
    adapters: &[HarnessAdapter],
    scenarios: &[Scenario],
    folder: &RunFolder,
) -> Result<Vec<CheckResult>> {
    let engine = match args.engine.engine {
        Some(_) => Some(engines::connect_engine(&args.engine).await?),
        None => None,
    };
    let provider = provider(args, folder).await?;
    let pairs = adapters.iter().flat_map(|adapter| scenarios.iter().map(move |s| (adapter, s)));
    let checks = pairs.enumerate().map(|(number, (adapter, scenario))| {
        let one =
            One { args, adapter, scenario, engine: engine.clone(), provider: provider.clone() };
        async move { (number, one.run(folder, number).await) }
    });
    let mut running = futures_util::stream::iter(checks).buffer_unordered(args.parallel as usize);
    let mut results = Vec::new();
    while let Some((number, result)) = running.next().await {
        if adapters.len() * scenarios.len() > 1 {
            stack::say(&result.line(args.strict));
        }
        results.push((number, result));
    }
    results.sort_by_key(|(number, _)| *number);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

async fn provider(args: &HarnessCheck, folder: &RunFolder) -> Result<Arc<dyn SandboxProvider>> {
    let providers = stack::providers(args.local_isolation, NODE_ID, &folder.node(), &[]).await?;
    let kind = args.runtime.as_str();
    let provider = providers.into_iter().find(|provider| provider.kind() == kind);
    let provider = provider.with_context(|| format!("there is no {kind} sandbox"))?;
    provider.check().await?;
    Ok(provider)
}

/// One adapter in one scenario.
struct One<'a> {
    args: &'a HarnessCheck,
    adapter: &'a HarnessAdapter,
    scenario: &'a Scenario,
    engine: Option<Arc<dyn Engine>>,
    provider: Arc<dyn SandboxProvider>,
}

impl One<'_> {
    async fn run(self, folder: &RunFolder, number: usize) -> CheckResult {
        let found = match self.scenario.left_out(self.adapter) {
            Some(reason) => Found::LeftOut(reason),
            None => match self.check(folder, number).await {
                Ok(report) => Found::Report(Box::new(report)),
                Err(error) => Found::Error(format!("{error:#}")),
            },
        };
        CheckResult {
            harness: self.adapter.name.clone(),
            version: self.adapter.version.clone(),
            scenario: self.scenario.name.clone(),
            found,
        }
    }

    async fn check(
        &self,
        folder: &RunFolder,
        number: usize,
    ) -> Result<polar_session::check::CheckReport> {
        let harness = HarnessSpec {
            command: self.args.command.clone(),
            model: self.args.model.clone(),
            ..HarnessSpec::named(self.adapter.name.clone())
        };
        let options = CheckOptions {
            id: format!("check-{number}"),
            adapter: self.adapter.clone(),
            harness,
            scenario: self.scenario.clone(),
            engine: self.engine.clone(),
            token_mode: self.args.engine.how.token_mode,
            provider: self.provider.clone(),
            image: self.args.image.clone(),
            cache: crate::paths::cache()?,
            folder: folder.path().join(format!("c{number}")),
            run_seconds: self.args.timeout,
        };
        let own = options.folder.clone();
        let report = check_harness(options).await?;
        if let Some(kept) = &self.args.keep {
            let name =
                format!("{}-{}-{}", self.adapter.name, self.adapter.version, self.scenario.name);
            keep(&own, &kept.join(name)).context("keep what the session left")?;
        }
        Ok(report)
    }
}

/// Copies the artifacts of the one session in `folder`.
fn keep(folder: &Path, kept: &Path) -> Result<()> {
    std::fs::create_dir_all(kept)?;
    for session in std::fs::read_dir(folder)? {
        let artifacts = session?.path().join("artifacts");
        let Ok(entries) = std::fs::read_dir(artifacts) else { continue };
        for entry in entries {
            let entry = entry?;
            std::fs::copy(entry.path(), kept.join(entry.file_name()))?;
        }
    }
    Ok(())
}
