//! An inference engine without a model.
//!
//! Speaks vLLM's HTTP API, with exact token ids and logprobs, and plays a scripted
//! [`Policy`] instead of sampling: the quick start, `polar harness check` and tests run
//! against it. It can speak TensorRT-LLM's instead, see [`EngineApi`]. Same request, same policy, same seed: same reply, down to the last id.
//! What a policy says depends on the conversation in the request alone, unless a rule says
//! how many `times` it holds; the server keeps counters, the last requests and which rules
//! answered for tests, nothing else.
//!
//! It must not be kinder than the real engine: what vLLM drops, rewrites or refuses is
//! dropped, rewritten and refused here too. `tests/vllm_shapes.py` holds the two against
//! each other.

mod activity;
mod api;
mod config;
mod connection;
mod control;
mod fault;
mod model_files;
mod parsing;
mod policy;
mod sampling;
mod script;
mod template;
mod transcript;
mod vocabulary;
mod weights;

pub use activity::{Answer, SeenRequest, Stats};
pub use config::{EngineApi, SimulatorConfig, Speed};
pub use control::{SampledTokens, WeightFault};
pub use fault::{Fault, FaultChance, FaultSyntaxError};
pub use model_files::write_model_files;
pub use policy::{Policy, PolicyError, shipped_policies, shipped_policy};
pub use template::ChatTemplate;
pub use vocabulary::Vocabulary;
pub use weights::{Context, Distribution, Logprob};

use api::Simulator;
use connection::Ending;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The task that the `fix-test` policy solves: a task request as YAML.
pub const FIX_TEST_TASK: &str = include_str!("../assets/tasks/fix-test.yaml");

/// Why the simulator can't start or answer.
#[derive(Debug, thiserror::Error)]
pub enum SimulatorError {
    /// The address can't be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The tokenizer can't be loaded or used.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template can't be loaded or rendered.
    #[error(transparent)]
    Template(#[from] polar_tokens::template::TemplateError),
}

/// A running simulator. Dropping it stops the server at once.
#[derive(Debug)]
pub struct SimulatorHandle {
    /// Where it listens.
    pub addr: SocketAddr,
    simulator: Arc<Simulator>,
    stop: CancellationToken,
    server: JoinHandle<()>,
}

impl SimulatorHandle {
    /// Base URL without a trailing slash.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Counters, as `/simulator/stats` shows them.
    pub fn stats(&self) -> Stats {
        self.simulator.activity.stats()
    }

    /// The last requests, oldest first.
    pub fn requests(&self) -> Vec<SeenRequest> {
        self.simulator.activity.requests()
    }

    /// Which rules answered the last requests, oldest first.
    pub fn answers(&self) -> Vec<Answer> {
        self.simulator.activity.answers()
    }

    /// Which weights sampled which tokens, by request, in the order in which that began.
    pub fn sampled(&self) -> Vec<SampledTokens> {
        self.simulator.control.sampled()
    }

    /// What goes wrong when weights are loaded from now on.
    pub fn set_weight_fault(&self, fault: Option<WeightFault>) {
        self.simulator.control.set_weight_fault(fault);
    }

    /// Plays another policy from the next request on.
    pub fn set_policy(&self, policy: Policy) {
        self.simulator.set_policy(policy);
    }

    /// Stops taking requests and ends the server; open connections are cut.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        // A server task that panicked is as gone as one that ended.
        let _ = (&mut self.server).await;
    }

    /// Resolves when the server has ended.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }
}

impl Drop for SimulatorHandle {
    fn drop(&mut self) {
        self.stop.cancel();
        self.server.abort();
    }
}

/// Starts a simulator in the current tokio runtime.
pub async fn serve(config: SimulatorConfig) -> Result<SimulatorHandle, SimulatorError> {
    let address = config.listen;
    let simulator = Arc::new(Simulator::new(config)?);
    let listen = |source| SimulatorError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let addr = listener.local_addr().map_err(listen)?;
    let router = api::router(Arc::clone(&simulator));
    let stop = CancellationToken::new();
    let listener = Ending::new(polar_http::sending_at_once(listener), stop.clone());
    let stopped = stop.clone();
    let server = tokio::spawn(async move {
        tokio::select! {
            result = axum::serve(listener, router).into_future() => {
                if let Err(error) = result {
                    tracing::error!(%error, "the simulator's server ended");
                }
                stopped.cancel();
            }
            () = stopped.cancelled() => {}
        }
    });
    Ok(SimulatorHandle { addr, simulator, stop, server })
}
