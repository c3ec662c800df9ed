//! The engine that the caller started, connected like a user would connect it.

use polar_engine::{
    Engine, EngineKind, EngineOptions, ModelFiles, Outcome, ParserChoice, ParserOptions,
    ProbeError, ProbeReport, TokenModeOptions,
};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

/// It needs a GPU.
pub(crate) const NOT_STARTED: &str = "no suite starts TensorRT-LLM";

pub(crate) struct EngineUnderTest {
    pub(crate) kind: EngineKind,
    pub(crate) url: String,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) report: ProbeReport,
    /// It has no parsers of its own.
    pub(crate) gives_raw_text: bool,
    pub(crate) http: reqwest::Client,
}

impl EngineUnderTest {
    pub(crate) async fn connect(kind: EngineKind) -> Self {
        Self::told(Self::try_connect(kind, None).await)
    }

    /// With the files that its model was made with.
    pub(crate) async fn in_token_mode(kind: EngineKind) -> Self {
        let files = ModelFiles::read(model_folder()).unwrap();
        Self::told(Self::try_connect(kind, Some(files)).await)
    }

    fn told(connected: Result<Self, ProbeError>) -> Self {
        match connected {
            Ok(connected) => connected,
            Err(error) => panic!("{error}"),
        }
    }

    /// Whichever it is, in token mode, with a model that is shown pictures.
    pub(crate) async fn that_sees() -> Self {
        let files = ModelFiles::read(variable("POLAR_TEST_VISION_MODEL")).unwrap();
        Self::told(Self::at(variable("POLAR_TEST_VISION"), Some(files)).await)
    }

    /// In token mode where there are files.
    pub(crate) async fn try_connect(
        kind: EngineKind,
        files: Option<ModelFiles>,
    ) -> Result<Self, ProbeError> {
        let url = variable(match kind {
            EngineKind::LlamaCpp => "POLAR_TEST_LLAMA",
            EngineKind::Vllm => "POLAR_TEST_VLLM",
            EngineKind::Sglang => "POLAR_TEST_SGLANG",
            EngineKind::TensorRtLlm => panic!("{NOT_STARTED}"),
        });
        Self::at(url, files).await
    }

    /// One that the test has started itself.
    pub(crate) async fn at_in_token_mode(url: String) -> Self {
        let files = ModelFiles::read(model_folder()).unwrap();
        Self::told(Self::at(url, Some(files)).await)
    }

    async fn at(url: String, files: Option<ModelFiles>) -> Result<Self, ProbeError> {
        let gives_raw_text = std::env::var("POLAR_TEST_RAW_TEXT").is_ok();
        let parsers = match gives_raw_text {
            true => ParserOptions {
                tools: Some(ParserChoice::Auto),
                reasoning: Some(ParserChoice::Auto),
            },
            false => ParserOptions::default(),
        };
        let token_mode = files.map(|files| TokenModeOptions { files: Some(files) });
        let options = EngineOptions { parsers, token_mode, ..EngineOptions::default() };
        let (engine, report) = polar_engine::probe(&url, options).await?;
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let kind = engine.info().kind;
        Ok(Self { kind, url, engine, report, gives_raw_text, http })
    }

    pub(crate) async fn get(&self, path: &str) -> String {
        let answer = self.http.get(format!("{}{path}", self.url)).send().await.unwrap();
        answer.text().await.unwrap()
    }

    /// Asks the engine without Polar.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        self.try_post(path, body).await.unwrap_or_else(|said| panic!("{said}"))
    }

    /// Its refusal where there is one.
    pub(crate) async fn try_post(&self, path: &str, body: &Value) -> Result<Value, String> {
        let request = self.http.post(format!("{}{path}", self.url)).json(body);
        let answer = request.send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        match status.is_success() {
            true => Ok(serde_json::from_str(&text).unwrap_or_default()),
            false => Err(format!("{path}: {status} {text}")),
        }
    }
}

/// The folder of the model that every engine serves.
pub(crate) fn model_folder() -> PathBuf {
    variable("POLAR_TEST_MODEL").into()
}

pub(crate) fn variable(name: &str) -> String {
    match std::env::var(name) {
        Ok(value) => value,
        Err(_) => panic!("{name} is not set: run this test through tests/engines/engines.py"),
    }
}

pub(crate) async fn passes_every_check(kind: EngineKind) {
    let under = EngineUnderTest::connect(kind).await;
    for check in &under.report.checks {
        println!("{:?} {}: {}", check.outcome, check.name, check.detail);
    }
    assert!(under.report.checks.iter().all(|check| check.outcome == Outcome::Passed));
    let info = under.engine.info();
    assert_eq!(info.kind, kind);
    assert_eq!(info.model, "polar-tiny");
    assert!(info.version.is_some() && info.vocab_size.is_some() && info.context_window.is_some());
    let mode = if kind == EngineKind::Sglang { "temperature" } else { "raw" };
    assert_eq!(info.logprob_mode, mode);
    under.engine.health().await.unwrap();
}
