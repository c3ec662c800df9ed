//! The tools offered, and which of them may or must be called.

use super::decode::named_value;
use super::schema::json_schema;
use crate::decode::{DecodeError, Losses, Path};
use crate::fields::camel_case;
use crate::loss::LossKind;
use crate::{Tool, ToolChoice};
use polar_wire::json::Node;
use serde_json::Map;

pub(super) fn tools(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Vec<Tool>, DecodeError> {
    let items = match value {
        Node::Object(_) => vec![value],
        other => at.list(other)?,
    };
    let mut tools = Vec::new();
    for (i, item) in items.into_iter().enumerate() {
        let at = at.index(i);
        for (name, value) in at.object(item)? {
            let at = at.field(&name);
            match camel_case(&name).as_ref() {
                _ if value.is_null() => {}
                "functionDeclarations" => {
                    tools.extend(at.each(value, |item, at| declaration(item, at, losses))?);
                }
                _ => {
                    return Err(at.error(
                        "is a tool that Google's servers run, and is not served here",
                        "offer functionDeclarations, or switch this tool of the harness off",
                    ));
                }
            }
        }
    }
    Ok(tools)
}

fn declaration(value: Node<'_>, at: &Path<'_>, losses: &mut Losses) -> Result<Tool, DecodeError> {
    let mut fields = at.fields_in_either_case(value)?;
    let name = fields.string("name")?;
    if name.is_empty() {
        return Err(at.field("name").missing("name the function"));
    }
    let description = fields.optional_string("description")?;
    let parameters = fields.optional("parameters", json_schema)?;
    let other_schema = fields.optional("parametersJsonSchema", |schema, at| match parameters {
        None => Ok(Node::Object(at.object(schema)?).into_value()),
        Some(_) => Err(at.error(
            "is a second schema of the same function",
            "send parameters or parametersJsonSchema",
        )),
    })?;
    fields.optional("behavior", |behavior, at| {
        if !behavior.is_text("BLOCKING") && !behavior.is_text("UNSPECIFIED") {
            losses.note(LossKind::ToolFieldDropped, at);
        }
        Ok(())
    })?;
    fields.note_unread_as(LossKind::ToolFieldDropped, losses);
    let parameters = parameters.or(other_schema).unwrap_or_default();
    Ok(Tool { name, description, parameters, rest: Map::new() })
}

/// `functionCallingConfig`, before the tools are known.
#[derive(Default)]
pub(super) struct CallingConfig {
    mode: Option<String>,
    allowed: Vec<String>,
}

pub(super) fn tool_config(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<CallingConfig, DecodeError> {
    let mut fields = at.fields_in_either_case(value)?;
    let calling =
        fields.optional("functionCallingConfig", |value, at| calling_config(value, at, losses))?;
    fields.note_unread(losses);
    Ok(calling.unwrap_or_default())
}

fn calling_config(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<CallingConfig, DecodeError> {
    let mut fields = at.fields_in_either_case(value)?;
    let mode = fields.optional("mode", named_value)?.flatten();
    let allowed = fields
        .optional("allowedFunctionNames", |names, at| at.each(names, |name, at| at.string(name)))?;
    // Calls are told whole, which a client that asks for pieces takes too.
    fields.optional("streamFunctionCallArguments", |streams, at| {
        if streams != Node::Bool(false) {
            losses.note(LossKind::UnknownFieldIgnored, at);
        }
        Ok(())
    })?;
    fields.note_unread(losses);
    Ok(CallingConfig { mode, allowed: allowed.unwrap_or_default() })
}

impl CallingConfig {
    /// The choice, in the words engines know: they can be told one function or any, not some.
    pub(super) fn resolve(
        self,
        tools: &[Tool],
        root: &Path<'_>,
        losses: &mut Losses,
    ) -> Result<Option<ToolChoice>, DecodeError> {
        let config = root.field("toolConfig");
        let at = config.field("functionCallingConfig");
        let allowed_at = at.field("allowedFunctionNames");
        let offered = |name: &str| tools.iter().any(|tool| tool.name == name);
        if let Some(name) = self.allowed.iter().find(|name| !offered(name)) {
            return Err(allowed_at.error(
                format!("names {name:?}, which is not offered"),
                "offer it in `tools` or leave it out",
            ));
        }
        let is_allowed = |tool: &Tool| self.allowed.contains(&tool.name);
        let all = self.allowed.is_empty() || tools.iter().all(is_allowed);
        match (self.mode.as_deref(), self.allowed.as_slice()) {
            (None, []) => Ok(None),
            (Some("AUTO"), []) => Ok(Some(ToolChoice::Auto)),
            (Some("NONE"), []) => Ok(Some(ToolChoice::None)),
            (Some("ANY"), _) if tools.is_empty() => Err(at
                .field("mode")
                .error("asks for a call, but no function is offered", "offer one or send AUTO")),
            (Some("ANY"), [name]) => Ok(Some(ToolChoice::Named(name.clone()))),
            (Some("ANY"), _) if all => Ok(Some(ToolChoice::Required)),
            (Some("VALIDATED"), _) if all => {
                losses.note(LossKind::ToolCheckIgnored, &at.field("mode"));
                Ok(Some(ToolChoice::Auto))
            }
            (None | Some("AUTO" | "NONE"), _) => {
                Err(allowed_at.error("needs mode ANY", "send ANY or leave the names out"))
            }
            (Some("ANY" | "VALIDATED"), _) => Err(allowed_at.error(
                "allows some of the functions, but engines can be told one or all",
                "offer only these functions, or allow one or all",
            )),
            (Some(other), _) => Err(at
                .field("mode")
                .error(format!("is {other:?}"), "send AUTO, ANY, VALIDATED or NONE")),
        }
    }
}
