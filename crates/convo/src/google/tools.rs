//! The tools offered, and which of them may or must be called.

use super::decode::{camel_case, named_value};
use super::schema::json_schema;
use crate::decode::{DecodeError, Losses, Path};
use crate::loss::LossKind;
use crate::{Tool, ToolChoice};
use polar_wire::json::{Fields, Node};
use serde_json::{Map, Value};

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
                    for (i, item) in at.list(value)?.into_iter().enumerate() {
                        let at = at.index(i);
                        tools.push(declaration(at.object(item)?, &at, losses)?);
                    }
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

fn declaration(
    fields: Fields<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Tool, DecodeError> {
    let mut tool =
        Tool { name: String::new(), description: None, parameters: Value::Null, rest: Map::new() };
    for (name, value) in fields {
        if value.is_null() {
            continue;
        }
        let at = at.field(&name);
        let parameters = match camel_case(&name).as_ref() {
            "name" => {
                tool.name = at.string(value)?;
                continue;
            }
            "description" => {
                tool.description = Some(at.string(value)?);
                continue;
            }
            "parameters" => json_schema(value, &at)?,
            "parametersJsonSchema" => Node::Object(at.object(value)?).into_value(),
            "behavior" if value.is_text("BLOCKING") || value.is_text("UNSPECIFIED") => continue,
            _ => {
                losses.note(LossKind::ToolFieldDropped, &at);
                continue;
            }
        };
        if !std::mem::replace(&mut tool.parameters, parameters).is_null() {
            return Err(at.error(
                "is a second schema of the same function",
                "send parameters or parametersJsonSchema",
            ));
        }
    }
    if tool.name.is_empty() {
        return Err(at.field("name").missing("name the function"));
    }
    Ok(tool)
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
    let mut calling = CallingConfig::default();
    for (name, value) in at.object(value)? {
        let at = at.field(&name);
        match camel_case(&name).as_ref() {
            _ if value.is_null() => {}
            "functionCallingConfig" => {
                for (name, value) in at.object(value)? {
                    let at = at.field(&name);
                    match camel_case(&name).as_ref() {
                        _ if value.is_null() => {}
                        "mode" => calling.mode = named_value(value, &at)?,
                        "allowedFunctionNames" => {
                            for (i, item) in at.list(value)?.into_iter().enumerate() {
                                calling.allowed.push(at.index(i).string(item)?);
                            }
                        }
                        // Calls are told whole, which a client that asks for pieces takes too.
                        "streamFunctionCallArguments" if value == Node::Bool(false) => {}
                        _ => losses.note(LossKind::UnknownFieldIgnored, &at),
                    }
                }
            }
            _ => losses.note(LossKind::UnknownFieldIgnored, &at),
        }
    }
    Ok(calling)
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
