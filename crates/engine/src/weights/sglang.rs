//! SGLang, which has a route for each step.

use super::engine::{WeightEngine, of_request};
use crate::EngineError;
use crate::sglang::{MODEL_INFO, Sglang};
use crate::transport::Transport;
use async_trait::async_trait;
use polar_types::{ErrorClass, WeightSource};
use serde::Deserialize;
use serde_json::{Value, json};
use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Deserialize)]
struct ModelInfo {
    #[serde(default)]
    weight_version: Option<String>,
}

#[async_trait]
impl WeightEngine for Sglang {
    async fn version(&self, until: Instant) -> Result<Option<String>, EngineError> {
        let page: ModelInfo = self.transport.get_until(MODEL_INFO.0, until).await?;
        Ok(page.weight_version)
    }

    /// What runs is taken back, so that nothing of it stays in the cache.
    async fn pause(&self, until: Instant) -> Result<(), EngineError> {
        self.told("/pause_generation", &json!({"mode": "retract"}), until).await.map(drop)
    }

    async fn load(
        &self,
        source: &WeightSource,
        version: &str,
        until: Instant,
    ) -> Result<(), EngineError> {
        match source {
            WeightSource::Disk { path } => {
                let body = json!({
                    "model_path": path,
                    "weight_version": version,
                    "abort_all_requests": false,
                    "keep_pause": true,
                    "flush_cache": true,
                });
                self.told("/update_weights_from_disk", &body, until).await.map(drop)
            }
            WeightSource::Lora { name, path } => {
                let unloaded =
                    self.told("/unload_lora_adapter", &json!({"lora_name": name}), until).await;
                let was_there = match unloaded {
                    Ok(_) => true,
                    // There was none of that name.
                    Err(error) if error.class == ErrorClass::Invalid => false,
                    Err(error) => return Err(error),
                };
                let body = json!({"lora_name": name, "lora_path": path});
                let loaded = self.told("/load_lora_adapter", &body, until).await;
                loaded.map(drop).map_err(|error| match was_there {
                    // No refusal that leaves it as it was.
                    true => EngineError::new(
                        ErrorClass::Unavailable,
                        format!("{}; the adapter before is gone", error.message),
                    ),
                    false => error,
                })
            }
            WeightSource::Engine { requests } => {
                for (index, call) in requests.iter().enumerate() {
                    let told = self.told(&call.path, &json!(call.body), until).await;
                    told.map_err(|error| of_request(error, index, &call.path))?;
                }
                Ok(())
            }
            WeightSource::Label {} => Ok(()),
        }
    }

    /// It unloads an adapter once no request uses it, and those that stand still never end.
    fn needs_idle(&self, source: &WeightSource) -> bool {
        matches!(source, WeightSource::Lora { .. })
    }

    async fn label(&self, version: &str, until: Instant) -> Result<(), EngineError> {
        // It would end all that runs, unless told otherwise.
        let body = json!({"new_version": version, "abort_all_requests": false});
        self.told("/update_weight_version", &body, until).await.map(drop)
    }

    async fn forget_prefixes(&self, until: Instant) -> Result<bool, EngineError> {
        match self.told("/flush_cache", &json!({}), until).await {
            Ok(_) => Ok(true),
            // Refused while something runs.
            Err(error) if error.class == ErrorClass::Invalid => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn resume(&self, until: Instant) -> Result<(), EngineError> {
        self.told("/continue_generation", &json!({}), until).await.map(drop)
    }

    async fn abort(&self, request_ids: &[String], until: Instant) -> Result<(), EngineError> {
        for id in request_ids {
            self.told("/abort_request", &json!({"rid": id}), until).await?;
        }
        Ok(())
    }
}

/// The same work at a server that may have been left paused, by whoever is gone: it does not say
/// whether it is, and answers nothing that is to be sampled. What takes longer than that makes it
/// go on, which does nothing to one that goes.
pub(crate) async fn ending_left_pause<T>(
    transport: &Transport,
    patience: Duration,
    work: impl Future<Output = T>,
) -> T {
    let go_on = async {
        tokio::time::sleep(patience).await;
        let until = Instant::now() + Duration::from_secs(10);
        if let Err(error) = transport.tell("/continue_generation", &json!({}), until).await {
            tracing::warn!(%error, "the engine answers nothing, and was not told to go on");
        }
        std::future::pending::<T>().await
    };
    tokio::select! {
        done = work => done,
        never = go_on => never,
    }
}

impl Sglang {
    /// It tells of some failures in a success.
    async fn told(
        &self,
        path: &str,
        body: &Value,
        until: Instant,
    ) -> Result<bytes::Bytes, EngineError> {
        let answer = self.transport.tell(path, body, until).await?;
        let said: Value = serde_json::from_slice(&answer).unwrap_or_default();
        match said["success"].as_bool() {
            Some(false) => {
                let why = said["message"].as_str().unwrap_or("without a reason").to_owned();
                Err(EngineError::new(ErrorClass::Invalid, format!("{path} failed: {why}")))
            }
            _ => Ok(answer),
        }
    }
}
