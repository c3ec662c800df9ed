//! Items of a Responses request to the messages of a conversation.
//!
//! What the model says in one turn comes as several items, one for its reasoning, one for each
//! text and call. They are taken together into one message again, as the other dialects have
//! it. Ids and states of items say nothing about the conversation and are read over, except
//! that two replies told by Polar are kept apart by the ids it gave their items.

use super::history::ResponsesHistory;
use super::reply::reply_of;
use super::tools::{self, Offered};
use super::{custom_input, local_shell, reasoning};
use crate::decode::{DecodeError, Losses, Path};
use crate::fields::ObjectFields;
use crate::loss::LossKind;
use crate::{Block, ImageSource, Message, Role};
use polar_wire::json::Node;
use polar_wire::responses::ShellAction;
use serde_json::json;

/// A conversation while its items are read.
pub(super) struct Conversation<'h> {
    pub(super) messages: Vec<Message>,
    /// Tools may stand among the items.
    pub(super) offered: Offered,
    turn: Option<Turn>,
    history: &'h ResponsesHistory,
}

/// The model's turn that the last message holds and that may go on.
struct Turn {
    /// The reply it is, when its items tell.
    reply: Option<String>,
    ends_in_text: bool,
}

impl<'h> Conversation<'h> {
    /// A conversation that goes on from earlier messages.
    pub(super) fn new(
        messages: Vec<Message>,
        offered: Offered,
        history: &'h ResponsesHistory,
    ) -> Self {
        Self { messages, offered, turn: None, history }
    }

    /// Takes a text of the user in.
    pub(super) fn user_text(&mut self, text: String) {
        self.push(Message::new(Role::User, some_text(text)));
    }

    /// Takes the next item in. `position` counts the items of the request.
    pub(super) fn item(
        &mut self,
        mut fields: ObjectFields<'_, '_>,
        position: usize,
        losses: &mut Losses,
    ) -> Result<(), DecodeError> {
        let at = fields.at;
        let kind_at = at.field("type");
        let kind = match fields.remove("type") {
            None if fields.has("role") => "message".to_owned(),
            Some(kind) => kind_at.string(kind)?,
            None => return Err(kind_at.missing("send the type of the item, as \"message\"")),
        };
        let id = fields.optional_string("id")?;
        fields.remove("status");
        match kind.as_str() {
            "message" => self.message(&mut fields, id.as_deref(), losses)?,
            "reasoning" => {
                if let Some(block) = reasoning::block(&mut fields, losses)? {
                    self.say(vec![block], id.as_deref(), at, losses);
                }
            }
            "function_call" | "custom_tool_call" | "local_shell_call" => {
                let call = match kind.as_str() {
                    "function_call" => function_call(&mut fields)?,
                    "custom_tool_call" => custom_call(&mut fields)?,
                    _ => shell_call(&mut fields, losses)?,
                };
                self.say(vec![call], id.as_deref(), at, losses);
            }
            "function_call_output" | "custom_tool_call_output" => {
                self.output(&mut fields, None, losses)?;
            }
            // The one output that may name its call by its own id.
            "local_shell_call_output" => self.output(&mut fields, id, losses)?,
            "item_reference" => self.reference(id, at, losses)?,
            "additional_tools" => self.tools(&mut fields, position, losses)?,
            other => {
                return Err(kind_at.error(
                    format!("is {other:?}, which cannot be shown to this model"),
                    "send messages, reasoning, and calls of your own tools with their outputs",
                ));
            }
        }
        fields.note_unread(losses);
        Ok(())
    }

    fn output(
        &mut self,
        fields: &mut ObjectFields<'_, '_>,
        id: Option<String>,
        losses: &mut Losses,
    ) -> Result<(), DecodeError> {
        let at = fields.at;
        let call_id = fields.optional_string("call_id")?.or(id);
        let call_id = call_id
            .ok_or_else(|| at.field("call_id").missing("send the id of the call it answers"))?;
        let content = content(fields.take("output")?, &at.field("output"), losses)?;
        let result = Block::ToolResult { call_id, content, is_error: false };
        self.push(Message::new(Role::Tool, vec![result]));
        Ok(())
    }

    fn tools(
        &mut self,
        fields: &mut ObjectFields<'_, '_>,
        position: usize,
        losses: &mut Losses,
    ) -> Result<(), DecodeError> {
        let at = fields.at;
        if position > 0 {
            losses.note(LossKind::ToolDeferLoadingIgnored, at);
        }
        // The one role that may offer tools.
        fields.fields.retain(|(name, value)| name != "role" || !value.is_text("developer"));
        self.offered.add_all(fields.take("tools")?, &at.field("tools"), losses)
    }

    fn message(
        &mut self,
        fields: &mut ObjectFields<'_, '_>,
        id: Option<&str>,
        losses: &mut Losses,
    ) -> Result<(), DecodeError> {
        let at = fields.at;
        let role_at = at.field("role");
        let role = match fields.string("role")?.as_str() {
            "system" => Role::System,
            "developer" => {
                losses.note(LossKind::DeveloperAsSystem, &role_at);
                Role::Developer
            }
            "user" => Role::User,
            "assistant" => Role::Assistant,
            other => {
                return Err(role_at
                    .error(format!("is {other:?}"), "send system, developer, user or assistant"));
            }
        };
        let blocks = content(fields.take("content")?, &at.field("content"), losses)?;
        match role {
            Role::Assistant => self.say(blocks, id, at, losses),
            _ => self.push(Message::new(role, blocks)),
        }
        Ok(())
    }

    fn reference(
        &mut self,
        id: Option<String>,
        at: &Path<'_>,
        losses: &mut Losses,
    ) -> Result<(), DecodeError> {
        let id = id.ok_or_else(|| at.field("id").missing("send the id of the item"))?;
        let block = self.history.item(&id).cloned().ok_or_else(|| {
            at.field("id").error(
                format!("no item with id {id:?} is kept in this session"),
                "send the item itself, or keep replies with `store`",
            )
        })?;
        self.say(vec![block], Some(&id), at, losses);
        Ok(())
    }

    /// Takes in what the model said.
    fn say(&mut self, blocks: Vec<Block>, id: Option<&str>, at: &Path<'_>, losses: &mut Losses) {
        let reply = id.and_then(reply_of).map(|(reply, _)| reply);
        let is_text = blocks.iter().all(|block| !is_call_or_reasoning(block));
        let goes_on = self.turn.as_ref().is_some_and(|turn| match (&turn.reply, &reply) {
            (Some(one), Some(other)) => one == other,
            // Texts follow each other in different turns only.
            _ => !(turn.ends_in_text && is_text),
        });
        match self.messages.last_mut().filter(|_| goes_on) {
            Some(message) => {
                let last = message.blocks.last().map_or(0, rank);
                if blocks.first().is_some_and(|block| rank(block) < last) {
                    losses.note(LossKind::BlockOrderFlattened, at);
                }
                message.blocks.extend(blocks);
            }
            None => self.messages.push(Message::new(Role::Assistant, blocks)),
        }
        let known = self.turn.take().filter(|_| goes_on).and_then(|turn| turn.reply);
        self.turn = Some(Turn { reply: reply.or(known), ends_in_text: is_text });
    }

    fn push(&mut self, message: Message) {
        self.turn = None;
        self.messages.push(message);
    }
}

fn is_call_or_reasoning(block: &Block) -> bool {
    matches!(block, Block::ToolCall { .. } | Block::Reasoning { .. })
}

/// Engines take reasoning, then text, then calls.
fn rank(block: &Block) -> u8 {
    match block {
        Block::Reasoning { .. } => 0,
        Block::ToolCall { .. } => 2,
        _ => 1,
    }
}

fn function_call(fields: &mut ObjectFields<'_, '_>) -> Result<Block, DecodeError> {
    let (id, name) = called(fields)?;
    let arguments = fields.string("arguments")?;
    Ok(Block::ToolCall { id, name, arguments })
}

fn custom_call(fields: &mut ObjectFields<'_, '_>) -> Result<Block, DecodeError> {
    let (id, name) = called(fields)?;
    let arguments = custom_input::arguments(&fields.string("input")?);
    Ok(Block::ToolCall { id, name, arguments })
}

fn shell_call(
    fields: &mut ObjectFields<'_, '_>,
    losses: &mut Losses,
) -> Result<Block, DecodeError> {
    let id = fields.string("call_id")?;
    let at = fields.at.field("action");
    let action = shell_action(fields.take("action")?, &at, losses)?;
    let arguments = local_shell::arguments(&action);
    Ok(Block::ToolCall { id, name: local_shell::NAME.to_owned(), arguments })
}

/// Id of a call and the name the model knows.
fn called(fields: &mut ObjectFields<'_, '_>) -> Result<(String, String), DecodeError> {
    let namespace = fields.optional_string("namespace")?;
    let name = fields.string("name")?;
    Ok((fields.string("call_id")?, tools::called_name(namespace.as_deref(), &name)))
}

fn shell_action(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<ShellAction, DecodeError> {
    let mut known = Vec::new();
    for (name, value) in at.object(value)? {
        let at = at.field(&name);
        match name.as_ref() {
            _ if value.is_null() => {}
            "type" if value.is_text("exec") => {}
            "type" => return Err(at.error(format!("is {value}"), "send \"exec\"")),
            "command" | "env" | "timeout_ms" | "user" | "working_directory" => {
                known.push((name, value));
            }
            _ => losses.note(LossKind::UnknownFieldIgnored, &at),
        }
    }
    local_shell::action(&Node::Object(known).to_string()).ok_or_else(|| {
        at.error("is no command", "send {\"type\":\"exec\",\"command\":[…],\"env\":{}}")
    })
}

fn some_text(text: String) -> Vec<Block> {
    if text.is_empty() { Vec::new() } else { vec![Block::Text(text)] }
}

/// Texts and images of a message or an output. A string is the same as one text, and empty
/// texts say nothing.
fn content(value: Node<'_>, at: &Path<'_>, losses: &mut Losses) -> Result<Vec<Block>, DecodeError> {
    let parts = match value {
        Node::Text(text) => return Ok(some_text(text.into_owned())),
        Node::List(parts) => parts,
        other => return Err(at.wrong_kind(&other, "a string or a list of parts")),
    };
    let mut blocks = Vec::with_capacity(parts.len());
    for (i, item) in parts.into_iter().enumerate() {
        let at = at.index(i);
        let mut fields = at.fields(item)?;
        let block = part(&mut fields, losses)?;
        fields.note_unread(losses);
        if !matches!(&block, Block::Text(text) if text.is_empty()) {
            blocks.push(block);
        }
    }
    if blocks.len() > 1 && blocks.iter().all(|block| matches!(block, Block::Text(_))) {
        losses.note(LossKind::TextBlocksJoined, at);
    }
    Ok(blocks)
}

fn part(fields: &mut ObjectFields<'_, '_>, losses: &mut Losses) -> Result<Block, DecodeError> {
    let at = fields.at;
    let kind = fields.kind("input_text")?;
    match kind.as_str() {
        "input_text" | "output_text" | "text" => {
            // Always empty in what Polar tells.
            for name in ["annotations", "logprobs"] {
                if fields.remove(name).is_some_and(|items| items != Node::List(Vec::new())) {
                    losses.note(LossKind::UnknownFieldIgnored, &at.field(name));
                }
            }
            Ok(Block::Text(fields.string("text")?))
        }
        "refusal" => {
            losses.note(LossKind::RefusalAsText, at);
            Ok(Block::Text(fields.string("refusal")?))
        }
        "input_image" => image(fields),
        // Spelled as in Chat, which the engine understands or refuses.
        "input_audio" => {
            let audio = fields.take("input_audio")?.into_value();
            Ok(Block::Other(json!({"type": "input_audio", "input_audio": audio})))
        }
        other => Err(at.field("type").error(
            format!("is {other:?}, which cannot be shown to this model"),
            "send input_text, output_text or input_image parts",
        )),
    }
}

fn image(fields: &mut ObjectFields<'_, '_>) -> Result<Block, DecodeError> {
    let url = fields.optional_string("image_url")?;
    let Some(url) = url else {
        let at = fields.at.field("image_url");
        return Err(at.missing("send the image's address or data; files are not kept here"));
    };
    Ok(match fields.optional_string("detail")? {
        None => Block::Image(ImageSource::Url(url)),
        Some(detail) if detail == "auto" => Block::Image(ImageSource::Url(url)),
        Some(detail) => {
            Block::Other(json!({"type": "image_url", "image_url": {"url": url, "detail": detail}}))
        }
    })
}
