//! Structured output, in the words engines know.

use crate::decode::{DecodeError, Losses, Path};
use polar_wire::json::Node;
use serde_json::{Map, Value, json};

/// Reads the form of a reply's text, as Responses and Messages say it. Messages has no names and
/// is always strict. None for plain text.
pub(crate) fn response_format(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Option<Value>, DecodeError> {
    let mut fields = at.fields(value)?;
    let format = match fields.kind("json_schema")?.as_str() {
        "text" => None,
        "json_object" => Some(json!({"type": "json_object"})),
        "json_schema" => {
            let mut schema = Map::new();
            let name = fields.optional_string("name")?;
            let strict = fields.remove("strict").map(Node::into_value);
            let strict = strict.or(name.is_none().then_some(Value::Bool(true)));
            schema.insert("name".into(), name.unwrap_or_else(|| "output".to_owned()).into());
            let description = fields.remove("description").map(Node::into_value);
            schema.extend(description.map(|text| ("description".to_owned(), text)));
            schema.insert("schema".into(), fields.take("schema")?.into_value());
            schema.extend(strict.map(|strict| ("strict".to_owned(), strict)));
            Some(json!({"type": "json_schema", "json_schema": schema}))
        }
        other => {
            return Err(at.field("type").error(
                format!("is {other:?}"),
                "send \"text\", \"json_object\" or \"json_schema\"",
            ));
        }
    };
    fields.note_unread(losses);
    Ok(format)
}
