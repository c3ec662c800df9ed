//! Replies as each dialect's clients read them, byte for byte.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use polar_convo::{
    ApiError, ChatTerms, ContextUse, Dialect, FinishReason, GoogleFraming, GoogleTerms, Reply,
    ReplyEnd, ReplyEvent, ReplyHead, SampledToken, StreamEncoder, Usage, unary_body,
};
use polar_types::ErrorClass;

fn head(id: &str) -> ReplyHead {
    ReplyHead {
        id: id.to_owned(),
        model: "lab-model".to_owned(),
        created: 1_700_000_000,
        prompt_tokens: Some(120),
        responses: None,
        chat: ChatTerms { include_usage: true, ..ChatTerms::default() },
        google: GoogleTerms { include_thoughts: true, ..GoogleTerms::default() },
    }
}

fn end(finish: FinishReason) -> ReplyEnd {
    ReplyEnd {
        finish,
        stop_sequence: None,
        usage: Usage {
            prompt_tokens: 120,
            completion_tokens: 30,
            cached_tokens: Some(64),
            reasoning_tokens: Some(5),
        },
    }
}

fn call(index: u32, id: &str, name: &str) -> ReplyEvent {
    ReplyEvent::ToolCall { index, id: id.to_owned(), name: name.to_owned() }
}

fn arguments(index: u32, fragment: &str) -> ReplyEvent {
    ReplyEvent::ToolArguments { index, fragment: fragment.to_owned() }
}

/// Thinking, text and two parallel calls, with the empty deltas that engines send in between.
fn everything() -> Vec<ReplyEvent> {
    vec![
        ReplyEvent::Text(String::new()),
        ReplyEvent::Reasoning("Look ".to_owned()),
        ReplyEvent::Reasoning("first.\n".to_owned()),
        ReplyEvent::Reasoning(String::new()),
        ReplyEvent::Text("I'll \"look\".".to_owned()),
        call(0, "toolu_01", "Read"),
        arguments(0, ""),
        arguments(0, "{\"file_path\": "),
        arguments(0, "\"/work/ü.py\"}"),
        call(1, "toolu_02", "Bash"),
        arguments(1, "{\"command\":\"ls\"}"),
    ]
}

fn encoder(dialect: Dialect, id: &str) -> StreamEncoder {
    StreamEncoder::new(dialect, head(id))
}

fn text(out: Vec<u8>) -> String {
    String::from_utf8_lossy(&out).into_owned()
}

/// To a client that offers `functions` and wants to know logprobs.
#[test]
fn the_older_form_of_a_call_and_logprobs() {
    let chat = ChatTerms { include_usage: false, logprobs: true, functions: true };
    let head = ReplyHead { chat, ..head("chatcmpl-1") };
    let mut encoder = StreamEncoder::new(Dialect::Chat, head.clone());
    let (mut out, mut reply) = (Vec::new(), Reply::default());
    for (i, event) in everything().iter().enumerate().take(8) {
        encoder.event(event, &mut out);
        reply.push(event);
        let (ids, logprobs) = ([i as u32, 7], [Some(-0.5), None]);
        encoder.tokens(&ids, &logprobs, &mut out);
        reply.tokens.extend(SampledToken::zip(&ids, &logprobs));
    }
    encoder.end(&end(FinishReason::ToolCalls), &mut out);
    insta::assert_snapshot!("functions.events-chat", text(out));
    let body = unary_body(Dialect::Chat, &head, &reply, &end(FinishReason::ToolCalls));
    insta::assert_snapshot!("functions.unary-chat", text(body));
}

#[test]
fn a_second_call_that_cannot_be_told_is_an_error_and_never_dropped() {
    let chat = ChatTerms { functions: true, ..ChatTerms::default() };
    let head = ReplyHead { chat, ..head("chatcmpl-1") };
    let mut encoder = StreamEncoder::new(Dialect::Chat, head.clone());
    let (mut out, mut reply) = (Vec::new(), Reply::default());
    for event in everything() {
        encoder.event(&event, &mut out);
        reply.push(&event);
    }
    assert!(encoder.is_closed());
    let out = text(out);
    assert!(out.contains("two functions at once") && !out.contains("finish_reason\":\"f"), "{out}");
    assert_eq!(head.untellable(&reply).unwrap().class, ErrorClass::Internal);
}

fn failing(dialect: Dialect, id: &str, error: &ApiError) -> String {
    let mut encoder = encoder(dialect, id);
    let mut out = Vec::new();
    encoder.event(&ReplyEvent::Text("Half a".to_owned()), &mut out);
    encoder.error(error, &mut out);
    encoder.event(&ReplyEvent::Text(" sentence".to_owned()), &mut out);
    encoder.keep_alive(&mut out);
    encoder.end(&end(FinishReason::Stop), &mut out);
    assert!(encoder.is_closed());
    text(out)
}

#[test]
fn an_error_in_the_midst_of_a_stream_ends_it() {
    let error = ApiError::new(ErrorClass::Unavailable, "the engine closed the connection");
    insta::assert_snapshot!("cut.events-chat", failing(Dialect::Chat, "chatcmpl-1", &error));
    insta::assert_snapshot!("cut.events-messages", failing(Dialect::Messages, "msg_1", &error));
    insta::assert_snapshot!("cut.events-responses", failing(Dialect::Responses, "resp_1", &error));
    insta::assert_snapshot!("cut.events-google", failing(Dialect::Google, "g1", &error));
}

#[test]
fn a_context_overflow_found_after_the_headers_keeps_its_words() {
    let context = Some(ContextUse { tokens: 9000, window: 8192 });
    let error = ApiError::context_overflow("too long", context);
    let mut out = Vec::new();
    encoder(Dialect::Messages, "msg_1").error(&error, &mut out);
    encoder(Dialect::Chat, "chatcmpl-1").error(&error, &mut out);
    insta::assert_snapshot!("overflow.events-both", text(out));
    let mut out = Vec::new();
    let mut encoder = encoder(Dialect::Responses, "resp_1");
    // Whoever could still tell it by a status is told not to.
    assert!(encoder.tells_refusal(&error));
    encoder.error(&error, &mut out);
    insta::assert_snapshot!("overflow.events-responses", text(out));
}

#[test]
fn a_reply_that_the_engine_gave_up_ends_in_an_error_that_clients_retry() {
    for (dialect, code) in [
        (Dialect::Chat, "overloaded_error"),
        (Dialect::Messages, "overloaded_error"),
        (Dialect::Responses, r#""code":"server_error""#),
        (Dialect::Google, "UNAVAILABLE"),
    ] {
        let mut encoder = encoder(dialect, "id");
        let mut out = Vec::new();
        encoder.event(&call(0, "toolu_01", "Bash"), &mut out);
        encoder.end(&end(FinishReason::Abort), &mut out);
        let out = text(out);
        let last = out.trim_end().rsplit("\n\n").next().unwrap_or_default().to_owned();
        assert!(last.contains(code), "{dialect:?}: {last}");
        for end in
            ["[DONE]", "message_stop", "response.completed", "response.incomplete", "finishReason"]
        {
            assert!(!out.contains(end), "{dialect:?}: {out}");
        }
    }
}

#[test]
fn calls_that_are_sampled_side_by_side_are_told_one_after_the_other() {
    let text = || ReplyEvent::Text("both".to_owned());
    let in_order = |first: &str| {
        vec![
            call(0, "a", "Read"),
            arguments(0, first),
            call(1, "b", "Read"),
            arguments(1, "{\"b\""),
            arguments(1, ":2}"),
            text(),
        ]
    };
    let mixed = |first: &str| {
        vec![
            call(0, "a", "Read"),
            call(1, "b", "Read"),
            arguments(1, "{\"b\""),
            text(),
            arguments(0, first),
            arguments(1, ":2}"),
        ]
    };
    for dialect in [Dialect::Messages, Dialect::Responses, Dialect::Google] {
        let told = |events: Vec<ReplyEvent>| {
            let mut encoder = encoder(dialect, "id");
            let mut out = Vec::new();
            events.iter().for_each(|event| encoder.event(event, &mut out));
            let before_the_end = out.len();
            encoder.end(&end(FinishReason::ToolCalls), &mut out);
            (out, before_the_end)
        };
        assert_eq!(told(mixed("{\"a\":1}")), told(in_order("{\"a\":1}")), "{dialect:?}");
        // Arguments that never become an object are waited for until the end.
        assert_eq!(told(mixed("{\"a\"")).0, told(in_order("{\"a\"")).0, "{dialect:?}");
    }
}

#[test]
fn arguments_out_of_turn_end_a_stream_instead_of_getting_lost() {
    for (dialect, error) in [
        (Dialect::Messages, "event: error\n"),
        (Dialect::Responses, "event: response.failed\n"),
        (Dialect::Google, r#"{"error":{"code":500"#),
    ] {
        let mut encoder = encoder(dialect, "id");
        let mut out = Vec::new();
        // Whole already, and goes on.
        for event in [
            call(0, "a", "Read"),
            arguments(0, "{}"),
            call(1, "b", "Read"),
            arguments(0, "{}"),
            arguments(1, "{}"),
        ] {
            encoder.event(&event, &mut out);
        }
        assert!(encoder.is_closed());
        assert!(text(out).contains(error), "{dialect:?}");
    }
}

/// In an array each state of the stream has its own way to end in an error.
#[test]
fn a_google_array_is_json_wherever_it_fails() {
    let error = ApiError::new(ErrorClass::Unavailable, "the engine closed the connection");
    for pieces in 0..4 {
        let mut head = head("g1");
        head.google.framing = GoogleFraming::Array;
        let mut encoder = StreamEncoder::new(Dialect::Google, head);
        let mut out = Vec::new();
        encoder.keep_alive(&mut out);
        if pieces > 0 {
            encoder.start(&mut out);
        }
        for _ in 1..pieces {
            encoder.event(&ReplyEvent::Text("Half a".to_owned()), &mut out);
            encoder.keep_alive(&mut out);
        }
        encoder.error(&error, &mut out);
        let items: Vec<serde_json::Value> = serde_json::from_slice(&out).unwrap();
        assert_eq!(items.len(), std::cmp::max(pieces, 1));
        assert_eq!(items.last().unwrap()["error"]["status"], "UNAVAILABLE");
    }
}

#[test]
fn a_chat_stream_has_a_usage_chunk_only_when_asked_for() {
    let head = ReplyHead { chat: ChatTerms::default(), ..head("chatcmpl-1") };
    let mut encoder = StreamEncoder::new(Dialect::Chat, head);
    let mut out = Vec::new();
    encoder.end(&end(FinishReason::Length), &mut out);
    let out = text(out);
    assert!(!out.contains("usage"), "{out}");
    assert!(out.contains(r#""finish_reason":"length""#), "{out}");
}

#[test]
fn finish_reasons_in_all_dialects() {
    let text_reply = {
        let mut reply = Reply::default();
        reply.push(&ReplyEvent::Text("x".to_owned()));
        reply
    };
    let call_reply = {
        let mut reply = Reply::default();
        reply.push(&call(0, "a", "Read"));
        reply
    };
    let cases = [
        (&text_reply, FinishReason::Stop, "stop", "end_turn", "STOP"),
        (&text_reply, FinishReason::StopSequence, "stop", "stop_sequence", "STOP"),
        (&text_reply, FinishReason::Length, "length", "max_tokens", "MAX_TOKENS"),
        (&text_reply, FinishReason::ToolCalls, "stop", "end_turn", "STOP"),
        (&call_reply, FinishReason::ToolCalls, "tool_calls", "tool_use", "STOP"),
        (&call_reply, FinishReason::Stop, "tool_calls", "tool_use", "STOP"),
        (&call_reply, FinishReason::Length, "length", "max_tokens", "MAX_TOKENS"),
    ];
    for (reply, finish, chat, messages, google) in cases {
        let end = ReplyEnd { stop_sequence: Some("END".to_owned()), ..end(finish) };
        let body = text(unary_body(Dialect::Chat, &head("c"), reply, &end));
        assert!(body.contains(&format!(r#""finish_reason":"{chat}""#)), "{finish:?}: {body}");
        let body = text(unary_body(Dialect::Messages, &head("m"), reply, &end));
        let stop = if messages == "stop_sequence" { r#""END""# } else { "null" };
        let wanted = format!(r#""stop_reason":"{messages}","stop_sequence":{stop}"#);
        assert!(body.contains(&wanted), "{finish:?}: {body}");
        let body = text(unary_body(Dialect::Google, &head("g"), reply, &end));
        assert!(body.contains(&format!(r#""finishReason":"{google}""#)), "{finish:?}: {body}");
    }
}
