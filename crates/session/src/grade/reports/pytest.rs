//! pytest: the lines of `-v` and the summary of `-rA`, also those of pytest-xdist.

use super::{Report, Status};

pub(super) fn read(text: &str) -> Report {
    let mut report = Report::default();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let summary = lines.iter().rposition(|line| heading(line) == Some("short test summary info"));
    // Behind the first of these, lines may be what tests printed.
    let details = lines
        .iter()
        .position(|line| matches!(heading(line), Some("FAILURES" | "ERRORS" | "PASSES")))
        .or(summary)
        .unwrap_or(lines.len());
    for (name, status) in lines[..details].iter().filter_map(|line| progress(line)) {
        report.add(name, status);
    }
    for line in lines.iter().skip(summary.map_or(lines.len(), |at| at + 1)) {
        if let Some((name, status)) = summarised(line) {
            report.add(name, status);
        }
    }
    report
}

/// The words in a line such as `==== FAILURES ====`.
fn heading(line: &str) -> Option<&str> {
    let words = line.strip_prefix('=')?.strip_suffix('=')?;
    Some(words.trim_matches('=').trim())
}

fn status(word: &str) -> Option<Status> {
    match word {
        // Expected to fail and did, or did better.
        "PASSED" | "XFAIL" | "XPASS" => Some(Status::Passed),
        "FAILED" | "ERROR" => Some(Status::Failed),
        "SKIPPED" => Some(Status::Skipped),
        _ => None,
    }
}

/// `NAME PASSED [ 50%]`, or `[gw0] [ 50%] PASSED NAME`.
fn progress(line: &str) -> Option<(&str, Status)> {
    if let Some(behind) = line.strip_prefix("[gw") {
        let (_, rest) = behind.split_once("%] ")?;
        let (word, name) = rest.split_once(' ')?;
        return Some((name, status(word)?)).filter(|(name, _)| name.contains("::"));
    }
    let line = match line.rsplit_once(" [") {
        Some((before, share)) if share.ends_with("%]") => before.trim_end(),
        _ => line,
    };
    // The reason of a skip is told behind it.
    let line = match line.rsplit_once(" (") {
        Some((before, reason)) if reason.ends_with(')') => before,
        _ => line,
    };
    let (name, word) = line.rsplit_once(' ')?;
    Some((name.trim_end(), status(word)?)).filter(|(name, _)| name.contains("::"))
}

/// `FAILED NAME - reason` and the like.
fn summarised(line: &str) -> Option<(&str, Status)> {
    let (word, rest) = line.split_once(' ')?;
    // Skips are told by place, not by name.
    let status = status(word).filter(|status| *status != Status::Skipped)?;
    Some((without_reason(rest), status)).filter(|(name, _)| name.contains(".py"))
}

/// Parameters may have hyphens too: the reason begins behind the last bracket of the name.
fn without_reason(text: &str) -> &str {
    let balanced = |text: &str| text.matches('[').count() == text.matches(']').count();
    let mut ends = text.match_indices(" - ").map(|(at, _)| at);
    let first = ends.clone().next();
    let end = ends.find(|&at| balanced(&text[..at])).or(first);
    end.map_or(text, |end| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::without_reason;

    #[test]
    fn names_end_where_reasons_begin() {
        for (text, name) in [
            ("t.py::a - assert [1] - x", "t.py::a"),
            ("t.py::a[b - c] - assert", "t.py::a[b - c]"),
            ("t.py::a[x[y]]", "t.py::a[x[y]]"),
            ("t.py::a[[] - assert", "t.py::a[[]"),
        ] {
            assert_eq!(without_reason(text), name, "{text}");
        }
    }
}
