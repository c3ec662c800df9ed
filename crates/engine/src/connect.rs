//! From a URL to a checked engine: which one it is, which model it serves, and whether it
//! gives what training needs.

use crate::llama_cpp::LlamaCpp;
use crate::parser_choice::{self, ParserOptions};
use crate::parsing::Parsing;
use crate::probe::{self, ProbeError, ProbeReport, Setup};
use crate::prompt_end::PromptEnd;
use crate::sglang::{MODEL_INFO, Sglang};
use crate::tensorrt_llm::{self, TensorRtLlm};
use crate::token_mode::{InTokenMode, TokenMode, TokenModeOptions};
use crate::transport::{Timeouts, Transport};
use crate::vllm::{CHAT, Vllm, WEIGHT_INFO};
use crate::vllm_tokens;
use crate::weights::{self, served};
use crate::{Engine, EngineError, EngineInfo, EngineKind};
use polar_types::ErrorClass;
use serde::Deserialize;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// What to know about an engine before asking it.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// Which engine it is; found out when absent.
    pub kind: Option<EngineKind>,
    /// Served model name; the first served model when absent.
    pub model: Option<String>,
    /// Sent as a bearer token.
    pub api_key: Option<String>,
    /// Ids are in `0..vocab_size`; found out when absent.
    pub vocab_size: Option<u32>,
    /// What is parsed here instead of by the engine.
    pub parsers: ParserOptions,
    /// Set where calls are to be made in token mode.
    pub token_mode: Option<TokenModeOptions>,
    /// How long to wait for what.
    pub timeouts: Timeouts,
}

/// Connects to the engine at `url` and lets it generate, see [`probe`].
pub async fn connect(url: &str, options: EngineOptions) -> Result<Arc<dyn Engine>, ProbeError> {
    probe(url, options).await.map(|(engine, _)| engine)
}

/// Connects to the engine at `url`, lets it generate once unary and once streamed, and
/// says what was checked. An engine whose ids or logprobs cannot be trained on is an
/// error that says what to change.
pub async fn probe(
    url: &str,
    options: EngineOptions,
) -> Result<(Arc<dyn Engine>, ProbeReport), ProbeError> {
    let transport = Transport::new(url, options.api_key.as_deref(), options.timeouts)?;
    let served: Models = transport.get("/v1/models").await.map_err(not_an_engine)?;
    let model = served.choose(options.model.as_deref())?;
    let Some(asked) = options.kind else {
        let kind = detect(&transport, model).await?;
        return probe_as(kind, &transport, model, options).await;
    };
    match probe_as(asked, &transport, model, options).await {
        Ok(found) => Ok(found),
        // What it lacks as another engine says nothing of it.
        Err(error) => match detect(&transport, model).await {
            Ok(answers) if answers != asked => {
                Err(ProbeError::OtherKind { asked, answers, error: Box::new(error) })
            }
            _ => Err(error),
        },
    }
}

async fn probe_as(
    kind: EngineKind,
    transport: &Transport,
    model: &Model,
    options: EngineOptions,
) -> Result<(Arc<dyn Engine>, ProbeReport), ProbeError> {
    let patience = options.timeouts.paused;
    match kind {
        EngineKind::Vllm => weights::end_left_pause(transport, patience).await,
        EngineKind::Sglang => {
            let probing = probe_going(kind, transport, model, options);
            return weights::ending_left_pause(transport, patience, probing).await;
        }
        EngineKind::LlamaCpp | EngineKind::TensorRtLlm => {}
    }
    probe_going(kind, transport, model, options).await
}

/// Probes an engine that is not paused.
async fn probe_going(
    kind: EngineKind,
    transport: &Transport,
    model: &Model,
    options: EngineOptions,
) -> Result<(Arc<dyn Engine>, ProbeReport), ProbeError> {
    let names = (model.id.as_str(), model.root.as_deref());
    if options.token_mode.is_none() && !kind.tells_ids_of_chats() {
        return Err(ProbeError::NeedsTokenMode);
    }
    let own_choice = match (kind, &options.token_mode) {
        // They parse their chat completions themselves, which token mode hardly needs.
        (EngineKind::LlamaCpp | EngineKind::TensorRtLlm, Some(_)) => ParserOptions::default(),
        _ => options.parsers,
    };
    let chosen = parser_choice::choose(own_choice, kind, transport, names).await?;
    let files = options.token_mode.as_ref().and_then(|mode| mode.files.as_ref());
    let vocab_size = options.vocab_size.or_else(|| match kind {
        // It does not tell.
        EngineKind::TensorRtLlm => files?.vocab_size,
        _ => None,
    });
    let info = describe(kind, transport, model, vocab_size).await;
    let own_parsers = OwnParsers::ask(kind, transport).await;
    // Only SGLang takes tools without being able to parse calls of them.
    let parses_tools = kind != EngineKind::Sglang || own_parsers.tool_call_parser.is_some();
    let marks = match chosen {
        Some((family, _)) => family.reasoning_marks(),
        None => Some(USUAL_MARKS),
    };
    let prompt_end = match kind {
        EngineKind::LlamaCpp | EngineKind::TensorRtLlm => None,
        _ => Some(Arc::new(PromptEnd::learn(transport.clone(), &model.id, marks).await)),
    };
    let engine = |info, generates| {
        let engine = served(adapter(transport.clone(), info, own_parsers.any(), generates));
        match (chosen, &prompt_end) {
            (Some((family, _)), Some(prompt_end)) => {
                let prompt_end = Arc::clone(prompt_end);
                Arc::new(Parsing { engine, family, prompt_end }) as Arc<dyn Engine>
            }
            _ => engine,
        }
    };
    let setup = Setup { parses_tools, parsers: chosen, prompt_end: prompt_end.clone() };
    let mut report = probe::run(engine(info, false).as_ref(), setup).await?;
    // Asked behind the probe, for a first generation may take minutes.
    let generates = kind == EngineKind::Vllm && vllm_tokens::generates(transport, &model.id).await;
    // The probe measures what logprobs mean; from here on the engine says so.
    let engine = engine(report.info.clone(), generates);
    let Some(token_mode) = options.token_mode else { return Ok((engine, report)) };
    let mode = TokenMode::start(engine, token_mode, options.parsers, &mut report).await?;
    let engine = InTokenMode { mode: Arc::new(mode), info: report.info.clone() };
    Ok((Arc::new(engine), report))
}

/// How most models write reasoning.
const USUAL_MARKS: (&str, &str) = ("<think>", "</think>");

fn adapter(
    transport: Transport,
    info: EngineInfo,
    has_parsers: bool,
    generates: bool,
) -> Arc<dyn Engine> {
    match info.kind {
        EngineKind::Vllm => Arc::new(Vllm { transport, info, generates }),
        EngineKind::Sglang => Arc::new(Sglang { transport, info, streams: has_parsers }),
        EngineKind::LlamaCpp => Arc::new(LlamaCpp { transport, info }),
        EngineKind::TensorRtLlm => Arc::new(TensorRtLlm { transport, info }),
    }
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    #[serde(default)]
    owned_by: Option<String>,
    /// vLLM: the base model of a LoRA adapter.
    #[serde(default)]
    parent: Option<String>,
    /// Where it was loaded from, which often tells more than its name.
    #[serde(default)]
    root: Option<String>,
    #[serde(default)]
    max_model_len: Option<u64>,
    /// llama.cpp.
    #[serde(default)]
    meta: Option<LlamaMeta>,
}

#[derive(Deserialize)]
struct LlamaMeta {
    #[serde(default)]
    n_vocab: Option<u32>,
}

impl Models {
    fn choose(&self, asked: Option<&str>) -> Result<&Model, ProbeError> {
        let found = match asked {
            Some(name) => self.data.iter().find(|model| model.id == name),
            None => self.data.iter().find(|model| model.parent.is_none()),
        };
        found.ok_or_else(|| ProbeError::NoSuchModel {
            asked: asked.map(str::to_owned),
            served: self.data.iter().map(|model| model.id.clone()).collect(),
        })
    }
}

fn not_an_engine(error: EngineError) -> ProbeError {
    match error.class {
        ErrorClass::NotFound => ProbeError::Engine(EngineError {
            message: format!(
                "no OpenAI-style inference server answers there: /v1/models says {}",
                error.message
            ),
            ..error
        }),
        _ => ProbeError::Engine(error),
    }
}

async fn detect(transport: &Transport, model: &Model) -> Result<EngineKind, ProbeError> {
    match model.owned_by.as_deref() {
        Some("vllm") => return Ok(EngineKind::Vllm),
        Some("sglang") => return Ok(EngineKind::Sglang),
        Some("llamacpp") => return Ok(EngineKind::LlamaCpp),
        Some("tensorrt_llm") => return Ok(EngineKind::TensorRtLlm),
        Some("Triton Inference Server") => return Err(ProbeError::TritonFrontEnd),
        _ => {}
    }
    // A name of its own, for example behind a router: ask for pages only one of them has.
    if transport.answers("/props").await.is_ok() {
        Ok(EngineKind::LlamaCpp)
    } else if transport.answers(MODEL_INFO.0).await.is_ok() {
        Ok(EngineKind::Sglang)
    } else if transport.answers(tensorrt_llm::OWN_PAGE).await.is_ok() {
        Ok(EngineKind::TensorRtLlm)
    } else if transport.answers("/version").await.is_ok() {
        Ok(EngineKind::Vllm)
    } else {
        Err(ProbeError::UnknownKind { url: transport.base().to_owned() })
    }
}

async fn describe(
    kind: EngineKind,
    transport: &Transport,
    model: &Model,
    vocab_size: Option<u32>,
) -> EngineInfo {
    let mut info = EngineInfo {
        kind,
        url: transport.base().to_owned(),
        version: None,
        model: model.id.clone(),
        context_window: model.max_model_len,
        vocab_size: vocab_size.or(model.meta.as_ref().and_then(|meta| meta.n_vocab)),
        logprob_mode: "raw".to_owned(),
        weight_version: None,
        model_folder: model.root.clone(),
        token_mode: None,
    };
    match kind {
        EngineKind::Vllm => {
            let version: Option<Version> = transport.get("/version").await.ok();
            info.version = version.and_then(|page| page.version);
            info.weight_version = WEIGHT_INFO.ask(transport).await;
        }
        EngineKind::Sglang => {
            let version: Option<Version> = transport.get("/server_info").await.ok();
            info.version = version.and_then(|page| page.version);
            info.weight_version = MODEL_INFO.ask(transport).await;
            let page: SglangModel = transport.get(MODEL_INFO.0).await.unwrap_or_default();
            info.model_folder = page.tokenizer_path.or(page.model_path).or(info.model_folder);
            info.logprob_mode = "temperature".to_owned();
        }
        EngineKind::LlamaCpp => {
            if let Ok(props) = transport.get::<LlamaProps>("/props").await {
                info.model_folder = props.folder().or(info.model_folder);
                info.version = props.build_info;
                info.context_window = props.default_generation_settings.n_ctx;
            }
        }
        EngineKind::TensorRtLlm => {
            let version: Option<Version> = transport.get("/version").await.ok();
            info.version = version.and_then(|page| page.version);
            // Its refusals name the size without special tokens in some versions.
            return info;
        }
    }
    if info.vocab_size.is_none() {
        info.vocab_size = vocab_size_by_refusal(transport, &model.id).await;
    }
    info
}

/// Where SGLang has its model from.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SglangModel {
    tokenizer_path: Option<String>,
    model_path: Option<String>,
}

/// The parsers that SGLang was started with.
#[derive(Default, Deserialize)]
struct OwnParsers {
    #[serde(default)]
    tool_call_parser: Option<String>,
    #[serde(default)]
    reasoning_parser: Option<String>,
}

impl OwnParsers {
    async fn ask(kind: EngineKind, transport: &Transport) -> Self {
        match kind {
            EngineKind::Sglang => transport.get(MODEL_INFO.0).await.unwrap_or_default(),
            EngineKind::Vllm | EngineKind::LlamaCpp | EngineKind::TensorRtLlm => Self::default(),
        }
    }

    fn any(&self) -> bool {
        self.tool_call_parser.is_some() || self.reasoning_parser.is_some()
    }
}

#[derive(Deserialize)]
struct Version {
    #[serde(default)]
    version: Option<String>,
}

#[derive(Deserialize)]
struct LlamaProps {
    /// The model's one file.
    #[serde(default)]
    model_path: Option<String>,
    #[serde(default)]
    build_info: Option<String>,
    #[serde(default)]
    default_generation_settings: LlamaSettings,
}

impl LlamaProps {
    /// Where the model's tokenizer may lie too.
    fn folder(&self) -> Option<String> {
        let folder = Path::new(self.model_path.as_deref()?).parent()?;
        Some(folder.to_string_lossy().into_owned()).filter(|folder| !folder.is_empty())
    }
}

#[derive(Deserialize, Default)]
struct LlamaSettings {
    #[serde(default)]
    n_ctx: Option<u64>,
}

/// Neither vLLM nor SGLang tells its vocabulary's size, but both name it when they refuse a
/// bias on a token that cannot exist. A negative id is refused by every version; one that is
/// too large has killed some.
async fn vocab_size_by_refusal(transport: &Transport, model: &str) -> Option<u32> {
    let body = json!({
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
        "logit_bias": {"-1": 0},
    });
    let refusal = transport.ask::<serde_json::Value>(CHAT, &body).await.err()?.message;
    vocab_size_in(&refusal)
}

fn vocab_size_in(refusal: &str) -> Option<u32> {
    let number = |tail: &str| -> Option<u32> {
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        tail[..end].parse().ok()
    };
    if let Some((_, tail)) = refusal.split_once("Vocabulary size: ") {
        return number(tail);
    }
    // SGLang names the largest id.
    let (_, tail) = refusal.split_once("keys in [0, ")?;
    number(tail)?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vocabulary_is_read_from_refusals() {
        let vllm = "token_id(s) [-1] in logit_bias contain out-of-vocab token ids. Vocabulary size: 2048 (HTTP 400)";
        assert_eq!(vocab_size_in(vllm), Some(2048));
        let sglang = "logit_bias must has keys in [0, 1023], got -1. (HTTP 400)";
        assert_eq!(vocab_size_in(sglang), Some(1024));
        assert_eq!(vocab_size_in("logit_bias is not supported"), None);
    }

    #[test]
    fn adapters_are_not_taken_for_the_model() {
        let served: Models = serde_json::from_value(json!({"data": [
            {"id": "lora", "parent": "base"}, {"id": "base", "parent": null},
        ]}))
        .unwrap();
        assert_eq!(served.choose(None).unwrap().id, "base");
        assert_eq!(served.choose(Some("lora")).unwrap().id, "lora");
        let error = served.choose(Some("other")).err().unwrap().to_string();
        assert!(error.contains("other") && error.contains("lora, base"), "{error}");
    }
}
