//! New weights under 64 calls, in each mode: no call fails, every token says which weights sampled
//! it, by the engine's own log, and none is sampled for nothing.

use crate::{Rig, dialects, say, simulated_model, within};
use polar_engine::{CONTINUED, EngineOptions, Timeouts, TokenModeOptions, Weights};
use polar_gateway::{GatewayConfig, SessionHandle};
use polar_record::RecordedSession;
use polar_simulator::{
    Context, Policy, SampledTokens, SimulatorConfig, SimulatorHandle, Speed, Vocabulary,
    WeightFault,
};
use polar_types::{UpdateMode, WeightSource, WeightSpan, WeightState, WeightUpdateRequest};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Long enough to be under way when weights come.
const POLICY: &str = "
name: long
default: {reasoning: 'One two three four five six seven eight nine ten.', \
text: 'one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen \
sixteen seventeen eighteen nineteen twenty twenty-one twenty-two twenty-three twenty-four \
twenty-five twenty-six twenty-seven twenty-eight twenty-nine thirty'}
";

const CALLS: u64 = 64;

pub(crate) struct Served {
    rig: Rig,
    simulator: SimulatorHandle,
    weights: Arc<Weights>,
    session: SessionHandle,
}

fn slow(listen: SocketAddr, pace: f64) -> SimulatorConfig {
    SimulatorConfig {
        listen,
        policy: Policy::from_yaml(POLICY).unwrap(),
        speed: Speed { tokens_per_second: Some(pace), ..Speed::default() },
        ..SimulatorConfig::default()
    }
}

impl Served {
    async fn start(token_mode: Option<TokenModeOptions>, pace: f64) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let simulator =
            polar_simulator::serve(slow(([127, 0, 0, 1], 0).into(), pace)).await.unwrap();
        let options = EngineOptions { token_mode, ..EngineOptions::default() };
        let engine = polar_engine::connect(&simulator.url(), options).await.unwrap();
        let weights = Arc::clone(engine.weights().unwrap());
        let by_hand = Arc::new(crate::HandEngine::default());
        let config =
            GatewayConfig { max_calls_per_session: 2 * CALLS as usize, ..GatewayConfig::default() };
        let rig = Rig::before(config, engine, by_hand).await;
        let session = rig.open("s");
        Self { rig, simulator, weights, session }
    }

    /// So many calls of all dialects, streamed and whole, all of which are being sampled.
    async fn calls(&self, count: u64) -> Vec<JoinHandle<(u16, String)>> {
        let before = self.simulator.sampled().len();
        let bodies: Vec<_> = [true, false].into_iter().flat_map(dialects).collect();
        let calls = (0..count).map(|number| {
            let (path, mut body) = bodies[number as usize % bodies.len()].clone();
            say(&mut body, format!("call {number}"));
            crate::limit(&mut body, 400);
            self.ask(path, &body)
        });
        let calls = calls.collect();
        within("64 calls under way", async {
            let mut looks = tokio::time::interval(Duration::from_millis(5));
            while ((self.simulator.sampled().len() - before) as u64) < count {
                looks.tick().await;
            }
        })
        .await;
        calls
    }

    fn ask(&self, path: &str, body: &serde_json::Value) -> JoinHandle<(u16, String)> {
        let request = self.rig.post(path, self.session.secret(), body);
        tokio::spawn(async move {
            let response = request.send().await.unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        })
    }

    fn state(&self) -> WeightState {
        self.weights.told().borrow().engine.state
    }

    fn reason(&self) -> String {
        self.weights.told().borrow().engine.reason.clone().unwrap_or_default()
    }

    async fn is_paused(&self) -> bool {
        let page = self.rig.client.get(format!("{}/is_paused", self.simulator.url()));
        let page: serde_json::Value = page.send().await.unwrap().json().await.unwrap();
        page["is_paused"] == true
    }

    /// What a node does once it knows what its engine is to have.
    fn keep(&self, update: &WeightUpdateRequest) -> JoinHandle<()> {
        let (weights, update) = (Arc::clone(&self.weights), update.clone());
        tokio::spawn(async move {
            loop {
                weights.due().await;
                weights.look(&update).await;
            }
        })
    }

    async fn becomes(&self, state: WeightState) {
        let mut told = self.weights.told();
        within("its state", told.wait_for(|told| told.engine.state == state)).await.unwrap();
    }
}

async fn all_answered(calls: Vec<JoinHandle<(u16, String)>>) {
    for call in calls {
        let (status, text) = within("a reply", call).await.unwrap();
        assert_eq!(status, 200, "{text}");
        assert!(!text.contains("\"error\":{") && !text.contains("event: error"), "{text}");
    }
}

fn update(version: &str, mode: UpdateMode) -> WeightUpdateRequest {
    WeightUpdateRequest {
        version: version.to_owned(),
        source: WeightSource::Disk { path: format!("/checkpoints/{version}") },
        mode,
        deadline_seconds: 20.0,
    }
}

/// What the engine's log says of a call: runs of tokens by the weights that sampled them.
fn logged(log: &[SampledTokens], name: &str) -> Vec<WeightSpan> {
    let rest = format!("{name}-");
    let mut spans: Vec<WeightSpan> = Vec::new();
    let own = log.iter().filter(|run| run.request_id == name || run.request_id.starts_with(&rest));
    for run in own {
        let (version, tokens) = (Some(run.weights.to_string()), run.tokens as u64);
        match spans.last_mut() {
            Some(last) if last.version == version => last.end += tokens,
            last => {
                let start = last.map_or(0, |last| last.end);
                spans.push(WeightSpan { version, start, end: start + tokens });
            }
        }
    }
    spans.retain(|span| span.end > span.start);
    spans
}

/// Each call's spans are the engine's own, its tokens all that were sampled for it, and each of
/// its logprobs that of the weights it names behind the context it names. Returns the calls that
/// were sampled by two versions, and those that were sampled on.
fn checked(recorded: &RecordedSession, log: &[SampledTokens]) -> (u64, u64) {
    let size = Vocabulary::load().unwrap().size();
    let (mut mixed, mut continued) = (0, 0);
    for call in recorded.calls() {
        assert_eq!(call.meta.error, None);
        assert_eq!(call.meta.finish_reason, "stop");
        let name = call.meta.extra["engine_request_id"].as_str().unwrap();
        let spans = &call.meta.weight_versions;
        assert_eq!(*spans, logged(log, name), "{name}");
        let sampled = recorded.sampled_ids(call).unwrap();
        assert_eq!(spans.last().unwrap().end, sampled.len() as u64);
        let logprobs = recorded.record(call).logprobs;
        let mut context = Context::of(&recorded.prompt_ids(call).unwrap());
        for (place, (id, logprob)) in sampled.iter().zip(logprobs).enumerate() {
            let span = spans.iter().find(|span| (place as u64) < span.end).unwrap();
            let chances = context.distribution(span.version.as_deref().unwrap(), size);
            assert_eq!(logprob, Some(chances.of(*id).value), "{name}, token {place}");
            context = context.then(*id);
        }
        mixed += u64::from(spans.len() > 1);
        continued += u64::from(call.meta.extra.contains_key(CONTINUED));
    }
    (mixed, continued)
}

async fn in_mode(mode: UpdateMode, expected: impl Fn(u64, u64)) {
    let served = Served::start(Some(simulated_model()), 60.0).await;
    let calls = served.calls(CALLS).await;
    let bring = {
        let weights = Arc::clone(&served.weights);
        tokio::spawn(async move { weights.bring_to(&update("17", mode), false).await })
    };
    within("the update", bring).await.unwrap();
    assert_eq!(served.state(), WeightState::Current, "{}", served.reason());
    assert!(!served.is_paused().await);
    let later = served.calls(4).await;
    all_answered(calls.into_iter().chain(later).collect()).await;
    served.session.close().unwrap();
    let log = served.simulator.sampled();
    let (mixed, continued) = checked(&served.rig.recorded("s"), &log);
    expected(mixed, continued);
    // By the node's count as well.
    within("its look", served.weights.due()).await;
    served.weights.look(&update("17", mode)).await;
    let told = served.weights.told().borrow().engine.clone();
    assert_eq!(told.calls.tokens_wasted, 0);
    assert_eq!(told.calls.in_flight, CALLS);
    assert_eq!(told.version.as_deref(), Some("17"));
    assert_eq!(told.calls.continued, continued);
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_1_calls_that_are_drained_are_of_the_old_weights() {
    in_mode(UpdateMode::Drain, |mixed, continued| assert_eq!((mixed, continued), (0, 0))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_1_calls_that_stand_still_go_on_by_the_new_weights() {
    in_mode(UpdateMode::Pause, |mixed, continued| {
        assert!(mixed > CALLS / 2, "{mixed} calls went on");
        assert_eq!(continued, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_1_calls_that_are_ended_are_sampled_on_and_nothing_is_wasted() {
    in_mode(UpdateMode::Continue, |mixed, continued| {
        assert!(mixed > CALLS / 2 && continued >= mixed, "{mixed} calls of {continued} went on");
    })
    .await;
}

/// In chat mode the engine does not say where a reply changed weights, and nobody guesses.
#[tokio::test(flavor = "multi_thread")]
async fn promise_3_in_chat_mode_a_reply_that_saw_both_weights_claims_neither() {
    for mode in [UpdateMode::Pause, UpdateMode::Continue] {
        let served = Served::start(None, 60.0).await;
        let calls = served.calls(CALLS).await;
        within("the update", served.weights.bring_to(&update("17", mode), false)).await;
        assert_eq!(served.state(), WeightState::Current, "{}", served.reason());
        all_answered(calls).await;
        served.session.close().unwrap();
        let (recorded, log) = (served.rig.recorded("s"), served.simulator.sampled());
        let mut unknown = 0;
        for call in recorded.calls() {
            let name = call.meta.extra["engine_request_id"].as_str().unwrap();
            let (truth, said) = (logged(&log, name), &call.meta.weight_versions);
            match truth.len() {
                1 if said.iter().all(|span| span.version.is_some()) => assert_eq!(*said, truth),
                _ => {
                    assert!(
                        said.iter().all(|span| span.version.is_none()),
                        "{said:?} of {truth:?}"
                    );
                    unknown += 1;
                }
            }
        }
        assert!(unknown > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_chat_mode_drained_calls_say_their_version() {
    let served = Served::start(None, 100.0).await;
    let calls = served.calls(16).await;
    within("the update", served.weights.bring_to(&update("17", UpdateMode::Drain), false)).await;
    let later = served.calls(4).await;
    all_answered(calls.into_iter().chain(later).collect()).await;
    served.session.close().unwrap();
    checked(&served.rig.recorded("s"), &served.simulator.sampled());
}

/// Calls that do not end in time keep an engine as it was, and it is said why.
#[tokio::test(flavor = "multi_thread")]
async fn promise_6_calls_that_outlive_the_deadline_leave_the_engine_as_it_was() {
    let served = Served::start(Some(simulated_model()), 2.0).await;
    let calls = served.calls(4).await;
    let short = WeightUpdateRequest { deadline_seconds: 0.2, ..update("17", UpdateMode::Drain) };
    within("the update", served.weights.bring_to(&short, false)).await;
    assert_eq!(served.state(), WeightState::Unchanged);
    assert!(served.reason().contains("4 calls had not ended"), "{}", served.reason());
    // And new calls begin.
    let more = served.calls(1).await;
    calls.into_iter().chain(more).for_each(|call| call.abort());
}

/// Loading hangs or fails: the pause ends all the same, the calls in it go on, new ones wait, and
/// the engine is tried again until it has what it is to have.
#[tokio::test(flavor = "multi_thread")]
async fn promise_6_an_engine_that_hangs_or_fails_in_an_update_is_fenced_and_never_left_paused() {
    for (fault, mode, reason) in [
        (WeightFault::Hang, UpdateMode::Pause, "did not answer within"),
        (WeightFault::Fail, UpdateMode::Continue, "failed to load"),
    ] {
        let served = Served::start(Some(simulated_model()), 60.0).await;
        let calls = served.calls(8).await;
        served.simulator.set_weight_fault(Some(fault));
        let wanted = WeightUpdateRequest { deadline_seconds: 0.5, ..update("17", mode) };
        within("the update", served.weights.bring_to(&wanted, false)).await;
        assert_eq!(served.state(), WeightState::Fenced);
        assert!(served.reason().contains(reason), "{}", served.reason());
        assert!(!served.is_paused().await);
        // A new call waits for it, as for an engine that is away.
        let (path, body) = dialects(true)[1].clone();
        let waiting = served.ask(path, &body);
        let watch = served.rig.gateway.engines();
        let mut outage = watch.subscribe();
        within("the outage", outage.wait_for(Option::is_some)).await.unwrap();
        let told = watch.outage().unwrap().to_string();
        assert!(told.contains("does not serve weights 17"), "{told}");
        let stood_still = mode == UpdateMode::Pause;
        let (first, later) = if stood_still { (calls, Vec::new()) } else { (Vec::new(), calls) };
        all_answered(first).await;
        served.simulator.set_weight_fault(None);
        let keeping = served.keep(&wanted);
        served.becomes(WeightState::Current).await;
        all_answered(later.into_iter().chain([waiting]).collect()).await;
        keeping.abort();
        served.session.close().unwrap();
        let recorded = served.rig.recorded("s");
        if stood_still {
            // Nobody knows what came of the load under them.
            let unknown = recorded
                .calls()
                .iter()
                .filter(|call| call.meta.weight_versions.iter().all(|span| span.version.is_none()));
            assert_eq!(unknown.count(), 8);
        } else {
            checked(&recorded, &served.simulator.sampled());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_slow_to_load_holds_its_calls_for_so_long() {
    let served = Served::start(Some(simulated_model()), 60.0).await;
    let calls = served.calls(8).await;
    served.simulator.set_weight_fault(Some(WeightFault::Slow(Duration::from_secs(1))));
    within("the update", served.weights.bring_to(&update("17", UpdateMode::Continue), false)).await;
    assert_eq!(served.state(), WeightState::Current);
    assert!(served.weights.told().borrow().engine.held_seconds.unwrap() >= 1.0);
    all_answered(calls).await;
    served.session.close().unwrap();
    checked(&served.rig.recorded("s"), &served.simulator.sampled());
}

/// Killed while it loads, it comes back with the weights that it was started with. Nothing is
/// sampled by those.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_killed_in_an_update_is_brought_to_it_before_it_serves_again() {
    let Served { rig, simulator, weights, session } =
        Served::start(Some(simulated_model()), 60.0).await;
    simulator.set_weight_fault(Some(WeightFault::Hang));
    let wanted = update("17", UpdateMode::Pause);
    let bring = {
        let (weights, wanted) = (Arc::clone(&weights), wanted.clone());
        tokio::spawn(async move { weights.bring_to(&wanted, false).await })
    };
    let mut told = weights.told();
    let loads = |told: &polar_engine::Told| told.engine.state == WeightState::Updating;
    within("the loading", told.wait_for(loads)).await.unwrap();
    let listen = simulator.addr;
    simulator.shutdown().await;
    within("its end", bring).await.unwrap();
    assert_eq!(weights.told().borrow().engine.state, WeightState::Fenced);
    let simulator = polar_simulator::serve(slow(listen, 60.0)).await.unwrap();
    let served = Served { rig, simulator, weights, session };
    let (path, body) = dialects(false)[1].clone();
    let waiting = served.ask(path, &body);
    let keeping = served.keep(&wanted);
    all_answered(vec![waiting]).await;
    keeping.abort();
    served.session.close().unwrap();
    let recorded = served.rig.recorded("s");
    assert_eq!(checked(&recorded, &served.simulator.sampled()), (0, 0));
    assert_eq!(recorded.calls()[0].meta.weight_versions[0].version.as_deref(), Some("17"));
}

/// The same of one that is restarted when it has its weights, and is called meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_comes_back_with_old_weights_is_brought_to_the_new_ones() {
    let served = Served::start(Some(simulated_model()), 60.0).await;
    let wanted = update("17", UpdateMode::Continue);
    within("the update", served.weights.bring_to(&wanted, false)).await;
    let keeping = served.keep(&wanted);
    let Served { rig, simulator, weights, session } = served;
    let listen = simulator.addr;
    simulator.shutdown().await;
    let waiting: Vec<_> = dialects(true)
        .into_iter()
        .map(|(path, mut body)| {
            crate::limit(&mut body, 400);
            let request = rig.post(path, session.secret(), &body);
            tokio::spawn(async move {
                let response = request.send().await.unwrap();
                (response.status().as_u16(), response.text().await.unwrap())
            })
        })
        .collect();
    let mut told = weights.told();
    let fenced = |told: &polar_engine::Told| told.engine.state == WeightState::Fenced;
    within("the fence", told.wait_for(fenced)).await.unwrap();
    let simulator = polar_simulator::serve(slow(listen, 60.0)).await.unwrap();
    all_answered(waiting).await;
    keeping.abort();
    session.close().unwrap();
    let recorded = rig.recorded("s");
    assert_eq!(recorded.calls().len(), 4);
    assert_eq!(checked(&recorded, &simulator.sampled()), (0, 0));
    for call in recorded.calls() {
        assert_eq!(call.meta.weight_versions[0].version.as_deref(), Some("17"));
    }
}

/// Weights that only the trainer can move cannot be had again: the engine stays fenced until it
/// pushes others.
#[tokio::test(flavor = "multi_thread")]
async fn weights_that_the_trainer_moved_are_not_made_up() {
    let served = Served::start(Some(simulated_model()), 60.0).await;
    let label = WeightUpdateRequest {
        source: WeightSource::Label {},
        ..update("moved-1", UpdateMode::Pause)
    };
    within("the update", served.weights.bring_to(&label, false)).await;
    assert_eq!(served.state(), WeightState::Current);
    // As after a restart.
    let body = serde_json::json!({"new_version": "default"});
    let renamed = format!("{}/update_weight_version", served.simulator.url());
    served.rig.client.post(renamed).json(&body).send().await.unwrap();
    let keeping = served.keep(&label);
    served.becomes(WeightState::Fenced).await;
    assert!(served.reason().contains("only the trainer can move moved-1"), "{}", served.reason());
    keeping.abort();
    let again = WeightUpdateRequest { version: "moved-2".to_owned(), ..label };
    within("the update", served.weights.bring_to(&again, false)).await;
    assert_eq!(served.state(), WeightState::Current);
}

/// A route that is not there is told by its place. Behind a request that was carried out, nobody
/// knows what weights there are.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_the_trainers_that_fails_is_named() {
    let served = Served::start(Some(simulated_model()), 60.0).await;
    let call = |path: &str| serde_json::json!({"path": path, "body": {"new_version": "x"}});
    for (paths, state, reason) in [
        (
            &["/nowhere"][..],
            WeightState::Unchanged,
            "requests[0]: the engine has no route /nowhere",
        ),
        (
            &["/update_weight_version", "/nowhere"],
            WeightState::Fenced,
            "requests[1]: the engine has no route /nowhere; the requests before it were carried out",
        ),
    ] {
        let requests: Vec<_> = paths.iter().map(|path| call(path)).collect();
        let source = serde_json::json!({"engine": {"requests": requests}});
        let wanted = WeightUpdateRequest {
            source: serde_json::from_value(source).unwrap(),
            ..update("17", UpdateMode::Pause)
        };
        within("the update", served.weights.bring_to(&wanted, false)).await;
        assert_eq!(served.state(), state, "{}", served.reason());
        assert!(served.reason().contains(reason), "{}", served.reason());
        assert!(!served.is_paused().await);
    }
}

/// A load that broke off leaves the name of the weights before on what is there now. Going back to
/// those loads them again.
#[tokio::test(flavor = "multi_thread")]
async fn promise_3_weights_that_a_broken_load_was_over_are_loaded_again_when_they_are_wanted() {
    let served = Served::start(Some(simulated_model()), 200.0).await;
    let before = update("16", UpdateMode::Pause);
    within("the update", served.weights.bring_to(&before, false)).await;
    served.simulator.set_weight_fault(Some(WeightFault::HalfWay));
    within("the update", served.weights.bring_to(&update("17", UpdateMode::Pause), false)).await;
    assert_eq!(served.state(), WeightState::Fenced);
    served.simulator.set_weight_fault(None);
    within("the update", served.weights.bring_to(&before, false)).await;
    assert_eq!(served.state(), WeightState::Current, "{}", served.reason());
    all_answered(served.calls(4).await).await;
    served.session.close().unwrap();
    checked(&served.rig.recorded("s"), &served.simulator.sampled());
}

/// Left as it was, an engine has what it had; once it is restarted it has that no longer.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_was_left_as_it_was_and_comes_back_is_brought_to_what_is_wanted() {
    let served = Served::start(None, 60.0).await;
    within("the update", served.weights.bring_to(&update("16", UpdateMode::Pause), false)).await;
    let calls = served.calls(2).await;
    let short = WeightUpdateRequest { deadline_seconds: 0.2, ..update("17", UpdateMode::Drain) };
    within("the update", served.weights.bring_to(&short, false)).await;
    assert_eq!(served.state(), WeightState::Unchanged);
    all_answered(calls).await;
    let keeping = served.keep(&WeightUpdateRequest { deadline_seconds: 20.0, ..short });
    let Served { rig, simulator, weights, session } = served;
    let listen = simulator.addr;
    simulator.shutdown().await;
    let mut told = weights.told();
    let fenced = |told: &polar_engine::Told| told.engine.state == WeightState::Fenced;
    within("the fence", told.wait_for(fenced)).await.unwrap();
    let simulator = polar_simulator::serve(slow(listen, 60.0)).await.unwrap();
    let served = Served { rig, simulator, weights, session };
    served.becomes(WeightState::Current).await;
    keeping.abort();
    let (path, body) = dialects(false)[1].clone();
    all_answered(vec![served.ask(path, &body)]).await;
    served.session.close().unwrap();
    let recorded = served.rig.recorded("s");
    let last = &recorded.calls().last().unwrap().meta.weight_versions;
    assert_eq!(last[0].version.as_deref(), Some("17"));
}

/// Restarted, it refuses what is wanted, and serves on with what it came back with: nobody says
/// that it has what it had before.
#[tokio::test(flavor = "multi_thread")]
async fn promise_3_weights_that_went_with_a_restart_are_not_told_of_replies() {
    let served = Served::start(None, 200.0).await;
    within("the update", served.weights.bring_to(&update("16", UpdateMode::Pause), false)).await;
    let Served { rig, simulator, weights, session } = served;
    let listen = simulator.addr;
    simulator.shutdown().await;
    let simulator = polar_simulator::serve(slow(listen, 200.0)).await.unwrap();
    let served = Served { rig, simulator, weights, session };
    let refused = WeightUpdateRequest {
        source: WeightSource::Disk { path: "/".to_owned() },
        ..update("17", UpdateMode::Pause)
    };
    within("the update", served.weights.bring_to(&refused, false)).await;
    assert_eq!(served.state(), WeightState::Unchanged, "{}", served.reason());
    let (path, body) = dialects(false)[1].clone();
    all_answered(vec![served.ask(path, &body)]).await;
    served.session.close().unwrap();
    let recorded = served.rig.recorded("s");
    let said = recorded.calls()[0].meta.weight_versions.iter().map(|span| &span.version);
    assert!(
        said.clone().all(|said| said.as_deref() != Some("16")),
        "{:?}",
        said.collect::<Vec<_>>()
    );
}

/// All that was ended comes back at once, and an engine may have room for less.
#[tokio::test(flavor = "multi_thread")]
async fn promise_1_replies_that_are_sampled_on_wait_for_an_engine_that_is_full() {
    const FULL: &str = "\nrules: [{name: full, times: 5, fault: status=429}]\n";
    let served = Served::start(Some(simulated_model()), 60.0).await;
    let calls = served.calls(8).await;
    served.simulator.set_policy(Policy::from_yaml(&format!("{POLICY}{FULL}")).unwrap());
    within("the update", served.weights.bring_to(&update("17", UpdateMode::Continue), false)).await;
    assert_eq!(served.state(), WeightState::Current, "{}", served.reason());
    all_answered(calls).await;
    served.session.close().unwrap();
    let (_, continued) = checked(&served.rig.recorded("s"), &served.simulator.sampled());
    assert_eq!(continued, 8);
    let full =
        served.simulator.answers().iter().filter(|a| a.rule.as_deref() == Some("full")).count();
    assert_eq!(full, 5);
}

/// Whoever paused it was killed: nothing would ever answer.
#[tokio::test(flavor = "multi_thread")]
async fn promise_6_an_engine_that_was_left_paused_goes_on() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let simulator = polar_simulator::serve(SimulatorConfig::default()).await.unwrap();
    let paused = format!("{}/pause?mode=keep", simulator.url());
    reqwest::Client::new().post(paused).send().await.unwrap();
    let timeouts = Timeouts { paused: Duration::from_millis(50), ..Timeouts::default() };
    let options = EngineOptions { timeouts, ..EngineOptions::default() };
    within("the probe", polar_engine::connect(&simulator.url(), options)).await.unwrap();
}
