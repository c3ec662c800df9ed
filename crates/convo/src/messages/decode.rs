//! Messages requests to [`Request`].
//!
//! Engines do not speak this dialect, so nothing can be carried to them unread: each field is
//! translated, is a label kept for the record, is written down as a loss, or is refused where
//! leaving it out would change what the model is told or may do.

use super::error::THREAD;
use super::reply::UNPARSED_ARGUMENTS;
use crate::decode::{DecodeError, Losses, Path, check_blocks, check_request, note_order};
use crate::fields::ObjectFields;
use crate::loss::LossKind;
use crate::output_format::response_format;
use crate::{Block, Dialect, ImageSource, Message, Request, Role, Tool, ToolChoice};
use polar_wire::json::{Fields, Node};
use serde_json::{Map, Value};

/// What the request is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Generate,
    /// A count needs no `max_tokens`.
    Count,
}

/// Labels without effect on what is sampled.
const LABELS: &[&str] = &[
    "anthropic_beta",
    "anthropic_version",
    "betas",
    "inference_geo",
    "metadata",
    "service_tier",
    "speed",
    "user_profile_id",
];

/// Fields that cannot be served, with what to do instead.
const REFUSED: &[(&str, &str)] = &[
    ("container", "leave it out; the engine runs no code"),
    ("mcp_servers", "connect the harness to the MCP servers and offer their tools in `tools`"),
    (THREAD, "send the whole conversation in `messages`"),
];

pub(crate) fn decode(body: Fields<'_>, purpose: Purpose) -> Result<Request, DecodeError> {
    let root = Path::Root;
    let mut request = Request::new(Dialect::Messages, "");
    let mut losses = Losses::default();
    let mut system = None;
    for (name, value) in body {
        if value.is_null() {
            continue;
        }
        let at = root.field(&name);
        let sampling = &mut request.sampling;
        match name.as_ref() {
            "model" => request.model = at.string(value)?,
            "system" => system = system_message(value, &at, &mut losses)?,
            "messages" => request.messages = messages(value, &at, &mut losses)?,
            "tools" => request.tools = tools(value, &at, &mut losses)?,
            "tool_choice" => tool_choice(value, &at, &mut request, &mut losses)?,
            "max_tokens" => sampling.max_tokens = Some(at.count(&value)?),
            "temperature" => sampling.temperature = Some(at.temperature(&value)?),
            "top_p" => sampling.top_p = Some(at.share(&value)?),
            "top_k" => sampling.top_k = Some(at.integer(&value)?),
            "stop_sequences" => sampling.stop = at.stop_strings(value)?,
            "stream" => request.stream = at.bool(&value)?,
            "cache_control" => losses.note(LossKind::CacheControlDropped, &at),
            "output_config" => output_config(value, &at, &mut request, &mut losses)?,
            "output_format" => output_format(value, &at, &mut request, &mut losses)?,
            other => {
                match REFUSED.iter().find(|(field, _)| *field == other) {
                    Some(_) if value == Node::List(Vec::new()) => continue,
                    Some((_, mend)) => return Err(at.error("is not supported", *mend)),
                    None => {}
                }
                note_unsent(other, &value, &at, &mut losses);
                request.unsent.insert(name.into_owned(), value.into_value());
            }
        }
    }
    request.messages.splice(0..0, system);
    require(&request, purpose)?;
    request.losses = losses.into_vec();
    Ok(request)
}

fn require(request: &Request, purpose: Purpose) -> Result<(), DecodeError> {
    let root = Path::Root;
    check_request(request)?;
    if purpose == Purpose::Count {
        return Ok(());
    }
    if request.messages.last().is_some_and(|message| message.role == Role::Assistant) {
        return Err(root.field("messages").error(
            "end with an assistant message, but engines begin a new turn instead of going on with it",
            "end with a user message",
        ));
    }
    if request.sampling.max_tokens.is_none() {
        return Err(root.field("max_tokens").missing("say how many tokens to sample at most"));
    }
    Ok(())
}

/// Writes down what is lost with a field that is not sent.
fn note_unsent(name: &str, value: &Node<'_>, at: &Path<'_>, losses: &mut Losses) {
    match name {
        "thinking" => losses.note(LossKind::ThinkingConfigIgnored, at),
        "context_management" if keeps_everything(value) => {}
        "context_management" => losses.note(LossKind::ContextManagementIgnored, at),
        label if LABELS.contains(&label) => {}
        _ => losses.note(LossKind::UnknownFieldIgnored, at),
    }
}

/// Whether the edits asked for are none, or only "clear the thinking of no turn".
fn keeps_everything(context_management: &Node<'_>) -> bool {
    let Some(Node::List(edits)) = context_management.get("edits") else {
        return *context_management == Node::Object(Fields::new());
    };
    edits.iter().all(|edit| {
        let kind = edit.get("type").and_then(Node::as_str).unwrap_or_default();
        kind.starts_with("clear_thinking") && edit.get("keep").is_some_and(|k| k.is_text("all"))
    })
}

fn output_config(
    value: Node<'_>,
    at: &Path<'_>,
    request: &mut Request,
    losses: &mut Losses,
) -> Result<(), DecodeError> {
    let mut fields = at.fields(value)?;
    fields.optional("format", |format, at| output_format(format, at, request, losses))?;
    if let Some(effort) = fields.remove("effort") {
        losses.note(LossKind::EffortIgnored, &at.field("effort"));
        request.unsent.insert("effort".into(), effort.into_value());
    }
    fields.note_unread(losses);
    Ok(())
}

fn output_format(
    value: Node<'_>,
    at: &Path<'_>,
    request: &mut Request,
    losses: &mut Losses,
) -> Result<(), DecodeError> {
    if let Some(format) = response_format(value, at, losses)? {
        request.rest.insert("response_format".into(), format);
    }
    Ok(())
}

fn system_message(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Option<Message>, DecodeError> {
    let blocks = text_blocks(value, at, losses)?;
    if blocks.len() > 1 {
        losses.note(LossKind::TextBlocksJoined, at);
    }
    Ok((!blocks.is_empty()).then(|| Message::new(Role::System, blocks)))
}

fn text_blocks(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Vec<Block>, DecodeError> {
    let blocks = content(value, at, losses)?;
    match blocks.iter().all(|block| matches!(block, Block::Text(_))) {
        true => Ok(blocks),
        false => Err(at.error("holds more than text", "send text blocks only")),
    }
}

fn messages(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Vec<Message>, DecodeError> {
    at.each(value, |item, at| message(at.fields(item)?, losses))
}

fn message(mut fields: ObjectFields<'_, '_>, losses: &mut Losses) -> Result<Message, DecodeError> {
    fields.drop_cache_mark(losses);
    let role = fields.required("role", |role, at| self::role(&at.string(role)?, at))?;
    let blocks = fields.required("content", |content, at| {
        let blocks = match role {
            Role::System => text_blocks(content, at, losses)?,
            _ => self::content(content, at, losses)?,
        };
        check_blocks(role, &blocks, at)?;
        note_order(role, &blocks, at, losses);
        Ok(blocks)
    })?;
    fields.note_unread(losses);
    Ok(Message::new(role, blocks))
}

/// A conversation in this dialect may instruct in its midst.
fn role(name: &str, at: &Path<'_>) -> Result<Role, DecodeError> {
    match name {
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "system" => Ok(Role::System),
        other => Err(at.error(format!("is {other:?}"), "send user, assistant or system")),
    }
}

/// A string is the same as one text block, and empty texts say nothing.
fn content(value: Node<'_>, at: &Path<'_>, losses: &mut Losses) -> Result<Vec<Block>, DecodeError> {
    let items = match value {
        Node::Text(text) if text.is_empty() => return Ok(Vec::new()),
        Node::Text(text) => return Ok(vec![Block::Text(text.into_owned())]),
        items @ Node::List(_) => items,
        other => return Err(at.wrong_kind(&other, "a string or a list of blocks")),
    };
    let blocks = at.each(items, |item, at| block(at.fields(item)?, losses))?;
    let says_nothing = |block: &Block| matches!(block, Block::Text(text) if text.is_empty());
    Ok(blocks.into_iter().flatten().filter(|block| !says_nothing(block)).collect())
}

/// None for what the model is not shown.
fn block(
    mut fields: ObjectFields<'_, '_>,
    losses: &mut Losses,
) -> Result<Option<Block>, DecodeError> {
    fields.drop_cache_mark(losses);
    let at = fields.at;
    let kind = fields.kind("text")?;
    let block = match kind.as_str() {
        "text" => Block::Text(fields.string("text")?),
        "thinking" => Block::Reasoning {
            text: fields.string("thinking")?,
            signature: fields.optional_string("signature")?.filter(|mark| !mark.is_empty()),
        },
        // Of a conversation that began on Anthropic's servers, which alone can read it.
        "redacted_thinking" => {
            fields.take("data")?;
            losses.note(LossKind::EncryptedReasoningDropped, &at.field("data"));
            fields.note_unread(losses);
            return Ok(None);
        }
        "tool_use" => Block::ToolCall {
            id: fields.string("id")?,
            name: fields.string("name")?,
            arguments: fields.required("input", arguments)?,
        },
        "tool_result" => tool_result(&mut fields, losses)?,
        "image" => Block::Image(fields.required("source", |s, at| image(s, at, losses))?),
        "document" if is_text_document(&fields.fields) => fields.as_text(&kind, losses),
        "document" => {
            return Err(at.field("source").error(
                "is a file, which engines cannot read",
                "send its content as text or images",
            ));
        }
        "tool_reference" | "search_result" => fields.as_text(&kind, losses),
        other => {
            return Err(at.field("type").error(
                format!("is {other:?}, which cannot be shown to this model"),
                "send text, image, tool_use, tool_result or thinking blocks",
            ));
        }
    };
    fields.note_unread(losses);
    Ok(Some(block))
}

/// Whether a document is text already; one that has to be converted first cannot be shown.
fn is_text_document(fields: &Fields<'_>) -> bool {
    let source = fields.iter().find(|(name, _)| name == "source");
    let kind = source.and_then(|(_, source)| source.get("type")).and_then(Node::as_str);
    matches!(kind, Some("text" | "content"))
}

/// A call's input as JSON text; undoes what [`super::reply`] does to arguments that were no
/// object.
fn arguments(input: Node<'_>, at: &Path<'_>) -> Result<String, DecodeError> {
    let mut fields = at.object(input)?;
    match fields.as_mut_slice() {
        [(name, Node::Text(sampled))] if name == UNPARSED_ARGUMENTS => {
            Ok(std::mem::take(sampled).into_owned())
        }
        _ => Ok(Node::Object(fields).to_string()),
    }
}

fn tool_result(
    fields: &mut ObjectFields<'_, '_>,
    losses: &mut Losses,
) -> Result<Block, DecodeError> {
    let call_id = fields.string("tool_use_id")?;
    let content = fields.optional("content", |value, at| {
        let content = content(value, at, losses)?;
        if !content.iter().all(|block| matches!(block, Block::Text(_) | Block::Image(_))) {
            return Err(at.error(
                "holds a block that does not belong in a tool result",
                "send text, image, document or tool_reference blocks",
            ));
        }
        note_order(Role::Tool, &content, at, losses);
        Ok(content)
    })?;
    let is_error = fields.optional_bool("is_error")?.unwrap_or_default();
    if is_error {
        losses.note(LossKind::ToolErrorFlagDropped, &fields.at.field("is_error"));
    }
    Ok(Block::ToolResult { call_id, content: content.unwrap_or_default(), is_error })
}

fn image(source: Node<'_>, at: &Path<'_>, losses: &mut Losses) -> Result<ImageSource, DecodeError> {
    let mut fields = at.fields(source)?;
    let image = match fields.string("type")?.as_str() {
        "url" => ImageSource::Url(fields.string("url")?),
        "base64" => ImageSource::Base64 {
            media_type: fields.string("media_type")?,
            data: fields.string("data")?,
        },
        other => {
            return Err(at.field("type").error(format!("is {other:?}"), "send base64 or url"));
        }
    };
    fields.note_unread(losses);
    Ok(image)
}

fn tools(value: Node<'_>, at: &Path<'_>, losses: &mut Losses) -> Result<Vec<Tool>, DecodeError> {
    at.each(value, |item, at| tool(at.fields(item)?, losses))
}

fn tool(mut fields: ObjectFields<'_, '_>, losses: &mut Losses) -> Result<Tool, DecodeError> {
    fields.drop_cache_mark(losses);
    let at = fields.at;
    fields.optional("type", |kind, at| match kind.is_text("custom") {
        true => Ok(()),
        false => Err(at.error(
            format!("is {kind}, a tool that Anthropic's servers run or define"),
            "offer a tool with its own input_schema instead, or switch this one off",
        )),
    })?;
    let mut tool = Tool {
        name: fields.string("name")?,
        description: fields.optional_string("description")?,
        parameters: Value::Null,
        rest: Map::new(),
    };
    if tool.name.is_empty() {
        return Err(at.field("name").missing("name the tool"));
    }
    let schema = fields.optional("input_schema", |schema, at| at.object(schema))?;
    if let Some(schema) = schema {
        tool.parameters = Node::Object(schema).into_value();
    }
    if let Some(strict) = fields.remove("strict") {
        tool.rest.insert("strict".to_owned(), strict.into_value());
    }
    if fields.remove("defer_loading") == Some(Node::Bool(true)) {
        losses.note(LossKind::ToolDeferLoadingIgnored, &at.field("defer_loading"));
    }
    // Arguments always stream as they are sampled.
    fields.remove("eager_input_streaming");
    fields.note_unread_as(LossKind::ToolFieldDropped, losses);
    Ok(tool)
}

fn tool_choice(
    value: Node<'_>,
    at: &Path<'_>,
    request: &mut Request,
    losses: &mut Losses,
) -> Result<(), DecodeError> {
    let mut fields = at.fields(value)?;
    let kind = fields.kind("auto")?;
    let tool = fields.optional_string("name")?;
    if fields.optional_bool("disable_parallel_tool_use")? == Some(true) {
        request.rest.insert("parallel_tool_calls".into(), Value::Bool(false));
    }
    fields.note_unread(losses);
    request.tool_choice = Some(match (kind.as_str(), tool) {
        ("auto", _) => ToolChoice::Auto,
        ("any", _) => ToolChoice::Required,
        ("none", _) => ToolChoice::None,
        ("tool", Some(name)) => ToolChoice::Named(name),
        ("tool", None) => return Err(at.field("name").missing("name the tool")),
        _ => return Err(at.field("type").error("is not known", "send auto, any, tool or none")),
    });
    Ok(())
}
