//! One conversation as clients of each dialect send it.
//!
//! A fixture has a body for each dialect that can say it, without model and limit, which are added
//! here. All of them, streamed or not, are one request to the engine: the snapshot.

use crate::{DIALECTS, fixtures, golden};
use polar_convo::{Dialect, Request, encode_engine_chat};
use serde_json::{Value, json};

#[test]
fn promise_2_each_request_is_the_same_to_the_engine_in_every_dialect() {
    for (name, fixture) in fixtures("requests") {
        let mut twins = Vec::new();
        for dialect in DIALECTS {
            let Some(body) = fixture.get(dialect.as_str()) else { continue };
            for stream in [false, true] {
                let request = decode(dialect, body, stream);
                assert_eq!(request.stream, stream);
                read_again_it_is_the_same(&name, &request);
                twins.push((dialect, for_the_engine(&request)));
            }
        }
        let (_, first) = &twins[0];
        for (dialect, twin) in &twins {
            assert_eq!(twin, first, "{name} in {}", dialect.as_str());
        }
        golden(&format!("{name}-engine"), &serde_json::to_string_pretty(first).unwrap());
    }
}

fn decode(dialect: Dialect, body: &Value, stream: bool) -> Request {
    let mut body = body.clone();
    if dialect == Dialect::Google {
        // The address says it.
        let mut request = dialect.decode_request(body.to_string().as_bytes()).unwrap();
        request.model = "m".to_owned();
        request.stream = stream;
        return request;
    }
    body["model"] = json!("m");
    body["stream"] = json!(stream);
    if dialect == Dialect::Messages && body.get("max_tokens").is_none() {
        body["max_tokens"] = json!(1000);
    }
    dialect.decode_request(body.to_string().as_bytes()).unwrap()
}

/// All but what belongs to a dialect: its form, and the limit that one of them must have.
fn for_the_engine(request: &Request) -> Value {
    let mut sent = encode_engine_chat(request);
    sent.remove("model");
    sent.remove("stream");
    if sent.get("max_tokens") == Some(&json!(1000)) {
        sent.remove("max_tokens");
    }
    Value::Object(sent)
}

/// What goes to an engine is a Chat request of the same conversation.
fn read_again_it_is_the_same(name: &str, request: &Request) {
    let sent = encode_engine_chat(request);
    let body = Value::Object(sent.clone()).to_string();
    let mut read = Dialect::Chat.decode_request(body.as_bytes()).unwrap();
    read.stream = request.stream;
    assert_eq!(encode_engine_chat(&read), sent, "{name} in {}", request.dialect.as_str());
}
