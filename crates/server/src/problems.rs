//! Finding every wrong field of a body, not only the first.
//!
//! serde stops at the first error. Here the offending field is noted and taken out (or, when
//! it is missing, put in from an example), and the rest is read again, until it reads.

mod tagged;

use crate::error::ApiError;
use crate::examples;
use polar_types::{ErrorClass, FieldProblem, Known, TaskId, TaskRequest, TaskSpec};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};
use std::collections::BTreeSet;

/// No body has more problems than anyone would read.
const MOST: usize = 50;

/// What was read of a value, and what was wrong with it. The value is there even when
/// problems were found, as long as the rest made sense.
pub(crate) struct Read<T> {
    pub(crate) value: Option<T>,
    pub(crate) problems: Vec<FieldProblem>,
}

/// The body as JSON.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let what = if bytes.iter().all(u8::is_ascii_whitespace) {
            "is empty; it must be JSON".to_owned()
        } else {
            format!("is not JSON: {error}")
        };
        ApiError::field("body", what, examples::SMALLEST_TASK)
    })
}

/// A parameter of the query string that cannot be read, from what axum says of it.
pub(crate) fn in_query(said: &str) -> ApiError {
    let said = said.strip_prefix("Failed to deserialize query string: ").unwrap_or(said);
    let named = said.split_once(": ").filter(|(name, _)| !name.contains([' ', '`']));
    let Some((name, what)) = named else {
        return ApiError::new(ErrorClass::Invalid, format!("query string: {said}"));
    };
    match what {
        "invalid digit found in string"
        | "cannot parse integer from empty string"
        | "number too large to fit in target type" => {
            ApiError::field(name, "must be a whole number of 0 or more", "0")
        }
        "invalid float literal" | "cannot parse float from empty string" => {
            ApiError::field(name, "must be a number", "1.5")
        }
        _ if what.starts_with("unknown variant") => {
            let example = what.split('`').nth(3).unwrap_or_default();
            ApiError::field(name, in_words(what), &format!("{example:?}"))
        }
        _ => ApiError::field(name, in_words(what), "\"…\""),
    }
}

/// Reads a checked task, with all problems of shape and of values together.
pub(crate) fn read_task(
    value: Value,
    prefix: &str,
    minted: TaskId,
    known: &Known,
) -> Result<(TaskRequest, TaskSpec), Vec<FieldProblem>> {
    let example = examples::task();
    let Read { value, mut problems } = read::<TaskRequest>(value, &example, prefix);
    let Some(request) = value else { return Err(problems) };
    match request.clone().resolve(minted, known) {
        Ok(spec) if problems.is_empty() => Ok((request, spec)),
        Ok(_) => Err(problems),
        Err(found) => {
            let found = found.into_iter().map(|problem| FieldProblem {
                field: format!("{prefix}{}", problem.field),
                ..problem
            });
            // What was taken out or put in above is no second problem.
            let news: Vec<_> = found
                .filter(|new| !problems.iter().any(|old| related(&old.field, &new.field)))
                .collect();
            problems.extend(news);
            Err(problems)
        }
    }
}

fn related(one: &str, other: &str) -> bool {
    let within = |inner: &str, outer: &str| {
        inner
            .strip_prefix(outer)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    within(one, other) || within(other, one)
}

/// Reads a value and finds what is wrong with it.
pub(crate) fn read<T: DeserializeOwned>(
    mut value: Value,
    example: &Value,
    prefix: &str,
) -> Read<T> {
    let mut problems: Vec<FieldProblem> = Vec::new();
    if !value.is_object() {
        let what = format!("must be a JSON object, not {}", kind(&value));
        problems.push(examples::problem(example, prefix, (None, ""), what));
        return Read { value: None, problems };
    }
    let mut removed = RemovedItems::default();
    let mut readings_left = None;
    while problems.len() < MOST {
        let error = match serde_path_to_error::deserialize::<_, T>(&value) {
            Ok(read) => return Read { value: Some(read), problems },
            Err(error) => error,
        };
        let message = error.inner().to_string();
        let left = readings_left.get_or_insert_with(|| tagged::affordable_readings(&value));
        let said_of = steps_of(error.path());
        let steps = tagged::way_to_culprit(&value, &said_of, &message, left, |body| {
            let error = serde_path_to_error::deserialize::<_, T>(body).err()?;
            Some((steps_of(error.path()), error.inner().to_string()))
        });
        let mut fault = Fault::of(steps, &message);
        let field = removed.field(&fault.steps);
        if message == NO_TYPE && field != "runtime.type" {
            // Which there are is said of one that nobody knows.
            if mend(&mut value, &fault.steps, Some(Value::String(String::new()))) {
                continue;
            }
            break;
        }
        fault.what.push_str(hint(&field, &message));
        if is_unknown_shape(&field, &message) {
            fault.steps.pop();
        }
        let kind = kind_around(&value, &fault.steps);
        let named =
            examples::problem(example, prefix, (kind.as_deref(), field.as_str()), &fault.what);
        if !problems.iter().any(|old| related(&old.field, &named.field)) {
            problems.push(named);
        }
        let stand_in = match fault.cure {
            Cure::Remove => None,
            Cure::Insert => examples::value_for(example, kind.as_deref(), &field),
        };
        let is_removed = stand_in.is_none();
        if !mend(&mut value, &fault.steps, stand_in) {
            break;
        }
        if is_removed {
            removed.note(&fault.steps);
        }
    }
    Read { value: None, problems }
}

/// What serde says of an object whose `type` would say its shape.
const NO_TYPE: &str = "missing field `type`";

/// What else to know about a problem; it continues a sentence.
fn hint(field: &str, message: &str) -> &'static str {
    let is_step = field.contains(".prepare[") || field.contains(".setup[");
    match message.starts_with("unknown variant") && field.ends_with(".type") && is_step {
        true => "; `upload` is for task files, where the polar command puts the files in its place",
        false => "",
    }
}

/// Whether the field is a word for the shape of its object that nobody knows, so that nothing
/// of the object can be read. A runtime has the same fields whatever its type is.
fn is_unknown_shape(field: &str, message: &str) -> bool {
    message.starts_with("unknown variant") && field.ends_with(".type") && field != "runtime.type"
}

/// One error of serde, understood.
struct Fault {
    steps: Vec<Step>,
    what: String,
    cure: Cure,
}

enum Cure {
    Remove,
    Insert,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Key(String),
    Index(usize),
}

fn steps_of(path: &Path) -> Vec<Step> {
    let step = |segment: &Segment| match segment {
        Segment::Seq { index } => Some(Step::Index(*index)),
        Segment::Map { key } => Some(Step::Key(key.clone())),
        Segment::Enum { .. } | Segment::Unknown => None,
    };
    path.iter().filter_map(step).collect()
}

impl Fault {
    fn of(mut steps: Vec<Step>, message: &str) -> Self {
        let mut quoted = message.split('`').skip(1).step_by(2);
        if message.starts_with("unknown field") {
            let name = quoted.next().unwrap_or_default();
            let what = unknown_field(name, quoted);
            // A tagged object is read as a whole, so the path may end before the name.
            if steps.last() != Some(&Step::Key(name.to_owned())) {
                steps.push(Step::Key(name.to_owned()));
            }
            return Self { steps, what, cure: Cure::Remove };
        }
        if message.starts_with("missing field") {
            steps.push(Step::Key(quoted.next().unwrap_or_default().to_owned()));
            return Self { steps, what: "is missing".to_owned(), cure: Cure::Insert };
        }
        Self { steps, what: in_words(message), cure: Cure::Remove }
    }
}

/// Items taken out of arrays so far, so that the others keep the numbers that the client gave
/// them.
#[derive(Default)]
struct RemovedItems {
    /// The array's name and the item's first number.
    items: BTreeSet<(String, usize)>,
}

impl RemovedItems {
    /// Notes that the value at the end of the way was taken out.
    fn note(&mut self, way: &[Step]) {
        if let Some((Step::Index(index), array)) = way.split_last() {
            let array = self.field(array);
            let first = self.first_number(&array, *index);
            self.items.insert((array, first));
        }
    }

    /// The name of the value at the end of the way, in the client's numbers.
    fn field(&self, way: &[Step]) -> String {
        way.iter().fold(String::new(), |path, step| match step {
            Step::Key(key) if path.is_empty() => key.clone(),
            Step::Key(key) => format!("{path}.{key}"),
            Step::Index(index) => format!("{path}[{}]", self.first_number(&path, *index)),
        })
    }

    fn first_number(&self, array: &str, index: usize) -> usize {
        let gone = self.items.iter().filter(|(name, _)| name == array);
        gone.fold(index, |number, (_, gone)| if *gone <= number { number + 1 } else { number })
    }
}

fn unknown_field<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    let nearest = known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), *candidate))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((likeness, candidate)) if likeness > 0.75 => {
            format!("is not a field; did you mean `{candidate}`?")
        }
        _ if known.is_empty() => "is not a field; there are none here".to_owned(),
        _ => format!("is not a field; there are {}", known.join(", ")),
    }
}

/// serde speaks of Rust's types; clients know JSON's.
fn in_words(message: &str) -> String {
    let found = ["invalid type: ", "invalid value: ", "unknown variant "];
    let message = found.iter().find_map(|p| message.strip_prefix(p)).unwrap_or(message);
    if let Some(known) = message.strip_prefix("``, expected ") {
        return format!("is missing; must be {known}");
    }
    let Some((found, expected)) = message.rsplit_once(", expected ") else {
        return message.to_owned();
    };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" => "a whole number of 0 or more",
        "i8" | "i16" | "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a map" | "struct variant" => "an object",
        "map with a single key" => "an object with one field, whose name says which it is",
        "a sequence" => "an array",
        other if other.starts_with("struct ") => "an object",
        other if other.starts_with("internally tagged enum ") => {
            "an object whose `type` says what it is"
        }
        other => other,
    };
    let found = match found {
        "unit variant" => "a word alone",
        "map" => "an object",
        "sequence" => "an array",
        other => other,
    };
    format!("must be {expected}, not {found}")
}

/// Takes the field out, or puts the stand-in there. False when nothing could be done.
fn mend(value: &mut Value, steps: &[Step], stand_in: Option<Value>) -> bool {
    let Some((last, way)) = steps.split_last() else { return false };
    match (follow(value, way), last, stand_in) {
        (Some(Value::Object(fields)), Step::Key(key), Some(stand_in)) => {
            fields.insert(key.clone(), stand_in).is_none()
        }
        (Some(Value::Object(fields)), Step::Key(key), None) => {
            let before = fields.len();
            fields.retain(|name, _| name != key);
            fields.len() < before
        }
        (Some(Value::Array(items)), Step::Index(index), None) if *index < items.len() => {
            items.remove(*index);
            true
        }
        _ => false,
    }
}

/// The `type` of the innermost object around the end of the way that says one.
fn kind_around(value: &Value, steps: &[Step]) -> Option<String> {
    let mut kind = None;
    let mut node = value;
    for step in steps {
        kind = node.get("type").and_then(Value::as_str).or(kind);
        node = match step {
            Step::Key(key) => node.get(key)?,
            Step::Index(index) => node.get(index)?,
        };
    }
    kind.map(str::to_owned)
}

fn follow<'a>(value: &'a mut Value, way: &[Step]) -> Option<&'a mut Value> {
    way.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get_mut(key),
        Step::Index(index) => value.get_mut(index),
    })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
