//! A streamed reply, read by a client of the dialect, is the unary reply.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod readers;

use polar_convo::{
    ChatTerms, Dialect, FinishReason, GoogleFraming, GoogleTerms, Reply, ReplyBlock, ReplyEnd,
    ReplyEvent, ReplyHead, Request, SampledToken, StreamEncoder, Usage, unary_body,
};
use proptest::prelude::*;
use readers::{events, read, read_google};
use serde_json::{Value, json};

/// What the client of Responses offers: `a` is a function of a namespace, `b` takes any text, `c`
/// is its shell.
fn responses_request(summary: bool, store: bool) -> Request {
    let reasoning = if summary { json!({"summary": "auto"}) } else { json!({}) };
    let body = json!({
        "model": "m", "input": "hi", "store": store, "reasoning": reasoning,
        "tools": [
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "a"}]},
            {"type": "custom", "name": "b"},
            {"type": "local_shell"},
        ],
    });
    Dialect::Responses.decode_request(body.to_string().as_bytes()).unwrap()
}

/// A piece of a reply before it is cut into events.
#[derive(Debug, Clone)]
enum Piece {
    Text(Vec<String>),
    Reasoning(Vec<String>),
    Call { name: String, arguments: Vec<String> },
}

fn fragments() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[a-zA-Zäß\\\\\"\n\r\t {}:,0-9\u{1}\u{2028}]{0,12}", 1..6)
}

fn arguments() -> impl Strategy<Value = Vec<String>> {
    let valid = "[a-zß\"\n]{0,8}".prop_map(|text| {
        let json = json!({"path": text, "limit": 3}).to_string();
        let middle = json.char_indices().nth(json.chars().count() / 2).map_or(0, |(at, _)| at);
        vec![json[..middle].to_owned(), String::new(), json[middle..].to_owned()]
    });
    prop_oneof![
        4 => valid,
        1 => fragments(),
        1 => Just(Vec::new()),
        1 => Just(vec!["[1, 2]".to_owned()]),
        1 => Just(vec!["  {\n  \"a\" : 1.0 }\n".to_owned()]),
    ]
}

/// Arguments for tools that a client of Responses knows in another form.
fn client_arguments() -> impl Strategy<Value = Vec<String>> {
    let input = ("[a-z{}\"\\\\\n\u{1}ß]{0,12}", "[ \n]{0,2}", 0usize..30, any::<bool>()).prop_map(
        |(text, space, cut, ends)| {
            let whole = format!("{{{space}\"input\":{space}{}{space}}}", json!(text));
            let cut = whole.char_indices().nth(cut).map_or(whole.len(), |(at, _)| at);
            let rest = if ends { &whole[cut..] } else { "" };
            vec![whole[..cut].to_owned(), rest.to_owned()]
        },
    );
    let command = prop::option::of(0u64..99).prop_map(|timeout| {
        vec![json!({"command": ["ls", "-l"], "timeout_ms": timeout}).to_string()]
    });
    prop_oneof![input, command, arguments()]
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let piece = prop_oneof![
        fragments().prop_map(Piece::Text),
        fragments().prop_map(Piece::Reasoning),
        ("[a-z_]{1,8}", arguments()).prop_map(|(name, arguments)| Piece::Call { name, arguments }),
        (prop::sample::select(vec!["n__a", "b", "local_shell"]), client_arguments())
            .prop_map(|(name, arguments)| Piece::Call { name: name.to_owned(), arguments }),
    ];
    prop::collection::vec(piece, 0..8)
}

fn reply_events(pieces: &[Piece]) -> Vec<ReplyEvent> {
    let mut events = Vec::new();
    let mut index = 0;
    for piece in pieces {
        match piece {
            Piece::Text(parts) => events.extend(parts.iter().cloned().map(ReplyEvent::Text)),
            Piece::Reasoning(parts) => {
                events.extend(parts.iter().cloned().map(ReplyEvent::Reasoning));
            }
            Piece::Call { name, arguments } => {
                let id = format!("call_{index}");
                events.push(ReplyEvent::ToolCall { index, id, name: name.clone() });
                let fragment =
                    |text: &String| ReplyEvent::ToolArguments { index, fragment: text.clone() };
                events.extend(arguments.iter().map(fragment));
                index += 1;
            }
        }
    }
    events
}

/// The same calls with their pieces told in another order, as an engine that samples them side by
/// side may do. The pieces of each stay in order, and behind its beginning.
fn mixed(mut events: Vec<ReplyEvent>, seed: Option<u64>) -> Vec<ReplyEvent> {
    let Some(mut seed) = seed else { return events };
    let whole = |events: &[ReplyEvent]| {
        let mut reply = Reply::default();
        events.iter().for_each(|event| reply.push(event));
        reply.malformed_calls().is_empty()
    };
    if !whole(&events) {
        return events;
    }
    for _ in 0..events.len() * 2 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (seed >> 33) as usize % events.len().max(1);
        // An argument goes back behind what began after it.
        if let Some([ReplyEvent::ToolArguments { index, fragment }, other]) = events.get(at..at + 2)
            && !fragment.is_empty()
            && !matches!(other, ReplyEvent::ToolArguments { index: same, .. } if same == index)
            && !matches!(other, ReplyEvent::Text(_) | ReplyEvent::Reasoning(_))
        {
            events.swap(at, at + 1);
        }
    }
    events
}

fn reply_end() -> impl Strategy<Value = ReplyEnd> {
    let finish = prop_oneof![
        Just(FinishReason::Stop),
        Just(FinishReason::StopSequence),
        Just(FinishReason::ToolCalls),
        Just(FinishReason::Length),
    ];
    let counts = (0u64..9999, 0u64..9999, prop::option::of(0u64..9999), prop::option::of(0u64..99));
    (finish, counts).prop_map(|(finish, counts)| ReplyEnd {
        finish,
        stop_sequence: (finish == FinishReason::StopSequence).then(|| "</s>".to_owned()),
        usage: Usage {
            prompt_tokens: counts.0,
            completion_tokens: counts.1,
            cached_tokens: counts.2,
            reasoning_tokens: counts.3,
        },
    })
}

proptest! {
    #[test]
    fn a_stream_read_by_a_client_is_the_unary_body(
        pieces in pieces(),
        end in reply_end(),
        pings in prop::collection::vec(0usize..40, 0..4),
        prompt_tokens in prop::option::of(0u64..9999),
        piece in 1usize..400,
        (summary, store, logprobs) in any::<(bool, bool, bool)>(),
        mix in prop::option::of(any::<u64>()),
    ) {
        let events_in = mixed(reply_events(&pieces), mix);
        let mut reply = Reply::default();
        for event in &events_in {
            reply.push(event);
        }
        let calls = reply.blocks.iter().filter(|b| matches!(b, ReplyBlock::ToolCall { .. })).count();
        let chat = ChatTerms { include_usage: true, logprobs, functions: calls == 1 };
        // An engine that has no logprob for a token says so; the token is not told then.
        let sampled = |i: usize| ([i as u32, 0], [Some(-0.1 * i as f32), None]);
        if logprobs {
            for i in 0..events_in.len() {
                let (ids, logprobs) = sampled(i);
                reply.tokens.extend(SampledToken::zip(&ids, &logprobs));
            }
        }
        for dialect in [Dialect::Chat, Dialect::Messages, Dialect::Responses] {
            let mut request = Request::new(dialect, "m");
            if dialect == Dialect::Responses {
                request = responses_request(summary, store);
            }
            request.chat = chat;
            let head = ReplyHead {
                id: "id-1".to_owned(),
                model: "m\"1\"".to_owned(),
                created: 1,
                prompt_tokens,
                responses: request.responses.clone(),
                chat,
        google: GoogleTerms::default(),
            };
            let mut encoder = StreamEncoder::new(dialect, head.clone());
            let mut stream = Vec::new();
            for (i, event) in events_in.iter().enumerate() {
                if pings.contains(&i) {
                    encoder.keep_alive(&mut stream);
                }
                encoder.event(event, &mut stream);
                let (ids, logprobs) = sampled(i);
                encoder.tokens(&ids, &logprobs, &mut stream);
            }
            encoder.end(&end, &mut stream);
            prop_assert_eq!(head.untellable(&reply), None);
            let unary = unary_body(dialect, &head, &reply, &end);
            let unary: Value = serde_json::from_slice(&unary).unwrap();
            let read = read(dialect, events(&stream, piece));
            prop_assert_eq!(read, unary);
        }
    }

    #[test]
    fn a_google_stream_read_by_a_client_is_the_unary_body(
        pieces in pieces(),
        end in reply_end(),
        pings in prop::collection::vec(0usize..40, 0..4),
        include_thoughts in any::<bool>(),
        array in any::<bool>(),
        size in 1usize..200,
    ) {
        let framing = if array { GoogleFraming::Array } else { GoogleFraming::Events };
        let head = ReplyHead {
            id: "id-1".to_owned(),
            model: "m\"1\"".to_owned(),
            created: 1,
            prompt_tokens: None,
            responses: None,
            chat: ChatTerms::default(),
        google: GoogleTerms { include_thoughts, framing },
        };
        let mut encoder = StreamEncoder::new(Dialect::Google, head.clone());
        let (mut stream, mut reply) = (Vec::new(), Reply::default());
        for (i, event) in reply_events(&pieces).iter().enumerate() {
            if pings.contains(&i) {
                encoder.keep_alive(&mut stream);
            }
            encoder.event(event, &mut stream);
            reply.push(event);
        }
        encoder.end(&end, &mut stream);
        let chunks = if array {
            serde_json::from_slice(&stream).unwrap()
        } else {
            readers::chunks(events(&stream, size))
        };
        let unary = unary_body(Dialect::Google, &head, &reply, &end);
        let unary: Value = serde_json::from_slice(&unary).unwrap();
        let told = unary["candidates"][0]["content"]["parts"].as_array().unwrap();
        let calls = told.iter().filter(|part| part["functionCall"].is_object()).count();
        let called = reply.blocks.iter().filter(|b| matches!(b, ReplyBlock::ToolCall { .. })).count();
        let is_cut = matches!(end.finish, FinishReason::Length | FinishReason::StopSequence);
        // What was cut before its arguments is no call without any.
        let without = |block: &ReplyBlock| {
            matches!(block, ReplyBlock::ToolCall { arguments, .. } if arguments.trim().is_empty())
        };
        let untold = usize::from(is_cut && reply.blocks.last().is_some_and(without));
        prop_assert_eq!(calls + reply.malformed_calls().len() + untold, called);
        let malformed = calls < called && !is_cut;
        let reason = &unary["candidates"][0]["finishReason"];
        prop_assert_eq!(reason == "MALFORMED_FUNCTION_CALL", malformed);
        // Texts with something between them that is not told are one text to a client.
        prop_assert_eq!(read_google(chunks), read_google(vec![unary]));
    }
}
