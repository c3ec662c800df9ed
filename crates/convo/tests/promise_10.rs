//! Say it or carry it: whatever a request says reaches the engine, is kept beside it, is
//! written down as a loss, or is refused.
//!
//! Both tests go through realistic requests place by place, so a field that a decoder comes
//! to overlook fails here without anyone having thought of it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use polar_convo::{Block, Dialect, Request, encode_engine_chat};
use serde_json::{Value, json};

const MARK: &str = "polar-test-mark";

const FIXTURES: &[(Dialect, &str)] = &[
    (Dialect::Messages, include_str!("fixtures/claude_code_4_5.messages.json")),
    (Dialect::Messages, include_str!("fixtures/claude_code_unknown_model.messages.json")),
    (Dialect::Messages, include_str!("fixtures/title_request.messages.json")),
    (Dialect::Messages, include_str!("fixtures/everything.messages.json")),
    (Dialect::Chat, include_str!("fixtures/pi.chat.json")),
    (Dialect::Chat, include_str!("fixtures/everything.chat.json")),
    (Dialect::Chat, include_str!("fixtures/functions.chat.json")),
    (Dialect::Chat, include_str!("fixtures/qwen_code.chat.json")),
    (Dialect::Responses, include_str!("fixtures/codex_unknown_model.responses.json")),
    (Dialect::Responses, include_str!("fixtures/codex_known_model.responses.json")),
    (Dialect::Responses, include_str!("fixtures/sdk.responses.json")),
    (Dialect::Google, include_str!("fixtures/gemini_cli.google.json")),
    (Dialect::Google, include_str!("fixtures/everything.google.json")),
];

fn decode(dialect: Dialect, body: &Value) -> Option<Request> {
    dialect.decode_request(body.to_string().as_bytes()).ok()
}

/// Whether the mark is in what the engine gets or in what is kept beside it.
fn carried(request: &Request) -> bool {
    let engine = Value::Object(encode_engine_chat(request)).to_string();
    let unsent = Value::Object(request.unsent.clone()).to_string();
    let mut blocks = request.messages.iter().flat_map(|message| &message.blocks);
    // The mark on reasoning is for whoever made it: the gateway, not the engine.
    let signed = blocks.any(|block| {
        matches!(block, Block::Reasoning { signature: Some(signature), .. } if signature == MARK)
    });
    engine.contains(MARK) || unsent.contains(MARK) || signed
}

fn losses(request: &Request) -> u32 {
    request.losses.iter().map(|loss| loss.count).sum()
}

/// JSON pointers of everything in a value.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                places(field, &format!("{at}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                places(item, &format!("{at}/{i}"), found);
            }
        }
        _ => {}
    }
}

/// Places that say nothing of their own.
const MEANINGLESS: &[&str] = &[
    // Written down whatever they say.
    "/cache_control",
    "/input_examples",
    // Reasoning that only its own server can read.
    "/messages/1/content/1/data",
    // Arguments always stream as they are sampled.
    "/eager_input_streaming",
    // The position in the list, once more.
    "/tool_calls/0/index",
    // Base64 in either alphabet; the engine gets it in one.
    "/inlineData/data",
];

fn is_meaningless(dialect: Dialect, place: &str) -> bool {
    MEANINGLESS.iter().any(|meaningless| place.contains(meaningless))
        || (dialect == Dialect::Responses && names_an_item(place))
}

/// Whether the place is an item's own id or state, which its maker gives it and nobody is told.
fn names_an_item(place: &str) -> bool {
    match place.split('/').collect::<Vec<_>>().as_slice() {
        ["", "input", _, field] => ["id", "status"].contains(field),
        _ => false,
    }
}

/// Changes each place of each fixture that `change` applies to, and says where that went
/// unnoticed: neither refused nor, comparing the request before and after, `noticed`. Returns
/// how many places were tried.
fn check_each_place(
    change: impl Fn(&mut Value) -> bool,
    noticed: impl Fn(&Request, &Request) -> bool,
) -> usize {
    let mut tried = 0;
    for (dialect, text) in FIXTURES {
        let fixture: Value = serde_json::from_str(text).unwrap();
        let before = decode(*dialect, &fixture).unwrap();
        let mut all = Vec::new();
        places(&fixture, "", &mut all);
        for place in all {
            let mut body = fixture.clone();
            if !body.pointer_mut(&place).is_some_and(&change) {
                continue;
            }
            tried += 1;
            let after = decode(*dialect, &body);
            assert!(
                after.is_none_or(|after| noticed(&before, &after))
                    || is_meaningless(*dialect, &place),
                "{dialect:?}: what is said at {place} is dropped in silence"
            );
        }
    }
    tried
}

fn carried_or_written_down(before: &Request, after: &Request) -> bool {
    carried(after) || losses(after) > losses(before)
}

#[test]
fn promise_10_no_unknown_field_is_dropped_in_silence() {
    let add_field = |value: &mut Value| match value {
        Value::Object(fields) => {
            fields.insert("polar_probe".to_owned(), json!(MARK));
            true
        }
        _ => false,
    };
    let tried = check_each_place(add_field, carried_or_written_down);
    assert!(tried > 80, "only {tried} places");
}

#[test]
fn promise_10_no_text_is_dropped_in_silence() {
    let replace = |value: &mut Value| match value {
        Value::String(text) => {
            *text = MARK.to_owned();
            true
        }
        _ => false,
    };
    let tried = check_each_place(replace, carried_or_written_down);
    assert!(tried > 150, "only {tried} places");
}

#[test]
fn promise_10_no_number_or_flag_is_dropped_in_silence() {
    let alter = |value: &mut Value| {
        let altered = match value {
            Value::Bool(flag) => json!(!*flag),
            Value::Number(number) => json!(number.as_f64().unwrap_or_default() as u64 + 1),
            _ => return false,
        };
        *value = altered;
        true
    };
    let tried = check_each_place(alter, |before, after| before != after);
    assert!(tried > 25, "only {tried} places");
}
