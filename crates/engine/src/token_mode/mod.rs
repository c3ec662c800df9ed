//! Token mode: prompts are made here, and the engine is given ids and gives ids.
//!
//! Text, reasoning and calls are made of the sampled ids. Owns no session state: who serves a
//! session makes its prompts with [`TokenMode::prompts`] and remembers what was sampled.

mod reply_text;
mod start;

pub(crate) use start::conversations;
pub use start::{Disagreement, TokenModeError, TokenModeOptions};

use crate::parsing::ReplyParsing;
use crate::prompt_end::ReasoningMarks;
use crate::{
    Engine, EngineError, EngineInfo, EngineKind, EngineStream, GenerateRequest, SampleRequest,
    TokenEngine, TokenModeInfo, Weights,
};
use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use polar_convo::Request;
use polar_tokens::detokenizer::Detokenizer;
use polar_tokens::parse::{ParserFamily, ReasoningFormat};
use polar_tokens::prompt::PromptRenderer;
use polar_types::ErrorClass;
use reply_text::{ReasoningIds, ReplyText};
use std::sync::Arc;

/// An engine that is used in token mode.
pub struct TokenMode {
    engine: Arc<dyn Engine>,
    prompts: Arc<PromptRenderer>,
    family: ParserFamily,
    marks: ReasoningMarks,
    /// Stands for a picture in prompts, where the engine takes ids and pictures together.
    picture_mark: Option<u32>,
}

impl TokenMode {
    /// `family` is how the model writes reasoning and calls. An engine that takes no ids is an
    /// error.
    pub fn new(
        engine: Arc<dyn Engine>,
        prompts: PromptRenderer,
        family: ParserFamily,
    ) -> Result<Self, EngineError> {
        if engine.tokens().is_none() {
            return Err(takes_no_ids());
        }
        let marks = ReasoningMarks::of(prompts.tokenizer(), family);
        Ok(Self { engine, prompts: Arc::new(prompts), family, marks, picture_mark: None })
    }

    /// Makes prompts for the model.
    pub fn prompts(&self) -> &Arc<PromptRenderer> {
        &self.prompts
    }

    /// What prompts are made with.
    pub(crate) fn info(&self) -> TokenModeInfo {
        TokenModeInfo {
            template: self.prompts.template().hash(),
            tokenizer: self.prompts.tokenizer().hash().to_owned(),
            tool_parser: self.family.tools.to_string(),
            reasoning_parser: self.family.reasoning.to_string(),
        }
    }

    /// Whether prompts may show pictures.
    pub fn sees(&self) -> bool {
        self.picture_mark.is_some()
    }

    /// Whether a prompt has a mark for each of so many pictures, and none that stands for nothing:
    /// a model may sample the mark too.
    pub fn shows(&self, prompt: &[u32], pictures: usize) -> bool {
        let Some(mark) = self.picture_mark else { return false };
        // It repeats marks and does not tell where, so that two beside each other are one.
        let is_untold = self.engine.info().kind == EngineKind::Sglang;
        let is_apart = !is_untold || !prompt.windows(2).any(|two| two == [mark, mark]);
        is_apart && prompt.iter().filter(|id| **id == mark).count() == pictures
    }

    /// Samples the reply to a request behind `prompt`, which is all that the engine is told of its
    /// conversation, with the `pictures` that it shows. `session` is the same for all calls of one
    /// session.
    pub async fn generate(
        &self,
        prompt: Arc<[u32]>,
        pictures: Vec<String>,
        asked: GenerateRequest,
        session: Option<String>,
    ) -> Result<EngineStream, EngineError> {
        let engine = self.engine.tokens().ok_or_else(takes_no_ids)?;
        if !pictures.is_empty() && !self.shows(&prompt, pictures.len()) {
            return Err(EngineError::new(
                ErrorClass::Invalid,
                "the prompt does not show as many pictures as there are; ask with messages",
            ));
        }
        let GenerateRequest { request, request_id } = asked;
        let start = self.marks.start(&prompt).unwrap_or_default();
        let reasons = self.family.reasoning != ReasoningFormat::None;
        let mut reply = ReplyText {
            text: Detokenizer::new(
                Arc::clone(self.prompts.tokenizer()),
                self.family.has_special_marks(),
                self.prompts.stop_ids().to_vec(),
                request.sampling.stop.clone(),
            ),
            parsing: ReplyParsing::new(self.family, start, &request, &request_id),
            reasoning: reasons.then(|| ReasoningIds::new(self.prompts.tokenizer())),
        };
        let mut rest = request.rest;
        // The prompt is made with them.
        for name in ["chat_template_kwargs", "reasoning_effort"] {
            rest.remove(name);
        }
        // Engines end a reply at ids that they are told, even where they ignore their own.
        let goes_on = rest.get("ignore_eos").is_some_and(|ignored| ignored == true);
        let mut stop_token_ids =
            if goes_on { Vec::new() } else { self.prompts.stop_ids().to_vec() };
        if let Some(asked) = rest.remove("stop_token_ids").filter(|asked| !asked.is_null()) {
            let asked: Vec<u32> = serde_json::from_value(asked).map_err(|_| {
                EngineError::new(ErrorClass::Invalid, "stop_token_ids: send a list of token ids")
            })?;
            stop_token_ids.extend(asked);
        }
        let sampling = SampleRequest {
            prompt,
            picture_mark: self.picture_mark.filter(|_| !pictures.is_empty()),
            pictures,
            sampling: request.sampling,
            stop_token_ids,
            request_id,
            session,
            stream: request.stream,
            rest,
        };
        let events = engine.sample(sampling).await?;
        Ok(Box::pin(events.flat_map(move |event| stream::iter(reply.take(event)))))
    }
}

/// The same engine, whose calls are to be made in token mode where they can.
pub(crate) struct InTokenMode {
    pub(crate) mode: Arc<TokenMode>,
    /// Says so.
    pub(crate) info: EngineInfo,
}

#[async_trait]
impl Engine for InTokenMode {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    async fn generate(&self, asked: GenerateRequest) -> Result<EngineStream, EngineError> {
        self.mode.engine.generate(asked).await
    }

    async fn count_tokens(&self, request: &Request) -> Result<u64, EngineError> {
        self.mode.engine.count_tokens(request).await
    }

    async fn health(&self) -> Result<(), EngineError> {
        self.mode.engine.health().await
    }

    fn tokens(&self) -> Option<&dyn TokenEngine> {
        self.mode.engine.tokens()
    }

    fn weights(&self) -> Option<&Arc<Weights>> {
        self.mode.engine.weights()
    }

    fn token_mode(&self) -> Option<&Arc<TokenMode>> {
        Some(&self.mode)
    }
}

fn takes_no_ids() -> EngineError {
    EngineError::new(ErrorClass::Invalid, "this engine takes no token ids; use chat mode")
}
