//! `polar simulate-engine`.

use crate::args::{SimulateEngine, SpokenApi};
use crate::commands::serve::until_interrupted;
use crate::stack;
use anyhow::{Context, Result};
use polar_simulator::{
    EngineApi, FaultChance, Policy, SimulatorConfig, SimulatorError, Speed, shipped_policies,
    shipped_policy, write_model_files,
};
use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

pub(crate) async fn simulate_engine(args: SimulateEngine) -> Result<()> {
    if let Some(folder) = &args.model_files {
        write_model_files(folder).with_context(|| format!("write {}", folder.display()))?;
    }
    let config = SimulatorConfig {
        model_folder: args.model_files.as_deref().map(std::path::absolute).transpose()?,
        listen: SocketAddr::new(args.host, args.port),
        model: args.model,
        policy: policy(&args.policy)?,
        context_window: args.context_window,
        speed: Speed {
            first_token: Duration::from_millis(args.first_token_ms),
            tokens_per_second: args.tokens_per_second,
            tokens_per_chunk: args.tokens_per_chunk,
        },
        parse_reasoning: !args.raw_text,
        parse_tools: !args.raw_text,
        scale_out: !args.no_scale_out,
        speaks: match args.speak {
            SpokenApi::Vllm => EngineApi::Vllm,
            SpokenApi::TensorRtLlm => EngineApi::TensorRtLlm,
        },
        seed: args.seed,
        fault: args.fault.map(|fault| FaultChance { fault, probability: args.fault_probability }),
        ..SimulatorConfig::default()
    };
    let address = config.listen;
    let simulator = polar_simulator::serve(config).await.map_err(|error| match &error {
        SimulatorError::Listen { source, .. } if source.kind() == ErrorKind::AddrInUse => {
            stack::taken(address, "--port")
        }
        _ => error.into(),
    })?;
    writeln!(std::io::stdout(), "engine simulator at {}", simulator.url())?;
    until_interrupted().await?;
    simulator.shutdown().await;
    Ok(())
}

/// A shipped policy by name, or one of the user's by path.
pub(crate) fn policy(choice: &str) -> Result<Policy> {
    if let Some(policy) = shipped_policy(choice) {
        return Ok(policy);
    }
    let text = std::fs::read_to_string(choice).with_context(|| {
        format!(
            "policy {choice:?} is neither a readable file nor one of the shipped ones: {}",
            shipped_policies().collect::<Vec<_>>().join(", ")
        )
    })?;
    Policy::from_yaml(&text).with_context(|| format!("policy {choice}"))
}
