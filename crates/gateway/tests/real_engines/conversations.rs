//! Conversations through the gateway; their traces against the engine itself.
//!
//! Each trace is scored by the engine: the logprob it gives each token when it is handed
//! the trace's ids as they are. A wrong, missing or shifted id anywhere before a trained token
//! changes that number by far more than the engine's own noise, which is measured on the
//! engine alone: the difference between sampling a token and scoring it.

use crate::client::Harness;
use crate::direct::Tokens;
use crate::engine_under_test::EngineUnderTest;
use polar_convo::Dialect;
use polar_engine::EngineKind;
use polar_gateway::{Gateway, GatewayConfig, SessionOptions};
use polar_record::{CallRecord, RecordedSession, SessionHeader};
use polar_types::{HistoryPolicy, SamplingPins, Trace, TrajectoryStrategy};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

const CONVERSATIONS: u32 = 4;
const TURNS: usize = 5;

/// A sequence is scored in another order of additions than it was sampled in, which 32-bit floats
/// show in the sixth decimal.
pub(crate) const ROUNDING: f32 = 2e-5;

const SAID: [&str; TURNS] = [
    "How is the weather in Oslo?",
    "And in Paris?",
    "Look again, please.",
    "Is it warmer in Rome than in Tokyo?",
    "Thank you. Say hello to the sun.",
];

pub(crate) async fn twenty_calls(kind: EngineKind, dialect: Dialect, stream: bool) {
    let under = EngineUnderTest::connect(kind).await;
    let mut seen = Differences::default();
    for number in 0..CONVERSATIONS {
        let pins = pins(kind, number);
        let session = converse(&under, dialect, stream, &pins).await;
        assert_eq!(session.calls().len(), TURNS, "calls that failed are not among them");
        for call in session.calls() {
            compare_with_direct(&under, &session.record(call), &mut seen).await;
        }
        compare_with_scores(&under, &session, &mut seen).await;
    }
    seen.print(kind, dialect, stream);
    seen.check();
}

/// SGLang's seeds have no effect without deterministic kernels, so a sampled call of it cannot be
/// repeated; half of its conversations are greedy instead.
fn pins(kind: EngineKind, number: u32) -> SamplingPins {
    let greedy = kind == EngineKind::Sglang && number.is_multiple_of(2);
    SamplingPins {
        temperature: Some(if greedy { 0.0 } else { 1.0 }),
        seed: (kind != EngineKind::Sglang).then_some(i64::from(number) + 7),
        ..SamplingPins::default()
    }
}

fn repeats(kind: EngineKind, record: &CallRecord) -> bool {
    kind != EngineKind::Sglang || record.meta.sampling["temperature"] == 0.0
}

/// One conversation through a gateway of its own; gives its journal as read back.
async fn converse(
    under: &EngineUnderTest,
    dialect: Dialect,
    stream: bool,
    pins: &SamplingPins,
) -> RecordedSession {
    let session = through_gateway(under, pins, async |base, secret| {
        let mut harness = Harness::new(base, secret, dialect, stream);
        for said in SAID {
            harness.insist(said).await;
        }
    });
    without_failed_calls(session.await)
}

/// A session before a gateway of its own, whose address and secret are given to the harness;
/// what was recorded of it.
pub(crate) async fn through_gateway(
    under: &EngineUnderTest,
    pins: &SamplingPins,
    harness: impl AsyncFnOnce(&str, &str),
) -> RecordedSession {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let gateway = Gateway::new(GatewayConfig::default(), under.engine.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let shutdown = CancellationToken::new();
    tokio::spawn(polar_gateway::serve_tcp(gateway.router(), listener, shutdown.clone()));
    let session = gateway
        .open_session(SessionOptions {
            header: header(),
            journal: journal.clone(),
            sampling: pins.clone(),
            history: HistoryPolicy::Sampled,
        })
        .unwrap();
    harness(&base, session.secret()).await;
    session.close().unwrap();
    shutdown.cancel();
    let session = RecordedSession::read(&journal).unwrap();
    assert!(session.sealed && session.damage.is_none());
    session
}

/// Calls the engine failed have a record too; there is nothing in them to compare.
pub(crate) fn without_failed_calls(session: RecordedSession) -> RecordedSession {
    let calls: Vec<(CallRecord, Option<bool>)> = session
        .calls()
        .iter()
        .filter(|call| call.meta.error.is_none())
        .map(|call| (session.record(call), call.delivered))
        .collect();
    let calls = calls.iter().map(|(record, delivered)| (record, *delivered));
    RecordedSession::from_calls(&session.header, calls).unwrap()
}

pub(crate) fn header() -> SessionHeader {
    SessionHeader {
        session_id: "session".parse().unwrap(),
        task_id: "task".parse().unwrap(),
        group_id: "task".parse().unwrap(),
        attempt: 1,
        epoch: 1,
        created_at_ms: 0,
        engine: Value::Null,
        rules: Default::default(),
    }
}

/// The record holds what the engine says when it is asked the same without Polar.
async fn compare_with_direct(under: &EngineUnderTest, record: &CallRecord, seen: &mut Differences) {
    let direct = under.again(record).await;
    assert_eq!(record.prompt_ids.as_ref(), Some(&direct.prompt), "prompt");
    let sampled = record.sampled_ids.as_ref().unwrap();
    assert_eq!(record.meta.sampled_tokens, sampled.len() as u64);
    if repeats(under.kind, record) {
        assert_eq!(sampled, &direct.sampled, "sampled");
        let recorded: Vec<f32> = record.logprobs.iter().copied().flatten().collect();
        assert_eq!(recorded.len(), direct.logprobs.len());
        seen.repeat.add(&recorded, &direct.logprobs);
    }
    seen.calls += 1;
    // The engine against itself: Polar has no part in it.
    let Tokens { prompt, sampled, logprobs } = direct;
    let sequence = [prompt.as_slice(), &sampled].concat();
    let scores: Vec<f32> =
        under.score(&sequence, prompt.len()).await.into_iter().flatten().collect();
    // Both have holes at the same tokens, those inside a character.
    if scores.len() == logprobs.len() {
        seen.noise.add(&logprobs, &scores);
    }
}

/// Every trace, scored by the engine as one sequence.
async fn compare_with_scores(
    under: &EngineUnderTest,
    session: &RecordedSession,
    seen: &mut Differences,
) {
    let built = polar_trajectory::build(session, TrajectoryStrategy::PrefixMerging, None);
    polar_trajectory::verify(&built.trajectory, session).unwrap();
    for trace in &built.trajectory.traces {
        seen.traces += 1;
        seen.merged += usize::from(trace.calls.len() > 1);
        let ids = [trace.prompt_ids.as_slice(), &trace.response_ids].concat();
        let scores = under.score(&ids, trace.prompt_ids.len()).await;
        let (recorded, scores) = trained(trace, &scores);
        seen.trained += recorded.len();
        seen.scored.add(&recorded, &scores);
        let wrong = under.score(&one_id_changed(&ids), trace.prompt_ids.len()).await;
        seen.control.add(&recorded, &trained(trace, &wrong).1);
    }
}

/// Recorded logprobs and scores of the positions that are trained.
/// Without those that the engine cannot score.
pub(crate) fn trained(trace: &Trace, scores: &[Option<f32>]) -> (Vec<f32>, Vec<f32>) {
    let positions = trace.loss_mask.iter().zip(&trace.response_logprobs).zip(scores);
    let kept = positions.filter(|((mask, _), _)| **mask == 1);
    kept.filter_map(|((_, recorded), score)| Some((recorded.unwrap(), (*score)?))).unzip()
}

/// The sequence with another token in the middle of its context.
pub(crate) fn one_id_changed(ids: &[u32]) -> Vec<u32> {
    let mut changed = ids.to_vec();
    changed[4] ^= 1;
    changed
}

#[derive(Default)]
struct Differences {
    calls: usize,
    traces: usize,
    merged: usize,
    trained: usize,
    /// Recorded against the same call made directly.
    repeat: Spread,
    /// Sampled against scored, without Polar.
    noise: Spread,
    /// Recorded in a trace against the trace scored.
    scored: Spread,
    /// The same with one wrong token in the context.
    control: Spread,
}

#[derive(Default)]
pub(crate) struct Spread {
    pub(crate) most: f32,
    sum: f64,
    count: usize,
}

impl Spread {
    pub(crate) fn add(&mut self, one: &[f32], other: &[f32]) {
        assert_eq!(one.len(), other.len());
        for (one, other) in one.iter().zip(other) {
            let difference = (one - other).abs();
            assert!(difference.is_finite());
            self.most = self.most.max(difference);
            self.sum += f64::from(difference);
            self.count += 1;
        }
    }

    pub(crate) fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }
}

impl Differences {
    fn print(&self, kind: EngineKind, dialect: Dialect, stream: bool) {
        let form = if stream { "streamed" } else { "unary" };
        println!(
            "{} {dialect:?} {form}: {} calls, {} traces ({} merged), {} trained tokens",
            kind.name(),
            self.calls,
            self.traces,
            self.merged,
            self.trained
        );
        for (what, spread) in [
            ("recorded - repeated", &self.repeat),
            ("engine's own: sampled - scored", &self.noise),
            ("trace - scored", &self.scored),
            ("trace - scored with one wrong id", &self.control),
        ] {
            println!(
                "  |{what}| max {:.2e}, mean {:.2e}, {} tokens",
                spread.most,
                spread.mean(),
                spread.count
            );
        }
    }

    fn check(&self) {
        assert_eq!(self.calls, TURNS * CONVERSATIONS as usize);
        assert!(self.merged > 0, "no two calls were merged");
        assert!(self.repeat.most <= ROUNDING, "a repeated call has other logprobs");
        let bound = self.noise.most.max(ROUNDING);
        assert!(self.scored.most <= bound, "{} is above the noise {bound}", self.scored.most);
        // Or the comparison could not tell a wrong trace from a right one.
        assert!(self.control.most > 20.0 * bound, "the check sees no wrong ids");
    }
}
