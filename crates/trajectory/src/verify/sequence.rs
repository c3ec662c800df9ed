//! Holds the tokens of one sequence against the calls that it says it is made of.

use super::{Check, Violation};
use polar_record::RecordedCall;
use polar_types::{CallId, CallRole, WeightSpan};
use std::ops::Range;

/// A sequence, or what of it is not part of one that was checked before.
pub(super) struct Laid<'a> {
    /// Which trace or lineage it is.
    pub(super) number: usize,
    pub(super) role: CallRole,
    pub(super) calls: &'a [CallId],
    /// Tokens before those here.
    pub(super) start: usize,
    /// Tokens before the first sampled one.
    pub(super) prompt: usize,
    pub(super) ids: Vec<u32>,
    pub(super) mask: Vec<u8>,
    pub(super) logprobs: Vec<Option<f32>>,
}

impl<'a> Check<'a> {
    /// Checks a sequence, and gives for each token that is here which of its calls sampled it.
    /// The `start` tokens before are known to be the first of the sequence of `behind`.
    pub(super) fn sequence(
        &mut self,
        laid: &Laid<'_>,
        behind: Option<&'a RecordedCall>,
    ) -> Result<Vec<Option<usize>>, Violation> {
        let trace = laid.number;
        let mut sampled_by = vec![None; laid.ids.len()];
        let mut before = None;
        for (place, id) in laid.calls.iter().enumerate() {
            let unknown = || Violation::UnknownCall { trace, call: id.clone() };
            let index = *self.index.get(id).ok_or_else(unknown)?;
            if self.roles[index] != laid.role {
                return Err(Violation::Role { trace, call: id.clone() });
            }
            let call = &self.session.calls()[index];
            let known = match before {
                Some(before) => self.behind_reply(laid, before, call)?,
                None => self.behind_start(laid, behind, call)?,
            };
            let sampled = self.tokens_of(laid, known, call)?;
            sampled_by[sampled.clone()].fill(Some(place));
            self.reply(laid, index, sampled.start)?;
            before = Some(call);
        }
        let is_bare = |at: usize| laid.mask[at] == 0 && laid.logprobs[at].is_none();
        match (0..laid.ids.len()).find(|&at| sampled_by[at].is_none() && !is_bare(at)) {
            Some(at) => Err(Violation::Invented { trace, position: laid.start + at }),
            None => Ok(sampled_by),
        }
    }

    /// The prompt of a call goes on behind the prompt and reply of the one before.
    fn behind_reply(
        &self,
        laid: &Laid<'_>,
        before: &RecordedCall,
        call: &RecordedCall,
    ) -> Result<usize, Violation> {
        let ends = (before.sequence_end(), call.prompt_end());
        let (Some(end), Some(prompt)) = ends else { return Err(context(laid, call, laid.start)) };
        let shared = self.session.tokens().shared_depth(end, prompt);
        if shared < end.depth() {
            return Err(context(laid, call, shared));
        }
        // The same tokens may stand for another picture.
        if self.has_lists && !self.pictures(call).starts_with(&self.pictures(before)) {
            let call = call.meta.call_id.clone();
            return Err(Violation::Pictures { trace: laid.number, call });
        }
        Ok(shared)
    }

    /// The first prompt is as long as the sequence says, and begins with what is not here.
    fn behind_start(
        &self,
        laid: &Laid<'_>,
        behind: Option<&RecordedCall>,
        call: &RecordedCall,
    ) -> Result<usize, Violation> {
        let prompt = call.prompt_end().ok_or_else(|| context(laid, call, 0))?;
        if prompt.depth() != laid.prompt {
            return Err(context(laid, call, prompt.depth().min(laid.prompt)));
        }
        let known = behind.and_then(RecordedCall::sequence_end);
        let shared = known.map_or(0, |end| self.session.tokens().shared_depth(end, prompt));
        if shared < laid.start {
            return Err(context(laid, call, shared));
        }
        Ok(laid.start)
    }

    /// Compares the tokens from `known` on with what the engine had and sampled, and says which
    /// of those here were sampled.
    fn tokens_of(
        &self,
        laid: &Laid<'_>,
        known: usize,
        call: &RecordedCall,
    ) -> Result<Range<usize>, Violation> {
        let tokens = self.session.tokens();
        let (Some(prompt), Some(end)) = (call.prompt_end(), call.sequence_end()) else {
            return Err(context(laid, call, known));
        };
        if prompt.depth() < laid.start {
            return Err(context(laid, call, prompt.depth()));
        }
        let differs = |from: usize, expected: &[u32]| {
            let here = laid.ids.get(from - laid.start..).unwrap_or_default();
            let same = here.iter().zip(expected).take_while(|(here, there)| here == there).count();
            (same < expected.len()).then_some(from + same)
        };
        if let Some(position) = differs(known, &tokens.path(prompt, known)) {
            return Err(context(laid, call, position));
        }
        if let Some(position) = differs(prompt.depth(), &tokens.path(end, prompt.depth())) {
            let call = call.meta.call_id.clone();
            return Err(Violation::Sampled { trace: laid.number, call, position });
        }
        Ok(prompt.depth() - laid.start..end.depth() - laid.start)
    }

    /// Compares masks and logprobs of a call's reply, whose tokens begin at `first` of those
    /// here, with the engine's.
    fn reply(&mut self, laid: &Laid<'_>, index: usize, first: usize) -> Result<(), Violation> {
        let call = &self.session.calls()[index];
        let mut trained = 0;
        for at in 0..call.sampled_tokens() as usize {
            let given = given_logprob(call, at).map(f32::to_bits);
            let built = laid.logprobs[first + at].map(f32::to_bits);
            let mask = laid.mask[first + at];
            if built != given || mask != u8::from(given.is_some()) {
                let position = laid.start + first + at;
                return Err(Violation::Logprob { trace: laid.number, position });
            }
            trained += u64::from(mask);
        }
        match self.trained[index].replace(trained) {
            None => Ok(()),
            Some(_) => {
                let call = call.meta.call_id.clone();
                Err(Violation::TrainedTwice { trace: laid.number, call })
            }
        }
    }
}

fn context(laid: &Laid<'_>, call: &RecordedCall, position: usize) -> Violation {
    Violation::Context { trace: laid.number, call: call.meta.call_id.clone(), position }
}

/// The engine's logprob where one can be trained on.
fn given_logprob(call: &RecordedCall, at: usize) -> Option<f32> {
    if call.logprobs.len() as u64 == call.sampled_tokens() {
        call.logprobs[at].filter(|value| value.is_finite())
    } else {
        None
    }
}

/// Checks that spans cover what was sampled, all of it and nothing else. That they are in order
/// and in range is known.
pub(super) fn spans_cover(
    spans: &[WeightSpan],
    was_sampled: &[bool],
    place: impl Fn() -> String,
) -> Result<(), Violation> {
    let mut covered = vec![false; was_sampled.len()];
    for span in spans {
        covered[span.start as usize..span.end as usize].fill(true);
    }
    if covered == was_sampled { Ok(()) } else { Err(Violation::WeightVersions { place: place() }) }
}
