//! Several engines behind one gateway: sessions stay where their prefix is, and lose nothing when
//! an engine dies, hangs, is drained, or gets new weights.

use crate::{HandEngine, Rig, simulated_model, within};
use polar_engine::{Engine, EngineOptions, TokenModeOptions, same_prompts};
use polar_gateway::{ENGINE_MOVES, Gateway, GatewayConfig, SessionHandle, WeightedEngine};
use polar_record::{ENGINE, RecordedSession};
use polar_simulator::{Policy, SimulatorConfig, SimulatorHandle, Speed, WeightFault};
use polar_trajectory::{build, verify};
use polar_types::{
    EngineState, EngineStatus, TrajectoryStrategy, UpdateMode, WeightSource, WeightState,
    WeightUpdateRequest,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

const POLICY: &str = "
name: turns
default: {reasoning: 'One two three.', text: 'Turn {{ turns }}, one two three four five six seven.'}
";

/// A gateway before simulated engines.
struct Engines {
    rig: Arc<Rig>,
    simulators: Vec<Option<SimulatorHandle>>,
    urls: Vec<String>,
    token_mode: Option<TokenModeOptions>,
}

fn simulated(listen: SocketAddr, pace: Option<f64>) -> SimulatorConfig {
    let speed = Speed { tokens_per_second: pace, ..Speed::default() };
    let policy = Policy::from_yaml(POLICY).unwrap();
    SimulatorConfig { listen, policy, speed, ..SimulatorConfig::default() }
}

async fn simulator(pace: Option<f64>) -> SimulatorHandle {
    let _ = rustls::crypto::ring::default_provider().install_default();
    polar_simulator::serve(simulated(([127, 0, 0, 1], 0).into(), pace)).await.unwrap()
}

async fn connect(url: &str, token_mode: &Option<TokenModeOptions>) -> Arc<dyn Engine> {
    let options = EngineOptions { token_mode: token_mode.clone(), ..EngineOptions::default() };
    polar_engine::connect(url, options).await.unwrap()
}

impl Engines {
    async fn start(weights: &[f64], token_mode: Option<TokenModeOptions>, pace: f64) -> Self {
        Self::with_patience(weights, token_mode, pace, Duration::from_secs(5)).await
    }

    /// Engines that are given so long for the answer whether they are there.
    async fn with_patience(
        weights: &[f64],
        token_mode: Option<TokenModeOptions>,
        pace: f64,
        engine_answer: Duration,
    ) -> Self {
        let (mut engines, mut simulators, mut urls) = (Vec::new(), Vec::new(), Vec::new());
        for weight in weights {
            let simulator = simulator(Some(pace)).await;
            let engine = connect(&simulator.url(), &token_mode).await;
            engines.push(WeightedEngine { engine, weight: *weight });
            urls.push(simulator.url());
            simulators.push(Some(simulator));
        }
        let config = GatewayConfig {
            engine_questions: Duration::from_millis(50),
            engine_answer,
            ..GatewayConfig::default()
        };
        let gateway = Gateway::for_engines(config, engines).unwrap();
        tokio::spawn(gateway.engines().clone().ask_regularly());
        let rig = Arc::new(Rig::serve(gateway, Arc::new(HandEngine::default())).await);
        Self { rig, simulators, urls, token_mode }
    }

    fn engine(&self, index: usize) -> Arc<dyn Engine> {
        let engines = self.rig.gateway.engines().engines();
        engines.into_iter().find(|engine| engine.info().url == self.urls[index]).unwrap()
    }

    fn status(&self, index: usize) -> EngineStatus {
        let all = self.rig.gateway.engines().status();
        all.into_iter().find(|status| status.engine == self.urls[index]).unwrap()
    }

    async fn becomes(&self, index: usize, state: EngineState) {
        within("its state", async {
            let mut looks = tokio::time::interval(Duration::from_millis(5));
            while self.status(index).state != state {
                looks.tick().await;
            }
        })
        .await;
    }

    /// So many calls are under way there.
    async fn is_busy(&self, index: usize, calls: u32) {
        within("calls under way", async {
            let mut looks = tokio::time::interval(Duration::from_millis(2));
            while self.status(index).in_flight < calls {
                looks.tick().await;
            }
        })
        .await;
    }

    /// Waits until so many sessions have an engine each.
    async fn have_engines(&self, sessions: u32) {
        within("sessions with an engine", async {
            let mut looks = tokio::time::interval(Duration::from_millis(2));
            let placed = || (0..self.urls.len()).map(|index| self.status(index).sessions).sum();
            while sessions > placed() {
                looks.tick().await;
            }
        })
        .await;
    }

    /// A call of a session that goes well.
    async fn answered(&self, session: &SessionHandle) {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
        let sent = self.rig.post("/v1/chat/completions", session.secret(), &body).send();
        let response = within("a reply", sent).await.unwrap();
        let (status, text) = (response.status(), response.text().await.unwrap());
        assert_eq!(status, 200, "{text}");
    }

    fn address(&self, index: usize) -> SocketAddr {
        self.urls[index].strip_prefix("http://").unwrap().parse().unwrap()
    }

    async fn kill(&mut self, index: usize) {
        self.simulators[index].take().unwrap().shutdown().await;
    }

    async fn revive(&mut self, index: usize) {
        let config = simulated(self.address(index), None);
        self.simulators[index] = Some(polar_simulator::serve(config).await.unwrap());
    }

    /// Agents that talk for so many turns, each in a session of its own.
    fn agents(&self, names: std::ops::Range<usize>, turns: usize) -> JoinSet<Agent> {
        let mut agents = JoinSet::new();
        for number in names {
            let name = format!("s{number}");
            let session = self.rig.open(&name);
            let agent =
                Agent { name, session, history: Vec::new(), failed: 0, trace: number % 2 == 0 };
            agents.spawn(agent.talk(Arc::clone(&self.rig), turns));
        }
        agents
    }

    /// Where the calls of an agent were, by their order in the journal, with what was checked of
    /// them: each reply is trained once, by the ids that the engine had.
    fn checked(&self, agent: &Agent, turns: usize) -> Vec<String> {
        agent.session.close().unwrap();
        let recorded = self.rig.recorded(&agent.name);
        let built = build(&recorded, TrajectoryStrategy::PrefixMerging, None);
        assert_eq!(verify(&built.trajectory, &recorded), Ok(()));
        let answered: Vec<_> =
            recorded.calls().iter().filter(|call| call.meta.error.is_none()).collect();
        assert_eq!(answered.len(), turns, "{}", agent.name);
        assert_eq!(recorded.calls().len() - turns, agent.failed, "each call has one record");
        let sampled: usize =
            answered.iter().map(|call| recorded.sampled_ids(call).unwrap().len()).sum();
        let trained: usize = built
            .trajectory
            .traces
            .iter()
            .map(|trace| trace.loss_mask.iter().filter(|mask| **mask == 1).count())
            .sum();
        assert_eq!(trained, sampled, "{}: trained once", agent.name);
        for trace in &built.trajectory.traces {
            let last = trace.calls.last().unwrap();
            let call = recorded.calls().iter().find(|call| call.meta.call_id == *last).unwrap();
            assert_eq!(trace.sampling["engine"]["url"], call.meta.extra[ENGINE]);
        }
        answered.iter().map(|call| call.meta.extra[ENGINE].as_str().unwrap().to_owned()).collect()
    }
}

/// An agent that asks again when its engine dies under a reply.
struct Agent {
    name: String,
    session: SessionHandle,
    history: Vec<Value>,
    failed: usize,
    trace: bool,
}

impl Agent {
    async fn talk(mut self, rig: Arc<Rig>, turns: usize) -> Self {
        for turn in 0..turns {
            let asked = format!("{}, question {turn}", self.name);
            self.history.push(json!({"role": "user", "content": asked}));
            loop {
                let body = json!({"model": "m", "stream": self.trace, "messages": self.history});
                let sent = rig.post("/v1/chat/completions", self.session.secret(), &body).send();
                let response = within("the reply", sent).await.unwrap();
                let status = response.status();
                let text = within("the body", response.text()).await.unwrap_or_default();
                if let Some(message) = reply_in(&text).filter(|_| status == 200) {
                    self.history.push(message);
                    break;
                }
                self.failed += 1;
                assert!(self.failed < 20, "{}: {status} {text}", self.name);
            }
        }
        self
    }
}

/// The whole reply, streamed or not; none of one that broke off.
fn reply_in(body: &str) -> Option<Value> {
    if let Ok(whole) = serde_json::from_str::<Value>(body) {
        let content = whole["choices"][0]["message"]["content"].as_str()?;
        return Some(json!({"role": "assistant", "content": content}));
    }
    if !body.trim_end().ends_with("[DONE]") || body.contains("\"error\":{") {
        return None;
    }
    let pieces = body.lines().filter_map(|line| line.strip_prefix("data: "));
    let chunks = pieces.filter_map(|piece| serde_json::from_str::<Value>(piece).ok());
    let text: String = chunks
        .filter_map(|chunk| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned()))
        .collect();
    Some(json!({"role": "assistant", "content": text}))
}

async fn all(mut agents: JoinSet<Agent>) -> Vec<Agent> {
    let mut done = Vec::new();
    while let Some(agent) = within("an agent", agents.join_next()).await {
        done.push(agent.unwrap());
    }
    done
}

fn moves(recorded: &RecordedSession) -> usize {
    let of = |call: &polar_record::RecordedCall| {
        call.meta.extra.get(ENGINE_MOVES).and_then(Value::as_array).map_or(0, Vec::len)
    };
    recorded.calls().iter().map(of).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_2_a_session_stays_at_the_engine_that_holds_its_prefix() {
    let engines = Engines::start(&[2.0, 1.0, 1.0], Some(simulated_model()), 2000.0).await;
    let agents = all(engines.agents(0..16, 5)).await;
    let mut sessions: BTreeMap<String, usize> = BTreeMap::new();
    for agent in &agents {
        let places = engines.checked(agent, 5);
        assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
        let recorded = engines.rig.recorded(&agent.name);
        assert_eq!(recorded.header.engine["engines"], json!(engines.urls));
        *sessions.entry(places[0].clone()).or_default() += 1;
    }
    let spread: Vec<usize> = engines.urls.iter().map(|url| sessions[url]).collect();
    assert_eq!(spread, [8, 4, 4]);
    for (index, sessions) in spread.into_iter().enumerate() {
        let status = engines.status(index);
        assert_eq!(status.calls, 5 * sessions as u64);
        assert_eq!((status.sessions, status.in_flight, status.moved_away), (0, 0, 0));
    }
}

async fn killed(token_mode: Option<TokenModeOptions>) {
    let mut engines = Engines::start(&[1.0, 1.0, 1.0], token_mode, 300.0).await;
    let agents = engines.agents(0..12, 6);
    engines.have_engines(12).await;
    engines.is_busy(1, 3).await;
    engines.kill(1).await;
    let agents = all(agents).await;
    assert_eq!(engines.status(1).state, EngineState::Down);
    assert_eq!(engines.rig.gateway.engines().outage(), None);
    let (mut moved, mut at_one) = (0, 0);
    for agent in &agents {
        let places = engines.checked(agent, 6);
        // It stays where it went, and comes back to nobody.
        let changes = places.windows(2).filter(|two| two[0] != two[1]).count();
        assert!(changes <= 1, "{places:?}");
        let recorded = engines.rig.recorded(&agent.name);
        moved += moves(&recorded);
        let first = &recorded.calls()[0].meta.extra;
        let left = first.get(ENGINE_MOVES).map(|moves| &moves[0]["from"]);
        at_one += usize::from(*left.unwrap_or(&first[ENGINE]) == engines.urls[1]);
    }
    assert_eq!(at_one, 4);
    // All but one that had its last reply before.
    assert!((3..=4).contains(&moved), "{moved}");
    assert_eq!(engines.status(1).moved_away, moved as u64);

    // Back by itself, it gets new sessions.
    engines.revive(1).await;
    engines.becomes(1, EngineState::Ready).await;
    let calls = engines.status(1).calls;
    for agent in all(engines.agents(20..26, 1)).await {
        engines.checked(&agent, 1);
    }
    assert!(engines.status(1).calls > calls);
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_1_sessions_of_an_engine_that_dies_go_on_at_another_and_lose_nothing() {
    killed(Some(simulated_model())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_1_nor_do_they_in_chat_mode() {
    killed(None).await;
}

/// It takes connections and answers nothing. What has no reply yet goes to another engine.
#[tokio::test(flavor = "multi_thread")]
async fn promise_6_calls_of_an_engine_that_hangs_go_to_another() {
    let (model, answer) = (Some(simulated_model()), Duration::from_millis(200));
    let mut engines = Engines::with_patience(&[1.0, 1.0], model, 2000.0, answer).await;
    let sessions = [engines.rig.open("a"), engines.rig.open("b")];
    for session in &sessions {
        engines.answered(session).await;
    }
    let address = engines.address(0);
    engines.simulators[0].take().unwrap().shutdown().await;
    let _hangs = TcpListener::bind(address).await.unwrap();
    let [a, b] = &sessions;
    tokio::join!(engines.answered(a), engines.answered(b));
    assert_eq!(engines.status(0).state, EngineState::Down);
    for session in sessions {
        session.close().unwrap();
    }
    for name in ["a", "b"] {
        let recorded = engines.rig.recorded(name);
        assert_eq!(recorded.calls().len(), 2);
        assert_eq!(recorded.calls()[1].meta.extra[ENGINE], engines.urls[1]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_1_a_drained_engine_ends_its_calls_and_leaves_with_nothing_lost() {
    let engines = Engines::start(&[1.0, 1.0], Some(simulated_model()), 300.0).await;
    let pool = engines.rig.gateway.engines().clone();
    let cancelled = || engines.simulators[0].as_ref().unwrap().stats().cancelled;
    let before = cancelled();
    let agents = engines.agents(0..8, 6);
    engines.is_busy(0, 3).await;
    pool.drain(&engines.urls[0]).unwrap();
    let begun = engines.status(0);
    assert_eq!(begun.state, EngineState::Draining);
    let last = pool.drain(&engines.urls[1]).unwrap_err().to_string();
    assert!(last.contains("only engine that takes calls"), "{last}");
    pool.remove(&engines.urls[0]).unwrap();
    let agents = all(agents).await;
    for agent in &agents {
        engines.checked(agent, 6);
        assert_eq!(agent.failed, 0);
    }
    let left: Vec<_> = pool.status().into_iter().map(|status| status.engine).collect();
    assert_eq!(left, engines.urls[1..]);
    assert_eq!(cancelled(), before, "what was under way came to its end");
    let unknown = pool.resume(&engines.urls[0]).unwrap_err().to_string();
    assert!(unknown.contains(&engines.urls[1]), "{unknown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_added_gets_new_sessions() {
    let mut engines = Engines::start(&[1.0], Some(simulated_model()), 300.0).await;
    let pool = engines.rig.gateway.engines().clone();
    let early = engines.agents(0..4, 6);
    engines.is_busy(0, 3).await;
    let more = simulator(None).await;
    let engine = connect(&more.url(), &engines.token_mode).await;
    pool.add(WeightedEngine { engine: Arc::clone(&engine), weight: 3.0 }).unwrap();
    let twice = pool.add(WeightedEngine { engine, weight: 1.0 }).unwrap_err().to_string();
    assert!(twice.contains("there already"), "{twice}");
    engines.urls.push(more.url());
    engines.simulators.push(Some(more));
    let late = engines.agents(4..8, 6);
    for agent in all(early).await {
        // Its first call may be older than the second engine.
        agent.session.close().unwrap();
        assert_eq!(moves(&engines.rig.recorded(&agent.name)), 0);
    }
    for agent in all(late).await {
        assert_eq!(engines.checked(&agent, 6), vec![engines.urls[1].clone(); 6]);
    }
    // And the one that was there before the other may go, with what all prompts are made with.
    pool.remove(&engines.urls[0]).unwrap();
    for agent in all(engines.agents(8..10, 2)).await {
        engines.checked(&agent, 2);
    }
}

/// One engine hangs in an update of weights. Its sessions go on at the other, and every token says
/// by which weights it was sampled.
#[tokio::test(flavor = "multi_thread")]
async fn promise_6_sessions_leave_an_engine_that_hangs_with_new_weights() {
    let engines = Engines::start(&[1.0, 1.0], Some(simulated_model()), 60.0).await;
    engines.simulators[0].as_ref().unwrap().set_weight_fault(Some(WeightFault::Hang));
    let idle = engines.rig.open("idle");
    engines.answered(&idle).await;
    assert_eq!(engines.status(0).sessions, 1);
    let agents = engines.agents(0..7, 8);
    engines.is_busy(0, 3).await;
    engines.is_busy(1, 3).await;
    let update = WeightUpdateRequest {
        version: "17".to_owned(),
        source: WeightSource::Disk { path: "/checkpoints/17".to_owned() },
        mode: UpdateMode::Pause,
        deadline_seconds: 10.0,
    };
    let bring = |index: usize| {
        let (weights, update) = (engines.engine(index).weights().unwrap().clone(), update.clone());
        tokio::spawn(async move { weights.bring_to(&update, false).await })
    };
    let (hangs, goes_on) = (bring(0), bring(1));
    within("the update of the other", goes_on).await.unwrap();
    assert_eq!(engines.status(1).weight_version.as_deref(), Some("17"));
    // Only those wait for the deadline of the first that stand still in it.
    engines.answered(&idle).await;
    assert!(!hangs.is_finished());
    idle.close().unwrap();
    let recorded = engines.rig.recorded("idle");
    let moved = &recorded.calls()[1].meta.extra;
    assert_eq!(moved[ENGINE], engines.urls[1]);
    assert_eq!(moved[ENGINE_MOVES][0]["why"], "it is being given new weights");
    within("the update that hangs", hangs).await.unwrap();
    let told = engines.engine(0).weights().unwrap().told().borrow().engine.clone();
    assert_eq!(told.state, WeightState::Fenced, "{told:?}");
    for agent in all(agents).await {
        agent.session.close().unwrap();
        let recorded = engines.rig.recorded(&agent.name);
        let built = build(&recorded, TrajectoryStrategy::PrefixMerging, None);
        assert_eq!(verify(&built.trajectory, &recorded), Ok(()));
        for call in recorded.calls().iter().filter(|call| call.meta.error.is_none()) {
            let spans = &call.meta.weight_versions;
            let length = recorded.sampled_ids(call).unwrap().len() as u64;
            assert_eq!(spans.last().map(|span| span.end), Some(length), "{spans:?}");
            let is_at_the_first = call.meta.extra[ENGINE] == engines.urls[0];
            let are_new = spans.iter().any(|span| span.version.as_deref() == Some("17"));
            assert!(!(is_at_the_first && are_new), "{spans:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_3_engines_that_are_not_the_same_are_refused_with_what_differs() {
    let one = simulator(None).await;
    let refusal = async |config: SimulatorConfig, token_mode: Option<TokenModeOptions>| {
        let other = polar_simulator::serve(config).await.unwrap();
        let engines = [connect(&one.url(), &None).await, connect(&other.url(), &token_mode).await];
        let engines = engines.into_iter().map(WeightedEngine::from).collect();
        Gateway::for_engines(GatewayConfig::default(), engines).err().unwrap().to_string()
    };
    let plain = SimulatorConfig::default;
    let model = SimulatorConfig { model: "another".to_owned(), ..plain() };
    let said = refusal(model, None).await;
    assert!(said.contains("their model differs (simulated, another)"), "{said}");
    let window = SimulatorConfig { context_window: 4096, ..plain() };
    let said = refusal(window, None).await;
    assert!(said.contains("their context window differs (131072, 4096)"), "{said}");
    let said = refusal(plain(), Some(simulated_model())).await;
    assert!(said.contains("chat mode"), "{said}");
    let weightless = WeightedEngine { engine: connect(&one.url(), &None).await, weight: 0.0 };
    let said = Gateway::for_engines(GatewayConfig::default(), vec![weightless]);
    assert!(said.err().unwrap().to_string().contains("a number above 0"));
}

/// In chat mode engines render by themselves, and have to do it alike.
#[tokio::test(flavor = "multi_thread")]
async fn promise_2_engines_that_render_otherwise_are_found_out() {
    let (one, same) = (simulator(None).await, simulator(None).await);
    let mut config = SimulatorConfig::default();
    config.chat_template_kwargs.insert("enable_thinking".to_owned(), json!(false));
    let other = polar_simulator::serve(config).await.unwrap();
    let [one, same, other] = [
        connect(&one.url(), &None).await,
        connect(&same.url(), &None).await,
        connect(&other.url(), &None).await,
    ];
    same_prompts(one.as_ref(), same.as_ref()).await.unwrap();
    let said = same_prompts(one.as_ref(), other.as_ref()).await.unwrap_err().to_string();
    assert!(said.contains("different prompts of a question"), "{said}");
}
