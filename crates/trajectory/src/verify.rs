//! Checks a trajectory against the records it was built from.
//!
//! Independent of the builder on purpose: it shares no code with what decides lineages and
//! lays out traces, so that a mistake there shows here.

use crate::roles;
use polar_record::{RecordedCall, RecordedSession};
use polar_types::{CallId, CallRole, Trace, Trajectory, UntrainedReason};
use serde_json::Value;
use std::collections::HashMap;
use std::ops::Range;

/// How a trajectory breaks what it promises.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The arrays of a trace do not belong together.
    #[error("trace {trace}: response_ids, loss_mask and response_logprobs differ in length")]
    Lengths {
        /// Index of the trace.
        trace: usize,
    },
    /// A trace names a call the journal does not have.
    #[error("trace {trace} names call {call}, which is not in the journal")]
    UnknownCall {
        /// Index of the trace.
        trace: usize,
        /// The call it names.
        call: CallId,
    },
    /// A call's tokens are in two places with mask 1.
    #[error("call {call} is trained twice, the second time in trace {trace}")]
    TrainedTwice {
        /// Index of the second trace.
        trace: usize,
        /// The call.
        call: CallId,
    },
    /// A token with mask 1 has another context than the engine had.
    #[error("trace {trace}: the context of call {call} is not what the engine had")]
    Context {
        /// Index of the trace.
        trace: usize,
        /// The call whose prompt is not the trace's beginning.
        call: CallId,
    },
    /// A trace holds other tokens than were sampled.
    #[error("trace {trace}: the tokens of call {call} are not those that were sampled")]
    Sampled {
        /// Index of the trace.
        trace: usize,
        /// The call.
        call: CallId,
    },
    /// A position that was not sampled has a mask or a logprob.
    #[error(
        "trace {trace}: response position {position} was not sampled but has a mask or logprob"
    )]
    Invented {
        /// Index of the trace.
        trace: usize,
        /// Position in the response.
        position: usize,
    },
    /// Mask or logprob of a sampled position is not what the record says.
    #[error("trace {trace}: mask or logprob at response position {position} is not the engine's")]
    Logprob {
        /// Index of the trace.
        trace: usize,
        /// Position in the response.
        position: usize,
    },
    /// The spans of weight versions do not cover the sampled positions, once and in order.
    #[error("trace {trace}: weight_versions do not cover exactly the sampled positions")]
    WeightVersions {
        /// Index of the trace.
        trace: usize,
    },
    /// A call that can't be trained on is in a trace, or one that can is in none.
    #[error("call {call} is {}", if *.is_trained { "trained and must not be" } else { "in no trace though nothing speaks against it" })]
    Selection {
        /// The call.
        call: CallId,
        /// Whether it is in a trace.
        is_trained: bool,
    },
    /// A trace holds calls of another role than it says.
    #[error("trace {trace}: call {call} has another role than the trace")]
    Role {
        /// Index of the trace.
        trace: usize,
        /// The call.
        call: CallId,
    },
    /// The counts do not add up to what the journal and the traces hold.
    #[error("tokens do not add up: {what} is counted as {counted} and found to be {found}")]
    Counts {
        /// What was counted.
        what: String,
        /// As the trajectory says.
        counted: u64,
        /// As the records say.
        found: u64,
    },
    /// `siblings` or `loss_weight` do not fit the number of traces.
    #[error("trace {trace}: siblings or loss_weight do not fit the number of traces")]
    Siblings {
        /// Index of the trace.
        trace: usize,
    },
}

/// Checks that `trajectory` keeps its promises towards the records: every sampled token
/// trained once or counted, every context the engine's, every number the engine's own.
/// Who made which call is taken as told.
///
/// Takes time and memory in proportion to the tokens of the traces.
pub fn verify(trajectory: &Trajectory, session: &RecordedSession) -> Result<(), Violation> {
    let calls = session.calls();
    let mut check = Check {
        session,
        roles: roles::origins(session).into_iter().map(|origin| origin.role).collect(),
        index: calls.iter().zip(0..).map(|(call, at)| (&call.meta.call_id, at)).collect(),
        trained: vec![None; calls.len()],
        has_lists: session.values().any(|text| text.contains(r#""content":["#)),
    };
    for (number, trace) in trajectory.traces.iter().enumerate() {
        check.trace(number, trace)?;
        let siblings = trajectory.traces.len();
        if trace.siblings as usize != siblings || trace.loss_weight != 1.0 / siblings as f64 {
            return Err(Violation::Siblings { trace: number });
        }
    }
    let untrained = check.selection(&trajectory.train_roles)?;
    counts(trajectory, calls, &check.trained, untrained)
}

struct Check<'a> {
    session: &'a RecordedSession,
    roles: Vec<CallRole>,
    index: HashMap<&'a CallId, usize>,
    /// How many tokens of each call have mask 1; absent when it is in no trace.
    trained: Vec<Option<u64>>,
    /// Whether the content of some message is a list, which may hold pictures.
    has_lists: bool,
}

impl<'a> Check<'a> {
    fn trace(&mut self, number: usize, trace: &Trace) -> Result<(), Violation> {
        let len = trace.response_ids.len();
        if trace.loss_mask.len() != len || trace.response_logprobs.len() != len {
            return Err(Violation::Lengths { trace: number });
        }
        let whole = [&trace.prompt_ids[..], &trace.response_ids[..]].concat();
        let mut was_sampled = vec![false; len];
        let mut before = None;
        for call in &trace.calls {
            let unknown = || Violation::UnknownCall { trace: number, call: call.clone() };
            let index = *self.index.get(call).ok_or_else(unknown)?;
            if self.roles[index] != trace.lineage.role {
                return Err(Violation::Role { trace: number, call: call.clone() });
            }
            let call = &self.session.calls()[index];
            let place = self.place(number, trace, &whole, before, call)?;
            was_sampled[place.clone()].fill(true);
            self.reply(number, trace, index, place.start)?;
            before = Some(call);
        }
        let is_bare = |at: usize| trace.loss_mask[at] == 0 && trace.response_logprobs[at].is_none();
        match (0..len).find(|&at| !was_sampled[at] && !is_bare(at)) {
            Some(position) => Err(Violation::Invented { trace: number, position }),
            None => weight_versions(number, trace, &was_sampled),
        }
    }

    /// The response positions of a call's sampled tokens. `whole` up to the end of `before`,
    /// the trace's call before it, is known to be that call's prompt and reply.
    fn place(
        &self,
        number: usize,
        trace: &Trace,
        whole: &[u32],
        before: Option<&RecordedCall>,
        call: &RecordedCall,
    ) -> Result<Range<usize>, Violation> {
        let tokens = self.session.tokens();
        let context = || Violation::Context { trace: number, call: call.meta.call_id.clone() };
        let (Some(prompt), Some(end)) = (call.prompt_end(), call.sequence_end()) else {
            return Err(context());
        };
        let known = match before.and_then(RecordedCall::sequence_end) {
            Some(known) if tokens.shared_depth(known, prompt) == known.depth() => known.depth(),
            None if prompt.depth() == trace.prompt_ids.len() => 0,
            _ => return Err(context()),
        };
        // The same tokens may stand for another picture.
        if let Some(before) = before.filter(|_| self.has_lists)
            && !self.pictures(call).starts_with(&self.pictures(before))
        {
            return Err(context());
        }
        if whole.get(known..prompt.depth()) != Some(&tokens.path(prompt, known)) {
            return Err(context());
        }
        if whole.get(prompt.depth()..end.depth()) != Some(&tokens.path(end, prompt.depth())) {
            return Err(Violation::Sampled { trace: number, call: call.meta.call_id.clone() });
        }
        Ok(prompt.depth() - trace.prompt_ids.len()..end.depth() - trace.prompt_ids.len())
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

    fn reply(
        &mut self,
        number: usize,
        trace: &Trace,
        index: usize,
        first: usize,
    ) -> Result<(), Violation> {
        let call = &self.session.calls()[index];
        let mut trained = 0;
        for at in 0..call.sampled_tokens() as usize {
            let given = given_logprob(call, at).map(f32::to_bits);
            let position = first + at;
            let mask = trace.loss_mask[position];
            let built = trace.response_logprobs[position].map(f32::to_bits);
            if built != given || mask != u8::from(given.is_some()) {
                return Err(Violation::Logprob { trace: number, position });
            }
            trained += u64::from(mask);
        }
        match self.trained[index].replace(trained) {
            None => Ok(()),
            Some(_) => {
                Err(Violation::TrainedTwice { trace: number, call: call.meta.call_id.clone() })
            }
        }
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
}

/// The engine's logprob where one can be trained on.
fn given_logprob(call: &RecordedCall, at: usize) -> Option<f32> {
    if call.logprobs.len() as u64 == call.sampled_tokens() {
        call.logprobs[at].filter(|value| value.is_finite())
    } else {
        None
    }
}

fn weight_versions(number: usize, trace: &Trace, was_sampled: &[bool]) -> Result<(), Violation> {
    let mut covered = vec![false; was_sampled.len()];
    let mut reached = 0;
    for span in &trace.weight_versions {
        let span_of_response = covered.get_mut(span.start as usize..span.end as usize);
        match span_of_response {
            Some(positions) if span.start >= reached && span.start < span.end => {
                positions.fill(true);
            }
            _ => return Err(Violation::WeightVersions { trace: number }),
        }
        reached = span.end;
    }
    if covered == was_sampled { Ok(()) } else { Err(Violation::WeightVersions { trace: number }) }
}

fn counts(
    trajectory: &Trajectory,
    calls: &[RecordedCall],
    trained: &[Option<u64>],
    mut untrained: HashMap<UntrainedReason, u64>,
) -> Result<(), Violation> {
    let in_traces: u64 = trained.iter().flatten().sum();
    let holes: u64 = calls
        .iter()
        .zip(trained)
        .filter_map(|(call, trained)| Some(call.sampled_tokens() - (*trained)?))
        .sum();
    untrained.insert(UntrainedReason::LogprobMissing, holes);
    let responses: usize = trajectory.traces.iter().map(|trace| trace.response_ids.len()).sum();

    let tokens = &trajectory.tokens;
    let expect = |what: String, counted: u64, found: u64| {
        if counted == found { Ok(()) } else { Err(Violation::Counts { what, counted, found }) }
    };
    expect(
        "sampled".to_owned(),
        tokens.sampled,
        calls.iter().map(RecordedCall::sampled_tokens).sum(),
    )?;
    expect("trained".to_owned(), tokens.trained, in_traces)?;
    expect("context".to_owned(), tokens.context, responses as u64 - in_traces - holes)?;
    for reason in untrained.keys().chain(tokens.untrained.keys()) {
        let counted = tokens.untrained.get(reason).copied().unwrap_or(0);
        let found = untrained.get(reason).copied().unwrap_or(0);
        expect(format!("untrained {reason:?}"), counted, found)?;
    }
    let all = tokens.trained + tokens.untrained.values().sum::<u64>();
    expect("trained and untrained together".to_owned(), all, tokens.sampled)
}
