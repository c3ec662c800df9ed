//! What an engine must be able to do before sessions run on it, checked by doing it.
//!
//! The probe generates through the adapter itself, so what is checked is the very path that
//! records later: a whole reply, a streamed reply with a tool offered, and what a logprob
//! means on this engine.

use crate::prompt_end::PromptEnd;
use crate::{
    Engine, EngineError, EngineEvent, EngineInfo, EngineKind, EngineStream, GenerateRequest,
    TokenModeError,
};
use futures_util::StreamExt;
use polar_convo::{Dialect, Message, ReplyEvent, Request, Role, Tool};
use polar_tokens::parse::{ParserFamily, ReplyStart, ToolFormat};
use polar_types::ErrorClass;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What was found out about an engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// The engine.
    pub info: EngineInfo,
    /// What was checked, in order.
    pub checks: Vec<Check>,
}

/// One thing that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What, for example `streamed reply: logprobs`.
    pub name: String,
    /// With which outcome.
    pub outcome: Outcome,
    /// What was seen.
    pub detail: String,
    /// What to change, unless it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As needed.
    Passed,
    /// Usable with a limit that `detail` names.
    Warning,
    /// Training data would be wrong or empty.
    Failed,
}

/// Why an engine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// It does not answer as an inference server does.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// It is none of the engines that are known.
    #[error(
        "cannot tell which engine answers at {url}; say which one it is with --engine-kind: vllm, \
         sglang, llamacpp or tensorrt-llm"
    )]
    UnknownKind {
        /// Where it answers.
        url: String,
    },
    /// It is not the engine that it is said to be.
    #[error(
        "--engine-kind says {}, and {} answers there; leave --engine-kind out, or name the right one",
        asked.name(), answers.name()
    )]
    OtherKind {
        /// What was said.
        asked: EngineKind,
        /// What answers.
        answers: EngineKind,
        /// What is wrong with it as the engine that it is said to be.
        error: Box<ProbeError>,
    },
    /// Its chat completions cannot be trained on.
    #[error(
        "TensorRT-LLM tells no token ids in chat completions, so it serves in token mode only: give \
         the folder that trtllm-serve was started with, --model-files FOLDER (its tokenizer and \
         chat template are enough)"
    )]
    NeedsTokenMode,
    /// It gives text only.
    #[error(
        "this is Triton's OpenAI front end, which takes one text and gives text, without ids and, \
         with TensorRT-LLM, without logprobs: nothing of it could be trained on; serve the model with \
         trtllm-serve (or with vLLM's own server) instead"
    )]
    TritonFrontEnd,
    /// It does not serve the model.
    #[error("{}", no_such_model(asked.as_deref(), served))]
    NoSuchModel {
        /// What was asked for.
        asked: Option<String>,
        /// What it serves.
        served: Vec<String>,
    },
    /// Parsers were asked for where the engine parses.
    #[error(
        "llama.cpp parses tool calls and reasoning itself, by the model's template, and cannot be \
         told not to; leave --tool-parser and --reasoning-parser out"
    )]
    ParsesItself,
    /// `auto` found no parser.
    #[error(
        "neither the chat template nor the name of `{model}` tells how it writes tool calls and \
         reasoning; name the parsers with --tool-parser and --reasoning-parser, or leave them out"
    )]
    NoParserFound {
        /// The served model.
        model: String,
    },
    /// It cannot be used in token mode.
    #[error("token mode: {0}")]
    TokenMode(TokenModeError),
    /// It generates, but not so that its replies can be trained on.
    #[error("{0}")]
    Unfit(Box<ProbeReport>),
}

// Not its source: whoever prints sources as well would say the same twice.
impl From<TokenModeError> for ProbeError {
    fn from(error: TokenModeError) -> Self {
        Self::TokenMode(error)
    }
}

fn no_such_model(asked: Option<&str>, served: &[String]) -> String {
    match asked {
        Some(name) => format!("the engine does not serve `{name}` but {}", served.join(", ")),
        None => "the engine serves no model; start it with one".to_owned(),
    }
}

impl fmt::Display for ProbeReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the engine at {} ({})", self.info.url, self.info.kind.name())?;
        let wrong = self.checks.iter().filter(|check| check.outcome != Outcome::Passed);
        for check in wrong {
            write!(out, "\n- {}: {}", check.name, check.detail)?;
            if let Some(advice) = &check.advice {
                write!(out, "; {advice}")?;
            }
        }
        Ok(())
    }
}

/// What is known of an engine before it is checked.
pub(crate) struct Setup {
    /// The engine gives calls of tools as calls, as far as it says.
    pub(crate) parses_tools: bool,
    /// What is parsed here, and how that was found.
    pub(crate) parsers: Option<(ParserFamily, &'static str)>,
    /// Tells whether a reply begins in reasoning.
    pub(crate) prompt_end: Option<Arc<PromptEnd>>,
}

/// Runs all checks. An engine that fails one is an error that holds the report.
pub(crate) async fn run(engine: &dyn Engine, setup: Setup) -> Result<ProbeReport, ProbeError> {
    let mut probe = Probe { engine, info: engine.info().clone(), setup, checks: Vec::new() };
    probe.describe();
    if !probe.info.kind.tells_ids_of_chats() {
        // What it samples behind ids is checked when token mode begins.
        return Ok(ProbeReport { info: probe.info, checks: probe.checks });
    }
    let whole = probe.generate("whole reply", request(false, false)).await?;
    probe.check_tokens("whole reply", &whole);
    probe.streamed().await?;
    if probe.info.kind != EngineKind::LlamaCpp {
        probe.measure_logprob_mode(&whole).await;
    }
    let report = ProbeReport { info: probe.info, checks: probe.checks };
    match report.checks.iter().any(|check| check.outcome == Outcome::Failed) {
        true => Err(ProbeError::Unfit(Box::new(report))),
        false => Ok(report),
    }
}

struct Probe<'a> {
    engine: &'a dyn Engine,
    info: EngineInfo,
    setup: Setup,
    checks: Vec<Check>,
}

/// Everything one generation gave.
#[derive(Default)]
pub(crate) struct Generation {
    pub(crate) prompt_ids: Option<Vec<u32>>,
    pub(crate) ids: Vec<u32>,
    pub(crate) logprobs: Vec<Option<f32>>,
    prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    text: String,
    reasoned: bool,
}

/// Enough for an engine that compiles its kernels at the first request.
const LONGEST_GENERATION: Duration = Duration::from_secs(600);

/// Enough tokens to see a sequence, few enough for a slow engine.
const TOKENS: u64 = 6;

/// Logarithms of floats come out a little above zero for a probability of one.
const LOGPROB_SLACK: f32 = 1e-3;

fn request(stream: bool, tool: bool) -> Request {
    let mut request = Request::new(Dialect::Chat, "");
    request.messages = vec![Message::text(Role::User, "Say hello.")];
    request.sampling.max_tokens = Some(TOKENS);
    request.sampling.temperature = Some(0.0);
    request.stream = stream;
    if tool {
        request.tools = vec![self::tool()];
    }
    request
}

/// A tool to offer.
pub(crate) fn tool() -> Tool {
    Tool {
        name: "get_time".to_owned(),
        description: Some("Tells the time in a city.".to_owned()),
        parameters: json!({
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        }),
        rest: serde_json::Map::new(),
    }
}

/// All of a generation.
pub(crate) async fn collect(mut stream: EngineStream) -> Result<Generation, EngineError> {
    let mut generation = Generation::default();
    while let Some(event) = stream.next().await {
        match event? {
            EngineEvent::PromptIds(ids) => generation.prompt_ids = Some(ids),
            EngineEvent::Chunk { ids, logprobs, events } => {
                generation.read(&events);
                generation.ids.extend(ids);
                generation.logprobs.extend(logprobs);
            }
            EngineEvent::End(end) => {
                generation.prompt_tokens = end.usage.prompt_tokens;
                generation.completion_tokens = end.usage.completion_tokens;
            }
        }
    }
    Ok(generation)
}

impl Probe<'_> {
    fn pass(&mut self, name: impl Into<String>, detail: impl Into<String>) {
        self.add(name, Outcome::Passed, detail, None);
    }

    fn add(
        &mut self,
        name: impl Into<String>,
        outcome: Outcome,
        detail: impl Into<String>,
        advice: Option<&str>,
    ) {
        self.checks.push(Check {
            name: name.into(),
            outcome,
            detail: detail.into(),
            advice: advice.map(str::to_owned),
        });
    }

    fn describe(&mut self) {
        let version = self.info.version.as_deref().unwrap_or("of unknown version");
        let detail = format!("{} {version} serves {}", self.info.kind.name(), self.info.model);
        self.pass("engine", detail);
        match self.info.vocab_size {
            Some(size) => self.pass("vocabulary", format!("{size} ids")),
            None => self.add(
                "vocabulary",
                Outcome::Warning,
                "its size is unknown, so ids outside it are not noticed",
                Some(self.info.kind.vocabulary_advice()),
            ),
        }
        match self.info.context_window {
            Some(window) => self.pass("context window", format!("{window} tokens")),
            None => self.add("context window", Outcome::Warning, "unknown", None),
        }
    }

    async fn generate(&self, name: &str, request: Request) -> Result<Generation, EngineError> {
        match tokio::time::timeout(LONGEST_GENERATION, self.collect(name, request)).await {
            Ok(generation) => generation,
            Err(_) => Err(EngineError::new(
                ErrorClass::Timeout,
                format!(
                    "the engine at {} accepts requests but gave no whole reply within {} s; check its log",
                    self.info.url,
                    LONGEST_GENERATION.as_secs()
                ),
            )),
        }
    }

    async fn collect(&self, name: &str, request: Request) -> Result<Generation, EngineError> {
        let request_id = format!("polar-probe-{}", name.replace(' ', "-"));
        collect(self.engine.generate(GenerateRequest { request, request_id }).await?).await
    }

    /// With a tool if the engine takes tools, else without.
    async fn streamed(&mut self) -> Result<(), EngineError> {
        let advice = Some(self.info.kind.tool_advice());
        let parsed_here = self.parsed_here();
        let parses_tools = self.setup.parses_tools || parsed_here.is_some();
        let generation = match self.generate("streamed with a tool", request(true, true)).await {
            Ok(generation) if parses_tools => {
                self.pass("tools", parsed_here.unwrap_or_else(|| "taken".to_owned()));
                generation
            }
            Ok(generation) => {
                self.add("tools", Outcome::Warning, "calls come back as text", advice);
                generation
            }
            Err(error) if error.class == ErrorClass::Invalid => {
                self.add("tools", Outcome::Warning, error.message, advice);
                self.generate("streamed", request(true, false)).await?
            }
            Err(error) => return Err(error),
        };
        self.check_reasoning(&generation);
        self.check_tokens("streamed reply", &generation);
        Ok(())
    }

    fn parsed_here(&self) -> Option<String> {
        let (family, how) = self.setup.parsers?;
        let parses = family.tools != ToolFormat::None;
        parses.then(|| format!("parsed by Polar as {}, {how}", family.tools))
    }

    /// Finds reasoning that comes back as text.
    fn check_reasoning(&mut self, generation: &Generation) {
        let is_marked =
            ["<think>", "[THINK]", "<|channel|>"].iter().any(|mark| generation.begins_with(mark));
        let prompt = generation.prompt_ids.as_deref().unwrap_or_default();
        let start = self.setup.prompt_end.as_ref().and_then(|end| end.start(prompt));
        let is_opened = start == Some(ReplyStart::InReasoning) && !generation.text.is_empty();
        if !generation.reasoned && (is_marked || is_opened) {
            self.add(
                "reasoning",
                Outcome::Warning,
                "comes back as text",
                Some(self.info.kind.reasoning_advice()),
            );
        }
    }

    fn check_tokens(&mut self, name: &str, generation: &Generation) {
        let advice = Some(self.info.kind.id_advice());
        let problem = match &generation.prompt_ids {
            None => Some("the engine does not give the prompt's ids".to_owned()),
            Some(ids) => count_problem("prompt", ids.len(), generation.prompt_tokens),
        };
        self.settle(format!("{name}: prompt ids"), problem, generation.prompt_tokens, advice);
        let problem = match generation.ids.len() {
            0 => Some("the engine does not give the sampled ids".to_owned()),
            given => count_problem("sampled", given, generation.completion_tokens),
        };
        let sampled = generation.completion_tokens;
        self.settle(format!("{name}: sampled ids"), problem, sampled, advice);
        let problem = self.logprob_problem(generation);
        let advice = Some(self.info.kind.logprob_advice());
        self.settle(format!("{name}: logprobs"), problem, sampled, advice);
    }

    fn settle(&mut self, name: String, problem: Option<String>, seen: u64, advice: Option<&str>) {
        match problem {
            None => self.pass(name, format!("{seen}, as counted")),
            Some(problem) => self.add(name, Outcome::Failed, problem, advice),
        }
    }

    fn logprob_problem(&self, generation: &Generation) -> Option<String> {
        let given: Vec<f32> = generation.logprobs.iter().copied().flatten().collect();
        // llama.cpp has none for tokens inside a character; the others have one for each.
        let enough = match self.info.kind {
            EngineKind::LlamaCpp => !given.is_empty(),
            _ => given.len() == generation.ids.len(),
        };
        if !enough {
            return Some(format!("{} for {} ids", given.len(), generation.ids.len()));
        }
        let wrong =
            given.iter().find(|logprob| !logprob.is_finite() || **logprob > LOGPROB_SLACK)?;
        Some(format!("{wrong} is not the logarithm of a probability"))
    }

    async fn measure_logprob_mode(&mut self, whole: &Generation) {
        let Some(likely) = whole.ids.first() else { return };
        let (forced, bias) = forced_beside(*likely);
        let mut request = request(false, false);
        request.sampling.max_tokens = Some(1);
        request.sampling.temperature = Some(1.0);
        request.rest.insert("logit_bias".into(), bias);
        let seen = self.generate("logprob mode", request).await.ok();
        self.checks.push(settle_logprob_mode(&mut self.info, forced, seen.as_ref()));
    }
}

/// An unlikely token where `likely` is sampled, and the bias that forces it.
pub(crate) fn forced_beside(likely: u32) -> (u32, Value) {
    let forced = if likely == 0 { 1 } else { likely - 1 };
    (forced, json!({forced.to_string(): 100}))
}

/// Takes what came of forcing a token by a bias: where logprobs are taken before the bias it stays
/// unlikely, where they are taken after it, it is certain.
pub(crate) fn settle_logprob_mode(
    info: &mut EngineInfo,
    forced: u32,
    seen: Option<&Generation>,
) -> Check {
    const CERTAIN: f32 = -0.1;
    let seen = seen.and_then(|seen| Some((*seen.ids.first()?, (*seen.logprobs.first()?)?)));
    let (outcome, detail) = match seen {
        Some((id, logprob)) if id == forced => {
            info.logprob_mode = info.kind.logprob_mode(logprob > CERTAIN).to_owned();
            (Outcome::Passed, format!("{} (measured)", info.logprob_mode))
        }
        _ => {
            let detail = format!("taken for {}, could not be measured", info.logprob_mode);
            (Outcome::Warning, detail)
        }
    };
    Check { name: "logprob mode".to_owned(), outcome, detail, advice: None }
}

impl Generation {
    fn read(&mut self, events: &[ReplyEvent]) {
        for event in events {
            match event {
                ReplyEvent::Text(text) => self.text.push_str(text),
                ReplyEvent::Reasoning(_) => self.reasoned = true,
                ReplyEvent::ToolCall { .. } | ReplyEvent::ToolArguments { .. } => {}
            }
        }
    }

    fn begins_with(&self, mark: &str) -> bool {
        self.text.trim_start().starts_with(mark)
    }
}

pub(crate) fn count_problem(what: &str, given: usize, counted: u64) -> Option<String> {
    (given as u64 != counted)
        .then(|| format!("the engine counts {counted} {what} tokens but gives {given} ids"))
}

impl EngineKind {
    /// Its name as people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
            Self::LlamaCpp => "llama.cpp",
            Self::TensorRtLlm => "TensorRT-LLM",
        }
    }

    /// Whether a chat completion tells what was sampled behind which prompt.
    pub(crate) fn tells_ids_of_chats(self) -> bool {
        self != Self::TensorRtLlm
    }

    fn vocabulary_advice(self) -> &'static str {
        match self {
            Self::TensorRtLlm => "put the model's config.json beside its tokenizer",
            _ => "update the engine; the tested versions of vLLM, SGLang and llama.cpp tell it",
        }
    }

    fn logprob_mode(self, after_bias: bool) -> &'static str {
        match (self, after_bias) {
            (_, false) => "raw",
            (Self::Sglang, true) => "temperature",
            (_, true) => "processed",
        }
    }

    fn id_advice(self) -> &'static str {
        match self {
            Self::Vllm => {
                "update vLLM to a version with return_token_ids in chat completions (tested: 0.32.0)"
            }
            Self::Sglang => {
                "update SGLang to a version with return_token_ids and sglext ids (tested: 0.5.23)"
            }
            Self::LlamaCpp => {
                "start llama-server with --jinja, and update it if that does not help (tested: b10434)"
            }
            Self::TensorRtLlm => "update TensorRT-LLM",
        }
    }

    fn logprob_advice(self) -> &'static str {
        match self {
            Self::Vllm => {
                "start vLLM without --max-logprobs 0 and with --logprobs-mode raw_logprobs"
            }
            Self::Sglang => "update SGLang (tested: 0.5.23)",
            Self::LlamaCpp => "update llama-server (tested: b10434)",
            Self::TensorRtLlm => {
                "serve the model with TensorRT-LLM's PyTorch backend, and update it"
            }
        }
    }

    fn tool_advice(self) -> &'static str {
        match self {
            Self::Vllm => {
                "for agents with tools start vLLM with --enable-auto-tool-choice --tool-call-parser NAME, \
                 or let Polar parse calls with --tool-parser auto"
            }
            Self::Sglang => {
                "for agents with tools start SGLang with --tool-call-parser NAME, or let Polar parse \
                 calls with --tool-parser auto"
            }
            Self::LlamaCpp => "for agents with tools start llama-server with --jinja",
            Self::TensorRtLlm => "name the parser of calls with --tool-parser",
        }
    }

    fn reasoning_advice(self) -> &'static str {
        match self {
            Self::Vllm => {
                "start vLLM with --reasoning-parser NAME, or let Polar parse it with --reasoning-parser auto"
            }
            Self::Sglang => {
                "start SGLang with --reasoning-parser NAME, or let Polar parse it with \
                 --reasoning-parser auto"
            }
            Self::LlamaCpp => "start llama-server with --jinja and --reasoning-format auto",
            Self::TensorRtLlm => "name the parser of reasoning with --reasoning-parser",
        }
    }
}
