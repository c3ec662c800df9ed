//! Requests of all dialects.

use polar_convo::{
    ApiError, Asked, DecodeError, Dialect, Reply, ReplyBlock, Request, ResponsesHistory, Role,
    TurnMemory, chat_messages, encode_engine_chat, error_response,
};
use polar_types::HistoryPolicy;
use serde_json::{Value, json};

/// A body is read or refused in the dialect's own shape, and what is read can be sent on.
pub fn request(dialect: Dialect, body: &[u8]) {
    for decoded in [dialect.decode_request(body), dialect.decode_count_request(body)] {
        match decoded {
            Ok(request) => turns_are_looked_up(request),
            Err(error) => is_refused_in_shape(dialect, error),
        }
    }
    if let Some(body) = without_repeated_fields(body)
        && let Ok(request) = dialect.decode_request(&body)
    {
        the_engine_reads_it_as_it_was_sent(&request);
    }
}

/// Which of two fields of one name counts is anybody's guess.
fn without_repeated_fields(body: &[u8]) -> Option<Vec<u8>> {
    let value: Value = serde_json::from_slice(body).ok()?;
    Some(value.to_string().into_bytes())
}

/// The same of Responses, and of a request that goes on from the reply to it.
pub fn responses_with_history(body: &[u8]) {
    request(Dialect::Responses, body);
    let mut history = ResponsesHistory::default();
    let Ok(first) = history.decode_request(body) else { return };
    let open = history.begin(&first);
    history.remember("resp_1", open, &reply());
    // Halves of letters are read by the decoder alone.
    let Ok(mut fields) = serde_json::from_slice::<Value>(body) else { return };
    fields["previous_response_id"] = json!("resp_1");
    match history.decode_request(fields.to_string().as_bytes()) {
        Ok(second) => {
            assert!(second.messages.starts_with(&first.messages));
            assert_eq!(second.messages[first.messages.len()].role, Role::Assistant);
            let open = history.begin(&second);
            history.forget(open);
        }
        Err(error) => is_refused_in_shape(Dialect::Responses, error),
    }
}

fn reply() -> Reply {
    let blocks = vec![
        ReplyBlock::Reasoning("So.".to_owned()),
        ReplyBlock::Text("I look.".to_owned()),
        ReplyBlock::ToolCall {
            index: 0,
            id: "call_1".to_owned(),
            name: "shell".to_owned(),
            arguments: r#"{"command": ["ls"]}"#.to_owned(),
        },
    ];
    Reply { blocks, ..Reply::default() }
}

/// What goes to an engine is itself a Chat request of the same conversation.
fn the_engine_reads_it_as_it_was_sent(request: &Request) {
    let sent = Value::Object(encode_engine_chat(request)).to_string();
    if let Ok(read) = Dialect::Chat.decode_request(sent.as_bytes()) {
        assert_eq!(chat_messages(&read), chat_messages(request));
    }
}

/// A history is looked through whatever is in it, and no message gets lost.
fn turns_are_looked_up(mut request: Request) {
    let mut memory = TurnMemory::default();
    memory.remember(Asked::of(&request), &reply());
    let messages = request.messages.len();
    for policy in [HistoryPolicy::AsSent, HistoryPolicy::Sampled] {
        memory.restore(&mut request, policy);
        assert_eq!(request.messages.len(), messages);
    }
}

fn is_refused_in_shape(dialect: Dialect, error: DecodeError) {
    assert!(!error.problem.is_empty() && !error.mend.is_empty());
    let response = error_response(dialect, &ApiError::from(error));
    assert_eq!(response.status, 400);
    let body: Value = serde_json::from_slice(&response.body).unwrap();
    assert!(!body["error"]["message"].as_str().unwrap().is_empty());
    match dialect {
        Dialect::Google => assert_eq!(body["error"]["status"], "INVALID_ARGUMENT"),
        _ => assert_eq!(body["error"]["type"], "invalid_request_error"),
    }
}
