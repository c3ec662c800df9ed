//! JSON spelled the way Python's `json.dumps(value, ensure_ascii=False)` spells it.
//!
//! Chat templates and vLLM's tool parsers run in Python; a space or an exponent written
//! differently changes token ids.

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::io::{self, Write};

/// `value` as Python would dump it.
pub(crate) fn dumps<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    let mut out = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut out, PythonFormatter))?;
    String::from_utf8(out).map_err(|e| serde::ser::Error::custom(e.utf8_error()))
}

struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(float(value).as_bytes())
    }
}

/// Python's `repr` of a finite float: shortest digits, exponent form outside
/// 1e-4..1e16, exponent of at least two digits.
fn float(value: f64) -> String {
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
}
