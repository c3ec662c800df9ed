//! JSON that evaluators give, with what is wrong with it in words.

use serde_json::Value;

/// Most characters of an answer that are told.
const MOST_TOLD: usize = 200;
/// What Python and JavaScript write for numbers that JSON has none of, longest first.
const NO_NUMBERS: [&str; 4] = ["-Infinity", "Infinity", "-NaN", "NaN"];

/// Reads an answer. Numbers that JSON does not have come as text, so that whoever looks at the
/// field can say which it is.
pub(super) fn read(bytes: &[u8]) -> Result<Value, String> {
    let text = String::from_utf8_lossy(bytes);
    let read = serde_json::from_str(&text);
    read.or_else(|error| serde_json::from_str(&quoted(&text)).map_err(|_| error)).map_err(|error| {
        let told: String = text.trim().chars().take(MOST_TOLD).collect();
        match told.is_empty() {
            true => "it is empty".to_owned(),
            false => format!("it is no JSON ({error}): {told}"),
        }
    })
}

/// Whether a text stands for a number that is none.
pub(super) fn is_no_number(text: &str) -> bool {
    NO_NUMBERS.contains(&text)
}

/// The same with quotes around numbers that are none.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let taken = match letter {
            '"' => end_of_string(rest),
            _ => match NO_NUMBERS.iter().find(|word| rest.starts_with(**word)) {
                Some(word) => {
                    quoted.extend(["\"", word, "\""]);
                    rest = &rest[word.len()..];
                    continue;
                }
                None => letter.len_utf8(),
            },
        };
        quoted.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    quoted
}

/// Bytes of the string that a text begins with.
fn end_of_string(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.char_indices().skip(1).find(|(_, letter)| {
        let ends = *letter == '"' && !is_escaped;
        is_escaped = *letter == '\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_that_are_none_are_named_and_texts_stay() {
        let text =
            r#"{"a": NaN, "b": [-Infinity, 1.5, Infinity], "c": "NaN \\\" Infinity", "d": "\\"}"#;
        let expected = json!({
            "a": "NaN", "b": ["-Infinity", 1.5, "Infinity"], "c": "NaN \\\" Infinity", "d": "\\",
        });
        assert_eq!(read(text.as_bytes()), Ok(expected));
        assert_eq!(read(b"{\"reward\": 1}"), Ok(json!({"reward": 1})));
        for (bad, words) in [
            (&b""[..], "empty"),
            (b"  ", "empty"),
            (b"{\"reward\": 1", "no JSON"),
            (b"{\"reward\": \"1", "no JSON"),
            (b"reward: NaN", "reward: NaN"),
        ] {
            assert!(read(bad).unwrap_err().contains(words), "{bad:?}");
        }
    }
}
