//! Which call a request goes on from.

use crate::families::{CHATML, SHORT, Talk, turn};
use polar_tokens::prompt::{Basis, PromptMemory};
use polar_types::HistoryPolicy;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Asks and answers, and gives prompt and reply.
fn ask(
    memory: &mut PromptMemory,
    talk: &Talk,
    reply: &Value,
    sampled: &[u32],
    number: u32,
) -> Vec<u32> {
    let plan =
        memory.plan(&CHATML.renderer(), &talk.conversation(), HistoryPolicy::Sampled).unwrap();
    memory.remember(&plan, reply, sampled, number);
    [&plan.ids, sampled].concat()
}

fn basis(memory: &PromptMemory, talk: &Talk) -> Option<u32> {
    let plan =
        memory.plan(&CHATML.renderer(), &talk.conversation(), HistoryPolicy::Sampled).unwrap();
    match plan.basis {
        Basis::Call { number, .. } => Some(number),
        _ => None,
    }
}

fn hello() -> Talk {
    Talk::of(&[json!({"role": "user", "content": "Hello."})])
}

#[test]
fn a_history_that_is_changed_is_kept_up_to_the_change() {
    let mut memory = PromptMemory::default();
    let mut talk = hello();
    let mut sequences = Vec::new();
    for number in 0..3 {
        let said = format!("Turn {number}.");
        let sampled = CHATML.sampled(&said, &[]);
        sequences.push(ask(&mut memory, &talk, &turn(&said, &[]), &sampled, number));
        talk.messages.push(turn(&said, &[]));
        talk.say("user", &format!("Go on, {number}."));
    }
    assert_eq!(basis(&memory, &talk), Some(2));
    let changed = |at: usize, message: Option<Value>| {
        let mut talk = talk.clone();
        match message {
            Some(message) => talk.messages[at] = message,
            None => drop(talk.messages.remove(at)),
        }
        talk
    };
    let user = json!({"role": "user", "content": "Other."});
    assert_eq!(basis(&memory, &changed(6, Some(user.clone()))), Some(2), "the new message");
    assert_eq!(basis(&memory, &changed(4, Some(user.clone()))), Some(1), "a message between");
    assert_eq!(basis(&memory, &changed(3, Some(turn("Not said.", &[])))), Some(0), "a turn");
    assert_eq!(basis(&memory, &changed(2, None)), Some(0), "a message left out");
    assert_eq!(basis(&memory, &changed(0, Some(user))), None, "the first message");
    let mut rewound = talk.clone();
    rewound.messages.truncate(3);
    assert_eq!(basis(&memory, &rewound), Some(0), "rewound");
    assert_eq!(basis(&memory, &talk.clone().with_tools()), None, "other tools");
    let mut other = talk.clone();
    other.options.insert("enable_thinking".into(), false.into());
    assert_eq!(basis(&memory, &other), None, "other arguments of the template");
    let plan = memory.plan(
        &CHATML.renderer(),
        &changed(3, Some(turn("Not said.", &[]))).conversation(),
        HistoryPolicy::Sampled,
    );
    assert!(plan.unwrap().ids.starts_with(&sequences[0]));
}

/// The cost of a turn is that of what is new: its template does not see what is long past.
#[test]
fn a_turn_is_rendered_without_the_conversation_before_it() {
    let (mut memory, renderer) = (PromptMemory::default(), SHORT.renderer());
    let mut talk = hello();
    for number in 0..50 {
        let plan = memory.plan(&renderer, &talk.conversation(), HistoryPolicy::Sampled).unwrap();
        memory.remember(&plan, &turn("Yes.", &[]), &SHORT.sampled("Yes.", &[]), number);
        talk.messages.push(turn("Yes.", &[]));
        talk.say("user", &format!("Go on, {number}."));
    }
    let plan = memory.plan(&renderer, &talk.conversation(), HistoryPolicy::Sampled).unwrap();
    assert!(matches!(plan.basis, Basis::Call { number: 49, .. }), "{:?}", plan.basis);
    let text = renderer.tokenizer().decode(&plan.ids);
    assert!(text.contains("Go on, 0.") && text.contains("Go on, 49."), "{text}");
    assert!(renderer.prompt(&talk.conversation()).is_err(), "the template took all of it");
}

#[test]
fn replies_that_say_the_same_are_gone_on_from_once_each() {
    let mut memory = PromptMemory::default();
    let mut talk = hello();
    let reply = turn("Yes.", &[]);
    let first = CHATML.sampled("Yes.", &[]);
    let second = [CHATML.sampled("Ye", &[]), CHATML.sampled("s.", &[])].concat();
    ask(&mut memory, &talk, &reply, &first, 0);
    ask(&mut memory, &talk, &reply, &second, 1);
    talk.messages.push(reply);
    talk.say("user", "One.");
    assert_eq!(basis(&memory, &talk), Some(1), "the latest");
    ask(&mut memory, &talk, &turn("1", &[]), &CHATML.sampled("1", &[]), 2);
    talk.messages.pop();
    talk.say("user", "Two.");
    assert_eq!(basis(&memory, &talk), Some(0), "the one not gone on from");
}

#[test]
fn what_a_client_notes_in_a_turn_does_not_matter_and_what_it_changes_does() {
    let mut memory = PromptMemory::default();
    let mut talk = hello();
    let reply = turn("", &[("look", "")]);
    ask(&mut memory, &talk, &reply, &CHATML.sampled("", &[("look", "{}")]), 0);
    let mut sent = turn("", &[("look", "{}")]);
    sent["annotations"] = json!([]);
    talk.messages.push(sent);
    talk.messages.push(crate::families::result(0, "seen"));
    assert_eq!(basis(&memory, &talk), Some(0));
    talk.messages[1]["tool_calls"][0]["function"]["arguments"] = r#"{"a": 1}"#.into();
    assert_eq!(basis(&memory, &talk), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// Whatever was asked before and however the history is changed, a prompt begins with prompt
    /// and reply of the call that it says it goes on from.
    #[test]
    fn promise_2_a_prompt_begins_with_the_sequence_of_its_basis(
        steps in prop::collection::vec((0..4_usize, 0..3_usize, any::<bool>()), 1..12),
    ) {
        let mut memory = PromptMemory::default();
        let mut talk = hello();
        let mut sequences = Vec::new();
        for (number, (back, said, cut)) in steps.into_iter().enumerate() {
            let keep = talk.messages.len().saturating_sub(back).max(1);
            talk.messages.truncate(keep);
            if talk.messages.last().unwrap()["role"] == "assistant" {
                talk.say("user", "Next.");
            }
            let plan = memory.plan(&CHATML.renderer(), &talk.conversation(), HistoryPolicy::Sampled).unwrap();
            match plan.basis {
                Basis::Call { number, .. } => {
                    let sequence: &Vec<u32> = &sequences[number as usize];
                    prop_assert!(plan.ids.starts_with(sequence));
                }
                _ => prop_assert_eq!(&plan.ids, &CHATML.renderer().prompt(&talk.conversation()).unwrap()),
            }
            let said = ["Yes.", "No.", "Maybe."][said];
            let mut sampled = CHATML.sampled(said, &[]);
            if cut {
                sampled.pop();
            }
            let reply = turn(said, &[]);
            memory.remember(&plan, &reply, &sampled, number as u32);
            sequences.push([plan.ids, sampled].concat());
            talk.messages.push(reply);
        }
    }
}
