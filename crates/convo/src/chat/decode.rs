//! Chat requests to [`Request`].
//!
//! Engines speak this dialect, so whatever is not acted on is carried to them as it came.
//! Refused is what would be answered wrongly otherwise: several choices, logprobs in the
//! reply, and kinds of tools and output an engine cannot serve.

use crate::decode::{DecodeError, Losses, Path, check_blocks, check_request};
use crate::loss::LossKind;
use crate::{Block, Dialect, ImageSource, Message, Request, Role, Tool, ToolChoice};
use polar_wire::json::{Fields, Node};
use serde_json::{Map, Value};

/// Labels without effect on what is sampled: kept in the record, not sent, so that the same
/// conversation is the same request whoever sends it.
const LABELS: &[&str] = &[
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

/// Fields that cannot be served, with what to do instead.
const REFUSED: &[(&str, &str)] = &[
    ("audio", "leave it out; only text is generated"),
    ("functions", "send `tools` instead"),
    ("function_call", "send `tool_choice` instead"),
    // What llama.cpp reads before the fields that say the same, which a task may pin.
    ("n_predict", "send `max_tokens` instead"),
    ("n_cmpl", "leave it out, and ask for more samples of the task instead"),
    ("web_search_options", "leave it out; the engine cannot search the web"),
];

/// Switches that would change what the engine returns to Polar; their neutral value is dropped.
const SWITCHES: &[(&str, bool)] = &[
    ("logprobs", false),
    ("return_token_ids", false),
    ("return_tokens_as_token_ids", false),
    ("return_prompt_text", false),
    ("return_prompt_token_ids", false),
    ("return_meta_info", false),
    ("post_sampling_probs", false),
    ("verbose", false),
    ("include_reasoning", true),
    ("separate_reasoning", true),
    ("stream_reasoning", true),
    ("echo", false),
    ("use_beam_search", false),
];

pub(crate) fn decode(body: Fields<'_>) -> Result<Request, DecodeError> {
    let root = Path::Root;
    let mut request = Request::new(Dialect::Chat, "");
    let mut losses = Losses::default();
    let (mut max_tokens, mut max_completion_tokens) = (None, None);
    for (name, value) in body {
        // To this API an explicit null is the same as leaving the field out.
        if value.is_null() {
            continue;
        }
        let at = root.field(&name);
        let sampling = &mut request.sampling;
        match name.as_ref() {
            "model" => request.model = at.string(value)?,
            "messages" => request.messages = messages(value, &at, &mut losses)?,
            "tools" => request.tools = tools(value, &at, &mut losses)?,
            "tool_choice" => request.tool_choice = Some(tool_choice(value, &at, &mut losses)?),
            "temperature" => sampling.temperature = Some(at.number(&value)?),
            "top_p" => sampling.top_p = Some(at.number(&value)?),
            "top_k" => sampling.top_k = Some(at.integer(&value)?),
            "seed" => sampling.seed = Some(at.integer(&value)?),
            "stop" => sampling.stop = stop(value, &at)?,
            "max_tokens" => max_tokens = Some(at.count(&value)?),
            "max_completion_tokens" => max_completion_tokens = Some(at.count(&value)?),
            "stream" => request.stream = at.bool(&value)?,
            "stream_options" => {
                request.include_usage = stream_options(value, &at, &mut losses)?;
            }
            "n" | "best_of" => one_choice(&value, &at)?,
            "top_logprobs" | "prompt_logprobs" => {
                return Err(refuse_logprobs(&at));
            }
            "modalities" => text_only(value, &at)?,
            other => {
                if let Some((_, mend)) = REFUSED.iter().find(|(field, _)| *field == other) {
                    return Err(at.error("is not supported", *mend));
                }
                if let Some((_, neutral)) = SWITCHES.iter().find(|(field, _)| *field == other) {
                    neutral_switch(&value, *neutral, &at)?;
                } else if LABELS.contains(&other) {
                    request.unsent.insert(name.into_owned(), value.into_value());
                } else {
                    request.rest.insert(name.into_owned(), value.into_value());
                }
            }
        }
    }
    request.sampling.max_tokens = match (max_tokens, max_completion_tokens) {
        (Some(old), Some(new)) if old != new => {
            let at = root.field("max_tokens");
            return Err(at.error("differs from max_completion_tokens", "send one of them"));
        }
        (old, new) => new.or(old),
    };
    check_request(&request)?;
    request.losses = losses.into_vec();
    Ok(request)
}

fn one_choice(value: &Node<'_>, at: &Path<'_>) -> Result<(), DecodeError> {
    match at.count(value) {
        Ok(1) => Ok(()),
        _ => Err(at.error(
            format!("is {value}, but a call has one reply"),
            "send 1 or leave it out, and ask for more samples of the task instead",
        )),
    }
}

fn refuse_logprobs(at: &Path<'_>) -> DecodeError {
    at.error(
        "cannot be answered: logprobs go into the training record, not to the harness",
        "leave it out",
    )
}

fn neutral_switch(value: &Node<'_>, neutral: bool, at: &Path<'_>) -> Result<(), DecodeError> {
    if at.bool(value)? == neutral {
        Ok(())
    } else if matches!(at, Path::Field(_, "logprobs")) {
        Err(refuse_logprobs(at))
    } else {
        Err(at.error(
            format!("is {value}, which would change what is recorded"),
            format!("send {neutral} or leave it out"),
        ))
    }
}

fn text_only(value: Node<'_>, at: &Path<'_>) -> Result<(), DecodeError> {
    for (i, item) in at.list(value)?.iter().enumerate() {
        if !item.is_text("text") {
            return Err(at.index(i).error(format!("is {item}"), "send [\"text\"] or leave it out"));
        }
    }
    Ok(())
}

fn stop(value: Node<'_>, at: &Path<'_>) -> Result<Vec<String>, DecodeError> {
    match value {
        Node::Text(_) => at.stop_strings(Node::List(vec![value])),
        other => at.stop_strings(other),
    }
}

fn stream_options(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<bool, DecodeError> {
    let mut include_usage = false;
    for (name, value) in at.object(value)? {
        let at = at.field(&name);
        match name.as_ref() {
            _ if value.is_null() => {}
            "include_usage" => include_usage = at.bool(&value)?,
            _ => losses.note(LossKind::UnknownFieldIgnored, &at),
        }
    }
    Ok(include_usage)
}

fn messages(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Vec<Message>, DecodeError> {
    let items = at.list(value)?;
    let mut messages = Vec::with_capacity(items.len());
    for (i, item) in items.into_iter().enumerate() {
        let at = at.index(i);
        messages.push(message(at.object(item)?, &at, losses)?);
    }
    Ok(messages)
}

fn message(fields: Fields<'_>, at: &Path<'_>, losses: &mut Losses) -> Result<Message, DecodeError> {
    let mut role = None;
    let mut content = None;
    let mut reasoning = None;
    let mut calls = Vec::new();
    let mut call_id = None;
    let mut rest = Map::new();
    for (name, value) in fields {
        if value.is_null() {
            continue;
        }
        let at = at.field(&name);
        match name.as_ref() {
            "role" => role = Some(self::role(&at.string(value)?, &at, losses)?),
            "content" => content = Some(value),
            // The name it came in is the name some clients send it back under.
            "reasoning_content" | "reasoning" => reasoning = Some(at.string(value)?),
            "tool_calls" => calls = tool_calls(value, &at, losses)?,
            "tool_call_id" => call_id = Some(at.string(value)?),
            "function_call" => return Err(at.error("is not supported", "send `tool_calls`")),
            "cache_control" => losses.note(LossKind::CacheControlDropped, &at),
            _ => {
                rest.insert(name.into_owned(), value.into_value());
            }
        }
    }
    let role = role.ok_or_else(|| at.field("role").missing("send the role of the message"))?;
    let content_at = at.field("content");
    let content = match content {
        Some(value) => content_blocks(value, &content_at, losses)?,
        None => Vec::new(),
    };
    let mut blocks = Vec::with_capacity(content.len() + calls.len() + 1);
    if let Some(text) = reasoning.filter(|text| !text.is_empty()) {
        blocks.push(Block::Reasoning { text, signature: None });
    }
    match (role, call_id) {
        (Role::Tool, Some(call_id)) => {
            blocks.push(Block::ToolResult { call_id, content, is_error: false });
        }
        (Role::Tool, None) => {
            return Err(at.field("tool_call_id").missing("send the id of the call it answers"));
        }
        (_, Some(_)) => {
            return Err(at
                .field("tool_call_id")
                .error("stands in a message that is no tool result", "send role tool"));
        }
        (_, None) => blocks.extend(content),
    }
    blocks.append(&mut calls);
    check_blocks(role, &blocks, at)?;
    Ok(Message { role, blocks, rest })
}

fn role(name: &str, at: &Path<'_>, losses: &mut Losses) -> Result<Role, DecodeError> {
    Ok(match name {
        "system" => Role::System,
        "developer" => {
            losses.note(LossKind::DeveloperAsSystem, at);
            Role::Developer
        }
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        other => {
            return Err(at.error(
                format!("is {other:?}"),
                "send system, developer, user, assistant or tool",
            ));
        }
    })
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
        Node::List(parts) => parts,
        other => return Err(at.wrong_kind(&other, "a string or a list of parts")),
    };
    let mut blocks = Vec::with_capacity(parts.len());
    for (i, part) in parts.into_iter().enumerate() {
        let at = at.index(i);
        let block = content_part(at.object(part)?, &at, losses)?;
        if !matches!(&block, Block::Text(text) if text.is_empty()) {
            blocks.push(block);
        }
    }
    if blocks.len() > 1 && blocks.iter().all(|block| matches!(block, Block::Text(_))) {
        losses.note(LossKind::TextBlocksJoined, at);
    }
    Ok(blocks)
}

/// Texts and plain images are understood; any other part is the engine's to judge.
fn content_part(
    mut part: Fields<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Block, DecodeError> {
    let fields = part.len();
    part.retain(|(name, _)| name != "cache_control");
    if part.len() < fields {
        losses.note(LossKind::CacheControlDropped, &at.field("cache_control"));
    }
    let field = |name: &str| part.iter().position(|(field, _)| field == name);
    let Some(kind) = field("type").and_then(|i| part[i].1.as_str()) else {
        return Err(at.field("type").missing("send the type of the part, for example \"text\""));
    };
    // With any further field a part is more than Polar understands.
    match (kind, field(kind)) {
        ("text", Some(i)) if part.len() == 2 => {
            Ok(Block::Text(at.field("text").string(part.swap_remove(i).1)?))
        }
        ("text", None) => Err(at.field("text").missing("send the text of the part")),
        ("image_url", Some(i)) if part.len() == 2 && is_plain_image(&part[i].1) => {
            Ok(Block::Image(ImageSource::Url(image_url(part.swap_remove(i).1))))
        }
        _ => Ok(Block::Other(Node::Object(part).into_value())),
    }
}

/// Whether an image is an address and nothing else; one with a `detail` is carried as it is.
fn is_plain_image(image: &Node<'_>) -> bool {
    let fields = if let Node::Object(fields) = image { fields.len() } else { 0 };
    fields == 1 && image.get("url").and_then(Node::as_str).is_some()
}

fn image_url(image: Node<'_>) -> String {
    image.get("url").and_then(Node::as_str).unwrap_or_default().to_owned()
}

fn tool_calls(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Vec<Block>, DecodeError> {
    let items = at.list(value)?;
    let mut calls = Vec::with_capacity(items.len());
    for (i, item) in items.into_iter().enumerate() {
        let at = at.index(i);
        let (mut id, mut function) = (None, None);
        for (name, value) in at.object(item)? {
            let at = at.field(&name);
            match name.as_ref() {
                "id" => id = Some(at.string(value)?),
                "function" => function = Some(called_function(value, &at, losses)?),
                "type" if value.is_text("function") => {}
                "type" => {
                    return Err(at.error(format!("is {value}"), "send \"function\""));
                }
                "index" => {}
                _ if value.is_null() => {}
                _ => losses.note(LossKind::UnknownFieldIgnored, &at),
            }
        }
        let id = id.ok_or_else(|| at.field("id").missing("send the id of the call"))?;
        let (name, arguments) = function
            .ok_or_else(|| at.field("function").missing("send the function that is called"))?;
        calls.push(Block::ToolCall { id, name, arguments });
    }
    Ok(calls)
}

fn called_function(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<(String, String), DecodeError> {
    let (mut called, mut arguments) = (None, None);
    for (name, value) in at.object(value)? {
        let at = at.field(&name);
        match name.as_ref() {
            "name" => called = Some(at.string(value)?),
            "arguments" => arguments = Some(at.string(value)?),
            _ if value.is_null() => {}
            _ => losses.note(LossKind::UnknownFieldIgnored, &at),
        }
    }
    let called = called.ok_or_else(|| at.field("name").missing("send the name of the function"))?;
    Ok((called, arguments.unwrap_or_default()))
}

fn tools(value: Node<'_>, at: &Path<'_>, losses: &mut Losses) -> Result<Vec<Tool>, DecodeError> {
    let items = at.list(value)?;
    let mut tools = Vec::with_capacity(items.len());
    for (i, item) in items.into_iter().enumerate() {
        let at = at.index(i);
        let mut function = None;
        for (name, value) in at.object(item)? {
            let at = at.field(&name);
            match name.as_ref() {
                "type" if value.is_text("function") => {}
                "type" => {
                    return Err(at.error(
                        format!("is {value}, a kind of tool the engine cannot call"),
                        "send tools of type \"function\" only",
                    ));
                }
                "function" => function = Some(tool(value, &at)?),
                "cache_control" => losses.note(LossKind::CacheControlDropped, &at),
                _ if value.is_null() => {}
                _ => losses.note(LossKind::ToolFieldDropped, &at),
            }
        }
        tools.push(
            function.ok_or_else(|| at.field("function").missing("send the function's schema"))?,
        );
    }
    Ok(tools)
}

fn tool(value: Node<'_>, at: &Path<'_>) -> Result<Tool, DecodeError> {
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

fn tool_choice(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<ToolChoice, DecodeError> {
    const MEND: &str = "send \"auto\", \"none\", \"required\" or \
                        {\"type\":\"function\",\"function\":{\"name\":…}}";
    let fields = match value {
        Node::Object(fields) => fields,
        choice => {
            return match choice.as_str() {
                Some("auto") => Ok(ToolChoice::Auto),
                Some("none") => Ok(ToolChoice::None),
                Some("required") => Ok(ToolChoice::Required),
                _ => Err(at.error(format!("is {choice}"), MEND)),
            };
        }
    };
    let mut chosen = None;
    for (name, value) in fields {
        let at = at.field(&name);
        match name.as_ref() {
            "type" if value.is_text("function") => {}
            "type" => return Err(at.error(format!("is {value}"), MEND)),
            "function" => {
                for (name, value) in at.object(value)? {
                    let at = at.field(&name);
                    match name.as_ref() {
                        "name" => chosen = Some(at.string(value)?),
                        _ => losses.note(LossKind::UnknownFieldIgnored, &at),
                    }
                }
            }
            _ => losses.note(LossKind::UnknownFieldIgnored, &at),
        }
    }
    chosen.map(ToolChoice::Named).ok_or_else(|| at.field("function").missing(MEND))
}
