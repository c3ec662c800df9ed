//! From an address to an engine that gives what training needs.

use crate::api::base_url;
use crate::args::{EngineArgs, EngineKindArg, EngineSettings, EnginesArgs, WeightedAddress};
use crate::stack::say;
use anyhow::{Context, Result, bail};
use polar_engine::{
    Engine, EngineKind, EngineOptions, ModelFiles, Outcome, ParserOptions, ProbeError, ProbeReport,
    TokenModeOptions,
};
use polar_gateway::WeightedEngine;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The engines of a node, and how more are connected to.
pub(crate) struct NodeEngines {
    pub(crate) engines: Vec<WeightedEngine>,
    pub(crate) options: EngineOptions,
}

impl NodeEngines {
    /// One, and none more.
    pub(crate) fn of_one(engine: Arc<dyn Engine>) -> Self {
        Self { engines: vec![engine.into()], options: EngineOptions::default() }
    }

    /// What they serve, which is the same.
    pub(crate) fn model(&self) -> String {
        let info = self.engines.first().map(|one| one.engine.info());
        let model = info.map_or_else(String::new, |info| info.model.clone());
        match self.engines.len() {
            0 | 1 => model,
            several => format!("{model} on {several} engines"),
        }
    }
}

/// How long an engine may say that it is not ready, as while it loads its model.
const ENGINE_START: Duration = Duration::from_secs(300);
const ENGINE_PAUSE: Duration = Duration::from_secs(2);

/// Connects to the engine and checks that it gives exact ids and logprobs. One that is
/// there but still starts is waited for.
pub(crate) async fn connect_engine(args: &EngineArgs) -> Result<Arc<dyn Engine>> {
    let Some(address) = &args.engine else { bail!(NO_ENGINE) };
    connect(address, &args.how).await
}

/// Connects to the engines of a node in the same way.
pub(crate) async fn connect_engines(args: &EnginesArgs) -> Result<NodeEngines> {
    if args.engine.is_empty() {
        bail!(NO_ENGINE);
    }
    let mut engines = Vec::with_capacity(args.engine.len());
    for WeightedAddress { address, weight } in &args.engine {
        let engine = connect(address, &args.how).await?;
        engines.push(WeightedEngine { engine, weight: *weight });
    }
    Ok(NodeEngines { engines, options: options(&args.how)? })
}

const NO_ENGINE: &str = "which inference engine? Give its address with --engine host:port, or try \
                         `polar simulate-engine`";

async fn connect(address: &str, how: &EngineSettings) -> Result<Arc<dyn Engine>> {
    let started = Instant::now();
    let mut is_told = false;
    loop {
        let error = match probe(address, how).await {
            Ok((engine, report)) => {
                if report.checks.iter().any(|check| check.outcome == Outcome::Warning) {
                    say(&report.to_string());
                }
                return Ok(engine);
            }
            Err(error) => error,
        };
        if !is_starting(&error) || started.elapsed() > ENGINE_START {
            return Err(error);
        }
        if !is_told {
            say(&format!(
                "the engine at {} is not ready (HTTP 503); waiting for it for up to {} s",
                base_url(address),
                ENGINE_START.as_secs()
            ));
            is_told = true;
        }
        tokio::time::sleep(ENGINE_PAUSE).await;
    }
}

fn is_starting(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<ProbeError>();
    matches!(refused, Some(ProbeError::Engine(said)) if said.status == Some(503))
}

/// How token mode is wanted, if it is.
fn token_mode(args: &EngineSettings) -> Result<Option<TokenModeOptions>> {
    let folder = args.model_files.as_deref();
    let files = folder.map(ModelFiles::read).transpose().context("--model-files")?;
    Ok((args.token_mode || files.is_some()).then_some(TokenModeOptions { files }))
}

/// The same with all that was checked.
pub(crate) async fn probe_engine(args: &EngineArgs) -> Result<(Arc<dyn Engine>, ProbeReport)> {
    let Some(address) = &args.engine else { bail!(NO_ENGINE) };
    probe(address, &args.how).await
}

/// How an engine is connected to.
pub(crate) fn options(args: &EngineSettings) -> Result<EngineOptions> {
    Ok(EngineOptions {
        kind: args.engine_kind.map(|kind| match kind {
            EngineKindArg::Vllm => EngineKind::Vllm,
            EngineKindArg::Sglang => EngineKind::Sglang,
            EngineKindArg::LlamaCpp => EngineKind::LlamaCpp,
            EngineKindArg::TensorRtLlm => EngineKind::TensorRtLlm,
        }),
        model: args.engine_model.clone(),
        api_key: args.engine_api_key.clone(),
        parsers: ParserOptions { tools: args.tool_parser, reasoning: args.reasoning_parser },
        token_mode: token_mode(args)?,
        ..EngineOptions::default()
    })
}

async fn probe(address: &str, how: &EngineSettings) -> Result<(Arc<dyn Engine>, ProbeReport)> {
    let address = base_url(address);
    polar_engine::probe(&address, options(how)?).await.map_err(|error| {
        let is_named = error.to_string().contains(&address);
        let error = anyhow::Error::new(error);
        if is_named { error } else { error.context(format!("the engine at {address}")) }
    })
}
