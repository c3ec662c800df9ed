//! Events joined to the parts of a reply.

use polar_tokens::parse::{
    Fault, MalformedCall, ParsedEvent, ParserFamily, ReasoningFormat, ReplyParser, ReplyStart,
    ToolFormat, ToolSchemas,
};
use serde_json::json;

/// A part of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Reasoning(String),
    Text(String),
    Call { name: String, id: Option<String>, arguments: String },
    Malformed(MalformedCall),
}

/// A reply as a model writes it, and what is in it.
pub(crate) struct Fixture {
    pub(crate) name: &'static str,
    pub(crate) family: ParserFamily,
    pub(crate) start: ReplyStart,
    pub(crate) text: &'static str,
    pub(crate) parts: Vec<Part>,
}

impl Fixture {
    pub(crate) fn parse<'a>(&self, pieces: impl IntoIterator<Item = &'a str>) -> Vec<Part> {
        fold(self.family, self.start, pieces)
    }
}

/// Parses and joins. Checks the order of events on the way.
pub(crate) fn fold<'a>(
    family: ParserFamily,
    start: ReplyStart,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Vec<Part> {
    fold_with(family, start, tools(), pieces)
}

pub(crate) fn fold_with<'a>(
    family: ParserFamily,
    start: ReplyStart,
    tools: ToolSchemas,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Vec<Part> {
    let mut parser = ReplyParser::new(family, start, tools);
    let mut parts = Parts::default();
    for piece in pieces {
        parser.push(piece).into_iter().for_each(|event| parts.push(event));
    }
    parser.finish().into_iter().for_each(|event| parts.push(event));
    assert_eq!(parts.open, None, "a call has no end");
    parts.parts
}

#[derive(Default)]
struct Parts {
    parts: Vec<Part>,
    calls: u32,
    open: Option<u32>,
}

impl Parts {
    fn push(&mut self, event: ParsedEvent) {
        match event {
            ParsedEvent::CallArguments { index, fragment } => {
                assert_eq!(self.open, Some(index));
                assert!(!fragment.is_empty());
                let Some(Part::Call { arguments, .. }) = self.parts.last_mut() else { panic!() };
                arguments.push_str(&fragment);
            }
            ParsedEvent::CallEnd { index } => assert_eq!(self.open.take(), Some(index)),
            other => {
                assert_eq!(self.open, None, "{other:?} inside of a call");
                self.begin(other);
            }
        }
    }

    fn begin(&mut self, event: ParsedEvent) {
        match (event, self.parts.last_mut()) {
            (ParsedEvent::Text(more), Some(Part::Text(text)))
            | (ParsedEvent::Reasoning(more), Some(Part::Reasoning(text))) => text.push_str(&more),
            (ParsedEvent::Text(text), _) => self.parts.push(Part::Text(text)),
            (ParsedEvent::Reasoning(text), _) => self.parts.push(Part::Reasoning(text)),
            (ParsedEvent::CallBegin { index, id, name }, _) => {
                assert_eq!(index, self.calls);
                self.calls += 1;
                self.open = Some(index);
                self.parts.push(Part::Call { name, id, arguments: String::new() });
            }
            (ParsedEvent::Malformed(call), _) => self.parts.push(Part::Malformed(call)),
            (ParsedEvent::CallArguments { .. } | ParsedEvent::CallEnd { .. }, _) => panic!(),
        }
    }
}

pub(crate) fn tools() -> ToolSchemas {
    let weather = json!({"type": "object", "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "factor": {"type": "number"},
        "where": {"type": "object", "properties": {"lat": {"type": "number"}}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "tags": {"type": ["array", "null"]},
    }});
    [("get_weather", weather), ("now", json!({"type": "object", "properties": {}}))]
        .map(|(name, schema)| (name.to_owned(), schema))
        .into_iter()
        .collect()
}

pub(crate) fn family(tools: ToolFormat, reasoning: ReasoningFormat) -> ParserFamily {
    ParserFamily { tools, reasoning }
}

pub(crate) fn reasoning(text: &str) -> Part {
    Part::Reasoning(text.to_owned())
}

pub(crate) fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

pub(crate) fn call(name: &str, arguments: &str) -> Part {
    Part::Call { name: name.to_owned(), id: None, arguments: arguments.to_owned() }
}

pub(crate) fn call_with_id(id: &str, name: &str, arguments: &str) -> Part {
    let (name, arguments) = (name.to_owned(), arguments.to_owned());
    Part::Call { name, id: Some(id.to_owned()), arguments }
}

pub(crate) fn malformed(index: u32, name: &str, fault: Fault, raw: &str) -> Part {
    let (name, raw) = (Some(name.to_owned()), raw.to_owned());
    Part::Malformed(MalformedCall { index: Some(index), name, fault, raw })
}

pub(crate) fn nameless(fault: Fault, raw: &str) -> Part {
    Part::Malformed(MalformedCall { index: None, name: None, fault, raw: raw.to_owned() })
}
