//! Tables and coloured tokens, for people.

use polar_types::{
    CallRole, EndReason, LayoutSize, RoleCounts, SessionInfo, SessionReport, TokenCounts, Trace,
    TrainingSizes, TranslationCounts, UntrainedReason,
};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal;

/// Whether stdout gets colours.
pub(crate) fn colours() -> bool {
    colours_of(&std::io::stdout())
}

/// Whether an output gets colours: a terminal that has not been told otherwise.
pub(crate) fn colours_of(output: &impl IsTerminal) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|said| !said.is_empty());
    output.is_terminal() && !refused
}

/// Text with what a terminal would obey in place of showing it (escapes, marks that turn the
/// direction of writing) spelled out, but for the ends of lines. Agents print what they like.
pub(crate) fn spelled_out(text: &str) -> String {
    let obeyed = |letter: char| match letter {
        '\n' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        _ => letter.is_control(),
    };
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match obeyed(letter) {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

/// A table with columns as wide as their widest cell; numbers to the right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let numeric: Vec<bool> = (0..header.len())
        .map(|column| {
            rows.iter().all(|row| {
                row.get(column)
                    .is_some_and(|cell| cell == "-" || cell.replace('%', "").parse::<f64>().is_ok())
            })
        })
        .collect();
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut row = String::new();
        for (column, cell) in cells.enumerate() {
            let width = widths.get(column).copied().unwrap_or_default();
            let right = numeric.get(column).copied().unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = if right {
                write!(row, "{cell:>width$}  ")
            } else {
                write!(row, "{cell:<width$}  ")
            };
        }
        text.push_str(row.trim_end());
        text.push('\n');
    };
    line(&mut header.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

/// One row per session: what came out, and where its tokens went.
pub(crate) fn session_table(sessions: &[&SessionInfo]) -> String {
    let header = [
        "session",
        "status",
        "reward",
        "calls",
        "traces",
        "sampled",
        "trained",
        "untrained",
        "context",
        "forks",
    ];
    let rows: Vec<Vec<String>> = sessions
        .iter()
        .map(|session| {
            let mut row = vec![
                session.session_id.to_string(),
                status(session),
                session.reward.map_or("-".to_owned(), |reward| format!("{reward:.3}")),
            ];
            match session.report() {
                Some(report) => {
                    let tokens = &report.tokens;
                    row.extend([
                        calls(report),
                        report.traces.to_string(),
                        tokens.sampled.to_string(),
                        tokens.trained.to_string(),
                        untrained(tokens),
                        tokens.context.to_string(),
                        forks(&report.forks),
                    ]);
                }
                None => row.extend(std::iter::repeat_n("-".to_owned(), 7)),
            }
            row
        })
        .collect();
    table(&header, &rows)
}

/// Where it stands, with the reason where the status does not say it.
fn status(session: &SessionInfo) -> String {
    let status = session.status.as_str();
    match session.reason {
        None | Some(EndReason::Completed | EndReason::AgentTimeout | EndReason::Cancelled) => {
            status.to_owned()
        }
        Some(reason) => format!("{status}: {}", reason.as_str()),
    }
}

/// What a session waits for, or why it ended as it did; nothing where there is nothing to say.
pub(crate) fn explanation(session: &SessionInfo) -> Option<String> {
    let id = &session.session_id;
    if let Some(waiting) = &session.waiting_for {
        return Some(format!("{id} waits for {waiting}"));
    }
    let reason = session.reason.filter(|reason| *reason != EndReason::Completed)?.as_str();
    Some(match &session.reason_detail {
        Some(detail) => format!("{id}: {reason}: {detail}"),
        None => format!("{id}: {reason}"),
    })
}

/// How many calls there are, and of which roles when not all are the agent's own.
fn calls(report: &SessionReport) -> String {
    let is_plain = report.roles.keys().all(|role| *role == CallRole::Main);
    if is_plain {
        return report.calls.to_string();
    }
    let of_role =
        |(role, counts): (&CallRole, &RoleCounts)| format!("{} {}", counts.calls, role.as_str());
    report.roles.iter().map(of_role).collect::<Vec<_>>().join(", ")
}

/// `sampled == trained + untrained`, spelled out for a whole task.
pub(crate) fn conservation(tokens: &TokenCounts) -> String {
    let relation = if tokens.is_conserved() { "==" } else { "!=" };
    format!(
        "{} sampled {relation} {} trained + {} untrained with a reason",
        tokens.sampled,
        tokens.trained,
        tokens.untrained.values().sum::<u64>()
    )
}

/// `1 trace`, `2 traces`.
pub(crate) fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// What a trainer has to run of a task, in each layout.
pub(crate) fn sizes(sizes: &TrainingSizes) -> String {
    let layout = |name: &str, size: &LayoutSize| {
        let percent = 100.0 * size.share;
        let samples = counted(size.samples, "sample");
        format!("{samples} of {} tokens as {name} ({percent:.0}%)", size.tokens)
    };
    [
        layout("per_request", &sizes.per_request),
        layout("prefix_merging", &sizes.prefix_merging),
        layout("prefix_tree", &sizes.prefix_tree),
    ]
    .join(", ")
}

/// Of how many calls what was said did not reach the engine as it was sent; nothing where all
/// did. The names are those of docs/dialects.md.
pub(crate) fn translation(counts: &TranslationCounts) -> String {
    let mut text = String::new();
    for (what, counts) in [
        ("lost in translation", &counts.losses),
        ("history restored", &counts.restored),
        ("history edited by the harness", &counts.edited),
        ("volatile text taken out", &counts.normalised),
    ] {
        if !counts.is_empty() {
            let parts: Vec<_> =
                counts.iter().map(|(name, calls)| format!("{name} in {calls}")).collect();
            text.push_str(&format!("{what} (calls): {}\n", parts.join(", ")));
        }
    }
    text
}

fn untrained(tokens: &TokenCounts) -> String {
    let parts: Vec<String> = tokens
        .untrained
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{count} {}", reason_word(*reason)))
        .collect();
    if parts.is_empty() { "0".to_owned() } else { parts.join(", ") }
}

fn reason_word(reason: UntrainedReason) -> String {
    json_word(&reason)
}

fn forks(forks: &BTreeMap<polar_types::ForkCause, u32>) -> String {
    let parts: Vec<String> =
        forks.iter().map(|(cause, count)| format!("{count} {}", json_word(cause))).collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

/// The name a unit variant has in JSON, which is the name the docs use.
fn json_word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "?".to_owned(),
    }
}

/// A run of equal mask in a trace.
pub(crate) struct Span<'a> {
    pub(crate) ids: &'a [u32],
    pub(crate) kind: SpanKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanKind {
    /// Context before the first sampled token.
    Prompt,
    /// Context between sampled tokens.
    Context,
    /// Trained tokens.
    Trained,
}

/// Splits a trace where the mask changes.
pub(crate) fn spans(trace: &Trace) -> Vec<Span<'_>> {
    let mut spans = vec![Span { ids: &trace.prompt_ids, kind: SpanKind::Prompt }];
    let mut start = 0;
    for position in 1..=trace.loss_mask.len() {
        let ends = position == trace.loss_mask.len()
            || trace.loss_mask[position] != trace.loss_mask[start];
        if ends {
            let kind =
                if trace.loss_mask[start] == 1 { SpanKind::Trained } else { SpanKind::Context };
            spans.push(Span { ids: &trace.response_ids[start..position], kind });
            start = position;
        }
    }
    spans
}

/// Text of a span: green where trained, dim where context; brackets where there are no
/// colours.
pub(crate) fn paint(text: &str, kind: SpanKind, colours: bool) -> String {
    match (kind, colours) {
        (SpanKind::Trained, true) => format!("\x1b[32m{text}\x1b[0m"),
        (SpanKind::Context | SpanKind::Prompt, true) => format!("\x1b[2m{text}\x1b[0m"),
        (SpanKind::Trained, false) => format!("⟦{text}⟧"),
        (SpanKind::Context | SpanKind::Prompt, false) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_spelled_out() {
        let said = spelled_out("a\u{1b}[2J\r\u{9b}31m\u{202e}b\0\u{7f}\nné — ok\n");
        assert_eq!(said, "a\\u{1b}[2J\\r\\u{9b}31m\\u{202e}b\\u{0}\\u{7f}\nné — ok\n");
    }

    #[test]
    fn columns_are_aligned_and_numbers_stand_right() {
        let text = table(
            &["name", "n"],
            &[vec!["a".into(), "5".into()], vec!["long".into(), "10".into()]],
        );
        assert_eq!(text, "name   n\na      5\nlong  10\n");
    }

    #[test]
    fn conservation_shows_when_it_is_broken() {
        let mut tokens = TokenCounts { sampled: 5, trained: 3, ..Default::default() };
        tokens.untrained.insert(UntrainedReason::Undelivered, 2);
        assert_eq!(translation(&TranslationCounts::default()), "");
        let mut counts = TranslationCounts::default();
        counts.losses.insert("effort_ignored".to_owned(), 3);
        counts.losses.insert("verbosity_ignored".to_owned(), 1);
        counts.restored.insert("reasoning".to_owned(), 2);
        assert_eq!(
            translation(&counts),
            "lost in translation (calls): effort_ignored in 3, verbosity_ignored in 1\n\
             history restored (calls): reasoning in 2\n"
        );
        assert_eq!(conservation(&tokens), "5 sampled == 3 trained + 2 untrained with a reason");
        tokens.sampled = 6;
        assert!(conservation(&tokens).contains("!="));
    }
}
