//! Each cause of a fork by a conversation that has it, rendered by a small chat template.
#![allow(clippy::unwrap_used)] // Tests: a panic is the report.

mod sessions;

use polar_record::CallRecord;
use polar_types::ForkCause::{
    self, Branch, HistoryRewritten, NewLineage, ReasoningStripped, Retokenised, Retry,
    ToolArgumentsReserialised, ToolsChanged, TruncatedTurn,
};
use serde_json::{Value, json};
use sessions::{built_of, call, causes, finished, said, system, user};

/// What a template does with past replies.
#[derive(Clone, Copy, PartialEq)]
enum Template {
    /// Renders everything as it was sampled.
    Exact,
    /// Leaves out the reasoning of past replies.
    StripsReasoning,
    /// Opens the reasoning in the generation prompt, and leaves out that of past replies.
    OpensReasoning,
}

const START: u32 = 1;
const END: u32 = 2;
const THINK: u32 = 3;
const END_OF_THINK: u32 = 4;
const CALL: u32 = 5;

fn text(out: &mut Vec<u32>, text: &str) {
    out.extend(text.chars().map(|letter| 1000 + u32::from(letter)));
}

/// A message behind its role mark, up to its end mark.
fn body(message: &Value, with_reasoning: bool) -> Vec<u32> {
    let mut out = Vec::new();
    if let Some(reasoning) = message["reasoning_content"].as_str().filter(|_| with_reasoning) {
        out.push(THINK);
        text(&mut out, reasoning);
        out.push(END_OF_THINK);
    }
    text(&mut out, message["content"].as_str().unwrap_or_default());
    for tool_call in message["tool_calls"].as_array().into_iter().flatten() {
        out.push(CALL);
        text(&mut out, tool_call["function"]["arguments"].as_str().unwrap_or_default());
    }
    out.push(END);
    out
}

fn render(template: Template, tools: &Option<Value>, messages: &[Value]) -> Vec<u32> {
    let mut out = vec![START];
    text(&mut out, "system");
    for tool in tools.iter().flat_map(|tools| tools.as_array()).flatten() {
        text(&mut out, &tool.to_string());
    }
    for message in messages {
        out.push(START);
        text(&mut out, message["role"].as_str().unwrap());
        out.extend(body(message, template == Template::Exact));
    }
    out.push(START);
    text(&mut out, "assistant");
    if template == Template::OpensReasoning {
        out.push(THINK);
    }
    out
}

/// Calls of one harness, rendered as they are asked.
struct Scene {
    template: Template,
    tools: Option<Value>,
    calls: Vec<CallRecord>,
}

impl Scene {
    fn new(template: Template) -> Self {
        Self { template, tools: Some(json!(["bash"])), calls: Vec::new() }
    }

    fn ask(&mut self, messages: &[Value], reply: Value) {
        let prompt = render(self.template, &self.tools, messages);
        let skip = usize::from(self.template == Template::OpensReasoning);
        let mut record = call(messages, reply.clone(), &prompt, &body(&reply, true)[skip..]);
        record.tools.clone_from(&self.tools);
        self.calls.push(record);
    }

    /// As `ask`, where the reply runs into its token limit before its end mark.
    fn ask_cut(&mut self, messages: &[Value], reply: Value) {
        self.ask(messages, reply);
        let mut cut = finished(self.calls.pop().unwrap(), "length");
        cut.sampled_ids.as_mut().unwrap().pop();
        cut.logprobs.pop();
        self.calls.push(cut);
    }

    /// As `ask`, where the engine refuses the prompt, before or after it says its tokens.
    fn ask_refused(&mut self, messages: &[Value], tells_the_prompt: bool) {
        self.ask(messages, said(""));
        let mut refused = finished(self.calls.pop().unwrap(), "error");
        refused.prompt_ids = refused.prompt_ids.filter(|_| tells_the_prompt);
        refused.sampled_ids = tells_the_prompt.then(Vec::new);
        refused.logprobs.clear();
        refused.meta.sampled_tokens = 0;
        self.calls.push(refused);
    }

    #[track_caller]
    fn forks(&self, expected: &[ForkCause]) {
        let built = built_of(&self.calls);
        assert_eq!(causes(&built), expected);
        for trace in &built.trajectory.traces {
            let fork = &trace.lineage.fork;
            let index = |id: &polar_types::CallId| {
                built.calls.iter().position(|call| call.call_id == *id).unwrap()
            };
            let Some(nearest) = &fork.nearest else {
                assert_eq!(fork.shared_tokens, 0);
                continue;
            };
            // The evidence is what comparing every earlier sequence gives.
            let sequence = |call: &CallRecord| {
                let prompt = call.prompt_ids.clone().unwrap_or_default();
                [prompt, call.sampled_ids.clone().unwrap_or_default()].concat()
            };
            let this = index(&trace.calls[0]);
            let shared = |other: &CallRecord| {
                sequence(other).iter().zip(&trace.prompt_ids).take_while(|(a, b)| a == b).count()
            };
            let longest = self.calls[..this].iter().map(shared).max().unwrap();
            let latest = self.calls[..this].iter().rposition(|call| shared(call) == longest);
            assert_eq!((longest, latest), (fork.shared_tokens as usize, Some(index(nearest))));
            let other = sequence(&self.calls[index(nearest)]);
            assert_eq!(fork.expected, other.get(longest).copied());
            assert_eq!(fork.found, trace.prompt_ids.get(longest).copied());
        }
    }
}

fn thought(reasoning: &str, text: &str) -> Value {
    json!({"role": "assistant", "content": text, "reasoning_content": reasoning})
}

fn ran(arguments: &str) -> Value {
    let call = json!({"id": "c1", "type": "function",
        "function": {"name": "bash", "arguments": arguments}});
    json!({"role": "assistant", "content": null, "tool_calls": [call]})
}

fn result(text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": "c1", "content": text})
}

#[test]
fn a_conversation_that_only_grows_never_forks() {
    let mut scene = Scene::new(Template::Exact);
    let mut history = vec![system(), user("go")];
    for reply in [thought("hm", "a"), ran(r#"{"a": 1}"#), said("done")] {
        scene.ask(&history, reply.clone());
        history.extend([reply, user("next")]);
    }
    scene.forks(&[NewLineage]);
}

#[test]
fn other_conversations_are_new_lineages() {
    let mut scene = Scene::new(Template::Exact);
    scene.ask(&[system(), user("fix it")], said("ok"));
    let title = json!({"role": "system", "content": "Write a title."});
    scene.ask(&[title, user("about fixing")], said("Fix"));
    scene.ask(&[system(), user("another job")], said("ok"));
    scene.ask(&[system(), user("summary of all so far")], said("ok"));
    scene.forks(&[NewLineage; 4]);
}

#[test]
fn a_sub_agent_between_two_turns_does_not_disturb_them() {
    let mut scene = Scene::new(Template::Exact);
    scene.ask(&[system(), user("fix it")], said("ok"));
    let sub = json!({"role": "system", "content": "You search."});
    scene.ask(&[sub.clone(), user("find")], said("found"));
    scene.ask(&[system(), user("fix it"), said("ok"), user("go on")], said("done"));
    scene.ask(&[sub, user("find"), said("found"), user("more")], said("none"));
    scene.forks(&[NewLineage, NewLineage]);
}

#[test]
fn edited_histories_are_rewritten() {
    let edits: [&[Value]; 5] = [
        // An old tool result is cleared, as context editing does.
        &[system(), user("go"), ran("{}"), result("[cleared]"), said("b"), user("d")],
        // The first message changes, as after a resumed session.
        &[system(), user("go, on tuesday"), ran("{}"), result("long"), said("b"), user("d")],
        // A message is dropped.
        &[system(), user("go"), ran("{}"), said("b"), user("d")],
        // A reply is replaced.
        &[system(), user("go"), ran("{}"), result("long"), said("other"), user("d")],
        // A call comes back with other arguments.
        &[system(), user("go"), ran(r#"{"a":1}"#), result("long"), said("b"), user("d")],
    ];
    for edit in edits {
        let mut scene = Scene::new(Template::Exact);
        scene.ask(&[system(), user("go")], ran("{}"));
        scene.ask(&[system(), user("go"), ran("{}"), result("long")], said("b"));
        scene.ask(edit, said("c"));
        scene.forks(&[NewLineage, HistoryRewritten]);
    }

    // A later question changes, and nothing was said before it.
    let mut scene = Scene::new(Template::Exact);
    scene.ask(&[system(), user("go"), user("west")], said("b"));
    scene.ask(&[system(), user("go"), user("east")], said("b"));
    scene.forks(&[NewLineage, HistoryRewritten]);
}

#[test]
fn reasoning_the_harness_dropped_is_stripped() {
    let mut scene = Scene::new(Template::Exact);
    scene.ask(&[system(), user("go")], thought("hm hm", "a"));
    scene.ask(&[system(), user("go"), said("a"), user("b")], thought("so", "c"));
    scene.ask(&[system(), user("go"), said("a"), user("b"), said("c"), user("d")], said("e"));
    scene.forks(&[NewLineage, ReasoningStripped, ReasoningStripped]);
}

#[test]
fn reasoning_the_template_left_out_is_stripped() {
    for template in [Template::StripsReasoning, Template::OpensReasoning] {
        for sent_back in [thought("hm hm", "a"), said("a")] {
            let mut scene = Scene::new(template);
            scene.ask(&[system(), user("go")], thought("hm hm", "a"));
            scene.ask(&[system(), user("go"), sent_back, user("b")], thought("so", "c"));
            scene.forks(&[NewLineage, ReasoningStripped]);
        }
    }
}

#[test]
fn arguments_with_another_spelling_are_reserialised() {
    let mut scene = Scene::new(Template::Exact);
    scene.ask(&[system(), user("go")], ran(r#"{"b": 1e4, "a": "x\/y"}"#));
    let respelled = ran(r#"{"b":10000,"a":"x/y"}"#);
    scene.ask(&[system(), user("go"), respelled, result("ok")], said("b"));
    scene.forks(&[NewLineage, ToolArgumentsReserialised]);
}

#[test]
fn of_two_changes_the_one_where_tokens_part_is_named() {
    let mut sampled = ran(r#"{"a": 1}"#);
    sampled["reasoning_content"] = json!("hm");
    let mut scene = Scene::new(Template::Exact);
    scene.ask(&[system(), user("go")], sampled);
    scene.ask(&[system(), user("go"), ran(r#"{"a":1}"#), result("ok")], ran(r#"{"b": 2}"#));
    // The first reply is as the second prompt had it; what is new is the second reply's spelling.
    let history =
        [system(), user("go"), ran(r#"{"a":1}"#), result("ok"), ran(r#"{"b":2}"#), result("ok")];
    scene.ask(&history, said("c"));
    scene.forks(&[NewLineage, ReasoningStripped, ToolArgumentsReserialised]);
}

#[test]
fn what_the_engine_never_saw_is_not_named() {
    // The template leaves past reasoning out, so that dropping it later changes nothing.
    let mut scene = Scene::new(Template::StripsReasoning);
    scene.ask(&[system(), user("go")], thought("hm", "a"));
    let sent_back = [system(), user("go"), thought("hm", "a"), user("b")];
    scene.ask(&sent_back, ran(r#"{"a": 1}"#));
    let respelled = ran(r#"{"a":1}"#);
    scene.ask(&[system(), user("go"), said("a"), user("b"), respelled, result("ok")], said("c"));
    scene.forks(&[NewLineage, ReasoningStripped, ToolArgumentsReserialised]);
}

#[test]
fn what_is_done_behind_the_place_where_tokens_part_is_not_named() {
    // A reply is cut and left out, and the harness asks for another: the template drops the
    // reasoning before that question.
    let begun = [system(), user("go"), ran_with_thought(), result("ok")];
    for kept in [&[][..], &[said("a long re")], &[said("another")]] {
        let mut scene = Scene::new(Template::StripsReasoning);
        scene.ask(&begun[..2], ran_with_thought());
        scene.calls.push({
            let mut exact = Scene::new(Template::Exact);
            exact.ask_cut(&begun, said("a long re"));
            exact.calls.pop().unwrap()
        });
        scene.ask(&[&begun[..], kept, &[user("go on")]].concat(), said("c"));
        scene.forks(&[NewLineage, ReasoningStripped]);
    }
}

fn ran_with_thought() -> Value {
    let mut reply = ran("{}");
    reply["reasoning_content"] = json!("hm hm");
    reply
}

#[test]
fn a_history_that_is_shorter_is_rewritten_or_goes_on_from_an_earlier_reply() {
    for reply in [said("x"), thought("hm", "x")] {
        let mut scene = Scene::new(Template::Exact);
        scene.ask_cut(&[system(), user("a"), user("b")], reply);
        scene.ask(&[system(), user("a")], said("y"));
        scene.forks(&[NewLineage, HistoryRewritten]);
    }

    let mut scene = Scene::new(Template::Exact);
    scene.ask(&[system(), user("a")], said("x"));
    scene.ask(&[system(), user("a"), said("x"), user("b")], said("y"));
    scene.ask(&[system(), user("a"), said("x")], said("z"));
    scene.forks(&[NewLineage, Branch]);
}

#[test]
fn other_tools_in_one_conversation_are_tools_changed() {
    let mut scene = Scene::new(Template::Exact);
    scene.ask(&[system(), user("go")], said("a"));
    scene.ask(&[system(), user("go"), said("a"), user("b")], said("c"));
    let sub = json!({"role": "system", "content": "You search."});
    scene.ask(&[sub, user("find")], said("found"));
    scene.tools = Some(json!(["bash", "search"]));
    let history = [system(), user("go"), said("a"), user("b"), said("c"), user("d")];
    scene.ask(&history, said("e"));
    scene.forks(&[NewLineage, NewLineage, ToolsChanged]);
}

#[test]
fn the_same_text_in_other_tokens_is_retokenised() {
    for reply in [said("long reply"), thought("hm hm hm", "long reply")] {
        let mut scene = Scene::new(Template::Exact);
        scene.ask(&[system(), user("go")], reply.clone());
        scene.ask(&[system(), user("go"), reply, user("b")], said("c"));
        let from = scene.calls[0].prompt_ids.as_ref().unwrap().len() + 5;
        let prompt = scene.calls[1].prompt_ids.as_mut().unwrap();
        prompt.splice(from..from + 2, [77]);
        scene.forks(&[NewLineage, Retokenised]);
    }
}

#[test]
fn a_cut_reply_that_is_closed_is_continued_and_one_that_is_not_kept_is_truncated() {
    let go = [system(), user("go")];
    let mut closed = Scene::new(Template::Exact);
    closed.ask_cut(&go, said("a long re"));
    closed.ask(&[system(), user("go"), said("a long re"), user("go on")], said("ply"));
    closed.forks(&[NewLineage]);

    let dropped = [system(), user("go"), user("be brief")];
    let shortened = [system(), user("go"), said("a long"), user("go on")];
    for history in [&dropped[..], &shortened[..]] {
        let mut scene = Scene::new(Template::Exact);
        scene.ask_cut(&go, said("a long re"));
        scene.ask(history, said("b"));
        scene.forks(&[NewLineage, TruncatedTurn]);
    }

    // Half a letter at the end: the text comes back, its last token does not.
    let mut scene = Scene::new(Template::Exact);
    scene.ask_cut(&go, said("a long re"));
    *scene.calls[0].sampled_ids.as_mut().unwrap().last_mut().unwrap() = 77;
    scene.ask(&[system(), user("go"), said("a long re"), user("go on")], said("b"));
    scene.forks(&[NewLineage, TruncatedTurn]);
}

#[test]
fn a_refused_call_is_no_turn_that_was_changed() {
    let begun = [system(), user("go"), thought("hm hm", "a"), user("b")];
    for tells_the_prompt in [false, true] {
        // Asked for less than was refused, and for a summary of it: what parts from the tokens
        // is the turn before.
        for history in [
            [&begun[..], &[user("sum up")]].concat(),
            [&begun[..], &[said("it is too long"), user("sum up")]].concat(),
            [&begun[..3], &[user("b, in short")]].concat(),
        ] {
            let mut scene = Scene::new(Template::StripsReasoning);
            scene.ask(&begun[..2], thought("hm hm", "a"));
            scene.ask_refused(&begun, tells_the_prompt);
            scene.ask_refused(&begun, tells_the_prompt);
            scene.ask(&history, said("c"));
            scene.forks(&[NewLineage, ReasoningStripped]);
        }

        // Nothing was sampled before.
        let mut scene = Scene::new(Template::Exact);
        scene.ask_refused(&begun[..2], tells_the_prompt);
        scene.ask(&[system(), user("go"), user("on")], said("a"));
        scene.forks(&[NewLineage]);
    }
}

#[test]
fn the_same_prompt_again_is_a_retry() {
    let mut scene = Scene::new(Template::Exact);
    scene.ask(&[system(), user("go")], said("a"));
    scene.ask(&[system(), user("go")], said("another"));
    let go_on = [system(), user("go"), said("another"), user("b")];
    scene.ask(&go_on, said("c"));
    scene.ask(&go_on, said("d"));
    scene.forks(&[NewLineage, Retry, Retry]);
}

#[test]
fn different_ways_on_from_one_reply_are_branches() {
    let mut scene = Scene::new(Template::Exact);
    let after = |text: &str| [system(), user("go"), said("a"), user(text)];
    scene.ask(&[system(), user("go")], said("a"));
    scene.ask(&after("first"), said("b"));
    let deeper = [&after("first")[..], &[said("b"), user("on")]].concat();
    scene.ask(&deeper, said("c"));
    scene.ask(&after("second"), said("b"));
    scene.ask(&after("sec"), said("b"));
    // Part at the very token behind the reply: nothing of the template is shared.
    scene.ask(&after("third"), said("b"));
    let end = scene.calls[0].prompt_ids.as_ref().unwrap().len() + 2;
    scene.calls[5].prompt_ids.as_mut().unwrap()[end] = 77;
    scene.forks(&[NewLineage, Branch, Branch, Branch]);

    // The tokens were continued by a call whose messages have nothing to do with these.
    let mut scene = Scene::new(Template::Exact);
    scene.ask(&[system(), user("go")], said("a"));
    scene.ask(&after("first"), said("b"));
    scene.calls[1].messages = vec![user("elsewhere")];
    scene.ask(&after("second"), said("b"));
    for call in 1..3 {
        scene.calls[call].prompt_ids.as_mut().unwrap()[end] = 77 + call as u32;
    }
    scene.forks(&[NewLineage, Branch]);
}
