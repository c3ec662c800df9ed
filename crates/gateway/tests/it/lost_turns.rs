//! Histories that have lost more than spelling, in token mode and every dialect: other ids of calls or
//! none, calls that were cut and cannot be told, turns that said nothing. Each goes on from what was
//! sampled, unless the harness has changed what it means.

use crate::raw_text::{Parsed, ask, before, offer};
use crate::{Rig, dialects};
use polar_gateway::SessionHandle;
use polar_trajectory::{build, verify};
use polar_types::{ForkCause, TrajectoryStrategy};
use serde_json::{Value, json};

const POLICY: &str = r#"
name: lost turns
rules:
  - name: calls
    when: {last: call}
    reply:
      reasoning: I look.
      text: Let me look.
      tool_calls:
        - {name: look, arguments: {path: a}}
        - {name: now, arguments: {}}
  - name: cut
    when: {last: cut}
    reply:
      finish: length
      raw: "<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"path\": \"src"
  - name: cut before
    when: {last: begin}
    reply:
      finish: length
      raw: "<think>\nHm.\n</think>\n\nSo.<tool_call>\n{\"name\": \"look\", \"arguments\": "
  - name: cut behind
    when: {last: second}
    reply:
      finish: length
      raw: "<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"path\": \"src"
  - name: nothing
    when: {last: nothing}
    reply: {raw: ""}
  - name: thought alone
    when: {last: thought}
    reply: {raw: "<think>\nHm.\n</think>\n\n"}
default:
  text: "Done, turn {{ turns }}."
"#;

/// What a client makes of a reply before it sends it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeps {
    /// All that its dialect told, but for reasoning.
    Told,
    /// The calls under other ids, or where these may be left out under none.
    OtherIds,
    /// Nothing, where nothing was said.
    NoEmptyTurn,
    /// The same with other arguments.
    OtherMeaning,
}

/// A client of a dialect.
struct Client {
    path: &'static str,
    body: Value,
    history: Vec<Value>,
    keeps: Keeps,
    calls: usize,
}

impl Client {
    fn new(path: &'static str, mut body: Value, keeps: Keeps) -> Self {
        offer(path, &mut body);
        Self { path, body, history: Vec::new(), keeps, calls: 0 }
    }

    fn is(&self, path: &str) -> bool {
        self.path.starts_with(path)
    }

    async fn say(&mut self, rig: &Rig, session: &SessionHandle, text: &str) {
        let message = match self.is("/v1beta") {
            true => json!({"role": "user", "parts": [{"text": text}]}),
            false => json!({"role": "user", "content": text}),
        };
        self.history.push(message);
        self.go_on(rig, session).await;
    }

    /// Asks, keeps the reply and answers its calls.
    async fn go_on(&mut self, rig: &Rig, session: &SessionHandle) {
        let field = if self.is("/v1beta") {
            "contents"
        } else if self.is("/v1/responses") {
            "input"
        } else {
            "messages"
        };
        self.body[field] = json!(self.history);
        let told = ask(rig, session.secret(), self.path, &self.body).await;
        let reply: Value = serde_json::from_str(&told).unwrap();
        let results = match self.path {
            "/v1/chat/completions" => self.keep_chat(&reply["choices"][0]["message"]),
            "/v1/messages" => self.keep_messages(&reply["content"]),
            "/v1/responses" => self.keep_items(&reply["output"]),
            _ => self.keep_parts(&reply["candidates"][0]["content"]["parts"]),
        };
        self.history.extend(results);
    }

    /// A call as it comes back: its id, and its arguments.
    fn kept(&mut self, id: &Value, arguments: Value) -> (Value, Value) {
        self.calls += 1;
        match self.keeps {
            Keeps::Told | Keeps::NoEmptyTurn => (id.clone(), arguments),
            Keeps::OtherIds => (json!(format!("mine_{}", self.calls)), arguments),
            Keeps::OtherMeaning => {
                (json!(format!("mine_{}", self.calls)), json!({"path": "elsewhere"}))
            }
        }
    }

    fn keep_chat(&mut self, message: &Value) -> Vec<Value> {
        let mut kept = json!({"role": "assistant", "content": message["content"]});
        let mut results = Vec::new();
        let mut calls = Vec::new();
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let spelled = call["function"]["arguments"].as_str().unwrap();
            let (id, arguments) = match serde_json::from_str(spelled) {
                Ok(read) => {
                    let (id, read) = self.kept(&call["id"], read);
                    (id, read.to_string())
                }
                Err(_) => (self.kept(&call["id"], Value::Null).0, spelled.to_owned()),
            };
            let function = json!({"name": call["function"]["name"], "arguments": arguments});
            calls.push(json!({"id": id, "type": "function", "function": function}));
            results.push(json!({"role": "tool", "tool_call_id": id, "content": "seen"}));
        }
        if !calls.is_empty() {
            kept["tool_calls"] = json!(calls);
        }
        self.keep(kept, message["content"].is_null() && results.is_empty());
        results
    }

    fn keep_messages(&mut self, content: &Value) -> Vec<Value> {
        let mut results = Vec::new();
        let mut blocks = content.as_array().unwrap().clone();
        blocks.retain(|block| block["type"] != "thinking");
        for block in blocks.iter_mut().filter(|block| block["type"] == "tool_use") {
            let (id, input) = match block["input"].get("_unparsed_arguments") {
                Some(_) => (self.kept(&block["id"], Value::Null).0, block["input"].clone()),
                None => self.kept(&block["id"], block["input"].clone()),
            };
            (block["id"], block["input"]) = (id.clone(), input);
            results.push(json!({"type": "tool_result", "tool_use_id": id, "content": "seen"}));
        }
        let is_empty = blocks.is_empty();
        self.keep(json!({"role": "assistant", "content": blocks}), is_empty);
        match results.is_empty() {
            true => Vec::new(),
            false => vec![json!({"role": "user", "content": results})],
        }
    }

    fn keep_items(&mut self, output: &Value) -> Vec<Value> {
        let mut results = Vec::new();
        for item in output.as_array().unwrap() {
            let mut item = item.clone();
            if item["type"] == "reasoning" {
                continue;
            }
            if item["type"] == "function_call" {
                let spelled = item["arguments"].as_str().unwrap().to_owned();
                let read = serde_json::from_str(&spelled);
                let is_whole = read.is_ok();
                let (id, read) = self.kept(&item["call_id"], read.unwrap_or_default());
                item["call_id"] = id;
                if is_whole {
                    item["arguments"] = read.to_string().into();
                }
                item.as_object_mut().unwrap().remove("id");
                let id = &item["call_id"];
                let result =
                    json!({"type": "function_call_output", "call_id": id, "output": "seen"});
                results.push(result);
            }
            self.history.push(item);
        }
        results
    }

    fn keep_parts(&mut self, parts: &Value) -> Vec<Value> {
        let mut parts = parts.as_array().unwrap().clone();
        let mut results = Vec::new();
        for part in &mut parts {
            part.as_object_mut().unwrap().remove("thoughtSignature");
            let Some(call) = part.get_mut("functionCall") else { continue };
            let args = call.get("args").cloned().unwrap_or(json!({}));
            let (_, args) = self.kept(&call["id"], args);
            let name = call["name"].clone();
            call["args"] = args;
            let mut response = json!({"name": name, "response": {"output": "seen"}});
            match self.keeps {
                Keeps::Told | Keeps::NoEmptyTurn => response["id"] = call["id"].clone(),
                Keeps::OtherIds | Keeps::OtherMeaning => {
                    call.as_object_mut().unwrap().remove("id");
                }
            }
            results.push(json!({"functionResponse": response}));
        }
        let says = |part: &Value| part["text"] != "" || part.get("functionCall").is_some();
        let is_empty = !parts.iter().any(says);
        self.keep(json!({"role": "model", "parts": parts}), is_empty);
        match results.is_empty() {
            true => Vec::new(),
            false => vec![json!({"role": "user", "parts": results})],
        }
    }

    fn keep(&mut self, turn: Value, is_empty: bool) {
        if !is_empty || self.keeps != Keeps::NoEmptyTurn {
            self.history.push(turn);
        }
    }
}

/// The causes of what forks.
async fn forks(rig: &Rig, name: &str, mut client: Client, turns: &[&str]) -> Vec<ForkCause> {
    let session = rig.open(name);
    for &words in turns {
        client.say(rig, &session, words).await;
        if words == "call" {
            client.go_on(rig, &session).await;
        }
    }
    client.say(rig, &session, "done").await;
    session.close().unwrap();
    let recorded = rig.recorded(name);
    let trajectory = build(&recorded, TrajectoryStrategy::PrefixMerging, None).trajectory;
    assert_eq!(verify(&trajectory, &recorded), Ok(()));
    assert_eq!(trajectory.tokens.trained, trajectory.tokens.sampled, "{name}");
    let forks = trajectory.traces.iter().map(|trace| trace.lineage.fork.cause);
    forks.collect()
}

#[tokio::test]
async fn promise_2_a_history_without_ids_cut_calls_or_empty_turns_goes_on_from_what_was_sampled() {
    let (rig, _engine) = before(Parsed::HereOfIds, POLICY).await;
    let turns = ["call", "cut", "nothing", "begin", "call", "thought", "second", "nothing", "call"];
    for keeps in [Keeps::Told, Keeps::OtherIds, Keeps::NoEmptyTurn] {
        for (number, (path, body)) in dialects(false).into_iter().enumerate() {
            let client = Client::new(path, body, keeps);
            let forks = forks(&rig, &format!("{keeps:?}-{number}"), client, &turns).await;
            assert_eq!(forks, [ForkCause::NewLineage], "{path} {keeps:?}");
        }
    }
}

#[tokio::test]
async fn calls_that_a_harness_has_changed_in_meaning_fork_and_say_so() {
    let (rig, _engine) = before(Parsed::HereOfIds, POLICY).await;
    for (number, (path, body)) in dialects(false).into_iter().enumerate() {
        let client = Client::new(path, body, Keeps::OtherMeaning);
        let forks =
            forks(&rig, &format!("changed-{number}"), client, &["call", "nothing", "call"]).await;
        assert!(forks.len() > 1, "{path}: {forks:?}");
        let others = forks.iter().skip(1).all(|cause| *cause == ForkCause::HistoryRewritten);
        assert!(others, "{path}: {forks:?}");
    }
}
