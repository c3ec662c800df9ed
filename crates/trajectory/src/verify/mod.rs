//! Checks a trajectory against the records it was built from.
//!
//! Independent of the builder on purpose: it shares no code with what decides lineages and
//! lays out traces, so that a mistake there shows here.

mod alone;
mod fingerprints;
mod lineages;
mod sequence;
mod violation;

pub(crate) use alone::tree_holds_together;
pub use alone::verify_alone;
pub use fingerprints::{FingerprintCounts, verify_fingerprints};
pub use violation::{Promise, Violation};

use crate::roles;
use alone::expect;
use polar_record::{RecordedCall, RecordedSession};
use polar_types::{CallId, CallRole, Trace, Trajectory, UntrainedReason};
use sequence::{Laid, spans_cover};
use serde_json::Value;
use std::collections::HashMap;

/// Checks that `trajectory` keeps its promises towards the records: every sampled token
/// trained once or counted, every context the engine's, every number the engine's own.
/// Who made which call is taken as told.
///
/// Takes time and memory in proportion to the tokens of the traces, or of the tree.
pub fn verify(trajectory: &Trajectory, session: &RecordedSession) -> Result<(), Violation> {
    verify_alone(trajectory)?;
    let calls = session.calls();
    let mut check = Check {
        session,
        roles: roles::origins(session).into_iter().map(|origin| origin.role).collect(),
        index: calls.iter().zip(0..).map(|(call, at)| (&call.meta.call_id, at)).collect(),
        trained: vec![None; calls.len()],
        responses: 0,
        has_lists: session.values().any(|text| text.contains(r#""content":["#)),
    };
    for (number, trace) in trajectory.traces.iter().enumerate() {
        check.trace(number, trace)?;
    }
    if let Some(tree) = &trajectory.tree {
        check.tree(tree)?;
    }
    let untrained = check.selection(&trajectory.train_roles)?;
    check.counts(trajectory, untrained)
}

struct Check<'a> {
    session: &'a RecordedSession,
    roles: Vec<CallRole>,
    index: HashMap<&'a CallId, usize>,
    /// How many tokens of each call have mask 1; absent when it is in no trace.
    trained: Vec<Option<u64>>,
    /// Tokens behind the first prompts of all sequences.
    responses: u64,
    /// Whether the content of some message is a list, which may hold pictures.
    has_lists: bool,
}

impl Check<'_> {
    fn trace(&mut self, number: usize, trace: &Trace) -> Result<(), Violation> {
        let prompt = trace.prompt_ids.len();
        let laid = Laid {
            number,
            role: trace.lineage.role,
            calls: &trace.calls,
            start: 0,
            prompt,
            ids: [&trace.prompt_ids[..], &trace.response_ids[..]].concat(),
            mask: [&vec![0; prompt][..], &trace.loss_mask[..]].concat(),
            logprobs: [&vec![None; prompt][..], &trace.response_logprobs[..]].concat(),
        };
        let sampled_by = self.sequence(&laid, None)?;
        self.turn_ends(&trace.calls, &trace.turn_ends, prompt, || format!("trace {number}"))?;
        self.responses += trace.response_ids.len() as u64;
        let was_sampled: Vec<bool> = sampled_by[prompt..].iter().map(Option::is_some).collect();
        spans_cover(&trace.weight_versions, &was_sampled, || format!("trace {number}"))
    }

    /// Checks that each call's tokens end where the trace or lineage says, whose response begins
    /// behind so many tokens.
    fn turn_ends(
        &self,
        calls: &[CallId],
        ends: &[u64],
        prompt: usize,
        place: impl Fn() -> String,
    ) -> Result<(), Violation> {
        for (call, end) in calls.iter().zip(ends) {
            let found =
                self.index.get(call).and_then(|at| self.session.calls()[*at].sequence_end());
            if found.is_some_and(|found| found.depth() as u64 != prompt as u64 + end) {
                return Err(Violation::Turns { place: place() });
            }
        }
        Ok(())
    }

    /// What a prompt holds beside text, in order.
    fn pictures(&self, call: &RecordedCall) -> Vec<Value> {
        let mut pictures = Vec::new();
        for mut message in self.session.messages(call, 0) {
            if let Value::Array(parts) = message["content"].take() {
                pictures.extend(parts.into_iter().filter(|part| part["type"] != "text"));
            }
        }
        pictures
    }

    /// Checks that each call is in a trace exactly if nothing speaks against it, and gives
    /// the tokens of those that are in none, by reason.
    fn selection(
        &self,
        train_roles: &[CallRole],
    ) -> Result<HashMap<UntrainedReason, u64>, Violation> {
        let mut untrained = HashMap::new();
        for (index, call) in self.session.calls().iter().enumerate() {
            let is_trained = self.trained[index].is_some();
            let finish = call.meta.finish_reason.as_str();
            let reason = if finish == "abort" || finish == "error" {
                Some(UntrainedReason::EngineAborted)
            } else if !call.counts_as_delivered() {
                // One that a later prompt continues was delivered after all.
                let continued = is_trained && self.is_continued(index);
                (!continued).then_some(UntrainedReason::Undelivered)
            } else {
                call.sequence_end().is_none().then_some(UntrainedReason::IdsMissing)
            };
            let is_side = !train_roles.contains(&self.roles[index]);
            let reason = reason.or_else(|| is_side.then_some(UntrainedReason::SideCall));
            if is_trained != (reason.is_none() && call.sampled_tokens() > 0) {
                let call = call.meta.call_id.clone();
                return Err(Violation::Selection { call, is_trained });
            }
            if let Some(reason) = reason {
                *untrained.entry(reason).or_default() += call.sampled_tokens();
            }
        }
        Ok(untrained)
    }

    fn is_continued(&self, index: usize) -> bool {
        let calls = self.session.calls();
        calls[index].sequence_end().is_some_and(|end| {
            let later = calls[index + 1..].iter().filter_map(RecordedCall::prompt_end);
            let tokens = self.session.tokens();
            later.into_iter().any(|prompt| tokens.shared_depth(end, prompt) == end.depth())
        })
    }

    fn counts(
        &self,
        trajectory: &Trajectory,
        mut untrained: HashMap<UntrainedReason, u64>,
    ) -> Result<(), Violation> {
        let calls = self.session.calls();
        let in_traces: u64 = self.trained.iter().flatten().sum();
        let pairs = calls.iter().zip(&self.trained);
        let holes: u64 =
            pairs.filter_map(|(call, trained)| Some(call.sampled_tokens() - (*trained)?)).sum();
        untrained.insert(UntrainedReason::LogprobMissing, holes);

        let tokens = &trajectory.tokens;
        let sampled = calls.iter().map(RecordedCall::sampled_tokens).sum();
        expect("sampled", tokens.sampled, sampled)?;
        expect("trained", tokens.trained, in_traces)?;
        expect("context", tokens.context, self.responses - in_traces - holes)?;
        for reason in untrained.keys().chain(tokens.untrained.keys()) {
            let counted = tokens.untrained.get(reason).copied().unwrap_or(0);
            let found = untrained.get(reason).copied().unwrap_or(0);
            expect(&format!("untrained {reason:?}"), counted, found)?;
        }
        Ok(())
    }
}
