//! Where and why sessions fall apart into more than one trace, for people who want fewer.

use crate::advice::{Advice, VOLATILE_TEXT, advice};
use crate::cause::Causes;
use crate::chains::Chains;
use crate::lineage::Lineages;
use crate::{BuildOptions, Violation, messages, roles, unroll, volatile};
use polar_record::{Position, RecordedCall, RecordedSession};
use polar_types::{
    CallId, CallRole, ForkCause, ForkPoint, PromptPart, Trajectory, TrajectoryStrategy,
};
use serde::Serialize;
use serde_json::Value;

/// Tokens shown before and from the first one that differs.
const BEFORE: usize = 8;
const BEHIND: usize = 8;

/// A trace that goes on from no other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Drift {
    /// Index of the trace.
    pub trace: u32,
    /// Its first call, which continues none.
    pub call: CallId,
    /// Who made it.
    pub role: CallRole,
    /// Why, and what it comes closest to.
    pub fork: ForkPoint,
    /// Where its tokens leave that; absent where it shares none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenDifference>,
    /// Where its messages say something else; absent where they say the same, and where the
    /// session's records are not there to tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<MessageDifference>,
    /// What can be done.
    pub advice: Advice,
    /// A rule that would take the changed text out, where one can be made up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<SuggestedRule>,
}

/// Tokens around the first one that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TokenDifference {
    /// Its position, counted from the first token of the prompt.
    pub position: u64,
    /// The last tokens that both have.
    pub before: Vec<u32>,
    /// How the nearest sequence goes on; empty where it ends.
    pub expected: Vec<u32>,
    /// How the new prompt goes on instead; empty where it ends.
    pub found: Vec<u32>,
}

/// The first message that says something else.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MessageDifference {
    /// Its place in the list of messages, counted from 0.
    pub index: usize,
    /// As it was.
    pub expected: Value,
    /// As it came back.
    pub found: Value,
}

/// A `normalise` rule to put into an adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SuggestedRule {
    /// Which messages it reads.
    pub part: PromptPart,
    /// Regular expression for what it takes out.
    pub pattern: String,
}

/// All traces of a session that continue no other, with the causes that `prefix_merging` names.
pub fn drift(session: &RecordedSession, train_roles: &[CallRole]) -> Vec<Drift> {
    let options = BuildOptions {
        strategy: TrajectoryStrategy::PrefixMerging,
        train_roles: train_roles.to_vec(),
    };
    let origins = roles::origins(session);
    let lineages = Lineages::of(session, &origins, &options.train_roles);
    let merged = Chains::merged(session, &lineages);
    let mut causes = Causes::new(session, &lineages);
    let mut found = Vec::new();
    for (call, index) in session.calls().iter().zip(0..) {
        if let (Some(trace), None) = (merged.of_call(index), merged.before(index)) {
            let cause = causes.cause(index);
            let message = causes.message_difference(index);
            let rule = rule(cause, message.as_ref());
            found.push(Drift {
                trace,
                call: call.meta.call_id.clone(),
                role: origins[index as usize].role,
                fork: causes.fork_point(index, cause),
                tokens: token_difference(session, call),
                message,
                advice: if rule.is_some() { VOLATILE_TEXT } else { advice(cause) },
                rule,
            });
        }
        causes.pass(index);
    }
    found
}

/// The same from the traces alone, which do not tell of messages.
pub fn drift_of_traces(trajectory: &Trajectory) -> Result<Vec<Drift>, Violation> {
    let traces = unroll(trajectory)?;
    let sequence = |number: usize| -> Vec<u32> {
        let trace = &traces[number];
        [&trace.prompt_ids[..], &trace.response_ids[..]].concat()
    };
    let mut found = Vec::new();
    for (number, trace) in traces.iter().enumerate() {
        let fork = &trace.lineage.fork;
        let nearest = traces
            .iter()
            .position(|other| fork.nearest.as_ref().is_some_and(|call| other.calls.contains(call)));
        let tokens = fork.nearest.as_ref().map(|_| {
            let other = nearest.map(sequence).unwrap_or_default();
            // A nearest call that is in no trace leaves one token that is known.
            let expected = match behind(&other, fork.shared_tokens) {
                known if known.is_empty() => fork.expected.into_iter().collect(),
                known => known,
            };
            let own = sequence(number);
            let start = (fork.shared_tokens as usize).min(own.len());
            TokenDifference {
                position: fork.shared_tokens,
                before: own[start.saturating_sub(BEFORE)..start].to_vec(),
                expected,
                found: behind(&trace.prompt_ids, fork.shared_tokens),
            }
        });
        let Some(call) = trace.calls.first() else { continue };
        found.push(Drift {
            trace: number as u32,
            call: call.clone(),
            role: trace.lineage.role,
            fork: fork.clone(),
            tokens,
            message: None,
            advice: advice(fork.cause),
            rule: None,
        });
    }
    Ok(found)
}

fn behind(ids: &[u32], from: u64) -> Vec<u32> {
    ids.iter().skip(from as usize).take(BEHIND).copied().collect()
}

fn token_difference(session: &RecordedSession, call: &RecordedCall) -> Option<TokenDifference> {
    let nearest = call.nearest_by_tokens?;
    let other = &session.calls()[nearest.call as usize];
    let tokens = session.tokens();
    let own = call.prompt_end()?;
    let part = |end: Position, from: usize, to: usize| {
        let end = tokens.ancestor(end, to.min(end.depth()));
        end.map(|end| tokens.path(end, from)).unwrap_or_default()
    };
    let (at, to) = (nearest.shared, nearest.shared + BEHIND);
    let expected = other.sequence_end().or(other.prompt_end());
    Some(TokenDifference {
        position: at as u64,
        before: part(own, at.saturating_sub(BEFORE), at),
        expected: expected.map(|end| part(end, at, to)).unwrap_or_default(),
        found: part(own, at, to),
    })
}

/// A rule for text that was changed in the middle of a conversation which then goes on as it
/// was. Where it does not go on, the text is what the harness has to say.
fn rule(cause: ForkCause, difference: Option<&MessageDifference>) -> Option<SuggestedRule> {
    let difference = difference.filter(|_| cause == ForkCause::HistoryRewritten)?;
    let part = match messages::role(&difference.expected) {
        role if messages::is_header_role(role) => PromptPart::System,
        "user" => PromptPart::User,
        _ => return None,
    };
    let (before, after) = (messages::text(&difference.expected), messages::text(&difference.found));
    Some(SuggestedRule { part, pattern: volatile::pattern(&before, &after)? })
}
