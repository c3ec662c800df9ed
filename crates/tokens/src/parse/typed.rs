//! Arguments that models write as bare text, typed by the tool's JSON schema.

use super::output::{Fault, Output};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::{HashMap, HashSet};

/// The tools a request offered: names and the JSON schemas of their parameters.
#[derive(Debug, Clone, Default)]
pub struct ToolSchemas(HashMap<String, Value>);

impl FromIterator<(String, Value)> for ToolSchemas {
    fn from_iter<T: IntoIterator<Item = (String, Value)>>(tools: T) -> Self {
        Self(tools.into_iter().collect())
    }
}

impl ToolSchemas {
    /// Whether no tool was offered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn property(&self, tool: &str, name: &str) -> Option<&Value> {
        let properties = self.0.get(tool)?.get("properties")?;
        properties.get(name)
    }
}

/// The JSON types that a schema allows.
#[derive(Debug, Default, Clone, Copy)]
struct Allowed {
    text: bool,
    integer: bool,
    number: bool,
    boolean: bool,
    null: bool,
    /// Objects and arrays.
    container: bool,
}

impl Allowed {
    fn of(schema: &Value) -> Self {
        let mut allowed = Self::default();
        allowed.add(schema, 0);
        allowed
    }

    fn add(&mut self, schema: &Value, depth: u32) {
        const DEEPEST: u32 = 8;
        if depth > DEEPEST {
            return;
        }
        match schema.get("type") {
            Some(Value::String(name)) => self.add_name(name),
            Some(Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).for_each(|name| self.add_name(name));
            }
            _ => {}
        }
        for name in ["anyOf", "oneOf", "allOf"] {
            let choices = schema.get(name).and_then(Value::as_array);
            choices.into_iter().flatten().for_each(|choice| self.add(choice, depth + 1));
        }
        let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
        for value in values.chain(schema.get("const")).filter(|_| schema.get("type").is_none()) {
            match value {
                Value::String(_) => self.text = true,
                Value::Number(_) => self.number = true,
                Value::Bool(_) => self.boolean = true,
                Value::Null => self.null = true,
                Value::Array(_) | Value::Object(_) => self.container = true,
            }
        }
        self.null |= schema.get("nullable") == Some(&Value::Bool(true));
    }

    /// Google's dialect writes the names in capitals.
    fn add_name(&mut self, name: &str) {
        match name.to_ascii_lowercase().as_str() {
            "string" => self.text = true,
            "integer" => self.integer = true,
            "number" => self.number = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "object" | "array" => self.container = true,
            _ => {}
        }
    }

    fn nothing(self) -> bool {
        let Self { text, integer, number, boolean, null, container } = self;
        !(text || integer || number || boolean || null || container)
    }
}

/// What the type of an argument is that no schema tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Untyped {
    /// A string.
    Text,
    /// What it is as JSON, else a string.
    Guess,
}

/// An argument as JSON text, and whether it is of another type than asked for. Numbers, objects
/// and arrays keep the model's spelling.
fn typed(
    tools: &ToolSchemas,
    (tool, name): (&str, &str),
    written: &str,
    untyped: Untyped,
) -> (String, Option<Fault>) {
    let text = || Value::from(written).to_string();
    let bare = written.trim();
    let allowed = tools.property(tool, name).map(Allowed::of).filter(|types| !types.nothing());
    let Some(allowed) = allowed else {
        return match untyped {
            Untyped::Guess if is_json(bare) => (bare.to_owned(), None),
            Untyped::Guess | Untyped::Text => (text(), None),
        };
    };
    if allowed.null && bare.eq_ignore_ascii_case("null") {
        return ("null".to_owned(), None);
    }
    if allowed.text {
        return (text(), None);
    }
    let lower = bare.to_ascii_lowercase();
    if allowed.boolean && matches!(lower.as_str(), "true" | "false") {
        return (lower, None);
    }
    let is_number = (allowed.integer || allowed.number)
        && serde_json::from_str::<serde_json::Number>(bare)
            .is_ok_and(|number| allowed.number || number.as_f64().is_some_and(is_whole));
    let is_container = allowed.container && bare.starts_with(['{', '[']) && is_json(bare);
    match is_number || is_container {
        true => (bare.to_owned(), None),
        false => (text(), Some(Fault::WrongType)),
    }
}

fn is_whole(number: f64) -> bool {
    number.fract() == 0.0
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}

/// A call whose arguments are written one by one as bare text; they are given as the members of
/// one JSON object.
pub(super) struct TypedCall {
    name: String,
    members: HashSet<String>,
    fault: Option<Fault>,
    /// The call as written so far.
    pub(super) raw: String,
}

impl TypedCall {
    pub(super) fn begin(mark: &str) -> Self {
        let raw = mark.to_owned();
        Self { name: String::new(), members: HashSet::new(), fault: None, raw }
    }

    /// The name is known, which is empty where the model wrote none.
    pub(super) fn name(&mut self, name: &str, out: &mut Output) {
        name.clone_into(&mut self.name);
        if !name.is_empty() {
            out.begin_call(name, None);
        }
    }

    /// Another argument is known.
    pub(super) fn member(
        &mut self,
        tools: &ToolSchemas,
        (name, written): (&str, &str),
        untyped: Untyped,
        out: &mut Output,
    ) {
        let (value, fault) = typed(tools, (&self.name, name), written, untyped);
        self.fault = self.fault.or(fault);
        let separator = if self.members.is_empty() { "{" } else { ", " };
        if self.members.insert(name.to_owned()) {
            out.arguments(&format!("{separator}{}: {value}", Value::from(name)));
        } else {
            self.found(Fault::Unexpected);
        }
    }

    /// Something is wrong.
    pub(super) fn found(&mut self, fault: Fault) {
        self.fault = self.fault.or(Some(fault));
    }

    /// Text between the arguments, where only white space belongs.
    pub(super) fn between(&mut self, text: &str) {
        self.raw.push_str(text);
        if !text.trim().is_empty() {
            self.found(Fault::Unexpected);
        }
    }

    /// Ends a call that is whole.
    pub(super) fn end(&mut self, out: &mut Output) {
        out.arguments(if self.members.is_empty() { "{}" } else { "}" });
        self.stop(out);
    }

    /// Ends a call that is not whole; its arguments stay as they are.
    pub(super) fn stop(&mut self, out: &mut Output) {
        match out.call_is_open() {
            true => out.end_call(self.fault, &self.raw),
            false => out.nameless_call(self.fault.unwrap_or(Fault::NoName), &self.raw),
        }
    }
}
