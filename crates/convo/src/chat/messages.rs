//! Chat messages to the messages of a conversation.

use crate::calls::Calls;
use crate::decode::{DecodeError, Losses, Path, check_blocks};
use crate::fields::ObjectFields;
use crate::loss::LossKind;
use crate::{Block, ImageSource, Message, Role};
use polar_wire::json::{Fields, Node};
use serde_json::Map;

pub(super) fn messages(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Vec<Message>, DecodeError> {
    let mut calls = Calls::default();
    at.each(value, |item, at| message(at.object(item)?, &mut calls, at, losses))
}

/// A message while its fields are read.
#[derive(Default)]
struct Draft<'n> {
    role: Option<Speaker>,
    content: Option<Node<'n>>,
    reasoning: Option<String>,
    refusal: Option<String>,
    calls: Vec<Block>,
    call_id: Option<String>,
    name: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaker {
    Role(Role),
    /// The result of a call without an id.
    Function,
}

fn message<'n>(
    fields: Fields<'n>,
    known: &mut Calls,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Message, DecodeError> {
    let (mut draft, mut rest) = (Draft::default(), Map::new());
    for (name, value) in fields {
        if value.is_null() {
            continue;
        }
        let at = at.field(&name);
        match name.as_ref() {
            "role" => draft.role = Some(speaker(&at.string(value)?, &at, losses)?),
            "content" => draft.content = Some(value),
            // The name it came in is the name some clients send it back under.
            "reasoning_content" | "reasoning" => draft.reasoning = Some(at.string(value)?),
            "refusal" => {
                losses.note(LossKind::RefusalAsText, &at);
                draft.refusal = Some(at.string(value)?);
            }
            "tool_calls" => draft.calls = tool_calls(value, &at, losses)?,
            "function_call" => {
                known.begin_turn();
                let (name, arguments) = called_function(value, &at, losses)?;
                let id = known.call(None, &name);
                draft.calls = vec![Block::ToolCall { id, name, arguments }];
            }
            "tool_call_id" => draft.call_id = Some(at.string(value)?),
            "name" => draft.name = Some(at.string(value)?),
            "cache_control" => losses.note(LossKind::CacheControlDropped, &at),
            _ => {
                rest.insert(name.into_owned(), value.into_value());
            }
        }
    }
    let (role, blocks) = draft.finish(known, &mut rest, at, losses)?;
    check_blocks(role, &blocks, at)?;
    Ok(Message { role, blocks, rest })
}

impl Draft<'_> {
    fn finish(
        self,
        known: &mut Calls,
        rest: &mut Map<String, serde_json::Value>,
        at: &Path<'_>,
        losses: &mut Losses,
    ) -> Result<(Role, Vec<Block>), DecodeError> {
        let speaker =
            self.role.ok_or_else(|| at.field("role").missing("send the role of the message"))?;
        let mut content = match self.content {
            Some(value) => content_blocks(value, &at.field("content"), losses)?,
            None => Vec::new(),
        };
        content.extend(self.refusal.map(Block::Text));
        let id_at = at.field("tool_call_id");
        let (role, content) = match (speaker, self.call_id) {
            (Speaker::Function, _) => {
                let name_at = at.field("name");
                let name =
                    self.name.ok_or_else(|| name_at.missing("send the name of the function"))?;
                let answered = known.answer(None, &name).ok_or_else(|| {
                    name_at.error(
                        format!("is {name:?}, of which no call is open"),
                        "send the result after the message with its call",
                    )
                })?;
                (Role::Tool, vec![result(answered.id, content)])
            }
            (Speaker::Role(role), call_id) => {
                if let Some(name) = self.name {
                    rest.insert("name".to_owned(), name.into());
                }
                match (role, call_id) {
                    (Role::Tool, Some(call_id)) => (role, vec![result(call_id, content)]),
                    (Role::Tool, None) => {
                        return Err(id_at.missing("send the id of the call it answers"));
                    }
                    (_, Some(_)) => {
                        return Err(id_at.error(
                            "stands in a message that is no tool result",
                            "send role tool",
                        ));
                    }
                    (_, None) => (role, content),
                }
            }
        };
        let reasoning = self.reasoning.filter(|text| !text.is_empty());
        let reasoning = reasoning.map(|text| Block::Reasoning { text, signature: None });
        Ok((role, reasoning.into_iter().chain(content).chain(self.calls).collect()))
    }
}

fn result(call_id: String, content: Vec<Block>) -> Block {
    Block::ToolResult { call_id, content, is_error: false }
}

fn speaker(name: &str, at: &Path<'_>, losses: &mut Losses) -> Result<Speaker, DecodeError> {
    Ok(Speaker::Role(match name {
        "system" => Role::System,
        "developer" => {
            losses.note(LossKind::DeveloperAsSystem, at);
            Role::Developer
        }
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        "function" => return Ok(Speaker::Function),
        other => {
            return Err(at.error(
                format!("is {other:?}"),
                "send system, developer, user, assistant or tool",
            ));
        }
    }))
}

/// Empty texts are left out: clients send `""`, `null` or nothing for the same thing.
fn content_blocks(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Vec<Block>, DecodeError> {
    let parts = match value {
        Node::Text(text) if text.is_empty() => return Ok(Vec::new()),
        Node::Text(text) => return Ok(vec![Block::Text(text.into_owned())]),
        parts @ Node::List(_) => parts,
        other => return Err(at.wrong_kind(&other, "a string or a list of parts")),
    };
    let mut blocks = at.each(parts, |part, at| content_part(at.fields(part)?, losses))?;
    blocks.retain(|block| !matches!(block, Block::Text(text) if text.is_empty()));
    if blocks.len() > 1 && blocks.iter().all(|block| matches!(block, Block::Text(_))) {
        losses.note(LossKind::TextBlocksJoined, at);
    }
    Ok(blocks)
}

/// Texts and plain images are understood, and files cannot be read by any engine. Any other part,
/// such as audio, is the engine's to judge.
fn content_part(mut part: ObjectFields<'_, '_>, losses: &mut Losses) -> Result<Block, DecodeError> {
    part.drop_cache_mark(losses);
    let at = part.at;
    let kind = part.kind("text")?;
    // With any further field a part is more than Polar understands.
    let alone = part.fields.len() == 1;
    match kind.as_str() {
        "text" if alone => return part.string("text").map(Block::Text),
        "text" if !part.has("text") => {
            return Err(at.field("text").missing("send the text of the part"));
        }
        "refusal" if alone && part.has("refusal") => {
            losses.note(LossKind::RefusalAsText, at);
            return part.string("refusal").map(Block::Text);
        }
        "image_url" if alone && part.fields.iter().all(|(_, image)| is_plain_image(image)) => {
            let image = part.take("image_url")?;
            let url = image.get("url").and_then(Node::as_str).unwrap_or_default();
            return Ok(Block::Image(ImageSource::Url(url.to_owned())));
        }
        "file" => {
            return Err(at.field("file").error(
                "is a file, which engines cannot read",
                "send its content as text or images",
            ));
        }
        _ => {}
    }
    let mut whole = vec![("type".into(), Node::Text(kind.into()))];
    whole.append(&mut part.fields);
    Ok(Block::Other(Node::Object(whole).into_value()))
}

/// Whether an image is an address and nothing else; one with a `detail` is carried as it is.
fn is_plain_image(image: &Node<'_>) -> bool {
    let fields = if let Node::Object(fields) = image { fields.len() } else { 0 };
    fields == 1 && image.get("url").and_then(Node::as_str).is_some()
}

fn tool_calls(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Vec<Block>, DecodeError> {
    at.each(value, |item, at| {
        let mut fields = at.fields(item)?;
        fields.only_kind("function", "send \"function\"")?;
        // The position in the list, once more.
        fields.remove("index");
        let id = fields.string("id")?;
        let (name, arguments) =
            fields.required("function", |function, at| called_function(function, at, losses))?;
        fields.note_unread(losses);
        Ok(Block::ToolCall { id, name, arguments })
    })
}

/// Name and arguments of a call.
fn called_function(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<(String, String), DecodeError> {
    let mut fields = at.fields(value)?;
    let called = (fields.string("name")?, fields.optional_string("arguments")?.unwrap_or_default());
    fields.note_unread(losses);
    Ok(called)
}
