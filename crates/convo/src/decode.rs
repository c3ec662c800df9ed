//! From a request's bytes to a [`Request`]: the entry and what all dialects share.
//!
//! Requests are read as a tree that borrows from the body and is taken apart by moving, so
//! texts are copied once and every error can name the path of its field. The path is only
//! spelled out when there is an error.

use crate::error::ApiError;
use crate::loss::{Loss, LossKind};
use crate::{
    Block, Dialect, Request, ResponsesHistory, Role, ToolChoice, chat, google, messages, responses,
    surrogates,
};
use polar_types::ErrorClass;
use polar_wire::json::{Fields, Node};
use std::fmt;

/// What is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}; {mend}", field_prefix(field))]
pub struct DecodeError {
    /// Path of the field, for example `messages[2].content[0].type`; empty for the whole body.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
    /// What would be right.
    pub mend: String,
}

fn field_prefix(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!("{field}: ") }
}

impl From<DecodeError> for ApiError {
    fn from(error: DecodeError) -> Self {
        let message = error.to_string();
        let field = (!error.field.is_empty()).then_some(error.field);
        Self { field, ..Self::new(ErrorClass::Invalid, message) }
    }
}

impl Dialect {
    /// Reads a generation request that stands for itself. One of Responses may refer to earlier
    /// replies, see [`ResponsesHistory::decode_request`]. In Google's dialect the address says
    /// which model is asked for and whether as a stream, which the caller adds.
    pub fn decode_request(self, body: &[u8]) -> Result<Request, DecodeError> {
        read_body(body, |body| match self {
            Self::Chat => chat::decode::decode(body),
            Self::Messages => messages::decode::decode(body, messages::decode::Purpose::Generate),
            Self::Responses => responses::decode::decode(body, &ResponsesHistory::default()),
            Self::Google => google::decode::decode(body),
        })
    }

    /// Reads the question how many tokens a prompt has: a request that need not say how
    /// much to sample.
    pub fn decode_count_request(self, body: &[u8]) -> Result<Request, DecodeError> {
        read_body(body, |body| match self {
            Self::Chat => chat::decode::decode(body),
            Self::Messages => messages::decode::decode(body, messages::decode::Purpose::Count),
            Self::Responses => responses::decode::decode(body, &ResponsesHistory::default()),
            Self::Google => google::decode::decode_count(body),
        })
    }
}

/// Reads the JSON of a request, and the request from it. Halves of letters are no reason to
/// refuse it, since the harness would send them again and again.
pub(crate) fn read_body(
    body: &[u8],
    decode: impl Fn(Fields<'_>) -> Result<Request, DecodeError>,
) -> Result<Request, DecodeError> {
    let refused = match json_object(body) {
        Ok(fields) => return decode(fields),
        Err(error) => error,
    };
    let (mended, count) = surrogates::replaced(body).ok_or(refused)?;
    let mut request = decode(json_object(&mended)?)?;
    let kind = LossKind::LoneSurrogateReplaced;
    request.losses.push(Loss { kind, field: String::new(), count });
    Ok(request)
}

fn json_object(body: &[u8]) -> Result<Fields<'_>, DecodeError> {
    let no_json = |problem: &dyn fmt::Display| {
        Path::Root.error(format!("the body is not JSON ({problem})"), "send a JSON object")
    };
    let text = std::str::from_utf8(body).map_err(|error| no_json(&error))?;
    match serde_json::from_str(text) {
        Ok(Node::Object(fields)) => Ok(fields),
        Ok(other) => Err(Path::Root.wrong_kind(&other, "a JSON object")),
        Err(error) => Err(no_json(&error)),
    }
}

/// Where in the body a value stands.
#[derive(Clone, Copy)]
pub(crate) enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    pub(crate) fn field(&'a self, name: &'a str) -> Path<'a> {
        Path::Field(self, name)
    }

    pub(crate) fn index(&'a self, index: usize) -> Path<'a> {
        Path::Index(self, index)
    }

    pub(crate) fn error(&self, problem: impl Into<String>, mend: impl Into<String>) -> DecodeError {
        DecodeError { field: self.to_string(), problem: problem.into(), mend: mend.into() }
    }

    pub(crate) fn missing(&self, mend: impl Into<String>) -> DecodeError {
        self.error("is missing", mend)
    }

    pub(crate) fn wrong_kind(&self, value: &Node<'_>, wanted: &str) -> DecodeError {
        self.error(format!("is {}", kind_of(value)), format!("send {wanted}"))
    }

    pub(crate) fn string(&self, value: Node<'_>) -> Result<String, DecodeError> {
        match value {
            Node::Text(text) => Ok(text.into_owned()),
            other => Err(self.wrong_kind(&other, "a string")),
        }
    }

    pub(crate) fn list<'n>(&self, value: Node<'n>) -> Result<Vec<Node<'n>>, DecodeError> {
        match value {
            Node::List(items) => Ok(items),
            other => Err(self.wrong_kind(&other, "a list")),
        }
    }

    pub(crate) fn object<'n>(&self, value: Node<'n>) -> Result<Fields<'n>, DecodeError> {
        match value {
            Node::Object(fields) => Ok(fields),
            other => Err(self.wrong_kind(&other, "an object")),
        }
    }

    pub(crate) fn bool(&self, value: &Node<'_>) -> Result<bool, DecodeError> {
        match value {
            Node::Bool(value) => Ok(*value),
            other => Err(self.wrong_kind(other, "true or false")),
        }
    }

    pub(crate) fn number(&self, value: &Node<'_>) -> Result<f64, DecodeError> {
        match value {
            Node::Number(number) => number.as_f64(),
            _ => None,
        }
        .ok_or_else(|| self.wrong_kind(value, "a number"))
    }

    pub(crate) fn integer(&self, value: &Node<'_>) -> Result<i64, DecodeError> {
        match value {
            Node::Number(number) => number.as_i64().ok_or_else(|| {
                self.error(
                    format!("is {value}"),
                    format!("send a whole number from {} to {}", i64::MIN, i64::MAX),
                )
            }),
            other => Err(self.wrong_kind(other, "a whole number")),
        }
    }

    /// Of 0 or more: what engines take.
    pub(crate) fn temperature(&self, value: &Node<'_>) -> Result<f64, DecodeError> {
        let number = self.number(value)?;
        match number >= 0.0 && number.is_finite() {
            true => Ok(number),
            false => Err(self.error(format!("is {value}"), "send a number of at least 0")),
        }
    }

    /// Above 0 and at most 1: what engines take.
    pub(crate) fn share(&self, value: &Node<'_>) -> Result<f64, DecodeError> {
        let number = self.number(value)?;
        match number > 0.0 && number <= 1.0 {
            true => Ok(number),
            false => Err(self.error(format!("is {value}"), "send a number above 0 and at most 1")),
        }
    }

    /// A count of at least 1.
    pub(crate) fn count(&self, value: &Node<'_>) -> Result<u64, DecodeError> {
        match value {
            Node::Number(number) => number.as_u64().filter(|count| *count > 0),
            _ => None,
        }
        .ok_or_else(|| self.error(format!("is {value}"), "send a whole number of at least 1"))
    }

    /// Stop strings: an empty one would end every reply at once.
    pub(crate) fn stop_strings(&self, value: Node<'_>) -> Result<Vec<String>, DecodeError> {
        let mut strings = Vec::new();
        for (i, item) in self.list(value)?.into_iter().enumerate() {
            let at = self.index(i);
            let text = at.string(item)?;
            if text.is_empty() {
                return Err(at.error("is empty", "send a string of at least one character"));
            }
            strings.push(text);
        }
        Ok(strings)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Path::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Refuses blocks where no dialect has them, so that no translation has to leave one out.
pub(crate) fn check_blocks(role: Role, blocks: &[Block], at: &Path<'_>) -> Result<(), DecodeError> {
    for block in blocks {
        let fits = match block {
            Block::Text(_) | Block::Image(_) | Block::Other(_) => role != Role::Tool,
            Block::Reasoning { .. } | Block::ToolCall { .. } => role == Role::Assistant,
            Block::ToolResult { .. } => matches!(role, Role::User | Role::Tool),
        };
        if !fits {
            let what = match block {
                Block::Reasoning { .. } => "reasoning",
                Block::ToolCall { .. } => "a tool call",
                Block::ToolResult { .. } => "a tool result",
                _ => "content",
            };
            return Err(at.error(
                format!("holds {what}, which does not belong in a {} message", role.as_str()),
                "send reasoning and tool calls in assistant messages, and tool results after them",
            ));
        }
    }
    Ok(())
}

/// Writes down what chat messages cannot tell of the blocks of one message.
pub(crate) fn note_order(role: Role, blocks: &[Block], at: &Path<'_>, losses: &mut Losses) {
    if role != Role::Assistant {
        let texts = |pair: &[Block]| matches!(pair, [Block::Text(_), Block::Text(_)]);
        if blocks.windows(2).any(texts) {
            losses.note(LossKind::TextBlocksJoined, at);
        }
        return;
    }
    let rank = |block: &Block| match block {
        Block::Reasoning { .. } => 0,
        Block::ToolCall { .. } => 2,
        _ => 1,
    };
    if !blocks.is_sorted_by_key(rank) {
        losses.note(LossKind::BlockOrderFlattened, at);
    }
}

/// What Chat and Messages ask of a whole request.
pub(crate) fn check_request(request: &Request) -> Result<(), DecodeError> {
    let root = Path::Root;
    if request.model.is_empty() {
        return Err(root.field("model").missing("name a model, for example \"default\""));
    }
    if request.messages.is_empty() {
        return Err(root
            .field("messages")
            .error("is missing or empty", "send at least one message"));
    }
    check_tool_choice(request)
}

/// A choice of tools in OpenAI's words.
pub(crate) fn tool_choice_word(
    value: &Node<'_>,
    at: &Path<'_>,
    mend: &str,
) -> Result<ToolChoice, DecodeError> {
    match value.as_str() {
        Some("auto") => Ok(ToolChoice::Auto),
        Some("none") => Ok(ToolChoice::None),
        Some("required") => Ok(ToolChoice::Required),
        _ => Err(at.error(format!("is {value}"), mend)),
    }
}

/// Refuses a choice that nothing can be chosen by.
pub(crate) fn check_tool_choice(request: &Request) -> Result<(), DecodeError> {
    let forced = match &request.tool_choice {
        Some(ToolChoice::Required) => request.tools.is_empty(),
        Some(ToolChoice::Named(name)) => !request.tools.iter().any(|tool| tool.name == *name),
        _ => false,
    };
    if forced {
        return Err(Path::Root
            .field("tool_choice")
            .error("asks for a tool that is not offered", "offer it in `tools` or send \"auto\""));
    }
    Ok(())
}

fn kind_of(value: &Node<'_>) -> &'static str {
    match value {
        Node::Null => "null",
        Node::Bool(_) => "a truth value",
        Node::Number(_) => "a number",
        Node::Text(_) => "a string",
        Node::List(_) => "a list",
        Node::Object(_) => "an object",
    }
}

/// Collects losses, one entry a kind.
#[derive(Default)]
pub(crate) struct Losses(Vec<Loss>);

impl Losses {
    pub(crate) fn note(&mut self, kind: LossKind, at: &Path<'_>) {
        match self.0.iter_mut().find(|loss| loss.kind == kind) {
            Some(loss) => loss.count += 1,
            None => self.0.push(Loss { kind, field: at.to_string(), count: 1 }),
        }
    }

    pub(crate) fn into_vec(self) -> Vec<Loss> {
        self.0
    }
}
