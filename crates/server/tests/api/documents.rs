//! The reference of a task's fields in `docs/tasks.md` is that of the code.

use polar_types::{EvaluatorSpec, MountSpec, PrepareStep, TaskRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// Run with `POLAR_WRITE_DOCS=1`, it writes the tables instead.
#[test]
fn documentation_has_every_field_of_a_task() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tasks.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- fields -->\n", "<!-- /fields -->");
    let (before, rest) = document.split_once(begin).unwrap();
    let (found, after) = rest.split_once(end).unwrap();
    let tables = Reference::new().tables();
    if std::env::var_os("POLAR_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{begin}{tables}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(found, tables, "run this test with POLAR_WRITE_DOCS=1");
}

/// Tables of the fields of a task, from the OpenAPI document.
struct Reference {
    schemas: Value,
    /// A task of which only the harness is said, with the defaults of all else.
    defaults: Value,
    /// Schemas whose tables are written, or will be, and of which field.
    known: BTreeMap<String, String>,
    waiting: Vec<(String, String)>,
    text: String,
}

impl Reference {
    fn new() -> Self {
        let document = serde_json::to_value(polar_server::openapi()).unwrap();
        let request: TaskRequest = serde_json::from_value(json!({ "harness": "pi" })).unwrap();
        Self {
            schemas: document["components"]["schemas"].clone(),
            defaults: serde_json::to_value(request).unwrap(),
            known: BTreeMap::new(),
            waiting: Vec::new(),
            text: String::new(),
        }
    }

    fn tables(mut self) -> String {
        let task = self.schemas["TaskRequest"].clone();
        let defaults = self.defaults.clone();
        self.table(&task, "", &defaults);
        while !self.waiting.is_empty() {
            let (name, place) = self.waiting.remove(0);
            let schema = self.schemas[&name].clone();
            writeln!(self.text, "\n### `{place}`\n").unwrap();
            if let Some(shapes) = schema["oneOf"].as_array() {
                self.shapes(&name, shapes, &place);
                continue;
            }
            let own = place.split('.').fold(&defaults, |value, part| &value[part]);
            let own = own.as_object().map(|_| own.clone());
            let own = own.unwrap_or_else(|| self.completed(&name, &schema));
            self.table(&schema, &place, &own);
        }
        self.text
    }

    /// A table for each shape of a value that has a `type`.
    fn shapes(&mut self, schema: &str, shapes: &[Value], place: &str) {
        for (index, shape) in shapes.iter().enumerate() {
            let own = self.fields(shape);
            let word = own.iter().find(|(name, _)| name == "type").unwrap().1["enum"][0].clone();
            let what = sentence(&shape["description"]);
            let gap = if index == 0 { "" } else { "\n" };
            writeln!(self.text, "{gap}`type: {}`: {what}", word.as_str().unwrap()).unwrap();
            if own.len() > 1 {
                self.text.push('\n');
                let place = format!("{place}.{}", word.as_str().unwrap());
                let defaults = self.completed(schema, shape);
                self.table(shape, &place, &defaults);
            }
        }
    }

    /// An object of which only what must be said is said, with the defaults of all else.
    fn completed(&self, name: &str, shape: &Value) -> Value {
        fn read<T: DeserializeOwned + Serialize>(said: Value) -> Value {
            serde_json::to_value(serde_json::from_value::<T>(said).unwrap()).unwrap()
        }
        let required = self.required(shape);
        let fields = self.fields(shape).into_iter().filter(|(name, _)| required.contains(name));
        let said: Map<String, Value> =
            fields.map(|(name, field)| (name, self.anything(&field))).collect();
        match name {
            "EvaluatorSpec" => read::<EvaluatorSpec>(said.into()),
            "PrepareStep" => read::<PrepareStep>(said.into()),
            "MountSpec" => read::<MountSpec>(said.into()),
            _ => Value::Null,
        }
    }

    /// Some value that a field may have.
    fn anything(&self, field: &Value) -> Value {
        let schema = referred(field).map_or(field, |name| &self.schemas[name]);
        match (&schema["enum"][0], schema["type"].as_str()) {
            (Value::String(word), _) => json!(word),
            (_, Some("array")) => json!([]),
            _ => json!("text"),
        }
    }

    /// Fields of an object, also where it is made of several parts.
    fn fields(&self, schema: &Value) -> Vec<(String, Value)> {
        if let Some(name) = referred(schema) {
            return self.fields(&self.schemas[name]);
        }
        if let Some(parts) = schema["allOf"].as_array() {
            return parts.iter().flat_map(|part| self.fields(part)).collect();
        }
        let fields = schema["properties"].as_object();
        fields.into_iter().flatten().map(|(name, field)| (name.clone(), field.clone())).collect()
    }

    fn required(&self, schema: &Value) -> BTreeSet<String> {
        if let Some(name) = referred(schema) {
            return self.required(&self.schemas[name]);
        }
        let parts = schema["allOf"].as_array().into_iter().flatten();
        let own = schema["required"].as_array().into_iter().flatten();
        let own = own.map(|name| name.as_str().unwrap().to_owned());
        parts.flat_map(|part| self.required(part)).chain(own).collect()
    }

    fn table(&mut self, schema: &Value, place: &str, defaults: &Value) {
        let required = self.required(schema);
        self.text.push_str("| field | is | unless said | |\n| --- | --- | --- | --- |\n");
        for (name, field) in self.fields(schema) {
            if name == "type" && field["enum"].is_array() {
                continue;
            }
            let is = self.shape(&field, &format!("{place}.{name}"));
            let default = match (&defaults[&name], &field["default"]) {
                _ if required.contains(&name) => "must be said".to_owned(),
                (Value::Null, Value::Null) => String::new(),
                (Value::Null, default) | (default, _) => shown_default(default),
            };
            let what = sentence(&described(&field));
            writeln!(self.text, "| `{name}` | {is} | {default} | {what} |").unwrap();
        }
    }

    /// What a value is, in words; objects get a table of their own.
    fn shape(&mut self, field: &Value, place: &str) -> String {
        if let Some(name) = referred(field) {
            return self.named(name, place);
        }
        if let Some(choices) = field["oneOf"].as_array() {
            let choices: Vec<Value> =
                choices.iter().filter(|choice| choice["type"] != "null").cloned().collect();
            let words: Vec<_> = choices.iter().map(|choice| self.shape(choice, place)).collect();
            return words.join(" or ");
        }
        let kinds = match &field["type"] {
            Value::Array(kinds) => kinds.iter().filter(|kind| *kind != "null").cloned().collect(),
            kind => vec![kind.clone()],
        };
        let items = &field["items"];
        match kinds.first().and_then(Value::as_str) {
            Some("array") => format!("list of {}", self.shape(items, &format!("{place}[]"))),
            Some("object") if field["additionalProperties"]["type"].is_string() => {
                let values = field["additionalProperties"].clone();
                format!("names with {}", self.shape(&values, place))
            }
            Some("string") => "text".to_owned(),
            Some("integer") => "whole number".to_owned(),
            Some("boolean") => "`true` or `false`".to_owned(),
            Some(kind) => kind.to_owned(),
            None => "anything".to_owned(),
        }
    }

    fn named(&mut self, name: &str, place: &str) -> String {
        let schema = self.schemas[name].clone();
        if let Some(words) = schema["enum"].as_array() {
            let words: Vec<_> =
                words.iter().map(|w| format!("`{}`", w.as_str().unwrap())).collect();
            return words.join(", ");
        }
        if let Some(object) = name.strip_suffix("OrWord") {
            return format!("a word or {}", self.named(object, place));
        }
        if schema["type"] == "string" {
            return "text".to_owned();
        }
        let place = place.trim_start_matches('.').replace("[]", "");
        if let Some(first) = self.known.get(name) {
            return format!("[as `{first}`](#{})", anchor(first));
        }
        self.known.insert(name.to_owned(), place.clone());
        self.waiting.push((name.to_owned(), place.clone()));
        format!("[object](#{})", anchor(&place))
    }
}

fn referred(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next())
}

/// What is said of a field; of one that may be left out, in its only choice.
fn described(field: &Value) -> Value {
    let choices = field["oneOf"].as_array().into_iter().flatten();
    let inner = choices.map(|choice| &choice["description"]).find(|said| said.is_string());
    inner.unwrap_or(&field["description"]).clone()
}

fn sentence(text: &Value) -> String {
    text.as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|")
}

fn shown_default(default: &Value) -> String {
    match default {
        Value::Object(fields) if fields.is_empty() => "empty".to_owned(),
        Value::Object(fields) => match fields.get("type") {
            Some(word) => format!("`{}`", word.as_str().unwrap()),
            None => String::new(),
        },
        Value::Array(items) if items.is_empty() => "empty".to_owned(),
        Value::String(word) if word.is_empty() => "empty".to_owned(),
        Value::String(word) => format!("`{word}`"),
        other => format!("`{other}`"),
    }
}

/// How a heading is linked to.
fn anchor(place: &str) -> String {
    place.replace('.', "")
}
