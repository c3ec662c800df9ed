//! Calls that the end of a reply cuts, at the token limit or at a stop string: harnesses get what the
//! vendor of their dialect gives, whoever takes the reply apart, and never a whole call.

use crate::raw_text::{Parsed, ask, before, calls, documents, offer};
use crate::{Rig, dialects, say};
use polar_types::{HarnessRules, HistoryPolicy, SamplingPins};
use serde_json::{Value, json};

const POLICY: &str = r#"
name: cut calls
rules:
  - name: inside
    when: {instruction: limit inside}
    reply:
      finish: length
      raw: "<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"path\": \"src"
  - name: before
    when: {instruction: limit before}
    reply:
      finish: length
      raw: "<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"look\", \"arguments\": "
  - name: behind
    when: {instruction: stop behind}
    reply:
      raw: "<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"path\": \"src\"}}\n</tool_call>HALT and more"
default:
  raw: "<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"path\": \"src HALT x\"}}\n</tool_call>"
"#;

/// What is asked, the stop string, and what of the call is sampled.
struct Case {
    instruction: &'static str,
    stop: Option<&'static str>,
    arguments: &'static str,
    ends: Ends,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    AtTheLimit,
    AtTheStop,
    InACall,
}

const CASES: [Case; 5] = [
    Case {
        instruction: "limit inside",
        stop: None,
        arguments: "{\"path\": \"src",
        ends: Ends::AtTheLimit,
    },
    Case { instruction: "limit before", stop: None, arguments: "", ends: Ends::AtTheLimit },
    Case {
        instruction: "stop inside",
        stop: Some(" HALT"),
        arguments: "{\"path\": \"src",
        ends: Ends::AtTheStop,
    },
    Case {
        instruction: "stop before",
        stop: Some("{\"path\""),
        arguments: "",
        ends: Ends::AtTheStop,
    },
    Case {
        instruction: "stop behind",
        stop: Some("HALT"),
        arguments: "{\"path\": \"src\"}",
        ends: Ends::InACall,
    },
];

#[tokio::test]
async fn a_call_that_the_reply_ends_in_is_told_as_the_dialects_vendor_tells_it() {
    for parsed in [Parsed::ByEngine, Parsed::HereOfText, Parsed::HereOfIds] {
        let (rig, _engine) = before(parsed, POLICY).await;
        for (number, case) in CASES.iter().enumerate() {
            told(&rig, parsed, &format!("s{number}"), case).await;
        }
    }
}

async fn told(rig: &Rig, parsed: Parsed, name: &str, case: &Case) {
    let pins = SamplingPins {
        stop: case.stop.map(|stop| vec![stop.to_owned()]),
        ..SamplingPins::default()
    };
    let session = rig.open_with(name, pins, HistoryPolicy::default(), HarnessRules::default());
    for stream in [false, true] {
        // vLLM takes a whole reply with half a call for text.
        if parsed == Parsed::ByEngine && !stream && case.ends != Ends::InACall {
            continue;
        }
        for (path, mut body) in dialects(stream) {
            offer(path, &mut body);
            say(&mut body, case.instruction.to_owned());
            let told = ask(rig, session.secret(), path, &body).await;
            let about = format!("{parsed:?} {path} stream {stream} {}: {told}", case.instruction);
            let documents = documents(&told);
            end(path, &documents, case, &about);
            call(path, &told, &documents, case, &about);
        }
    }
    session.close().unwrap();
    let recorded = rig.recorded(name);
    for call in recorded.calls() {
        let expected = match case.ends {
            Ends::AtTheLimit => "length",
            Ends::AtTheStop => "stop_sequence",
            Ends::InACall => "tool_calls",
        };
        assert_eq!(call.meta.finish_reason, expected, "{parsed:?} {}", case.instruction);
        let reply = recorded.reply(call);
        let function = &reply["tool_calls"][0]["function"];
        assert_eq!(function["arguments"], case.arguments, "{parsed:?} {reply}");
        if parsed != Parsed::ByEngine {
            let faults = &call.meta.extra.get("parse_faults");
            let fault = faults.map_or(&Value::Null, |faults| &faults[0]["fault"]);
            let is_whole = case.ends == Ends::InACall;
            assert_eq!(fault.as_str(), (!is_whole).then_some("unfinished"), "{faults:?}");
        }
    }
}

/// How the reply is said to have ended.
fn end(path: &str, documents: &[Value], case: &Case, about: &str) {
    let last = |pointer: &str| {
        let found = documents.iter().rev().filter_map(|document| document.pointer(pointer));
        found.filter_map(Value::as_str).next().map(str::to_owned)
    };
    let (pointers, names): (&[&str], [&str; 3]) = if path == "/v1/chat/completions" {
        (&["/choices/0/finish_reason"], ["length", "stop", "tool_calls"])
    } else if path == "/v1/messages" {
        (&["/delta/stop_reason", "/stop_reason"], ["max_tokens", "stop_sequence", "tool_use"])
    } else if path == "/v1/responses" {
        (&["/response/status", "/status"], ["incomplete", "completed", "completed"])
    } else {
        (&["/candidates/0/finishReason"], ["MAX_TOKENS", "STOP", "STOP"])
    };
    let said = pointers.iter().find_map(|pointer| last(pointer));
    assert_eq!(said.as_deref(), Some(names[case.ends as usize]), "{about}");
    if path == "/v1/messages" && case.ends == Ends::AtTheStop {
        let value = ["/delta/stop_sequence", "/stop_sequence"].iter().find_map(|at| last(at));
        assert_eq!(value.as_deref(), case.stop, "{about}");
    }
}

/// What is told of the call.
fn call(path: &str, told: &str, documents: &[Value], case: &Case, about: &str) {
    let calls = calls(path, told);
    if case.ends == Ends::InACall {
        let arguments: Value = serde_json::from_str(&calls[0].1).unwrap();
        assert_eq!(arguments, json!({"path": "src"}), "{about}");
        return;
    }
    if path.starts_with("/v1beta") {
        assert_eq!(calls, [], "{about}");
        return;
    }
    let [(name, arguments)] = calls.as_slice() else { panic!("{about}") };
    assert_eq!(name, "look");
    match (path, documents.len()) {
        ("/v1/messages", number) if number == 1 || case.arguments.is_empty() => {
            let input: Value = serde_json::from_str(arguments).unwrap();
            assert_eq!(input, json!({"_unparsed_arguments": case.arguments}), "{about}");
        }
        _ => assert_eq!(arguments, case.arguments, "{about}"),
    }
    if path == "/v1/responses" {
        let whole = documents.last().unwrap();
        let output = whole.get("response").unwrap_or(whole)["output"].as_array().unwrap();
        assert_eq!(output.last().unwrap()["status"], "incomplete", "{about}");
    }
}
