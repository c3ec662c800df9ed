//! Histories that harnesses change as they like, in token mode: whatever they do, every call is
//! answered and what is built of the session keeps its promises.

use crate::{Rig, simulated_model, within};
use polar_engine::EngineOptions;
use polar_gateway::SessionHandle;
use polar_record::RecordedSession;
use polar_simulator::{Policy, SimulatorConfig, SimulatorHandle};
use polar_trajectory::{build, verify, verify_fingerprints};
use polar_types::{CallId, HarnessRules, HistoryPolicy, SamplingPins, TrajectoryStrategy};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Turns of every kind, spelled as no tokenizer and no JSON writer would.
const POLICY: &str = r#"
name: every kind of turn
rules:
  - name: cut
    when: {last: cut}
    reply: {reasoning: So., text: "I was go, {{ turns }}", finish: length}
  - name: calls
    when: {last: look}
    reply:
      reasoning: "  Hm, 漢字.\n"
      text: " Let me look. "
      spelling: bytewise
      tool_calls:
        - {name: look, arguments: {path: "grüße", n: 1.0e-7}, spelling: odd}
        - {name: look, arguments: {}}
default:
  reasoning: Fine.
  text: "Done, turn {{ turns }}."
  spelling: bytewise
"#;

/// What a harness does before it asks. Numbers choose a message.
#[derive(Debug, Clone, Copy)]
enum Step {
    GoOn(&'static str),
    Retry,
    TwoBranches,
    Rewind(usize),
    Drop(usize),
    ChangeResult(usize),
    Summarize(usize),
    InsertSystem(usize),
    ForgetReasoning,
    RespellArguments,
    ChangeTools,
}

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    let at = 0..12_usize;
    prop_oneof![
        8 => prop::sample::select(vec!["look", "cut", "go on"]).prop_map(GoOn),
        1 => Just(Retry),
        1 => Just(TwoBranches),
        1 => at.clone().prop_map(Rewind),
        1 => at.clone().prop_map(Drop),
        1 => at.clone().prop_map(ChangeResult),
        1 => at.clone().prop_map(Summarize),
        1 => at.prop_map(InsertSystem),
        1 => Just(ForgetReasoning),
        1 => Just(RespellArguments),
        1 => Just(ChangeTools),
    ]
}

/// A harness of the Chat dialect.
struct Harness<'a> {
    rig: &'a Rig,
    session: &'a SessionHandle,
    history: Vec<Value>,
    /// The second set of tools is offered.
    other_tools: bool,
    /// The history was changed since the last reply, by more than spelling.
    is_changed: bool,
    /// It was so at some time. Turns behind a change are known again as they were sampled only
    /// while they are sent as they were told.
    was_changed: bool,
    /// Calls that must go on from the one before them, by their number.
    must_go_on: Vec<usize>,
    asked: usize,
}

impl Harness<'_> {
    async fn take(&mut self, step: Step, number: usize) {
        self.change(step);
        let word = if let Step::GoOn(word) = step { word } else { "go on" };
        let followers = self.followers(word, number);
        self.history.extend(followers);
        if let Step::TwoBranches = step {
            let other = [&self.history[..], &[json!({"role": "user", "content": "look"})]].concat();
            let (reply, _) = tokio::join!(self.ask(&self.history), self.ask(&other));
            // Either may have been recorded last.
            (self.asked, self.is_changed) = (self.asked + 2, true);
            self.history.push(reply);
            return;
        }
        if matches!(step, Step::Retry) {
            self.ask(&self.history).await;
            (self.asked, self.is_changed) = (self.asked + 1, true);
        }
        if self.asked > 0 && !self.is_changed {
            self.must_go_on.push(self.asked);
        }
        let reply = self.ask(&self.history).await;
        (self.asked, self.is_changed) = (self.asked + 1, false);
        self.history.push(reply);
    }

    fn change(&mut self, step: Step) {
        let count = self.history.len();
        let respelled = |text: &str| {
            serde_json::from_str::<Value>(text).map_or(text.to_owned(), |value| value.to_string())
        };
        match step {
            Step::GoOn(_) | Step::Retry | Step::TwoBranches => return,
            Step::ForgetReasoning => {
                for message in &mut self.history {
                    message.as_object_mut().unwrap().remove("reasoning_content");
                    message.as_object_mut().unwrap().remove("reasoning");
                }
                self.is_changed |= self.was_changed;
                return;
            }
            Step::RespellArguments => {
                let calls = self.history.iter_mut().filter_map(|turn| turn.get_mut("tool_calls"));
                for call in calls.filter_map(Value::as_array_mut).flatten() {
                    let arguments = &mut call["function"]["arguments"];
                    *arguments = respelled(arguments.as_str().unwrap()).into();
                }
                self.is_changed |= self.was_changed;
                return;
            }
            Step::Rewind(back) => self.history.truncate(count.saturating_sub(back)),
            Step::Drop(at) if count > 0 => drop(self.history.remove(at % count)),
            Step::ChangeResult(at) => {
                let results = self.history.iter_mut().filter(|message| message["role"] == "tool");
                if let Some(result) = results.into_iter().nth(at % 4) {
                    result["content"] = "[old result cleared]".into();
                }
            }
            Step::Summarize(at) => {
                let summary = json!({"role": "user", "content": format!("Summary of {at}.")});
                self.history.splice(..at.min(count), [summary]);
            }
            Step::InsertSystem(at) => {
                let reminder = json!({"role": "system", "content": "Remember."});
                self.history.insert(at.min(count), reminder);
            }
            Step::ChangeTools => self.other_tools = !self.other_tools,
            Step::Drop(_) => {}
        }
        (self.is_changed, self.was_changed) = (true, true);
    }

    /// Results of the last turn's calls, or words.
    fn followers(&self, word: &str, number: usize) -> Vec<Value> {
        let calls = self.history.last().and_then(|last| last["tool_calls"].as_array());
        let results = calls.into_iter().flatten().map(|call| {
            let content = format!("seen in {number}\n");
            json!({"role": "tool", "tool_call_id": call["id"], "content": content})
        });
        let mut followers: Vec<Value> = results.collect();
        if followers.is_empty() || number.is_multiple_of(3) {
            followers.push(json!({"role": "user", "content": format!("{word} {number}")}));
        }
        followers
    }

    /// The reply, as a message.
    async fn ask(&self, history: &[Value]) -> Value {
        let name = if self.other_tools { "watch" } else { "look" };
        let body = json!({"model": "m", "messages": history, "tools": [
            {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},
            {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}},
        ]});
        let sent = self.rig.post("/v1/chat/completions", self.session.secret(), &body).send();
        let response = within("the reply", sent).await.unwrap();
        let status = response.status();
        let told = within("the body", response.text()).await.unwrap();
        assert_eq!(status, 200, "{told}");
        let reply: Value = serde_json::from_str(&told).unwrap();
        reply["choices"][0]["message"].clone()
    }
}

/// Everything that must hold of a session, however its history went.
fn holds(recorded: &RecordedSession, must_go_on: &[usize]) -> Result<(), TestCaseError> {
    let calls = recorded.calls();
    let mut sequences = HashMap::new();
    for (number, call) in calls.iter().enumerate() {
        let note = &call.meta.extra["prompt"];
        prop_assert_eq!(&note["mode"], "token");
        let prompt = recorded.prompt_ids(call).unwrap();
        let behind = note["behind"].as_str().map(str::to_owned);
        if let Some(behind) = &behind {
            let sequence: &Vec<u32> = &sequences[behind];
            prop_assert!(prompt.starts_with(sequence), "call {number} behind {behind}");
        }
        if must_go_on.contains(&number) {
            let before = CallId::of_index(number as u32 - 1).to_string();
            prop_assert_eq!(behind, Some(before), "call {}", number);
        }
        let id = CallId::of_index(number as u32).to_string();
        sequences.insert(id, [prompt, recorded.sampled_ids(call).unwrap()].concat());
    }
    let hashes = verify_fingerprints(recorded);
    prop_assert_eq!(hashes.map(|hashes| hashes.checked as usize), Ok(calls.len()));
    for strategy in [TrajectoryStrategy::PrefixMerging, TrajectoryStrategy::PrefixTree] {
        let trajectory = build(recorded, strategy, None).trajectory;
        prop_assert_eq!(verify(&trajectory, recorded), Ok(()));
        let is_trained = |role| trajectory.train_roles.contains(role);
        let of_roles = trajectory.roles.iter().filter(|(role, _)| is_trained(role));
        let to_train: u64 = of_roles.map(|(_, counts)| counts.sampled).sum();
        prop_assert!(to_train > 0);
        prop_assert_eq!(trajectory.tokens.trained, to_train);
        let masks = trajectory.traces.iter().map(|trace| &trace.loss_mask);
        let nodes = trajectory.tree.iter().flat_map(|tree| &tree.nodes).map(|node| &node.loss_mask);
        let in_masks = masks.chain(nodes).flatten().filter(|mask| **mask == 1).count();
        prop_assert_eq!(in_masks as u64, to_train);
    }
    Ok(())
}

async fn rig() -> (Rig, SimulatorHandle) {
    let policy = Policy::from_yaml(POLICY).unwrap();
    let config = SimulatorConfig { policy, ..SimulatorConfig::default() };
    let options = EngineOptions { token_mode: Some(simulated_model()), ..EngineOptions::default() };
    Rig::before_simulator(config, options).await
}

#[test]
fn promise_2_a_random_edit_of_history_never_yields_a_trace_that_fails_verification() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (rig, _simulator) = runtime.block_on(rig());
    let sessions = std::cell::Cell::new(0);
    let config = ProptestConfig {
        cases: 8,
        failure_persistence: None,
        max_shrink_iters: 64,
        ..ProptestConfig::default()
    };
    let sequences = prop::collection::vec(step(), 20..36);
    let played = TestRunner::new(config).run(&sequences, |steps| {
        sessions.set(sessions.get() + 1);
        let name = format!("s{}", sessions.get());
        let rules = HarnessRules::default();
        let session = rig.open_with(&name, SamplingPins::default(), HistoryPolicy::Sampled, rules);
        let mut harness = Harness {
            rig: &rig,
            session: &session,
            history: Vec::new(),
            other_tools: false,
            is_changed: false,
            was_changed: false,
            must_go_on: Vec::new(),
            asked: 0,
        };
        runtime.block_on(async {
            for (number, step) in steps.into_iter().enumerate() {
                harness.take(step, number).await;
            }
        });
        let must_go_on = harness.must_go_on;
        session.close().unwrap();
        holds(&rig.recorded(&name), &must_go_on)
    });
    played.unwrap();
}
