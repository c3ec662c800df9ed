//! The model's own turns are known again in a history, whatever a harness has made of them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use polar_convo::{
    Asked, Dialect, HistoryReport, Reply, ReplyBlock, Request, TurnMemory, chat_messages,
};
use polar_types::HistoryPolicy;
use proptest::prelude::*;
use serde_json::{Value, json};

const SAMPLED: &str = "{ \"b\" : 1.0, \"a\":\"\\u00fc\\/ \" }";

fn decode(dialect: Dialect, body: &Value) -> Request {
    dialect.decode_request(body.to_string().as_bytes()).unwrap()
}

fn text(text: &str) -> ReplyBlock {
    ReplyBlock::Text(text.to_owned())
}

fn reasoning(text: &str) -> ReplyBlock {
    ReplyBlock::Reasoning(text.to_owned())
}

fn call(index: u32, id: &str, arguments: &str) -> ReplyBlock {
    let (id, arguments) = (id.to_owned(), arguments.to_owned());
    ReplyBlock::ToolCall { index, id, name: "f".to_owned(), arguments }
}

fn chat(messages: &[Value]) -> Value {
    json!({"model": "m", "messages": messages})
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn said(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

fn called(calls: &[(&str, &str)]) -> Value {
    let call = |(id, arguments): &(&str, &str)| {
        json!({"id": id, "type": "function",
               "function": {"name": "f", "arguments": arguments}})
    };
    let calls: Vec<_> = calls.iter().map(call).collect();
    json!({"role": "assistant", "content": null, "tool_calls": calls})
}

/// A session with its gateway's memory, in Chat.
#[derive(Default)]
struct Session {
    turns: TurnMemory,
    policy: HistoryPolicy,
}

impl Session {
    /// What the engine gets for a request, and what the record says of its history.
    fn asks(&self, dialect: Dialect, body: &Value) -> (Request, Vec<Value>) {
        let mut request = decode(dialect, body);
        self.turns.restore(&mut request, self.policy);
        let messages = chat_messages(&request);
        (request, messages)
    }

    fn answers(&mut self, request: &Request, blocks: Vec<ReplyBlock>) {
        self.turns.remember(Asked::of(request), &Reply { blocks, ..Reply::default() });
    }

    fn turn(&mut self, messages: &[Value], blocks: Vec<ReplyBlock>) -> HistoryReport {
        let (request, _) = self.asks(Dialect::Chat, &chat(messages));
        self.answers(&request, blocks);
        request.history
    }

    fn history(&self, messages: &[Value]) -> (Vec<Value>, Value) {
        let (request, seen) = self.asks(Dialect::Chat, &chat(messages));
        let report = json!({
            "restored": request.history.restored,
            "edited": request.history.edited,
        });
        (seen, report)
    }
}

/// Two agents that are asked the same and say the same, for other reasons.
#[test]
fn promise_2_a_turn_is_the_one_that_the_next_was_sampled_behind() {
    let mut session = Session::default();
    let first = [user("go")];
    session.turn(&first, vec![reasoning("one"), text("Well.")]);
    let second = [user("go"), said("Well."), user("and?")];
    session.turn(&second, vec![reasoning("more of one"), text("So.")]);
    session.turn(&first, vec![reasoning("other"), text("Well.")]);
    let third = [&second[..], &[said("So."), user("then?")]].concat();
    let (seen, _) = session.history(&third);
    assert_eq!(seen[1]["reasoning_content"], "one", "{seen:?}");
    assert_eq!(seen[3]["reasoning_content"], "more of one", "{seen:?}");
    // Nothing tells whose turn it is yet, so it is the latest.
    let (seen, _) = session.history(&second);
    assert_eq!(seen[1]["reasoning_content"], "other", "{seen:?}");
    // The other goes on, and both are known.
    session.turn(&second, vec![reasoning("more of other"), text("Thus.")]);
    for (end, thoughts) in [("So.", ["one", "more of one"]), ("Thus.", ["other", "more of other"])]
    {
        let (seen, _) = session.history(&[&second[..], &[said(end), user("then?")]].concat());
        let found = [&seen[1]["reasoning_content"], &seen[3]["reasoning_content"]];
        assert_eq!(found, thoughts, "{seen:?}");
    }
}

/// A message of two blocks, as agents send that end each with the same reminder.
fn reminded(text: &str) -> Value {
    let block = |text: &str| json!({"type": "text", "text": text});
    json!({"role": "user", "content": [block(text), block("Remember the rules.")]})
}

/// Helpers of one kind are asked for different things, and all are reminded of the same.
#[test]
fn promise_2_turns_behind_messages_that_only_end_alike_are_not_taken_for_one_another() {
    let mut session = Session::default();
    let asked = ["one", "other"];
    for name in asked {
        session.turn(&[reminded(name)], vec![reasoning(name), text("Well.")]);
    }
    for name in asked {
        let (seen, _) = session.history(&[reminded(name), said("Well."), user("and?")]);
        assert_eq!(seen[1]["reasoning_content"], name, "{seen:?}");
    }
    // One that comes with another beginning is known by its end, as before.
    let (seen, _) = session.history(&[reminded("edited"), said("Well."), user("and?")]);
    assert_eq!(seen[1]["reasoning_content"], "other", "{seen:?}");
    // The same with calls of which an engine counts the ids anew.
    let mut session = Session::default();
    for name in asked {
        let told = call(0, "call_0", SAMPLED);
        session.turn(&[reminded(name)], vec![reasoning(name), told]);
    }
    for name in asked {
        let (seen, _) = session.history(&[reminded(name), called(&[("call_0", SAMPLED)])]);
        assert_eq!(seen[1]["reasoning_content"], name, "{seen:?}");
    }
}

/// A turn that nobody was told of belongs where it was sampled, and nowhere else.
#[test]
fn promise_2_an_untold_turn_is_put_behind_its_own_message_alone() {
    let mut session = Session::default();
    session.turn(&[reminded("one")], vec![reasoning("cut while it thought")]);
    let (seen, _) = session.history(&[reminded("one"), user("go on")]);
    assert_eq!(seen[1]["reasoning_content"], "cut while it thought", "{seen:?}");
    let (seen, _) = session.history(&[reminded("other"), user("go on")]);
    assert_eq!(seen.len(), 2, "{seen:?}");
}

#[test]
fn a_call_in_whose_place_the_harness_puts_its_own_is_put_back() {
    let stand_in = |name: &str, id: &str| {
        let function = json!({"name": name, "arguments": "{\"error\":\"no such tool\"}"});
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": function},
        ]})
    };
    let failed = json!({"role": "tool", "tool_call_id": "call_1", "content": "no such tool"});
    for (policy, name, is_put_back) in [
        (HistoryPolicy::Sampled, "invalid", true),
        (HistoryPolicy::Template, "invalid", true),
        (HistoryPolicy::AsSent, "invalid", false),
        (HistoryPolicy::Sampled, "other", false),
    ] {
        let turns = TurnMemory::new(["invalid".to_owned()].into());
        let mut session = Session { turns, policy };
        session.turn(&[user("go")], vec![reasoning("hm"), call(0, "call_1", SAMPLED)]);
        let (seen, report) =
            session.history(&[user("go"), stand_in(name, "call_1"), failed.clone()]);
        let function = &seen[1]["tool_calls"][0]["function"];
        if is_put_back {
            assert_eq!(*function, json!({"name": "f", "arguments": SAMPLED}), "{policy:?}");
            assert_eq!(report["restored"]["calls"], 1, "{report}");
            assert_eq!(report["edited"], json!({}), "{report}");
        } else {
            assert_eq!(function["name"], name, "{policy:?}");
            assert_eq!(report["edited"]["calls"], json!(["call_1"]), "{report}");
        }
        // What the model itself called so is its own.
        let (_, report) = session.history(&[user("go"), stand_in("invalid", "call_9")]);
        assert_eq!(report["restored"], json!({}), "{report}");
    }
}

#[test]
fn promise_2_arguments_get_their_sampled_spelling_back_in_every_dialect() {
    let mut session = Session { policy: HistoryPolicy::AsSent, ..Session::default() };
    session.turn(&[user("go")], vec![call(0, "call_1", SAMPLED), call(1, "call_2", "")]);
    let input = json!({"a": "ü/ ", "b": 1});
    let histories = [
        (
            Dialect::Chat,
            chat(&[
                user("go"),
                called(&[("call_1", "{\"a\":\"ü/ \",\"b\":1}"), ("call_2", "{}")]),
                user("x"),
            ]),
        ),
        (
            Dialect::Messages,
            json!({"model": "m", "max_tokens": 1, "messages": [
                user("go"),
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "call_1", "name": "f", "input": input},
                    {"type": "tool_use", "id": "call_2", "name": "f", "input": {}},
                ]},
                user("x"),
            ]}),
        ),
        (
            Dialect::Responses,
            json!({"model": "m", "input": [
                user("go"),
                {"type": "function_call", "call_id": "call_1", "name": "f",
                 "arguments": input.to_string()},
                {"type": "function_call", "call_id": "call_2", "name": "f", "arguments": "{}"},
                user("x"),
            ]}),
        ),
        (
            Dialect::Google,
            json!({"contents": [
                {"role": "user", "parts": [{"text": "go"}]},
                {"role": "model", "parts": [
                    {"functionCall": {"id": "call_1", "name": "f", "args": input}},
                    {"functionCall": {"id": "call_2", "name": "f", "args": {}}},
                ]},
                {"role": "user", "parts": [{"text": "x"}]},
            ]}),
        ),
    ];
    for (dialect, body) in histories {
        let (request, seen) = session.asks(dialect, &body);
        let calls = &seen[1]["tool_calls"];
        assert_eq!(calls[0]["function"]["arguments"], SAMPLED, "{dialect:?}");
        // Engines read arguments as JSON, which nothing is not.
        assert_eq!(calls[1]["function"]["arguments"], "{}", "{dialect:?}");
        assert_eq!(request.history.restored.arguments, 1, "{dialect:?}");
        assert!(request.history.edited.calls.is_empty(), "{dialect:?}");
    }
}

#[test]
fn promise_2_an_edit_stays_as_the_harness_says_it_and_is_listed_once() {
    let mut session = Session::default();
    session.turn(&[user("go")], vec![call(0, "call_1", SAMPLED), call(1, "call_2", "{}")]);
    let edited = "{\"a\":\"ü/\",\"b\":1}";
    let mut messages =
        vec![user("go"), called(&[("call_1", edited), ("call_2", "{\"c\":false}")]), user("x")];
    let (seen, report) = session.history(&messages);
    assert_eq!(seen[1]["tool_calls"][0]["function"]["arguments"], edited);
    assert_eq!(report, json!({"restored": {}, "edited": {"calls": ["call_1", "call_2"]}}));
    // Asking alone lists nothing: it may be a count of tokens.
    assert_eq!(session.turn(&messages, vec![text("ok")]).edited.calls.len(), 2);
    messages.extend([said("ok"), user("y")]);
    let (_, report) = session.history(&messages);
    assert_eq!(report, json!({"restored": {}, "edited": {}}));
    // Another edit of the same call is another one.
    messages[1] = called(&[("call_1", "{}"), ("call_2", "{\"c\":false}")]);
    assert_eq!(session.history(&messages).1["edited"], json!({"calls": ["call_1"]}));
    // As is another name.
    messages[1]["tool_calls"][1]["function"] = json!({"name": "invalid", "arguments": "{}"});
    assert_eq!(session.history(&messages).1["edited"], json!({"calls": ["call_1", "call_2"]}));
}

#[test]
fn promise_2_dropped_and_trimmed_parts_of_a_turn_come_back_as_sampled() {
    let mut session = Session::default();
    let blocks =
        vec![reasoning(" hm\n"), text("\n\nI look. "), reasoning("so "), call(0, "call_1", "{}")];
    session.turn(&[user("go")], blocks);
    session.turn(&[user("hi")], vec![reasoning("\nthe user greets"), text("Hello. \n")]);
    let turn = |reasoning: Value, text: Value| {
        let mut turn = called(&[("call_1", "{}")]);
        turn["reasoning_content"] = reasoning;
        turn["content"] = text;
        turn
    };
    let sampled = turn(json!(" hm\nso "), json!("\n\nI look. "));
    for (dropped, restored) in [
        (turn(Value::Null, json!("\n\nI look. ")), json!({"reasoning": 1})),
        (turn(json!("hm\nso"), json!("\n\nI look. ")), json!({"reasoning": 1})),
        // As OpenAI's JavaScript client puts a stream together.
        (turn(json!("so "), json!("\n\nI look. ")), json!({"reasoning": 1})),
        (turn(json!(" hm\nso "), json!("I look.")), json!({"text": 1})),
        (turn(Value::Null, json!("I look.")), json!({"reasoning": 1, "text": 1})),
        (sampled.clone(), json!({})),
    ] {
        let (seen, report) = session.history(&[user("go"), dropped, user("x")]);
        assert_eq!(seen[1], sampled);
        assert_eq!(report, json!({"restored": restored, "edited": {}}));
    }
    // A turn of text alone is known by its text and by what it answers.
    let (seen, report) = session.history(&[user("hi"), said("Hello."), user("x")]);
    assert_eq!(seen[1]["reasoning_content"], "\nthe user greets");
    assert_eq!(seen[1]["content"], "Hello. \n");
    assert_eq!(report["restored"], json!({"reasoning": 1, "text": 1}));
    let elsewhere = [user("ho"), said("Hello."), user("x")];
    assert_eq!(
        session.history(&elsewhere).0,
        chat_messages(&decode(Dialect::Chat, &chat(&elsewhere)))
    );
}

/// As of a reply that reached its limit while the model thought.
#[test]
fn promise_2_a_turn_of_nothing_but_reasoning_is_known_by_its_place() {
    let mut session = Session::default();
    session.turn(&[user("go")], vec![reasoning("I sho")]);
    session.turn(&[user("go"), said(""), user("on")], vec![reasoning("\nI sho"), text("\n")]);
    let (seen, report) = session.history(&[user("go"), said(""), user("on"), said(""), user("x")]);
    assert_eq!(seen[1]["reasoning_content"], "I sho");
    assert_eq!(seen[3]["reasoning_content"], "\nI sho");
    assert_eq!(seen[3]["content"], "\n");
    assert_eq!(report["restored"]["reasoning"], 2);
    // Elsewhere an empty turn is the harness's own.
    for elsewhere in [vec![user("so"), user("on"), said("")], vec![user("hi"), said("")]] {
        let (seen, report) = session.history(&[elsewhere.clone(), vec![user("x")]].concat());
        assert!(seen.iter().all(|message| message.get("reasoning_content").is_none()), "{seen:?}");
        assert_eq!(report, json!({"restored": {}, "edited": {}}));
    }
}

#[test]
fn what_a_harness_says_itself_is_kept() {
    let mut session = Session::default();
    session.turn(&[user("go")], vec![reasoning("hm"), text("I look."), call(0, "call_1", "{}")]);
    let mut turn = called(&[("call_1", "{}")]);
    turn["content"] = json!("I look.");
    turn["reasoning_content"] = json!("something else");
    let (seen, report) = session.history(&[user("go"), turn.clone(), user("x")]);
    assert_eq!(seen[1], turn);
    assert_eq!(report, json!({"restored": {}, "edited": {"reasoning": 1}}));
    // Another text, and its reasoning is still that of the call.
    turn["content"] = json!("I see.");
    turn["reasoning_content"] = Value::Null;
    let (seen, report) = session.history(&[user("go"), turn.clone(), user("x")]);
    turn["reasoning_content"] = json!("hm");
    assert_eq!(seen[1], turn);
    assert_eq!(report, json!({"restored": {"reasoning": 1}, "edited": {"text": 1}}));
    // A turn with fewer calls is not the one that was sampled, and gets nothing but spelling.
    session.turn(&[user("two")], vec![reasoning("hm"), call(0, "a", "{ }"), call(1, "b", "{}")]);
    let (seen, report) = session.history(&[user("two"), called(&[("a", "{}")]), user("x")]);
    assert_eq!(seen[1], {
        let mut one = called(&[("a", "{ }")]);
        one["content"] = json!("");
        one
    });
    assert_eq!(report, json!({"restored": {"arguments": 1}, "edited": {}}));
}

#[test]
fn as_sent_puts_no_reasoning_back() {
    let mut session = Session { policy: HistoryPolicy::AsSent, ..Session::default() };
    session.turn(&[user("go")], vec![reasoning("hm"), call(0, "call_1", "{}")]);
    session.turn(&[user("hi")], vec![reasoning("hm"), text("Hello. ")]);
    for turn in [vec![user("go"), called(&[("call_1", "{}")])], vec![user("hi"), said("Hello.")]] {
        let (seen, report) = session.history(&[turn, vec![user("x")]].concat());
        assert_eq!(seen[1].get("reasoning_content"), None);
        assert_eq!(report, json!({"restored": {}, "edited": {}}));
    }
}

/// Engines that number the calls of each conversation from zero give two agents the same ids.
#[test]
fn an_id_that_was_given_twice_is_told_apart_by_what_it_answers_or_says() {
    let mut session = Session::default();
    for (asked, argument) in [("one", "{ \"a\":1}"), ("two", "{ \"a\":2}"), ("six", "{ \"a\":2}")] {
        session.turn(&[user(asked)], vec![reasoning(asked), call(0, "f:0", argument)]);
    }
    let history = |asked: &str, arguments: &str| {
        let (seen, _) = session.history(&[user(asked), called(&[("f:0", arguments)]), user("x")]);
        let arguments = seen[1]["tool_calls"][0]["function"]["arguments"].clone();
        (seen[1]["reasoning_content"].clone(), arguments)
    };
    assert_eq!(history("one", "{\"a\":1}"), (json!("one"), json!("{ \"a\":1}")));
    assert_eq!(history("two", "{\"a\":2}"), (json!("two"), json!("{ \"a\":2}")));
    assert_eq!(history("elsewhere", "{\"a\":1}"), (json!("one"), json!("{ \"a\":1}")));
    assert_eq!(history("elsewhere", "{\"a\":3}"), (Value::Null, json!("{\"a\":3}")));
}

/// Agents that are started side by side with one prompt, of which each goes on its own way.
#[test]
fn promise_2_agents_that_were_asked_the_same_keep_their_own_turns() {
    let ask = [user("find it")];
    let mut session = Session::default();
    for (thought, argument) in [(" one ", "{ \"a\":1}"), (" two ", "{ \"a\":2}")] {
        session.turn(&ask, vec![reasoning(thought), call(0, "f:0", argument)]);
    }
    for (thought, sampled) in [(" one ", "{ \"a\":1}"), (" two ", "{ \"a\":2}")] {
        let sent = called(&[("f:0", &sampled.replace(' ', ""))]);
        let (seen, report) = session.history(&[user("find it"), sent, user("x")]);
        assert_eq!(seen[1]["reasoning_content"], thought);
        assert_eq!(seen[1]["tool_calls"][0]["function"]["arguments"], sampled);
        assert_eq!(report, json!({"restored": {"arguments": 1, "reasoning": 1}, "edited": {}}));
    }

    // They do the same, and only what they thought tells them apart.
    for call_too in [false, true] {
        let mut session = Session::default();
        for thought in [" one ", " two ", " six "] {
            let rest = if call_too { call(0, "f:0", "{ }") } else { text("OK") };
            session.turn(&ask, vec![reasoning(thought), rest]);
        }
        for thought in [" one ", " two ", " six "] {
            let mut sent = if call_too { called(&[("f:0", "{}")]) } else { said("OK") };
            sent["reasoning_content"] = json!(thought.trim());
            let (seen, report) = session.history(&[user("find it"), sent, user("x")]);
            assert_eq!(seen[1]["reasoning_content"], thought);
            assert_eq!(report["edited"], json!({}));
        }
    }
}

/// A harness may change what a call says, and another agent may have said just that.
#[test]
fn promise_2_an_edited_call_is_known_by_its_place_before_its_words() {
    let mut session = Session::default();
    session.turn(&[user("a"), user("go")], vec![reasoning("one"), call(0, "f:0", "{\"a\":1}")]);
    session.turn(&[user("b"), user("go")], vec![reasoning("two"), call(0, "f:0", "{\"a\":2}")]);
    let edited = [user("a"), user("go"), called(&[("f:0", "{\"a\":2}")]), user("x")];
    let (seen, report) = session.history(&edited);
    assert_eq!(seen[2]["reasoning_content"], "one");
    assert_eq!(report["edited"], json!({"calls": ["f:0"]}));
}

/// A short text is said again and again, with other reasoning each time.
#[test]
fn promise_2_turns_that_say_the_same_in_answer_to_the_same_keep_their_own_reasoning() {
    for call_too in [false, true] {
        let mut session = Session::default();
        let reply = |thought: &str| match call_too {
            true => vec![reasoning(thought), call(0, "f:0", "{}")],
            false => vec![reasoning(thought), text("OK")],
        };
        let kept = |thought: Option<&str>| {
            let mut kept = if call_too { called(&[("f:0", "{}")]) } else { said("OK") };
            if let Some(thought) = thought {
                kept["reasoning_content"] = json!(thought);
            }
            kept
        };
        let (mut bare, mut whole) = (vec![user("begin")], vec![user("begin")]);
        for thought in ["one", "two", "three", "four"] {
            let (seen, _) = session.history(&bare);
            assert_eq!(seen, chat_messages(&decode(Dialect::Chat, &chat(&whole))));
            session.turn(&bare, reply(thought));
            // An agent beside this one is told to go on, too.
            session.turn(&[user("beside"), kept(None), user("go on")], reply("beside"));
            bare.extend([kept(None), user("go on")]);
            whole.extend([kept(Some(thought)), user("go on")]);
        }
        // Without the oldest messages they are told apart as well as can be: none twice.
        let (seen, _) = session.history(&bare[2..]);
        let mut thoughts: Vec<_> =
            seen.iter().filter_map(|message| message.get("reasoning_content")).collect();
        let all = thoughts.len();
        thoughts.dedup();
        assert_eq!(thoughts.len(), all);
    }
}

/// Some models write `f:0` for the first call of any conversation, also in one that a harness
/// brings along.
#[test]
fn promise_2_a_turn_of_another_conversation_gets_no_reasoning_by_its_id_alone() {
    let mut session = Session::default();
    session.turn(&[user("go")], vec![reasoning("hm"), call(0, "f:0", "{\"a\":1}")]);
    let example = [user("an example"), called(&[("f:0", "{\"b\":2}")]), user("x")];
    let (seen, _) = session.history(&example);
    assert_eq!(seen, chat_messages(&decode(Dialect::Chat, &chat(&example))));
}

#[test]
fn promise_2_calls_that_share_an_id_in_one_turn_keep_their_own_arguments() {
    let mut session = Session::default();
    session.turn(&[user("go")], vec![call(0, "f:0", "{ \"a\":1}"), call(1, "f:0", "{ \"a\":2}")]);
    let sent = called(&[("f:0", "{\"a\":1}"), ("f:0", "{\"a\":2}")]);
    let (seen, report) = session.history(&[user("go"), sent, user("x")]);
    let spelled: Vec<_> =
        (0..2).map(|at| &seen[1]["tool_calls"][at]["function"]["arguments"]).collect();
    assert_eq!(spelled, ["{ \"a\":1}", "{ \"a\":2}"]);
    assert_eq!(report, json!({"restored": {"arguments": 2}, "edited": {}}));
}

#[test]
fn promise_8_a_turn_is_kept_once_however_often_it_comes_back() {
    let mut session = Session::default();
    let mut messages = Vec::new();
    let mut sizes = Vec::new();
    for number in 0..50 {
        messages.push(user(&"x".repeat(1000)));
        let id = format!("call_{number:02}");
        let argument = format!("{{\"n\": {number}}}");
        session.turn(&messages, vec![reasoning("hm"), call(0, &id, &argument)]);
        messages.push(called(&[(&id, "{\"n\":-1}")]));
        sizes.push(format!("{:?}", session.turns).len());
    }
    let growth: Vec<_> = sizes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(growth.iter().all(|bytes| *bytes < 1000), "{growth:?}");
}

fn block() -> impl Strategy<Value = ReplyBlock> {
    prop_oneof![
        "[ a-c\n]{0,4}".prop_map(|said| text(&said)),
        "[ a-c\n]{1,4}".prop_map(|said| reasoning(&said)),
        (0..9_u32, "[ ]{0,2}").prop_map(|(n, blank)| call(0, "", &format!("{{{blank}\"n\":{n}}}"))),
    ]
}

proptest! {
    /// Whatever a client drops, trims or spells otherwise, the model goes on from what it sampled.
    #[test]
    fn promise_2_a_restored_history_is_the_sampled_one(
        replies in prop::collection::vec((prop::collection::vec(block(), 1..5), any::<[bool; 3]>()), 1..6),
    ) {
        let mut session = Session::default();
        let (mut kept, mut sampled) = (Vec::new(), Vec::new());
        for (number, (mut blocks, [drops, trims, respells])) in replies.into_iter().enumerate() {
            for (i, block) in blocks.iter_mut().enumerate() {
                if let ReplyBlock::ToolCall { id, index, .. } = block {
                    (*id, *index) = (format!("call_{number}_{i}"), i as u32);
                }
            }
            kept.push(user(&format!("question {number}")));
            sampled.push(user(&format!("question {number}")));
            let (request, seen) = session.asks(Dialect::Chat, &chat(&kept));
            prop_assert_eq!(&seen, &sampled);
            let reply = Reply { blocks: blocks.clone(), ..Reply::default() };
            let mut message = polar_convo::reply_message(&reply);
            session.answers(&request, blocks);
            let nameless = message.get("tool_calls").is_none()
                && message["content"].as_str().is_none_or(|text| text.trim().is_empty());
            sampled.push(message.clone());
            if nameless {
                // Nothing in it tells whose it is.
                kept.push(message);
                continue;
            }
            let fields = message.as_object_mut().unwrap();
            if drops {
                fields.remove("reasoning_content");
            }
            if trims {
                for name in ["content", "reasoning_content"] {
                    if let Some(Value::String(text)) = fields.get_mut(name) {
                        *text = text.trim().to_owned();
                    }
                }
            }
            if respells && let Some(calls) = fields.get_mut("tool_calls") {
                for call in calls.as_array_mut().unwrap() {
                    let arguments = &mut call["function"]["arguments"];
                    let read: Value = serde_json::from_str(arguments.as_str().unwrap()).unwrap();
                    *arguments = json!(read.to_string());
                }
            }
            kept.push(message);
        }
        kept.push(user("end"));
        sampled.push(user("end"));
        prop_assert_eq!(session.asks(Dialect::Chat, &chat(&kept)).1, sampled);
    }
}
