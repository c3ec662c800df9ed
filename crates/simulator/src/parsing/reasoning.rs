//! Reasoning in `<think>`, ended by `</think>` or by a tool call.

pub(super) const THINK: &str = "<think>";
pub(super) const THINK_END: &str = "</think>";
pub(super) const TOOL_CALL: &str = "<tool_call>";

/// The next mark that matters inside a reasoning block.
pub(super) fn next_mark(text: &str) -> Option<(usize, &'static str)> {
    [THINK, THINK_END, TOOL_CALL]
        .into_iter()
        .filter_map(|mark| text.find(mark).map(|at| (at, mark)))
        .min()
}

/// Reasoning and content of a complete reply. Without any end all of it is reasoning.
pub(super) fn split(text: &str) -> (Option<String>, Option<String>) {
    let mut reasoning = String::new();
    let mut rest = text;
    let content = loop {
        match next_mark(rest) {
            Some((at, mark)) => {
                reasoning.push_str(&rest[..at]);
                match mark {
                    THINK => rest = &rest[at + mark.len()..],
                    THINK_END => break rest[at + mark.len()..].replace(THINK_END, ""),
                    _ => break rest[at..].replace(THINK_END, ""),
                }
            }
            None => {
                reasoning.push_str(rest);
                break String::new();
            }
        }
    };
    (Some(reasoning).filter(|r| !r.is_empty()), Some(content).filter(|c| !c.is_empty()))
}
