//! Who made each call, and what of it is trained.
#![allow(clippy::unwrap_used)] // Tests: a panic is the report.

mod sessions;

use polar_record::{CallRecord, RecordedSession};
use polar_trajectory::{BuildOptions, Built, build, verify};
use polar_types::{CallRole, Confidence, HarnessRules, TrajectoryStrategy, UntrainedReason};
use serde_json::{Value, json};
use sessions::{call, finished, header, said, system, user};

/// Two agents' rules: one tells of itself in headers, one is known by its words.
fn rules() -> HarnessRules {
    serde_json::from_value(json!({"roles": [
        {"name": "agent_header", "role": "sub_agent", "when": {"headers": {"X-Agent-Id": "."}},
            "parent": {"header": "x-parent-id", "is": "x-thread-id"}},
        {"name": "title_prompt", "role": "title", "when": {"system": "^You are a title", "has_tools": false}},
        {"name": "summary_prompt", "role": "summary", "when": {"last_user": "^Sum up"}},
        {"name": "warm_up", "role": "probe", "when": {"max_tokens_at_most": 1}},
        {"name": "router", "role": "side", "when": {"structured_output": true, "model": "lite$"}},
        {"name": "closing_tool", "role": "sub_agent", "when": {"tools": ["complete_task"]}},
        {"name": "greeting", "role": "probe", "when": {"first_user": "^ping$"}},
    ]}))
    .unwrap()
}

fn recorded(calls: &[CallRecord]) -> RecordedSession {
    let header = polar_record::SessionHeader { rules: rules(), ..header() };
    let calls = calls.iter().map(|call| (call, Some(true)));
    RecordedSession::from_calls(&header, calls).unwrap()
}

fn built(calls: &[CallRecord]) -> Built {
    let session = recorded(calls);
    let built = build(&session, TrajectoryStrategy::PrefixMerging, None);
    verify(&built.trajectory, &session).unwrap();
    built
}

fn tools(names: &[&str]) -> Option<Value> {
    let tool = |name: &&str| json!({"type": "function", "function": {"name": name}});
    Some(names.iter().map(tool).collect())
}

/// A call that offers a shell.
fn working(messages: &[Value], reply: Value, prompt: &[u32], sampled: &[u32]) -> CallRecord {
    CallRecord { tools: tools(&["bash"]), ..call(messages, reply, prompt, sampled) }
}

fn calling(id: &str, arguments: &Value) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function",
        "function": {"name": "bash", "arguments": arguments.to_string()}}]})
}

fn result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "done"})
}

fn with_header(mut call: CallRecord, headers: &[(&str, &str)]) -> CallRecord {
    let named = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    call.meta.headers.extend(named);
    call
}

/// Role, what decided, and parent of every call.
fn origins(built: &Built) -> Vec<(CallRole, &str, Option<&str>)> {
    let origins = built.calls.iter().filter_map(|call| call.origin.as_ref());
    origins
        .map(|origin| {
            (origin.role, origin.by.as_str(), origin.parent.as_ref().map(|id| id.as_str()))
        })
        .collect()
}

#[test]
fn a_rule_of_the_adapter_comes_first() {
    let ask = [system(), user("fix it")];
    let first = working(&ask, said("one"), &[1], &[2]);
    let mut probe = working(&[user("count")], said("x"), &[3], &[4]);
    probe.meta.sampling = json!({"max_tokens": 1});
    let mut router = call(&[user("which?")], said("{}"), &[5], &[6]);
    router.meta.model = "flash-lite".to_owned();
    router.meta.extra.insert("carried".into(), json!({"response_format": {"type": "json_schema"}}));
    let titled =
        [json!({"role": "system", "content": "You are a title generator"}), user("fix it")];
    let built = built(&[
        first,
        probe,
        router,
        call(&titled, said("Fixing"), &[7], &[8]),
        CallRecord {
            tools: tools(&["bash", "complete_task"]),
            ..call(&ask, said("y"), &[9], &[10])
        },
        working(&[user("ping")], said("pong"), &[11], &[12]),
    ]);
    assert_eq!(
        origins(&built),
        [
            (CallRole::Main, "first", None),
            (CallRole::Probe, "warm_up", None),
            (CallRole::Side, "router", None),
            (CallRole::Title, "title_prompt", None),
            (CallRole::SubAgent, "closing_tool", Some("c00000")),
            (CallRole::Probe, "greeting", None),
        ]
    );
}

#[test]
fn a_harness_that_names_its_agents_is_believed() {
    let main = with_header(
        working(&[system(), user("fix it")], calling("c1", &json!({"x": 1})), &[1], &[2]),
        &[("x-thread-id", "t1")],
    );
    let other = with_header(
        working(&[system(), user("look")], said("seen"), &[3], &[4]),
        &[("x-thread-id", "t2"), ("x-agent-id", "a"), ("x-parent-id", "t1")],
    );
    // The sub-agent's sub-agent.
    let third = with_header(
        working(&[system(), user("look closer")], said("seen"), &[5], &[6]),
        &[("x-thread-id", "t3"), ("x-agent-id", "b"), ("x-parent-id", "t2")],
    );
    let built = built(&[main, other, third]);
    assert_eq!(
        origins(&built)[1..],
        [
            (CallRole::SubAgent, "agent_header", Some("c00000")),
            (CallRole::SubAgent, "agent_header", Some("c00001")),
        ]
    );
    let confidence = |call: usize| built.calls[call].origin.as_ref().unwrap().confidence;
    assert_eq!(confidence(1), Confidence::Certain);
    assert_eq!(confidence(0), Confidence::Likely);
}

#[test]
fn a_prompt_with_an_earlier_reply_is_of_the_same_line_however_it_comes_back() {
    let ask = vec![system(), user("fix it")];
    let sub =
        vec![json!({"role": "system", "content": "You look."}), user("find the failing test")];
    let arguments = json!({"prompt": "find the failing test"});
    let with = |mut messages: Vec<Value>, more: &[Value]| {
        messages.extend_from_slice(more);
        messages
    };
    let respelled = json!({"role": "assistant", "content": "", "tool_calls": [{"id": "c1",
        "function": {"name": "bash", "arguments": "{\"prompt\":\"changed\"}"}}]});
    let trimmed = json!({"role": "assistant", "content": [{"type": "text", "text": "found it"}]});
    let built = built(&[
        working(&ask, calling("c1", &arguments), &[1], &[2]),
        working(&sub, said("found it\n"), &[3], &[4]),
        working(&with(sub.clone(), &[trimmed, user("more")]), said("all"), &[5], &[6]),
        working(&with(ask.clone(), &[respelled, result("c1")]), said("end"), &[7], &[8]),
    ]);
    assert_eq!(
        origins(&built),
        [
            (CallRole::Main, "first", None),
            (CallRole::SubAgent, "started_by_call", Some("c00000")),
            (CallRole::SubAgent, "continues", Some("c00000")),
            (CallRole::Main, "continues", None),
        ]
    );
}

#[test]
fn ids_and_words_that_come_again_belong_to_the_conversation_they_are_in() {
    let [one, two] =
        ["You fix.", "You look."].map(|text| json!({"role": "system", "content": text}));
    let start = |system: &Value, ask: &str| vec![system.clone(), user(ask)];
    let go_on = |system: &Value, ask: &str, reply: &Value| {
        vec![system.clone(), user(ask), reply.clone(), user("go on")]
    };
    // Some models count their calls from zero in every conversation.
    let reply = calling("functions.bash:0", &json!({"command": "find the failing test"}));
    let built = built(&[
        working(&start(&one, "fix it"), reply.clone(), &[1], &[2]),
        working(&start(&two, "find the failing test"), reply.clone(), &[3], &[4]),
        working(&go_on(&one, "fix it", &reply), said("done"), &[5], &[6]),
        working(&go_on(&two, "find the failing test", &reply), said("done"), &[7], &[8]),
    ]);
    let roles: Vec<_> = origins(&built).iter().map(|(role, ..)| *role).collect();
    use CallRole::{Main, SubAgent};
    assert_eq!(roles, [Main, SubAgent, Main, SubAgent]);
}

#[test]
fn a_conversation_that_goes_on_from_a_summary_is_what_was_summed_up() {
    let ask = vec![system(), user("fix it")];
    let first = calling("c1", &json!({"command": "ls"}));
    let mut asked = ask.clone();
    asked.extend([first.clone(), result("c1"), user("Sum up what was done.")]);
    let summary = said("<summary>\nThe test in a.py was looked at.\n</summary>");
    let after = [system(), user("Before:\nThe test in a.py was looked at.\nGo on.")];
    let built = built(&[
        working(&ask, first, &[1, 2], &[3]),
        working(&asked, summary, &[1, 2, 3, 4], &[5]),
        working(&after, said("done"), &[1, 9], &[6]),
    ]);
    assert_eq!(
        origins(&built)[1..],
        [
            (CallRole::Summary, "summary_prompt", Some("c00000")),
            (CallRole::Main, "after_summary", Some("c00001")),
        ]
    );
    // The summary goes on from the agent's tokens and is not among them.
    let trained: Vec<_> = built.trajectory.traces.iter().map(|trace| trace.calls.len()).collect();
    assert_eq!(trained, [1, 1]);
    assert_eq!(built.calls[1].trace, None);
}

#[test]
fn what_nothing_tells_is_placed_by_tools_and_front() {
    let other = json!({"role": "system", "content": "You plan."});
    let built = built(&[
        call(&[user("a name for: fix it")], said("Fixing"), &[1], &[2]),
        working(&[system(), user("fix it")], said("one"), &[3], &[4]),
        working(&[system(), user("now this")], said("two"), &[5], &[6]),
        working(&[other, user("a plan")], said("three"), &[7], &[8]),
        working(&[system(), user("fix it")], said("one"), &[3], &[4]),
    ]);
    assert_eq!(
        origins(&built),
        [
            (CallRole::Side, "no_tools", None),
            (CallRole::Main, "first", None),
            (CallRole::Main, "same_system", None),
            (CallRole::Main, "other_system", None),
            (CallRole::Main, "retry", None),
        ]
    );
    let retried: Vec<_> = built.calls.iter().map(|call| call.origin.as_ref().unwrap()).collect();
    let retried: Vec<_> = retried.iter().map(|origin| origin.retry_of.as_ref()).collect();
    assert_eq!(retried[..4], [None; 4]);
    assert_eq!(retried[4].unwrap().as_str(), "c00001");
    assert_eq!(built.calls[3].origin.as_ref().unwrap().confidence, Confidence::Guessed);
}

#[test]
fn what_a_tool_asks_of_a_model_is_its_own_work() {
    let asked = json!({"url": "http://a", "prompt": "say what the page is about"});
    let page = [user("A page.\nsay what the page is about")];
    let ask = [system(), user("fix it")];
    let built = built(&[
        working(&ask, calling("c1", &asked), &[1], &[2]),
        call(&page, said("about a"), &[3], &[4]),
        working(&page, said("about a"), &[5], &[6]),
    ]);
    assert_eq!(
        origins(&built)[1..],
        [
            (CallRole::Side, "started_by_call", Some("c00000")),
            (CallRole::SubAgent, "started_by_call", Some("c00000")),
        ]
    );
}

#[test]
fn a_call_that_goes_on_without_tools_is_only_guessed_to_be_the_agents() {
    let ask = [system(), user("fix it")];
    let last = [system(), user("fix it"), said("looking"), user("now answer without tools")];
    let built = built(&[
        working(&ask, said("looking"), &[1], &[2]),
        call(&last, said("done"), &[1, 2, 3], &[4]),
    ]);
    let origin = built.calls[1].origin.as_ref().unwrap();
    assert_eq!((origin.role, origin.confidence), (CallRole::Main, Confidence::Guessed));
    assert_eq!(built.calls[0].origin.as_ref().unwrap().confidence, Confidence::Likely);
}

#[test]
fn a_program_that_never_offers_tools_works_without_them() {
    let built = built(&[
        call(&[system(), user("fix it")], said("```ls```"), &[1], &[2]),
        call(&[user("something else")], said("yes"), &[3], &[4]),
    ]);
    assert!(origins(&built).iter().all(|(role, ..)| *role == CallRole::Main));
    assert_eq!(built.trajectory.tokens.trained, 2);
}

#[test]
fn promise_1_side_calls_are_counted_and_trained_only_when_asked() {
    let titled =
        [json!({"role": "system", "content": "You are a title generator"}), user("fix it")];
    let calls = [
        call(&titled, said("Fixing"), &[7], &[8, 9, 10]),
        working(&[system(), user("fix it")], said("one"), &[1], &[2]),
    ];
    let alone = built(&calls);
    let tokens = &alone.trajectory.tokens;
    assert!(tokens.is_conserved());
    assert_eq!((tokens.sampled, tokens.trained), (4, 1));
    assert_eq!(tokens.untrained[&UntrainedReason::SideCall], 3);
    let counts = alone.trajectory.roles[&CallRole::Title];
    assert_eq!((counts.calls, counts.sampled), (1, 3));

    let session = recorded(&calls);
    let options = BuildOptions {
        strategy: TrajectoryStrategy::PrefixMerging,
        train_roles: vec![CallRole::Main, CallRole::Title],
    };
    let all = build(&session, options, None).trajectory;
    verify(&all, &session).unwrap();
    assert_eq!(all.tokens.trained, 4);
    let roles: Vec<_> = all.traces.iter().map(|trace| trace.lineage.role).collect();
    assert_eq!(roles, [CallRole::Title, CallRole::Main]);

    // The check does not take a trajectory of other roles for right.
    let mut wrong = alone.trajectory.clone();
    wrong.train_roles.push(CallRole::Title);
    assert!(verify(&wrong, &session).is_err());
    let mut wrong = all;
    wrong.traces[0].lineage.role = CallRole::Main;
    assert!(verify(&wrong, &session).is_err());
}

#[test]
fn a_first_call_without_tools_that_is_gone_on_from_is_the_agents() {
    let first = [system(), user("a plan for: fix it")];
    let then = [system(), user("a plan for: fix it"), said("look, then fix"), user("go")];
    let built = built(&[
        call(&first, said("look, then fix"), &[1], &[2]),
        working(&then, said("done"), &[1, 2, 3], &[4]),
    ]);
    let roles: Vec<_> = origins(&built).iter().map(|(role, ..)| *role).collect();
    assert_eq!(roles, [CallRole::Main, CallRole::Main]);
    assert_eq!(built.trajectory.traces.len(), 1);
}

/// A side call between two calls of the agent goes on from its tokens.
#[test]
fn promise_2_the_agents_trace_passes_by_what_was_asked_on_the_side() {
    let ask = vec![system(), user("fix it")];
    let first = calling("c1", &json!({"command": "ls"}));
    let mut then = ask.clone();
    then.extend([first.clone(), result("c1")]);
    let mut summed = then.clone();
    summed.push(user("Sum up what was done."));
    let calls = [
        working(&ask, first, &[1, 2], &[3]),
        working(&summed, said("It was listed."), &[1, 2, 3, 4], &[5]),
        working(&then, said("done"), &[1, 2, 3, 4, 5, 6], &[7]),
    ];
    let session = recorded(&calls);
    let everything = BuildOptions {
        strategy: TrajectoryStrategy::PrefixMerging,
        train_roles: vec![CallRole::Main, CallRole::Summary],
    };
    for options in [TrajectoryStrategy::PrefixMerging.into(), everything] {
        let built = build(&session, options, None);
        verify(&built.trajectory, &session).unwrap();
        let main = &built.trajectory.traces[0];
        assert_eq!(main.calls.len(), 2);
        assert_eq!(main.response_ids, [3, 4, 5, 6, 7]);
        // The summary's token is there as context, since the harness kept it.
        assert_eq!(main.loss_mask, [1, 0, 0, 0, 1]);
    }
}

/// Asks that offer no tools, one after the other, before the first that does.
#[test]
fn promise_1_an_agent_that_talks_before_it_takes_up_its_tools_is_trained() {
    let mut messages = vec![system(), user("a plan for: fix it")];
    let mut calls = Vec::new();
    for (number, text) in ["look, then fix", "first a test", "and a note"].iter().enumerate() {
        calls.push(call(&messages, said(text), &[number as u32 + 1], &[9]));
        messages.extend([said(text), user("go on")]);
    }
    calls.push(working(&messages, said("done"), &[20], &[9]));
    let built = built(&calls);
    assert!(origins(&built).iter().all(|(role, ..)| *role == CallRole::Main), "{built:?}");
    assert_eq!(built.trajectory.tokens.trained, 4);
}

/// Agents of one program, so that nothing at the front of their prompts tells them apart, with ids
/// counted anew in each conversation or in each reply, and texts that all of them say.
#[test]
fn ids_and_texts_that_agents_of_one_program_share_do_not_mix_them_up() {
    let replies: [fn(&str) -> Value; 3] = [
        |command| calling("functions.bash:0", &json!({"command": command})),
        |_| calling("functions.bash:0", &json!({})),
        |_| said("OK"),
    ];
    for reply in replies {
        let start = calling("functions.task:0", &json!({"prompt": "find the failing test"}));
        let main = |more: &[Value]| [&[system(), user("fix it")], more].concat();
        let sub = |more: &[Value]| [&[system(), user("find the failing test")], more].concat();
        let (ls, cat) = (reply("ls"), reply("cat"));
        let started = [ls.clone(), user("x"), start.clone(), result("functions.task:0")];
        let built = built(&[
            working(&main(&[]), ls.clone(), &[1], &[2]),
            working(&main(&started[..2]), start, &[3], &[4]),
            working(&sub(&[]), cat.clone(), &[5], &[6]),
            // Between each other's calls, each goes on from its own.
            working(&main(&[ls.clone(), user("y")]), said("waiting"), &[7], &[8]),
            working(&sub(&[cat.clone(), user("z")]), cat.clone(), &[9], &[10]),
            working(&main(&[ls, user("v")]), said("well"), &[11], &[12]),
            working(&sub(&[cat.clone(), user("z"), cat, user("w")]), said("y"), &[13], &[14]),
        ]);
        let roles: Vec<_> = origins(&built).iter().map(|(role, ..)| *role).collect();
        use CallRole::{Main, SubAgent};
        assert_eq!(roles, [Main, Main, SubAgent, Main, SubAgent, Main, SubAgent]);
    }
}

/// Two agents started by one turn with one prompt, of which the engine refuses one at first, while
/// the other runs. They say the same for a while.
#[test]
fn promise_1_agents_with_one_prompt_are_told_apart_and_each_is_trained_once() {
    let prompt = json!({"prompt": "find the failing test"});
    let mut start = calling("c1", &prompt);
    let second = calling("c2", &prompt)["tool_calls"][0].clone();
    start["tool_calls"].as_array_mut().unwrap().push(second);
    let main = [system(), user("fix it")];
    let sub = [json!({"role": "system", "content": "You look."}), user("find the failing test")];
    let refused = {
        let mut call = finished(working(&sub, said(""), &[], &[]), "error");
        (call.prompt_ids, call.sampled_ids) = (None, None);
        call
    };
    let then = |reply: &Value| [&sub[..], &[reply.clone(), result("f:0")]].concat();
    // Some engines count the calls of each conversation anew.
    let look = calling("f:0", &json!({"command": "ls"}));
    let both = [&main[..], &[start.clone(), result("c1"), result("c2")]].concat();
    let built = built(&[
        working(&main, start, &[1], &[2]),
        refused.clone(),
        working(&sub, look.clone(), &[3], &[4]),
        refused,
        working(&then(&look), said("it is a.py"), &[3, 4, 5], &[6]),
        working(&sub, look.clone(), &[3], &[4]),
        working(&then(&look), said("it is b.py"), &[3, 4, 5], &[7]),
        working(&both, said("done"), &[1, 2, 8], &[9]),
    ]);
    let told = origins(&built);
    assert!(
        told[1..7]
            .iter()
            .all(|(role, _, parent)| { (*role, *parent) == (CallRole::SubAgent, Some("c00000")) }),
        "{told:?}"
    );
    assert_eq!((told[0].0, told[7].0), (CallRole::Main, CallRole::Main));
    let tokens = &built.trajectory.tokens;
    assert_eq!((tokens.sampled, tokens.trained), (6, 6));
    let trained: Vec<_> =
        built.trajectory.traces.iter().map(|trace| trace.response_ids.clone()).collect();
    assert_eq!(trained, [vec![2, 8, 9], vec![4, 5, 6], vec![4, 5, 7]]);
}

#[test]
fn a_short_text_that_a_side_call_says_as_well_makes_it_none_of_the_agents() {
    let then = [system(), user("fix it"), said("Done"), user("x")];
    let built = built(&[
        call(&[user("a name for: fix it")], said("Done"), &[1], &[2]),
        // What the agent said comes back in another word, which only the title had.
        working(&[system(), user("fix it")], said("I am done"), &[3], &[4]),
        working(&then, said("y"), &[5], &[6]),
    ]);
    let roles: Vec<_> = origins(&built).iter().map(|(role, ..)| *role).collect();
    use CallRole::{Main, Side};
    assert_eq!(roles, [Side, Main, Main]);
}

/// An agent's calls repeat what it was asked; so does what its harness asks on the side.
#[test]
fn promise_1_what_the_user_said_makes_no_side_call_a_sub_agent() {
    let ask = "Run `python3 -m pytest tests/test_a.py`";
    let run = calling("c1", &json!({"command": "python3 -m pytest tests/test_a.py", "why": ask}));
    let title = |text: &str| vec![user(&format!("A title for:\n{text}"))];
    let asked = [system(), user(ask)];
    let dated = [system(), user(&format!("Today is Friday.\n{ask}"))];
    let built = built(&[
        working(&asked, run.clone(), &[1], &[2]),
        call(&title(ask), said("Tests"), &[3], &[4]),
        call(&title("python3 -m pytest tests/test_a.py"), said("Tests"), &[5], &[6]),
        // The harness begins again, in words of its own.
        working(&dated, run, &[7], &[8]),
        // An agent that was given the user's words, by tools of its own.
        CallRecord {
            tools: tools(&["read"]),
            ..call(&[system(), user("python3 -m pytest tests/test_a.py")], said("x"), &[9], &[10])
        },
    ]);
    let roles: Vec<_> = origins(&built).iter().map(|(role, ..)| *role).collect();
    use CallRole::{Main, Side, SubAgent};
    assert_eq!(roles, [Main, Side, Side, Main, SubAgent]);
    assert_eq!(built.trajectory.tokens.trained, 3);
}

#[test]
fn replies_without_a_word_and_sessions_of_one_role_are_told_too() {
    let empty = json!({"role": "assistant", "content": ""});
    let then = [system(), user("fix it"), empty.clone(), user("go on")];
    let calls = [
        working(&[system(), user("fix it")], empty, &[1], &[2]),
        working(&then, said("done"), &[3], &[4]),
    ];
    let built = built(&calls);
    assert!(origins(&built).iter().all(|(role, ..)| *role == CallRole::Main));

    let session = recorded(&calls);
    let options = BuildOptions {
        strategy: TrajectoryStrategy::PrefixMerging,
        train_roles: vec![CallRole::SubAgent],
    };
    let none = build(&session, options, None).trajectory;
    verify(&none, &session).unwrap();
    assert_eq!((none.traces.len(), none.tokens.trained), (0, 0));
    assert_eq!(none.tokens.untrained[&UntrainedReason::SideCall], 2);
}
