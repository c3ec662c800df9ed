//! Takes volatile text out of prompts, by the rules of the harness's adapter.
//!
//! Some harnesses put a line into their prompts that changes with every call and means nothing
//! to the model. It parts prompts that would otherwise begin alike, for the engine's cache as
//! well as for the trace. A rule has a name, the record of the call says that it was applied,
//! and a task can switch it off.

use crate::{Block, Message, Request, Role};
use polar_types::{NormaliseRule, PromptPart};
use regex::Regex;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A harness's rules, ready for use.
#[derive(Debug, Default)]
pub struct Normaliser {
    rules: Vec<(NormaliseRule, Regex)>,
}

/// A rule whose pattern is none.
#[derive(Debug, thiserror::Error)]
#[error("the normalisation rule `{rule}` has no valid pattern: {source}")]
pub struct PatternError {
    /// The rule's name.
    pub rule: String,
    /// What is wrong with it.
    pub source: regex::Error,
}

impl Normaliser {
    /// Reads the patterns.
    pub fn new(rules: &[NormaliseRule]) -> Result<Self, PatternError> {
        let compile = |rule: &NormaliseRule| match Regex::new(&rule.pattern) {
            Ok(pattern) => Ok((rule.clone(), pattern)),
            Err(source) => Err(PatternError { rule: rule.name.clone(), source }),
        };
        Ok(Self { rules: rules.iter().map(compile).collect::<Result<_, _>>()? })
    }

    /// Applies all rules to a request and says how often each found something. A text that
    /// becomes empty goes, and so does a message of nothing else.
    pub fn apply(&self, request: &mut Request) -> BTreeMap<String, u64> {
        let mut applied = BTreeMap::new();
        for (rule, pattern) in &self.rules {
            let mut found = 0;
            for message in &mut request.messages {
                if in_part(rule.part, message.role) {
                    found += replace(message, pattern, &rule.replacement);
                }
            }
            if found > 0 {
                request.messages.retain(|message| !message.blocks.is_empty());
                applied.insert(rule.name.clone(), found);
            }
        }
        applied
    }
}

fn in_part(part: PromptPart, role: Role) -> bool {
    match part {
        PromptPart::System => matches!(role, Role::System | Role::Developer),
        PromptPart::User => role == Role::User,
    }
}

fn replace(message: &mut Message, pattern: &Regex, replacement: &str) -> u64 {
    let mut found = 0;
    let mut emptied = false;
    for block in &mut message.blocks {
        let Block::Text(text) = block else { continue };
        let matches = pattern.find_iter(text).count() as u64;
        if let (1.., Cow::Owned(changed)) = (matches, pattern.replace_all(text, replacement)) {
            emptied |= changed.is_empty();
            *text = changed;
            found += matches;
        }
    }
    if emptied {
        message.blocks.retain(|block| !matches!(block, Block::Text(text) if text.is_empty()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dialect;

    fn billing() -> NormaliseRule {
        NormaliseRule {
            name: "billing_line".to_owned(),
            description: "A line that changes with each call.".to_owned(),
            part: PromptPart::System,
            pattern: r"\Ax-billing: [^\n]*\n?".to_owned(),
            replacement: String::new(),
        }
    }

    fn request(system: &[&str]) -> Request {
        let mut request = Request::new(Dialect::Messages, "policy");
        let blocks = system.iter().map(|text| Block::Text((*text).to_owned())).collect();
        request.messages.push(Message::new(Role::System, blocks));
        request.messages.push(Message::text(Role::User, "x-billing: what is this?"));
        request
    }

    #[test]
    fn prompts_that_differ_in_volatile_text_only_become_the_same() {
        let normaliser = Normaliser::new(&[billing()]).unwrap();
        let mut first = request(&["x-billing: cch=1", "You help."]);
        let mut second = request(&["x-billing: cch=2", "You help."]);
        let applied = normaliser.apply(&mut first);
        assert_eq!(applied, BTreeMap::from([("billing_line".to_owned(), 1)]));
        normaliser.apply(&mut second);
        assert_eq!(first, second);
        assert_eq!(first.messages[0], Message::text(Role::System, "You help."));
        // What a user says is not what the rule is for.
        assert_eq!(first.messages[1], request(&[""]).messages[1]);
    }

    #[test]
    fn a_prompt_without_it_is_left_as_it_is() {
        let normaliser = Normaliser::new(&[billing()]).unwrap();
        let mut request = request(&["You help.", ""]);
        let before = request.clone();
        assert!(normaliser.apply(&mut request).is_empty());
        assert_eq!(request, before);
    }

    #[test]
    fn a_message_of_nothing_else_goes_with_it() {
        let normaliser = Normaliser::new(&[billing()]).unwrap();
        let mut request = request(&["x-billing: cch=1"]);
        normaliser.apply(&mut request);
        assert_eq!(request.messages.len(), 1);
    }

    #[test]
    fn a_pattern_that_is_none_is_named() {
        let rule = NormaliseRule { pattern: "(".to_owned(), ..billing() };
        let error = Normaliser::new(&[rule]).unwrap_err().to_string();
        assert!(error.starts_with("the normalisation rule `billing_line` has no valid pattern"));
    }
}
