//! Turns ids into text with the engine that sampled them.

use crate::api::base_url;
use serde_json::{Value, json};
use std::time::Duration;

/// An engine that is asked for text. Where it is gone, ids are shown instead.
pub(crate) struct Detokenizer {
    client: reqwest::Client,
    base: Option<String>,
}

impl Detokenizer {
    /// The engine that the user named, or the one in a record: [`polar_engine::EngineInfo`].
    pub(crate) fn of(recorded: &Value, engine: Option<&str>) -> Self {
        let client = reqwest::Client::builder()
            .timeout(Duration::from_secs(10))
            .no_proxy()
            .build()
            .unwrap_or_default();
        Self { client, base: engine.or(recorded["url"].as_str()).map(base_url) }
    }

    /// Text of a run of ids.
    pub(crate) async fn text(&self, ids: &[u32]) -> String {
        match self.ask(ids).await {
            Some(text) => text,
            None => ids.iter().map(|id| format!("{id} ")).collect(),
        }
    }

    /// Text of a run of ids, where the engine tells.
    pub(crate) async fn ask(&self, ids: &[u32]) -> Option<String> {
        let url = format!("{}/detokenize", self.base.as_deref()?);
        let request = self.client.post(url).json(&json!({"tokens": ids}));
        let answer: Value =
            request.send().await.ok()?.error_for_status().ok()?.json().await.ok()?;
        // vLLM and SGLang say `prompt` or `text`, llama.cpp says `content`.
        ["prompt", "text", "content"]
            .iter()
            .find_map(|field| answer[*field].as_str().map(str::to_owned))
    }
}
