//! JSON spelled the way Python's `json.dumps` spells it.
//!
//! Chat templates and the engines' tool parsers run in Python; a space or an exponent written
//! differently changes token ids.

use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, Serializer};
use std::io::{self, Write};

/// `value` as `json.dumps(value, ensure_ascii=False)` gives it.
pub fn dumps<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    dumps_as(value, &Spelling::default())
}

/// `value` as `json.dumps` gives it with these arguments.
pub fn dumps_as<T: Serialize + ?Sized>(
    value: &T,
    spelling: &Spelling,
) -> Result<String, serde_json::Error> {
    let mut out = Vec::new();
    let formatter = PythonFormatter { spelling, depth: 0, empty: true };
    value.serialize(&mut Serializer::with_formatter(&mut out, formatter))?;
    String::from_utf8(out).map_err(|e| serde::ser::Error::custom(e.utf8_error()))
}

/// The arguments of `json.dumps` that change how a value is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spelling {
    /// Everything outside ASCII is written as `\uXXXX`.
    pub ensure_ascii: bool,
    /// Each item stands on its own line, behind this as often as it is deep.
    pub indent: Option<String>,
    /// Between items.
    pub item_separator: String,
    /// Between key and value.
    pub key_separator: String,
}

impl Default for Spelling {
    fn default() -> Self {
        Self {
            ensure_ascii: false,
            indent: None,
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
        }
    }
}

struct PythonFormatter<'a> {
    spelling: &'a Spelling,
    depth: usize,
    /// Whether nothing was written yet in the innermost array or object.
    empty: bool,
}

impl PythonFormatter<'_> {
    fn open<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        out.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.empty {
            self.new_line(out)?;
        }
        self.empty = false;
        out.write_all(bracket)
    }

    fn item<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.empty = false;
        if !first {
            out.write_all(self.spelling.item_separator.as_bytes())?;
        }
        self.new_line(out)
    }

    fn new_line<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        if let Some(indent) = &self.spelling.indent {
            out.write_all(b"\n")?;
            out.write_all(indent.repeat(self.depth).as_bytes())?;
        }
        Ok(())
    }
}

impl Formatter for PythonFormatter<'_> {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.spelling.key_separator.as_bytes())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.spelling.ensure_ascii {
            return out.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            if matches!(c, ' '..='~') {
                out.write_all(&[c as u8])?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        CompactFormatter.write_char_escape(out, escape)
    }
}

/// Python's `repr` of a finite float: shortest digits, exponent form outside
/// 1e-4..1e16, exponent of at least two digits.
pub(crate) fn float(value: f64) -> String {
    let shortest = format!("{value:e}");
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn spacing_and_text_are_pythons() {
        let value = json!({"b": [1, "é\u{2028}<&>"], "a": {}, "c": [], "d": null, "e": true});
        assert_eq!(
            dumps(&value).unwrap(),
            "{\"b\": [1, \"é\u{2028}<&>\"], \"a\": {}, \"c\": [], \"d\": null, \"e\": true}"
        );
        assert_eq!(
            dumps(&json!("q\"\\\n\t\u{1}\u{7f}")).unwrap(),
            r#""q\"\\\n\t\u0001"#.to_owned() + "\u{7f}\""
        );
    }

    #[test]
    fn floats_are_pythons() {
        for (value, spelled) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e-7, "1e-07"),
            (1.5e-9, "1.5e-09"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e16, "1e+16"),
            (1e22, "1e+22"),
            (123_456_789_012_345.6, "123456789012345.6"),
            (1e15, "1000000000000000.0"),
            (1.5e300, "1.5e+300"),
        ] {
            assert_eq!(dumps(&value).unwrap(), spelled);
        }
    }

    #[test]
    fn arguments_of_dumps_change_the_spelling() {
        let value = json!({"a": ["é🎉\u{7f}\n", []], "b": {}, "c": {"d": 1}});
        let ascii = Spelling { ensure_ascii: true, ..Spelling::default() };
        assert_eq!(
            dumps_as(&value, &ascii).unwrap(),
            r#"{"a": ["\u00e9\ud83c\udf89\u007f\n", []], "b": {}, "c": {"d": 1}}"#
        );
        let indented = Spelling {
            indent: Some("  ".to_owned()),
            item_separator: ",".to_owned(),
            ..Spelling::default()
        };
        assert_eq!(
            dumps_as(&json!({"a": [1, []], "b": {}, "c": {"d": 1}}), &indented).unwrap(),
            "{\n  \"a\": [\n    1,\n    []\n  ],\n  \"b\": {},\n  \"c\": {\n    \"d\": 1\n  }\n}"
        );
    }
}
