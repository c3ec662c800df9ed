//! Conversations of several turns in token mode, over the real protocol: every prompt begins with
//! what was asked and sampled before it, whatever the dialect does to the history.

use crate::{Rig, simulated_model, within};
use polar_engine::{EngineOptions, TokenModeOptions};
use polar_gateway::SessionHandle;
use polar_record::RecordedSession;
use polar_simulator::{EngineApi, Policy, SimulatorConfig, SimulatorHandle};
use polar_trajectory::{Built, build, verify, verify_fingerprints};
use polar_types::{ForkCause, HarnessRules, HistoryPolicy, SamplingPins, TrajectoryStrategy};
use serde_json::{Value, json};

/// Turns that no tokenizer and no JSON writer would spell so.
const POLICY: &str = r#"
name: odd turns
rules:
  - name: cut
    when: {last: cut}
    reply: {reasoning: So., text: I was go, finish: length}
  - name: plain calls
    when: {last: list}
    reply:
      reasoning: I list.
      tool_calls:
        - {name: look, arguments: {path: a}}
        - {name: look, arguments: {}}
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

async fn rig() -> (Rig, SimulatorHandle) {
    rig_in(Some(simulated_model())).await
}

async fn rig_in(token_mode: Option<TokenModeOptions>) -> (Rig, SimulatorHandle) {
    rig_before(EngineApi::Vllm, token_mode).await
}

async fn rig_before(
    speaks: EngineApi,
    token_mode: Option<TokenModeOptions>,
) -> (Rig, SimulatorHandle) {
    let policy = Policy::from_yaml(POLICY).unwrap();
    let config = SimulatorConfig { policy, speaks, ..SimulatorConfig::default() };
    let options = EngineOptions { token_mode, ..EngineOptions::default() };
    Rig::before_simulator(config, options).await
}

fn open(rig: &Rig, name: &str, history: HistoryPolicy) -> SessionHandle {
    rig.open_with(name, SamplingPins::default(), history, HarnessRules::default())
}

/// A client of the Chat dialect that keeps no reasoning, trims text and spells arguments anew.
struct Client<'a> {
    rig: &'a Rig,
    session: &'a SessionHandle,
    history: Vec<Value>,
    stream: bool,
}

impl<'a> Client<'a> {
    fn new(rig: &'a Rig, session: &'a SessionHandle) -> Self {
        Self { rig, session, history: Vec::new(), stream: false }
    }

    async fn ask(&mut self, message: Value) {
        self.history.push(message);
        let body = json!({"model": "m", "stream": self.stream, "messages": self.history, "tools": [
            {"type": "function", "function": {"name": "look", "description": "Looks.",
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}},
        ]});
        let sent = self.rig.post("/v1/chat/completions", self.session.secret(), &body).send();
        let response = within("the reply", sent).await.unwrap();
        assert_eq!(response.status(), 200);
        let told = within("the body", response.text()).await.unwrap();
        if self.stream {
            assert!(told.trim_end().ends_with("[DONE]"), "{told}");
            return;
        }
        let reply: Value = serde_json::from_str(&told).unwrap();
        let message = &reply["choices"][0]["message"];
        let text = message["content"].as_str().unwrap_or_default().trim();
        let mut kept = json!({"role": "assistant", "content": text});
        if let Some(calls) = message["tool_calls"].as_array() {
            kept["tool_calls"] = calls
                .iter()
                .map(|call| {
                    let arguments = call["function"]["arguments"].as_str().unwrap();
                    let arguments: Value = serde_json::from_str(arguments).unwrap();
                    json!({"id": call["id"], "type": "function", "function": {
                    "name": call["function"]["name"], "arguments": arguments.to_string()}})
                })
                .collect();
        }
        self.history.push(kept);
    }

    async fn say(&mut self, text: &str) {
        self.ask(json!({"role": "user", "content": text})).await;
    }

    /// Answers the calls of the last turn.
    async fn results(&mut self) {
        let calls = self.history.last().unwrap()["tool_calls"].as_array().unwrap().clone();
        let mut results = calls
            .iter()
            .map(|call| json!({"role": "tool", "tool_call_id": call["id"], "content": "seen\n"}));
        let first = results.next().unwrap();
        self.history.push(first);
        let last = results.next().unwrap();
        self.ask(last).await;
    }
}

fn built(recorded: &RecordedSession) -> Built {
    let built = build(recorded, TrajectoryStrategy::PrefixMerging, None);
    assert_eq!(verify(&built.trajectory, recorded), Ok(()));
    let hashes = verify_fingerprints(recorded).unwrap();
    assert_eq!(hashes.checked as usize, recorded.calls().len());
    built
}

/// Whether each prompt begins with prompt and reply of the call before it.
fn goes_on(recorded: &RecordedSession) -> Vec<bool> {
    let calls = recorded.calls();
    let sequence = |at: usize| {
        let (prompt, sampled) = (recorded.prompt_ids(&calls[at]), recorded.sampled_ids(&calls[at]));
        [prompt.unwrap(), sampled.unwrap()].concat()
    };
    (1..calls.len())
        .map(|at| recorded.prompt_ids(&calls[at]).unwrap().starts_with(&sequence(at - 1)))
        .collect()
}

fn noted(recorded: &RecordedSession, field: &str) -> Vec<Value> {
    recorded.calls().iter().map(|call| call.meta.extra["prompt"][field].clone()).collect()
}

#[tokio::test]
async fn promise_2_a_conversation_is_one_trace_whatever_a_harness_does_to_its_history() {
    one_trace(EngineApi::Vllm, "/inference/v1/generate").await;
    one_trace(EngineApi::TensorRtLlm, "/v1/completions").await;
}

async fn one_trace(speaks: EngineApi, place: &str) {
    let (rig, simulator) = rig_before(speaks, Some(simulated_model())).await;
    let session = open(&rig, "s", HistoryPolicy::Sampled);
    let mut client = Client::new(&rig, &session);
    for _ in 0..3 {
        client.say("look").await;
        client.results().await;
        client.say("cut").await;
    }
    session.close().unwrap();
    let recorded = rig.recorded("s");
    assert_eq!(goes_on(&recorded), vec![true; 8]);
    let ends = noted(&recorded, "turn_end");
    let expected = [Value::Null, "marked".into(), "marked".into(), "closed".into()];
    assert_eq!(ends[..4], expected);
    assert!(noted(&recorded, "mode").iter().all(|mode| mode == "token"));
    let trajectory = built(&recorded).trajectory;
    assert_eq!(trajectory.traces.len(), 1, "{:?}", trajectory.forks);
    assert_eq!(trajectory.tokens.trained, trajectory.tokens.sampled);
    let asked = simulator.requests();
    let generated = asked.iter().filter(|request| request.path == place).count();
    assert!(generated >= 9, "asked with ids: {generated}");
}

#[tokio::test]
async fn the_template_may_be_followed_and_its_forks_are_named() {
    let (rig, _simulator) = rig().await;
    for (history, traces) in [(HistoryPolicy::Template, 2), (HistoryPolicy::AsSent, 3)] {
        let name = format!("{history:?}");
        let session = open(&rig, &name, history);
        let mut client = Client::new(&rig, &session);
        client.say("list").await;
        client.results().await;
        client.say("go on").await;
        session.close().unwrap();
        let recorded = rig.recorded(&name);
        let trajectory = built(&recorded).trajectory;
        assert_eq!(trajectory.traces.len(), traces, "{name}: {:?}", trajectory.forks);
        assert_eq!(trajectory.tokens.trained, trajectory.tokens.sampled, "{name}");
        let forks = &trajectory.forks;
        assert!(forks.contains_key(&ForkCause::ReasoningStripped), "{name}: {forks:?}");
    }
}

#[tokio::test]
async fn a_count_is_that_of_the_prompt_that_comes() {
    counts(Some(simulated_model())).await;
    counts(None).await;
}

/// Behind a turn of whose reasoning the client keeps nothing.
async fn counts(token_mode: Option<TokenModeOptions>) {
    let (rig, _simulator) = rig_in(token_mode).await;
    let session = open(&rig, "s", HistoryPolicy::Sampled);
    let secret = session.secret();
    let mut history = vec![json!({"role": "user", "content": "list"})];
    for _ in 0..3 {
        let body = json!({"model": "m", "max_tokens": 100, "messages": history, "tools": [
            {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}},
        ]});
        let post = |path| within("an answer", rig.post(path, secret, &body).send());
        let counted: Value = post("/v1/messages/count_tokens").await.unwrap().json().await.unwrap();
        let reply: Value = post("/v1/messages").await.unwrap().json().await.unwrap();
        // Anthropic tells what was cached apart.
        let used = ["input_tokens", "cache_read_input_tokens"]
            .map(|name| reply["usage"][name].as_u64().unwrap());
        assert_eq!(counted["input_tokens"], used.iter().sum::<u64>(), "{reply}");
        let mut kept = reply["content"].as_array().unwrap().clone();
        kept.retain(|block| block["type"] != "thinking");
        let calls = kept.iter().filter(|block| block["type"] == "tool_use");
        let mut results: Vec<Value> = calls
            .map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": "x"}))
            .collect();
        results.push(json!({"type": "text", "text": "list"}));
        history.push(json!({"role": "assistant", "content": kept}));
        history.push(json!({"role": "user", "content": results}));
    }
    session.close().unwrap();
    let is_token_mode = rig.recorded("s").calls()[0].meta.extra.contains_key("prompt");
    assert!(!is_token_mode || goes_on(&rig.recorded("s")) == [true, true]);
}

#[tokio::test]
async fn what_ids_cannot_hold_goes_to_the_engine_as_messages_with_the_reason() {
    let (rig, _simulator) = rig().await;
    let session = open(&rig, "s", HistoryPolicy::Sampled);
    let ask = |more: Value| {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "go on"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rig.post("/v1/chat/completions", session.secret(), &body).send()
    };
    let form = json!({"type": "json_object"});
    let reply = within("a reply", ask(json!({"response_format": form}))).await.unwrap();
    let reply: Value = reply.json().await.unwrap();
    let said = reply["choices"][0]["message"]["content"].clone();
    let tools = json!([{"type": "function", "function": {"name": "look", "parameters": {}}}]);
    within("a reply", ask(json!({"tools": tools, "tool_choice": "required"})))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let history = json!([{"role": "user", "content": "go on"}, {"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]);
    within("a reply", ask(json!({"messages": history}))).await.unwrap().text().await.unwrap();
    session.close().unwrap();
    let recorded = rig.recorded("s");
    assert_eq!(
        noted(&recorded, "why"),
        [json!("structured_output"), json!("forced_call"), Value::Null]
    );
    // Where the engine has rendered, its ids are gone on from.
    assert_eq!(noted(&recorded, "behind")[2], json!("c00000"));
    let (first, last) = (&recorded.calls()[0], &recorded.calls()[2]);
    let sequence = [recorded.prompt_ids(first), recorded.sampled_ids(first)];
    let sequence: Vec<u32> = sequence.into_iter().flatten().flatten().collect();
    assert!(recorded.prompt_ids(last).unwrap().starts_with(&sequence));
    built(&recorded);
}

/// TensorRT-LLM tells no ids of a chat.
#[tokio::test]
async fn promise_3_a_call_whose_ids_the_engine_does_not_tell_has_none_and_is_counted() {
    let (rig, _simulator) = rig_before(EngineApi::TensorRtLlm, Some(simulated_model())).await;
    let session = open(&rig, "s", HistoryPolicy::Sampled);
    let mut client = Client::new(&rig, &session);
    client.say("go on").await;
    let form = json!({"type": "json_object"});
    let asked = json!([{"role": "user", "content": "a title"}]);
    let body = json!({"model": "m", "messages": asked, "response_format": form});
    let sent = rig.post("/v1/chat/completions", session.secret(), &body).send();
    let reply: Value = within("a reply", sent).await.unwrap().json().await.unwrap();
    assert!(!reply["choices"][0]["message"]["content"].as_str().unwrap().is_empty());
    client.say("go on").await;
    session.close().unwrap();
    let recorded = rig.recorded("s");
    let untold = &recorded.calls()[1];
    assert!(recorded.prompt_ids(untold).is_none() && recorded.sampled_ids(untold).is_none());
    assert!(untold.meta.extra["ids_missing"].is_string(), "{:?}", untold.meta.extra);
    assert_eq!(noted(&recorded, "behind"), [Value::Null, Value::Null, json!("c00000")]);
    let trajectory = build(&recorded, TrajectoryStrategy::PrefixMerging, None).trajectory;
    assert_eq!(verify(&trajectory, &recorded), Ok(()));
    assert_eq!(trajectory.traces.len(), 1);
    assert!(trajectory.tokens.sampled > trajectory.tokens.trained, "{:?}", trajectory.tokens);
}

/// What a client may say of the end of a reply holds as it does where the engine is asked with messages.
#[tokio::test]
async fn a_reply_ends_where_its_client_says() {
    let (rig, _simulator) = rig().await;
    let session = open(&rig, "ends", HistoryPolicy::Sampled);
    let ask = async |more: Value| {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "look"}]});
        body["tools"] = json!([{"type": "function", "function": {"name": "look"}}]);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let sent = rig.post("/v1/chat/completions", session.secret(), &body).send();
        let response = within("the reply", sent).await.unwrap();
        let status = response.status().as_u16();
        (status, within("the body", response.json::<Value>()).await.unwrap())
    };
    let (_, whole) = ask(json!({})).await;
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls", "{whole}");
    for (field, wrong) in [("chat_template_kwargs", json!(5)), ("stop_token_ids", json!("a"))] {
        let (status, error) = ask(json!({field: wrong})).await;
        let said = error["error"]["message"].as_str().unwrap();
        assert!(status == 400 && said.contains(&format!("{field}: ")), "{error}");
    }
    let sampled = |recorded: &RecordedSession, at: usize| {
        recorded.sampled_ids(&recorded.calls()[at]).unwrap()
    };
    let recorded = rig.recorded("ends");
    let end = sampled(&recorded, 0)[5];
    let (_, ended) = ask(json!({"stop_token_ids": [end]})).await;
    let until = sampled(&recorded, 0).iter().position(|id| *id == end).unwrap() + 1;
    assert_eq!(ended["usage"]["completion_tokens"], until, "{ended}");
}
