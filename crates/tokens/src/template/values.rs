//! Values as Python has them: dicts with methods, and how each kind is printed.

use crate::python_json;
use minijinja::value::{DynObject, Enumerator, Kwargs, Object, ObjectRepr, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use serde::ser::{Error as _, SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// What a JSON value is to a template.
pub(super) fn from_json(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(from_json).collect(),
        serde_json::Value::Object(map) => {
            let pairs = map.iter().map(|(key, value)| (key.as_str(), from_json(value)));
            Value::from_object(Dict(pairs.collect()))
        }
    }
}

/// A float that Python writes with an exponent and minijinja without one.
#[derive(Debug)]
struct Exponential(f64);

impl Object for Exponential {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&python_json::float(self.0))
    }
}

fn float(number: f64) -> Value {
    match python_json::float(number).contains('e') {
        true => Value::from_object(Exponential(number)),
        false => Value::from(number),
    }
}

/// The number that a value is as a float.
pub(super) fn as_float(value: &Value) -> Option<f64> {
    match value.downcast_object_ref::<Exponential>() {
        Some(float) => Some(float.0),
        None if value.kind() == ValueKind::Number => f64::try_from(value.clone()).ok(),
        None => None,
    }
}

/// Whether this is a float.
pub(super) fn is_float(value: &Value) -> bool {
    as_float(value).is_some() && !value.is_integer()
}

/// A JSON object that behaves as a dict does in Jinja: attributes are its methods first, then
/// its keys; items are its keys first, then its methods.
///
/// It is an iterable of keys to minijinja, whose `in` would take a method for a key otherwise.
#[derive(Debug)]
pub(super) struct Dict(Value);

impl Dict {
    fn object(&self) -> Option<&DynObject> {
        self.0.as_object()
    }

    fn key(&self, key: &Value) -> Option<Value> {
        self.object()?.get_value(key)
    }

    fn method(self: &Arc<Self>, name: &str) -> Option<Value> {
        let name = DICT_ATTRIBUTES.iter().find(|known| **known == name)?;
        Some(Value::from_object(BoundMethod {
            dict: Value::from_dyn_object(Arc::clone(self)),
            name,
        }))
    }
}

const DICT_ATTRIBUTES: [&str; 11] = [
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    // Always some: for want of a value minijinja would take a number for a position.
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let method = || self.method(key.as_str()?);
        Some(self.key(key).or_else(method).unwrap_or(Value::UNDEFINED))
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.method(key).or_else(|| self.object()?.get_value_by_str(key))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match self.object().and_then(DynObject::try_iter) {
            Some(keys) => Enumerator::Values(keys.collect()),
            None => Enumerator::Empty,
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.0.len()
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        Some(self.0.cmp(&other.downcast_ref::<Self>()?.0))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&repr(&Value::from_dyn_object(Arc::clone(self))))
    }
}

/// A dict's method that is not called yet.
#[derive(Debug)]
struct BoundMethod {
    dict: Value,
    name: &'static str,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        call(&self.dict, self.name, args)
    }
}

/// Whether this is a dict's method, not called.
pub(super) fn is_method(value: &Value) -> bool {
    value.downcast_object_ref::<BoundMethod>().is_some()
}

/// Keys and values of a dict.
pub(super) fn pairs(value: &Value) -> Option<Vec<(Value, Value)>> {
    let map = value.downcast_object_ref::<Dict>().map_or(value, |dict| &dict.0);
    match map.kind() {
        ValueKind::Map => Some(map.as_object()?.try_iter_pairs()?.collect()),
        _ => None,
    }
}

/// Whether this is a dict.
pub(super) fn is_mapping(value: &Value) -> bool {
    value.kind() == ValueKind::Map || value.downcast_object_ref::<Dict>().is_some()
}

/// Calls a method of a dict or list.
pub(super) fn call(value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match pairs(value) {
        Some(pairs) => call_on_dict(value, pairs, name, args),
        None if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) => {
            call_on_list(value, name, args)
        }
        None => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn call_on_dict(
    dict: &Value,
    pairs: Vec<(Value, Value)>,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match name {
        "get" => {
            let (key, default): (Value, Option<Value>) = from_args(args)?;
            let found = pairs.into_iter().find(|(known, _)| *known == key);
            return Ok(found.map(|(_, value)| value).or(default).unwrap_or(Value::from(())));
        }
        "clear" | "pop" | "popitem" | "setdefault" | "update" => return Err(immutable(name)),
        _ => {}
    }
    let () = from_args(args)?;
    match name {
        "items" => Ok(pairs.into_iter().map(pair).collect()),
        "keys" => Ok(pairs.into_iter().map(|(key, _)| key).collect()),
        "values" => Ok(pairs.into_iter().map(|(_, value)| value).collect()),
        "copy" => Ok(dict.clone()),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// A pair as templates unpack it.
pub(super) fn pair((key, value): (Value, Value)) -> Value {
    Value::from(vec![key, value])
}

fn call_on_list(list: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "count" => {
            let (wanted,): (Value,) = from_args(args)?;
            Ok(list.try_iter()?.filter(|item| *item == wanted).count().into())
        }
        "index" => {
            let (wanted,): (Value,) = from_args(args)?;
            let position = list.try_iter()?.position(|item| item == wanted);
            position.map(Value::from).ok_or_else(|| invalid("the list has no such item".to_owned()))
        }
        "copy" => Ok(list.clone()),
        "append" | "clear" | "extend" | "insert" | "pop" | "remove" | "reverse" | "sort" => {
            Err(immutable(name))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// `value[start:stop:step]`.
pub(super) fn slice(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (start, stop, step): (Option<i64>, Option<i64>, Option<i64>) = from_args(args)?;
    let step = step.unwrap_or(1);
    let items: Vec<Value> = match value.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Iterable if !is_mapping(value) => {
            value.try_iter()?.collect()
        }
        kind => return Err(invalid(format!("a {kind} cannot be sliced"))),
    };
    if step == 0 {
        return Err(invalid("a slice's step cannot be zero".to_owned()));
    }
    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let place = |at: i64| if at < 0 { at.saturating_add(length) } else { at }.clamp(low, high);
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (mut at, stop) = (start.map_or(first, place), stop.map_or(last, place));
    let mut taken = Vec::new();
    while if step > 0 { at < stop } else { at > stop } {
        taken.extend(usize::try_from(at).ok().and_then(|at| items.get(at)).cloned());
        at = at.saturating_add(step);
    }
    match value.kind() {
        ValueKind::String => Ok(taken.iter().map(to_text).collect::<String>().into()),
        _ => Ok(Value::from(taken)),
    }
}

fn immutable(name: &str) -> Error {
    invalid(format!("templates may not change values, as `{name}` does"))
}

pub(super) fn invalid(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// Python's `str` of a value, which is also how Jinja prints it.
pub(super) fn to_text(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None if value.is_undefined() => String::new(),
        None => repr(value),
    }
}

/// Python's `repr` of a value.
fn repr(value: &Value) -> String {
    if let Some(text) = value.as_str() {
        return repr_text(text);
    }
    if let Some(pairs) = pairs(value) {
        let items = pairs.iter().map(|(key, value)| format!("{}: {}", repr(key), repr(value)));
        return format!("{{{}}}", items.collect::<Vec<_>>().join(", "));
    }
    match value.kind() {
        ValueKind::Undefined => "Undefined".to_owned(),
        ValueKind::Number => number(value),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter().into_iter().flatten().map(|item| repr(&item));
            format!("[{}]", items.collect::<Vec<_>>().join(", "))
        }
        _ => value.to_string(),
    }
}

fn number(value: &Value) -> String {
    match as_float(value).filter(|_| is_float(value)) {
        None => value.to_string(),
        Some(f64::INFINITY) => "inf".to_owned(),
        Some(f64::NEG_INFINITY) => "-inf".to_owned(),
        Some(float) if float.is_nan() => "nan".to_owned(),
        Some(float) => python_json::float(float),
    }
}

fn repr_text(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match (c, u32::from(c)) {
            ('\n', _) => out.push_str("\\n"),
            ('\r', _) => out.push_str("\\r"),
            ('\t', _) => out.push_str("\\t"),
            ('\\', _) => out.push_str("\\\\"),
            (c, _) if c == quote => out.extend(['\\', c]),
            (c, _) if is_printable(c) => out.push(c),
            (_, code @ ..0x100) => out.push_str(&format!("\\x{code:02x}")),
            (_, code @ ..0x1_0000) => out.push_str(&format!("\\u{code:04x}")),
            (_, code) => out.push_str(&format!("\\U{code:08x}")),
        }
    }
    out.push(quote);
    out
}

/// As `str.isprintable`, which the standard library's debug form agrees with inside a text.
fn is_printable(c: char) -> bool {
    c != '\0' && !format!("a{c}").escape_debug().skip(1).collect::<String>().starts_with("\\u")
}

/// `tojson`, with the arguments that `transformers` gives it.
pub(super) fn tojson(value: &Value, args: Kwargs) -> Result<String, Error> {
    let indent = match args.get::<Option<Value>>("indent")? {
        Some(indent) => match (indent.as_str(), indent.as_usize()) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Some(width)) => Some(" ".repeat(width)),
            (None, None) if indent.is_none() => None,
            (None, None) => return Err(invalid("tojson: indent is no number".to_owned())),
        },
        None => None,
    };
    let mut spelling = python_json::Spelling {
        ensure_ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        ..python_json::Spelling::default()
    };
    if indent.is_some() {
        spelling.item_separator = ",".to_owned();
    }
    spelling.indent = indent;
    if let Some(separators) = args.get::<Option<Value>>("separators")?.filter(|s| !s.is_none()) {
        spelling.item_separator = to_text(&separators.get_item_by_index(0)?);
        spelling.key_separator = to_text(&separators.get_item_by_index(1)?);
    }
    let sort_keys = args.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    args.assert_all_used()?;
    python_json::dumps_as(&Json { value, sort_keys }, &spelling)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// A template's value as `json.dumps` takes it apart.
struct Json<'a> {
    value: &'a Value,
    sort_keys: bool,
}

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { value, sort_keys } = *self;
        if let Some(mut pairs) = pairs(value) {
            if sort_keys {
                pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
            }
            let mut map = serializer.serialize_map(Some(pairs.len()))?;
            for (key, value) in &pairs {
                map.serialize_entry(&json_key(key), &Json { value, sort_keys })?;
            }
            return map.end();
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter().map_err(S::Error::custom)?.collect();
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for value in &items {
                    list.serialize_element(&Json { value, sort_keys })?;
                }
                list.end()
            }
            ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::String => {
                value.serialize(serializer)
            }
            _ if let Some(float) = as_float(value) => serializer.serialize_f64(float),
            kind => Err(S::Error::custom(format!("a {kind} value is not JSON serializable"))),
        }
    }
}

/// Keys are texts in JSON, and Python spells what else may be one.
fn json_key(key: &Value) -> String {
    match key.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => key.to_string().to_lowercase(),
        _ => to_text(key),
    }
}
