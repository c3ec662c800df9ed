//! What evaluators are told of a session's calls, and the rewards that they give to parts of it.
//!
//! A reward for something that the session does not have is an error that names the field: left
//! out in silence, it would train on less than was meant.

use super::Verdict;
use crate::attempt::Attempt;
use crate::report::{build_options, clip_end, rebuild};
use polar_types::{CallRole, CallSummary, EvaluatorSpec, PartRewards, RewardSource, Trajectory};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::BufReader;

/// Longest note of an evaluator, in characters.
const MOST_NOTE: usize = 1000;

/// What a session did.
#[derive(Default)]
pub(super) struct Calls {
    all: Vec<CallSummary>,
    traces: usize,
}

/// Whether an evaluator, or a part of it, may give rewards to calls and traces.
pub(super) fn may_be_told(evaluator: &EvaluatorSpec) -> bool {
    match evaluator {
        EvaluatorSpec::Command { reward, .. } => *reward == RewardSource::Report,
        EvaluatorSpec::Python(_) | EvaluatorSpec::Http(_) => true,
        _ => evaluator.parts().into_iter().any(may_be_told),
    }
}

impl Attempt {
    /// The calls of this session, as far as its journal can be read.
    pub(super) async fn calls(&self) -> Calls {
        if self.lease.regrade.is_some() {
            return self.stored_calls();
        }
        let (journal, options) = (self.folder.journal(), build_options(&self.lease.task));
        let read = move || rebuild(&journal, options);
        match tokio::task::spawn_blocking(read).await {
            Ok(Ok(rebuilt)) => Calls { traces: rebuilt.trajectory.lineages(), all: rebuilt.calls },
            // The report will say so.
            _ => Calls::default(),
        }
    }

    fn stored_calls(&self) -> Calls {
        let trajectory = self.stored::<Trajectory>("trajectory.json");
        let traces = trajectory.map_or(0, |trajectory| trajectory.lineages());
        Calls { all: self.stored("calls.json").unwrap_or_default(), traces }
    }

    fn stored<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let file = File::open(self.folder.artifact(name)).ok()?;
        serde_json::from_reader(BufReader::new(file)).ok()
    }

    /// What a function or a command is told of the session that it grades.
    pub(super) fn context(&self, workdir: &str, calls: &Calls) -> Value {
        json!({
            "instruction": self.lease.task.instruction,
            "metadata": self.lease.task.metadata,
            "session_id": self.lease.session_id,
            "task_id": self.lease.task.task_id,
            "workdir": workdir,
            "calls": calls.shown(),
        })
    }
}

impl Calls {
    /// As evaluators see them.
    pub(super) fn shown(&self) -> &[CallSummary] {
        &self.all
    }

    /// The verdict in what an evaluator told: `reward`, and `note` and `rewards` where it has more
    /// to say. An error says what of it cannot be read.
    pub(super) fn verdict(&self, told: &Value) -> Result<Verdict, String> {
        let number = told["reward"].as_f64().filter(|reward| reward.is_finite());
        let reward = number.ok_or_else(|| match &told["reward"] {
            Value::Null => format!("its answer has no number `reward`: {}", clipped(told)),
            other => format!("reward: must be a finite number, not {}", clipped(other)),
        })?;
        let rewards = self.rewards(&told["rewards"])?;
        let note = match &told["note"] {
            Value::Null => None,
            Value::String(note) => Some(note.clone()),
            other => Some(format!("`note` is no text: {}", clipped(other))),
        };
        let notes: Vec<_> = note.into_iter().chain(unread(told)).collect();
        let note = (!notes.is_empty()).then(|| clip_end(&notes.join("; "), MOST_NOTE));
        Ok(Verdict { note, rewards, ..Verdict::of(reward) })
    }

    fn rewards(&self, told: &Value) -> Result<PartRewards, String> {
        let mut rewards = PartRewards::default();
        let empty = Map::new();
        let fields = match told {
            Value::Null => &empty,
            Value::Object(fields) => fields,
            _ => {
                return Err(
                    "rewards: must be an object of `calls`, `turns` and `traces`".to_owned()
                );
            }
        };
        for (name, told) in fields {
            match name.as_str() {
                "calls" => self.of_calls(told, &mut rewards)?,
                "turns" => self.of_turns(told, &mut rewards)?,
                "traces" => self.of_traces(told, &mut rewards)?,
                _ => {
                    let known = "there are `calls`, `turns` and `traces`";
                    return Err(format!("rewards.{name}: is not a field; {known}"));
                }
            }
        }
        Ok(rewards)
    }

    /// By id.
    fn of_calls(&self, told: &Value, rewards: &mut PartRewards) -> Result<(), String> {
        let Value::Object(told) = told else {
            return Err("rewards.calls: must be an object of call ids and numbers".to_owned());
        };
        for (id, reward) in told {
            let field = format!("rewards.calls.{id}");
            let known = self.all.iter().find(|call| call.call_id.as_str() == id);
            let Some(call) = known else {
                return Err(format!(
                    "{field}: the session has no such call; the ids of its {} calls are in the \
                     `calls` that the evaluator is told",
                    self.all.len()
                ));
            };
            if let Some(reward) = number(&field, reward)? {
                rewards.calls.insert(call.call_id.clone(), reward);
            }
        }
        Ok(())
    }

    /// In the order of the main agent's calls.
    fn of_turns(&self, told: &Value, rewards: &mut PartRewards) -> Result<(), String> {
        let is_turn = |call: &&CallSummary| {
            call.trace.is_some()
                && call.origin.as_ref().is_some_and(|origin| origin.role == CallRole::Main)
        };
        let turns: Vec<_> = self.all.iter().filter(is_turn).collect();
        for (turn, (field, reward)) in turns.iter().zip(list("turns", told, turns.len())?) {
            if let Some(reward) = number(&field, reward)? {
                rewards.calls.insert(turn.call_id.clone(), reward);
            }
        }
        Ok(())
    }

    fn of_traces(&self, told: &Value, rewards: &mut PartRewards) -> Result<(), String> {
        for (index, (field, reward)) in (0..).zip(list("traces", told, self.traces)?) {
            if let Some(reward) = number(&field, reward)? {
                rewards.traces.insert(index, reward);
            }
        }
        Ok(())
    }
}

/// What there is in an answer that nobody reads: a slip in a name would train on less than was
/// meant.
fn unread(told: &Value) -> Option<String> {
    const READ: [&str; 3] = ["reward", "note", "rewards"];
    let unread = told.as_object()?.keys().filter(|name| !READ.contains(&name.as_str()));
    let unread: Vec<_> = unread.map(|name| format!("`{name}`")).collect();
    let unread = (!unread.is_empty()).then(|| unread.join(", "))?;
    Some(format!("not read of the evaluator's answer: {unread} (there are reward, note, rewards)"))
}

fn clipped(told: &Value) -> String {
    told.to_string().chars().take(200).collect()
}

/// The items of a list that has one for each of the session's, with their fields.
fn list<'a>(name: &str, told: &'a Value, count: usize) -> Result<Vec<(String, &'a Value)>, String> {
    let Value::Array(told) = told else {
        return Err(format!("rewards.{name}: must be an array of numbers and nulls"));
    };
    if told.len() != count {
        let found = told.len();
        return Err(format!(
            "rewards.{name}: has {found} items, and the session has {count} {name}"
        ));
    }
    let field = |index: usize| format!("rewards.{name}[{index}]");
    Ok(told.iter().enumerate().map(|(index, told)| (field(index), told)).collect())
}

/// Nothing where there is no reward.
fn number(field: &str, told: &Value) -> Result<Option<f64>, String> {
    match told.as_f64().filter(|number| number.is_finite()) {
        Some(number) => Ok(Some(number)),
        None if told.is_null() => Ok(None),
        None => Err(format!("{field}: must be a number or null, not {told}")),
    }
}

/// The rewards of two evaluators' parts as one, by what becomes of two for the same part.
pub(super) fn joined(
    mut rewards: PartRewards,
    others: PartRewards,
    join: impl Fn(f64, f64) -> f64,
) -> PartRewards {
    for (call, reward) in others.calls {
        rewards
            .calls
            .entry(call)
            .and_modify(|known| *known = join(*known, reward))
            .or_insert(reward);
    }
    for (trace, reward) in others.traces {
        rewards
            .traces
            .entry(trace)
            .and_modify(|known| *known = join(*known, reward))
            .or_insert(reward);
    }
    rewards
}

/// The rewards of an evaluator's parts times its weight.
pub(super) fn weighted(mut rewards: PartRewards, weight: f64) -> PartRewards {
    rewards
        .calls
        .values_mut()
        .chain(rewards.traces.values_mut())
        .for_each(|reward| *reward *= weight);
    rewards
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> Calls {
        let call = |id: &str, role: &str, trace: Option<u32>| -> CallSummary {
            serde_json::from_value(json!({
                "call_id": id, "dialect": "chat", "started_at": "", "seconds": 1.0,
                "origin": {"role": role, "confidence": "certain", "by": "first"},
                "prompt_tokens": 1, "sampled_tokens": 1, "finish_reason": "stop", "reply": {},
                "trace": trace,
            }))
            .unwrap()
        };
        let all = vec![
            call("a", "main", Some(0)),
            call("b", "title", None),
            call("c", "main", Some(0)),
            call("d", "sub_agent", Some(1)),
        ];
        Calls { all, traces: 2 }
    }

    #[test]
    fn rewards_go_to_the_calls_and_traces_that_they_name() {
        let told = json!({
            "reward": 1, "note": "well", "rewards": {
                "calls": {"d": 0.25, "b": null}, "turns": [0.5, null], "traces": [null, -1],
            },
        });
        let verdict = calls().verdict(&told).unwrap();
        assert_eq!((verdict.reward, verdict.note.as_deref()), (Some(1.0), Some("well")));
        let rewards = json!({"calls": {"a": 0.5, "d": 0.25}, "traces": {"1": -1.0}});
        assert_eq!(serde_json::to_value(&verdict.rewards).unwrap(), rewards);
    }

    #[test]
    fn what_the_session_does_not_have_is_an_error_that_names_the_field() {
        for (rewards, said) in [
            (json!({"calls": {"x": 1}}), "rewards.calls.x: the session has no such call"),
            (json!({"calls": {"a": "1"}}), "rewards.calls.a: must be a number or null"),
            (json!({"calls": [1]}), "rewards.calls: must be an object"),
            (json!({"turns": [1]}), "rewards.turns: has 1 items, and the session has 2 turns"),
            (json!({"turns": [1, true]}), "rewards.turns[1]: must be a number"),
            (json!({"traces": [1, 1, 1]}), "rewards.traces: has 3 items"),
            (json!({"steps": []}), "rewards.steps: is not a field"),
            (json!(1), "rewards: must be an object"),
        ] {
            let told = json!({"reward": 1, "rewards": rewards});
            let error = calls().verdict(&told).unwrap_err();
            assert!(error.starts_with(said), "{error}");
        }
        for (none, said) in [
            (json!({}), "no number `reward`: {}"),
            (json!(1), "no number `reward`: 1"),
            (json!({"reward": "1"}), "reward: must be a finite number, not \"1\""),
            (json!({"reward": "NaN"}), "reward: must be a finite number, not \"NaN\""),
            (json!({"reward": [1]}), "reward: must be a finite number, not [1]"),
        ] {
            assert!(calls().verdict(&none).unwrap_err().contains(said), "{none}");
        }
    }

    #[test]
    fn what_is_not_read_of_an_answer_is_said_with_the_reward() {
        let note = |told: Value| calls().verdict(&told).unwrap().note;
        assert_eq!(note(json!({"reward": 1, "rewards": {}, "note": null})), None);
        let said = note(json!({"reward": 1, "note": "well", "turns": [1, 1]})).unwrap();
        assert!(said.starts_with("well; not read of the evaluator's answer: `turns`"), "{said}");
        let said = note(json!({"reward": 1, "note": 3})).unwrap();
        assert!(said.contains("`note` is no text: 3"), "{said}");
    }

    #[test]
    fn rewards_of_several_evaluators_become_one() {
        let of = |id: &str, reward| PartRewards {
            calls: [(id.parse().unwrap(), reward)].into(),
            ..PartRewards::default()
        };
        let sum = joined(weighted(of("a", 1.0), 0.5), weighted(of("a", 1.0), 0.25), |a, b| a + b);
        assert_eq!(sum, of("a", 0.75));
        let both = joined(of("a", 1.0), of("b", 0.0), f64::min);
        assert_eq!(both.calls.len(), 2);
    }
}
