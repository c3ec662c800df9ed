//! From a scenario's rules to those of the simulator: the tools they use by purpose become
//! the program's own.
//!
//! A rule's reply says `use: shell, with: {command: …}` in the place of a call's name and
//! arguments, and `ends: TEXT` or `reports: TEXT` where the task or a sub-agent's ends. What the adapter says of its tools
//! decides the rest; where it says nothing, the rule is written once for each name that
//! agent programs are known to give such a tool, to hold where that name is on offer.

use crate::harness::{CheckNotes, ToolNote};
use serde_json::{Map, Value, json};

/// The rules, for the simulator.
pub(super) fn expand(rules: &[Value], notes: &CheckNotes) -> Vec<Value> {
    rules.iter().flat_map(|rule| expand_rule(rule, notes)).collect()
}

fn expand_rule(rule: &Value, notes: &CheckNotes) -> Vec<Value> {
    let rule = with_end(rule, notes);
    let purposes: Vec<String> =
        calls(&rule).filter_map(|call| Some(call.get("use")?.as_str()?.to_owned())).collect();
    let unknown = purposes.iter().find(|purpose| !notes.tools.contains_key(*purpose));
    match unknown.map(String::as_str) {
        None => vec![with_tools(&rule, notes)],
        Some("shell") => known_shells()
            .into_iter()
            .map(|shell| {
                let mut guessed = notes.clone();
                guessed.tools.insert("shell".to_owned(), shell);
                with_tools(&rule, &guessed)
            })
            .collect(),
        // A tool that only the adapter could have named.
        Some(_) => Vec::new(),
    }
}

fn calls(rule: &Value) -> impl Iterator<Item = &Value> {
    rule.pointer("/reply/tool_calls").and_then(Value::as_array).into_iter().flatten()
}

/// The end of the task, or of a sub-agent's: a text, or a call of the tool without which the
/// program goes on.
fn with_end(rule: &Value, notes: &CheckNotes) -> Value {
    let mut rule = rule.clone();
    let reply = rule.get_mut("reply").and_then(Value::as_object_mut);
    let Some(reply) = reply else { return rule };
    for (key, purpose) in [("ends", "finish"), ("reports", "report")] {
        let Some(text) = reply.remove(key) else { continue };
        if notes.tools.contains_key(purpose) {
            let call = json!([{"use": purpose, "with": {"text": text}}]);
            reply.insert("tool_calls".to_owned(), call);
        } else {
            reply.insert("text".to_owned(), text);
        }
    }
    rule
}

/// Puts the program's tools in the place of purposes, and lets the rule hold only where
/// they are on offer.
fn with_tools(rule: &Value, notes: &CheckNotes) -> Value {
    let mut rule = rule.clone();
    let mut names = Vec::new();
    let listed = rule.pointer_mut("/reply/tool_calls").and_then(Value::as_array_mut);
    for call in listed.into_iter().flatten() {
        let purpose = call.get("use").and_then(Value::as_str).unwrap_or_default();
        let Some(tool) = notes.tools.get(purpose) else { continue };
        let given = call.get("with").and_then(Value::as_object).cloned().unwrap_or_default();
        let arguments: Map<String, Value> =
            tool.arguments.iter().map(|(key, value)| (key.clone(), fill(value, &given))).collect();
        let mut named = json!({"name": tool.name, "arguments": arguments});
        if let Some(spelling) = call.get("spelling") {
            named["spelling"] = spelling.clone();
        }
        names.push(Value::from(tool.name.clone()));
        *call = named;
    }
    if !names.is_empty()
        && let Some(rule) = rule.as_object_mut()
    {
        names.dedup();
        rule.entry("when").or_insert_with(|| json!({}))["tools"] = Value::Array(names);
    }
    rule
}

/// A value with what the scenario gives in the place of `{{ name }}`.
fn fill(value: &Value, given: &Map<String, Value>) -> Value {
    match value {
        Value::String(text) => {
            let filled = given.iter().fold(text.clone(), |text, (name, value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                text.replace(&format!("{{{{ {name} }}}}"), &value)
            });
            Value::String(filled)
        }
        Value::Array(items) => items.iter().map(|item| fill(item, given)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, field)| (key.clone(), fill(field, given))).collect()
        }
        other => other.clone(),
    }
}

/// Names of tools that run a command line, with the arguments they take.
fn known_shells() -> Vec<ToolNote> {
    let told = json!({"command": "{{ command }}", "description": "Run a command"});
    let plain = json!({"command": "{{ command }}"});
    let short = json!({"cmd": "{{ command }}"});
    [
        ("Bash", &told),
        ("bash", &plain),
        ("run_shell_command", &told),
        ("exec_command", &short),
        ("terminal", &plain),
        ("execute_bash", &plain),
        ("execute_command", &plain),
        ("shell", &plain),
    ]
    .into_iter()
    .map(|(name, arguments)| ToolNote {
        name: name.to_owned(),
        arguments: arguments.as_object().cloned().unwrap_or_default(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> Value {
        json!({"name": "r", "when": {"assistant_turns": 0}, "reply": {"tool_calls": [
            {"use": "shell", "with": {"command": "ls"}, "spelling": "odd"},
        ]}})
    }

    #[test]
    fn a_named_tool_takes_the_place_of_its_purpose() {
        let mut notes = CheckNotes::default();
        let arguments = json!({"cmd": ["sh", "-c", "{{ command }}"], "deep": {"n": 1}});
        let arguments = arguments.as_object().unwrap().clone();
        notes.tools.insert("shell".into(), ToolNote { name: "run".into(), arguments });
        let expanded = expand(&[rule()], &notes);
        assert_eq!(
            expanded,
            [json!({"name": "r", "when": {"assistant_turns": 0, "tools": ["run"]}, "reply": {
                "tool_calls": [{
                    "name": "run",
                    "arguments": {"cmd": ["sh", "-c", "ls"], "deep": {"n": 1}},
                    "spelling": "odd",
                }],
            }})]
        );
    }

    #[test]
    fn an_unnamed_shell_is_guessed_and_another_tool_is_not() {
        let guessed = expand(&[rule()], &CheckNotes::default());
        let names: Vec<_> = guessed.iter().map(|rule| rule["when"]["tools"][0].clone()).collect();
        assert!(names.contains(&json!("Bash")) && names.contains(&json!("exec_command")));
        assert_eq!(guessed[0]["reply"]["tool_calls"][0]["arguments"]["command"], "ls");
        let agent = json!({"name": "r", "reply": {"tool_calls": [{"use": "agent"}]}});
        assert!(expand(&[agent], &CheckNotes::default()).is_empty());
    }

    #[test]
    fn the_end_is_a_text_unless_a_tool_ends_the_task() {
        let end = json!({"name": "end", "reply": {"ends": "Done."}});
        let plain = expand(std::slice::from_ref(&end), &CheckNotes::default());
        assert_eq!(plain[0]["reply"], json!({"text": "Done."}));
        let mut notes = CheckNotes::default();
        let arguments = json!({"message": "{{ text }}"}).as_object().unwrap().clone();
        notes.tools.insert("finish".into(), ToolNote { name: "finish".into(), arguments });
        let called = expand(&[end], &notes);
        let call = json!({"name": "finish", "arguments": {"message": "Done."}});
        assert_eq!(called[0]["reply"]["tool_calls"], json!([call]));
    }
}
