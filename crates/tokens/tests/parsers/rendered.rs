//! What the models' own chat templates make of a turn is taken apart into that turn again.
//!
//! `rendered.json` is made by `tests/render_templates.py` from the templates in llama.cpp's collection.

use crate::folding::{Part, fold_with};
use polar_tokens::parse::{ParserFamily, ReplyStart, ToolSchemas};
use serde_json::Value;

fn rendered() -> Value {
    serde_json::from_str(include_str!("rendered.json")).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[test]
fn turns_that_templates_render_are_taken_apart_again() {
    let all = rendered();
    let tools: ToolSchemas = list(&all["tools"])
        .iter()
        .map(|tool| (text(&tool["name"]).to_owned(), tool["parameters"].clone()))
        .collect();
    let mut checked = 0;
    for model in list(&all["models"]) {
        let marks: String = list(&model["marks"]).iter().map(text).collect();
        let family = ParserFamily::from_template(&marks).unwrap();
        for case in list(&model["cases"]) {
            let title = format!("{} {} as {family:?}", model["template"], case["case"]);
            let start = match case["in_reasoning"] == true {
                true => ReplyStart::InReasoning,
                false => ReplyStart::Fresh,
            };
            let parts = fold_with(family, start, tools.clone(), [text(&case["text"])]);
            check(&title, &parts, case);
            checked += 1;
        }
    }
    assert!(checked > 60, "{checked}");
}

fn check(title: &str, parts: &[Part], case: &Value) {
    let (mut said, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for part in parts {
        match part {
            Part::Text(more) => said.push_str(more),
            Part::Reasoning(more) => thought.push_str(more),
            Part::Call { name, arguments, .. } => calls.push((name, arguments)),
            Part::Malformed(call) => panic!("{title}: {call:?}"),
        }
    }
    assert_eq!(said.trim(), text(&case["content"]), "{title}");
    assert_eq!(thought.trim(), text(&case["reasoning"]), "{title}");
    assert_eq!(calls.len(), list(&case["calls"]).len(), "{title}");
    for ((name, arguments), call) in calls.into_iter().zip(list(&case["calls"])) {
        assert_eq!(name, text(&call["name"]), "{title}");
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        assert_eq!(arguments, call["arguments"], "{title}");
    }
}
