//! Custom tools, which take any text, as functions with one argument of that text.
//!
//! Engines sample the arguments of a function as JSON. [`InputReader`] takes the text out of
//! them while they are sampled. Arguments that do not begin as they should are the text
//! themselves: a tool can refuse them in words that the model can act on.

use crate::Tool;
use serde_json::{Map, Value, json};

/// The function that stands for a custom tool. A grammar is told to the model in words.
pub(super) fn tool(
    name: String,
    description: Option<String>,
    grammar: Option<(String, String)>,
) -> Tool {
    let mut text = description.unwrap_or_default();
    if let Some((syntax, definition)) = grammar {
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        text.push_str(&format!("The input must match this {syntax} grammar:\n{definition}"));
    }
    let parameters = json!({
        "type": "object",
        "properties": {"input": {"type": "string", "description": "The tool's input, as it is."}},
        "required": ["input"],
        "additionalProperties": false,
    });
    Tool { name, description: (!text.is_empty()).then_some(text), parameters, rest: Map::new() }
}

/// The arguments of a call with this input, where their own spelling is not known.
pub(super) fn arguments(input: &str) -> String {
    format!("{{\"input\":{}}}", Value::from(input))
}

/// The input in a call's whole arguments.
pub(super) fn input(arguments: &str) -> String {
    let mut reader = InputReader::default();
    let mut input = reader.push(arguments);
    input.push_str(&reader.finish());
    input
}

/// Takes the input out of arguments that come in pieces. However they are cut, the pieces that
/// come out make the same text.
#[derive(Debug)]
pub(super) enum InputReader {
    /// It is not clear yet how the arguments begin.
    Beginning(String),
    /// Within the JSON string. Holds an escape that is not whole.
    Text(String),
    /// No JSON as it should be.
    Raw,
    /// The string has ended.
    Ended,
}

impl Default for InputReader {
    fn default() -> Self {
        Self::Beginning(String::new())
    }
}

impl InputReader {
    /// What is new of the input.
    pub(super) fn push(&mut self, fragment: &str) -> String {
        match self {
            Self::Raw => fragment.to_owned(),
            Self::Ended => String::new(),
            Self::Text(_) => self.read_text(fragment),
            Self::Beginning(seen) => {
                seen.push_str(fragment);
                let seen = std::mem::take(seen);
                match after_beginning(&seen) {
                    Beginning::Open => {
                        *self = Self::Beginning(seen);
                        String::new()
                    }
                    Beginning::Whole(text) => {
                        *self = Self::Text(String::new());
                        self.read_text(text)
                    }
                    Beginning::Other => {
                        *self = Self::Raw;
                        seen
                    }
                }
            }
        }
    }

    /// What is left when no more arguments come.
    pub(super) fn finish(&mut self) -> String {
        match std::mem::replace(self, Self::Ended) {
            Self::Beginning(rest) | Self::Text(rest) => rest,
            Self::Raw | Self::Ended => String::new(),
        }
    }

    fn read_text(&mut self, fragment: &str) -> String {
        let mut out = String::with_capacity(fragment.len());
        for c in fragment.chars() {
            let Self::Text(escape) = self else { break };
            if !escape.is_empty() {
                escape.push(c);
                if let Some(again) = unescape(escape, &mut out) {
                    out.push_str(&self.read_text(&again));
                }
            } else if c == '\\' {
                escape.push(c);
            } else if c == '"' {
                *self = Self::Ended;
            } else {
                out.push(c);
            }
        }
        out
    }
}

enum Beginning<'a> {
    /// More is needed to tell.
    Open,
    /// The string has begun; what stands of it.
    Whole(&'a str),
    /// Something else.
    Other,
}

fn after_beginning(arguments: &str) -> Beginning<'_> {
    let mut rest = arguments;
    for token in ["{", "\"input\"", ":", "\""] {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        match rest.strip_prefix(token) {
            Some(after) => rest = after,
            None if token.starts_with(rest) => return Beginning::Open,
            None => return Beginning::Other,
        }
    }
    Beginning::Whole(rest)
}

/// Writes an escape once it is whole, and empties it. One that is none is written as it is.
/// Returns what turned out not to belong to it and is to be read again.
fn unescape(escape: &mut String, out: &mut String) -> Option<String> {
    let simple = match escape.as_str() {
        "\\\"" => '"',
        "\\\\" => '\\',
        "\\/" => '/',
        "\\b" => '\u{8}',
        "\\f" => '\u{c}',
        "\\n" => '\n',
        "\\r" => '\r',
        "\\t" => '\t',
        begun if may_become_unicode(begun) => return None,
        whole => {
            let (text, again) = unicode(whole);
            out.push_str(&text);
            escape.clear();
            return again;
        }
    };
    out.push(simple);
    escape.clear();
    None
}

/// Whether more may come of an escape `\uXXXX`, or of a surrogate pair of two.
fn may_become_unicode(escape: &str) -> bool {
    let bytes = escape.as_bytes();
    let begun = |bytes: &[u8]| {
        bytes.iter().enumerate().all(|(i, byte)| match i {
            0 => *byte == b'\\',
            1 => *byte == b'u',
            _ => byte.is_ascii_hexdigit(),
        })
    };
    match bytes.len() {
        0..6 => begun(bytes),
        len => {
            len < 12
                && begun(&bytes[..6])
                && matches!(code_unit(&bytes[..6]), Some(0xD800..0xDC00))
                && begun(&bytes[6..])
        }
    }
}

fn code_unit(escape: &[u8]) -> Option<u16> {
    let digits = escape.get(2..6).and_then(|digits| std::str::from_utf8(digits).ok())?;
    u16::from_str_radix(digits, 16).ok()
}

/// What one escape `\uXXXX` or a pair of them stands for, and what is to be read again. Half a
/// pair is a mark that something is missing.
fn unicode(escape: &str) -> (String, Option<String>) {
    let bytes = escape.as_bytes();
    let Some(first) = code_unit(bytes).filter(|_| bytes.starts_with(b"\\u")) else {
        // Its last character is what made it none.
        let mut text = escape.to_owned();
        let again = text.pop().map(String::from);
        return (text, again);
    };
    let second = bytes.get(6..).and_then(code_unit);
    match (bytes.len(), second) {
        (6, _) => (String::from_utf16_lossy(&[first]), None),
        (12, Some(second)) => (String::from_utf16_lossy(&[first, second]), None),
        _ => (String::from_utf16_lossy(&[first]), escape.get(6..).map(str::to_owned)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_input_is_the_text_of_the_one_argument_or_all_that_was_said() {
        for (arguments, expected) in [
            (r#"{"input": "a\nb\u00e9\ud83d\ude00\/\"\\"}"#, "a\nbé😀/\"\\"),
            ("  {\n \"input\" : \"x\" }", "x"),
            (r#"{"input":"cut"#, "cut"),
            (r#"{"input":"cut\u00"#, "cut\\u00"),
            (r#"{"input":"half \ud83d."}"#, "half \u{FFFD}."),
            (r#"{"input":"half \ud83d"}"#, "half \u{FFFD}"),
            (r#"{"input":"half \ud83d\n"}"#, "half \u{FFFD}\n"),
            (r#"{"input":"\q"}"#, "\\q"),
            (r#"{"input":"\u1"}"#, "\\u1"),
            (r#"{"input":"x","more":1}"#, "x"),
            (r#"{"patch":"x"}"#, r#"{"patch":"x"}"#),
            ("*** Begin Patch", "*** Begin Patch"),
            (r#"{"input": 5}"#, r#"{"input": 5}"#),
            (r#"{"inp"#, r#"{"inp"#),
            ("", ""),
        ] {
            assert_eq!(input(arguments), expected, "{arguments}");
        }
    }

    proptest! {
        #[test]
        fn any_text_comes_back_from_its_arguments(text in any::<String>()) {
            prop_assert_eq!(input(&arguments(&text)), text);
        }

        #[test]
        fn any_cut_of_the_arguments_gives_the_same_input(
            text in "[a-z\"\\\\u0-9{}: dD8cCé]{0,40}",
            escaped in any::<bool>(),
            cuts in prop::collection::vec(0usize..60, 0..6),
        ) {
            let whole = if escaped { arguments(&text) } else { format!("{{\"input\":\"{text}") };
            let mut reader = InputReader::default();
            let mut read = String::new();
            let mut cuts: Vec<usize> =
                cuts.into_iter().filter(|at| whole.is_char_boundary(*at)).collect();
            cuts.sort_unstable();
            let mut from = 0;
            for to in cuts.into_iter().chain([whole.len()]) {
                read += &reader.push(&whole[from..to]);
                from = to;
            }
            read += &reader.finish();
            prop_assert_eq!(read, input(&whole));
        }
    }
}
