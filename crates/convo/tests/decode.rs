//! What the decoders accept, refuse and make equal.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use polar_convo::{
    ApiError, Block, Dialect, LossKind, Reply, ReplyEvent, Request, Role, UNPARSED_ARGUMENTS,
    chat_messages, error_response, reply_message,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn decode(dialect: Dialect, body: &Value) -> Request {
    dialect.decode_request(body.to_string().as_bytes()).unwrap()
}

fn chat(messages: Value) -> Value {
    json!({"model": "m", "messages": messages})
}

fn messages(messages: Value) -> Value {
    json!({"model": "m", "max_tokens": 10, "messages": messages})
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

/// Asserts that each body is refused with an error at the field, whose words contain `words`.
fn refused(dialect: Dialect, cases: Vec<(Value, &str, &str)>) {
    for (body, field, words) in cases {
        let error = dialect.decode_request(body.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.field, field, "{error}");
        let error = ApiError::from(error);
        assert!(error.message.contains(words), "{:?} lacks {words:?}", error.message);
        let response = error_response(dialect, &error);
        assert_eq!(response.status, 400);
        let body: Value = serde_json::from_slice(&response.body).unwrap();
        assert_eq!(body["error"]["message"], error.message.as_str());
        assert_eq!(body["error"]["type"], "invalid_request_error");
    }
}

#[test]
fn chat_refuses_what_it_would_answer_wrongly_and_names_the_field() {
    let ok = chat(json!([{"role": "user", "content": "hi"}]));
    let message = |message: Value| chat(json!([{"role": "user", "content": "hi"}, message]));
    let call = json!([{"id": "c", "type": "function", "function": {"name": "f"}}]);
    refused(
        Dialect::Chat,
        vec![
            (json!([]), "", "JSON object"),
            (json!({"messages": []}), "model", "name a model"),
            (chat(json!([])), "messages", "at least one message"),
            (with(ok.clone(), "n", json!(2)), "n", "one reply"),
            (with(ok.clone(), "top_logprobs", json!(5)), "top_logprobs", "sampled tokens only"),
            (with(ok.clone(), "prompt_logprobs", json!(1)), "prompt_logprobs", "sampled tokens"),
            (with(ok.clone(), "include_reasoning", json!(false)), "include_reasoning", "send true"),
            (with(ok.clone(), "n_predict", json!(9)), "n_predict", "send `max_tokens`"),
            (with(ok.clone(), "n_cmpl", json!(2)), "n_cmpl", "more samples"),
            (with(ok.clone(), "verbose", json!(true)), "verbose", "change what is recorded"),
            (
                with(ok.clone(), "post_sampling_probs", json!(true)),
                "post_sampling_probs",
                "send false",
            ),
            (
                with(with(ok.clone(), "functions", json!([])), "tool_choice", json!("auto")),
                "tool_choice",
                "beside `functions`",
            ),
            (
                with(
                    with(ok.clone(), "functions", json!([{"name": "f"}])),
                    "parallel_tool_calls",
                    json!(true),
                ),
                "parallel_tool_calls",
                "`tools`",
            ),
            (
                with(ok.clone(), "function_call", json!({"name": "f"})),
                "function_call",
                "without `functions`",
            ),
            (
                with(
                    with(ok.clone(), "functions", json!([{"name": "f"}])),
                    "function_call",
                    json!({"name": "g"}),
                ),
                "function_call",
                "not offered; offer it in `functions`",
            ),
            (
                with(
                    with(ok.clone(), "functions", json!([{"name": "f"}])),
                    "tools",
                    json!([{"type": "function", "function": {"name": "g"}}]),
                ),
                "tools",
                "beside `functions`",
            ),
            (
                message(json!({"role": "function", "name": "f", "content": "x"})),
                "messages[1].name",
                "no call is open",
            ),
            (message(json!({"role": "function", "content": "x"})), "messages[1].name", "missing"),
            (
                message(json!({"role": "user", "content": [
                    {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA=="}},
                ]})),
                "messages[1].content[0].file",
                "engines cannot read",
            ),
            (
                with(ok.clone(), "modalities", json!(["text", "audio"])),
                "modalities[1]",
                "[\"text\"]",
            ),
            (with(ok.clone(), "temperature", json!("hot")), "temperature", "a number"),
            (with(ok.clone(), "max_tokens", json!(0)), "max_tokens", "at least 1"),
            (with(ok.clone(), "stop", json!(["a", ""])), "stop[1]", "empty"),
            (
                with(with(ok.clone(), "max_tokens", json!(1)), "max_completion_tokens", json!(2)),
                "max_tokens",
                "differs",
            ),
            (with(ok.clone(), "tools", json!([{"type": "custom"}])), "tools[0].type", "\"custom\""),
            (with(ok.clone(), "tool_choice", json!("required")), "tool_choice", "not offered"),
            (message(json!({"role": "robot", "content": ""})), "messages[1].role", "\"robot\""),
            (message(json!({"content": "x"})), "messages[1].role", "is missing"),
            (message(json!({"role": "user", "content": 5})), "messages[1].content", "a number"),
            (
                message(json!({"role": "user", "content": [{"text": "x"}]})),
                "messages[1].content[0].type",
                "is missing",
            ),
            (
                message(json!({"role": "tool", "content": "x"})),
                "messages[1].tool_call_id",
                "missing",
            ),
            (message(json!({"role": "user", "tool_calls": call})), "messages[1]", "a tool call"),
            (
                message(json!({"role": "assistant", "tool_calls": [{"id": "c"}]})),
                "messages[1].tool_calls[0].function",
                "is missing",
            ),
        ],
    );
}

#[test]
fn messages_refuses_what_it_would_answer_wrongly_and_names_the_field() {
    let ok = messages(json!([{"role": "user", "content": "hi"}]));
    let block = |block: Value| messages(json!([{"role": "user", "content": [block]}]));
    let tool = |tool: Value| with(ok.clone(), "tools", json!([tool]));
    refused(
        Dialect::Messages,
        vec![
            (json!("text"), "", "JSON object"),
            (json!({"model": "m", "messages": ok["messages"]}), "max_tokens", "is missing"),
            (with(ok.clone(), "mcp_servers", json!([{"type": "url"}])), "mcp_servers", "`tools`"),
            (with(ok.clone(), "thread", json!({"type": "create"})), "thread", "`messages`"),
            (
                tool(json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 8})),
                "tools[0].type",
                "\"web_search_20250305\"",
            ),
            (
                tool(json!({"type": "bash_20250124", "name": "bash"})),
                "tools[0].type",
                "input_schema",
            ),
            (tool(json!({"input_schema": {}})), "tools[0].name", "missing"),
            (
                with(ok.clone(), "tool_choice", json!({"type": "tool", "name": "x"})),
                "tool_choice",
                "not offered",
            ),
            (
                block(json!({"type": "document", "source": {"type": "base64", "data": ""}})),
                "messages[0].content[0].source",
                "engines cannot read",
            ),
            (
                block(json!({"type": "image", "source": {"type": "file", "file_id": "f"}})),
                "messages[0].content[0].source.type",
                "base64 or url",
            ),
            (
                block(json!({"type": "tool_use", "id": "a", "name": "f", "input": {}})),
                "messages[0].content",
                "a tool call",
            ),
            (
                block(json!({"type": "tool_result", "content": "x"})),
                "messages[0].content[0].tool_use_id",
                "missing",
            ),
            (
                messages(
                    json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]),
                ),
                "messages",
                "end with a user message",
            ),
            (messages(json!([{"role": "tool", "content": "a"}])), "messages[0].role", "\"tool\""),
        ],
    );
}

#[test]
fn a_body_that_is_no_json_says_where() {
    let error = Dialect::Chat.decode_request(b"{\"model\": ").unwrap_err();
    assert!(error.to_string().contains("line 1"), "{error}");
    assert!(Dialect::Messages.decode_request(b"\xff").is_err());
}

#[test]
fn counting_needs_no_max_tokens() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    assert!(Dialect::Messages.decode_count_request(body.to_string().as_bytes()).is_ok());
}

/// Clients spell the same history in several ways, even within one run.
#[test]
fn spellings_of_the_same_history_give_the_same_prompt() {
    let mark = json!({"type": "ephemeral"});
    let spellings = [
        messages(json!([{"role": "user", "content": "hi"}])),
        messages(json!([{"role": "user", "content": [{"type": "text", "text": "hi"}]}])),
        messages(json!([{"role": "user", "content": [
            {"type": "text", "text": ""},
            {"type": "text", "text": "hi", "cache_control": mark},
        ]}])),
        with(
            messages(json!([{"role": "user", "content": "hi"}])),
            "system",
            json!([{"type": "text", "text": "", "cache_control": mark}]),
        ),
    ];
    for body in spellings {
        let prompt = chat_messages(&decode(Dialect::Messages, &body));
        assert_eq!(prompt, [json!({"role": "user", "content": "hi"})], "{body}");
    }
    let call =
        json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let mut prompts = Vec::new();
    for content in [json!(null), json!(""), json!([])] {
        let message = json!({"role": "assistant", "content": content, "tool_calls": call});
        prompts.push(chat_messages(&decode(Dialect::Chat, &chat(json!([message])))));
    }
    prompts.dedup();
    assert_eq!(prompts.len(), 1);
}

#[test]
fn what_a_tool_is_named_like_a_mark_is_left_alone() {
    let input = json!({"cache_control": {"type": "ephemeral"}, "type": "x"});
    let body = messages(json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": input}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
    ]));
    let request = decode(Dialect::Messages, &body);
    let Block::ToolCall { arguments, .. } = &request.messages[1].blocks[0] else { panic!() };
    assert_eq!(arguments, r#"{"cache_control":{"type":"ephemeral"},"type":"x"}"#);
    assert_eq!(request.losses, []);
}

#[test]
fn results_and_words_of_one_user_turn_keep_their_order() {
    let body = messages(json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [
            {"type": "text", "text": "a"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {}},
            {"type": "text", "text": "b"},
        ]},
        {"role": "user", "content": [
            {"type": "text", "text": "first"},
            {"type": "tool_result", "tool_use_id": "1", "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            ]},
            {"type": "text", "text": "last"},
        ]},
    ]));
    let request = decode(Dialect::Messages, &body);
    let prompt = chat_messages(&request);
    assert_eq!(prompt[1]["content"], "ab");
    let roles: Vec<_> = prompt.iter().map(|message| message["role"].as_str()).collect();
    assert_eq!(roles[2..], [Some("user"), Some("tool"), Some("user")]);
    assert_eq!(prompt[3]["content"][0]["image_url"]["url"], "data:image/png;base64,AA==");
    let kinds: Vec<_> = request.losses.iter().map(|loss| loss.kind).collect();
    assert_eq!(kinds, [LossKind::BlockOrderFlattened]);
}

#[test]
fn arguments_that_were_no_object_come_back_as_they_were_sampled() {
    let sampled = "{\"command\": \"ls";
    let body = messages(json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "1", "name": "f", "input": {UNPARSED_ARGUMENTS: sampled}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "?"}]},
    ]));
    let prompt = chat_messages(&decode(Dialect::Messages, &body));
    assert_eq!(prompt[1]["tool_calls"][0]["function"]["arguments"], sampled);
    let mut reply = Reply::default();
    for (index, arguments) in [(0, "{}"), (1, sampled), (2, ""), (3, "[1]")] {
        let (id, name) = (index.to_string(), "f".to_owned());
        reply.push(&ReplyEvent::ToolCall { index, id, name });
        reply.push(&ReplyEvent::ToolArguments { index, fragment: arguments.to_owned() });
    }
    assert_eq!(reply.malformed_calls(), [1, 3]);
}

/// A reply that a client sends back as it got it is the message that was recorded.
#[test]
fn a_reply_sent_back_is_the_message_recorded() {
    let mut reply = Reply::default();
    for event in [
        ReplyEvent::Reasoning("think".to_owned()),
        ReplyEvent::Text("say".to_owned()),
        ReplyEvent::ToolCall { index: 0, id: "c1".to_owned(), name: "f".to_owned() },
        ReplyEvent::ToolArguments { index: 0, fragment: "{\"a\":1}".to_owned() },
    ] {
        reply.push(&event);
    }
    let recorded = reply_message(&reply);
    let sent_back = chat(json!([{"role": "user", "content": "hi"}, recorded]));
    assert_eq!(chat_messages(&decode(Dialect::Chat, &sent_back))[1], recorded);
    let sent_back = messages(json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "think", "signature": "s"},
            {"type": "text", "text": "say"},
            {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]},
    ]));
    assert_eq!(chat_messages(&decode(Dialect::Messages, &sent_back))[1], recorded);
}

#[test]
fn system_text_in_the_midst_of_a_conversation_stays_there() {
    let turns = json!([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]);
    for (dialect, body) in
        [(Dialect::Chat, chat(turns.clone())), (Dialect::Messages, messages(turns.clone()))]
    {
        let request = decode(dialect, &body);
        assert_eq!(request.messages[1].role, Role::System);
        assert_eq!(Value::from(chat_messages(&request)), turns);
    }
}

/// Any JSON at all, made of the words the dialects know.
fn any_json() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec![
        "model",
        "messages",
        "role",
        "user",
        "assistant",
        "tool",
        "content",
        "type",
        "text",
        "tools",
        "tool_use",
        "tool_result",
        "input",
        "id",
        "name",
        "function",
        "tool_calls",
        "arguments",
        "system",
        "source",
        "image",
        "base64",
        "thinking",
        "tool_choice",
        "stop",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((word.clone(), inner), 0..6).prop_map(|fields| {
                fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            }),
        ]
    })
}

proptest! {
    /// Whatever comes, there is an answer in the dialect.
    #[test]
    fn any_body_is_decoded_or_refused_in_the_dialect(mut body in any_json(), complete in any::<bool>()) {
        if complete && body.is_object() {
            body["model"] = "m".into();
            body["max_tokens"] = 1.into();
        }
        for dialect in [Dialect::Chat, Dialect::Messages] {
            match dialect.decode_request(body.to_string().as_bytes()) {
                Ok(request) => prop_assert!(!chat_messages(&request).is_empty()),
                Err(error) => {
                    let response = error_response(dialect, &error.into());
                    prop_assert!(serde_json::from_slice::<Value>(&response.body).is_ok());
                }
            }
        }
    }
}
