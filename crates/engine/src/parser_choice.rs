//! Which parsers to use: what was asked for, and where that is `auto`, what the engine's chat template
//! shows.
//!
//! No engine tells its template over HTTP in a form that could be read for sure, but all render
//! conversations. A rendered turn with reasoning and a call shows the marks of the family.

use crate::request_body::prompt_body;
use crate::transport::Transport;
use crate::{EngineError, EngineKind, ProbeError};
use polar_convo::{Dialect, Message, Request, Role};
use polar_tokens::parse::{ParserFamily, ReasoningFormat, ToolFormat, UnknownParser};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::str::FromStr;

/// What is parsed here and not by the engine. None leaves it to the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ParserOptions {
    /// Tool calls.
    pub tools: Option<ParserChoice<ToolFormat>>,
    /// Reasoning.
    pub reasoning: Option<ParserChoice<ReasoningFormat>>,
}

/// A parser, or the one that fits the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParserChoice<T> {
    /// Found out from the model's chat template, else from its name.
    Auto,
    /// This one.
    Format(T),
}

impl<T: FromStr<Err = UnknownParser>> FromStr for ParserChoice<T> {
    type Err = UnknownParser;

    fn from_str(name: &str) -> Result<Self, UnknownParser> {
        match name.trim().eq_ignore_ascii_case("auto") {
            true => Ok(Self::Auto),
            false => name.parse().map(Self::Format),
        }
    }
}

impl<T: Copy> ParserChoice<T> {
    /// What was asked for, or else what was found.
    pub(crate) fn or(self, found: T) -> T {
        match self {
            Self::Auto => found,
            Self::Format(format) => format,
        }
    }
}

/// The family to parse, and how it was found; none where the engine parses.
pub(crate) async fn choose(
    options: ParserOptions,
    kind: EngineKind,
    transport: &Transport,
    (model, root): (&str, Option<&str>),
) -> Result<Option<(ParserFamily, &'static str)>, ProbeError> {
    if options == ParserOptions::default() {
        return Ok(None);
    }
    if kind == EngineKind::LlamaCpp {
        return Err(ProbeError::ParsesItself);
    }
    let is_auto = matches!(options.tools, Some(ParserChoice::Auto))
        || matches!(options.reasoning, Some(ParserChoice::Auto));
    let (found, how) = match is_auto {
        false => (ParserFamily::NOTHING, "as asked for"),
        true => found(kind, transport, model, root).await?,
    };
    let tools = options.tools.map_or(ToolFormat::None, |choice| choice.or(found.tools));
    let reasoning =
        options.reasoning.map_or(ReasoningFormat::None, |choice| choice.or(found.reasoning));
    let family = ParserFamily { tools, reasoning };
    Ok((family != ParserFamily::NOTHING).then_some((family, how)))
}

async fn found(
    kind: EngineKind,
    transport: &Transport,
    model: &str,
    root: Option<&str>,
) -> Result<(ParserFamily, &'static str), ProbeError> {
    let rendered = rendered(kind, transport, model).await;
    let by_template = rendered.as_deref().ok().and_then(ParserFamily::from_template);
    if let Some(family) = by_template {
        return Ok((family, "found by the model's chat template"));
    }
    let names = [Some(model), root].into_iter().flatten();
    match names.filter_map(ParserFamily::from_model_name).next() {
        Some(family) => Ok((family, "found by the model's name")),
        None => Err(ProbeError::NoParserFound { model: model.to_owned() }),
    }
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<u32>,
    #[serde(default)]
    token_strs: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
}

/// A turn with reasoning and a call, as the model's template shows it.
async fn rendered(
    kind: EngineKind,
    transport: &Transport,
    model: &str,
) -> Result<String, EngineError> {
    let mut body = prompt_body(&question(), model);
    if let Some(Value::Array(messages)) = body.get_mut("messages") {
        messages.push(json!({
            "role": "assistant",
            "content": "",
            "reasoning": "Hm.",
            "reasoning_content": "Hm.",
            // Mistral's templates want nine letters and digits.
            "tool_calls": [{"id": "abcdefgh1", "type": "function", "function": {
                "name": "get_time", "arguments": "{\"city\": \"Oslo\"}",
            }}],
        }));
    }
    body.insert("add_generation_prompt".into(), false.into());
    body.insert("return_token_strs".into(), true.into());
    let answer: Tokens = transport.ask("/tokenize", &body).await?;
    match (kind, answer.token_strs) {
        (EngineKind::Vllm, Some(tokens)) => Ok(tokens.concat()),
        _ => {
            let mut question = Map::new();
            question.insert("model".into(), model.into());
            question.insert("tokens".into(), json!(answer.tokens));
            question.insert("skip_special_tokens".into(), false.into());
            let answer: Text = transport.ask("/detokenize", &question).await?;
            Ok(answer.text)
        }
    }
}

fn question() -> Request {
    let mut request = Request::new(Dialect::Chat, "");
    request.messages = vec![Message::text(Role::User, "What time is it in Oslo?")];
    request.tools = vec![crate::probe::tool()];
    request
}
