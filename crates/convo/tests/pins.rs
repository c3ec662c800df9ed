//! Pins replace what the harness sends, on the way to the engine.

use polar_convo::{Dialect, apply_pins, encode_engine_chat};
use polar_types::SamplingPins;
use serde_json::json;

#[test]
fn pins_replace_what_the_harness_sends_and_leave_the_rest() {
    let body = json!({
        "model": "m", "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0, "top_p": 0.5, "seed": 1, "stop": "END",
    });
    let mut request = Dialect::Chat.decode_request(body.to_string().as_bytes()).unwrap();
    let pins = SamplingPins {
        temperature: Some(1.0),
        top_k: Some(-1),
        max_tokens: Some(64),
        stop: Some(Vec::new()),
        ..SamplingPins::default()
    };
    apply_pins(&mut request.sampling, &pins);
    let sent = encode_engine_chat(&request);
    assert_eq!(
        serde_json::Value::Object(sent),
        json!({
            "model": "m", "messages": [{"role": "user", "content": "hi"}],
            "temperature": 1.0, "top_p": 0.5, "top_k": -1, "max_tokens": 64, "seed": 1,
            "stream": false,
        })
    );
}
