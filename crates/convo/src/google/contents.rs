//! Contents to messages.
//!
//! Contents of the model that follow each other are one turn: clients that keep a streamed reply
//! chunk by chunk send it back as a content for each chunk.

use super::parts::{Data, Part, Response, part};
use super::signature::{self, Mark, as_sampled};
use crate::calls::Calls;
use crate::decode::{DecodeError, Losses, Path, note_order};
use crate::loss::LossKind;
use crate::{Block, Message, Role};
use polar_wire::json::Node;

/// The conversation. One content may stand without a list around it.
pub(super) fn messages(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Vec<Message>, DecodeError> {
    let items = match value {
        Node::Object(_) => vec![value],
        other => at.list(other)?,
    };
    let mut history = History::default();
    for (i, item) in items.into_iter().enumerate() {
        history.add(item, i, at, losses)?;
    }
    history.end_turn(at, losses);
    Ok(history.messages)
}

/// The system text: a content of texts, or a text alone.
pub(super) fn system_message(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Option<Message>, DecodeError> {
    let parts = match value {
        Node::Text(text) => vec![Part {
            data: Some(Data::Text(text.into_owned())),
            thought: false,
            signature: None,
        }],
        other => content(other, at, losses, instructor)?.1,
    };
    let mut blocks = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            Part { data: Some(Data::Text(text)), thought: false, signature: None } => {
                if !text.is_empty() {
                    blocks.push(Block::Text(text));
                }
            }
            Part { data: None, thought: false, signature: None } => {}
            _ => return Err(at.error("holds more than text", "send text parts only")),
        }
    }
    note_order(Role::System, &blocks, at, losses);
    Ok((!blocks.is_empty()).then(|| Message::new(Role::System, blocks)))
}

/// A content's role, as `read_role` understands it, and its parts.
fn content<'n, R: Default>(
    value: Node<'n>,
    at: &Path<'_>,
    losses: &mut Losses,
    read_role: impl Fn(&str, &Path<'_>) -> Result<R, DecodeError>,
) -> Result<(R, Vec<Part<'n>>), DecodeError> {
    let mut fields = at.fields(value)?;
    let role = fields.optional("role", |role, at| read_role(&at.string(role)?, at))?;
    let parts = fields.optional("parts", |parts, at| {
        let parts = match parts {
            Node::Object(_) => Node::List(vec![parts]),
            parts => parts,
        };
        at.each(parts, |item, at| part(at.object(item)?, at, losses))
    })?;
    fields.note_unread(losses);
    Ok((role.unwrap_or_default(), parts.unwrap_or_default()))
}

/// The role of the system text says nothing: there is only one.
fn instructor(role: &str, at: &Path<'_>) -> Result<(), DecodeError> {
    match role {
        "" | "user" | "system" | "model" => Ok(()),
        other => Err(at.error(format!("is {other:?}"), "send user or leave it out")),
    }
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Speaker {
    #[default]
    User,
    Model,
}

fn speaker(role: &str, at: &Path<'_>) -> Result<Speaker, DecodeError> {
    match role {
        "" | "user" | "function" | "tool" => Ok(Speaker::User),
        "model" => Ok(Speaker::Model),
        other => Err(at.error(format!("is {other:?}"), "send user, model or function")),
    }
}

#[derive(Default)]
struct History {
    messages: Vec<Message>,
    /// The model's turn while its contents are read.
    turn: Option<Turn>,
    calls: Calls,
}

#[derive(Default)]
struct Turn {
    /// Position of its first content.
    content: usize,
    blocks: Vec<Block>,
    /// Reasoning from signatures, with the block it stands before.
    signed_reasoning: Vec<(usize, String)>,
}

impl History {
    fn add(
        &mut self,
        item: Node<'_>,
        i: usize,
        contents: &Path<'_>,
        losses: &mut Losses,
    ) -> Result<(), DecodeError> {
        let at = contents.index(i);
        let (speaker, parts) = content(item, &at, losses, speaker)?;
        let at = at.field("parts");
        match speaker {
            Speaker::User => {
                self.end_turn(contents, losses);
                self.add_user(parts, &at, losses)
            }
            Speaker::Model => {
                let Self { turn, calls, .. } = self;
                let turn = turn.get_or_insert_with(|| {
                    calls.begin_turn();
                    Turn { content: i, ..Turn::default() }
                });
                for (i, part) in parts.into_iter().enumerate() {
                    turn.add(part, calls, &at.index(i), losses)?;
                }
                Ok(())
            }
        }
    }

    fn add_user(
        &mut self,
        parts: Vec<Part<'_>>,
        at: &Path<'_>,
        losses: &mut Losses,
    ) -> Result<(), DecodeError> {
        let mut blocks = Vec::with_capacity(parts.len());
        for (i, part) in parts.into_iter().enumerate() {
            let at = at.index(i);
            if part.signature.is_some() {
                losses.note(LossKind::ThoughtSignatureDropped, &at.field("thoughtSignature"));
            }
            match part.data {
                None => {}
                Some(_) if part.thought => {
                    return Err(at.field("thought").error(
                        "is true in a part that is not the model's",
                        "send reasoning in model contents only",
                    ));
                }
                Some(Data::Text(text)) if text.is_empty() => {}
                Some(Data::Text(text)) => blocks.push(Block::Text(text)),
                Some(Data::Image(image)) => blocks.push(Block::Image(image)),
                Some(Data::Response(response)) => {
                    blocks.push(self.tool_result(
                        response,
                        &at.field("functionResponse"),
                        losses,
                    )?);
                }
                Some(Data::Call { .. }) => {
                    return Err(at.field("functionCall").error(
                        "does not belong in a user content",
                        "send the model's calls in model contents",
                    ));
                }
            }
        }
        note_order(Role::User, &blocks, at, losses);
        self.messages.push(Message::new(Role::User, blocks));
        Ok(())
    }

    fn tool_result(
        &mut self,
        response: Response,
        at: &Path<'_>,
        losses: &mut Losses,
    ) -> Result<Block, DecodeError> {
        let answered = self.calls.answer(response.id, &response.name).ok_or_else(|| {
            at.error(
                format!("answers no open call of {:?}", response.name),
                "send a result after the model content with its call, or give both the same id",
            )
        })?;
        if answered.other_name {
            losses.note(LossKind::ToolResultNameDropped, &at.field("name"));
        }
        let mut content = Vec::with_capacity(1 + response.images.len());
        if !response.output.is_empty() {
            content.push(Block::Text(response.output));
        }
        content.extend(response.images.into_iter().map(Block::Image));
        Ok(Block::ToolResult { call_id: answered.id, content, is_error: response.is_error })
    }

    fn end_turn(&mut self, contents: &Path<'_>, losses: &mut Losses) {
        if let Some(turn) = self.turn.take() {
            let at = contents.index(turn.content);
            let blocks = turn.into_blocks();
            note_order(Role::Assistant, &blocks, &at, losses);
            self.messages.push(Message::new(Role::Assistant, blocks));
        }
    }
}

impl Turn {
    fn add(
        &mut self,
        part: Part<'_>,
        calls: &mut Calls,
        at: &Path<'_>,
        losses: &mut Losses,
    ) -> Result<(), DecodeError> {
        let Part { data, thought, signature } = part;
        if thought && let Some(Data::Text(text)) = data {
            if !text.is_empty() {
                self.blocks.push(Block::Reasoning { text, signature });
            }
            return Ok(());
        }
        let arguments = signature.and_then(|mark| self.take_signature(&mark, at, losses));
        match data {
            None => {}
            Some(Data::Text(text)) if text.is_empty() => {}
            Some(Data::Text(text)) => self.blocks.push(Block::Text(text)),
            Some(Data::Image(image)) => self.blocks.push(Block::Image(image)),
            Some(Data::Call { id, name, args }) => {
                let id = calls.call(id, &name);
                let arguments = arguments
                    .and_then(|sampled| as_sampled(sampled, &args))
                    .unwrap_or_else(|| args.to_string());
                self.blocks.push(Block::ToolCall { id, name, arguments });
            }
            Some(Data::Response(_)) => {
                return Err(at.field("functionResponse").error(
                    "does not belong in a model content",
                    "send results in user contents after it",
                ));
            }
        }
        Ok(())
    }

    /// Takes in what a signature holds; the arguments of a call come back.
    fn take_signature(&mut self, mark: &str, at: &Path<'_>, losses: &mut Losses) -> Option<String> {
        let held = match signature::read(mark) {
            Mark::Ours(held) => held,
            Mark::Placeholder => return None,
            Mark::Foreign => {
                losses.note(LossKind::ThoughtSignatureDropped, &at.field("thoughtSignature"));
                return None;
            }
        };
        if !held.reasoning.is_empty() {
            // It is all that was reasoned since the call before.
            let call = |block: &Block| matches!(block, Block::ToolCall { .. });
            let before = self.blocks.iter().rposition(call).map_or(0, |i| i + 1);
            self.signed_reasoning.push((before, held.reasoning));
        }
        held.arguments
    }

    /// Reasoning that the client has sent itself comes first.
    fn into_blocks(self) -> Vec<Block> {
        let Self { mut blocks, signed_reasoning, .. } = self;
        if blocks.iter().any(|block| matches!(block, Block::Reasoning { .. })) {
            return blocks;
        }
        for (before, text) in signed_reasoning.into_iter().rev() {
            blocks.insert(before, Block::Reasoning { text, signature: None });
        }
        blocks
    }
}
