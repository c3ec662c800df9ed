//! Scripted behaviour: ordered rules from what a conversation looks like to what is said.
//!
//! A policy is YAML. The first rule whose conditions all hold gives the reply; without
//! one the default does. What a policy knows is in the request; the one thing counted
//! between requests is how often a rule with `times` has spoken.
//!
//! ```yaml
//! name: weather
//! rules:
//!   - name: look it up
//!     when:                              # all must hold; all may be left out
//!       model: qwen                      # a bare string is `contains`
//!       tools: [get_weather]             # all on offer
//!       last_role: user
//!       last: {contains: [weather], lacks: joke, matches: 'in (?P<city>\w+)'}
//!       tool_result: sunny               # any result since the last assistant turn
//!       system: agent                    # any system message
//!       instruction: weather             # the first user message
//!       any_message: weather             # the latest message that matches
//!       assistant_turns: {max: 3}        # or a number
//!       offered: {min: 1}                # tools on offer
//!       messages: [{role: tool, text: error, count: {min: 2}}]
//!     reply:                             # or `alternatives`, a list chosen from by seed
//!       reasoning: They ask about {{ captures.city }}.
//!       text: One moment.
//!       tool_calls: [{name: get_weather, arguments: {city: "{{ captures.city }}"}}]
//!   - name: a broken call
//!     when: {last: break}
//!     reply: {raw: "<tool_call>\n{oops", finish: length}
//!   - name: an overloaded engine
//!     role: title                        # who is taken to ask; kept with the answer
//!     times: 2                           # holds for the first two requests, then no more
//!     when: {last: overload}
//!     fault: status=429,retry_after=1
//!   - name: an odd speller
//!     when: {last: odd}
//!     reply: {tool_calls: [{name: f, arguments: {a: "é"}, spelling: odd}]}
//! default: {text: "{{ turns }} turns so far; you said {{ last }}", spelling: bytewise}
//! ```

mod condition;
mod conversation;
mod odd_json;
mod reply;

pub(crate) use conversation::{Conversation, Turn};
pub(crate) use reply::{SaidReply, ScriptedCall};

use crate::Fault;
use crate::weights::mix;
use condition::When;
use reply::Reply;
use serde::Deserialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Rules and a default reply.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Name, as the command line takes it for shipped policies.
    pub name: String,
    /// What it is for.
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    rules: Vec<Rule>,
    default: Reply,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// Says what the rule is for; shown in errors and traces.
    name: String,
    /// Who is taken to ask where this rule answers.
    #[serde(default)]
    role: Option<String>,
    /// How many requests it holds for; any number when absent.
    #[serde(default)]
    times: Option<u64>,
    #[serde(default)]
    when: When,
    #[serde(default)]
    reply: Option<Reply>,
    /// One of these, chosen by seed.
    #[serde(default)]
    alternatives: Vec<Reply>,
    #[serde(default)]
    fault: Option<Fault>,
}

/// Why a policy can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file is not a policy.
    #[error("the policy can't be read: {0}")]
    Syntax(String),
    /// A rule says nothing or says it twice.
    #[error("rule {rule:?} of policy {policy:?} {problem}")]
    Rule {
        /// Name of the policy.
        policy: String,
        /// Name of the rule.
        rule: String,
        /// What is wrong.
        problem: String,
    },
}

/// What a policy decided for one choice of a request.
#[derive(Debug, Clone)]
pub(crate) struct Decision {
    pub reply: SaidReply,
    pub fault: Option<Fault>,
    /// The rule that holds; none for the default.
    pub rule: Option<String>,
    /// The role it names.
    pub role: Option<String>,
}

/// A policy while it is played, with what is counted between requests.
#[derive(Debug)]
pub(crate) struct PlayedPolicy {
    policy: Policy,
    /// How often each rule was the one that holds.
    held: Vec<AtomicU64>,
}

impl PlayedPolicy {
    pub(crate) fn new(policy: Policy) -> Self {
        let held = policy.rules.iter().map(|_| AtomicU64::new(0)).collect();
        Self { policy, held }
    }

    /// What to say to this conversation. `seed` chooses among alternatives.
    pub(crate) fn decide(&self, conversation: &Conversation<'_>, seed: u64) -> Decision {
        let found = self.policy.rules.iter().zip(&self.held).find_map(|(rule, held)| {
            let captures = rule.when.matches(conversation)?;
            let before = held.fetch_add(1, Relaxed);
            rule.times.is_none_or(|times| before < times).then_some((rule, captures))
        });
        let Some((rule, captures)) = found else {
            let reply = self.policy.default.say(conversation, &Default::default());
            return Decision { reply, fault: None, rule: None, role: None };
        };
        tracing::debug!(policy = self.policy.name, rule = rule.name, "rule matched");
        let reply = match rule.alternatives.len() as u64 {
            0 => rule.reply.as_ref().unwrap_or(&self.policy.default),
            count => &rule.alternatives[(mix(seed) % count) as usize],
        };
        Decision {
            reply: reply.say(conversation, &captures),
            fault: rule.fault.clone(),
            rule: Some(rule.name.clone()),
            role: rule.role.clone(),
        }
    }
}

const SHIPPED: [(&str, &str); 3] = [
    ("echo", include_str!("../assets/policies/echo.yaml")),
    ("fix-test", include_str!("../assets/policies/fix-test.yaml")),
    ("long-session", include_str!("../assets/policies/long-session.yaml")),
];

/// Names of the policies that come with the simulator.
pub fn shipped_policies() -> impl Iterator<Item = &'static str> {
    SHIPPED.iter().map(|(name, _)| *name)
}

/// A policy that comes with the simulator.
pub fn shipped_policy(name: &str) -> Option<Policy> {
    let (_, text) = SHIPPED.iter().find(|(shipped, _)| *shipped == name)?;
    // A test loads every shipped policy.
    Policy::from_yaml(text).ok()
}

impl Default for Policy {
    /// The `echo` policy.
    fn default() -> Self {
        shipped_policy("echo").unwrap_or_else(|| Self {
            name: "silent".to_owned(),
            description: String::new(),
            rules: Vec::new(),
            default: Reply::default(),
        })
    }
}

impl Policy {
    /// Reads and checks a policy.
    pub fn from_yaml(text: &str) -> Result<Self, PolicyError> {
        let policy: Self =
            serde_saphyr::from_str(text).map_err(|e| PolicyError::Syntax(e.to_string()))?;
        policy.check()?;
        Ok(policy)
    }

    fn check(&self) -> Result<(), PolicyError> {
        let complain = |rule: &str, problem: String| PolicyError::Rule {
            policy: self.name.clone(),
            rule: rule.to_owned(),
            problem,
        };
        self.default.check().map_err(|problem| complain("default", problem))?;
        for rule in &self.rules {
            let refuse = |problem: String| complain(&rule.name, problem);
            match (rule.reply.is_some(), rule.alternatives.is_empty()) {
                (true, false) => return Err(refuse("has both `reply` and `alternatives`".into())),
                (false, true) if rule.fault.is_none() => {
                    return Err(refuse("has no `reply`, `alternatives` or `fault`".into()));
                }
                _ => {}
            }
            for reply in rule.reply.iter().chain(&rule.alternatives) {
                reply.check().map_err(refuse)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn decide(policy: &Policy, messages: &Value, tools: &Value, seed: u64) -> Decision {
        let (messages, tools) = (messages.as_array().unwrap(), tools.as_array().unwrap());
        let played = PlayedPolicy::new(policy.clone());
        played.decide(&Conversation::of_chat("m", messages, tools), seed)
    }

    #[test]
    fn shipped_policies_load() {
        for name in shipped_policies() {
            assert_eq!(shipped_policy(name).unwrap().name, name);
        }
        assert_eq!(Policy::default().name, "echo");
    }

    #[test]
    fn the_documented_policy_is_one() {
        let source = include_str!("policy.rs");
        let documented = source.split("```").nth(1).unwrap().replace("//! ", "").replace("//!", "");
        let policy = Policy::from_yaml(documented.strip_prefix("yaml").unwrap()).unwrap();
        let tools = json!([{"type": "function", "function": {"name": "get_weather"}}]);
        let asked = json!([{"role": "user", "content": "break"}]);
        assert_eq!(
            decide(&policy, &asked, &tools, 0).reply.raw.as_deref(),
            Some("<tool_call>\n{oops")
        );
    }

    #[test]
    fn the_first_rule_that_holds_speaks() {
        let policy = Policy::from_yaml(
            r#"
name: t
rules:
  - name: read what failed
    when:
      tools: [read]
      last_role: tool
      tool_result: {contains: [FAILED], lacks: OK, matches: 'File "(?P<path>[^"]+)", line (?P<line>\d+)'}
    reply:
      reasoning: It fails in {{ captures.path }}.
      tool_calls:
        - name: read
          arguments: {path: "{{ captures.path }}", offset: 3, deep: ["{{ captures.line }}"]}
  - name: twice told
    when:
      messages: [{role: user, text: {matches: "(?i)again"}, count: {min: 2}}]
    alternatives: [{text: one}, {text: two}, {raw: "<tool_call>\n{broken"}]
  - name: refused
    when: {instruction: {contains: refuse}, assistant_turns: 0}
    fault: status=429,retry_after=1
default: {text: "{{ turns }} {{ last }}", finish: length}
"#,
        )
        .unwrap();
        let tools = json!([{"type": "function", "function": {"name": "read"}}]);
        let failed = json!([
            {"role": "assistant", "content": ""},
            {"role": "tool", "content": "File \"/w/a.py\", line 7\nFAILED"},
        ]);
        let reply = decide(&policy, &failed, &tools, 0).reply;
        assert_eq!(reply.reasoning.as_deref(), Some("It fails in /w/a.py."));
        assert_eq!(
            Value::Object(reply.calls[0].arguments.clone()),
            json!({"path": "/w/a.py", "offset": 3, "deep": ["7"]})
        );
        let no_tools = decide(&policy, &failed, &json!([]), 0).reply;
        assert!(no_tools.text.starts_with("1 File"));
        assert!(no_tools.cut);

        let again =
            json!([{"role": "user", "content": "again"}, {"role": "user", "content": "Again"}]);
        let said: Vec<_> = (0..20)
            .map(|seed| decide(&policy, &again, &json!([]), seed).reply)
            .map(|reply| reply.raw.unwrap_or(reply.text))
            .collect();
        assert!(said.contains(&"one".to_owned()) && said.contains(&"two".to_owned()));
        assert!(said.iter().any(|text| text.starts_with("<tool_call>")));

        let refused =
            json!([{"role": "user", "content": [{"type": "text", "text": "please refuse"}]}]);
        let fault = decide(&policy, &refused, &json!([]), 0).fault;
        assert_eq!(fault, Some(Fault::Status { code: 429, retry_after: Some(1) }));
    }

    #[test]
    fn a_rule_holds_only_as_often_as_it_says() {
        let policy = Policy::from_yaml(
            r#"
name: t
rules:
  - {name: busy, role: main, times: 2, when: {last: go, offered: 0}, fault: status=503}
  - {name: done, role: main, when: {last: go}, reply: {text: done}}
default: {text: nobody}
"#,
        )
        .unwrap();
        let played = PlayedPolicy::new(policy);
        let asked = [json!({"role": "user", "content": "go"})];
        let tools = [json!({"type": "function", "function": {"name": "f"}})];
        let rule = |tools: &[Value]| {
            played.decide(&Conversation::of_chat("m", &asked, tools), 0).rule.unwrap()
        };
        let said = [rule(&[]), rule(&tools), rule(&[]), rule(&[]), rule(&[])];
        assert_eq!(said, ["busy", "done", "busy", "done", "done"]);
        let decision = played.decide(&Conversation::of_chat("m", &asked, &tools), 0);
        assert_eq!(decision.role.as_deref(), Some("main"));
        let stray = [json!({"role": "user", "content": "?"})];
        let decision = played.decide(&Conversation::of_chat("m", &stray, &tools), 0);
        assert_eq!((decision.rule, decision.role), (None, None));
    }

    #[test]
    fn broken_policies_say_where() {
        for (text, expected) in [
            ("name: t", "default"),
            ("name: t\ndefault: {text: '{{ x'}", "broken template"),
            ("name: t\ndefault: {}\nrules: [{name: r}]", "\"r\""),
            ("name: t\ndefault: {raw: x, text: y}", "`raw`"),
            (
                "name: t\ndefault: {}\nrules: [{name: r, when: {last: {matches: '('}}, reply: {}}]",
                "(",
            ),
            ("name: t\ndefault: {}\nrules: [{name: r, fault: flood}]", "flood"),
            ("name: t\ndefault: {}\nrules: [{name: r, when: {mood: x}, reply: {}}]", "mood"),
        ] {
            let error = Policy::from_yaml(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
