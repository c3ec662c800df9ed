//! What models write.

use crate::pieces;
use polar_tokens::parse::{
    MalformedCall, ParsedEvent, ParserFamily, ReplyParser, ReplyStart, ToolSchemas,
};
use serde_json::json;

const TOOL_FORMATS: &[&str] = &[
    "hermes",
    "qwen3_coder",
    "glm45",
    "deepseek_v3",
    "deepseek_v31",
    "kimi_k2",
    "openai",
    "llama3_json",
    "mistral",
    "none",
];
const REASONING_FORMATS: &[&str] =
    &["none", "qwen3", "deepseek_r1", "deepseek_v3", "glm45", "kimi_k2", "gpt_oss", "mistral"];

/// A reply gives the same parts wherever it is cut. The first two bytes choose the family and
/// where the reply begins; the rest is the text.
pub fn any_chunking_gives_the_same_parts(data: &[u8]) {
    let [tools, reasoning, text @ ..] = data else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let (family, start) = family(*tools, *reasoning);
    let whole = parts(family, start, [text]);
    assert_eq!(parts(family, start, pieces::text(text)), whole);
    let characters = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
    assert_eq!(parts(family, start, characters), whole);
}

/// The two bytes that choose a family; see [`any_chunking_gives_the_same_parts`].
pub fn chosen_by(wanted: ParserFamily, start: ReplyStart) -> Option<[u8; 2]> {
    let bytes = (0..=u8::MAX).flat_map(|tools| (0..=u8::MAX).map(move |other| [tools, other]));
    bytes.into_iter().find(|[tools, other]| family(*tools, *other) == (wanted, start))
}

fn family(tools: u8, reasoning: u8) -> (ParserFamily, ReplyStart) {
    let (tools, reasoning) = (usize::from(tools), usize::from(reasoning));
    let starts = [ReplyStart::Usual, ReplyStart::InReasoning, ReplyStart::Fresh];
    let family = ParserFamily {
        tools: TOOL_FORMATS[tools % TOOL_FORMATS.len()].parse().unwrap(),
        reasoning: REASONING_FORMATS[reasoning % REASONING_FORMATS.len()].parse().unwrap(),
    };
    (family, starts[reasoning / REASONING_FORMATS.len() % starts.len()])
}

#[derive(Debug, PartialEq)]
enum Part {
    Reasoning(String),
    Text(String),
    Call { name: String, id: Option<String>, arguments: String, closed: bool },
    Malformed(MalformedCall),
}

fn parts<'a>(
    family: ParserFamily,
    start: ReplyStart,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Vec<Part> {
    let mut parser = ReplyParser::new(family, start, tools());
    let mut parts = Vec::new();
    for piece in pieces {
        parser.push(piece).into_iter().for_each(|event| add(&mut parts, event));
    }
    parser.finish().into_iter().for_each(|event| add(&mut parts, event));
    let open = parts.iter().any(|part| matches!(part, Part::Call { closed: false, .. }));
    assert!(!open, "a call has no end");
    parts
}

fn add(parts: &mut Vec<Part>, event: ParsedEvent) {
    let calls = parts.iter().filter(|part| matches!(part, Part::Call { .. })).count() as u32;
    match (event, parts.last_mut()) {
        (ParsedEvent::CallArguments { index, fragment }, last) => {
            let Some(Part::Call { arguments, closed: false, .. }) = last else {
                panic!("arguments outside of a call")
            };
            assert!(index + 1 == calls && !fragment.is_empty());
            arguments.push_str(&fragment);
        }
        (ParsedEvent::CallEnd { index }, last) => {
            let Some(Part::Call { closed: closed @ false, .. }) = last else {
                panic!("an end outside of a call")
            };
            assert_eq!(index + 1, calls);
            *closed = true;
        }
        (event, Some(Part::Call { closed: false, .. })) => panic!("{event:?} inside of a call"),
        (ParsedEvent::Text(more), Some(Part::Text(text)))
        | (ParsedEvent::Reasoning(more), Some(Part::Reasoning(text))) => text.push_str(&more),
        (ParsedEvent::Text(text), _) => parts.push(Part::Text(text)),
        (ParsedEvent::Reasoning(text), _) => parts.push(Part::Reasoning(text)),
        (ParsedEvent::CallBegin { index, id, name }, _) => {
            assert_eq!(index, calls);
            parts.push(Part::Call { name, id, arguments: String::new(), closed: false });
        }
        (ParsedEvent::Malformed(call), _) => parts.push(Part::Malformed(call)),
    }
}

/// With parameters of each type that the families' formats have a rule for.
fn tools() -> ToolSchemas {
    let write = json!({"type": "object", "properties": {
        "path": {"type": "string"},
        "mode": {"type": "integer"},
        "force": {"type": "boolean"},
        "factor": {"type": "number"},
        "options": {"type": "object"},
        "tags": {"type": ["array", "null"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }});
    let none = json!({"type": "object", "properties": {}});
    [("write_file", write), ("list_files", none)]
        .map(|(name, schema)| (name.to_owned(), schema))
        .into_iter()
        .collect()
}
