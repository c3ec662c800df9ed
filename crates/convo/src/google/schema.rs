//! Google's own kind of schema, a subset of OpenAPI's, as JSON Schema.

use crate::decode::{DecodeError, Path};
use crate::fields::camel_case;
use polar_wire::json::Node;
use serde_json::{Map, Value, json};

/// JSON Schema that says the same. What is not known is kept: it describes and forbids nothing.
pub(super) fn json_schema(schema: Node<'_>, at: &Path<'_>) -> Result<Value, DecodeError> {
    let mut out = Map::new();
    let mut nullable = false;
    let mut ordering = None;
    for (name, value) in at.object(schema)? {
        if value.is_null() && name != "default" {
            continue;
        }
        let at = at.field(&name);
        let name = camel_case(&name).into_owned();
        let (name, value) = match name.as_str() {
            "nullable" => {
                nullable = at.bool(&value)?;
                continue;
            }
            "propertyOrdering" => {
                ordering = Some(at.list(value)?);
                continue;
            }
            "type" => match type_name(value) {
                Some(kind) => (name, kind),
                None => continue,
            },
            "properties" => (name, each(value, &at)?),
            "defs" | "$defs" => ("$defs".to_owned(), each(value, &at)?),
            "ref" => ("$ref".to_owned(), value.into_value()),
            "items" => (name, json_schema(value, &at)?),
            "additionalProperties" if matches!(value, Node::Object(_)) => {
                (name, json_schema(value, &at)?)
            }
            "anyOf" => {
                let kinds = at.list(value)?.into_iter().enumerate();
                let kinds = kinds.map(|(i, kind)| json_schema(kind, &at.index(i)));
                (name, Value::Array(kinds.collect::<Result<_, _>>()?))
            }
            limit if is_limit(limit) => (name, number(value)),
            _ => (name, value.into_value()),
        };
        out.insert(name, value);
    }
    if let Some(ordering) = ordering {
        order_properties(&mut out, ordering);
    }
    if nullable {
        allow_null(&mut out);
    }
    Ok(Value::Object(out))
}

fn each(value: Node<'_>, at: &Path<'_>) -> Result<Value, DecodeError> {
    let mut out = Map::new();
    for (name, value) in at.object(value)? {
        let schema = json_schema(value, &at.field(&name))?;
        out.insert(name.into_owned(), schema);
    }
    Ok(Value::Object(out))
}

/// Types are spelled in capitals. One that is not specified says nothing.
fn type_name(value: Node<'_>) -> Option<Value> {
    match value {
        Node::Text(name) if name == "TYPE_UNSPECIFIED" => None,
        Node::Text(name) => Some(Value::String(name.to_ascii_lowercase())),
        other => Some(other.into_value()),
    }
}

fn is_limit(name: &str) -> bool {
    matches!(
        name,
        "minItems" | "maxItems" | "minLength" | "maxLength" | "minProperties" | "maxProperties"
    )
}

/// This API writes 64-bit numbers as strings.
fn number(value: Node<'_>) -> Value {
    let whole = value.as_str().and_then(|text| text.parse::<u64>().ok());
    whole.map_or_else(|| value.into_value(), Value::from)
}

/// Puts properties in the order asked for; an order that names others is kept as it is.
fn order_properties(schema: &mut Map<String, Value>, ordering: Vec<Node<'_>>) {
    let known = |properties: &Map<String, Value>| {
        ordering.iter().all(|name| name.as_str().is_some_and(|n| properties.contains_key(n)))
    };
    let Some(Value::Object(properties)) =
        schema.get_mut("properties").filter(|p| p.as_object().is_some_and(known))
    else {
        let ordering = ordering.into_iter().map(Node::into_value).collect();
        schema.insert("propertyOrdering".to_owned(), Value::Array(ordering));
        return;
    };
    let mut unordered = std::mem::take(properties);
    for name in ordering.iter().filter_map(Node::as_str) {
        if let Some(property) = unordered.shift_remove(name) {
            properties.insert(name.to_owned(), property);
        }
    }
    properties.append(&mut unordered);
}

fn allow_null(schema: &mut Map<String, Value>) {
    match schema.get_mut("type") {
        Some(kind @ Value::String(_)) => *kind = json!([kind, "null"]),
        Some(Value::Array(kinds)) if !kinds.contains(&json!("null")) => kinds.push(json!("null")),
        _ => {}
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
    if let Some(Value::Array(kinds)) = schema.get_mut("anyOf") {
        kinds.push(json!({"type": "null"}));
    }
}
