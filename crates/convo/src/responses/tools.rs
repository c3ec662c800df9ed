//! Tools of a Responses request, each as a function the model can call.
//!
//! To the model every tool is a function; what it is to the client is kept in a table by the
//! name the model calls, so that the call can be told in the client's terms. A tool in a
//! namespace is called `<namespace>__<name>`, always, so that the name in an old call never
//! depends on what else is offered.

use super::terms::ResponsesTerms;
use super::{custom_input, local_shell};
use crate::decode::{DecodeError, Losses, Path, tool_choice_word};
use crate::fields::ObjectFields;
use crate::loss::LossKind;
use crate::{Tool, ToolChoice};
use polar_wire::json::Node;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A tool as the client knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClientTool {
    pub(super) kind: ToolKind,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolKind {
    Function,
    /// Takes any text instead of JSON.
    Custom,
    LocalShell,
}

/// Tools that OpenAI's servers or models bring along and that clients offer by default. They are
/// not shown to the model, which then does its work without them.
const HOSTED_BY_DEFAULT: &[&str] =
    &["image_generation", "tool_search", "web_search", "web_search_preview"];

/// The tools of a request.
#[derive(Default)]
pub(super) struct Offered {
    /// As the engine gets them.
    pub(super) tools: Vec<Tool>,
    /// As the client knows those that are no plain functions, by the name the model calls.
    pub(super) client: BTreeMap<String, ClientTool>,
    /// Those the model is not told of.
    pub(super) hosted: Vec<Value>,
    /// What is said of whole namespaces, which the model is not told either.
    pub(super) namespaces: Map<String, Value>,
}

impl Offered {
    /// Adds the tools of a list.
    pub(super) fn add_all(
        &mut self,
        value: Node<'_>,
        at: &Path<'_>,
        losses: &mut Losses,
    ) -> Result<(), DecodeError> {
        let mut offer = Offer { offered: self, losses };
        at.each(value, |item, at| offer.tool(at.fields(item)?, None))?;
        Ok(())
    }
}

struct Offer<'a> {
    offered: &'a mut Offered,
    losses: &'a mut Losses,
}

impl Offer<'_> {
    fn tool(
        &mut self,
        mut fields: ObjectFields<'_, '_>,
        namespace: Option<&str>,
    ) -> Result<(), DecodeError> {
        let kind_at = fields.at.field("type");
        let kind = fields.kind("function")?;
        match kind.as_str() {
            "function" => self.function(fields, namespace),
            "custom" => self.custom(fields, namespace),
            "local_shell" => {
                fields.note_unread(self.losses);
                let tool = local_shell::tool();
                let name = tool.name.clone();
                self.losses.note(LossKind::ToolAsFunction, &kind_at);
                let client = ClientTool { kind: ToolKind::LocalShell, namespace: None, name };
                self.add(tool, client, &kind_at)
            }
            "namespace" if namespace.is_none() => self.namespace(fields),
            // Also with a date behind it.
            hosted if HOSTED_BY_DEFAULT.iter().any(|name| hosted.starts_with(name)) => {
                self.losses.note(LossKind::HostedToolNotOffered, fields.at);
                fields.fields.insert(0, ("type".into(), Node::Text(hosted.to_owned().into())));
                self.offered.hosted.push(Node::Object(fields.fields).into_value());
                Ok(())
            }
            other => Err(kind_at.error(
                format!("is {other:?}, a tool that OpenAI's servers run or define"),
                "offer a function or custom tool instead, or switch this one off",
            )),
        }
    }

    fn function(
        &mut self,
        fields: ObjectFields<'_, '_>,
        namespace: Option<&str>,
    ) -> Result<(), DecodeError> {
        let mut tool = Tool {
            name: String::new(),
            description: None,
            parameters: Value::Null,
            rest: Map::new(),
        };
        let at = fields.at;
        for (name, value) in fields.fields {
            let at = at.field(&name);
            match name.as_ref() {
                _ if value.is_null() => {}
                "name" => tool.name = at.string(value)?,
                "description" => tool.description = Some(at.string(value)?),
                "parameters" => tool.parameters = Node::Object(at.object(value)?).into_value(),
                "strict" => {
                    tool.rest.insert(name.into_owned(), value.into_value());
                }
                "defer_loading" => self.deferred(&value, &at)?,
                _ => self.losses.note(LossKind::ToolFieldDropped, &at),
            }
        }
        let client = named(&mut tool, ToolKind::Function, namespace, at)?;
        self.add(tool, client, at)
    }

    fn custom(
        &mut self,
        mut fields: ObjectFields<'_, '_>,
        namespace: Option<&str>,
    ) -> Result<(), DecodeError> {
        let at = fields.at;
        let name = fields.string("name")?;
        let description = fields.optional_string("description")?;
        let grammar = match fields.remove("format") {
            Some(format) if !format.is_null() => grammar(format, &at.field("format"), self.losses)?,
            _ => None,
        };
        if let Some(value) = fields.remove("defer_loading") {
            self.deferred(&value, &at.field("defer_loading"))?;
        }
        for (name, value) in &fields.fields {
            if !value.is_null() {
                self.losses.note(LossKind::ToolFieldDropped, &at.field(name));
            }
        }
        self.losses.note(LossKind::ToolAsFunction, at);
        let mut tool = custom_input::tool(name, description, grammar);
        let client = named(&mut tool, ToolKind::Custom, namespace, at)?;
        self.add(tool, client, at)
    }

    fn namespace(&mut self, mut fields: ObjectFields<'_, '_>) -> Result<(), DecodeError> {
        let at = fields.at;
        let namespace = fields.string("name")?;
        let tools_at = at.field("tools");
        // Engines know single functions only: there is no place for a word about them all.
        if let Some(text) = fields.optional_string("description")?.filter(|text| !text.is_empty()) {
            self.losses.note(LossKind::ToolFieldDropped, &at.field("description"));
            self.offered.namespaces.insert(namespace.clone(), Value::from(text));
        }
        for (i, item) in tools_at.list(fields.take("tools")?)?.into_iter().enumerate() {
            let at = tools_at.index(i);
            self.tool(at.fields(item)?, Some(&namespace))?;
        }
        fields.note_unread(self.losses);
        Ok(())
    }

    fn deferred(&mut self, value: &Node<'_>, at: &Path<'_>) -> Result<(), DecodeError> {
        if !value.is_null() && at.bool(value)? {
            self.losses.note(LossKind::ToolDeferLoadingIgnored, at);
        }
        Ok(())
    }

    /// The same tool may be offered again, as clients do who add to their tools.
    fn add(&mut self, tool: Tool, client: ClientTool, at: &Path<'_>) -> Result<(), DecodeError> {
        let plain = client.kind == ToolKind::Function && client.namespace.is_none();
        let client = (!plain).then_some(client);
        let offered = &mut *self.offered;
        if let Some(known) = offered.tools.iter().find(|known| known.name == tool.name) {
            if *known == tool && offered.client.get(&tool.name) == client.as_ref() {
                return Ok(());
            }
            return Err(at.error(
                format!("is another tool that the model would call {:?}", tool.name),
                "give each tool its own name",
            ));
        }
        if let Some(client) = client {
            offered.client.insert(tool.name.clone(), client);
        }
        offered.tools.push(tool);
        Ok(())
    }
}

/// Gives a tool the name the model calls, and keeps the client's.
fn named(
    tool: &mut Tool,
    kind: ToolKind,
    namespace: Option<&str>,
    at: &Path<'_>,
) -> Result<ClientTool, DecodeError> {
    if tool.name.is_empty() {
        return Err(at.field("name").missing("name the tool"));
    }
    let called = called_name(namespace, &tool.name);
    let name = std::mem::replace(&mut tool.name, called);
    Ok(ClientTool { kind, namespace: namespace.map(str::to_owned), name })
}

/// The name the model calls.
pub(super) fn called_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        None | Some("") => name.to_owned(),
        Some(namespace) => format!("{}__{name}", namespace.trim_end_matches("__")),
    }
}

/// Syntax and text of a grammar; none where any text may be said.
fn grammar(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Option<(String, String)>, DecodeError> {
    let mut fields = at.fields(value)?;
    let grammar = match fields.string("type")?.as_str() {
        "text" => None,
        "grammar" => {
            losses.note(LossKind::ToolGrammarNotEnforced, at);
            Some((fields.string("syntax")?, fields.string("definition")?))
        }
        other => {
            let at = at.field("type");
            return Err(at.error(format!("is {other:?}"), "send \"text\" or \"grammar\""));
        }
    };
    fields.note_unread(losses);
    Ok(grammar)
}

/// Which tool may or must be called.
pub(super) fn choice(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<ToolChoice, DecodeError> {
    const MEND: &str =
        "send \"auto\", \"none\", \"required\" or {\"type\":\"function\",\"name\":…}";
    if !matches!(value, Node::Object(_)) {
        return tool_choice_word(&value, at, MEND);
    }
    let mut fields = at.fields(value)?;
    let choice = match fields.string("type")?.as_str() {
        "function" | "custom" => {
            let namespace = fields.optional_string("namespace")?;
            ToolChoice::Named(called_name(namespace.as_deref(), &fields.string("name")?))
        }
        "local_shell" => ToolChoice::Named(local_shell::NAME.to_owned()),
        other => return Err(at.field("type").error(format!("is {other:?}"), MEND)),
    };
    fields.note_unread(losses);
    Ok(choice)
}

/// The spelling that the decoder gives to the arguments of a call the client knows in another
/// form.
pub(crate) fn respelled(terms: &ResponsesTerms, name: &str, arguments: &str) -> Option<String> {
    match terms.tools.get(name)?.kind {
        ToolKind::Function => None,
        ToolKind::Custom => Some(custom_input::arguments(&custom_input::input(arguments))),
        ToolKind::LocalShell => {
            local_shell::action(arguments).map(|action| local_shell::arguments(&action))
        }
    }
}
