//! Token mode is only begun with a template, a tokenizer and parsers that are the engine's model's own,
//! which is checked by comparing.

use super::TokenMode;
use crate::probe::{
    Check, Generation, Outcome, ProbeReport, collect, count_problem, forced_beside,
    settle_logprob_mode, tool,
};
use crate::{
    Engine, EngineError, EngineInfo, EngineKind, GenerateRequest, ModelFiles, ModelFilesError,
    ParserChoice, ParserOptions, Rendering,
};
use jiff::ZonedDateTime;
use polar_convo::{Block, Dialect, ImageSource, Message, Request, Role, chat_messages, chat_tools};
use polar_tokens::parse::{ParserFamily, ReasoningFormat, ToolFormat};
use polar_tokens::prompt::{Conversation, PromptError, PromptRenderer};
use polar_tokens::template::{ChatTemplate, Preparation, TemplateError};
use polar_tokens::tokenizer::{Tokenizer, TokenizerError};
use serde_json::{Map, json};
use std::sync::Arc;

/// Why an engine cannot be used in token mode.
#[derive(Debug, thiserror::Error)]
pub enum TokenModeError {
    /// Nobody says where the model's files are.
    #[error(
        "token mode needs the model's tokenizer and chat template, and the engine does not say where \
         they are; give their folder with --model-files FOLDER"
    )]
    NoFiles,
    /// They are not on this machine.
    #[error(
        "token mode needs the model's tokenizer and chat template; the engine has its model from \
         {told:?}, which is no folder on this machine; copy its tokenizer.json and chat template \
         here, and give their folder with --model-files FOLDER"
    )]
    FilesElsewhere {
        /// Where the engine says that they are.
        told: String,
    },
    /// The folder that the engine tells has not what it takes.
    #[error(
        "token mode looked where the engine says that it has its model from, for tokenizer.json and a \
         chat template: {error}; or give another folder with --model-files FOLDER"
    )]
    FilesOfEngine {
        /// What is missing.
        error: ModelFilesError,
    },
    /// The files cannot be used.
    #[error(transparent)]
    Files(#[from] ModelFilesError),
    /// The chat template cannot be used.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The files are of another model.
    #[error(
        "the tokenizer has {tokenizer} ids and the engine's model only {engine}: the files are of \
         another model; give those that the engine serves with --model-files FOLDER"
    )]
    OtherVocabulary {
        /// Ids of the tokenizer.
        tokenizer: u32,
        /// Ids of the engine's model.
        engine: u32,
    },
    /// No prompt can be put behind a reply.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The engine makes other prompts.
    #[error("{}", disagreement(.0))]
    Disagrees(Box<Disagreement>),
    /// The engine makes prompts of another length, and tells no more of them.
    #[error(
        "the engine makes a prompt of {theirs} tokens of {conversation} and Polar one of {ours} from \
         the model's files, so that they are not the same. Give the files that the engine serves \
         (--model-files), and the engine no chat template of its own"
    )]
    OtherLength {
        /// What the conversation holds.
        conversation: &'static str,
        /// Tokens of the engine's prompt.
        theirs: u64,
        /// Tokens of ours.
        ours: u64,
    },
    /// `auto` found no parser.
    #[error(
        "the chat template does not tell how the model writes tool calls and reasoning; name the \
         parsers with --tool-parser and --reasoning-parser (`none` where it writes none)"
    )]
    NoParserFound,
    /// The engine does not do it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// It samples, but gives no ids or logprobs that could be trained on.
    #[error("the engine is not fit for token mode: {0}")]
    Unfit(String),
}

/// A conversation of which two prompts were made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// What it holds.
    pub conversation: &'static str,
    /// Ids before the first that differs.
    pub at: usize,
    /// What is before it, as text.
    pub before: String,
    /// What Polar puts there, as text; a refusal where there is none.
    pub ours: String,
    /// What the engine puts there, likewise.
    pub theirs: String,
}

fn disagreement(found: &Disagreement) -> String {
    let Disagreement { conversation, at, before, ours, theirs } = found;
    format!(
        "the engine makes another prompt of {conversation} than Polar does from the model's files. \
         They differ from token {at} on, behind {before:?}:\n  engine: {theirs:?}\n  Polar:  {ours:?}\n\
         Give the files that the engine serves (--model-files), and the engine no chat template of \
         its own; or use chat mode"
    )
}

/// How an engine is to be used in token mode.
#[derive(Debug, Clone, Default)]
pub struct TokenModeOptions {
    /// The model's files; where the engine has them from when absent, if that can be read here.
    pub files: Option<ModelFiles>,
}

impl TokenMode {
    /// Begins token mode on an engine that was connected to. `parsers` say how the model writes
    /// calls and reasoning; where nothing is said, its template tells. What was checked goes to the
    /// report.
    pub(crate) async fn start(
        engine: Arc<dyn Engine>,
        options: TokenModeOptions,
        parsers: ParserOptions,
        report: &mut ProbeReport,
    ) -> Result<Self, TokenModeError> {
        let files = match options.files {
            Some(files) => files,
            None => files_of(engine.as_ref())?,
        };
        let family = family(&files, parsers)?;
        let prompts = renderer(engine.info().kind, files)?;
        if let Some(vocabulary) = engine.info().vocab_size
            && prompts.tokenizer().size() > vocabulary
        {
            let tokenizer = prompts.tokenizer().size();
            return Err(TokenModeError::OtherVocabulary { tokenizer, engine: vocabulary });
        }
        let mut mode = Self::new(engine, prompts, family)?;
        report.info.token_mode = Some(mode.info());
        report.checks.extend([mode.compare().await?, mode.goes_on()?]);
        let (check, sampled) = mode.samples().await?;
        report.checks.push(check);
        report.checks.push(mode.looks().await?);
        if !report.info.kind.tells_ids_of_chats() {
            let check = mode.measure_logprob_mode(&sampled, &mut report.info).await;
            report.checks.push(check);
        }
        Ok(mode)
    }

    /// Lets the engine make prompts of conversations too.
    async fn compare(&self) -> Result<Check, TokenModeError> {
        let engine = self.engine.tokens().ok_or_else(super::takes_no_ids)?;
        let (mut compared, mut by_length) = (0, false);
        for (name, request) in conversations() {
            let theirs = match engine.rendering(&request).await {
                Ok(rendering) => Ok(rendering),
                // Its template does not take such a conversation.
                Err(error) if error.status.is_some_and(|status| (400..=500).contains(&status)) => {
                    Err(error.message)
                }
                Err(error) => return Err(error.into()),
            };
            let ours = self.prompt(&request).map_err(|error| error.to_string());
            compared += u32::from(ours.is_ok());
            let theirs = match (theirs, &ours) {
                (Ok(Rendering::Length(theirs)), Ok(ids)) => {
                    by_length = true;
                    let (ours, conversation) = (ids.len() as u64, name);
                    if ours != theirs {
                        return Err(TokenModeError::OtherLength { conversation, theirs, ours });
                    }
                    continue;
                }
                // It takes what our template refuses.
                (Ok(Rendering::Length(_)), Err(_)) => Ok(Vec::new()),
                (Ok(Rendering::Ids(ids)), _) => Ok(ids),
                (Err(refusal), _) => Err(refusal),
            };
            if let Some(found) = self.difference(name, ours, theirs) {
                return Err(TokenModeError::Disagrees(Box::new(found)));
            }
        }
        // The template refuses the others here and there.
        Ok(match by_length {
            false => {
                passed("prompts", format!("{compared} conversations, as the engine renders them"))
            }
            true => Check {
                name: "prompts".to_owned(),
                outcome: Outcome::Warning,
                detail: format!(
                    "{compared} conversations are as long as the engine's; it does not tell their ids, \
                     so that they were not compared"
                ),
                advice: Some(
                    "start it with TRTLLM_ENABLE_RENDER_ENDPOINTS=1, if its version reads that"
                        .to_owned(),
                ),
            },
        })
    }

    fn difference(
        &self,
        conversation: &'static str,
        ours: Result<Vec<u32>, String>,
        theirs: Result<Vec<u32>, String>,
    ) -> Option<Disagreement> {
        /// Tokens to show.
        const SHOWN: usize = 24;
        if ours == theirs || (ours.is_err() && theirs.is_err()) {
            return None;
        }
        let (one, other) =
            (ours.as_deref().unwrap_or_default(), theirs.as_deref().unwrap_or_default());
        let at = one.iter().zip(other).take_while(|(a, b)| a == b).count();
        let text = |ids: &[u32]| self.prompts.tokenizer().decode(ids);
        let from = |side: &Result<Vec<u32>, String>| match side {
            Ok(ids) => text(&ids[at..ids.len().min(at + SHOWN)]),
            Err(refusal) => format!("(refused: {refusal})"),
        };
        Some(Disagreement {
            conversation,
            at,
            before: text(&one[at.saturating_sub(SHOWN)..at]),
            ours: from(&ours),
            theirs: from(&theirs),
        })
    }

    fn prompt(&self, request: &Request) -> Result<Vec<u32>, PromptError> {
        let (messages, tools) = (chat_messages(request), chat_tools(request));
        self.prompts.prompt(&Conversation {
            messages: &messages,
            tools: &tools,
            options: &Map::new(),
            now: ZonedDateTime::now().datetime(),
        })
    }

    /// Looks whether a prompt can be put behind a reply.
    fn goes_on(&self) -> Result<Check, TokenModeError> {
        let request = turns();
        let (messages, options) = (chat_messages(&request), Map::new());
        let now = ZonedDateTime::now().datetime();
        let conversation = Conversation { messages: &messages, tools: &[], options: &options, now };
        Ok(match self.prompts.only_adds(&conversation)? {
            true => passed("history", "the template only adds to what it wrote"),
            false => passed(
                "history",
                "the template writes earlier turns otherwise, mostly without their reasoning; \
                 `history: sampled` keeps them as they were sampled",
            ),
        })
    }

    /// Lets the engine sample behind ids.
    async fn samples(&self) -> Result<(Check, Generation), TokenModeError> {
        let mut request = conversations().remove(0).1;
        request.sampling.max_tokens = Some(6);
        // So that the outcome is the same at each start.
        request.sampling.temperature = Some(0.0);
        request.stream = true;
        let (prompt, generation) = self.sample(request).await?;
        let logprobs = generation.logprobs.iter().flatten().count();
        let problem = match &generation.prompt_ids {
            Some(ids) if **ids == *prompt => {
                count_problem("sampled", generation.ids.len(), generation.completion_tokens)
            }
            _ => Some("the engine does not say that it took the prompt's ids".to_owned()),
        };
        match problem {
            Some(problem) => Err(TokenModeError::Unfit(problem)),
            None if generation.ids.is_empty() || logprobs == 0 => {
                Err(TokenModeError::Unfit("it gives no logprobs of what it samples".to_owned()))
            }
            None => {
                let check = passed("ids in, ids out", format!("{} sampled", generation.ids.len()));
                Ok((check, generation))
            }
        }
    }

    /// Finds out whether pictures can be shown behind ids.
    async fn looks(&mut self) -> Result<Check, TokenModeError> {
        let engine = self.engine.tokens().ok_or_else(super::takes_no_ids)?;
        let mut request = conversations().remove(0).1;
        let without = self.prompt(&request)?;
        request.messages[0].blocks.push(Block::Image(ImageSource::Base64 {
            media_type: "image/png".to_owned(),
            data: PICTURE.to_owned(),
        }));
        let with = self.prompt(&request).ok().filter(|with| *with != without);
        self.picture_mark = match &with {
            Some(prompt) => {
                let picture = format!("data:image/png;base64,{PICTURE}");
                engine.picture_mark(prompt, &picture).await?
            }
            None => None,
        };
        // A template that writes it for something else too would hide a picture.
        if !with.as_ref().is_some_and(|prompt| self.shows(prompt, 1)) {
            self.picture_mark = None;
        }
        let detail = match (self.picture_mark, with) {
            (Some(mark), _) => {
                let mark = self.prompts.tokenizer().decode(&[mark]);
                format!("shown behind ids, in the place of {mark}")
            }
            (None, None) => "the template shows none".to_owned(),
            (None, Some(_)) => {
                "go to the engine as messages, which it takes no ids beside".to_owned()
            }
        };
        Ok(passed("pictures", detail))
    }

    /// Finds out what logprobs mean, for engines whose chats do not show it. `sampled` is what is
    /// likely.
    async fn measure_logprob_mode(&self, sampled: &Generation, info: &mut EngineInfo) -> Check {
        let (forced, bias) = forced_beside(sampled.ids.first().copied().unwrap_or_default());
        let mut request = conversations().remove(0).1;
        request.sampling.max_tokens = Some(1);
        request.rest.insert("logit_bias".to_owned(), bias);
        let seen = self.sample(request).await.ok().map(|(_, seen)| seen);
        settle_logprob_mode(info, forced, seen.as_ref())
    }

    async fn sample(
        &self,
        mut request: Request,
    ) -> Result<(Arc<[u32]>, Generation), TokenModeError> {
        request.sampling.say_defaults();
        let prompt: Arc<[u32]> = self.prompt(&request)?.into();
        let asked = GenerateRequest { request, request_id: "polar-probe-ids".to_owned() };
        let generation =
            collect(self.generate(prompt.clone(), Vec::new(), asked, None).await?).await?;
        Ok((prompt, generation))
    }
}

fn passed(name: &str, detail: impl Into<String>) -> Check {
    Check { name: name.to_owned(), outcome: Outcome::Passed, detail: detail.into(), advice: None }
}

/// From where the engine has them.
fn files_of(engine: &dyn Engine) -> Result<ModelFiles, TokenModeError> {
    let told = engine.info().model_folder.as_deref().ok_or(TokenModeError::NoFiles)?;
    let folder = std::path::Path::new(told);
    match folder.is_absolute() && folder.is_dir() {
        true => ModelFiles::read(folder).map_err(|error| TokenModeError::FilesOfEngine { error }),
        false => Err(TokenModeError::FilesElsewhere { told: told.to_owned() }),
    }
}

fn family(files: &ModelFiles, parsers: ParserOptions) -> Result<ParserFamily, TokenModeError> {
    let is_said = |tools, reasoning| ParserFamily { tools, reasoning };
    let (tools, reasoning) = (parsers.tools, parsers.reasoning);
    if let (Some(ParserChoice::Format(tools)), Some(ParserChoice::Format(reasoning))) =
        (tools, reasoning)
    {
        return Ok(is_said(tools, reasoning));
    }
    let sources = files.templates.templates.iter().map(|(_, source)| source.as_str());
    let found = ParserFamily::from_template(&sources.collect::<Vec<_>>().join("\n"));
    let asks = tools == Some(ParserChoice::Auto) || reasoning == Some(ParserChoice::Auto);
    if found.is_none() && asks {
        return Err(TokenModeError::NoParserFound);
    }
    let found = found.unwrap_or(ParserFamily::NOTHING);
    let or = |choice: Option<ParserChoice<ToolFormat>>| {
        choice.map_or(found.tools, |c| c.or(found.tools))
    };
    let reasons = |choice: Option<ParserChoice<ReasoningFormat>>| {
        choice.map_or(found.reasoning, |c| c.or(found.reasoning))
    };
    Ok(is_said(or(tools), reasons(reasoning)))
}

fn renderer(kind: EngineKind, files: ModelFiles) -> Result<PromptRenderer, TokenModeError> {
    let tokenizer = Tokenizer::from_json(&files.tokenizer_json)?;
    let template = ChatTemplate::new(files.templates)?;
    let preparation = match kind {
        EngineKind::Vllm => Preparation::Vllm,
        EngineKind::Sglang => Preparation::Sglang,
        EngineKind::LlamaCpp => Preparation::LlamaCpp,
        EngineKind::TensorRtLlm => Preparation::TensorRtLlm,
    };
    Ok(PromptRenderer::new(template, Arc::new(tokenizer), preparation, files.stop_token_ids))
}

/// Stripes of 56 by 56 pixels, a PNG in base64.
const PICTURE: &str = "iVBORw0KGgoAAAANSUhEUgAAADgAAAA4CAIAAAAn5KxJAAAAWElEQVR42u3WoREAMAwCQMbOiB2rC6SiKhF/h0S8g5ykTz0y1A8oKCjoWmj1qUeG+qCgoKB7oZYJFBQU1B8FBQUF9UdNKCgoqD9qmUBBQf1RywQKCgr63b/8cX7Tb+DzpQAAAABJRU5ErkJggg==";

/// Conversations in which templates differ.
pub(crate) fn conversations() -> Vec<(&'static str, Request)> {
    let of = |messages: Vec<Message>, tools: bool| {
        let mut request = Request::new(Dialect::Chat, "");
        request.messages = messages;
        request.tools = if tools { vec![tool()] } else { Vec::new() };
        request
    };
    let user = || Message::text(Role::User, "What time is it in Zürich? 漢字 🙂");
    let system = || Message::text(Role::System, "Be brief.\n\nBe right.");
    vec![
        ("a question", of(vec![user()], false)),
        ("a question under a system prompt", of(vec![system(), user()], false)),
        ("a question with a tool", of(vec![system(), user()], true)),
        ("a call and its result", of(vec![system(), user(), call(), result()], true)),
        ("two questions", turns()),
    ]
}

fn turns() -> Request {
    let mut request = Request::new(Dialect::Chat, "");
    let reasoning = Block::Reasoning { text: "Hm.".to_owned(), signature: None };
    let mut reply = Message::text(Role::Assistant, "Noon.");
    reply.blocks.insert(0, reasoning);
    request.messages = vec![
        Message::text(Role::User, "What time is it?"),
        reply,
        Message::text(Role::User, "Are you sure?"),
    ];
    request
}

fn call() -> Message {
    let arguments = json!({"city": "Zürich", "digits": 1e-7, "more": [true, null, 1.0, {}]});
    let mut message = Message::text(Role::Assistant, "");
    message.blocks = vec![
        Block::Reasoning { text: "I look it up.".to_owned(), signature: None },
        Block::ToolCall {
            // Mistral's templates want nine letters and digits.
            id: "abcdefgh1".to_owned(),
            name: "get_time".to_owned(),
            arguments: arguments.to_string(),
        },
    ];
    message
}

fn result() -> Message {
    let mut message = Message::text(Role::Tool, "");
    message.blocks = vec![Block::ToolResult {
        call_id: "abcdefgh1".to_owned(),
        content: vec![Block::Text("12:00\n".to_owned())],
        is_error: false,
    }];
    message
}
