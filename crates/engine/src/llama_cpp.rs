//! llama.cpp's `llama-server`.
//!
//! Every reply is asked for whole. In a stream the server gives ids only together with text, so
//! what its parsers hold back is lost (marks of reasoning, the end of the turn, a matched stop
//! string), and with tools it refuses logprobs; a harness that wants a stream gets the whole
//! reply as one. Sampled ids are in the server's own form of the reply (`__verbose`). Logprobs
//! have holes: tokens inside an unfinished character and those of a matched stop string have
//! none, so they are paired by id.
//!
//! Prompt ids are never given. The server is asked to render and tokenise the same messages while
//! it generates, and the result counts only if it agrees with what the server says of the
//! prompt it had.
//!
//! A dropped generation closes its connection, which the server notices only once it has had
//! nothing to tell to anyone for a second: on a busy server it may go on for a while.

use crate::chat_reply::{self, Choice, Finish, LlamaVerbose, ReplyEvents, WireUsage};
use crate::reply_stream::{ReplyReader, Settle, whole};
use crate::request_body::{at_limit, chat_body, prompt_body};
use crate::tokens::{Vocabulary, pair_by_id};
use crate::transport::Transport;
use crate::vllm::CHAT;
use crate::{
    Engine, EngineEnd, EngineError, EngineEvent, EngineInfo, EngineStream, GenerateRequest,
    TokenEngine,
};
use async_trait::async_trait;
use polar_convo::{Request, Usage};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use tokio_util::task::AbortOnDropHandle;

/// Marks a reply whose later tokens were sampled with less context than its prompt and the tokens
/// before them, so that its prompt's ids would be a lie.
pub(crate) const CONTEXT_SHIFTED: &str = "context_shifted";

pub(crate) struct LlamaCpp {
    pub(crate) transport: Transport,
    pub(crate) info: EngineInfo,
}

#[async_trait]
impl Engine for LlamaCpp {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    async fn generate(&self, asked: GenerateRequest) -> Result<EngineStream, EngineError> {
        let GenerateRequest { request, request_id } = asked;
        let body = self.body(&request);
        let body = serde_json::to_vec(&body).map_err(EngineError::malformed)?;
        let rendering = tokio::spawn(render(self.transport.clone(), self.prompt(&request)));
        let rendering = AbortOnDropHandle::new(rendering);
        let said_prompt = Arc::new(OnceLock::new());
        let settle = settle_prompt(rendering, Arc::clone(&said_prompt), self.info.vocab_size);
        let reader = LlamaReader::new(&self.info, &request, &request_id, said_prompt);
        let reply = self.transport.reply(CHAT, body, request_id.as_str()).await?;
        whole(&reply, reader, settle).await
    }

    async fn count_tokens(&self, request: &Request) -> Result<u64, EngineError> {
        let rendered = render(self.transport.clone(), self.prompt(request)).await?;
        Ok(rendered.ids.len() as u64)
    }

    async fn health(&self) -> Result<(), EngineError> {
        self.transport.answers("/health").await
    }

    fn tokens(&self) -> Option<&dyn TokenEngine> {
        Some(self)
    }
}

impl LlamaCpp {
    fn body(&self, request: &Request) -> Map<String, Value> {
        let mut body = chat_body(request, &self.info, false);
        // With none asked for, the sampled token's own logprob is left out as well.
        body.insert("top_logprobs".into(), 1.into());
        body.insert("verbose".into(), true.into());
        body.insert("return_tokens".into(), true.into());
        // The server's own defaults cut the distribution down.
        for (name, neutral) in
            [("temperature", json!(1.0)), ("top_p", json!(1.0)), ("min_p", json!(0.0))]
        {
            body.entry(name).or_insert(neutral);
        }
        let top_k = request.sampling.top_k.filter(|k| *k > 0).unwrap_or(0);
        body.insert("top_k".into(), top_k.into());
        body
    }

    pub(crate) fn prompt(&self, request: &Request) -> Map<String, Value> {
        prompt_body(request, &self.info.model)
    }
}

/// A prompt as the server's template and tokenizer make it.
pub(crate) struct Rendered {
    text: String,
    pub(crate) ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Template {
    prompt: String,
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<u32>,
}

pub(crate) async fn render(
    transport: Transport,
    prompt: Map<String, Value>,
) -> Result<Rendered, EngineError> {
    let template: Template = transport.ask("/apply-template", &prompt).await?;
    // As the server itself tokenises a rendered chat.
    let question = json!({"content": template.prompt, "add_special": true, "parse_special": true});
    let tokens: Tokens = transport.ask("/tokenize", &question).await?;
    Ok(Rendered { text: template.prompt, ids: tokens.tokens })
}

/// Gives the prompt's ids just before the end, if they are surely those the server had.
fn settle_prompt(
    rendering: AbortOnDropHandle<Result<Rendered, EngineError>>,
    said_prompt: Arc<OnceLock<String>>,
    vocab_size: Option<u32>,
) -> Settle {
    Box::new(move |mut end| {
        Box::pin(async move {
            let rendered = match rendering.await {
                Ok(rendered) => rendered.map_err(|error| error.message),
                Err(_) => Err("rendering the prompt was cancelled".to_owned()),
            };
            let said = said_prompt.get().map(String::as_str);
            let checked = match end.extra.contains_key(CONTEXT_SHIFTED) {
                true => Err("the engine dropped tokens from its context while it sampled; start \
                             it without --context-shift"
                    .to_owned()),
                false => rendered.and_then(|prompt| checked(prompt, said, end.usage, vocab_size)),
            };
            match checked {
                Ok(ids) => vec![EngineEvent::PromptIds(ids), EngineEvent::End(end)],
                Err(reason) => {
                    end.extra.insert("prompt_ids_missing".into(), reason.into());
                    vec![EngineEvent::End(end)]
                }
            }
        })
    })
}

fn checked(
    prompt: Rendered,
    said: Option<&str>,
    usage: Usage,
    vocab_size: Option<u32>,
) -> Result<Vec<u32>, String> {
    let (rendered, counted) = (prompt.ids.len() as u64, usage.prompt_tokens);
    if rendered != counted {
        return Err(format!("the rendered prompt has {rendered} tokens, the engine had {counted}"));
    }
    // The server's text may begin with a mark that its tokenizer added.
    if said.is_some_and(|said| !said.ends_with(&prompt.text)) {
        return Err("the rendered prompt differs from the engine's".to_owned());
    }
    Vocabulary(vocab_size).check(&prompt.ids).map_err(|error| error.message)?;
    Ok(prompt.ids)
}

/// Reads llama.cpp's replies.
struct LlamaReader {
    vocabulary: Vocabulary,
    request_id: String,
    max_tokens: Option<u64>,
    context_window: Option<u64>,
    events: ReplyEvents,
    finish: Finish,
    usage: Option<WireUsage>,
    sampled: u64,
    said_prompt: Arc<OnceLock<String>>,
    stop_type: Option<String>,
    /// The server says that prompt and reply did not fit its context.
    truncated: bool,
    extra: Map<String, Value>,
}

impl LlamaReader {
    fn new(
        info: &EngineInfo,
        request: &Request,
        request_id: &str,
        said_prompt: Arc<OnceLock<String>>,
    ) -> Self {
        Self {
            vocabulary: Vocabulary(info.vocab_size),
            request_id: request_id.to_owned(),
            max_tokens: request.sampling.max_tokens,
            context_window: info.context_window,
            events: ReplyEvents::default(),
            finish: Finish::default(),
            usage: None,
            sampled: 0,
            said_prompt,
            stop_type: None,
            truncated: false,
            extra: Map::new(),
        }
    }

    fn take_choice(
        &mut self,
        mut choice: Choice,
        ids: Vec<u32>,
        out: &mut VecDeque<EngineEvent>,
    ) -> Result<(), EngineError> {
        self.finish.take(&mut choice);
        let given = choice.logprobs();
        self.vocabulary.check(&ids)?;
        let logprobs = pair_by_id(&ids, given).unwrap_or_else(|| {
            let counts = json!({"ids": ids.len(), "logprobs": given.len()});
            self.extra.insert("logprobs_not_paired".into(), counts);
            vec![None; ids.len()]
        });
        self.sampled += ids.len() as u64;
        let events = self.events.take(choice.delta, &self.request_id)?;
        if !events.is_empty() || !ids.is_empty() {
            out.push_back(EngineEvent::Chunk { events, ids, logprobs });
        }
        Ok(())
    }

    /// Gives the sampled ids.
    fn take_verbose(&mut self, verbose: LlamaVerbose) -> Vec<u32> {
        if let Some(prompt) = verbose.prompt {
            // A reply is read once, so nothing was told before.
            let _ = self.said_prompt.set(prompt);
        }
        if verbose.truncated {
            self.extra.insert("truncated".into(), true.into());
        }
        self.truncated = verbose.truncated;
        if verbose.stop_type.as_deref() == Some("word") {
            self.finish.stop_sequence = verbose.stopping_word.filter(|word| !word.is_empty());
        }
        self.stop_type = verbose.stop_type;
        verbose.tokens
    }
}

impl ReplyReader for LlamaReader {
    fn read(&mut self, data: &[u8], out: &mut VecDeque<EngineEvent>) -> Result<(), EngineError> {
        let reply = chat_reply::read(data)?;
        self.usage = reply.usage.or(self.usage);
        let ids = reply.verbose.map_or_else(Vec::new, |verbose| self.take_verbose(verbose));
        match reply.choices.into_iter().next() {
            Some(choice) => self.take_choice(choice, ids, out),
            None => Ok(()),
        }
    }

    fn finish(&mut self, _out: &mut VecDeque<EngineEvent>) -> Result<EngineEnd, EngineError> {
        let Some(engine_finish) = self.finish.reason.clone() else {
            return Err(EngineError::malformed("the reply ended without a finish reason"));
        };
        let counted = Usage { completion_tokens: self.sampled, ..Usage::default() };
        let usage = self.usage.map_or(counted, Usage::from);
        let sequence = usage.prompt_tokens + usage.completion_tokens;
        // A reply that just fills the context is called truncated as well, and is whole.
        if self.truncated && self.context_window.is_none_or(|window| sequence > window) {
            self.extra.insert(CONTEXT_SHIFTED.into(), true.into());
        }
        let limit = match self.stop_type.as_deref() {
            Some(stop_type) => stop_type == "limit",
            None => at_limit(self.max_tokens, self.context_window, usage),
        };
        Ok(EngineEnd {
            finish: self.finish.normalise(self.events.called(), limit),
            engine_finish,
            stop_sequence: self.finish.stop_sequence.take(),
            usage,
            weight_versions: Vec::new(),
            arrays: BTreeMap::new(),
            extra: std::mem::take(&mut self.extra),
        })
    }
}
