//! Token mode through the gateway: Polar makes the prompts and the engine samples behind ids.

use crate::client::Harness;
use crate::conversations::{
    ROUNDING, Spread, one_id_changed, through_gateway, trained, without_failed_calls,
};
use crate::engine_under_test::{EngineUnderTest, model_folder};
use crate::faults::until_running;
use crate::ids::compare;
use polar_convo::Dialect;
use polar_engine::{EngineKind, ModelFiles, NOT_SENT, Outcome, ProbeError, TokenModeError};
use polar_record::{RecordedCall, RecordedSession};
use polar_trajectory::{build, verify, verify_fingerprints};
use polar_types::{SamplingPins, Trajectory, TrajectoryStrategy};
use serde_json::{Map, Value, json};
use std::fs;

/// Fewer tokens than any thought of the model has.
const CUT: u64 = 5;

/// The model calls its tool in a quarter of its replies.
const MOST_TURNS: usize = 80;

pub(crate) async fn starts_with_the_models_own_files(kind: EngineKind) {
    let under = EngineUnderTest::in_token_mode(kind).await;
    for check in &under.report.checks {
        println!("{:?} {}: {}", check.outcome, check.name, check.detail);
    }
    assert!(under.report.checks.iter().all(|check| check.outcome == Outcome::Passed));
    let compared = under.report.checks.iter().find(|check| check.name == "prompts").unwrap();
    assert!(compared.detail.starts_with("5 conversations"), "{}", compared.detail);
}

/// One line of the template is another: the engine would be asked with prompts it does not make.
pub(crate) async fn refuses_another_template(kind: EngineKind) {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(model_folder()).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|end| end == "json" || end == "jinja") {
            fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
        }
    }
    let template = copy.path().join("chat_template.jinja");
    let own = fs::read_to_string(&template).unwrap();
    let changed = own.replace("'\\n<tool_response>\\n'", "'\\n<tool_response>'");
    assert_ne!(own, changed);
    fs::write(&template, changed).unwrap();
    let files = ModelFiles::read(copy.path()).unwrap();
    let refused = EngineUnderTest::try_connect(kind, Some(files)).await.err().unwrap();
    println!("{refused}");
    let ProbeError::TokenMode(TokenModeError::Disagrees(found)) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(found.conversation, "a call and its result");
    assert!(found.before.ends_with("<tool_response>"), "{found:?}");
    assert!(found.theirs.starts_with("\n12:00\n"), "{found:?}");
    assert!(found.ours.starts_with("12:00\n"), "{found:?}");
}

/// A question until a tool is called, the results, a reply that is cut at its limit, and one more
/// question.
async fn converse(under: &EngineUnderTest, mut harness: Harness) {
    harness.insist("How is the weather in Oslo?").await;
    for _ in 0..MOST_TURNS {
        if harness.has_calls() {
            break;
        }
        harness.insist("Look at the sky, please.").await;
    }
    assert!(harness.has_calls(), "{} never called its tool", under.kind.name());
    harness.insist("").await;
    while harness.has_calls() {
        harness.insist("").await;
    }
    harness.limit = CUT;
    harness.insist("And in Paris?").await;
    harness.limit = 64;
    harness.insist("Is it warmer in Rome than in Tokyo?").await;
}

/// As many calls in each mode.
async fn ten_calls(_: &EngineUnderTest, mut harness: Harness) {
    for city in
        ["Oslo", "Paris", "Rome", "Tokyo", "Oslo", "Paris", "Rome", "Tokyo", "Oslo", "Paris"]
    {
        harness.insist(&format!("How is the weather in {city}?")).await;
    }
}

fn pins() -> SamplingPins {
    SamplingPins { temperature: Some(1.0), ..SamplingPins::default() }
}

/// What was recorded of a careless harness, whose history is not what was sampled, and what is
/// built of it.
async fn recorded(
    under: &EngineUnderTest,
    dialect: Dialect,
    stream: bool,
    rest: &Map<String, Value>,
    script: impl AsyncFnOnce(&EngineUnderTest, Harness),
) -> (RecordedSession, Trajectory) {
    let pins = pins();
    let session = through_gateway(under, &pins, async |base, secret| {
        let mut harness = Harness::new(base, secret, dialect, stream);
        harness.is_careless = true;
        harness.rest.clone_from(rest);
        script(under, harness).await;
    });
    let session = session.await;
    let strategy = TrajectoryStrategy::PrefixMerging;
    let all = build(&session, strategy, None).trajectory;
    verify(&all, &session).unwrap();
    let is_signed =
        |call: &&RecordedCall| call.meta.extra.contains_key("prompt") && call.meta.error.is_none();
    let signed = session.calls().iter().filter(is_signed).count();
    assert_eq!(verify_fingerprints(&session).unwrap().checked, signed as u64);
    let session = without_failed_calls(session);
    let trajectory = build(&session, strategy, None).trajectory;
    verify(&trajectory, &session).unwrap();
    assert!(session.calls().iter().all(|call| !call.meta.extra.contains_key(NOT_SENT)));
    (session, trajectory)
}

/// The engine's logprobs of what was sampled, and of the same with a wrong id in its context.
#[derive(Default)]
struct Scored {
    calls: Spread,
    traces: Spread,
    wrong: Spread,
}

impl Scored {
    async fn of(under: &EngineUnderTest, session: &RecordedSession, built: &Trajectory) -> Self {
        let mut scored = Self::default();
        for call in session.calls() {
            let record = session.record(call);
            let (prompt, sampled) = (record.prompt_ids.unwrap(), record.sampled_ids.unwrap());
            let ids = [prompt.as_slice(), &sampled].concat();
            let scores = under.scores(&ids, prompt.len()).await;
            compare(&record.logprobs, &scores, &mut scored.calls);
        }
        for trace in &built.traces {
            let ids = [trace.prompt_ids.as_slice(), &trace.response_ids].concat();
            let (own, scores) = trained(trace, &under.scores(&ids, trace.prompt_ids.len()).await);
            scored.traces.add(&own, &scores);
            let wrong = under.scores(&one_id_changed(&ids), trace.prompt_ids.len()).await;
            scored.wrong.add(&own, &trained(trace, &wrong).1);
        }
        scored
    }

    fn print(&self) {
        println!(
            "  |Δlogprob| of single calls max {:.2e} mean {:.2e}, of merged traces max {:.2e} mean \
             {:.2e}, with one wrong id max {:.2e}",
            self.calls.most,
            self.calls.mean(),
            self.traces.most,
            self.traces.mean(),
            self.wrong.most,
        );
    }

    fn check(&self) {
        let most = self.calls.most.max(ROUNDING);
        assert!(self.traces.most <= most, "{} is above {most}", self.traces.most);
        let mean = self.calls.mean().max(f64::from(ROUNDING));
        assert!(self.traces.mean() <= mean, "{} is above {mean}", self.traces.mean());
        assert!(self.wrong.most > 20.0 * most, "the check sees no wrong ids");
    }
}

/// Calls whose prompt does not begin with prompt and reply of the call before.
fn breaks(session: &RecordedSession) -> Vec<usize> {
    let calls = session.calls();
    let sequence = |at: usize| {
        let (prompt, sampled) = (session.prompt_ids(&calls[at]), session.sampled_ids(&calls[at]));
        [prompt.unwrap(), sampled.unwrap()].concat()
    };
    let prompt = |at: usize| session.prompt_ids(&calls[at]).unwrap();
    (1..calls.len()).filter(|at| !prompt(*at).starts_with(&sequence(at - 1))).collect()
}

/// A sequence made by looking at prompts alone: each call whose prompt begins with the prompt before
/// it goes on with what that prompt has behind as many ids as there are by then.
#[derive(Default)]
struct MergedByPrompts {
    /// Of the last call.
    prompt: Vec<u32>,
    ids: Vec<u32>,
    /// Place and logprob of what was sampled.
    recorded: Vec<(usize, Option<f32>)>,
}

impl MergedByPrompts {
    fn all(session: &RecordedSession) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for call in session.calls() {
            let record = session.record(call);
            let (prompt, sampled) = (record.prompt_ids.unwrap(), record.sampled_ids.unwrap());
            if !all.last().is_some_and(|last| prompt.starts_with(&last.prompt)) {
                all.push(Self::default());
            }
            let merged = all.last_mut().unwrap();
            merged.ids.extend(prompt.get(merged.ids.len()..).unwrap_or_default());
            merged.recorded.extend((merged.ids.len()..).zip(record.logprobs));
            merged.ids.extend(sampled);
            merged.prompt = prompt;
        }
        all
    }

    /// How far the logprobs are off that the engine gives behind this context.
    async fn scored(under: &EngineUnderTest, session: &RecordedSession) -> (usize, Spread) {
        let (all, mut spread) = (Self::all(session), Spread::default());
        for merged in &all {
            let from = merged.recorded.first().map_or(merged.ids.len(), |(place, _)| *place);
            let scores = under.scores(&merged.ids, from).await;
            let pairs = merged.recorded.iter().filter_map(|(place, recorded)| {
                Some(((*recorded)?, (*scores.get(place - from)?)?))
            });
            let (recorded, scores): (Vec<f32>, Vec<f32>) = pairs.unzip();
            spread.add(&recorded, &scores);
        }
        (all.len(), spread)
    }
}

pub(crate) async fn a_conversation_is_one_trace(kind: EngineKind, dialect: Dialect) {
    let under = EngineUnderTest::in_token_mode(kind).await;
    for stream in [false, true] {
        let (session, built) = recorded(&under, dialect, stream, &Map::new(), converse).await;
        let notes = session.calls().iter().map(|call| call.meta.extra["prompt"].clone());
        let notes: Vec<Value> = notes.collect();
        let cached: Vec<u64> =
            session.calls().iter().map(|call| call.meta.cached_tokens.unwrap_or(0)).collect();
        let form = if stream { "streamed" } else { "whole" };
        println!(
            "{} {dialect:?} {form}: {} calls, {} trace(s), {} of {} sampled tokens trained, {cached:?} \
             ids of prompts in the cache",
            kind.name(),
            session.calls().len(),
            built.traces.len(),
            built.tokens.trained,
            built.tokens.sampled,
        );
        assert_eq!(breaks(&session), [0; 0], "{notes:?}");
        assert!(notes.iter().all(|note| note["mode"] == "token"), "{notes:?}");
        assert_eq!(notes.last().unwrap()["turn_end"], "closed", "{notes:?}");
        assert_eq!(built.traces.len(), 1, "{:?}", built.forks);
        let told = kind != EngineKind::LlamaCpp;
        assert!(!told || built.tokens.trained == built.tokens.sampled, "{:?}", built.tokens);
        assert!(cached.last() > Some(&0), "no cache hits: {cached:?}");
        let scored = Scored::of(&under, &session, &built).await;
        scored.print();
        scored.check();
    }
}

/// A template that strips reasoning in token mode and in chat mode, and what training data would be
/// if calls were merged by their prompts alone.
pub(crate) async fn stripped_reasoning_forks_only_in_chat_mode(kind: EngineKind) {
    let rest = json!({"chat_template_kwargs": {"strip_reasoning": true}});
    let rest = rest.as_object().unwrap();
    let mut traces = Vec::new();
    for is_token_mode in [true, false] {
        let (mode, under) = match is_token_mode {
            true => ("token", EngineUnderTest::in_token_mode(kind).await),
            false => ("chat", EngineUnderTest::connect(kind).await),
        };
        let (session, built) = recorded(&under, Dialect::Chat, true, rest, ten_calls).await;
        println!(
            "{} {mode} mode, reasoning stripped: {} calls, {} trace(s), forks {:?}, {} of {} \
             sampled tokens trained in {} tokens",
            kind.name(),
            session.calls().len(),
            built.traces.len(),
            built.forks,
            built.tokens.trained,
            built.tokens.sampled,
            built.traces.iter().map(|t| t.prompt_ids.len() + t.response_ids.len()).sum::<usize>(),
        );
        let scored = Scored::of(&under, &session, &built).await;
        scored.print();
        scored.check();
        traces.push(built.traces.len());
        let (number, by_prompts) = MergedByPrompts::scored(&under, &session).await;
        println!(
            "  merged by prompts alone: {number} trace(s), |Δlogprob| max {:.2e} mean {:.2e}",
            by_prompts.most,
            by_prompts.mean(),
        );
        // Sequences fewer than there are hold tokens behind what the engine had not.
        let is_exact = by_prompts.most <= scored.calls.most.max(ROUNDING);
        assert_eq!(is_exact, number >= built.traces.len(), "{}", by_prompts.most);
    }
    assert!(traces[0] == 1 && traces[1] > 1, "{traces:?}");
}

pub(crate) async fn hanging_up_keeps_what_was_sampled(kind: EngineKind) {
    let under = EngineUnderTest::in_token_mode(kind).await;
    until_running(&under, 0).await;
    let pins = pins();
    let session = through_gateway(&under, &pins, async |base, secret| {
        let mut harness = Harness::new(base, secret, Dialect::Chat, true);
        harness.limit = 12000;
        harness.rest.insert("ignore_eos".to_owned(), true.into());
        harness.hang_up("Say hello.").await;
        until_running(&under, 0).await;
    });
    let session = session.await;
    let [call] = session.calls() else { panic!("{} calls", session.calls().len()) };
    assert_eq!(call.meta.finish_reason, "cancelled");
    let sampled = session.sampled_ids(call).unwrap();
    println!("{}: {} ids sampled before hanging up", kind.name(), sampled.len());
    assert!(!sampled.is_empty() && sampled.len() < 12000);
    assert_eq!(session.record(call).logprobs.len(), sampled.len());
    verify_fingerprints(&session).unwrap();
}
