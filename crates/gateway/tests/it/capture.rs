//! What is written down, and when.

use super::*;
use futures_util::StreamExt;
use polar_convo::ReplyEvent;
use polar_engine::EngineEvent;
use polar_record::RecordedSession;

#[tokio::test]
async fn promise_4_a_call_is_in_the_journal_before_its_end_is_told() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    for (index, (stream, (path, body))) in [false, true]
        .into_iter()
        .flat_map(|stream| dialects(stream).map(|case| (stream, case)))
        .enumerate()
    {
        let (response, call) = rig.call(path, session.secret(), &body).await;
        call.prompt(&[1, 2]);
        call.text("x", &[3, 4]);
        call.end(2, 2);
        // The journal is read the moment the last byte is here; nothing is closed or
        // flushed in between.
        let text = within("body", within("reply", response).await.unwrap().text()).await.unwrap();
        assert!(text.contains('x'), "{text}");
        let recorded = rig.recorded("s");
        assert_eq!(recorded.calls().len(), index + 1, "{path} stream: {stream}");
        let call = &recorded.calls()[index];
        assert_eq!(recorded.prompt_ids(call), Some(vec![1, 2]));
        assert_eq!(recorded.sampled_ids(call), Some(vec![3, 4]));
        assert_eq!(call.logprobs, [Some(-3.5), Some(-4.5)]);
    }
}

#[tokio::test]
async fn a_reply_that_cannot_be_journalled_is_not_told_as_complete() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let (response, call) = rig.call("/v1/messages", session.secret(), &messages(true)).await;
    let response = within("headers", response).await.unwrap();
    call.prompt(&[1]);
    call.text("x", &[2]);
    // Closing seals the journal under the running call.
    session.close().unwrap();
    let text = within("body", response.text()).await.unwrap();
    assert!(!text.contains("message_stop"), "{text}");
    assert!(text.contains("event: error"), "{text}");
}

#[tokio::test]
async fn a_harness_that_hangs_up_cancels_the_engine_and_is_recorded_as_undelivered() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    for (index, (stream, (path, body))) in [false, true]
        .into_iter()
        .flat_map(|stream| dialects(stream).map(|case| (stream, case)))
        .enumerate()
    {
        let request = rig.post(path, session.secret(), &body);
        let harness = tokio::spawn(async move {
            let response = request.send().await.unwrap();
            let mut body = response.bytes_stream();
            while body.next().await.is_some() {}
        });
        let call = within("call", rig.engine.next_call()).await;
        call.prompt(&[1, 2]);
        call.text("x", &[3]);
        harness.abort();
        within("cancellation", call.cancelled()).await;
        let recorded = within("record", recorded_calls(&rig, index + 1)).await;
        let call = &recorded.calls()[index];
        assert_eq!(call.delivered, Some(false), "{path} stream: {stream}");
        assert_eq!(call.meta.finish_reason, "cancelled");
    }
}

#[tokio::test]
async fn what_the_rules_of_the_harness_look_at_is_written_down_and_nothing_else() {
    let rules: HarnessRules = serde_json::from_value(json!({
        "roles": [{"name": "sub", "role": "sub_agent", "when": {"headers": {"X-Agent": "."}},
            "parent": {"header": "x-parent", "is": "x-thread"}}],
        "normalise": [{"name": "billing", "description": "A line that changes.", "part": "user",
            "pattern": "^cch=\\d+\n"}],
    }))
    .unwrap();
    let rig = Rig::start().await;
    let session =
        rig.open_with("s", SamplingPins::default(), HistoryPolicy::default(), rules.clone());
    for (index, (path, mut body)) in dialects(false).into_iter().enumerate() {
        say(&mut body, format!("cch={index}\nhello"));
        let request = rig.post(path, session.secret(), &body);
        let request = request.header("x-agent", "a").header("x-thread", "t").header("x-other", "o");
        let response = tokio::spawn(async move { request.send().await.unwrap() });
        let call = within("call", rig.engine.next_call()).await;
        // The engine sees what is written down.
        let seen = polar_convo::chat_messages(&call.request.request);
        assert_eq!(seen, [json!({"role": "user", "content": "hello"})], "{path}");
        call.prompt(&[1, 2]);
        call.text("x", &[3, 4]);
        call.end(2, 2);
        within("body", within("reply", response).await.unwrap().text()).await.unwrap();
        let recorded = rig.recorded("s");
        assert_eq!(recorded.header.rules, rules);
        let call = &recorded.calls()[index];
        let headers: Vec<_> = call.meta.headers.iter().collect();
        assert_eq!(headers.len(), 2, "{headers:?}");
        assert_eq!((&*call.meta.headers["x-agent"], &*call.meta.headers["x-thread"]), ("a", "t"));
        assert_eq!(call.meta.extra["normalised"], json!({"billing": 1}), "{path}");
        assert_eq!(recorded.messages(call, 0), seen, "{path}");
    }
}

/// Reads the journal until it holds `count` calls with their delivery marks.
async fn recorded_calls(rig: &Rig, count: usize) -> RecordedSession {
    loop {
        let recorded = rig.recorded("s");
        if recorded.calls().iter().filter(|call| call.delivered.is_some()).count() >= count {
            return recorded;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_whole_reply_is_recorded_as_delivered() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let mut count = 0;
    for stream in [false, true] {
        for (path, body) in dialects(stream) {
            let (response, call) = rig.call(path, session.secret(), &body).await;
            call.prompt(&[1]);
            call.text("x", &[2]);
            call.end(1, 1);
            within("body", within("reply", response).await.unwrap().text()).await.unwrap();
            count += 1;
            let recorded = within("record", recorded_calls(&rig, count)).await;
            assert_eq!(recorded.calls()[count - 1].delivered, Some(true), "{path} {stream}");
        }
    }
}

#[tokio::test]
async fn closing_records_running_calls_and_completes_the_journal() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let (response, call) = rig.call("/v1/chat/completions", session.secret(), &chat(true)).await;
    let response = within("headers", response).await.unwrap();
    call.prompt(&[1, 2]);
    call.text("x", &[3]);
    let mut body = response.bytes_stream();
    within("first token", body.next()).await.unwrap().unwrap();
    session.close().unwrap();
    // The journal is complete when close returns, not some time after.
    let recorded = rig.recorded("s");
    assert_eq!(recorded.calls().len(), 1);
    assert_eq!(recorded.calls()[0].delivered, Some(false));
    assert_eq!(recorded.sampled_ids(&recorded.calls()[0]), Some(vec![3]));
    within("cancellation", call.cancelled()).await;
    session.close().unwrap();
}

#[tokio::test]
async fn promise_3_ids_that_do_not_match_the_engines_count_are_missing() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let (response, call) = rig.call("/v1/chat/completions", session.secret(), &chat(false)).await;
    call.prompt(&[1]);
    call.text("x", &[2]);
    call.end(1, 3);
    within("reply", response).await.unwrap();
    session.close().unwrap();
    let recorded = rig.recorded("s");
    assert_eq!(recorded.sampled_ids(&recorded.calls()[0]), None);
    assert_eq!(recorded.calls()[0].meta.sampled_tokens, 3);
    assert!(recorded.calls()[0].logprobs.is_empty());
}

#[tokio::test]
async fn promise_2_prompt_ids_that_do_not_match_the_engines_count_are_missing() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let (response, call) = rig.call("/v1/chat/completions", session.secret(), &chat(false)).await;
    call.prompt(&[1, 2]);
    call.text("x", &[3]);
    // As where an image stands for more tokens than its mark.
    call.end(5, 1);
    within("reply", response).await.unwrap();
    session.close().unwrap();
    let recorded = rig.recorded("s");
    let call = &recorded.calls()[0];
    assert_eq!((recorded.prompt_ids(call), recorded.sampled_ids(call)), (None, None));
    assert_eq!((call.meta.prompt_tokens, call.meta.sampled_tokens), (5, 1));
    let counts = &call.meta.extra["prompt_id_count_mismatch"];
    assert_eq!(counts, &json!({"ids": 2, "counted": 5}));
}

/// In Messages a block cannot be gone on with once the next one has begun.
#[tokio::test]
async fn promise_4_a_reply_whose_end_was_not_told_is_not_delivered() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let (response, call) = rig.call("/v1/messages", session.secret(), &messages(true)).await;
    call.prompt(&[1]);
    let begin = |index: u32| ReplyEvent::ToolCall {
        index,
        id: format!("call_{index}"),
        name: "ls".to_owned(),
    };
    let arguments = || ReplyEvent::ToolArguments { index: 0, fragment: "{}".to_owned() };
    // They were whole, and the next call has begun.
    for (event, id) in [(begin(0), 2), (arguments(), 3), (begin(1), 4), (arguments(), 5)] {
        call.send(EngineEvent::Chunk {
            events: vec![event],
            ids: vec![id],
            logprobs: vec![Some(-0.5)],
        });
    }
    let text = within("body", within("reply", response).await.unwrap().text()).await.unwrap();
    assert!(text.contains("event: error") && !text.contains("message_stop"), "{text}");
    within("cancellation", call.cancelled()).await;
    let recorded = within("record", recorded_calls(&rig, 1)).await;
    let call = &recorded.calls()[0];
    assert_eq!((call.delivered, call.meta.finish_reason.as_str()), (Some(false), "error"));
    assert_eq!(recorded.sampled_ids(call), Some(vec![2, 3, 4, 5]));
}

#[tokio::test]
async fn promise_3_what_was_used_is_recorded_where_nothing_was_asked_for() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    for (path, body) in dialects(false) {
        let (response, call) = rig.call(path, session.secret(), &body).await;
        let used = call.request.request.sampling.clone();
        assert_eq!((used.temperature, used.top_p, used.top_k), (Some(1.0), Some(1.0), Some(-1)));
        call.prompt(&[1]);
        call.end(1, 0);
        within("reply", response).await.unwrap();
    }
    for call in rig.recorded("s").calls() {
        let sampling = &call.meta.sampling;
        assert_eq!((&sampling["temperature"], &sampling["top_k"]), (&json!(1.0), &json!(-1)));
    }
}

#[tokio::test]
async fn pinned_sampling_replaces_the_harnesss_and_is_recorded() {
    let rig = Rig::start().await;
    let pins = SamplingPins {
        temperature: Some(1.0),
        top_p: Some(0.5),
        top_k: Some(7),
        max_tokens: Some(33),
        seed: Some(9),
        stop: Some(vec!["END".to_owned()]),
    };
    let session = rig.open_pinned("s", pins);
    for (path, mut body) in dialects(false) {
        body["temperature"] = json!(0.1);
        limit(&mut body, 5);
        let (response, call) = rig.call(path, session.secret(), &body).await;
        let used = call.request.request.sampling.clone();
        assert_eq!(used.temperature, Some(1.0), "{path}");
        assert_eq!((used.top_p, used.top_k), (Some(0.5), Some(7)), "{path}");
        assert_eq!((used.max_tokens, used.seed), (Some(33), Some(9)), "{path}");
        assert_eq!(used.stop, ["END"], "{path}");
        call.prompt(&[1]);
        call.end(1, 0);
        within("reply", response).await.unwrap();
    }
    session.close().unwrap();
    for call in rig.recorded("s").calls() {
        assert_eq!(call.meta.sampling["temperature"], 1.0);
        assert_eq!(call.meta.sampling["max_tokens"], 33);
    }
}

#[tokio::test]
async fn more_than_one_choice_is_refused() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let mut body = chat(false);
    body["n"] = json!(2);
    let response = rig.post("/v1/chat/completions", session.secret(), &body).send().await.unwrap();
    assert_eq!(response.status(), 400);
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["error"]["param"], "n");
}

#[tokio::test]
async fn promise_10_the_record_holds_what_was_carried_unsent_lost_and_malformed() {
    let rig = Rig::start().await;
    let session = rig.open("s");
    let mut body = messages(false);
    body["system"] =
        json!([{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]);
    body["metadata"] = json!({"user_id": "u"});
    body["tools"] = json!([{"name": "ls", "input_schema": {"type": "object"}}]);
    body["tool_choice"] = json!({"type": "any", "disable_parallel_tool_use": true});
    let (response, call) = rig.call("/v1/messages", session.secret(), &body).await;
    call.prompt(&[1]);
    call.send(EngineEvent::Chunk {
        events: vec![
            ReplyEvent::ToolCall { index: 0, id: "call_1".to_owned(), name: "ls".to_owned() },
            ReplyEvent::ToolArguments { index: 0, fragment: "{\"path\": ".to_owned() },
        ],
        ids: vec![2],
        logprobs: vec![None],
    });
    call.end(1, 1);
    let text = within("body", within("reply", response).await.unwrap().text()).await.unwrap();
    assert!(text.contains(polar_convo::UNPARSED_ARGUMENTS), "{text}");
    let recorded = rig.recorded("s");
    let extra = &recorded.calls()[0].meta.extra;
    assert_eq!(extra["carried"], json!({"parallel_tool_calls": false}));
    assert_eq!(extra["tool_choice"], "required");
    assert_eq!(extra["unsent"], json!({"metadata": {"user_id": "u"}}));
    assert_eq!(extra["losses"][0]["kind"], "cache_control_dropped");
    assert_eq!(extra["malformed_calls"], json!([0]));
}
