//! What Jinja reads and minijinja doesn't, or reads otherwise, said in other words before a template
//! is compiled. Lines stay where they are, for the errors.

use std::ops::Range;

/// The method that slices stand for.
pub(super) const SLICE: &str = "__slice";

/// The function that refuses what can't be gone through.
pub(super) const ITERABLE: &str = "__iterable";

/// The source as minijinja is given it.
pub(super) fn rewritten(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let taken = match tag.as_bytes().get(1) {
            Some(b'#') => comment(tag, &mut out),
            Some(b'%' | b'{') => block(tag, &mut out),
            _ => plain(tag, 1, &mut out),
        };
        rest = &tag[taken..];
    }
    out.push_str(rest);
    out
}

fn plain(tag: &str, length: usize, out: &mut String) -> usize {
    out.push_str(&tag[..length]);
    length
}

fn comment(tag: &str, out: &mut String) -> usize {
    let length = tag.find("#}").map_or(tag.len(), |end| end + 2);
    plain(tag, length, out)
}

/// Writes a tag or expression, and gives how much of the text it was.
fn block(tag: &str, out: &mut String) -> usize {
    let mut body = String::new();
    let (length, words) = expression(tag, &mut body);
    match words.first().map(|word| &body[word.clone()]) {
        _ if !body.starts_with("{%") => out.push_str(&body),
        // They mark what a model said, and hide what is set inside.
        Some("generation") => out.push_str(&body.replace("generation", "with")),
        Some("endgeneration") => out.push_str(&body.replace("endgeneration", "endwith")),
        Some("for") => out.push_str(&checked_loop(&body, &words)),
        Some("raw") => return plain(tag, end_of_raw(tag, length), out),
        _ => out.push_str(&body),
    }
    length
}

/// A loop's tag with what it goes through handed to [`ITERABLE`] first: minijinja takes `none`
/// for an empty list, and Python refuses it.
fn checked_loop(body: &str, words: &[Range<usize>]) -> String {
    let found = words.iter().position(|word| &body[word.clone()] == "in");
    let Some(found) = found else {
        return body.to_owned();
    };
    let ends = |word: &&Range<usize>| matches!(&body[(**word).clone()], "if" | "recursive");
    let close = body.trim_end_matches("%}").trim_end_matches(['-', '+']).len();
    let end = words[found..].iter().find(ends).map_or(close, |word| word.start);
    let start = words[found].end;
    format!("{} {ITERABLE}({}) {}", &body[..start], &body[start..end], &body[end..])
}

/// Where the tag begins that ends what is not to be read.
fn end_of_raw(tag: &str, start: usize) -> usize {
    let mut at = start;
    while let Some(found) = tag[at..].find("{%") {
        at += found;
        if tag[at + 2..].trim_start_matches(['-', '+']).trim_start().starts_with("endraw") {
            return at;
        }
        at += 2;
    }
    tag.len()
}

/// An open bracket, where it was written, and the colons between it and its end.
struct Bracket {
    open: char,
    at: usize,
    colons: Vec<usize>,
}

/// Writes a tag's text with its slices as calls of [`SLICE`], which gives lists as Python does.
/// Gives how long it was, and where it has words outside of brackets.
fn expression(tag: &str, out: &mut String) -> (usize, Vec<Range<usize>>) {
    let end = if tag.starts_with("{%") { "%}" } else { "}}" };
    out.push_str(&tag[..2]);
    let (mut brackets, mut words): (Vec<Bracket>, Vec<Range<usize>>) = (vec![], vec![]);
    let mut at = 2;
    while let Some(c) = tag[at..].chars().next() {
        if brackets.is_empty() && tag[at..].starts_with(end) {
            out.push_str(end);
            return (at + end.len(), words);
        }
        let length = match c {
            '"' | '\'' => literal(&tag[at..], c),
            c if is_word(c) => tag[at..].find(|c| !is_word(c)).unwrap_or(tag.len() - at),
            c => c.len_utf8(),
        };
        match c {
            '[' | '(' | '{' => brackets.push(Bracket { open: c, at: out.len(), colons: vec![] }),
            ':' => brackets.last_mut().into_iter().for_each(|b| b.colons.push(out.len())),
            c if is_word(c) && brackets.is_empty() => words.push(out.len()..out.len() + length),
            _ => {}
        }
        out.push_str(&tag[at..at + length]);
        if matches!(c, ']' | ')' | '}')
            && let Some(bracket) = brackets.pop()
            && bracket.open == '['
            && !bracket.colons.is_empty()
        {
            call_slice(out, &bracket);
        }
        at += length;
    }
    (at, words)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// How long a string literal is.
fn literal(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

fn call_slice(out: &mut String, bracket: &Bracket) {
    let ends = bracket.colons.iter().copied().chain([out.len() - 1]);
    let mut start = bracket.at + 1;
    let mut bounds = Vec::new();
    for end in ends {
        bounds.push(start..end);
        start = end + 1;
    }
    let bound = |range: Range<usize>| match &out[range] {
        blank if blank.trim().is_empty() => format!("none{blank}"),
        bound => bound.to_owned(),
    };
    let bounds: Vec<String> = bounds.into_iter().map(bound).collect();
    out.truncate(bracket.at);
    out.push_str(&format!(".{SLICE}({})", bounds.join(",")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_become_calls_and_nothing_else_changes() {
        for (source, expected) in [
            ("{{ a[1:] }}", "{{ a.__slice(1,none) }}"),
            ("{{ a[b[0]:c['x:y']:-1] }}", "{{ a.__slice(b[0],c['x:y'],-1) }}"),
            (
                "{% set x = a[1:][:-1] %}[1:2]",
                "{% set x = a.__slice(1,none).__slice(none,-1) %}[1:2]",
            ),
            ("{{ a[{'k': 1}['k']] }}", "{{ a[{'k': 1}['k']] }}"),
            ("{{ {'a': {'b': [1]}} }} { [1:] }", "{{ {'a': {'b': [1]}} }} { [1:] }"),
            ("{{ '}} [1:]' ~ \"\\\"[2:]\" }}", "{{ '}} [1:]' ~ \"\\\"[2:]\" }}"),
            ("{# {{ a[1:] }} #}{{ a[\n:] }}", "{# {{ a[1:] }} #}{{ a.__slice(none\n,none) }}"),
            ("{%- raw -%}{{ a[1:] }}{% endraw %}", "{%- raw -%}{{ a[1:] }}{% endraw %}"),
            ("{%- generation %}a{%- endgeneration -%}", "{%- with %}a{%- endwith -%}"),
            ("{{ open[1:", "{{ open[1:"),
            (
                "{%- for a, b in c[1:] if b in d -%}",
                "{%- for a, b in __iterable( c.__slice(1,none) ) if b in d -%}",
            ),
            ("{% for x in (y if z else w) %}", "{% for x in __iterable( (y if z else w) ) %}"),
        ] {
            assert_eq!(rewritten(source), expected);
        }
    }
}
