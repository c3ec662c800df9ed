//! JSON spelled as a model may spell it, and nothing that parses and writes JSON would:
//! keys in reverse order, blanks where none are needed, escapes where none are needed.

use serde_json::{Map, Value};
use std::fmt::Write as _;

/// The object's text.
pub(super) fn object(fields: &Map<String, Value>) -> String {
    let mut text = String::new();
    write_object(&mut text, fields);
    text
}

fn write_object(text: &mut String, fields: &Map<String, Value>) {
    text.push_str("{ ");
    for (index, (key, value)) in fields.iter().rev().enumerate() {
        if index > 0 {
            text.push_str(" ,\n");
        }
        write_string(text, key);
        text.push_str(" :  ");
        write_value(text, value);
    }
    text.push_str(" }");
}

fn write_value(text: &mut String, value: &Value) {
    match value {
        Value::String(string) => write_string(text, string),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index > 0 { ",  " } else { " " });
                write_value(text, item);
            }
            text.push_str(" ]");
        }
        Value::Object(fields) => write_object(text, fields),
        plain => text.push_str(&plain.to_string()),
    }
}

/// Every other character outside ASCII is escaped, and so is every slash.
fn write_string(text: &mut String, string: &str) {
    text.push('"');
    let mut escape = false;
    for character in string.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '/' => text.push_str("\\/"),
            '\n' => text.push_str("\\n"),
            plain if (' '..='~').contains(&plain) => text.push(plain),
            other => {
                escape = !escape || other.is_control();
                if escape {
                    escaped(text, other);
                } else {
                    text.push(other);
                }
            }
        }
    }
    text.push('"');
}

fn escaped(text: &mut String, character: char) {
    let mut units = [0; 2];
    for unit in character.encode_utf16(&mut units) {
        // Writing to a string cannot fail.
        let _ = write!(text, "\\u{unit:04X}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn it_reads_back_as_what_it_was_and_is_spelled_otherwise() {
        let value = json!({"command": "echo \"é/ü\" \\ > x\n\u{1}😀", "n": [1.0, null], "o": {"a": 1, "b": {}}});
        let text = object(value.as_object().unwrap());
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        assert!(text.starts_with("{ \"o\" :  { \"b\" :"), "{text}");
        assert!(text.contains("\\u00E9\\/ü"), "{text}");
        assert!(text.contains("\\u0001"), "{text}");
    }
}
