//! Errors, model lists and counts in each dialect.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use polar_convo::{
    ApiError, ContextUse, Dialect, ModelInfo, error_response, model_body, models_body,
    token_count_body,
};
use polar_types::ErrorClass;
use serde_json::{Value, json};

fn body(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

#[test]
fn every_class_has_a_status_a_type_and_a_retry_hint_in_each_dialect() {
    use ErrorClass as C;
    let cases = [
        // class, Chat status and type and code, Messages status and type, retry-after
        (C::Invalid, 400, "invalid_request_error", None, 400, "invalid_request_error", None),
        (
            C::Unauthenticated,
            401,
            "invalid_request_error",
            Some("invalid_api_key"),
            401,
            "authentication_error",
            None,
        ),
        (
            C::NotFound,
            404,
            "invalid_request_error",
            Some("not_found"),
            404,
            "not_found_error",
            None,
        ),
        (
            C::Conflict,
            409,
            "invalid_request_error",
            Some("conflict"),
            409,
            "invalid_request_error",
            None,
        ),
        (
            C::TooLarge,
            413,
            "invalid_request_error",
            Some("request_too_large"),
            413,
            "request_too_large",
            None,
        ),
        (
            C::RateLimited,
            429,
            "rate_limit_error",
            Some("rate_limit_exceeded"),
            429,
            "rate_limit_error",
            Some("2"),
        ),
        (
            C::Overloaded,
            429,
            "overloaded_error",
            Some("overloaded"),
            529,
            "overloaded_error",
            Some("5"),
        ),
        (
            C::Unavailable,
            503,
            "server_error",
            Some("engine_unavailable"),
            503,
            "api_error",
            Some("5"),
        ),
        (C::Timeout, 504, "server_error", Some("timeout"), 504, "timeout_error", None),
        (
            C::Cancelled,
            499,
            "invalid_request_error",
            Some("cancelled"),
            499,
            "invalid_request_error",
            None,
        ),
        (C::Internal, 500, "server_error", None, 500, "api_error", None),
    ];
    for (class, chat_status, chat_type, code, messages_status, messages_type, retry) in cases {
        let error = ApiError::new(class, "what happened; what to do");
        let chat = error_response(Dialect::Chat, &error);
        assert_eq!(chat.status, chat_status, "{class:?}");
        assert_eq!(
            body(&chat.body),
            json!({"error": {
                "message": "what happened; what to do", "type": chat_type, "param": null,
                "code": code,
            }})
        );
        let messages = error_response(Dialect::Messages, &error);
        assert_eq!(messages.status, messages_status, "{class:?}");
        assert_eq!(
            body(&messages.body),
            json!({"type": "error", "error": {
                "type": messages_type, "message": "what happened; what to do",
            }})
        );
        // The two dialects of OpenAI say it alike.
        let responses = error_response(Dialect::Responses, &error);
        assert_eq!(responses, chat, "{class:?}");
        for response in [chat, messages] {
            let header =
                |name| response.headers.iter().find(|(n, _)| *n == name).map(|(_, v)| v.as_str());
            assert_eq!(header("retry-after"), retry, "{class:?}");
            assert_eq!(header("content-type"), Some("application/json"));
            let retryable = class.is_retryable().to_string();
            let hint = (class != C::Internal).then_some(retryable.as_str());
            assert_eq!(header("x-should-retry"), hint, "{class:?}");
        }
    }
}

#[test]
fn every_class_has_a_status_of_google() {
    use ErrorClass as C;
    for (class, code, status, retry) in [
        (C::Invalid, 400, "INVALID_ARGUMENT", None),
        (C::ContextOverflow, 400, "INVALID_ARGUMENT", None),
        (C::Unauthenticated, 401, "UNAUTHENTICATED", None),
        (C::NotFound, 404, "NOT_FOUND", None),
        (C::Conflict, 409, "ABORTED", None),
        (C::TooLarge, 413, "INVALID_ARGUMENT", None),
        (C::RateLimited, 429, "RESOURCE_EXHAUSTED", Some("2")),
        (C::Cancelled, 499, "CANCELLED", None),
        (C::Internal, 500, "INTERNAL", None),
        (C::Overloaded, 503, "UNAVAILABLE", Some("5")),
        (C::Unavailable, 503, "UNAVAILABLE", Some("5")),
        (C::Timeout, 504, "DEADLINE_EXCEEDED", None),
    ] {
        let response = error_response(Dialect::Google, &ApiError::new(class, "what to do"));
        assert_eq!(response.status, code, "{class:?}");
        let error = &body(&response.body)["error"];
        assert_eq!((&error["code"], &error["status"]), (&json!(code), &json!(status)));
        assert!(error["message"].as_str().unwrap().contains("what to do"));
        // Clients of this dialect read the delay in the body.
        let details = retry.map(|seconds| {
            json!({"@type": "type.googleapis.com/google.rpc.RetryInfo",
                "retryDelay": format!("{seconds}s")})
        });
        assert_eq!(error["details"], json!(details.into_iter().collect::<Vec<_>>()));
        let header = response.headers.iter().find(|(name, _)| *name == "retry-after");
        assert_eq!(header.map(|(_, value)| value.as_str()), retry);
    }
}

#[test]
fn a_wrong_field_is_named_in_googles_details() {
    let error = Dialect::Google.decode_request(br#"{"contents": 3}"#).unwrap_err();
    let response = error_response(Dialect::Google, &ApiError::from(error));
    let details = &body(&response.body)["error"]["details"];
    assert_eq!(details[0]["@type"], "type.googleapis.com/google.rpc.BadRequest");
    let violation = &details[0]["fieldViolations"][0];
    assert_eq!(violation["field"], "contents");
    assert!(violation["description"].as_str().unwrap().contains("is a number"));
}

/// Anthropic's clients then send the whole conversation.
#[test]
fn a_thread_is_refused_with_the_code_that_clients_look_for() {
    let request = br#"{"model": "m", "max_tokens": 1, "thread": {"type": "create"},
        "messages": [{"role": "user", "content": "x"}]}"#;
    let error = ApiError::from(Dialect::Messages.decode_request(request).unwrap_err());
    let response = error_response(Dialect::Messages, &error);
    assert_eq!(response.status, 400);
    let told = &body(&response.body)["error"];
    assert_eq!(told["details"], json!({"error_code": "thread_unsupported_request"}));
}

#[test]
fn a_context_overflow_is_worded_as_each_vendor_does() {
    let known = ApiError::context_overflow(
        "the engine said so",
        Some(ContextUse { tokens: 210_000, window: 200_000 }),
    );
    let unknown = ApiError::context_overflow("the engine said so", None);
    let message = |dialect, error| {
        let response = error_response(dialect, error);
        assert_eq!(response.status, 400);
        body(&response.body)["error"]["message"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(
        message(Dialect::Messages, &known),
        "prompt is too long: 210000 tokens > 200000 maximum"
    );
    assert_eq!(message(Dialect::Messages, &unknown), "prompt is too long: the engine said so");
    assert_eq!(
        message(Dialect::Google, &known),
        "The input token count (210000) exceeds the maximum number of tokens allowed (200000)."
    );
    assert!(message(Dialect::Google, &unknown).contains("input token count exceeds the maximum"));
    assert!(
        message(Dialect::Chat, &known)
            .starts_with("This model's maximum context length is 200000 tokens.")
    );
    assert!(message(Dialect::Chat, &unknown).contains("maximum context length"));
    let chat = body(&error_response(Dialect::Chat, &known).body);
    assert_eq!(chat["error"]["code"], "context_length_exceeded");
    assert_eq!(chat["error"]["param"], "messages");
    let responses = body(&error_response(Dialect::Responses, &known).body);
    assert_eq!(responses["error"]["code"], "context_length_exceeded");
    assert_eq!(responses["error"]["param"], "input");
    for error in [&known, &unknown] {
        let message = message(Dialect::Responses, error);
        assert!(message.starts_with("Your input exceeds the context window of this model."));
    }
}

#[test]
fn a_retry_hint_is_whole_seconds_within_reason() {
    for (seconds, header) in [(0.2, "1"), (1.01, "2"), (60.0, "60"), (1e9, "3600"), (-3.0, "1")] {
        let error = ApiError::new(ErrorClass::RateLimited, "slow down").retry_after(seconds);
        let response = error_response(Dialect::Chat, &error);
        assert!(response.headers.contains(&("retry-after", header.to_owned())), "{seconds}");
    }
}

#[test]
fn an_unknown_route_is_told_in_the_dialect() {
    let error = ApiError::unknown_route("POST", "/v1/completions");
    let response = error_response(Dialect::Chat, &error);
    assert_eq!(response.status, 404);
    let message = body(&response.body)["error"]["message"].to_string();
    assert!(message.contains("POST /v1/completions is not served"), "{message}");
}

#[test]
fn model_lists_tell_the_context_window() {
    let models = [
        ModelInfo { id: "lab".to_owned(), context_window: Some(32768) },
        ModelInfo { id: "other".to_owned(), context_window: None },
    ];
    let chat = body(&models_body(Dialect::Chat, &models));
    assert_eq!(
        chat,
        json!({"object": "list", "data": [
            {"id": "lab", "object": "model", "created": 0, "owned_by": "polar", "max_model_len": 32768},
            {"id": "other", "object": "model", "created": 0, "owned_by": "polar"},
        ]})
    );
    let messages = body(&models_body(Dialect::Messages, &models));
    assert_eq!(messages["data"][0]["max_input_tokens"], 32768);
    assert_eq!(messages["first_id"], "lab");
    assert_eq!(messages["last_id"], "other");
    assert_eq!(messages["has_more"], false);
    let google = body(&models_body(Dialect::Google, &models));
    assert_eq!(google["models"][0]["name"], "models/lab");
    assert_eq!(google["models"][0]["inputTokenLimit"], 32768);
    assert_eq!(google["models"][1].get("inputTokenLimit"), None);
    assert_eq!(body(&model_body(Dialect::Google, &models[0])), google["models"][0]);
    for (dialect, list) in [(Dialect::Chat, chat), (Dialect::Messages, messages)] {
        assert_eq!(body(&model_body(dialect, &models[0])), list["data"][0]);
    }
}

#[test]
fn a_count_is_one_number() {
    let count = |dialect| body(&token_count_body(dialect, 42));
    assert_eq!(count(Dialect::Messages), json!({"input_tokens": 42}));
    assert_eq!(count(Dialect::Google), json!({"totalTokens": 42}));
}

/// A field out of its range or of another type, in each dialect that has it.
#[test]
fn a_field_that_engines_would_refuse_is_named_with_the_mend() {
    let message = json!([{"role": "user", "content": "x"}]);
    let dialects = [
        (Dialect::Chat, json!({"model": "m", "messages": message}), "top_p", ""),
        (
            Dialect::Messages,
            json!({"model": "m", "max_tokens": 1, "messages": message}),
            "top_p",
            "",
        ),
        (Dialect::Responses, json!({"model": "m", "input": "x"}), "top_p", ""),
        (
            Dialect::Google,
            json!({"contents": [{"role": "user", "parts": [{"text": "x"}]}]}),
            "topP",
            "generationConfig",
        ),
    ];
    for (dialect, whole, top_p, under) in dialects {
        let refused = |name: &str, value: Value| {
            let mut body = whole.clone();
            match under {
                "" => body[name] = value,
                under => body[under] = json!({name: value}),
            }
            let error = dialect.decode_request(body.to_string().as_bytes()).expect_err(name);
            let at = if under.is_empty() { name.to_owned() } else { format!("{under}.{name}") };
            assert_eq!(error.field, at, "{dialect:?}: {error}");
            let response = error_response(dialect, &ApiError::from(error.clone()));
            assert_eq!(response.status, 400);
            let told = body_text(&response.body);
            assert!(told.contains(&at), "{dialect:?}: {told}");
            error.to_string()
        };
        for value in [json!(-0.5), json!("hot")] {
            assert!(refused("temperature", value).contains("send a number"), "{dialect:?}");
        }
        for value in [json!(0), json!(1.01), json!(-1), json!([])] {
            assert!(refused(top_p, value).contains("send a number"), "{dialect:?}");
        }
        if matches!(dialect, Dialect::Chat | Dialect::Google) {
            let huge: Value = serde_json::from_str("1180591620717411303424").unwrap();
            let said = refused("seed", huge);
            assert!(said.contains("to 9223372036854775807"), "{said}");
            assert!(refused("seed", json!("7")).contains("is a string; send a whole number"));
        }
        let stop = match dialect {
            Dialect::Chat => ("stop", "a string or a list of strings"),
            Dialect::Messages => ("stop_sequences", "a list"),
            Dialect::Google => ("stopSequences", "a list"),
            Dialect::Responses => continue,
        };
        let said = refused(stop.0, json!(5));
        assert!(said.contains(&format!("is a number; send {}", stop.1)), "{said}");
    }
}

fn body_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
