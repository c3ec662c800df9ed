//! Responses: what its decoder accepts and refuses, what comes back of a reply, and that a
//! conversation is the same one in whatever dialect it is told.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use polar_convo::{
    ApiError, Asked, ChatTerms, Dialect, FinishReason, GoogleTerms, LossKind, Reply, ReplyBlock,
    ReplyEnd, ReplyEvent, ReplyHead, Request, ResponsesHistory, TurnMemory, Usage, chat_messages,
    chat_tools, error_response, unary_body,
};
use polar_types::HistoryPolicy;
use proptest::prelude::*;
use serde_json::{Value, json};

fn body(input: Value) -> Value {
    json!({"model": "m", "input": input})
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

fn decode(body: &Value) -> Request {
    Dialect::Responses.decode_request(body.to_string().as_bytes()).unwrap()
}

fn losses(request: &Request) -> Vec<LossKind> {
    request.losses.iter().map(|loss| loss.kind).collect()
}

fn function(name: &str) -> Value {
    json!({"type": "function", "name": name, "parameters": {"type": "object"}})
}

/// A reply to a request, as its client reads it.
fn told(request: &Request, id: &str, blocks: Vec<ReplyBlock>) -> Value {
    let head = ReplyHead {
        id: id.to_owned(),
        model: "m".to_owned(),
        created: 1,
        prompt_tokens: None,
        responses: request.responses.clone(),
        chat: ChatTerms::default(),
        google: GoogleTerms::default(),
    };
    let end = ReplyEnd { finish: FinishReason::Stop, stop_sequence: None, usage: Usage::default() };
    let body = unary_body(Dialect::Responses, &head, &Reply { blocks, ..Reply::default() }, &end);
    serde_json::from_slice(&body).unwrap()
}

fn call(index: u32, name: &str, arguments: &str) -> ReplyBlock {
    let (id, name, arguments) = (format!("call_{index}"), name.to_owned(), arguments.to_owned());
    ReplyBlock::ToolCall { index, id, name, arguments }
}

/// Answers a request as a session does that remembers.
fn answer(
    history: &mut ResponsesHistory,
    body: &Value,
    id: &str,
    blocks: Vec<ReplyBlock>,
) -> Value {
    let request = history.decode_request(body.to_string().as_bytes()).unwrap();
    let asked = history.begin(&request);
    let told = told(&request, id, blocks.clone());
    history.remember(id, asked, &Reply { blocks, ..Reply::default() });
    told
}

#[test]
fn refused_is_what_would_be_answered_wrongly() {
    let ok = body(json!("hi"));
    let item = |item: Value| body(json!([{"role": "user", "content": "hi"}, item]));
    let tool = |tool: Value| with(body(json!("hi")), "tools", json!([tool]));
    let cases = [
        (json!([]), "", "JSON object"),
        (json!({"input": "hi"}), "model", "name a model"),
        (json!({"model": "m"}), "input", "a list of items"),
        (json!({"model": "m", "instructions": "be brief"}), "input", "a list of items"),
        (body(json!([])), "input", "at least one item"),
        (body(json!(3)), "input", "a list of items"),
        (body(json!(["hi"])), "input[0]", "an object"),
        (with(ok.clone(), "background", json!(true)), "background", "keep the connection open"),
        (with(ok.clone(), "conversation", json!("conv_1")), "conversation", "`input`"),
        (with(ok.clone(), "prompt", json!({"id": "p"})), "prompt", "`instructions`"),
        (with(ok.clone(), "top_logprobs", json!(2)), "top_logprobs", "training record"),
        (
            with(ok.clone(), "include", json!(["message.output_text.logprobs"])),
            "include[0]",
            "training record",
        ),
        (with(ok.clone(), "temperature", json!("hot")), "temperature", "a number"),
        (with(ok.clone(), "max_output_tokens", json!(0)), "max_output_tokens", "at least 1"),
        (
            with(ok.clone(), "previous_response_id", json!("resp_1")),
            "previous_response_id",
            "no reply with id",
        ),
        (with(ok.clone(), "text", json!({"format": {"type": "xml"}})), "text.format.type", "xml"),
        (with(ok.clone(), "tool_choice", json!("required")), "tool_choice", "not offered"),
        (
            with(ok.clone(), "tool_choice", json!({"type": "allowed_tools", "tools": []})),
            "tool_choice.type",
            "allowed_tools",
        ),
        (tool(json!({"type": "code_interpreter"})), "tools[0].type", "code_interpreter"),
        (tool(json!({"type": "mcp", "server_label": "x"})), "tools[0].type", "mcp"),
        (tool(json!({"type": "function"})), "tools[0].name", "name the tool"),
        (
            with(ok.clone(), "tools", json!([function("a"), {"type": "custom", "name": "a"}])),
            "tools[1]",
            "its own name",
        ),
        (item(json!({"content": "x"})), "input[1].type", "is missing"),
        (item(json!({"role": "robot", "content": "x"})), "input[1].role", "robot"),
        (item(json!({"type": "web_search_call", "id": "w"})), "input[1].type", "web_search_call"),
        (item(json!({"type": "item_reference", "id": "rs_1_0"})), "input[1].id", "no item"),
        (item(json!({"type": "function_call_output", "output": "x"})), "input[1].call_id", "id of"),
        (
            item(json!({"type": "function_call", "name": "f", "arguments": "{}"})),
            "input[1].call_id",
            "is missing",
        ),
        (
            item(json!({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]})),
            "input[1].content[0].type",
            "input_file",
        ),
        (
            item(json!({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]})),
            "input[1].content[0].image_url",
            "files are not kept",
        ),
    ];
    for (body, field, words) in cases {
        let error = Dialect::Responses.decode_request(body.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.field, field, "{error}");
        let error = ApiError::from(error);
        assert!(error.message.contains(words), "{:?} lacks {words:?}", error.message);
        let response = error_response(Dialect::Responses, &error);
        assert_eq!(response.status, 400);
        let body: Value = serde_json::from_slice(&response.body).unwrap();
        let code = match field {
            "previous_response_id" => json!("previous_response_not_found"),
            _ => Value::Null,
        };
        assert_eq!(body["error"]["code"], code);
    }
}

#[test]
fn reasoning_comes_back_as_sampled_by_whatever_of_it_a_client_keeps() {
    let sampled = "  First,\n\nthe file. ";
    for (summary, store) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut asked = with(body(json!("hi")), "store", json!(store));
        if summary {
            asked["reasoning"] = json!({"summary": "auto"});
        }
        let request = decode(&asked);
        let reply = told(&request, "resp_ab", vec![ReplyBlock::Reasoning(sampled.to_owned())]);
        let item = reply["output"][0].clone();
        let shown = if summary { &item["summary"] } else { &item["content"] };
        assert_eq!(shown[0]["text"], sampled);
        let mut kept = vec![item.clone()];
        if store {
            assert_eq!(item.get("encrypted_content"), None);
        } else {
            // As Codex, opencode and clients that trim send it back.
            kept.push(with(with(item.clone(), "content", Value::Null), "id", Value::Null));
            kept.push(json!({
                "type": "reasoning", "summary": [], "encrypted_content": item["encrypted_content"],
            }));
        }
        for item in kept {
            let next = decode(&body(json!([{"role": "user", "content": "hi"}, item])));
            assert_eq!(chat_messages(&next)[1]["reasoning_content"], sampled, "{item}");
            assert!(next.losses.is_empty(), "{item}");
        }
    }
}

#[test]
fn promise_10_edited_and_unreadable_reasoning_is_written_down() {
    let item = |summary: Value, content: Value, sealed: Value| {
        decode(&body(json!([
            {"role": "user", "content": "hi"},
            {
                "type": "reasoning", "id": "rs_1", "summary": summary, "content": content,
                "encrypted_content": sealed,
            },
            {"role": "assistant", "content": "yes"},
        ])))
    };
    let summary = |text: &str| json!([{"type": "summary_text", "text": text}]);
    let content = |text: &str| json!([{"type": "reasoning_text", "text": text}]);
    let reasoning = |request: &Request| chat_messages(request)[1]["reasoning_content"].clone();

    let edited = item(json!([]), content("trimmed"), json!("polar-reasoning: trimmed "));
    assert_eq!(reasoning(&edited), " trimmed ");
    assert_eq!(losses(&edited), [LossKind::ReasoningEditIgnored]);

    let both = item(summary("short"), content("in full"), Value::Null);
    assert_eq!(reasoning(&both), "in full");
    assert_eq!(losses(&both), [LossKind::ReasoningSummaryDropped]);

    let foreign = item(summary("short"), Value::Null, json!("gAAAA"));
    assert_eq!(reasoning(&foreign), "short");
    assert_eq!(losses(&foreign), []);

    let sealed = item(json!([]), Value::Null, json!("gAAAA"));
    assert_eq!(reasoning(&sealed), Value::Null);
    assert_eq!(losses(&sealed), [LossKind::EncryptedReasoningDropped]);
}

/// Names under which the model knows tools are no client's business, and neither is the JSON
/// around a text.
#[test]
fn tools_of_other_kinds_are_told_in_the_clients_terms() {
    let tools = json!([
        {"type": "namespace", "name": "mcp__files__", "tools": [function("read")]},
        {"type": "custom", "name": "apply_patch"},
        {"type": "local_shell"},
    ]);
    let request = decode(&with(body(json!("hi")), "tools", tools));
    let names: Vec<_> =
        chat_tools(&request).iter().map(|tool| tool["function"]["name"].clone()).collect();
    assert_eq!(names, ["mcp__files__read", "apply_patch", "local_shell"]);
    let blocks = vec![
        call(0, "mcp__files__read", "{\"path\": 1}"),
        call(1, "apply_patch", "{\"input\": \"*** Begin\\n\"}"),
        call(2, "local_shell", "{\"command\": [\"ls\"], \"timeout_ms\": 5}"),
        call(3, "local_shell", "{\"command\": \"ls\"}"),
        call(4, "other", "no JSON"),
    ];
    let output = told(&request, "resp_ab", blocks)["output"].clone();
    let call = |id: &str, more: Value| {
        let mut item = json!({"id": id, "status": "completed"});
        item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        item
    };
    assert_eq!(
        output,
        json!([
            call(
                "fc_ab_0",
                json!({
                    "type": "function_call", "call_id": "call_0", "name": "read",
                    "namespace": "mcp__files__", "arguments": "{\"path\": 1}",
                })
            ),
            call(
                "ctc_ab_1",
                json!({
                    "type": "custom_tool_call", "call_id": "call_1", "name": "apply_patch",
                    "input": "*** Begin\n",
                })
            ),
            call(
                "lsh_ab_2",
                json!({
                    "type": "local_shell_call", "call_id": "call_2",
                    "action": {
                        "type": "exec", "command": ["ls"], "env": {}, "timeout_ms": 5, "user": null,
                        "working_directory": null,
                    },
                })
            ),
            // No command: the client refuses it in words the model can act on.
            call(
                "fc_ab_3",
                json!({
                    "type": "function_call", "call_id": "call_3", "name": "local_shell",
                    "arguments": "{\"command\": \"ls\"}",
                })
            ),
            call(
                "fc_ab_4",
                json!({
                    "type": "function_call", "call_id": "call_4", "name": "other",
                    "arguments": "no JSON",
                })
            ),
        ])
    );
}

#[test]
fn two_replies_in_a_row_stay_two_turns_and_one_reply_stays_one() {
    let text = |id: &str, text: &str| json!({"type": "message", "id": id, "role": "assistant", "content": text});
    let thought = |id: &str| {
        json!({"type": "reasoning", "id": id, "summary": [],
               "content": [{"type": "reasoning_text", "text": "hm"}]})
    };
    let turns = |items: Value| {
        let messages = chat_messages(&decode(&body(items)));
        messages.iter().filter(|message| message["role"] == "assistant").count()
    };
    assert_eq!(turns(json!([thought("rs_aa_0"), text("msg_aa_1", "a")])), 1);
    assert_eq!(turns(json!([thought("x"), text("y", "a")])), 1);
    assert_eq!(turns(json!([text("msg_aa_0", "a"), thought("rs_bb_0"), text("msg_bb_1", "b")])), 2);
    assert_eq!(turns(json!([text("x", "a"), text("y", "b")])), 2);
    assert_eq!(turns(json!([text("msg_aa_0", "a"), thought("rs_aa_1"), text("msg_aa_2", "b")])), 1);
}

#[test]
fn a_request_goes_on_from_a_kept_reply_without_its_instructions() {
    let mut history = ResponsesHistory::default();
    let first = with(body(json!("hi")), "instructions", json!("Be brief."));
    let reply = answer(
        &mut history,
        &first,
        "resp_ab",
        vec![ReplyBlock::Reasoning(" hm".to_owned()), ReplyBlock::Text("Hello.".to_owned())],
    );
    assert_eq!(reply["instructions"], "Be brief.");
    let next = with(body(json!("again")), "previous_response_id", json!("resp_ab"));
    let next = with(next, "instructions", json!("Be rude."));
    let request = history.decode_request(next.to_string().as_bytes()).unwrap();
    assert_eq!(
        chat_messages(&request),
        [
            json!({"role": "system", "content": "Be rude."}),
            json!({"role": "user", "content": "hi"}),
            json!({"role": "assistant", "content": "Hello.", "reasoning_content": " hm"}),
            json!({"role": "user", "content": "again"}),
        ]
    );
    // By reference to its items as well, as clients do that leave the keeping to the server.
    let referring = body(json!([
        {"role": "user", "content": "hi"},
        {"type": "item_reference", "id": reply["output"][0]["id"]},
        {"type": "item_reference", "id": reply["output"][1]["id"]},
        {"role": "user", "content": "again"},
    ]));
    let referred = history.decode_request(referring.to_string().as_bytes()).unwrap();
    assert_eq!(chat_messages(&referred), chat_messages(&request)[1..]);

    // Two branches from one reply, and none from a reply that was not to be kept.
    answer(&mut history, &next, "resp_cd", vec![ReplyBlock::Text("What?".to_owned())]);
    let unkept = with(next.clone(), "store", json!(false));
    answer(&mut history, &unkept, "resp_ef", vec![ReplyBlock::Text("No.".to_owned())]);
    let from = |id: &str| with(body(json!("x")), "previous_response_id", json!(id)).to_string();
    let branch = history.decode_request(from("resp_cd").as_bytes()).unwrap();
    assert_eq!(chat_messages(&branch).len(), 5);
    assert_eq!(
        history.decode_request(from("resp_ef").as_bytes()).unwrap_err().field,
        "previous_response_id"
    );
}

#[test]
fn promise_8_a_history_sent_again_and_again_is_kept_once() {
    let mut history = ResponsesHistory::default();
    let mut items = vec![];
    let mut size = Vec::new();
    for turn in 0..50 {
        items.push(
            json!({"role": "user", "content": format!("question {turn} {}", "x".repeat(1000))}),
        );
        let id = format!("resp_{turn:02x}");
        let reply = answer(
            &mut history,
            &body(json!(items)),
            &id,
            vec![ReplyBlock::Text(format!("answer {turn}"))],
        );
        items.push(reply["output"][0].clone());
        size.push(format!("{history:?}").len());
    }
    // Grows by the same with each turn.
    let growth: Vec<_> = size.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(growth.iter().all(|bytes| *bytes < 2000), "{growth:?}");
}

#[test]
fn promise_8_nothing_is_kept_of_requests_without_a_reply() {
    let mut history = ResponsesHistory::default();
    let ask = |history: &mut ResponsesHistory, text: &str| {
        let body =
            body(json!([{"role": "user", "content": "same"}, {"role": "user", "content": text}]));
        let request = history.decode_request(body.to_string().as_bytes()).unwrap();
        history.begin(&request)
    };
    let size = |history: &ResponsesHistory| format!("{history:?}").matches("message:").count();
    for number in 0..20 {
        let asked = ask(&mut history, &format!("too long {number}"));
        assert_eq!(size(&history), 2);
        history.forget(asked);
        assert_eq!(size(&history), 0);
    }
    // What others still need stays: a request that waits for its reply, and a reply.
    let (one, other) = (ask(&mut history, "a"), ask(&mut history, "a"));
    history.forget(one);
    assert_eq!(size(&history), 2);
    let reply = Reply { blocks: vec![ReplyBlock::Text("yes".to_owned())], ..Reply::default() };
    history.remember("resp_ab", other, &reply);
    let failed = ask(&mut history, "b");
    history.forget(failed);
    assert_eq!(size(&history), 3);
    let next = with(body(json!("go on")), "previous_response_id", json!("resp_ab"));
    let next = history.decode_request(next.to_string().as_bytes()).unwrap();
    assert_eq!(chat_messages(&next).len(), 4);
}

proptest! {
    /// What the model sampled for a tool that the client knows in another form comes back to the
    /// engine as it was sampled, though the client gets only its meaning.
    #[test]
    fn arguments_come_back_byte_for_byte(
        name in prop::sample::select(vec!["patch", "local_shell", "n__f", "plain"]),
        arguments in prop_oneof![
            "[a-z{}\":, \\\\\n]{0,20}",
            "[ \n]{0,2}".prop_map(|s| format!("{{{s}\"input\" :{s}\"a\\u00e9\\n\"{s}}}")),
            "[ \n]{0,2}".prop_map(|s| format!("{{{s}\"timeout_ms\":{s}5, \"command\": [\"a\"]}}")),
        ],
    ) {
        let tools = json!([
            {"type": "custom", "name": "patch"},
            {"type": "local_shell"},
            {"type": "namespace", "name": "n", "tools": [function("f")]},
            function("plain"),
        ]);
        let asked = with(body(json!("hi")), "tools", tools);
        let asked = decode(&asked);
        let blocks = vec![call(0, name, &arguments)];
        let reply = told(&asked, "resp_ab", blocks.clone());
        let mut turns = TurnMemory::default();
        turns.remember(Asked::of(&asked), &Reply { blocks, ..Reply::default() });
        let items = json!([{"role": "user", "content": "hi"}, reply["output"][0]]);
        let mut next = decode(&body(items));
        turns.restore(&mut next, HistoryPolicy::AsSent);
        let back = &chat_messages(&next)[1]["tool_calls"][0]["function"];
        prop_assert_eq!(&back["name"], name);
        prop_assert_eq!(&back["arguments"], arguments.as_str());
    }

    /// A conversation is the same to the engine in Chat and in Responses.
    #[test]
    fn promise_2_a_conversation_told_in_responses_is_its_twin_in_chat(turns in turns()) {
        let (mut chat, mut responses) = (Vec::new(), Vec::new());
        for (number, turn) in turns.iter().enumerate() {
            turn.tell(number, &mut chat, &mut responses);
        }
        let chat = json!({
            "model": "m", "messages": chat,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        });
        let responses = json!({
            "model": "m", "input": responses,
            "tools": [{"type": "function", "name": "f", "parameters": {}}],
        });
        let chat = Dialect::Chat.decode_request(chat.to_string().as_bytes()).unwrap();
        let responses = decode(&responses);
        prop_assert_eq!(chat_messages(&chat), chat_messages(&responses));
        prop_assert_eq!(chat_tools(&chat), chat_tools(&responses));
    }
}

#[derive(Debug, Clone)]
enum Turn {
    Said { role: &'static str, parts: Vec<String>, image: bool },
    Reply { reasoning: Option<String>, text: Option<String>, results: Vec<(String, String)> },
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let said = (
        prop::sample::select(vec!["system", "developer", "user"]),
        prop::collection::vec("[a-zß\"\n ]{0,8}", 0..3),
        any::<bool>(),
    )
        .prop_map(|(role, parts, image)| Turn::Said { role, parts, image });
    let text = || prop::option::of("[a-zß\"\n ]{1,8}");
    let results = prop::collection::vec(("[a-z{}\": ]{0,9}", "[a-zß\n]{0,9}"), 0..3);
    let reply = (text(), text(), results).prop_map(|(reasoning, text, results)| Turn::Reply {
        reasoning,
        text,
        results,
    });
    let exchange = (said, reply).prop_map(|(said, reply)| vec![said, reply]);
    prop::collection::vec(exchange, 1..5).prop_map(|exchanges| exchanges.concat())
}

impl Turn {
    fn tell(&self, number: usize, chat: &mut Vec<Value>, responses: &mut Vec<Value>) {
        const IMAGE: &str = "data:image/png;base64,iVBORw0KGgo=";
        match self {
            Self::Said { role, parts, image } => {
                let content = |text: &str, picture: Value| {
                    let texts = parts.iter().map(|part| json!({"type": text, "text": part}));
                    texts.chain(image.then_some(picture)).collect::<Value>()
                };
                let picture = json!({"type": "image_url", "image_url": {"url": IMAGE}});
                chat.push(json!({"role": role, "content": content("text", picture)}));
                let picture = json!({"type": "input_image", "image_url": IMAGE});
                responses.push(json!({"role": role, "content": content("input_text", picture)}));
            }
            Self::Reply { reasoning, text, results } => {
                let ids: Vec<_> =
                    (0..results.len()).map(|i| format!("call_{number}_{i}")).collect();
                let calls = ids.iter().zip(results).map(|(id, (arguments, _))| {
                    json!({"id": id, "type": "function",
                           "function": {"name": "f", "arguments": arguments}})
                });
                let mut message = json!({"role": "assistant", "content": text});
                if let Some(reasoning) = reasoning {
                    message["reasoning_content"] = json!(reasoning);
                    responses.push(json!({"type": "reasoning", "summary": [], "content": [
                        {"type": "reasoning_text", "text": reasoning},
                    ]}));
                }
                if !results.is_empty() {
                    message["tool_calls"] = calls.collect();
                }
                if let Some(text) = text {
                    responses.push(json!({"type": "message", "role": "assistant", "content": [
                        {"type": "output_text", "text": text, "annotations": []},
                    ]}));
                }
                // A turn in which nothing is said is nothing in this dialect.
                if reasoning.is_some() || text.is_some() || !results.is_empty() {
                    chat.push(message);
                }
                for (id, (arguments, _)) in ids.iter().zip(results) {
                    responses.push(json!({"type": "function_call", "call_id": id, "name": "f",
                                          "arguments": arguments}));
                }
                for (id, (_, output)) in ids.iter().zip(results) {
                    chat.push(json!({"role": "tool", "tool_call_id": id, "content": output}));
                    responses.push(json!({"type": "function_call_output", "call_id": id,
                                          "output": output}));
                }
            }
        }
    }
}

#[test]
fn a_reply_cut_by_the_limit_is_incomplete_and_says_where() {
    let request = decode(&body(json!("hi")));
    let head = ReplyHead {
        id: "resp_ab".to_owned(),
        model: "m".to_owned(),
        created: 1,
        prompt_tokens: None,
        responses: request.responses.clone(),
        chat: ChatTerms::default(),
        google: GoogleTerms::default(),
    };
    let end = ReplyEnd {
        finish: FinishReason::Length,
        stop_sequence: None,
        usage: Usage { prompt_tokens: 5, completion_tokens: 7, ..Usage::default() },
    };
    let mut reply = Reply::default();
    for event in [
        ReplyEvent::Text("a".to_owned()),
        ReplyEvent::ToolCall { index: 0, id: "c".to_owned(), name: "f".to_owned() },
    ] {
        reply.push(&event);
    }
    let body = unary_body(Dialect::Responses, &head, &reply, &end);
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["status"], "incomplete");
    assert_eq!(body["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(body["output"][0]["status"], "completed");
    assert_eq!(body["output"][1]["status"], "incomplete");
    assert_eq!(body["usage"]["total_tokens"], 12);
}
