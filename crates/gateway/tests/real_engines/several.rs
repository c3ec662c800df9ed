//! Two real servers behind one gateway: sessions stay where their prefix is, and those of one that
//! is killed go on at the other.

use crate::client::Harness;
use crate::conversations::{header, one_id_changed, trained};
use crate::engine_under_test::{EngineUnderTest, variable};
use polar_convo::Dialect;
use polar_engine::EngineKind;
use polar_gateway::{ENGINE_MOVES, Gateway, GatewayConfig, SessionHandle, SessionOptions};
use polar_record::{ENGINE, RecordedSession};
use polar_trajectory::{build, verify};
use polar_types::{EngineState, HistoryPolicy, SamplingPins, TrajectoryStrategy};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const SESSIONS: usize = 4;

/// A server of the test's own, as the one that it was given.
struct OwnServer {
    child: Child,
    url: String,
}

impl OwnServer {
    async fn start() -> Self {
        let command: Value = serde_json::from_str(&variable("POLAR_TEST_LLAMA_COMMAND")).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let words = command["line"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
        let port = port.to_string();
        let mut words = words.map(|word| if word == "PORT" { port.as_str() } else { word });
        let mut line = Command::new(words.next().unwrap());
        for (name, value) in command["environment"].as_object().unwrap() {
            line.env(name, value.as_str().unwrap());
        }
        line.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let own = Self { child: line.spawn().unwrap(), url: format!("http://127.0.0.1:{port}") };
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let health = format!("{}/health", own.url);
        let healthy = async {
            let mut looks = tokio::time::interval(Duration::from_millis(50));
            while !http.get(&health).send().await.is_ok_and(|answer| answer.status().is_success()) {
                looks.tick().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), healthy).await.unwrap();
        own
    }

    /// `kill -9`, and its end.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Agent {
    session: SessionHandle,
    harness: Harness,
}

async fn turn_of_all(agents: &mut [Agent], said: &str) {
    let turns = agents.iter_mut().map(|agent| agent.harness.insist(said));
    futures_util::future::join_all(turns).await;
}

/// Where the calls of a session were that went well, by their order.
fn places(recorded: &RecordedSession) -> Vec<&str> {
    let answered = recorded.calls().iter().filter(|call| call.meta.error.is_none());
    answered.map(|call| call.meta.extra[ENGINE].as_str().unwrap()).collect()
}

fn read(folder: &Path, number: usize) -> RecordedSession {
    RecordedSession::read(folder.join(format!("s{number}"))).unwrap()
}

pub(crate) async fn sessions_outlive_one_of_two_servers() {
    let given = EngineUnderTest::in_token_mode(EngineKind::LlamaCpp).await;
    let mut own = OwnServer::start().await;
    let other = EngineUnderTest::at_in_token_mode(own.url.clone()).await;
    let urls = [given.url.clone(), other.url.clone()];
    let config =
        GatewayConfig { engine_questions: Duration::from_millis(50), ..GatewayConfig::default() };
    let engines = vec![given.engine.clone().into(), other.engine.clone().into()];
    let gateway = Gateway::for_engines(config, engines).unwrap();
    tokio::spawn(gateway.engines().clone().ask_regularly());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let shutdown = CancellationToken::new();
    tokio::spawn(polar_gateway::serve_tcp(gateway.router(), listener, shutdown.clone()));
    let folder = tempfile::tempdir().unwrap();
    let open = |number: usize| {
        let sampling = SamplingPins { temperature: Some(1.0), ..SamplingPins::default() };
        let journal = folder.path().join(format!("s{number}"));
        let history = HistoryPolicy::Sampled;
        let options = SessionOptions { header: header(), journal, sampling, history };
        let session = gateway.open_session(options).unwrap();
        let mut harness =
            Harness::new(&base, session.secret(), Dialect::Chat, number.is_multiple_of(2));
        harness.limit = 24;
        Agent { session, harness }
    };
    let mut agents: Vec<Agent> = (0..SESSIONS).map(open).collect();

    turn_of_all(&mut agents, "How is the weather in Oslo?").await;
    turn_of_all(&mut agents, "And in Paris?").await;
    let before = gateway.engines().status();
    let sessions: Vec<u32> = before.iter().map(|status| status.sessions).collect();
    assert_eq!(sessions, [2, 2], "{before:?}");

    own.kill();
    turn_of_all(&mut agents, "Look again, please.").await;
    turn_of_all(&mut agents, "Is it warmer in Rome than in Tokyo?").await;
    let after = gateway.engines().status();
    assert_eq!(after[1].state, EngineState::Down, "{after:?}");
    assert_eq!((after[0].sessions, after[1].moved_away), (4, 2), "{after:?}");
    assert_eq!(gateway.engines().outage(), None);

    let mut moved = 0;
    for (number, agent) in agents.iter().enumerate() {
        agent.session.close().unwrap();
        let recorded = read(folder.path(), number);
        let places = places(&recorded);
        assert_eq!(places.len(), 4, "session {number}: {places:?}");
        assert_eq!(places[0], places[1], "session {number} did not stay");
        assert_eq!(places[2..], [urls[0].as_str(); 2], "session {number}");
        let moves: Vec<&Value> =
            recorded.calls().iter().filter_map(|call| call.meta.extra.get(ENGINE_MOVES)).collect();
        let was_moved = places[0] == urls[1];
        assert_eq!(moves.len(), usize::from(was_moved), "{moves:?}");
        moved += moves.len();
        let built = build(&recorded, TrajectoryStrategy::PrefixMerging, None).trajectory;
        verify(&built, &recorded).unwrap();
        assert_eq!(built.traces.len(), 1, "session {number}: {:?}", built.forks);
        scored(&given, &built.traces[0]).await;
    }
    assert_eq!(moved, 2);
    shutdown.cancel();
}

/// The server that is left scores the whole trace as it was sampled, the part of the other too.
async fn scored(given: &EngineUnderTest, trace: &polar_types::Trace) {
    let ids = [trace.prompt_ids.as_slice(), &trace.response_ids].concat();
    let largest = |own: &[f32], scores: &[f32]| {
        let apart = own.iter().zip(scores).map(|(own, score)| (own - score).abs());
        apart.fold(0.0_f32, f32::max)
    };
    let (own, scores) = trained(trace, &given.scores(&ids, trace.prompt_ids.len()).await);
    let right = largest(&own, &scores);
    let changed = given.scores(&one_id_changed(&ids), trace.prompt_ids.len()).await;
    let wrong = largest(&own, &trained(trace, &changed).1);
    println!("  |Δlogprob| max {right:.2e}, with one wrong id {wrong:.2e}");
    assert!(right < 1e-3 && wrong > 20.0 * right, "{right} {wrong}");
}
