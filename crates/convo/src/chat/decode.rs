//! Chat requests to [`Request`].
//!
//! Engines speak this dialect, so whatever is not acted on is carried to them as it came.
//! Refused is what would be answered wrongly otherwise: several choices, likely tokens that were
//! not sampled, and kinds of tools and output an engine cannot serve.

use super::messages::messages;
use super::tools::{function_choice, functions, tool_choice, tools};
use crate::decode::{DecodeError, Losses, Path, check_request, check_tool_choice};
use crate::{Dialect, Request, Tool, ToolChoice};
use polar_wire::json::{Fields, Node};
use serde_json::Value;

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
    // What llama.cpp reads before the fields that say the same, which a task may pin.
    ("n_predict", "send `max_tokens` instead"),
    ("n_cmpl", "leave it out, and ask for more samples of the task instead"),
    ("web_search_options", "leave it out; the engine cannot search the web"),
];

/// Switches that would change what the engine returns to Polar; their neutral value is dropped.
const SWITCHES: &[(&str, bool)] = &[
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
    let (mut older_tools, mut older_choice) = (None, None);
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
            "functions" => older_tools = Some(functions(value, &at)?),
            "function_call" => older_choice = Some(function_choice(value, &at, &mut losses)?),
            "temperature" => sampling.temperature = Some(at.temperature(&value)?),
            "top_p" => sampling.top_p = Some(at.share(&value)?),
            "top_k" => sampling.top_k = Some(at.integer(&value)?),
            "seed" => sampling.seed = Some(at.integer(&value)?),
            "stop" => sampling.stop = stop(value, &at)?,
            "max_tokens" => max_tokens = Some(at.count(&value)?),
            "max_completion_tokens" => max_completion_tokens = Some(at.count(&value)?),
            "stream" => request.stream = at.bool(&value)?,
            "stream_options" => {
                request.chat.include_usage = stream_options(value, &at, &mut losses)?;
            }
            "n" | "best_of" => one_choice(&value, &at)?,
            "logprobs" => request.chat.logprobs = at.bool(&value)?,
            "top_logprobs" if value.to_string() == "0" => {}
            "top_logprobs" | "prompt_logprobs" => return Err(refuse_logprobs(&at)),
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
    match (older_tools, older_choice) {
        (Some(functions), choice) => offer_functions(&mut request, functions, choice, &root)?,
        (None, Some(_)) => {
            let at = root.field("function_call");
            return Err(at.error("stands without `functions`", "send `tool_choice` instead"));
        }
        (None, None) => {}
    }
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
        "cannot be answered: engines are asked for the logprobs of sampled tokens only",
        "leave it out, and send `logprobs` for those",
    )
}

/// Offers tools in the form before `tools`, which has one call in a reply and is not mixed with
/// what came after it.
fn offer_functions(
    request: &mut Request,
    functions: Vec<Tool>,
    choice: Option<ToolChoice>,
    root: &Path<'_>,
) -> Result<(), DecodeError> {
    let several = request.rest.get("parallel_tool_calls") == Some(&Value::Bool(true));
    for (field, is_said) in [
        ("tools", !request.tools.is_empty()),
        ("tool_choice", request.tool_choice.is_some()),
        ("parallel_tool_calls", several),
    ] {
        if is_said {
            let at = root.field(field);
            return Err(at.error("stands beside `functions`", "offer `tools` only"));
        }
    }
    request.chat.functions = true;
    request.tools = functions;
    request.tool_choice = choice;
    request.rest.insert("parallel_tool_calls".to_owned(), Value::Bool(false));
    check_tool_choice(request).map_err(|error| DecodeError {
        field: "function_call".to_owned(),
        mend: "offer it in `functions` or send \"auto\"".to_owned(),
        ..error
    })
}

fn neutral_switch(value: &Node<'_>, neutral: bool, at: &Path<'_>) -> Result<(), DecodeError> {
    if at.bool(value)? == neutral {
        Ok(())
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
        Node::List(_) => at.stop_strings(value),
        other => Err(at.wrong_kind(&other, "a string or a list of strings")),
    }
}

fn stream_options(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<bool, DecodeError> {
    let mut fields = at.fields(value)?;
    let include_usage = fields.optional_bool("include_usage")?;
    fields.note_unread(losses);
    Ok(include_usage.unwrap_or_default())
}
