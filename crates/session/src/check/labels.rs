//! Who truly made each call: the rules of the simulated model say whom they answer, and
//! each recorded call names the request it was to the engine.

use polar_record::RecordedSession;
use polar_simulator::Answer;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// One recorded call beside the rule that answered it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledCall {
    /// The rule; absent where the model's default answered, or nobody.
    pub rule: Option<String>,
    /// The role that the rule names: the true one.
    pub role: Option<String>,
    /// The role that Polar gave the call.
    pub assigned: Option<String>,
    /// Whether it ended in an error or an abort.
    pub failed: bool,
}

impl LabelledCall {
    /// Whether the role given is not the true one, or none was given.
    pub fn is_wrong(&self) -> bool {
        self.role.is_some() && self.role != self.assigned
    }
}

/// All recorded calls in order. `summaries` is what the session delivers of its calls.
pub(super) fn label(
    recorded: &RecordedSession,
    answers: &[Answer],
    summaries: &[Value],
) -> Vec<LabelledCall> {
    let answers: HashMap<&str, &Answer> =
        answers.iter().map(|answer| (answer.request_id.as_str(), answer)).collect();
    let roles: HashMap<&str, &str> = summaries
        .iter()
        .filter_map(|call| Some((call["call_id"].as_str()?, call["origin"]["role"].as_str()?)))
        .collect();
    recorded
        .calls()
        .iter()
        .map(|call| {
            let asked = call.meta.extra.get("engine_request_id").and_then(Value::as_str);
            let answer = asked.and_then(|id| answers.get(id));
            LabelledCall {
                rule: answer.and_then(|answer| answer.rule.clone()),
                role: answer.and_then(|answer| answer.role.clone()),
                failed: call.meta.finish_reason == "error",
                assigned: roles
                    .get(call.meta.call_id.to_string().as_str())
                    .map(|r| (*r).to_owned()),
            }
        })
        .collect()
}

/// How many calls each true role made, with `unlabelled` for those that no rule foresaw, and
/// `refused` for those that the engine refused before any rule could answer.
pub(super) fn by_role(calls: &[LabelledCall]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for call in calls {
        let unknown = if call.failed && call.rule.is_none() { REFUSED } else { UNLABELLED };
        let role = call.role.clone().unwrap_or_else(|| unknown.to_owned());
        *counts.entry(role).or_default() += 1;
    }
    counts
}

/// In the place of a role that no rule names.
pub(super) const UNLABELLED: &str = "unlabelled";
pub(super) const REFUSED: &str = "refused";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_given_no_role_is_wrong_where_it_has_a_true_one() {
        let call = |role: Option<&str>, assigned: Option<&str>| LabelledCall {
            rule: None,
            role: role.map(str::to_owned),
            assigned: assigned.map(str::to_owned),
            failed: false,
        };
        for (role, assigned, is_wrong) in [
            (Some("main"), Some("main"), false),
            (Some("main"), Some("title"), true),
            (Some("main"), None, true),
            (None, Some("main"), false),
            (None, None, false),
        ] {
            assert_eq!(call(role, assigned).is_wrong(), is_wrong, "{role:?} {assigned:?}");
        }
    }
}
