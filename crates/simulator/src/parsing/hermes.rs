//! Tool calls as JSON in `<tool_call>` tags.

use super::reasoning::TOOL_CALL;
use super::{Call, held_back};
use polar_tokens::python_json;
use regex::Regex;
use serde_json::Value;
use std::sync::LazyLock;

pub(super) const TOOL_CALL_END: &str = "</tool_call>";

// The patterns are constant and tested; a broken one would find nothing.
static NAME: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#""name"\s*:\s*"([^"]+)""#).ok());
static ARGUMENTS: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#""arguments"\s*:\s*"#).ok());

/// The text before the first call, and the calls; none when there is no call, or when
/// any of them can't be read.
pub(super) fn calls(text: &str) -> Option<(&str, Vec<Call>)> {
    let first = text.find(TOOL_CALL)?;
    let mut calls = Vec::new();
    let mut rest = &text[first..];
    while let Some(start) = rest.find(TOOL_CALL) {
        let body = &rest[start + TOOL_CALL.len()..];
        let (body, after) = match body.find(TOOL_CALL_END) {
            Some(end) => (&body[..end], &body[end + TOOL_CALL_END.len()..]),
            None => (body, ""),
        };
        calls.push(call(body)?);
        rest = after;
    }
    Some((&text[..first], calls))
}

fn call(body: &str) -> Option<Call> {
    let parsed: Value = serde_json::from_str(body).ok()?;
    Some(Call {
        name: parsed.get("name")?.as_str()?.to_owned(),
        arguments: python_json::dumps(parsed.get("arguments")?).ok()?,
    })
}

/// One call while it is being sampled.
#[derive(Debug, Default)]
pub(super) struct PartialCall {
    body: String,
    named: bool,
    arguments_sent: usize,
}

/// What became readable of a partial call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CallProgress {
    pub name: Option<String>,
    pub arguments: Option<String>,
}

impl PartialCall {
    /// Takes more text of the call. `closed` when its end tag has come.
    pub(super) fn push(&mut self, text: &str, closed: bool) -> CallProgress {
        self.body.push_str(text);
        let mut progress = CallProgress::default();
        let held = if closed { 0 } else { held_back(&self.body, TOOL_CALL_END) };
        let body = self.body[..self.body.len() - held].trim();
        if !self.named {
            progress.name = NAME
                .as_ref()
                .and_then(|pattern| pattern.captures(body)?.get(1))
                .map(|name| name.as_str().to_owned());
            if progress.name.is_none() {
                return progress;
            }
            self.named = true;
        }
        let complete =
            closed || (body.ends_with('}') && serde_json::from_str::<Value>(body).is_ok());
        if let Some(found) = ARGUMENTS.as_ref().and_then(|pattern| pattern.find(body)) {
            let mut arguments = &body[found.end()..];
            if complete {
                arguments = arguments.trim_end();
                arguments = arguments.strip_suffix('}').map_or(arguments, str::trim_end);
            }
            if let Some(fresh) = arguments.get(self.arguments_sent..).filter(|new| !new.is_empty())
            {
                progress.arguments = Some(fresh.to_owned());
                self.arguments_sent = arguments.len();
            }
        }
        progress
    }
}
