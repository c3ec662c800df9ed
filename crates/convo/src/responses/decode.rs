//! Responses requests to [`Request`].
//!
//! Engines do not speak this dialect, so nothing can be carried to them unread: each field is
//! translated, is a label kept for the record, is written down as a loss, or is refused where
//! leaving it out would change what the model is told or may do.

use super::history::ResponsesHistory;
use super::items::Conversation;
use super::terms::ResponsesTerms;
use super::tools::{self, Offered};
use crate::decode::{DecodeError, Losses, Path, check_tool_choice};
use crate::loss::LossKind;
use crate::output_format::response_format;
use crate::{Dialect, Message, Request, Role};
use polar_wire::json::{Fields, Node};
use serde_json::Value;
use std::sync::Arc;

/// Labels without effect on what is sampled.
const LABELS: &[&str] = &[
    "client_metadata",
    "max_tool_calls",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "stream_options",
    "user",
];

/// Fields that cannot be served, with what to do instead.
const REFUSED: &[(&str, &str)] = &[
    ("conversation", "send the conversation's items in `input`"),
    ("prompt", "send the prompt's text in `instructions` or `input`"),
    ("moderation", "leave it out; nothing is moderated here"),
];

/// The one kind of extra data that is served; others belong to tools that are never run here.
const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

/// Efforts that engines know.
const EFFORTS: &[&str] = &["low", "medium", "high"];

pub(crate) fn decode(body: Fields<'_>, history: &ResponsesHistory) -> Result<Request, DecodeError> {
    let root = Path::Root;
    let mut draft = Draft {
        request: Request::new(Dialect::Responses, ""),
        terms: ResponsesTerms::default(),
        losses: Losses::default(),
        history,
    };
    let (mut input, mut offered, mut choice, mut instructions, mut previous) =
        (None, None, None, None, None);
    for (name, value) in body {
        // To this API an explicit null is the same as leaving the field out.
        if value.is_null() {
            continue;
        }
        let at = root.field(&name);
        draft.terms.note(&name, &value);
        match name.as_ref() {
            "input" => input = Some(value),
            "tools" => offered = Some(value),
            "tool_choice" => choice = Some(value),
            "instructions" => instructions = Some(at.string(value)?),
            "previous_response_id" => previous = Some(at.string(value)?),
            _ => draft.field(&name, value, &at)?,
        }
    }
    let mut tools = Offered::default();
    if let Some(offered) = offered {
        tools.add_all(offered, &root.field("tools"), &mut draft.losses)?;
    }
    draft.conversation(input, tools, previous.as_deref(), &root)?;
    draft.instruct(instructions);
    // After the conversation, which may offer tools as well.
    if let Some(choice) = choice {
        let at = root.field("tool_choice");
        draft.request.tool_choice = Some(tools::choice(choice, &at, &mut draft.losses)?);
    }
    draft.finish(&root)
}

/// A request while it is read.
struct Draft<'h> {
    request: Request,
    terms: ResponsesTerms,
    losses: Losses,
    history: &'h ResponsesHistory,
}

impl Draft<'_> {
    fn field(&mut self, name: &str, value: Node<'_>, at: &Path<'_>) -> Result<(), DecodeError> {
        let (request, losses) = (&mut self.request, &mut self.losses);
        match name {
            "model" => request.model = at.string(value)?,
            "stream" => request.stream = at.bool(&value)?,
            "temperature" => request.sampling.temperature = Some(at.temperature(&value)?),
            "top_p" => request.sampling.top_p = Some(at.share(&value)?),
            "max_output_tokens" => request.sampling.max_tokens = Some(at.count(&value)?),
            "parallel_tool_calls" => {
                let parallel = at.bool(&value)?;
                request.rest.insert(name.to_owned(), Value::Bool(parallel));
            }
            "text" => text(value, at, request, losses)?,
            "reasoning" => self.reasoning(value, at)?,
            "include" => self.include(value, at)?,
            "store" => self.terms.store = at.bool(&value)?,
            "top_logprobs" if value.to_string() != "0" => return Err(refuse_logprobs(at)),
            "top_logprobs" => {}
            "background" if at.bool(&value)? => {
                return Err(at.error("is true", "send false and keep the connection open"));
            }
            "background" => {}
            "truncation" if value.is_text("disabled") => {}
            "truncation" | "context_management" => {
                losses.note(LossKind::ContextManagementIgnored, at);
                request.unsent.insert(name.to_owned(), value.into_value());
            }
            _ => {
                if let Some((_, mend)) = REFUSED.iter().find(|(field, _)| *field == name) {
                    return Err(at.error("is not supported", *mend));
                }
                if !LABELS.contains(&name) {
                    losses.note(LossKind::UnknownFieldIgnored, at);
                }
                request.unsent.insert(name.to_owned(), value.into_value());
            }
        }
        Ok(())
    }

    fn reasoning(&mut self, value: Node<'_>, at: &Path<'_>) -> Result<(), DecodeError> {
        let mut fields = at.fields(value)?;
        if let Some(effort) = fields.optional_string("effort")? {
            let known = EFFORTS.contains(&effort.as_str());
            if !known {
                self.losses.note(LossKind::EffortIgnored, &at.field("effort"));
            }
            let request = &mut self.request;
            let told = if known { &mut request.rest } else { &mut request.unsent };
            told.insert("reasoning_effort".into(), Value::from(effort));
        }
        // Nobody writes one: the reasoning itself is told in its place.
        for name in ["summary", "generate_summary"] {
            if let Some(kind) = fields.optional_string(name)? {
                self.terms.summary = kind != "none";
                self.request.unsent.insert("reasoning_summary".into(), Value::from(kind));
            }
        }
        // All reasoning that is sent is shown to the model.
        if fields.remove("context").is_some_and(|context| !context.is_text("all_turns")) {
            self.losses.note(LossKind::ContextManagementIgnored, &at.field("context"));
        }
        fields.note_unread(&mut self.losses);
        Ok(())
    }

    fn include(&mut self, value: Node<'_>, at: &Path<'_>) -> Result<(), DecodeError> {
        for (i, item) in at.list(value)?.into_iter().enumerate() {
            let at = at.index(i);
            match at.string(item)?.as_str() {
                ENCRYPTED_REASONING => self.terms.encrypted = true,
                "message.output_text.logprobs" => return Err(refuse_logprobs(&at)),
                _ => self.losses.note(LossKind::UnknownFieldIgnored, &at),
            }
        }
        Ok(())
    }

    fn conversation(
        &mut self,
        input: Option<Node<'_>>,
        offered: Offered,
        previous: Option<&str>,
        root: &Path<'_>,
    ) -> Result<(), DecodeError> {
        let at = root.field("input");
        let earlier = match previous {
            Some(id) => self.history.conversation(id).ok_or_else(|| {
                root.field("previous_response_id").error(
                    format!("no reply with id {id:?} is kept in this session"),
                    "send the whole conversation in `input`, or keep replies with `store`",
                )
            })?,
            None if input.is_none() => {
                return Err(at.missing("send a text or a list of items"));
            }
            None => Vec::new(),
        };
        let mut conversation = Conversation::new(earlier, offered, self.history);
        match input {
            None => {}
            Some(Node::Text(text)) => conversation.user_text(text.into_owned()),
            Some(Node::List(items)) => {
                for (i, item) in items.into_iter().enumerate() {
                    let at = at.index(i);
                    let item = at.fields(item)?;
                    conversation.item(item, i, &mut self.losses)?;
                }
            }
            Some(other) => return Err(at.wrong_kind(&other, "a text or a list of items")),
        }
        let Conversation { messages, offered, .. } = conversation;
        if messages.is_empty() {
            return Err(at.missing("send at least one item"));
        }
        self.request.messages = messages;
        self.request.tools = offered.tools;
        self.terms.tools = offered.client;
        if !offered.hosted.is_empty() {
            self.request.unsent.insert("hosted_tools".into(), Value::Array(offered.hosted));
        }
        if !offered.namespaces.is_empty() {
            self.request.unsent.insert("namespaces".into(), Value::Object(offered.namespaces));
        }
        Ok(())
    }

    fn instruct(&mut self, instructions: Option<String>) {
        if let Some(text) = instructions.filter(|text| !text.is_empty()) {
            self.request.messages.insert(0, Message::text(Role::System, text));
            self.terms.instructions = 1;
        }
    }

    fn finish(mut self, root: &Path<'_>) -> Result<Request, DecodeError> {
        if self.request.model.is_empty() {
            return Err(root.field("model").missing("name a model, for example \"default\""));
        }
        check_tool_choice(&self.request)?;
        // Who keeps its conversation itself has to get its reasoning back whole.
        self.terms.encrypted |= !self.terms.store;
        self.request.losses = self.losses.into_vec();
        self.request.responses = Some(Arc::new(self.terms));
        Ok(self.request)
    }
}

fn refuse_logprobs(at: &Path<'_>) -> DecodeError {
    at.error(
        "cannot be answered: logprobs go into the training record, not to the harness",
        "leave it out",
    )
}

fn text(
    value: Node<'_>,
    at: &Path<'_>,
    request: &mut Request,
    losses: &mut Losses,
) -> Result<(), DecodeError> {
    let mut fields = at.fields(value)?;
    let format = fields.optional("format", |format, at| response_format(format, at, losses))?;
    if let Some(format) = format.flatten() {
        request.rest.insert("response_format".into(), format);
    }
    if let Some(verbosity) = fields.remove("verbosity") {
        losses.note(LossKind::VerbosityIgnored, &at.field("verbosity"));
        request.unsent.insert("verbosity".into(), verbosity.into_value());
    }
    fields.note_unread(losses);
    Ok(())
}
