//! What is peculiar to Google's dialect: ids that may be absent, signatures, schemas, choices, and
//! what is refused.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use polar_convo::{
    ChatTerms, Dialect, FinishReason, GoogleTerms, Reply, ReplyEnd, ReplyEvent, ReplyHead, Request,
    ToolChoice, Usage, chat_messages, unary_body,
};
use serde_json::{Value, json};

fn decode(body: &Value) -> Request {
    Dialect::Google.decode_request(body.to_string().as_bytes()).unwrap()
}

fn problem(body: &Value) -> (String, String) {
    let error = Dialect::Google.decode_request(body.to_string().as_bytes()).unwrap_err();
    (error.field.clone(), error.to_string())
}

/// A request whose conversation says nothing else.
fn asking(field: &str, value: Value) -> Value {
    let mut body = json!({"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]});
    body[field] = value;
    body
}

fn conversation(contents: Value) -> Vec<Value> {
    chat_messages(&decode(&json!({ "contents": contents })))
}

fn call(name: &str, id: Option<&str>) -> Value {
    json!({"functionCall": {"name": name, "id": id, "args": {"n": 1}}})
}

fn result(name: &str, id: Option<&str>, output: &str) -> Value {
    json!({"functionResponse": {"name": name, "id": id, "response": {"output": output}}})
}

/// Call ids and what answered them, in order.
fn pairs(messages: &[Value]) -> (Vec<String>, Vec<(String, String)>) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let called = messages
        .iter()
        .flat_map(|message| message["tool_calls"].as_array().cloned().unwrap_or_default())
        .map(|call| text(&call["id"]))
        .collect();
    let answered = messages
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| (text(&message["tool_call_id"]), text(&message["content"])))
        .collect();
    (called, answered)
}

#[test]
fn calls_without_ids_are_answered_by_name_in_order() {
    let messages = conversation(json!([
        {"parts": [{"text": "Go"}]},
        {"role": "model", "parts": [call("read", None), call("ls", None), call("read", None)]},
        {"role": "function", "parts": [
            result("ls", None, "b"), result("read", None, "a"), result("read", None, "c"),
        ]},
        {"role": "model", "parts": [call("read", None)]},
        {"role": "user", "parts": [result("read", None, "d")]},
    ]));
    let (called, answered) = pairs(&messages);
    assert_eq!(called, ["call00000", "call00001", "call00002", "call00003"]);
    let expected = [("call00001", "b"), ("call00000", "a"), ("call00002", "c"), ("call00003", "d")];
    assert_eq!(answered, expected.map(|(id, text)| (id.to_owned(), text.to_owned())));
}

#[test]
fn minted_ids_stay_when_the_history_grows() {
    let mut contents = vec![json!({"parts": [{"text": "Go"}]})];
    let mut before: Vec<Value> = Vec::new();
    for turn in 0..5 {
        contents.push(json!({"role": "model", "parts": [call("read", None), call("ls", None)]}));
        contents.push(json!({"role": "user", "parts": [
            result("read", None, &turn.to_string()), result("ls", None, "x"),
        ]}));
        let messages = conversation(Value::Array(contents.clone()));
        assert_eq!(messages[..before.len()], before);
        before = messages;
    }
}

#[test]
fn ids_that_only_one_side_has_are_understood() {
    for (called, answered, id) in [
        (Some("c1"), Some("c1"), "c1"),
        (Some("c1"), None, "c1"),
        (None, Some("made-up"), "call00000"),
        (None, None, "call00000"),
    ] {
        let messages = conversation(json!([
            {"parts": [{"text": "Go"}]},
            {"role": "model", "parts": [call("read", called)]},
            {"role": "user", "parts": [result("read", answered, "a")]},
        ]));
        let expected = (vec![id.to_owned()], vec![(id.to_owned(), "a".to_owned())]);
        assert_eq!(pairs(&messages), expected, "{called:?} {answered:?}");
    }
}

#[test]
fn a_result_that_answers_nothing_is_refused() {
    let (field, message) = problem(&json!({"contents": [
        {"parts": [{"text": "Go"}]},
        {"role": "model", "parts": [call("read", None)]},
        {"role": "user", "parts": [result("read", None, "a"), result("read", None, "b")]},
    ]}));
    assert_eq!(field, "contents[2].parts[1].functionResponse");
    assert!(message.contains("answers no open call of \"read\""), "{message}");
}

#[test]
fn outputs_are_told_to_the_model_as_google_means_them() {
    for (response, content, failed) in [
        (json!({"output": "plain"}), "plain", 0),
        (json!({"output": {"a": [1, 2]}}), r#"{"a":[1,2]}"#, 0),
        (json!({"error": "no such file"}), "no such file", 1),
        (json!({"result": "sun"}), r#"{"result":"sun"}"#, 0),
        (json!({"output": "a", "more": 1}), r#"{"output":"a","more":1}"#, 0),
        (json!({}), "{}", 0),
    ] {
        let request = decode(&json!({"contents": [
            {"parts": [{"text": "Go"}]},
            {"role": "model", "parts": [call("read", None)]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "read", "response": response}},
            ]},
        ]}));
        assert_eq!(chat_messages(&request)[2]["content"], content);
        let lost = request.losses.iter().filter(|l| l.kind.as_str() == "tool_error_flag_dropped");
        assert_eq!(lost.count(), failed);
    }
}

/// A reply as an engine samples it, and the parts it becomes.
fn replied(events: &[ReplyEvent], include_thoughts: bool) -> (Value, Vec<Value>) {
    let mut reply = Reply::default();
    events.iter().for_each(|event| reply.push(event));
    let head = ReplyHead {
        id: "r1".to_owned(),
        model: "m".to_owned(),
        created: 0,
        prompt_tokens: None,
        responses: None,
        chat: ChatTerms::default(),
        google: GoogleTerms { include_thoughts, ..GoogleTerms::default() },
    };
    let end = ReplyEnd { finish: FinishReason::Stop, stop_sequence: None, usage: Usage::default() };
    let body: Value =
        serde_json::from_slice(&unary_body(Dialect::Google, &head, &reply, &end)).unwrap();
    let parts = body["candidates"][0]["content"]["parts"].as_array().unwrap().clone();
    (polar_convo::reply_message(&reply), parts)
}

fn sampled_call(index: u32, arguments: &str) -> [ReplyEvent; 2] {
    let (id, name) = (format!("c{index}"), "read".to_owned());
    let fragment = arguments.to_owned();
    [ReplyEvent::ToolCall { index, id, name }, ReplyEvent::ToolArguments { index, fragment }]
}

#[test]
fn what_was_sampled_comes_back_byte_for_byte_in_the_history() {
    for spelling in [
        r#"{"n":1}"#,
        "{ \"n\" : 1.0,\n\t\"x\": 1e4 }",
        r#"{"b":"\u00fc\/","a":null,"10":1,"9":2}"#,
        r#"{"big":123456789012345678901}"#,
        "",
    ] {
        let mut events = vec![
            ReplyEvent::Reasoning("Look\n first. ".to_owned()),
            ReplyEvent::Text(" I look.\n".to_owned()),
        ];
        events.extend(sampled_call(0, r#"{"path":"a"}"#));
        events.extend(sampled_call(1, spelling));
        for include_thoughts in [false, true] {
            let (sampled, parts) = replied(&events, include_thoughts);
            let came_back: Vec<Value> = parts
                .into_iter()
                // Gemini CLI keeps no thoughts, and JavaScript has only floats.
                .filter(|part| part["thought"] != true)
                .map(through_javascript)
                .collect();
            let messages = conversation(json!([
                {"parts": [{"text": "Go"}]},
                {"role": "model", "parts": came_back},
                {"role": "user", "parts": [result("read", Some("c0"), "x")]},
            ]));
            assert_eq!(messages[1], sampled, "{spelling}");
        }
    }
}

fn through_javascript(value: Value) -> Value {
    match value {
        Value::Number(number) => {
            let number = number.as_f64().unwrap();
            if number.fract() == 0.0 && number.abs() < 1e15 {
                json!(number as i64)
            } else {
                json!(number)
            }
        }
        Value::Array(items) => items.into_iter().map(through_javascript).collect(),
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.into_iter().collect();
            // Names that are numbers go to the front.
            fields.sort_by_key(|(name, _)| name.parse::<u32>().map_or((1, 0), |n| (0, n)));
            fields.into_iter().map(|(name, value)| (name, through_javascript(value))).collect()
        }
        other => other,
    }
}

#[test]
fn arguments_that_the_client_has_changed_are_what_it_sends() {
    let (_, parts) = replied(&sampled_call(0, "{ \"n\": 1.0 }"), false);
    let mut part = parts[0].clone();
    part["functionCall"]["args"] = json!({"n": 2});
    let messages =
        conversation(json!([{"parts": [{"text": "Go"}]}, {"role": "model", "parts": [part]},
            {"role": "user", "parts": [result("read", Some("c0"), "x")]}]));
    assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], r#"{"n":2}"#);
}

#[test]
fn reasoning_is_not_doubled_where_a_client_keeps_both_thoughts_and_signatures() {
    let mut events = vec![ReplyEvent::Reasoning("Look first.".to_owned())];
    events.extend(sampled_call(0, r#"{"n":1}"#));
    events.push(ReplyEvent::Reasoning("And then?".to_owned()));
    events.push(ReplyEvent::Text("Done.".to_owned()));
    for include_thoughts in [false, true] {
        let (sampled, parts) = replied(&events, include_thoughts);
        // One content for each chunk, as clients that stream keep it.
        let mut contents = vec![json!({"parts": [{"text": "Go"}]})];
        contents.extend(parts.into_iter().map(|part| json!({"role": "model", "parts": [part]})));
        contents.push(json!({"parts": [result("read", Some("c0"), "x")]}));
        assert_eq!(conversation(Value::Array(contents))[1], sampled);
    }
}

#[test]
fn foreign_signatures_are_written_down_and_placeholders_are_none() {
    for (signature, lost) in [
        ("skip_thought_signature_validator", 0),
        ("c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I=", 0),
        ("CiQB0e2Kb", 1),
        ("!!", 1),
    ] {
        let request = decode(&json!({"contents": [
            {"parts": [{"text": "Go"}]},
            {"role": "model", "parts": [{"text": "Yes.", "thoughtSignature": signature}]},
            {"parts": [{"text": "On"}]},
        ]}));
        assert_eq!(request.losses.len(), lost, "{signature}: {:?}", request.losses);
    }
}

#[test]
fn malformed_calls_end_a_reply_as_google_does() {
    let mut events = sampled_call(0, r#"{"n":1}"#).to_vec();
    events.extend(sampled_call(1, r#"{"n": 1"#));
    let mut reply = Reply::default();
    events.iter().for_each(|event| reply.push(event));
    let head = ReplyHead {
        id: "r1".to_owned(),
        model: "m".to_owned(),
        created: 0,
        prompt_tokens: None,
        responses: None,
        chat: ChatTerms::default(),
        google: GoogleTerms::default(),
    };
    for (finish, reason) in [
        (FinishReason::ToolCalls, "MALFORMED_FUNCTION_CALL"),
        (FinishReason::Stop, "MALFORMED_FUNCTION_CALL"),
        (FinishReason::Length, "MAX_TOKENS"),
    ] {
        let end = ReplyEnd { finish, stop_sequence: None, usage: Usage::default() };
        let body: Value =
            serde_json::from_slice(&unary_body(Dialect::Google, &head, &reply, &end)).unwrap();
        let candidate = &body["candidates"][0];
        assert_eq!(candidate["finishReason"], reason);
        assert_eq!(candidate["content"]["parts"].as_array().unwrap().len(), 1);
        let message = candidate["finishMessage"].as_str();
        let expected = r#"Malformed function call: read({"n": 1)"#;
        assert_eq!(message, (finish != FinishReason::Length).then_some(expected));
    }
}

#[test]
fn both_spellings_of_every_name_say_the_same() {
    let camel = include_str!("fixtures/gemini_cli.google.json");
    let mut snake = camel.to_owned();
    for (from, to) in [
        ("functionCall\"", "function_call\""),
        ("thoughtSignature", "thought_signature"),
        ("functionResponse", "function_response"),
        ("inlineData", "inline_data"),
        ("mimeType", "mime_type"),
        ("systemInstruction", "system_instruction"),
        ("functionDeclarations", "function_declarations"),
        ("parametersJsonSchema", "parameters_json_schema"),
        ("generationConfig", "generation_config"),
        ("topP", "top_p"),
        ("topK", "top_k"),
        ("thinkingConfig", "thinking_config"),
        ("includeThoughts", "include_thoughts"),
    ] {
        assert!(snake.contains(from), "{from}");
        snake = snake.replace(from, to);
    }
    let decode = |text: &str| {
        let mut request = Dialect::Google.decode_request(text.as_bytes()).unwrap();
        request.losses.clear();
        request
    };
    assert_eq!(decode(camel), decode(&snake));
}

#[test]
fn what_cannot_be_served_is_refused_by_name() {
    let config = |name: &str, value: Value| asking("generationConfig", json!({ name: value }));
    let tool = |value: Value| asking("tools", json!([value]));
    let part = |value: Value| json!({"contents": [{"parts": [value]}]});
    let user = json!({"parts": [{"text": "x"}]});
    for (body, field) in [
        (json!({}), "contents"),
        (json!({"contents": []}), "contents"),
        (json!({"contents": "Hello"}), "contents"),
        (json!({"contents": [{"role": "wizard", "parts": []}]}), "contents[0].role"),
        (json!({"contents": [user, {"role": "model", "parts": [{"text": "y"}]}]}), "contents"),
        (asking("cachedContent", json!("cachedContents/x")), "cachedContent"),
        (config("candidateCount", json!(2)), "generationConfig.candidateCount"),
        (config("responseLogprobs", json!(true)), "generationConfig.responseLogprobs"),
        (config("logprobs", json!(5)), "generationConfig.logprobs"),
        (config("responseModalities", json!(["AUDIO"])), "generationConfig.responseModalities[0]"),
        (config("responseMimeType", json!("text/x.enum")), "generationConfig.responseMimeType"),
        (config("responseSchema", json!({"type": "OBJECT"})), "generationConfig.responseMimeType"),
        (config("speechConfig", json!({})), "generationConfig.speechConfig"),
        (config("topK", json!(1.5)), "generationConfig.topK"),
        (config("stopSequences", json!([""])), "generationConfig.stopSequences[0]"),
        (config("maxOutputTokens", json!(0)), "generationConfig.maxOutputTokens"),
        (tool(json!({"googleSearch": {}})), "tools[0].googleSearch"),
        (tool(json!({"code_execution": {}})), "tools[0].code_execution"),
        (tool(json!({"functionDeclarations": [{}]})), "tools[0].functionDeclarations[0].name"),
        (
            tool(json!({"functionDeclarations": [
                {"name": "f", "parameters": {"type": "OBJECT"}, "parametersJsonSchema": {}},
            ]})),
            "tools[0].functionDeclarations[0].parametersJsonSchema",
        ),
        (
            part(json!({"inlineData": {"mimeType": "application/pdf", "data": "x"}})),
            "contents[0].parts[0].inlineData.mimeType",
        ),
        (
            part(json!({"fileData": {"fileUri": "gs://bucket/a.png"}})),
            "contents[0].parts[0].fileData.fileUri",
        ),
        (part(json!({"executableCode": {}})), "contents[0].parts[0].executableCode"),
        (part(json!({"text": "x", "thought": true})), "contents[0].parts[0].thought"),
        (part(call("f", None)), "contents[0].parts[0].functionCall"),
        (
            part(json!({"text": "x", "inlineData": {"mimeType": "image/png", "data": "x"}})),
            "contents[0].parts[0].inlineData",
        ),
        (
            json!({"contents": [{"role": "model", "parts": [result("f", Some("c"), "x")]}, user]}),
            "contents[0].parts[0].functionResponse",
        ),
    ] {
        let (at, message) = problem(&body);
        assert_eq!(at, field, "{body}: {message}");
    }
}

#[test]
fn choices_are_told_in_the_words_engines_know_or_refused() {
    let choose = |calling: Value| {
        let mut body = asking("toolConfig", json!({"functionCallingConfig": calling}));
        body["tools"] = json!([{"functionDeclarations": [{"name": "a"}, {"name": "b"}]}]);
        Dialect::Google.decode_request(body.to_string().as_bytes())
    };
    let chosen = |calling| choose(calling).unwrap().tool_choice;
    assert_eq!(chosen(json!({})), None);
    assert_eq!(chosen(json!({"mode": "MODE_UNSPECIFIED"})), None);
    assert_eq!(chosen(json!({"mode": "AUTO"})), Some(ToolChoice::Auto));
    assert_eq!(chosen(json!({"mode": "NONE"})), Some(ToolChoice::None));
    assert_eq!(chosen(json!({"mode": "ANY"})), Some(ToolChoice::Required));
    let any = |names: Value| json!({"mode": "ANY", "allowedFunctionNames": names});
    assert_eq!(chosen(any(json!(["b"]))), Some(ToolChoice::Named("b".to_owned())));
    assert_eq!(chosen(any(json!(["b", "a"]))), Some(ToolChoice::Required));
    let validated = choose(json!({"mode": "VALIDATED"})).unwrap();
    assert_eq!(validated.tool_choice, Some(ToolChoice::Auto));
    assert_eq!(validated.losses[0].kind.as_str(), "tool_check_ignored");
    for refused in [
        any(json!(["c"])),
        json!({"mode": "AUTO", "allowedFunctionNames": ["a"]}),
        json!({"mode": "VALIDATED", "allowedFunctionNames": ["a"]}),
        json!({"mode": "SOME"}),
    ] {
        let error = choose(refused.clone()).unwrap_err();
        assert!(error.field.starts_with("toolConfig.functionCallingConfig."), "{refused}: {error}");
    }
    let body = asking("toolConfig", json!({"functionCallingConfig": {"mode": "ANY"}}));
    assert_eq!(problem(&body).0, "toolConfig.functionCallingConfig.mode");
}

#[test]
fn googles_schemas_become_json_schemas() {
    for (google, json_schema) in [
        (json!({"type": "STRING"}), json!({"type": "string"})),
        (json!({"type": "STRING", "nullable": true}), json!({"type": ["string", "null"]})),
        (json!({"type": "STRING", "nullable": false}), json!({"type": "string"})),
        (
            json!({"type": "STRING", "enum": ["a"], "nullable": true}),
            json!({"type": ["string", "null"], "enum": ["a", null]}),
        ),
        (json!({"type": "TYPE_UNSPECIFIED", "title": "x"}), json!({"title": "x"})),
        (
            json!({"type": "OBJECT", "properties": {"type": {"type": "INTEGER"}}}),
            json!({"type": "object", "properties": {"type": {"type": "integer"}}}),
        ),
        (
            json!({"any_of": [{"type": "NUMBER"}], "min_items": "2", "default": null}),
            json!({"anyOf": [{"type": "number"}], "minItems": 2, "default": null}),
        ),
        (
            json!({"defs": {"a": {"type": "STRING"}}, "ref": "#/$defs/a"}),
            json!({"$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a"}),
        ),
        (
            json!({"properties": {"a": {}}, "propertyOrdering": ["b"]}),
            json!({"properties": {"a": {}}, "propertyOrdering": ["b"]}),
        ),
    ] {
        let body = asking(
            "tools",
            json!([{"functionDeclarations": [{"name": "f", "parameters": google}]}]),
        );
        assert_eq!(decode(&body).tools[0].parameters, json_schema, "{google}");
        let body = asking(
            "tools",
            json!([{"functionDeclarations": [{"name": "f", "parametersJsonSchema": google}]}]),
        );
        assert_eq!(decode(&body).tools[0].parameters, google);
    }
    let ordered =
        json!({"properties": {"a": {}, "b": {}, "c": {}}, "propertyOrdering": ["c", "a"]});
    let body =
        asking("tools", json!([{"functionDeclarations": [{"name": "f", "parameters": ordered}]}]));
    let text = decode(&body).tools[0].parameters.to_string();
    assert_eq!(text, r#"{"properties":{"c":{},"a":{},"b":{}}}"#);
}

#[test]
fn a_count_is_asked_of_contents_or_of_a_whole_request() {
    let count = |body: Value| Dialect::Google.decode_count_request(body.to_string().as_bytes());
    let contents =
        json!([{"parts": [{"text": "Hello"}]}, {"role": "model", "parts": [{"text": "Hi"}]}]);
    assert_eq!(count(json!({ "contents": contents })).unwrap().messages.len(), 2);
    let whole = json!({"contents": contents, "model": "models/m",
        "systemInstruction": {"parts": [{"text": "Be brief."}]}});
    let request = count(json!({ "generateContentRequest": whole })).unwrap();
    assert_eq!((request.messages.len(), request.model.as_str()), (3, "m"));
    let error = count(json!({"contents": [], "generateContentRequest": whole})).unwrap_err();
    assert_eq!(error.field, "generateContentRequest");
    let error = count(json!({"generateContentRequest": {"contents": 3}})).unwrap_err();
    assert_eq!(error.field, "generateContentRequest.contents");
}

#[test]
fn images_reach_engines_in_one_alphabet_of_base64() {
    for (sent, data) in [("-_8=", "+/8="), ("-_8", "+/8="), ("+/8=", "+/8=")] {
        let messages = conversation(json!([{"parts": [
            {"inlineData": {"mimeType": "image/png", "data": sent}},
        ]}]));
        let url = &messages[0]["content"][0]["image_url"]["url"];
        assert_eq!(url, &json!(format!("data:image/png;base64,{data}")));
    }
}
