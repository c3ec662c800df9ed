//! Changes of which engines the node has, while it runs: fetched from the server, done, reported.
//!
//! An engine that comes is checked as one at the start, and brought to the weights that all have
//! before it takes a call. Nothing of it outlives the process: what a node is to have always, it is
//! told at its start.

use crate::client::{Backoff, ServerClient};
use polar_engine::{Engine, EngineOptions, connect, same_prompts};
use polar_gateway::{EnginePool, WeightedEngine};
use polar_types::{
    EngineAction, EngineOrder, EngineOrderDone, EngineOrderReport, EngineRequest, NodeId,
    WeightState, WeightTarget,
};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long the server may hold the question open.
const WAIT_SECONDS: f64 = 20.0;
/// Of an engine of which nobody says how much it takes.
const USUAL_WEIGHT: f64 = 1.0;

/// What it takes to change the engines of a node.
#[derive(Clone)]
pub(crate) struct EngineOrderTaker {
    pub(crate) client: Arc<ServerClient>,
    pub(crate) node_id: NodeId,
    pub(crate) engines: Arc<EnginePool>,
    /// How engines are connected to.
    pub(crate) options: EngineOptions,
    /// The weights that all are to have.
    pub(crate) target: watch::Receiver<Option<WeightTarget>>,
}

impl EngineOrderTaker {
    /// Asks for orders, does them, and reports, for as long as it is polled.
    pub(crate) async fn follow(self) -> Infallible {
        let mut known: Vec<String> = Vec::new();
        let mut done: Vec<EngineOrderDone> = Vec::new();
        let mut work: JoinSet<EngineOrderDone> = JoinSet::new();
        let mut backoff = Backoff::default();
        loop {
            let report = EngineOrderReport {
                node_id: self.node_id.clone(),
                known: known.clone(),
                done: done.clone(),
                wait_seconds: WAIT_SECONDS,
            };
            let asked = async {
                tokio::time::sleep(backoff.pause()).await;
                self.client.engine_orders(&report).await
            };
            let answer = tokio::select! {
                answer = asked => answer,
                Some(ended) = work.join_next(), if !work.is_empty() => {
                    // Its task breaks off with this one alone.
                    if let Ok(ended) = ended {
                        known.retain(|id| *id != ended.id);
                        done.push(ended);
                    }
                    continue;
                }
            };
            match answer {
                Ok(told) => {
                    backoff.reset();
                    let reported: Vec<String> = done.drain(..).map(|done| done.id).collect();
                    for order in told.orders {
                        if known.contains(&order.id) || reported.contains(&order.id) {
                            continue;
                        }
                        known.push(order.id.clone());
                        work.spawn(self.clone().carry_out(order));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "orders for engines cannot be asked for");
                    backoff.fail();
                }
            }
        }
    }

    async fn carry_out(self, EngineOrder { id, request }: EngineOrder) -> EngineOrderDone {
        let (url, action) = (request.url(), request.action.as_str());
        let problem = self.change(&url, &request).await.err();
        match &problem {
            None => tracing::info!(engine = url, action, "done as ordered"),
            Some(problem) => tracing::warn!(engine = url, action, problem, "not done"),
        }
        EngineOrderDone { id, problem, engines: self.engines.status() }
    }

    async fn change(&self, url: &str, request: &EngineRequest) -> Result<(), String> {
        let weight = request.weight.unwrap_or(USUAL_WEIGHT);
        let changed = match request.action {
            EngineAction::Add => return self.add(url, request.weight).await,
            EngineAction::Drain => self.engines.drain(url),
            EngineAction::Resume => self.engines.resume(url),
            EngineAction::Remove => self.engines.remove(url),
            EngineAction::Weight => self.engines.set_weight(url, weight),
        };
        changed.map_err(|error| error.to_string())
    }

    async fn add(&self, url: &str, weight: Option<f64>) -> Result<(), String> {
        if self.engines.status().iter().any(|status| status.engine == url) {
            // Asked for again, as after a lost answer: what was not asked for stays as it is.
            let Some(weight) = weight else { return Ok(()) };
            return self.engines.set_weight(url, weight).map_err(|error| error.to_string());
        }
        let weight = weight.unwrap_or(USUAL_WEIGHT);
        let known = self.engines.info();
        let model = Some(known.model.clone());
        let options = EngineOptions { model, ..self.options.clone() };
        let found = connect(url, options).await;
        let engine = found.map_err(|error| format!("the engine at {url}: {error}"))?;
        self.engines.check_new(&engine, weight).map_err(|error| error.to_string())?;
        let alike = same_prompts(self.engines.any().as_ref(), engine.as_ref()).await;
        alike.map_err(|error| error.to_string())?;
        self.bring_to_weights(url, &engine).await?;
        let one = WeightedEngine { engine, weight };
        self.engines.add(one).map_err(|error| error.to_string())
    }

    /// Brings an engine to the weights that all have, or says why it has not got them.
    async fn bring_to_weights(&self, url: &str, engine: &Arc<dyn Engine>) -> Result<(), String> {
        let target = self.target.borrow().clone();
        let (Some(target), Some(weights)) = (target, engine.weights().cloned()) else {
            return Ok(());
        };
        let told = weights.told();
        // In a task of its own: broken off half-way, it would leave the engine paused.
        let update = target.update.clone();
        let bringing = tokio::spawn(async move { weights.bring_to(&update, true).await });
        bringing.await.map_err(|error| error.to_string())?;
        let told = told.borrow().engine.clone();
        match told.state {
            WeightState::Current => Ok(()),
            _ => Err(format!(
                "the engine at {url} was not brought to weights {}: {}",
                target.update.version,
                told.reason.unwrap_or_default()
            )),
        }
    }
}
