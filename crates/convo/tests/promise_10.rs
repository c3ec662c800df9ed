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

use polar_convo::{Dialect, Request, encode_engine_chat};
use serde_json::{Value, json};

const MARK: &str = "polar-test-mark";

const FIXTURES: &[(Dialect, &str)] = &[
    (Dialect::Messages, include_str!("fixtures/claude_code_4_5.messages.json")),
    (Dialect::Messages, include_str!("fixtures/claude_code_unknown_model.messages.json")),
    (Dialect::Messages, include_str!("fixtures/title_request.messages.json")),
    (Dialect::Chat, include_str!("fixtures/pi.chat.json")),
    (Dialect::Chat, include_str!("fixtures/qwen_code.chat.json")),
];

fn decode(dialect: Dialect, body: &Value) -> Option<Request> {
    dialect.decode_request(body.to_string().as_bytes()).ok()
}

/// Whether the mark is in what the engine gets or in what is kept.
fn carried(request: &Request) -> bool {
    let engine = Value::Object(encode_engine_chat(request)).to_string();
    engine.contains(MARK) || format!("{request:?}").contains(MARK)
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

/// Changes each place of each fixture that `change` applies to, and says where that went
/// unnoticed. Returns how many places were tried.
fn check_each_place(change: impl Fn(&mut Value) -> bool) -> usize {
    let mut tried = 0;
    for (dialect, text) in FIXTURES {
        let fixture: Value = serde_json::from_str(text).unwrap();
        let baseline = losses(&decode(*dialect, &fixture).unwrap());
        let mut all = Vec::new();
        places(&fixture, "", &mut all);
        for place in all {
            let mut body = fixture.clone();
            if !body.pointer_mut(&place).is_some_and(&change) {
                continue;
            }
            tried += 1;
            let noticed = match decode(*dialect, &body) {
                None => true,
                Some(request) => carried(&request) || losses(&request) > baseline,
            };
            // Marks of the prompt cache are written down whatever they say.
            assert!(
                noticed || place.contains("/cache_control"),
                "{dialect:?}: what is said at {place} is dropped in silence"
            );
        }
    }
    tried
}

#[test]
fn promise_10_no_unknown_field_is_dropped_in_silence() {
    let tried = check_each_place(|value| match value {
        Value::Object(fields) => {
            fields.insert("polar_probe".to_owned(), json!(MARK));
            true
        }
        _ => false,
    });
    assert!(tried > 80, "only {tried} places");
}

#[test]
fn promise_10_no_text_is_dropped_in_silence() {
    let tried = check_each_place(|value| match value {
        // Claude Code's billing line is taken out whatever it says.
        Value::String(text) if !text.starts_with("x-anthropic-billing") => {
            *text = MARK.to_owned();
            true
        }
        _ => false,
    });
    assert!(tried > 150, "only {tried} places");
}

#[test]
fn promise_10_every_loss_has_one_stable_name() {
    for (dialect, text) in FIXTURES {
        for loss in dialect.decode_request(text.as_bytes()).unwrap().losses {
            assert_eq!(json!(loss.kind), loss.kind.as_str());
        }
    }
}
