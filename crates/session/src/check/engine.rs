//! The engine of one scenario: the simulator with its script, or the real one given.

use super::{CheckError, CheckOptions};
use polar_engine::{Engine, EngineOptions, ModelFiles, TokenModeOptions};
use polar_simulator::{
    Answer, Fault, Policy, SimulatorConfig, SimulatorHandle, serve, write_model_files,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long an engine that is started again is not there.
const AWAY: Duration = Duration::from_secs(2);

/// How often a simulator that is to be killed is looked at.
const LOOK: Duration = Duration::from_millis(50);

pub(super) struct ScenarioEngine {
    engine: Arc<dyn Engine>,
    simulated: Option<Simulated>,
}

enum Simulated {
    Steady(SimulatorHandle),
    /// Killed once and started again; ends with all answers.
    Restarted(JoinHandle<Vec<Answer>>),
}

impl ScenarioEngine {
    /// Starts what the options ask for. It runs until `stop`, or until this is dropped.
    pub(super) async fn start(
        options: &CheckOptions,
        stop: &CancellationToken,
    ) -> Result<Self, CheckError> {
        if let Some(engine) = &options.engine {
            return Ok(Self { engine: engine.clone(), simulated: None });
        }
        let notes = &options.adapter.check;
        let config = SimulatorConfig {
            policy: options.scenario.policy(notes)?,
            model: "polar-simulator".to_owned(),
            context_window: options.scenario.context_window,
            ..SimulatorConfig::default()
        };
        let simulator = serve(config.clone()).await.map_err(broken)?;
        let token_mode = options.token_mode.then(|| model(&options.folder)).transpose()?;
        let how = EngineOptions { token_mode, ..EngineOptions::default() };
        let connected = polar_engine::connect(&simulator.url(), how).await;
        let engine = connected.map_err(|error| CheckError::Engine(error.to_string()))?;
        let simulated = if options.scenario.restart {
            let policy = options.scenario.policy_in_order(notes)?;
            Simulated::Restarted(tokio::spawn(restart(simulator, config, policy, stop.clone())))
        } else {
            Simulated::Steady(simulator)
        };
        Ok(Self { engine, simulated: Some(simulated) })
    }

    pub(super) fn engine(&self) -> Arc<dyn Engine> {
        self.engine.clone()
    }

    /// Which rules answered; nothing for a real engine. To be asked after `stop`.
    pub(super) async fn answers(self) -> Vec<Answer> {
        match self.simulated {
            None => Vec::new(),
            Some(Simulated::Steady(simulator)) => simulator.answers(),
            // Without its answers no call is labelled, which the report shows.
            Some(Simulated::Restarted(answers)) => answers.await.unwrap_or_default(),
        }
    }
}

/// The files of the simulated model.
fn model(folder: &Path) -> Result<TokenModeOptions, CheckError> {
    let folder = folder.join("model");
    let io = |error| CheckError::Io { action: "write the simulated model's files", error };
    write_model_files(&folder).map_err(io)?;
    let files = ModelFiles::read(&folder).map_err(|error| CheckError::Engine(error.to_string()))?;
    Ok(TokenModeOptions { files: Some(files) })
}

fn broken(error: polar_simulator::SimulatorError) -> CheckError {
    CheckError::Engine(error.to_string())
}

/// Kills the engine while a reply of it stalls, and starts it again where it was.
async fn restart(
    simulator: SimulatorHandle,
    config: SimulatorConfig,
    policy: Policy,
    stop: CancellationToken,
) -> Vec<Answer> {
    let stalls = |answer: &Answer| matches!(answer.fault, Some(Fault::StallAfter(_)));
    while !simulator.answers().iter().any(stalls) {
        if pause(LOOK, &stop).await {
            return simulator.answers();
        }
    }
    // Its first tokens are on their way by then.
    pause(AWAY, &stop).await;
    let mut answers = simulator.answers();
    let listen = simulator.addr;
    simulator.shutdown().await;
    pause(AWAY, &stop).await;
    match serve(SimulatorConfig { listen, policy, ..config }).await {
        Ok(again) => {
            stop.cancelled().await;
            answers.extend(again.answers());
        }
        Err(error) => tracing::error!(%error, "the simulated engine did not start again"),
    }
    answers
}

/// Whether it was stopped meanwhile.
async fn pause(time: Duration, stop: &CancellationToken) -> bool {
    tokio::time::timeout(time, stop.cancelled()).await.is_ok()
}
