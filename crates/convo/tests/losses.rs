//! The table of losses is one, wherever it stands.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use polar_convo::loss::markdown_table;
use polar_convo::{Block, Dialect, LossKind};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn the_documents_have_the_table_of_this_code() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/dialects.md");
    let document = std::fs::read_to_string(document).unwrap();
    assert!(document.contains(&markdown_table()), "run `cargo xtask dialects`");
}

#[test]
fn promise_10_every_loss_has_one_stable_name() {
    let mut names = BTreeSet::new();
    for kind in LossKind::ALL {
        assert_eq!(json!(kind), kind.as_str());
        assert!(names.insert(kind.as_str()), "{} stands twice", kind.as_str());
        assert!(kind.about().ends_with('.') && !kind.about().contains('|'), "{}", kind.about());
    }
}

/// What no fixture says, in as few words as it takes.
fn lossy_requests() -> Vec<(Dialect, Value)> {
    let thought = |sealed: Value, content: &str, summary: &str| {
        json!({
            "type": "reasoning", "encrypted_content": sealed,
            "content": [{"type": "reasoning_text", "text": content}],
            "summary": [{"type": "summary_text", "text": summary}],
        })
    };
    vec![
        (
            Dialect::Chat,
            json!({
                "model": "m", "messages": [{"role": "user", "content": "x"}],
                "tools": [{"type": "function", "more": 1, "function": {"name": "f"}}],
                "stream_options": {"more": 1},
            }),
        ),
        (
            Dialect::Messages,
            json!({
                "model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}],
                "more": 1,
            }),
        ),
        (
            Dialect::Responses,
            json!({"model": "m", "more": 1, "input": [
                thought(json!("polar-reasoning:sampled"), "edited", "sampled"),
                thought(Value::Null, "all of it", "some of it"),
                thought(json!("another server's"), "", ""),
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                thought(Value::Null, "too late", ""),
                {"type": "function_call_output", "call_id": "c", "output": "x"},
            ]}),
        ),
        (
            Dialect::Google,
            json!({
                "contents": [
                    {"role": "user", "parts": [{"text": "x"}]},
                    {"role": "model", "parts": [
                        {"functionCall": {"id": "c", "name": "f"}, "thoughtSignature": "YWJj"},
                        {"text": "after it"},
                    ]},
                    {"role": "user", "parts": [
                        {"functionResponse": {"id": "c", "name": "g", "response": {}}},
                    ]},
                ],
                "tools": [{"functionDeclarations": [{"name": "f", "more": 1}]}],
                "toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}},
            }),
        ),
    ]
}

/// Each kind is met in each dialect that the table says, and in no other.
#[test]
fn promise_10_the_table_says_where_each_loss_is_met() {
    let mut met = BTreeSet::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let dialect: Dialect =
            serde_json::from_value(json!(name.split('.').nth(1).unwrap())).unwrap();
        let request = dialect.decode_request(&std::fs::read(path).unwrap()).unwrap();
        met.extend(request.losses.iter().map(|loss| (loss.kind.as_str(), dialect.as_str())));
    }
    for (dialect, body) in lossy_requests() {
        let request = dialect.decode_request(body.to_string().as_bytes()).unwrap();
        met.extend(request.losses.iter().map(|loss| (loss.kind.as_str(), dialect.as_str())));
    }
    // A text that was cut inside a letter, which serde_json writes as little as it reads it.
    let cut = r#"{"model": "m", "max_tokens": 1, "input": "\ud83d", "messages": [
        {"role": "user", "content": "\ud83d"}], "contents": [{"parts": [{"text": "\ud83d"}]}]}"#;
    for dialect in [Dialect::Chat, Dialect::Messages, Dialect::Responses, Dialect::Google] {
        let request = dialect.decode_request(cut.as_bytes()).unwrap();
        let last = request.messages.last().unwrap();
        assert_eq!(last.blocks, [Block::Text("\u{fffd}".to_owned())], "{dialect:?}");
        assert_eq!(
            dialect.decode_count_request(cut.as_bytes()).unwrap().messages.last(),
            Some(last)
        );
        let lost = request.losses.iter().filter(|l| l.kind == LossKind::LoneSurrogateReplaced);
        met.extend(lost.map(|loss| (loss.kind.as_str(), dialect.as_str())));
        assert!(request.losses.iter().any(|loss| loss.count == 3), "{:?}", request.losses);
    }
    // What an engine loses no request says.
    let table = LossKind::ALL.iter().filter(|kind| **kind != LossKind::ReplyUnreadable);
    let told: BTreeSet<_> = table
        .flat_map(|kind| kind.dialects().iter().map(|dialect| (kind.as_str(), dialect.as_str())))
        .collect();
    assert_eq!(met, told);
}
