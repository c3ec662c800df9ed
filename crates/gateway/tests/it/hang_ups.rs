//! Harnesses that hang up in the midst of a reply, in token mode: what is recorded of the call, and
//! what the call behind it is said to be.

use crate::{Rig, dialects, say, simulated_model, within};
use futures_util::StreamExt;
use polar_engine::EngineOptions;
use polar_gateway::SessionHandle;
use polar_simulator::{Policy, SimulatorConfig, SimulatorHandle, Speed};
use polar_trajectory::{build, verify};
use polar_types::{ForkCause, TrajectoryStrategy};
use serde_json::{Value, json};

const POLICY: &str = r#"
name: long replies
rules:
  - name: short
    when: {last: short}
    reply: {reasoning: Hm., text: "Yes."}
default:
  reasoning: I think.
  text: "{{ 'A long reply that nobody waits for. ' * 200 }}"
"#;

async fn rig(scale_out: bool) -> (Rig, SimulatorHandle) {
    let policy = Policy::from_yaml(POLICY).unwrap();
    let speed = Speed { tokens_per_second: Some(200.0), ..Speed::default() };
    let kept_requests = 1000;
    let config =
        SimulatorConfig { policy, scale_out, speed, kept_requests, ..SimulatorConfig::default() };
    let options = EngineOptions { token_mode: Some(simulated_model()), ..EngineOptions::default() };
    Rig::before_simulator(config, options).await
}

/// Asks and hangs up as soon as something is told, or once the engine samples where a reply comes
/// whole.
async fn hang_up(
    rig: &Rig,
    engine: &SimulatorHandle,
    session: &SessionHandle,
    (path, body): (&str, &Value),
    stream: bool,
) {
    let calls = session.activity().calls;
    let asked = engine.requests().len();
    let sent = rig.post(path, session.secret(), body).send();
    if stream {
        let mut pieces = within("a reply", sent).await.unwrap().bytes_stream();
        let mut told = String::new();
        while !told.contains("long") {
            let piece = within("a piece", pieces.next()).await.unwrap().unwrap();
            told.push_str(&String::from_utf8_lossy(&piece));
        }
    } else {
        let sampling = async {
            while engine.requests().len() == asked {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            _ = sent => panic!("{path} was answered"),
            () = within("the engine's call", sampling) => {}
        }
    }
    let recorded = async {
        while session.activity().calls == calls {
            tokio::task::yield_now().await;
        }
    };
    within("the record", recorded).await;
}

#[tokio::test]
async fn a_call_behind_one_that_was_hung_up_on_says_so_and_both_have_their_prompts() {
    for scale_out in [true, false] {
        let (rig, engine) = rig(scale_out).await;
        for stream in [true, false] {
            for (number, (path, mut body)) in dialects(stream).into_iter().enumerate() {
                for asks_again in [true, false] {
                    let name = format!("{scale_out}-{stream}-{number}-{asks_again}");
                    let session = rig.open(&name);
                    say(&mut body, "hello".to_owned());
                    hang_up(&rig, &engine, &session, (path, &body), stream).await;
                    let mut next = body.clone();
                    if !asks_again {
                        go_on(&mut next);
                    }
                    crate::limit(&mut next, 8);
                    let sent = rig.post(path, session.secret(), &next).send();
                    let told = within("a reply", sent).await.unwrap();
                    within("the body", told.text()).await.unwrap();
                    session.close().unwrap();
                    cut_short(&rig, &name);
                }
            }
        }
    }
}

/// A second question behind the one that was not answered.
fn go_on(body: &mut Value) {
    let more = json!({"role": "user", "content": "short"});
    if let Some(contents) = body.get_mut("contents") {
        contents
            .as_array_mut()
            .unwrap()
            .push(json!({"role": "user", "parts": [{"text": "short"}]}));
    } else if let Some(input) = body.get_mut("input") {
        *input = json!([{"role": "user", "content": "hello"}, more]);
    } else {
        body["messages"].as_array_mut().unwrap().push(more);
    }
}

fn cut_short(rig: &Rig, name: &str) {
    let recorded = rig.recorded(name);
    let [hung_up, next] = recorded.calls() else { panic!("{name}: {}", recorded.calls().len()) };
    assert_eq!(hung_up.meta.finish_reason, "cancelled", "{name}");
    let prompt = recorded.prompt_ids(hung_up).unwrap();
    assert_eq!(hung_up.meta.prompt_tokens, prompt.len() as u64, "{name}");
    assert!(!prompt.is_empty() && next.meta.prompt_tokens > 0, "{name}");
    let trajectory = build(&recorded, TrajectoryStrategy::PrefixMerging, None).trajectory;
    assert_eq!(verify(&trajectory, &recorded), Ok(()), "{name}");
    let forks: Vec<_> = trajectory.forks.keys().copied().collect();
    let asked = (hung_up.meta.sampled_tokens > 0, recorded.prompt_ids(next).unwrap() == prompt);
    // One of which nothing was sampled is no turn that another could go on from.
    let expected = match asked {
        (false, false) => ForkCause::NewLineage,
        _ => ForkCause::Unanswered,
    };
    assert_eq!(forks, [expected], "{name}");
    let sampled: u64 = recorded.calls().iter().map(|call| call.meta.sampled_tokens).sum();
    assert_eq!(trajectory.tokens.sampled, sampled, "{name}");
    assert_eq!(trajectory.tokens.trained, next.meta.sampled_tokens, "{name}");
}
