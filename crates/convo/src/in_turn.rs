//! Events of a reply in the order that most dialects need: a call with all its arguments before
//! anything else begins.
//!
//! Engines that sample several calls may tell their pieces mixed. What comes while a call's
//! arguments are not yet a whole JSON object waits here; of calls that follow each other, which is
//! the rule, nothing ever waits. Arguments that never become one are waited for until the end.

use crate::reply::{ReplyEvent, parse_arguments};
use std::collections::VecDeque;

/// Puts the events of one reply in order.
#[derive(Debug, Default)]
pub(crate) struct InTurn {
    open: Option<OpenCall>,
    /// Calls that something else has come after.
    closed: Vec<u32>,
    held: VecDeque<ReplyEvent>,
}

#[derive(Debug)]
struct OpenCall {
    index: u32,
    arguments: String,
}

impl OpenCall {
    /// None at all may be to come yet.
    fn is_whole(&self) -> bool {
        !self.arguments.is_empty() && parse_arguments(&self.arguments).is_some()
    }
}

impl InTurn {
    /// Takes the next event in, and hands on what may be told now.
    pub(crate) fn next(&mut self, event: &ReplyEvent, tell: &mut impl FnMut(&ReplyEvent)) {
        match (&mut self.open, event) {
            (Some(open), ReplyEvent::ToolArguments { index, fragment }) if open.index == *index => {
                open.arguments.push_str(fragment);
                tell(event);
                if !self.held.is_empty() && open.is_whole() {
                    self.close();
                    self.release(tell);
                }
            }
            // Cannot be told any more, which nothing that is still to come can mend.
            (_, ReplyEvent::ToolArguments { index, .. }) if self.closed.contains(index) => {
                tell(event);
            }
            (Some(open), _) if !open.is_whole() => self.held.push_back(event.clone()),
            _ => self.begin(event, tell),
        }
    }

    /// Hands on what still waits.
    pub(crate) fn finish(&mut self, tell: &mut impl FnMut(&ReplyEvent)) {
        while let Some(event) = self.held.pop_front() {
            self.begin(&event, tell);
            self.release(tell);
        }
    }

    fn begin(&mut self, event: &ReplyEvent, tell: &mut impl FnMut(&ReplyEvent)) {
        self.close();
        self.open = match event {
            ReplyEvent::ToolCall { index, .. } => {
                Some(OpenCall { index: *index, arguments: String::new() })
            }
            _ => None,
        };
        tell(event);
    }

    fn close(&mut self) {
        self.closed.extend(self.open.take().map(|open| open.index));
    }

    fn release(&mut self, tell: &mut impl FnMut(&ReplyEvent)) {
        for event in std::mem::take(&mut self.held) {
            self.next(&event, tell);
        }
    }
}
