//! An engine whose raw text is parsed here: tool calls and reasoning are taken out of the text
//! of its replies.
//!
//! Wraps another engine and changes nothing of ids, logprobs and counts; each step keeps the ids
//! it came with, while the text of a mark may show up later or not at all. What the engine
//! parsed itself (calls of a forced choice, reasoning) passes through. Calls that are not well
//! formed are listed in [`EngineEnd::extra`] under [`PARSE_FAULTS`].

use crate::prompt_end::PromptEnd;
use crate::{
    Engine, EngineEnd, EngineError, EngineEvent, EngineInfo, EngineKind, EngineStream,
    GenerateRequest, TokenEngine, Weights,
};
use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use polar_convo::{FinishReason, ReplyEvent, Request, ToolChoice};
use polar_tokens::parse::{
    Fault, MalformedCall, ParsedEvent, ParserFamily, ReasoningFormat, ReplyParser, ReplyStart,
    ToolFormat, ToolSchemas,
};
use serde_json::json;
use std::sync::Arc;

/// Names the malformed calls in what an engine says besides: a list of
/// [`MalformedCall`], each with the text that was sampled.
pub const PARSE_FAULTS: &str = "parse_faults";

/// An engine with parsers.
pub(crate) struct Parsing {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) family: ParserFamily,
    pub(crate) prompt_end: Arc<PromptEnd>,
}

#[async_trait]
impl Engine for Parsing {
    fn info(&self) -> &EngineInfo {
        self.engine.info()
    }

    async fn generate(&self, asked: GenerateRequest) -> Result<EngineStream, EngineError> {
        let GenerateRequest { mut request, request_id } = asked;
        let kind = self.info().kind;
        // vLLM tells its prompt before the text, which is exact; SGLang after it.
        let start = match kind {
            EngineKind::Vllm => ReplyStart::Usual,
            _ => self.prompt_end.usual_start(&request).await,
        };
        let mut parsing = ReplyParsing::new(self.family, start, &request, &request_id)
            .looking_at_the_prompt(&self.prompt_end);
        self.ask_for_text(&mut request);
        let events = self.engine.generate(GenerateRequest { request, request_id }).await?;
        let parsed = events.flat_map(move |event| stream::iter(parsing.take(event)));
        Ok(Box::pin(parsed))
    }

    async fn count_tokens(&self, request: &Request) -> Result<u64, EngineError> {
        self.engine.count_tokens(request).await
    }

    async fn health(&self) -> Result<(), EngineError> {
        self.engine.health().await
    }

    fn tokens(&self) -> Option<&dyn TokenEngine> {
        self.engine.tokens()
    }

    fn weights(&self) -> Option<&Arc<Weights>> {
        self.engine.weights()
    }
}

impl Parsing {
    /// Makes the engine leave the text as it is.
    fn ask_for_text(&self, request: &mut Request) {
        let is_free = matches!(request.tool_choice, None | Some(ToolChoice::Auto));
        let parses_calls = self.family.tools != ToolFormat::None && !request.tools.is_empty();
        if self.info().kind == EngineKind::Vllm && parses_calls && is_free {
            // vLLM refuses a free choice without a parser of its own. Without a choice it shows
            // the tools to the model just the same, and leaves the text alone. (SGLang would
            // not show them.)
            request.tool_choice = Some(ToolChoice::None);
        }
        if self.family.has_special_marks() {
            request.rest.insert("skip_special_tokens".to_owned(), false.into());
        }
    }
}

fn schemas(request: &Request) -> ToolSchemas {
    let tools = request.tools.iter();
    tools.map(|tool| (tool.name.clone(), tool.parameters.clone())).collect()
}

/// The parsing of one reply.
pub(crate) struct ReplyParsing {
    family: ParserFamily,
    start: ReplyStart,
    tools: ToolSchemas,
    /// Tells from a prompt where the reply begins.
    prompt_end: Option<Arc<PromptEnd>>,
    request_id: String,
    /// Made with the first text.
    parser: Option<ReplyParser>,
    /// The engine takes reasoning out of the text itself.
    engine_reasoned: bool,
    /// Calls that the engine parsed.
    engine_calls: u32,
    calls: u32,
    malformed: Vec<MalformedCall>,
}

impl ReplyParsing {
    pub(crate) fn new(
        family: ParserFamily,
        start: ReplyStart,
        request: &Request,
        request_id: &str,
    ) -> Self {
        let tools = match request.tool_choice {
            Some(ToolChoice::None) => ToolSchemas::default(),
            _ => schemas(request),
        };
        Self {
            family,
            start,
            tools,
            prompt_end: None,
            request_id: request_id.to_owned(),
            parser: None,
            engine_reasoned: false,
            engine_calls: 0,
            calls: 0,
            malformed: Vec::new(),
        }
    }

    /// Goes by the prompt that comes with the reply, if it comes before the text.
    fn looking_at_the_prompt(mut self, prompt_end: &Arc<PromptEnd>) -> Self {
        self.prompt_end = Some(Arc::clone(prompt_end));
        self
    }

    pub(crate) fn take(
        &mut self,
        event: Result<EngineEvent, EngineError>,
    ) -> Vec<Result<EngineEvent, EngineError>> {
        match event {
            Ok(EngineEvent::PromptIds(ids)) => {
                let start = self.prompt_end.as_ref().and_then(|end| end.start(&ids));
                self.start = start.unwrap_or(self.start);
                vec![Ok(EngineEvent::PromptIds(ids))]
            }
            Ok(EngineEvent::Chunk { events, ids, logprobs }) => {
                let mut parsed = Vec::with_capacity(events.len());
                events.into_iter().for_each(|event| self.take_event(event, &mut parsed));
                match parsed.is_empty() && ids.is_empty() {
                    true => Vec::new(),
                    false => vec![Ok(EngineEvent::Chunk { events: parsed, ids, logprobs })],
                }
            }
            Ok(EngineEvent::End(end)) => self.end(end),
            Err(error) => vec![Err(error)],
        }
    }

    /// What a piece of the reply's text says.
    pub(crate) fn read(&mut self, text: &str, out: &mut Vec<ReplyEvent>) {
        let parsed = self.parser().push(text);
        self.give(parsed, out);
    }

    fn take_event(&mut self, event: ReplyEvent, out: &mut Vec<ReplyEvent>) {
        match event {
            ReplyEvent::Text(text) => self.read(&text, out),
            other => {
                self.engine_reasoned |= matches!(other, ReplyEvent::Reasoning(_));
                self.engine_calls += u32::from(matches!(other, ReplyEvent::ToolCall { .. }));
                out.push(other);
            }
        }
    }

    fn parser(&mut self) -> &mut ReplyParser {
        let mut family = self.family;
        if self.engine_reasoned && family.tools != ToolFormat::Openai {
            family.reasoning = ReasoningFormat::None;
        }
        let (start, tools) = (self.start, &mut self.tools);
        self.parser.get_or_insert_with(|| ReplyParser::new(family, start, std::mem::take(tools)))
    }

    fn give(&mut self, parsed: Vec<ParsedEvent>, out: &mut Vec<ReplyEvent>) {
        for event in parsed {
            match event {
                ParsedEvent::Reasoning(text) => out.push(ReplyEvent::Reasoning(text)),
                ParsedEvent::Text(text) => out.push(ReplyEvent::Text(text)),
                ParsedEvent::CallBegin { index, id, name } => {
                    self.calls += 1;
                    let index = index + self.engine_calls;
                    let id = id.unwrap_or_else(|| self.family.call_id(&self.request_id, index));
                    out.push(ReplyEvent::ToolCall { index, id, name });
                }
                ParsedEvent::CallArguments { index, fragment } => {
                    let index = index + self.engine_calls;
                    out.push(ReplyEvent::ToolArguments { index, fragment });
                }
                ParsedEvent::CallEnd { .. } => {}
                ParsedEvent::Malformed(call) => self.malformed.push(call),
            }
        }
    }

    fn end(&mut self, mut end: EngineEnd) -> Vec<Result<EngineEvent, EngineError>> {
        let mut rest = Vec::new();
        let whole = self.malformed.len();
        if let Some(mut parser) = self.parser.take() {
            self.give(parser.finish(), &mut rest);
        }
        let is_cut = self.malformed[whole..].iter().any(|call| call.fault == Fault::Unfinished);
        let calls_tools = match end.finish {
            FinishReason::Stop => true,
            // Behind whole calls, or in the midst of one.
            FinishReason::StopSequence => !is_cut,
            FinishReason::ToolCalls | FinishReason::Length | FinishReason::Abort => false,
        };
        if self.calls > 0 && calls_tools {
            end.finish = FinishReason::ToolCalls;
        }
        let ParserFamily { tools, reasoning } = self.family;
        let parsers = json!({"tools": tools.to_string(), "reasoning": reasoning.to_string()});
        end.extra.insert("parsers".to_owned(), parsers);
        if !self.malformed.is_empty() {
            end.extra.insert(PARSE_FAULTS.to_owned(), json!(self.malformed));
        }
        let rest = (!rest.is_empty()).then(|| EngineEvent::Chunk {
            events: rest,
            ids: Vec::new(),
            logprobs: Vec::new(),
        });
        rest.into_iter().chain([EngineEvent::End(end)]).map(Ok).collect()
    }
}
