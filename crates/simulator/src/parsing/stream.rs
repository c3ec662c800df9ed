//! The same parsing while the reply is sampled.

use super::hermes::{PartialCall, TOOL_CALL_END};
use super::reasoning::{THINK, THINK_END, TOOL_CALL, next_mark};
use super::{Parsers, held_back};

/// What one step of the reply shows to the client. An outer `None` in `content` leaves
/// the field out, an inner one writes null, as vLLM does beside tool calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Delta {
    pub content: Option<Option<String>>,
    pub reasoning: Option<String>,
    pub calls: Vec<CallDelta>,
}

/// A fragment of one tool call: the name comes first, then the arguments in pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallDelta {
    pub index: usize,
    pub name: Option<String>,
    pub arguments: Option<String>,
}

/// Parses one reply step by step.
#[derive(Debug)]
pub(crate) struct StreamParser {
    phase: Phase,
    tools: bool,
    /// Text that may be the beginning of a mark.
    held: String,
    calls: usize,
}

#[derive(Debug)]
enum Phase {
    Reasoning,
    Content,
    Call(PartialCall),
    /// Between calls and after the last: text is dropped.
    AfterCall,
}

impl StreamParser {
    pub(crate) fn new(parsers: Parsers) -> Self {
        let phase = if parsers.reasoning { Phase::Reasoning } else { Phase::Content };
        Self { phase, tools: parsers.tools, held: String::new(), calls: 0 }
    }

    /// Takes the text of one step; `finished` with the last. None when there is nothing
    /// to show.
    pub(crate) fn push(&mut self, text: &str, finished: bool) -> Option<Delta> {
        let mut delta = Delta::default();
        let mut input = std::mem::take(&mut self.held);
        input.push_str(text);
        if matches!(self.phase, Phase::Reasoning) {
            input = once_ended(&input);
        }
        let mut rest = input.as_str();
        while !rest.is_empty() {
            rest = match &mut self.phase {
                Phase::Reasoning => self.reasoning(rest, finished, &mut delta),
                Phase::Content => self.content(rest, &mut delta),
                Phase::Call(call) => {
                    let (body, after) = match rest.find(TOOL_CALL_END) {
                        Some(end) => (&rest[..end], Some(&rest[end + TOOL_CALL_END.len()..])),
                        None => {
                            let held = held_back(rest, TOOL_CALL_END);
                            self.held.push_str(&rest[rest.len() - held..]);
                            (&rest[..rest.len() - held], None)
                        }
                    };
                    let index = self.calls - 1;
                    let progress = call.push(body, after.is_some());
                    if let Some(name) = progress.name {
                        delta.calls.push(CallDelta { index, name: Some(name), arguments: None });
                    }
                    if let Some(text) = progress.arguments {
                        delta.calls.push(CallDelta { index, name: None, arguments: Some(text) });
                    }
                    match after {
                        Some(after) => {
                            self.phase = Phase::AfterCall;
                            after
                        }
                        None => "",
                    }
                }
                Phase::AfterCall => match rest.find(TOOL_CALL) {
                    Some(start) => self.begin_call(&rest[start + TOOL_CALL.len()..]),
                    None => {
                        let held = held_back(rest, TOOL_CALL);
                        self.held.push_str(&rest[rest.len() - held..]);
                        ""
                    }
                },
            };
        }
        if finished
            && let Some(last) = delta.calls.last_mut()
            && last.arguments.is_none()
        {
            // A call that ends with its name has no arguments.
            last.arguments = Some("{}".to_owned());
        }
        if !delta.calls.is_empty() && delta.content.is_none() {
            delta.content = Some(None);
        }
        (delta != Delta::default()).then_some(delta)
    }

    fn reasoning<'t>(&mut self, rest: &'t str, finished: bool, delta: &mut Delta) -> &'t str {
        let (shown, after) = match next_mark(rest) {
            Some((at, THINK)) => (&rest[..at], &rest[at + THINK.len()..]),
            Some((at, mark)) => {
                self.phase = Phase::Content;
                let after = if mark == THINK_END { at + THINK_END.len() } else { at };
                (&rest[..at], &rest[after..])
            }
            None => {
                let marks = [THINK, THINK_END, TOOL_CALL];
                let held = marks.iter().map(|mark| held_back(rest, mark)).max().unwrap_or(0);
                let held = if finished { 0 } else { held };
                self.held.push_str(&rest[rest.len() - held..]);
                (&rest[..rest.len() - held], "")
            }
        };
        if !shown.is_empty() {
            delta.reasoning.get_or_insert_default().push_str(shown);
        }
        after
    }

    fn content<'t>(&mut self, rest: &'t str, delta: &mut Delta) -> &'t str {
        let (shown, after) = match rest.find(TOOL_CALL).filter(|_| self.tools) {
            Some(at) => (&rest[..at], self.begin_call(&rest[at + TOOL_CALL.len()..])),
            None => {
                let held = if self.tools { held_back(rest, TOOL_CALL) } else { 0 };
                self.held.push_str(&rest[rest.len() - held..]);
                (&rest[..rest.len() - held], "")
            }
        };
        if !shown.is_empty() {
            delta.content.get_or_insert_default().get_or_insert_default().push_str(shown);
        }
        after
    }

    fn begin_call<'t>(&mut self, after: &'t str) -> &'t str {
        self.phase = Phase::Call(PartialCall::default());
        self.calls += 1;
        after
    }
}

/// The text of the step that ends the reasoning, without further ends in the same step.
/// Later ones are content: the parser that would drop them no longer looks.
fn once_ended(text: &str) -> String {
    let ends =
        [THINK_END, TOOL_CALL].iter().filter_map(|mark| text.find(mark).map(|at| (at, *mark)));
    match ends.min() {
        Some((at, mark)) => {
            let (kept, rest) = text.split_at(at + mark.len());
            format!("{kept}{}", rest.replace(THINK_END, ""))
        }
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Call, Parsed, parse};
    use super::*;

    fn fold(parser: &mut StreamParser, steps: &[&str]) -> Parsed {
        let mut folded = Parsed::default();
        for (index, step) in steps.iter().enumerate() {
            let Some(delta) = parser.push(step, index + 1 == steps.len()) else { continue };
            if let Some(Some(content)) = delta.content {
                folded.content.get_or_insert_default().push_str(&content);
            }
            if let Some(reasoning) = delta.reasoning {
                folded.reasoning.get_or_insert_default().push_str(&reasoning);
            }
            for call in delta.calls {
                if let Some(name) = call.name {
                    assert_eq!(call.index, folded.calls.len());
                    folded.calls.push(Call { name, arguments: String::new() });
                }
                folded.calls[call.index].arguments.push_str(&call.arguments.unwrap_or_default());
            }
        }
        folded
    }

    #[test]
    fn a_streamed_reply_folds_to_the_whole_one_however_it_is_cut() {
        let parsers = Parsers { reasoning: true, tools: true };
        let texts = [
            "<think>\nplan < 3 </thin\n</think>\n\nanswer <tool is not a call",
            "no marks at all <",
            "<think>\nneed\n</think>\n\nI call.\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {\"a\": {\"b\": [1, 2]}}}\n</tool_call>",
            "<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"b\", \"arguments\": {\"x\": \"</tool\"}}\n</tool_call>",
            "<tool_call>{\"arguments\": {\"é\": \"ü\"}, \"name\": \"late\"}</tool_call>",
        ];
        for text in texts {
            for size in 1..12 {
                let chars: Vec<char> = text.chars().collect();
                let steps: Vec<String> = chars.chunks(size).map(|c| c.iter().collect()).collect();
                let mut steps: Vec<&str> = steps.iter().map(String::as_str).collect();
                steps.push("");
                let mut folded = fold(&mut StreamParser::new(parsers), &steps);
                let mut whole = parse(text, parsers);
                if !whole.calls.is_empty() {
                    // A whole reply forgets blank text before a call, a streamed one doesn't.
                    folded.content = folded.content.filter(|content| !content.trim().is_empty());
                }
                if text.contains("late") {
                    // Arguments before the name stream with the rest of the object.
                    folded.calls.clear();
                    whole.calls.clear();
                }
                if text.ends_with("not a call") || text.contains("at all") {
                    assert!(whole.calls.is_empty());
                }
                assert_eq!(folded, whole, "{text:?} cut every {size}");
            }
        }
    }

    #[test]
    fn the_name_comes_first_and_broken_json_streams_as_a_call() {
        let mut parser = StreamParser::new(Parsers { reasoning: false, tools: true });
        assert_eq!(parser.push("<tool_call>", false), None);
        assert_eq!(parser.push("\n{\"name\": \"f", false), None);
        let named = parser.push("\", ", false).unwrap();
        assert_eq!(named.content, Some(None));
        assert_eq!(named.calls[0].name.as_deref(), Some("f"));
        let arguments = parser.push("\"arguments\": {\"a\": b", false).unwrap();
        assert_eq!(arguments.calls[0].arguments.as_deref(), Some("{\"a\": b"));
        let end = parser.push("}}\n</tool_call>", false).unwrap();
        assert_eq!(end.calls[0].arguments.as_deref(), Some("}"));
        assert_eq!(parser.push("", true), None);
    }

    #[test]
    fn a_second_end_of_reasoning_is_dropped_in_the_same_step_only() {
        let content = |steps: &[&str]| {
            let mut parser = StreamParser::new(Parsers { reasoning: true, tools: false });
            fold(&mut parser, steps).content.unwrap()
        };
        assert_eq!(content(&["<think>a</think>b</think>c"]), "bc");
        assert_eq!(content(&["<think>a</think>b", "</think>c"]), "b</think>c");
    }

    #[test]
    fn a_call_cut_after_its_name_has_no_arguments() {
        let mut parser = StreamParser::new(Parsers { reasoning: false, tools: true });
        let delta = parser.push("<tool_call>\n{\"name\": \"f\"", true).unwrap();
        assert_eq!(delta.calls[0].arguments.as_deref(), Some("{}"));
    }

    #[test]
    fn without_tools_marks_are_text() {
        let mut parser = StreamParser::new(Parsers { reasoning: false, tools: false });
        let delta = parser.push("<tool_call>", false).unwrap();
        assert_eq!(delta, Delta { content: Some(Some("<tool_call>".into())), ..Delta::default() });
    }
}
