//! The side of an engine that takes ids and gives ids.
//!
//! Where the caller keeps the ids of a conversation itself, neither template nor tokenizer nor parser
//! of the engine stand between what was sampled and what the next sampling is behind. The engine's
//! own view of a conversation is still there to compare with, see [`TokenEngine::render`].
//!
//! What all engines need is here: no id that the engine cannot know is ever sent (one has killed
//! SGLang), no prompt that does not fit, and no limit that does not fit beside it.

use crate::pictures::{self, Place};
use crate::tokens::Vocabulary;
use crate::transport::CallNames;
use crate::{EngineError, EngineEvent, EngineInfo, EngineStream};
use async_trait::async_trait;
use polar_convo::{ContextUse, Request, Sampling, Usage};
use polar_types::ErrorClass;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::sync::Arc;

/// One sampling behind a prompt of ids.
#[derive(Debug, Clone)]
pub struct SampleRequest {
    /// The whole context.
    pub prompt: Arc<[u32]>,
    /// URLs, or data URLs, of the pictures that its marks stand for, in order. Only for engines
    /// that have told what mark that is, see [`TokenEngine::picture_mark`].
    pub pictures: Vec<String>,
    /// The mark, where there are any.
    pub picture_mark: Option<u32>,
    /// Pins applied, defaults said.
    pub sampling: Sampling,
    /// End-of-turn ids of the model, beside the engine's own.
    pub stop_token_ids: Vec<u32>,
    /// Names the call in the engine's logs.
    pub request_id: String,
    /// The same for all calls of one session, so that a router sends them to the replica that
    /// has their beginning in its cache.
    pub session: Option<String>,
    /// Whether ids are wanted while they are sampled.
    pub stream: bool,
    /// Fields carried to the engine, in Chat's or the engine's own spelling. Those it has no use
    /// for are named in [`crate::EngineEnd::extra`] under [`NOT_SENT`].
    pub rest: Map<String, Value>,
}

/// Names the carried fields that the engine was not told, in what it says besides.
pub const NOT_SENT: &str = "not_sent";

/// An engine that takes ids.
#[async_trait]
pub trait TokenEngine: Send + Sync {
    /// Samples behind the prompt. Chunks have ids and logprobs and no events: text is the caller's
    /// part. [`crate::EngineEvent::PromptIds`] comes once the engine has confirmed how many ids
    /// its prompt had; where it shows pictures they are those that the engine had, with its own in
    /// the place of each mark. An error here means that nothing was sampled. Dropping the stream
    /// cancels.
    async fn sample(&self, request: SampleRequest) -> Result<EngineStream, EngineError>;

    /// Logprob of each id given all before it: none for the first, for ids before `from`, which
    /// need not be known, and for what the engine does not tell. As long as `ids`. What a logprob
    /// means is in [`EngineInfo::logprob_mode`], at temperature 1 where it counts.
    async fn score(&self, ids: &[u32], from: usize) -> Result<Vec<Option<f32>>, EngineError>;

    /// The ids that the engine itself makes of a conversation, by its own template and tokenizer.
    async fn render(&self, request: &Request) -> Result<Vec<u32>, EngineError>;

    /// The id in this prompt that stands for the picture, of which the template shows one. None
    /// where ids and pictures cannot be given to the engine together.
    async fn picture_mark(
        &self,
        _prompt: &[u32],
        _picture: &str,
    ) -> Result<Option<u32>, EngineError> {
        Ok(None)
    }

    /// As much of them as the engine tells.
    async fn rendering(&self, request: &Request) -> Result<Rendering, EngineError> {
        self.render(request).await.map(Rendering::Ids)
    }
}

/// What an engine tells of a prompt that it makes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rendering {
    /// Its ids.
    Ids(Vec<u32>),
    /// Only how many there are.
    Length(u64),
}

/// Numbers that belong to the tokens of a reply and mean nothing to Polar: which experts a token went
/// through, which ids were left to sample from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineArray {
    /// Of each number, by its name in NumPy: `uint8`, `int32`. They are little-endian.
    pub dtype: String,
    /// As NumPy has it: the last index runs fastest.
    pub shape: Vec<u64>,
    /// The bytes, in base64.
    pub data: String,
}

impl SampleRequest {
    pub(crate) fn names(&self) -> CallNames<'_> {
        CallNames { request_id: &self.request_id, session: self.session.as_deref() }
    }

    /// Refuses pictures, where the engine would drop them.
    pub(crate) fn shows_no_picture(&self) -> Result<(), EngineError> {
        match self.pictures.is_empty() {
            true => Ok(()),
            false => Err(EngineError::new(
                ErrorClass::Invalid,
                "this engine takes no pictures together with ids; ask with messages",
            )),
        }
    }

    /// Refuses what no engine can take, and lowers a limit to what is left beside the prompt.
    pub(crate) fn fit(&mut self, info: &EngineInfo) -> Result<(), EngineError> {
        let vocabulary = Vocabulary(info.vocab_size);
        vocabulary.allows(&self.prompt)?;
        vocabulary.allows(&self.stop_token_ids)?;
        let left = room(self.prompt.len(), info.context_window)?;
        self.sampling.max_tokens = match (self.sampling.max_tokens, left) {
            (Some(asked), Some(left)) => Some(asked.min(left)),
            (asked, left) => asked.or(left),
        };
        Ok(())
    }
}

/// An engine that refuses a limit on the reply that does not fit beside the prompt.
#[async_trait]
pub(crate) trait SampleOnce: Sync {
    /// Asks once, as it is said.
    async fn sample_once(&self, request: &SampleRequest) -> Result<EngineStream, EngineError>;
}

/// Samples with what fits; a limit that is refused all the same is lowered, once.
pub(crate) async fn sample_fitting(
    engine: &impl SampleOnce,
    info: &EngineInfo,
    mut request: SampleRequest,
) -> Result<EngineStream, EngineError> {
    request.fit(info)?;
    match engine.sample_once(&request).await {
        Err(EngineError { room: Some(room), .. }) => {
            room.lower(&mut request.sampling, &mut request.request_id);
            engine.sample_once(&request).await
        }
        done => done,
    }
}

/// Refuses a sequence that cannot be scored.
pub(crate) fn check_sequence(ids: &[u32], info: &EngineInfo) -> Result<(), EngineError> {
    Vocabulary(info.vocab_size).allows(ids)?;
    // No engine looks at a sequence without sampling behind it.
    room(ids.len(), info.context_window).map(drop)
}

/// Tokens left beside a prompt, at least one.
fn room(prompt: usize, window: Option<u64>) -> Result<Option<u64>, EngineError> {
    if prompt == 0 {
        return Err(EngineError::new(
            ErrorClass::Invalid,
            "a prompt without ids has nothing to sample behind",
        ));
    }
    let (tokens, Some(window)) = (prompt as u64, window) else { return Ok(None) };
    match window.checked_sub(tokens) {
        Some(left) if left > 0 => Ok(Some(left)),
        _ => Err(EngineError {
            context: Some(ContextUse { tokens, window }),
            ..EngineError::new(
                ErrorClass::ContextOverflow,
                format!("the prompt has {tokens} ids and leaves no room in a window of {window}"),
            )
        }),
    }
}

/// What an adapter says of its reply before there is any.
pub(crate) fn noted(not_sent: &[String]) -> Map<String, Value> {
    let mut extra = Map::new();
    if !not_sent.is_empty() {
        extra.insert(NOT_SENT.to_owned(), json!(not_sent));
    }
    extra
}

/// A prompt that was what was sent if the engine counts as many tokens in it.
pub(crate) struct SentPrompt {
    ids: Arc<[u32]>,
    is_confirmed: bool,
    /// How many of its ids are marks of pictures.
    pictures: usize,
}

impl SentPrompt {
    pub(crate) fn new(ids: &Arc<[u32]>) -> Self {
        Self { ids: Arc::clone(ids), is_confirmed: false, pictures: 0 }
    }

    pub(crate) fn of(request: &SampleRequest) -> Self {
        Self { pictures: request.pictures.len(), ..Self::new(&request.prompt) }
    }

    /// The same of an engine that repeats each mark and does not tell where.
    pub(crate) fn shown_by(
        &mut self,
        mark: Option<u32>,
        had: Vec<u32>,
        out: &mut VecDeque<EngineEvent>,
    ) -> Result<(), EngineError> {
        let places = mark.and_then(|mark| pictures::places_of(mark, &self.ids, &had));
        self.shown(had, &places.unwrap_or_default(), out)
    }

    /// Whether it shows pictures, and the engine has not told yet what became of them.
    pub(crate) fn awaits_pictures(&self) -> bool {
        self.pictures > 0 && !self.is_confirmed
    }

    /// Takes the prompt that the engine had, where it shows pictures. Of any other than what was
    /// sent it is an error.
    pub(crate) fn shown(
        &mut self,
        had: Vec<u32>,
        places: &[Place],
        out: &mut VecDeque<EngineEvent>,
    ) -> Result<(), EngineError> {
        let is_sent = pictures::replaced(&self.ids, &had, places).is_some_and(|marks| {
            marks.len() == self.pictures && marks.iter().all(|mark| Some(mark) == marks.first())
        });
        if !is_sent {
            return Err(EngineError::malformed(
                "it had another prompt than it was given, even without the pictures",
            ));
        }
        self.is_confirmed = true;
        out.push_back(EngineEvent::PromptIds(had));
        Ok(())
    }

    /// Whether an engine that tells its prompt had this one.
    pub(crate) fn is(&self, ids: &[u32]) -> bool {
        *self.ids == *ids
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.ids.len() as u64
    }

    /// Takes a count that came with a piece of the reply.
    pub(crate) fn counted(&mut self, tokens: u64, out: &mut VecDeque<EngineEvent>) {
        if !self.is_confirmed && self.pictures == 0 && self.tokens() == tokens {
            self.is_confirmed = true;
            out.push_back(EngineEvent::PromptIds(self.ids.to_vec()));
        }
    }

    /// Takes the last count.
    pub(crate) fn ended(
        &mut self,
        usage: Usage,
        extra: &mut Map<String, Value>,
        out: &mut VecDeque<EngineEvent>,
    ) {
        self.counted(usage.prompt_tokens, out);
        if !self.is_confirmed {
            let (sent, counted) = (self.ids.len(), usage.prompt_tokens);
            let reason = match self.pictures {
                0 => format!("{sent} ids were sent, the engine had {counted}"),
                _ => "the engine does not tell its prompt with the pictures".to_owned(),
            };
            extra.insert("prompt_ids_missing".into(), reason.into());
        }
    }
}
