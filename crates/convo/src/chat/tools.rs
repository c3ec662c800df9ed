//! The tools of a Chat request, also in the form `functions` that came before them.

use crate::decode::{DecodeError, Losses, Path, tool_choice_word};
use crate::loss::LossKind;
use crate::{Tool, ToolChoice};
use polar_wire::json::Node;
use serde_json::{Map, Value};

pub(super) fn tools(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Vec<Tool>, DecodeError> {
    at.each(value, |item, at| {
        let mut fields = at.fields(item)?;
        fields.drop_cache_mark(losses);
        fields.only_kind("function", "send tools of type \"function\", which engines can call")?;
        let tool = fields.required("function", function)?;
        fields.note_unread_as(LossKind::ToolFieldDropped, losses);
        Ok(tool)
    })
}

pub(super) fn functions(value: Node<'_>, at: &Path<'_>) -> Result<Vec<Tool>, DecodeError> {
    at.each(value, function)
}

fn function(value: Node<'_>, at: &Path<'_>) -> Result<Tool, DecodeError> {
    let mut tool =
        Tool { name: String::new(), description: None, parameters: Value::Null, rest: Map::new() };
    for (name, value) in at.object(value)? {
        let at = at.field(&name);
        match name.as_ref() {
            _ if value.is_null() => {}
            "name" => tool.name = at.string(value)?,
            "description" => tool.description = Some(at.string(value)?),
            "parameters" => tool.parameters = Node::Object(at.object(value)?).into_value(),
            _ => {
                tool.rest.insert(name.into_owned(), value.into_value());
            }
        }
    }
    if tool.name.is_empty() {
        return Err(at.field("name").missing("name the function"));
    }
    Ok(tool)
}

pub(super) fn tool_choice(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<ToolChoice, DecodeError> {
    const MEND: &str = "send \"auto\", \"none\", \"required\" or \
                        {\"type\":\"function\",\"function\":{\"name\":…}}";
    if !matches!(value, Node::Object(_)) {
        return tool_choice_word(&value, at, MEND);
    }
    let mut fields = at.fields(value)?;
    fields.only_kind("function", MEND)?;
    let chosen = fields.optional("function", |function, at| named(function, at, losses))?;
    fields.note_unread(losses);
    chosen.ok_or_else(|| at.field("function").missing(MEND))
}

/// `function_call`, which chooses among `functions`.
pub(super) fn function_choice(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<ToolChoice, DecodeError> {
    match value.as_str() {
        Some("auto") => Ok(ToolChoice::Auto),
        Some("none") => Ok(ToolChoice::None),
        Some(_) => Err(at.error(format!("is {value}"), "send \"auto\", \"none\" or {\"name\":…}")),
        None => named(value, at, losses),
    }
}

fn named(value: Node<'_>, at: &Path<'_>, losses: &mut Losses) -> Result<ToolChoice, DecodeError> {
    let mut fields = at.fields(value)?;
    let name = fields.string("name")?;
    fields.note_unread(losses);
    Ok(ToolChoice::Named(name))
}
