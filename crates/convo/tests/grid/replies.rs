//! Replies as the clients of each dialect read them.
//!
//! A fixture says what the engine gives (`events`), why it ended (`finish`, `stop_sequence`) and
//! whether the client wants logprobs.

use crate::readers::{events, read, read_google};
use crate::{DIALECTS, fixtures, golden};
use polar_convo::{
    ChatTerms, Dialect, FinishReason, GoogleFraming, GoogleTerms, Reply, ReplyEnd, ReplyEvent,
    ReplyHead, SampledToken, StreamEncoder, Usage, unary_body,
};
use serde_json::Value;

#[test]
fn each_reply_in_each_dialect_whole_and_streamed() {
    for (name, fixture) in fixtures("replies") {
        for dialect in DIALECTS {
            let cell = |form| format!("{name}-{}-{form}", dialect.as_str());
            let head = head(dialect, &fixture);
            let stream = stream(dialect, &head, &fixture);
            golden(&cell("stream"), &String::from_utf8(stream.clone()).unwrap());
            let whole = unary_body(dialect, &head, &reply(&fixture), &end(&fixture));
            golden(&cell("unary"), &String::from_utf8(whole.clone()).unwrap());
            let whole = as_read(dialect, serde_json::from_slice(&whole).unwrap());
            for size in [1, 2, 3, 7, 64, stream.len()] {
                let read = read(dialect, events(&stream, size));
                assert_eq!(read, whole, "{} in pieces of {size}", cell("stream"));
            }
        }
    }
}

/// In the other framing of Google's dialect it is the same stream.
#[test]
fn each_reply_is_the_same_in_an_array() {
    for (name, fixture) in fixtures("replies") {
        let mut head = head(Dialect::Google, &fixture);
        let in_events =
            read(Dialect::Google, events(&stream(Dialect::Google, &head, &fixture), 64));
        head.google.framing = GoogleFraming::Array;
        let array = serde_json::from_slice(&stream(Dialect::Google, &head, &fixture)).unwrap();
        assert_eq!(read_google(array), in_events, "{name}");
    }
}

/// To a client of Google's dialect texts in a row are one, whatever stood between them.
fn as_read(dialect: Dialect, whole: Value) -> Value {
    match dialect {
        Dialect::Google => read_google(vec![whole]),
        _ => whole,
    }
}

fn head(dialect: Dialect, fixture: &Value) -> ReplyHead {
    let id = match dialect {
        Dialect::Chat => "chatcmpl-1",
        Dialect::Messages => "msg_1",
        Dialect::Responses => "resp_1",
        Dialect::Google => "g1",
    };
    let logprobs = fixture["logprobs"] == true;
    ReplyHead {
        id: id.to_owned(),
        model: "lab-model".to_owned(),
        created: 1_700_000_000,
        prompt_tokens: Some(120),
        responses: None,
        chat: ChatTerms { include_usage: true, logprobs, ..ChatTerms::default() },
        google: GoogleTerms { include_thoughts: true, ..GoogleTerms::default() },
    }
}

fn stream(dialect: Dialect, head: &ReplyHead, fixture: &Value) -> Vec<u8> {
    let mut encoder = StreamEncoder::new(dialect, head.clone());
    let mut out = Vec::new();
    for step in steps(fixture) {
        match step {
            Step::KeepAlive => encoder.keep_alive(&mut out),
            Step::Event(event) => encoder.event(&event, &mut out),
            Step::Tokens(ids, logprobs) => encoder.tokens(&ids, &logprobs, &mut out),
        }
    }
    encoder.end(&end(fixture), &mut out);
    assert!(encoder.is_closed());
    out
}

fn reply(fixture: &Value) -> Reply {
    let mut reply = Reply::default();
    for step in steps(fixture) {
        match step {
            Step::KeepAlive => {}
            Step::Event(event) => reply.push(&event),
            Step::Tokens(ids, logprobs) => {
                reply.tokens.extend(SampledToken::zip(&ids, &logprobs));
            }
        }
    }
    reply
}

fn end(fixture: &Value) -> ReplyEnd {
    let finish: FinishReason = serde_json::from_value(fixture["finish"].clone()).unwrap();
    ReplyEnd {
        finish,
        stop_sequence: fixture["stop_sequence"].as_str().map(str::to_owned),
        usage: Usage {
            prompt_tokens: 120,
            completion_tokens: 30,
            cached_tokens: Some(64),
            reasoning_tokens: Some(5),
        },
    }
}

/// What happens to a stream.
enum Step {
    KeepAlive,
    Event(ReplyEvent),
    Tokens(Vec<u32>, Vec<Option<f32>>),
}

fn steps(fixture: &Value) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut calls = 0;
    for event in fixture["events"].as_array().unwrap() {
        let text = |field: &str| event[field].as_str().map(str::to_owned);
        // A call is the next one, and arguments are the last call's, if nothing else is said.
        let index = event["index"].as_u64().map(|index| index as u32);
        if event == "keep_alive" {
            steps.push(Step::KeepAlive);
        } else if let Some(text) = text("text") {
            steps.push(Step::Event(ReplyEvent::Text(text)));
        } else if let Some(text) = text("reasoning") {
            steps.push(Step::Event(ReplyEvent::Reasoning(text)));
        } else if let Some(name) = text("call") {
            let (index, id) = (index.unwrap_or(calls), text("id").unwrap());
            steps.push(Step::Event(ReplyEvent::ToolCall { index, id, name }));
            calls += 1;
        } else if let Some(fragment) = text("arguments") {
            let index = index.unwrap_or(calls - 1);
            steps.push(Step::Event(ReplyEvent::ToolArguments { index, fragment }));
        }
        if let Some(tokens) = event.get("tokens") {
            let tokens: Vec<(u32, Option<f32>)> = serde_json::from_value(tokens.clone()).unwrap();
            let (ids, logprobs) = tokens.into_iter().unzip();
            steps.push(Step::Tokens(ids, logprobs));
        }
    }
    steps
}
