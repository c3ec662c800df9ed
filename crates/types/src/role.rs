//! Who made a call, and the rules a harness adapter gives to tell.
//!
//! Agents ask for more than their own work: titles, summaries, checks whether the API is there.
//! Trained with the task's reward such calls teach noise, so every call gets a role.

use crate::CallId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a call is to the agent's work.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CallRole {
    /// The agent's own line of work.
    #[default]
    Main,
    /// An agent started by the agent.
    SubAgent,
    /// Names the conversation.
    Title,
    /// Sums a conversation up, so that a shorter one can go on from it.
    Summary,
    /// Asks whether or how the model answers: a warm-up, a check, a count.
    Probe,
    /// Any other helper request.
    Side,
}

impl CallRole {
    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::SubAgent => "sub_agent",
            Self::Title => "title",
            Self::Summary => "summary",
            Self::Probe => "probe",
            Self::Side => "side",
        }
    }

    /// The roles whose tokens are trained unless the task says otherwise.
    pub fn trained_by_default() -> Vec<Self> {
        vec![Self::Main, Self::SubAgent]
    }
}

/// How sure a role is.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Nothing says so; it is what fits best.
    Guessed,
    /// Its words or its place in the conversation say so.
    Likely,
    /// The harness says so itself.
    Certain,
}

/// Who made a call, and how that is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CallOrigin {
    /// What it is to the agent's work.
    pub role: CallRole,
    /// How sure that is.
    pub confidence: Confidence,
    /// What decided: a rule of the adapter by its name, or `continues`, `retry`,
    /// `started_by_call`, `after_summary`, `no_tools`, `first`, `same_system`, `other_system`.
    pub by: String,
    /// The call it comes from: the one that started a sub-agent, the conversation that was
    /// summed up, the summary that a new conversation goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<CallId>,
    /// The latest earlier call that asked for exactly the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<CallId>,
}

/// Calls of one role.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RoleCounts {
    /// How many.
    pub calls: u32,
    /// Tokens sampled in them.
    pub sampled: u64,
}

/// What an adapter knows of its harness's calls. Kept with them, so that a journal says by
/// which rules it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HarnessRules {
    /// Tell roles; the first that fits decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RoleRule>,
    /// Take volatile text out of prompts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub normalise: Vec<NormaliseRule>,
    /// Tell calls that the harness writes in the place of the model's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stand_ins: Vec<StandInRule>,
}

impl HarnessRules {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.roles.is_empty() && self.normalise.is_empty() && self.stand_ins.is_empty()
    }

    /// The request headers that some rule looks at, in lower case.
    pub fn headers(&self) -> Vec<String> {
        let links = self.roles.iter().filter_map(|rule| rule.parent.as_ref());
        let linked = links.flat_map(|link| [&link.header, &link.is]);
        let matched = self.roles.iter().flat_map(|rule| rule.when.headers.keys());
        let mut names: Vec<_> = linked.chain(matched).map(|name| name.to_lowercase()).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// Tells the role of the calls that fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoleRule {
    /// What it is called in records.
    pub name: String,
    /// The role of calls that fit.
    pub role: CallRole,
    /// When a call fits: all that is given must hold.
    pub when: RoleCondition,
    /// Where the call's parent is found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentLink>,
}

/// What must hold of a call. Texts are regular expressions, searched anywhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoleCondition {
    /// Request headers by name, in any case. A header that is absent does not fit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The model name asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// System and developer messages before the conversation, joined by line breaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The first user message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_user: Option<String>,
    /// The last message, when it is a user's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_user: Option<String>,
    /// Whether tools are offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_tools: Option<bool>,
    /// Tools that are all offered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Whether the reply must be JSON of a given shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_output: Option<bool>,
    /// Most tokens the request lets the reply have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens_at_most: Option<u64>,
}

impl RoleCondition {
    /// The regular expressions in it, with the key each stands under.
    pub fn patterns(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let headers = self.headers.values().map(|pattern| ("headers", pattern.as_str()));
        let texts = [
            ("model", &self.model),
            ("system", &self.system),
            ("first_user", &self.first_user),
            ("last_user", &self.last_user),
        ];
        headers
            .chain(texts.into_iter().filter_map(|(key, pattern)| Some((key, pattern.as_deref()?))))
    }

    /// Whether nothing is asked, so that every call would fit.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Finds a call's parent by two headers: the latest earlier call whose header `is` has the
/// value of this call's `header`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParentLink {
    /// Header of the call that names its parent.
    pub header: String,
    /// Header by which the parent names itself.
    pub is: String,
}

/// Takes text out of prompts that changes from call to call or session to session and means
/// nothing to the model. It would part prompts that are the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormaliseRule {
    /// What it is called in records, and in a task's `harness.keep`.
    pub name: String,
    /// What it takes out, for people.
    pub description: String,
    /// Which messages it reads.
    pub part: PromptPart,
    /// Regular expression; every match is replaced.
    pub pattern: String,
    /// What takes its place, `$1` for the first group; nothing when absent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub replacement: String,
}

/// Tells a call that the harness writes into its history in the place of one that it could not run,
/// under the same id. The result says what was wrong; the turn keeps what was sampled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandInRule {
    /// What it is called in a task's `harness.keep`.
    pub name: String,
    /// When the harness does so, for people.
    pub description: String,
    /// The tool that such a call names, which no model calls by itself.
    pub tool: String,
}

/// Messages of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptPart {
    /// System and developer messages.
    System,
    /// User messages.
    User,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_name_every_header_they_look_at_once_and_in_lower_case() {
        let rule: RoleRule = serde_json::from_value(serde_json::json!({
            "name": "sub", "role": "sub_agent", "when": {"headers": {"X-Agent": "."}},
            "parent": {"header": "x-parent", "is": "x-agent"},
        }))
        .unwrap();
        let rules = HarnessRules { roles: vec![rule], ..HarnessRules::default() };
        assert_eq!(rules.headers(), ["x-agent", "x-parent"]);
    }
}
