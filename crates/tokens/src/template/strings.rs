//! The methods of Python's `str`.

use super::values::invalid;
use minijinja::value::{Kwargs, from_args};
use minijinja::{Error, ErrorKind, FormatStyle, Value, format_filter};

/// Calls a method of a string.
pub(super) fn call(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Ok(strip(text, chars, name != "rstrip", name != "lstrip").into())
        }
        "split" | "rsplit" => split(text, name == "rsplit", args),
        "partition" | "rpartition" => partition(text, name == "rpartition", args),
        "splitlines" => {
            let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(kwargs.get("keepends")?).unwrap_or(false);
            kwargs.assert_all_used()?;
            Ok(lines(text, keep).into_iter().map(Value::from).collect())
        }
        "join" => {
            let (items,): (Value,) = from_args(args)?;
            let items: Result<Vec<String>, Error> = items
                .try_iter()?
                .map(|item| {
                    let text = item.as_str().map(str::to_owned);
                    text.ok_or_else(|| invalid(format!("join takes strings, not {}", item.kind())))
                })
                .collect();
            Ok(items?.join(text).into())
        }
        "replace" => {
            let (old, new, count, kwargs): (&str, &str, Option<i64>, Kwargs) = from_args(args)?;
            let count = count.or(kwargs.get("count")?).unwrap_or(-1);
            kwargs.assert_all_used()?;
            Ok(text.replacen(old, new, usize::try_from(count).unwrap_or(usize::MAX)).into())
        }
        "startswith" => affixed(args, |affix| text.starts_with(affix)),
        "endswith" => affixed(args, |affix| text.ends_with(affix)),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        "find" | "rfind" | "index" | "rindex" => find(text, name, args),
        "count" => {
            let (wanted,): (&str,) = from_args(args)?;
            Ok(text.matches(wanted).count().into())
        }
        "format" => format_filter(FormatStyle::StrFormat, text, args).map(Value::from),
        "zfill" | "ljust" | "rjust" | "center" => pad(text, name, args),
        _ => plain(text, name, args),
    }
}

/// The methods without arguments.
fn plain(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let all = |test: fn(char) -> bool| Value::from(!text.is_empty() && text.chars().all(test));
    let cased = |right: fn(char) -> bool, wrong: fn(char) -> bool| {
        Value::from(text.chars().any(right) && !text.chars().any(wrong))
    };
    let value = match name {
        "upper" => text.to_uppercase().into(),
        "lower" | "casefold" => text.to_lowercase().into(),
        "title" => title(text).into(),
        "capitalize" => capitalize(text).into(),
        "swapcase" => {
            let swapped = text.chars().flat_map(|c| -> Box<dyn Iterator<Item = char>> {
                if c.is_uppercase() {
                    Box::new(c.to_lowercase())
                } else {
                    Box::new(c.to_uppercase())
                }
            });
            swapped.collect::<String>().into()
        }
        "isspace" => all(is_space),
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii().into(),
        "islower" => cased(char::is_lowercase, char::is_uppercase),
        "isupper" => cased(char::is_uppercase, char::is_lowercase),
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    };
    let () = from_args(args)?;
    Ok(value)
}

/// What Python strips and splits at: more than Unicode's white space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// `str.strip` at either end.
pub(super) fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let strips = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(strips) } else { text };
    if end { text.trim_end_matches(strips) } else { text }
}

fn split(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, most, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(kwargs.get("sep")?).filter(|separator| !separator.is_none());
    let most = most.or(kwargs.get("maxsplit")?).unwrap_or(-1);
    kwargs.assert_all_used()?;
    let pieces = usize::try_from(most).unwrap_or(usize::MAX).saturating_add(1);
    let Some(separator) = separator else {
        return Ok(words(text, from_end, pieces).into_iter().map(Value::from).collect());
    };
    let separator = separator.as_str().ok_or_else(|| invalid("split takes a string".to_owned()))?;
    if separator.is_empty() {
        return Err(invalid("split takes a separator that is not empty".to_owned()));
    }
    let mut parts: Vec<&str> = match from_end {
        false => text.splitn(pieces, separator).collect(),
        true => text.rsplitn(pieces, separator).collect(),
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// `str.split` without a separator: at runs of white space.
fn words(text: &str, from_end: bool, pieces: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = strip(text, None, true, true);
    while !rest.is_empty() {
        let cut = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(cut) = cut.filter(|_| words.len() + 1 < pieces) else {
            break;
        };
        if from_end {
            let width = rest[cut..].chars().next().map_or(1, char::len_utf8);
            words.push(&rest[cut + width..]);
            rest = strip(&rest[..cut], None, false, true);
        } else {
            words.push(&rest[..cut]);
            rest = strip(&rest[cut..], None, true, false);
        }
    }
    if !rest.is_empty() {
        // What is left over by a limit keeps the blanks at its far end.
        let whole =
            if from_end { strip(text, None, false, true) } else { strip(text, None, true, false) };
        let limited = words.len() + 1 == pieces;
        words.push(match (limited, from_end) {
            (true, false) => &whole[whole.len() - rest.len() - trailing(text)..],
            (true, true) => &text[..leading(text) + rest.len()],
            (false, _) => rest,
        });
    }
    if from_end {
        words.reverse();
    }
    words
}

fn leading(text: &str) -> usize {
    text.len() - strip(text, None, true, false).len()
}

fn trailing(text: &str) -> usize {
    text.len() - strip(text, None, false, true).len()
}

fn partition(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    let cut = if from_end { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match (cut, from_end) {
        (Some((before, after)), _) => [before, separator, after],
        (None, false) => [text, "", ""],
        (None, true) => ["", "", text],
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

/// `str.splitlines`.
pub(super) fn lines(text: &str, keep: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    let breaks = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    while !rest.is_empty() {
        let (end, next) = match rest.find(breaks) {
            Some(end) if rest[end..].starts_with("\r\n") => (end, end + 2),
            Some(end) => (end, end + rest[end..].chars().next().map_or(1, char::len_utf8)),
            None => (rest.len(), rest.len()),
        };
        lines.push(if keep { &rest[..next] } else { &rest[..end] });
        rest = &rest[next..];
    }
    lines
}

fn affixed(args: &[Value], has: impl Fn(&str) -> bool) -> Result<Value, Error> {
    let (affixes,): (Value,) = from_args(args)?;
    if let Some(affix) = affixes.as_str() {
        return Ok(has(affix).into());
    }
    if affixes.is_undefined() || affixes.is_none() {
        return Err(invalid(format!(
            "a prefix must be a string or a tuple, not {}",
            affixes.kind()
        )));
    }
    Ok(affixes.try_iter()?.any(|affix| affix.as_str().is_some_and(&has)).into())
}

/// Positions are counted in characters.
fn find(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (wanted, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let length = text.chars().count();
    let place = |position: i64| match usize::try_from(position) {
        Ok(position) => position.min(length),
        Err(_) => length.saturating_sub(usize::try_from(position.unsigned_abs()).unwrap_or(length)),
    };
    let (start, end) = (place(start.unwrap_or(0)), end.map_or(length, place));
    let byte = |position| text.char_indices().nth(position).map_or(text.len(), |(byte, _)| byte);
    let (from, to) = (byte(start), byte(end));
    let part = text.get(from..to).unwrap_or_default();
    let found = if name.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) };
    match found {
        Some(byte) => Ok((start + part[..byte].chars().count()).into()),
        None if name.ends_with("find") => Ok((-1).into()),
        None => Err(invalid("substring not found".to_owned())),
    }
}

fn pad(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<&str>) = from_args(args)?;
    let missing = width.saturating_sub(text.chars().count());
    let fill = |count| fill.unwrap_or(if name == "zfill" { "0" } else { " " }).repeat(count);
    Ok(Value::from(match name {
        "ljust" => format!("{text}{}", fill(missing)),
        // Python puts the odd one before the text when the width is odd too.
        "center" => {
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", fill(left), fill(missing - left))
        }
        "zfill" if text.starts_with(['-', '+']) => {
            format!("{}{}{}", &text[..1], fill(missing), &text[1..])
        }
        _ => format!("{}{text}", fill(missing)),
    }))
}

/// `str.title`: a word begins behind anything that is no letter.
fn title(text: &str) -> String {
    let mut inside = false;
    let mut out = String::new();
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}

/// `str.capitalize`.
pub(super) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    first.collect::<String>() + &chars.as_str().to_lowercase()
}
