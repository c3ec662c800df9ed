//! The adapter's rules, ready to be held against calls.

use super::conversation::Conversation;
use crate::messages;
use polar_record::{RecordedCall, RecordedSession};
use polar_types::{Confidence, HarnessRules, ParentLink, RoleRule};
use regex::Regex;

/// A rule that fits a call.
pub(super) struct Fit<'a> {
    pub(super) rule: &'a RoleRule,
    pub(super) confidence: Confidence,
    /// The parent that the rule's headers name.
    pub(super) parent: Option<u32>,
}

pub(super) struct Rules<'a> {
    rules: Vec<Compiled<'a>>,
}

struct Compiled<'a> {
    rule: &'a RoleRule,
    headers: Vec<(String, Regex)>,
    model: Option<Regex>,
    system: Option<Regex>,
    first_user: Option<Regex>,
    last_user: Option<Regex>,
}

impl<'a> Rules<'a> {
    /// Adapters with a pattern that is none are refused before they run, so that none is
    /// left out here.
    pub(super) fn of(rules: &'a HarnessRules) -> Self {
        Self { rules: rules.roles.iter().filter_map(Compiled::of).collect() }
    }

    /// The first rule that fits a call.
    pub(super) fn fitting(
        &self,
        session: &RecordedSession,
        conversation: &Conversation<'_>,
        index: u32,
    ) -> Option<Fit<'a>> {
        let rule = self.rules.iter().find(|rule| rule.fits(session, conversation, index))?;
        let parent = rule.rule.parent.as_ref().and_then(|link| linked(session, link, index));
        // What the harness says of its call itself, or what it lets the model do.
        let when = &rule.rule.when;
        let says_so = !when.headers.is_empty() || !when.tools.is_empty();
        let confidence = if says_so { Confidence::Certain } else { Confidence::Likely };
        Some(Fit { rule: rule.rule, confidence, parent })
    }
}

impl<'a> Compiled<'a> {
    fn of(rule: &'a RoleRule) -> Option<Self> {
        let when = &rule.when;
        let optional = |pattern: &Option<String>| -> Option<Option<Regex>> {
            pattern
                .as_deref()
                .map(|pattern| Regex::new(pattern).ok())
                .map_or(Some(None), |compiled| compiled.map(Some))
        };
        let headers = when
            .headers
            .iter()
            .map(|(name, pattern)| Some((name.to_lowercase(), Regex::new(pattern).ok()?)));
        Some(Self {
            rule,
            headers: headers.collect::<Option<_>>()?,
            model: optional(&when.model)?,
            system: optional(&when.system)?,
            first_user: optional(&when.first_user)?,
            last_user: optional(&when.last_user)?,
        })
    }

    /// What is cheap to see is looked at first.
    fn fits(&self, session: &RecordedSession, conversation: &Conversation<'_>, index: u32) -> bool {
        let call = &session.calls()[index as usize];
        let when = &self.rule.when;
        let has_header = |(name, pattern): &(String, Regex)| {
            call.meta.headers.get(name).is_some_and(|value| pattern.is_match(value))
        };
        self.headers.iter().all(has_header)
            && self.model.as_ref().is_none_or(|pattern| pattern.is_match(&call.meta.model))
            && when.has_tools.is_none_or(|has| has == call.tools_number().is_some())
            && when.structured_output.is_none_or(|asked| asked == asks_for_json(call))
            && when
                .max_tokens_at_most
                .is_none_or(|most| max_tokens(call).is_some_and(|n| n <= most))
            && (when.tools.is_empty() || offers(session, call, &when.tools))
            && self.texts_fit(conversation, index)
    }

    fn texts_fit(&self, conversation: &Conversation<'_>, index: u32) -> bool {
        let is_user = |role: &str| role == "user";
        let system = self.system.as_ref().is_none_or(|pattern| {
            let said =
                conversation.prompt(index).take_while(|said| messages::is_header_role(&said.role));
            let said: Vec<&str> = said.map(|said| said.text.as_str()).collect();
            pattern.is_match(&said.join("\n"))
        });
        let first_user = |pattern: &Regex| {
            let first = conversation.prompt(index).find(|said| is_user(&said.role));
            first.is_some_and(|said| pattern.is_match(&said.text))
        };
        let last_user = |pattern: &Regex| {
            let last = conversation.prompt_backwards(index).next();
            last.is_some_and(|said| is_user(&said.role) && pattern.is_match(&said.text))
        };
        system
            && self.first_user.as_ref().is_none_or(first_user)
            && self.last_user.as_ref().is_none_or(last_user)
    }
}

fn asks_for_json(call: &RecordedCall) -> bool {
    let format = call.meta.extra.get("carried").and_then(|carried| carried.get("response_format"));
    format.is_some_and(|format| format["type"] != "text")
}

fn max_tokens(call: &RecordedCall) -> Option<u64> {
    let asked = call.meta.extra.get("max_tokens_asked").and_then(serde_json::Value::as_u64);
    asked.or_else(|| call.meta.sampling.get("max_tokens")?.as_u64())
}

fn offers(session: &RecordedSession, call: &RecordedCall, wanted: &[String]) -> bool {
    let tools = session.tools(call).unwrap_or_default();
    let tools = tools.as_array().map(Vec::as_slice).unwrap_or_default();
    let is_offered = |name: &String| {
        tools.iter().any(|tool| tool["function"]["name"].as_str() == Some(name.as_str()))
    };
    wanted.iter().all(is_offered)
}

fn linked(session: &RecordedSession, link: &ParentLink, index: u32) -> Option<u32> {
    let calls = session.calls();
    let named = calls[index as usize].meta.headers.get(&link.header.to_lowercase())?;
    let is = link.is.to_lowercase();
    (0..index).rev().find(|call| calls[*call as usize].meta.headers.get(&is) == Some(named))
}
