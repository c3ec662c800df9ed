//! vLLM, with the routes that it has in its development mode.

use super::engine::{WeightEngine, of_request};
use crate::EngineError;
use crate::transport::Transport;
use crate::vllm::{Vllm, WEIGHT_INFO};
use async_trait::async_trait;
use polar_types::{ErrorClass, WeightSource};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Deserialize)]
struct WeightInfo {
    #[serde(default)]
    weight_version: Option<String>,
}

#[async_trait]
impl WeightEngine for Vllm {
    async fn version(&self, until: Instant) -> Result<Option<String>, EngineError> {
        let page: WeightInfo =
            self.transport.get_until(WEIGHT_INFO.0, until).await.map_err(needs_development_mode)?;
        Ok(page.weight_version)
    }

    async fn pause(&self, until: Instant) -> Result<(), EngineError> {
        self.told("/pause?mode=keep", &json!({}), until).await.map(drop)
    }

    async fn load(
        &self,
        source: &WeightSource,
        _version: &str,
        until: Instant,
    ) -> Result<(), EngineError> {
        match source {
            WeightSource::Disk { path } => {
                let body = json!({"method": "reload_weights", "kwargs": {"weights_path": path}});
                self.told("/collective_rpc", &body, until).await.map(drop)
            }
            WeightSource::Lora { name, path } => {
                let body = json!({"lora_name": name, "lora_path": path, "load_inplace": true});
                let loaded = self.told("/v1/load_lora_adapter", &body, until).await;
                loaded.map(drop).map_err(|error| needs_lora(error, name))
            }
            WeightSource::Engine { requests } => {
                // The pause before them has shown that the routes for weights are there.
                for (index, call) in requests.iter().enumerate() {
                    let told = self.transport.tell(&call.path, &json!(call.body), until).await;
                    told.map_err(|error| of_request(error, index, &call.path))?;
                }
                Ok(())
            }
            WeightSource::Label {} => Ok(()),
        }
    }

    async fn label(&self, version: &str, until: Instant) -> Result<(), EngineError> {
        let body = json!({"new_version": version});
        self.told("/update_weight_version", &body, until).await.map(drop)
    }

    async fn forget_prefixes(&self, until: Instant) -> Result<bool, EngineError> {
        // What stands still is computed anew behind the new weights.
        let path = "/reset_prefix_cache?reset_running_requests=true";
        let answer = self.told(path, &json!({}), until).await?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        // Earlier versions answer with nothing.
        Ok(answer["success"].as_bool().unwrap_or(true))
    }

    async fn resume(&self, until: Instant) -> Result<(), EngineError> {
        self.told("/resume", &json!({}), until).await.map(drop)
    }

    async fn abort(&self, request_ids: &[String], until: Instant) -> Result<(), EngineError> {
        // By what each place makes of the name that it was given.
        let names = request_ids.iter().flat_map(|id| {
            [format!("generate-tokens-{id}"), format!("cmpl-{id}"), format!("cmpl-{id}-0")]
        });
        let body = json!({"request_ids": names.collect::<Vec<_>>()});
        self.told("/inference/v1/abort_requests", &body, until).await.map(drop)
    }
}

#[derive(Deserialize)]
struct Paused {
    #[serde(default)]
    is_paused: bool,
}

/// Tells a server that stays paused to go on: whoever paused it may be gone, and nothing that is
/// asked of it would be answered.
pub(crate) async fn end_left_pause(transport: &Transport, patience: Duration) {
    let until = Instant::now() + patience;
    let is_paused = async || {
        let page: Result<Paused, _> = transport.get_until("/is_paused", soon()).await;
        page.is_ok_and(|page| page.is_paused)
    };
    while is_paused().await {
        if Instant::now() >= until {
            tracing::warn!("the engine was left paused; telling it to go on");
            if let Err(error) = transport.tell("/resume", &json!({}), soon()).await {
                tracing::warn!(%error, "it does not go on");
            }
            return;
        }
        tokio::time::sleep(LOOK.min(patience)).await;
    }
}

/// How often a paused server is looked at.
const LOOK: Duration = Duration::from_secs(1);

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

impl Vllm {
    async fn told(
        &self,
        path: &str,
        body: &Value,
        until: Instant,
    ) -> Result<bytes::Bytes, EngineError> {
        self.transport.tell(path, body, until).await.map_err(needs_development_mode)
    }
}

/// Says which switch opens a route that is not there.
fn needs_development_mode(error: EngineError) -> EngineError {
    if error.class != ErrorClass::NotFound {
        return error;
    }
    let message = "this vLLM has no routes to change its weights; start it with \
                   VLLM_SERVER_DEV_MODE=1 in its environment"
        .to_owned();
    EngineError { message, ..error }
}

fn needs_lora(error: EngineError, name: &str) -> EngineError {
    if error.class != ErrorClass::NotFound {
        return error;
    }
    let message = format!(
        "this vLLM does not load the adapter {name}; start it with --enable-lora and \
         VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
    );
    EngineError { message, ..error }
}
