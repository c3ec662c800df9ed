//! When a rule applies.

use super::conversation::Conversation;
use regex::Regex;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What a rule's patterns captured, by group name.
pub(super) type Captures = BTreeMap<String, String>;

/// Conditions that must all hold.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct When {
    /// The model asked for.
    model: Option<TextMatch>,
    /// Tools that must all be on offer.
    tools: Vec<String>,
    /// Number of tools on offer.
    offered: Option<Count>,
    /// Role of the last message.
    last_role: Option<String>,
    /// Text of the last message.
    last: Option<TextMatch>,
    /// Any tool result since the last assistant turn.
    tool_result: Option<TextMatch>,
    /// Any system or developer message.
    system: Option<TextMatch>,
    /// The first user message.
    instruction: Option<TextMatch>,
    /// Any message at all, the latest that matches.
    any_message: Option<TextMatch>,
    /// Number of assistant turns so far.
    assistant_turns: Option<Count>,
    /// Numbers of messages that match.
    messages: Vec<MessageCount>,
}

/// A bare string is `contains`.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "TextMatchForm")]
struct TextMatch {
    contains: Vec<String>,
    lacks: Vec<String>,
    matches: Option<Pattern>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TextMatchForm {
    Short(String),
    Long(TextMatchFields),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TextMatchFields {
    contains: OneOrMany,
    lacks: OneOrMany,
    matches: Option<Pattern>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Default for OneOrMany {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl OneOrMany {
    fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

impl From<TextMatchForm> for TextMatch {
    fn from(form: TextMatchForm) -> Self {
        match form {
            TextMatchForm::Short(text) => {
                Self { contains: vec![text], lacks: Vec::new(), matches: None }
            }
            TextMatchForm::Long(fields) => Self {
                contains: fields.contains.into_vec(),
                lacks: fields.lacks.into_vec(),
                matches: fields.matches,
            },
        }
    }
}

/// A regular expression, compiled as it is read.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
struct Pattern(Regex);

impl TryFrom<String> for Pattern {
    type Error = regex::Error;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Regex::new(&text).map(Self)
    }
}

/// A number, or a range with both ends included.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Count {
    Exactly(usize),
    Between(Range),
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    #[serde(default)]
    min: usize,
    #[serde(default = "most")]
    max: usize,
}

fn most() -> usize {
    usize::MAX
}

impl Count {
    fn holds(self, number: usize) -> bool {
        match self {
            Self::Exactly(exact) => number == exact,
            Self::Between(Range { min, max }) => (min..=max).contains(&number),
        }
    }
}

/// How many messages of a role look like something.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageCount {
    #[serde(default)]
    role: Option<String>,
    text: TextMatch,
    count: Count,
}

impl When {
    /// What the patterns captured, if everything holds.
    pub(super) fn matches(&self, conversation: &Conversation<'_>) -> Option<Captures> {
        let mut captures = Captures::new();
        let mut holds = |wanted: &Option<TextMatch>, mut texts: &mut dyn Iterator<Item = &str>| {
            wanted.as_ref().is_none_or(|wanted| {
                Iterator::any(&mut texts, |text| wanted.holds(text, &mut captures))
            })
        };
        let last = conversation.last();
        let system =
            conversation.turns.iter().filter(|t| t.role == "system" || t.role == "developer");
        let all = self.last_role.as_ref().is_none_or(|role| last.is_some_and(|l| l.role == *role))
            && self.tools.iter().all(|tool| conversation.tools.iter().any(|t| t == tool))
            && self.offered.is_none_or(|count| count.holds(conversation.tools.len()))
            && self.assistant_turns.is_none_or(|count| count.holds(conversation.assistant_turns()))
            && self.messages.iter().all(|wanted| wanted.holds(conversation))
            && holds(&self.model, &mut std::iter::once(conversation.model.as_ref()))
            && holds(&self.last, &mut last.map(|turn| turn.text.as_ref()).into_iter())
            && holds(&self.tool_result, &mut conversation.fresh_tool_results())
            && holds(&self.system, &mut system.map(|turn| turn.text.as_ref()))
            && holds(&self.instruction, &mut std::iter::once(conversation.instruction()))
            && holds(
                &self.any_message,
                &mut conversation.turns.iter().rev().map(|t| t.text.as_ref()),
            );
        all.then_some(captures)
    }
}

impl TextMatch {
    fn holds(&self, text: &str, captures: &mut Captures) -> bool {
        let plain = self.contains.iter().all(|part| text.contains(part))
            && !self.lacks.iter().any(|part| text.contains(part));
        if !plain {
            return false;
        }
        let Some(Pattern(pattern)) = &self.matches else { return true };
        let Some(found) = pattern.captures(text) else { return false };
        for name in pattern.capture_names().flatten() {
            if let Some(group) = found.name(name) {
                captures.insert(name.to_owned(), group.as_str().to_owned());
            }
        }
        true
    }
}

impl MessageCount {
    fn holds(&self, conversation: &Conversation<'_>) -> bool {
        let mut ignored = Captures::new();
        let number = conversation
            .turns
            .iter()
            .filter(|turn| self.role.as_ref().is_none_or(|role| turn.role == *role))
            .filter(|turn| self.text.holds(&turn.text, &mut ignored))
            .count();
        self.count.holds(number)
    }
}
