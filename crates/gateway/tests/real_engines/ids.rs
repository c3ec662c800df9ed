//! Ids in and ids out: conversations whose history is the ids that were sampled.

use crate::conversations::{ROUNDING, Spread};
use crate::engine_under_test::{EngineUnderTest, model_folder};
use crate::faults::{until_running, uuid_like};
use futures_util::StreamExt;
use polar_convo::{Dialect, FinishReason, Message, ReplyEvent, Request, Role, Sampling, Tool};
use polar_engine::{
    EngineEnd, EngineEvent, EngineKind, EngineStream, GenerateRequest, NOT_SENT, SampleRequest,
    TokenEngine,
};
use polar_types::ErrorClass;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What one sampling gave.
struct Sampled {
    prompt: Option<Vec<u32>>,
    ids: Vec<u32>,
    logprobs: Vec<Option<f32>>,
    chunks: usize,
    end: EngineEnd,
}

async fn read(mut stream: EngineStream) -> Sampled {
    let (mut prompt, mut chunks) = (None, 0);
    let (mut all, mut all_logprobs) = (Vec::new(), Vec::new());
    loop {
        match stream.next().await.unwrap().unwrap() {
            EngineEvent::PromptIds(ids) => prompt = Some(ids),
            EngineEvent::Chunk { events, ids, logprobs } => {
                assert!(events.is_empty());
                chunks += 1;
                all.extend(ids);
                all_logprobs.extend(logprobs);
            }
            EngineEvent::End(end) => {
                return Sampled { prompt, ids: all, logprobs: all_logprobs, chunks, end };
            }
        }
    }
}

fn sampling(temperature: f64) -> Sampling {
    let mut sampling =
        Sampling { temperature: Some(temperature), max_tokens: Some(64), ..Sampling::default() };
    sampling.say_defaults();
    sampling
}

fn behind(prompt: &[u32], sampling: Sampling) -> SampleRequest {
    SampleRequest {
        pictures: Vec::new(),
        picture_mark: None,
        prompt: Arc::from(prompt),
        sampling,
        stop_token_ids: Vec::new(),
        request_id: format!("test-{}", uuid_like()),
        session: Some("session".to_owned()),
        stream: false,
        rest: Map::new(),
    }
}

fn chat(said: &[(Role, &str)]) -> Request {
    let mut request = Request::new(Dialect::Chat, "any");
    request.messages = said.iter().map(|(role, text)| Message::text(*role, *text)).collect();
    request.tools = vec![Tool {
        name: "get_weather".to_owned(),
        description: Some("Tells the weather in a city.".to_owned()),
        parameters: json!({"type": "object", "properties": {"city": {"type": "string"}}}),
        rest: Map::new(),
    }];
    request
}

impl EngineUnderTest {
    pub(crate) fn tokens(&self) -> &dyn TokenEngine {
        self.engine.tokens().unwrap()
    }

    async fn sample(&self, request: SampleRequest) -> Sampled {
        for _ in 0..20 {
            match self.tokens().sample(request.clone()).await {
                Ok(stream) => return read(stream).await,
                // llama.cpp refuses to give a reply with bytes that make no characters.
                Err(error) if self.kind == EngineKind::LlamaCpp => {
                    assert!(error.message.contains("Content-only"), "{error}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the engine fails again and again");
    }

    /// Scores of a sequence from a place on, which llama.cpp gives only token by token.
    pub(crate) async fn scores(&self, ids: &[u32], from: usize) -> Vec<Option<f32>> {
        match self.kind {
            EngineKind::LlamaCpp => self.score(ids, from).await,
            _ => self.tokens().score(ids, from).await.unwrap().split_off(from),
        }
    }
}

/// What the template puts between a reply's end and the next reply.
async fn tail(under: &EngineUnderTest, end_of_turn: u32, said: &str) -> Vec<u32> {
    let stand_in = chat(&[(Role::User, "Hm?"), (Role::Assistant, "Hm."), (Role::User, said)]);
    let ids = under.tokens().render(&stand_in).await.unwrap();
    let ends = ids.iter().enumerate().filter(|(_, id)| **id == end_of_turn);
    let ends: Vec<usize> = ends.map(|(place, _)| place).collect();
    // Behind the last but one: the last ends what is said.
    ids[ends[ends.len() - 2] + 1..].to_vec()
}

/// The id that ends a turn.
async fn end_of_turn(under: &EngineUnderTest) -> u32 {
    let prompt = under.tokens().render(&chat(&[(Role::User, "Say hello.")])).await.unwrap();
    let reply = under.sample(behind(&prompt, sampling(0.0))).await;
    assert_eq!(reply.end.finish, FinishReason::Stop);
    *reply.ids.last().unwrap()
}

const SAID: [&str; 3] = ["How is the weather in Oslo?", "And in Paris?", "Thank you."];

/// A conversation on the ids that were sampled.
struct Conversation {
    /// Ids of the first prompt.
    first: usize,
    sequence: Vec<u32>,
    /// Place and logprob of each id that was sampled.
    recorded: Vec<(usize, Option<f32>)>,
    /// Each call against itself: what the engine's arithmetic alone makes.
    noise: Spread,
    /// Ids of each prompt that the engine had in its cache.
    cached: Vec<u64>,
}

async fn converse(under: &EngineUnderTest, end_of_turn: u32, stream: bool) -> Conversation {
    // Caches work in blocks.
    let long = format!("{}{}", "The sun is warm today. ".repeat(40), SAID[0]);
    let mut sequence = under.tokens().render(&chat(&[(Role::User, &long)])).await.unwrap();
    let first = sequence.len();
    let (mut recorded, mut cached) = (Vec::new(), Vec::new());
    let mut noise = Spread::default();
    for (turn, said) in SAID.iter().enumerate() {
        if turn > 0 {
            if sequence.last() != Some(&end_of_turn) {
                sequence.push(end_of_turn);
            }
            sequence.extend(tail(under, end_of_turn, said).await);
        }
        let asked = SampleRequest { stream, ..behind(&sequence, sampling(1.0)) };
        let reply = under.sample(asked).await;
        assert_eq!(reply.prompt.as_ref(), Some(&sequence));
        assert_eq!(reply.ids.len() as u64, reply.end.usage.completion_tokens);
        assert_eq!(reply.chunks > 1, stream && under.kind != EngineKind::LlamaCpp);
        cached.push(reply.end.usage.cached_tokens.unwrap_or(0));
        let from = sequence.len();
        sequence.extend(&reply.ids);
        let scores = under.scores(&sequence, from).await;
        compare(&reply.logprobs, &scores, &mut noise);
        recorded.extend((from..).zip(reply.logprobs));
    }
    Conversation { first, sequence, recorded, noise, cached }
}

pub(crate) async fn history_is_what_was_sampled(kind: EngineKind) {
    let under = EngineUnderTest::connect(kind).await;
    let end_of_turn = end_of_turn(&under).await;
    for stream in [false, true] {
        let Conversation { first, sequence, recorded, noise, cached } =
            converse(&under, end_of_turn, stream).await;
        let scores = under.scores(&sequence, first).await;
        // Another question, of the same length.
        let mut changed = sequence.clone();
        changed[first - 12..first - 4].iter_mut().for_each(|id| *id ^= 1);
        let wrong = under.scores(&changed, first).await;
        let (mut scored, mut control) = (Spread::default(), Spread::default());
        for (place, logprob) in &recorded {
            let place = place - first;
            compare(&[*logprob], &scores[place..=place], &mut scored);
            compare(&[*logprob], &wrong[place..=place], &mut control);
        }
        println!(
            "{} {}: {} ids, {} sampled, cached {cached:?}; single calls max {:.2e}, whole max \
             {:.2e} mean {:.2e}, another question max {:.2e}",
            kind.name(),
            if stream { "streamed" } else { "whole" },
            sequence.len(),
            recorded.len(),
            noise.most,
            scored.most,
            scored.mean(),
            control.most,
        );
        let bound = noise.most.max(ROUNDING);
        assert!(scored.most <= bound, "{} is above the noise {bound}", scored.most);
        assert!(control.most > 20.0 * bound, "the check sees no wrong ids");
        assert!(cached[1] > 0 && cached[2] >= cached[1], "no cache hits: {cached:?}");
    }
}

/// Where both are told.
pub(crate) fn compare(one: &[Option<f32>], other: &[Option<f32>], spread: &mut Spread) {
    assert_eq!(one.len(), other.len());
    let both =
        one.iter().zip(other).filter_map(|(one, other)| Some((one.as_ref()?, other.as_ref()?)));
    let (one, other): (Vec<f32>, Vec<f32>) = both.map(|(one, other)| (*one, *other)).unzip();
    spread.add(&one, &other);
}

pub(crate) async fn ends_where_it_is_told_to(kind: EngineKind) {
    let under = EngineUnderTest::connect(kind).await;
    let question = chat(&[(Role::User, SAID[0])]);
    let prompt = under.tokens().render(&question).await.unwrap();
    let all = under.sample(behind(&prompt, sampling(0.0))).await;
    let word = word_of(&under, &question).await;
    for stream in [false, true] {
        let mut asked = SampleRequest { stream, ..behind(&prompt, sampling(0.0)) };
        asked.sampling.stop = vec![word.clone()];
        let reply = under.sample(asked).await;
        assert_eq!(reply.end.finish, FinishReason::StopSequence, "{:?}", reply.end);
        assert_eq!(reply.end.stop_sequence.as_ref(), Some(&word));
        assert!(all.ids.starts_with(&reply.ids) && reply.ids.len() < all.ids.len());
        assert_eq!(reply.ids.len() as u64, reply.end.usage.completion_tokens);

        let mut asked = SampleRequest { stream, ..behind(&prompt, sampling(0.0)) };
        asked.stop_token_ids = vec![all.ids[3]];
        let reply = under.sample(asked).await;
        let place = all.ids.iter().position(|id| *id == all.ids[3]).unwrap();
        assert_eq!(reply.ids, all.ids[..=place]);
        assert_eq!(reply.end.finish, FinishReason::Stop);
        assert_eq!(reply.ids.len() as u64, reply.end.usage.completion_tokens);
    }
}

/// A word from the middle of the greedy reply.
async fn word_of(under: &EngineUnderTest, question: &Request) -> String {
    let mut request = question.clone();
    request.sampling = sampling(0.0);
    let asked = GenerateRequest { request, request_id: format!("test-{}", uuid_like()) };
    let mut stream = under.engine.generate(asked).await.unwrap();
    let mut text = String::new();
    while let Some(event) = stream.next().await {
        let EngineEvent::Chunk { events, .. } = event.unwrap() else { continue };
        for event in events {
            match event {
                ReplyEvent::Text(more) | ReplyEvent::Reasoning(more) => text.push_str(&more),
                ReplyEvent::ToolCall { name, .. } => text.push_str(&name),
                ReplyEvent::ToolArguments { fragment, .. } => text.push_str(&fragment),
            }
        }
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.len() > 2, "{text:?}");
    words[words.len() / 2].to_owned()
}

pub(crate) async fn dropping_frees_the_engine(kind: EngineKind) {
    let under = EngineUnderTest::connect(kind).await;
    let prompt = under.tokens().render(&chat(&[(Role::User, SAID[0])])).await.unwrap();
    for stream in [true, false] {
        until_running(&under, 0).await;
        let mut endless = SampleRequest { stream, ..behind(&prompt, sampling(1.0)) };
        endless.sampling.max_tokens = Some(12000);
        endless.rest.insert("ignore_eos".into(), true.into());
        let engine = under.engine.clone();
        let sampling = tokio::spawn(async move {
            read(engine.tokens().unwrap().sample(endless).await.unwrap()).await
        });
        until_running(&under, 1).await;
        sampling.abort();
        until_running(&under, 0).await;
    }
}

pub(crate) async fn refuses_before_the_engine_is_asked(kind: EngineKind) {
    let under = EngineUnderTest::connect(kind).await;
    let info = under.engine.info();
    let size = info.vocab_size.unwrap();
    for ids in [[1, size], [1, u32::MAX]] {
        let error = under.tokens().sample(behind(&ids, sampling(1.0))).await.err().unwrap();
        assert_eq!(error.class, ErrorClass::Invalid, "{error}");
        assert!(under.tokens().score(&ids, 0).await.is_err());
    }
    let window = info.context_window.unwrap();
    let full = vec![1; usize::try_from(window).unwrap()];
    let error = under.tokens().sample(behind(&full, sampling(1.0))).await.err().unwrap();
    assert_eq!(error.class, ErrorClass::ContextOverflow);
    // The last places of the window can still be sampled, of which SGLang keeps some for itself.
    let mut nearly = behind(&full[8..], sampling(0.0));
    nearly.sampling.max_tokens = Some(1_000_000);
    let reply = under.sample(nearly).await;
    assert!((1..=8).contains(&reply.ids.len()), "{}", reply.ids.len());
    // Every id there is can be sent, and the engine lives on.
    let mut strange = behind(&[0, size - 1, size / 2], sampling(0.0));
    // llama.cpp gives no reply with bytes that make no characters.
    strange.sampling.max_tokens = Some(1);
    let reply = under.sample(strange).await;
    assert_eq!(reply.prompt, Some(vec![0, size - 1, size / 2]));
}

pub(crate) async fn renders_what_chat_is_sampled_behind(kind: EngineKind) {
    let under = EngineUnderTest::connect(kind).await;
    let said = [
        (Role::System, "Be brief."),
        (Role::User, "Hm?"),
        (Role::Assistant, "Hm."),
        (Role::User, SAID[0]),
    ];
    let mut request = chat(&said);
    request.sampling = sampling(0.0);
    let rendered = under.tokens().render(&request).await.unwrap();
    let asked = GenerateRequest { request, request_id: format!("test-{}", uuid_like()) };
    let mut stream = under.engine.generate(asked).await.unwrap();
    let (mut prompt, mut ids, mut logprobs) = (None, Vec::new(), Vec::new());
    while let Some(event) = stream.next().await {
        match event.unwrap() {
            EngineEvent::PromptIds(given) => prompt = Some(given),
            EngineEvent::Chunk { ids: more, logprobs: of_more, .. } => {
                ids.extend(more);
                logprobs.extend(of_more);
            }
            EngineEvent::End(_) => {}
        }
    }
    assert_eq!(prompt.as_ref(), Some(&rendered));
    // And behind the same ids the same is sampled.
    for stream in [false, true] {
        let reply =
            under.sample(SampleRequest { stream, ..behind(&rendered, sampling(0.0)) }).await;
        assert_eq!(reply.ids, ids);
        let mut spread = Spread::default();
        compare(&reply.logprobs, &logprobs, &mut spread);
        assert!(spread.most <= ROUNDING, "{}", spread.most);
    }
}

/// Each id of the vocabulary has its own logprob in a sequence of them all.
pub(crate) async fn scores_every_id(kind: EngineKind) {
    let under = EngineUnderTest::connect(kind).await;
    let size = under.engine.info().vocab_size.unwrap();
    let all: Vec<u32> = (0..size).rev().chain(0..size).collect();
    let scores = match under.tokens().score(&all, 0).await {
        Ok(scores) => scores,
        Err(error) => {
            assert_eq!(kind, EngineKind::LlamaCpp, "{error}");
            assert!(error.message.contains("does not tell"), "{error}");
            return;
        }
    };
    assert_eq!(scores.len(), all.len());
    assert!(scores[0].is_none() && scores[1..].iter().all(Option::is_some));
    // From a place on they are the same, and nothing is told of what is before it.
    let from = all.len() - 9;
    let end = under.tokens().score(&all, from).await.unwrap();
    assert!(end[..from].iter().all(Option::is_none));
    let mut spread = Spread::default();
    compare(&end[from..], &scores[from..], &mut spread);
    assert!(spread.most <= ROUNDING, "{}", spread.most);
    assert!(under.tokens().score(&all, all.len()).await.unwrap().iter().all(Option::is_none));
}

/// vLLM's two places for ids, and what only one of them tells.
pub(crate) async fn vllm_has_two_places_for_ids() {
    let under = EngineUnderTest::connect(EngineKind::Vllm).await;
    let prompt = under.tokens().render(&chat(&[(Role::User, SAID[0])])).await.unwrap();
    for stream in [false, true] {
        let one = under.sample(SampleRequest { stream, ..behind(&prompt, sampling(0.0)) }).await;
        let mut asked = SampleRequest { stream, ..behind(&prompt, sampling(0.0)) };
        asked.rest.insert("response_format".into(), json!({"type": "text"}));
        asked.rest.insert("made_up".into(), json!(1));
        let other = under.sample(asked).await;
        assert_eq!(one.ids, other.ids);
        assert_eq!(one.prompt, other.prompt);
        let mut spread = Spread::default();
        compare(&one.logprobs, &other.logprobs, &mut spread);
        assert!(spread.most <= ROUNDING);
        assert_eq!(other.end.extra[NOT_SENT], json!(["made_up"]));
        for end in [&one.end, &other.end] {
            let [span] = end.weight_versions.as_slice() else { panic!("{end:?}") };
            assert_eq!((span.start, span.end), (0, one.ids.len() as u64));
        }
    }
}

pub(crate) async fn vllm_tells_weights_of_an_aborted_reply() {
    let under = EngineUnderTest::connect(EngineKind::Vllm).await;
    let prompt = under.tokens().render(&chat(&[(Role::User, SAID[0])])).await.unwrap();
    under.post("/update_weight_version", &json!({"new_version": "step-1"})).await;
    let mut endless = SampleRequest { stream: true, ..behind(&prompt, sampling(1.0)) };
    endless.sampling.max_tokens = Some(12000);
    endless.rest.insert("ignore_eos".into(), true.into());
    let engine = under.engine.clone();
    let sampling =
        tokio::spawn(
            async move { read(engine.tokens().unwrap().sample(endless).await.unwrap()).await },
        );
    until_running(&under, 1).await;
    under.post("/pause?mode=abort", &json!({})).await;
    under.post("/update_weight_version", &json!({"new_version": "default"})).await;
    under.post("/resume", &json!({})).await;
    let reply = sampling.await.unwrap();
    assert_eq!(reply.end.finish, FinishReason::Abort);
    assert_eq!(reply.ids.len() as u64, reply.end.usage.completion_tokens);
    assert!(!reply.ids.is_empty() && reply.logprobs.iter().all(Option::is_some));
    let [span] = reply.end.weight_versions.as_slice() else { panic!("{:?}", reply.end) };
    assert_eq!(span.version.as_deref(), Some("step-1"));
}

/// Bytes of which no character is made: the server's own parser would fail the reply, and what was
/// sampled would be missing among all that is.
pub(crate) async fn llama_gives_ids_that_make_no_characters() {
    let under = EngineUnderTest::connect(EngineKind::LlamaCpp).await;
    let tokenizer = std::fs::read(model_folder().join("tokenizer.json")).unwrap();
    let tokenizer: Value = serde_json::from_slice(&tokenizer).unwrap();
    // The byte that begins a character of three, as tokenizers of bytes write it.
    let byte = tokenizer["model"]["vocab"]["æ"].as_u64().unwrap();
    let mut request = behind(&[1, 2, 3], Sampling { max_tokens: Some(9), ..sampling(1.0) });
    request.rest.insert("logit_bias".to_owned(), json!([[byte, 1000]]));
    let sampled = read(under.engine.tokens().unwrap().sample(request).await.unwrap()).await;
    assert_eq!(sampled.ids, vec![byte as u32; 9]);
    assert_eq!(sampled.logprobs.len(), 9);
    assert_eq!(sampled.end.finish, FinishReason::Length);
}
