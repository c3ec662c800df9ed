//! generateContent requests to [`Request`].
//!
//! Engines do not speak this dialect, so each field is translated, is a label kept for the
//! record, is written down as a loss, or is refused. As with Google's servers every field may be
//! spelled in camel case or in snake case. Which model is asked for, and whether as a
//! stream, stands in the address: the caller puts it into the request.

use super::contents;
use super::generation::generation_config;
use super::tools::{CallingConfig, tool_config, tools};
use crate::decode::{DecodeError, Losses, Path};
use crate::fields::camel_case;
use crate::loss::LossKind;
use crate::{Dialect, Request, Role};
use polar_wire::json::{Fields, Node};

/// Labels without effect on what is sampled.
const LABELS: &[&str] = &["labels", "serviceTier", "store"];

/// Reads a generation request.
pub(crate) fn decode(body: Fields<'_>) -> Result<Request, DecodeError> {
    let root = Path::Root;
    let request = read(body, &root)?;
    if request.messages.last().is_some_and(|message| message.role == Role::Assistant) {
        return Err(root.field("contents").error(
            "end with a model content, but engines begin a new turn instead of going on with it",
            "end with a user content",
        ));
    }
    Ok(request)
}

/// Reads the question how many tokens a prompt has: contents alone, or a whole request.
pub(crate) fn decode_count(body: Fields<'_>) -> Result<Request, DecodeError> {
    let root = Path::Root;
    let whole = |name: &str| camel_case(name) == "generateContentRequest";
    let Some(i) = body.iter().position(|(name, value)| whole(name) && !value.is_null()) else {
        return read(body, &root);
    };
    let at = root.field("generateContentRequest");
    if body.iter().any(|(name, value)| camel_case(name) == "contents" && !value.is_null()) {
        return Err(at.error("stands beside contents", "send one of them"));
    }
    let mut body = body;
    let (_, request) = body.swap_remove(i);
    read(at.object(request)?, &at)
}

fn read(body: Fields<'_>, root: &Path<'_>) -> Result<Request, DecodeError> {
    let mut request = Request::new(Dialect::Google, "");
    let mut losses = Losses::default();
    let mut system = None;
    let mut calling = CallingConfig::default();
    for (name, value) in body {
        if value.is_null() {
            continue;
        }
        let at = root.field(&name);
        match camel_case(&name).as_ref() {
            "model" => {
                let model = at.string(value)?;
                model.strip_prefix("models/").unwrap_or(&model).clone_into(&mut request.model);
            }
            "contents" => request.messages = contents::messages(value, &at, &mut losses)?,
            "systemInstruction" => system = contents::system_message(value, &at, &mut losses)?,
            "tools" => request.tools = tools(value, &at, &mut losses)?,
            "toolConfig" => calling = tool_config(value, &at, &mut losses)?,
            "generationConfig" => generation_config(value, &at, &mut request, &mut losses)?,
            "cachedContent" => {
                return Err(at.error(
                    "is not supported: no contents are kept here between requests",
                    "send all contents with the request; the engine's prefix cache finds them again",
                ));
            }
            camel => {
                match camel {
                    "safetySettings" => losses.note(LossKind::SafetySettingsIgnored, &at),
                    label if LABELS.contains(&label) => {}
                    _ => losses.note(LossKind::UnknownFieldIgnored, &at),
                }
                request.unsent.insert(name.into_owned(), value.into_value());
            }
        }
    }
    if request.messages.is_empty() {
        return Err(root.field("contents").missing("send at least one content"));
    }
    request.messages.splice(0..0, system);
    request.tool_choice = calling.resolve(&request.tools, root, &mut losses)?;
    request.losses = losses.into_vec();
    Ok(request)
}

/// The text of an enumeration's value. Absent and `…_UNSPECIFIED` are the same.
pub(super) fn named_value(value: Node<'_>, at: &Path<'_>) -> Result<Option<String>, DecodeError> {
    Ok(Some(at.string(value)?).filter(|name| !name.ends_with("_UNSPECIFIED")))
}
