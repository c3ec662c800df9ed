//! Halves of letters in JSON.
//!
//! Texts of JavaScript and Java are of UTF-16. One that is cut inside a letter beyond the first
//! 65,536, such as an emoji, ends in half of it, and is written as an escape like `\ud83d`. That is
//! JSON by its grammar, and no text: UTF-8 has no place for it, and so neither have tokenizers.

/// What stands for a letter that cannot be read.
const REPLACEMENT: &[u8] = br"\ufffd";

/// The same JSON with U+FFFD in the place of each half of a letter, and how many there were;
/// absent where there are none. Of bytes that are no JSON, something that is none either.
pub(crate) fn replaced(json: &[u8]) -> Option<(Vec<u8>, u32)> {
    let mut out = Vec::new();
    let (mut at, mut kept, mut count) = (0, 0, 0);
    while let Some(backslash) = json[at..].iter().position(|byte| *byte == b'\\') {
        let escape = at + backslash;
        // A backslash that is escaped begins no escape.
        at = (escape + 2).min(json.len());
        match unit(json, escape) {
            Some(0xD800..=0xDBFF)
                if matches!(unit(json, escape + ESCAPE), Some(0xDC00..=0xDFFF)) =>
            {
                at = escape + 2 * ESCAPE;
            }
            Some(0xD800..=0xDFFF) => {
                out.extend_from_slice(&json[kept..escape]);
                out.extend_from_slice(REPLACEMENT);
                at = escape + ESCAPE;
                kept = at;
                count += 1;
            }
            _ => {}
        }
    }
    out.extend_from_slice(&json[kept..]);
    (count > 0).then_some((out, count))
}

/// Bytes of `\uXXXX`.
const ESCAPE: usize = 6;

/// The unit of UTF-16 that is escaped at a place.
fn unit(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..at + ESCAPE)?.strip_prefix(br"\u")?;
    let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_hex)?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn halves_are_replaced_and_nothing_else() {
        let cases = [
            (r#""a\ud83d""#, r#""a\ufffd""#, 1),
            (r#""\uDE00a""#, r#""\ufffda""#, 1),
            (r#""\ud83d\ud83d\ude00\ude00""#, r#""\ufffd\ud83d\ude00\ufffd""#, 2),
            (r#""\ud83d\n\ude00""#, r#""\ufffd\n\ufffd""#, 2),
            (r#""\\\ud83d""#, r#""\\\ufffd""#, 1),
            ("\"\u{1f600}\\ud83d\u{1f600}\"", "\"\u{1f600}\\ufffd\u{1f600}\"", 1),
        ];
        for (json, mended, count) in cases {
            assert_eq!(replaced(json.as_bytes()), Some((mended.as_bytes().to_vec(), count)));
            serde_json::from_str::<String>(mended).unwrap();
        }
        for whole in [r#""\ud83d\ude00""#, r#""\\ud83d""#, r#""\u00fc\n""#, r#""\ud8"#, r"\", ""] {
            assert_eq!(replaced(whole.as_bytes()), None, "{whole}");
        }
    }

    proptest! {
        /// As any text of UTF-16 is read with its halves replaced.
        #[test]
        fn what_is_left_is_what_a_lossy_reader_reads(units in prop::collection::vec(
            prop_oneof![Just(0xD83D), Just(0xDE00), Just(0x5C), Just(0x22), any::<u16>()], 0..12,
        )) {
            let escaped: String = units.iter().map(|unit| format!("\\u{unit:04x}")).collect();
            let json = format!("\"{escaped}\"");
            let mended = replaced(json.as_bytes()).map_or(json.into_bytes(), |(mended, _)| mended);
            let read: String = serde_json::from_slice(&mended).unwrap();
            prop_assert_eq!(read, String::from_utf16_lossy(&units));
        }
    }
}
