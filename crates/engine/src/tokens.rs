//! Checks of what an engine says it sampled. An id outside the vocabulary is an engine
//! fault and never gets into a record; a logprob that cannot be paired is missing.

use crate::EngineError;
use crate::chat_reply::Logprob;

/// The ids an engine can have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vocabulary(pub(crate) Option<u32>);

impl Vocabulary {
    pub(crate) fn check(self, ids: &[u32]) -> Result<(), EngineError> {
        let Some(size) = self.0 else { return Ok(()) };
        match ids.iter().find(|id| **id >= size) {
            None => Ok(()),
            Some(id) => Err(EngineError::malformed(format_args!(
                "token id {id} is outside the vocabulary of {size}"
            ))),
        }
    }
}

/// Pairs logprobs with ids by position, which is right only where there are as many of
/// both; `None` when there are not.
pub(crate) fn pair_by_position(ids: &[u32], logprobs: &[Logprob]) -> Option<Vec<Option<f32>>> {
    (ids.len() == logprobs.len()).then(|| logprobs.iter().map(|entry| entry.logprob).collect())
}

/// Pairs logprobs with ids by id, in order; ids without a logprob get none. `None` when
/// some logprob belongs to no id, for then the two are not of one reply.
pub(crate) fn pair_by_id(ids: &[u32], logprobs: &[Logprob]) -> Option<Vec<Option<f32>>> {
    let mut entries = logprobs.iter().peekable();
    let paired = ids
        .iter()
        .map(|id| entries.next_if(|entry| entry.id == Some(*id)).and_then(|entry| entry.logprob))
        .collect();
    entries.peek().is_none().then_some(paired)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u32, logprob: f32) -> Logprob {
        Logprob { id: Some(id), logprob: Some(logprob) }
    }

    #[test]
    fn holes_in_logprobs_stay_holes() {
        let logprobs = [entry(5, -0.5), entry(7, -0.7), entry(5, -0.55)];
        let paired = pair_by_id(&[5, 126, 163, 7, 9, 5], &logprobs);
        assert_eq!(paired, Some(vec![Some(-0.5), None, None, Some(-0.7), None, Some(-0.55)]));
        assert_eq!(pair_by_id(&[5, 7], &logprobs), None);
        assert_eq!(pair_by_id(&[7, 5, 5], &logprobs), None);
        assert_eq!(pair_by_id(&[1], &[]), Some(vec![None]));
    }

    #[test]
    fn lists_of_other_lengths_are_not_paired() {
        assert_eq!(pair_by_position(&[5, 7], &[entry(5, -0.5)]), None);
        assert_eq!(pair_by_position(&[5], &[entry(5, -9999.0)]), Some(vec![Some(-9999.0)]));
    }

    #[test]
    fn ids_outside_the_vocabulary_are_refused() {
        assert!(Vocabulary(Some(10)).check(&[0, 9]).is_ok());
        let error = Vocabulary(Some(10)).check(&[0, 10]).unwrap_err();
        assert!(error.message.contains("token id 10 is outside the vocabulary of 10"), "{error}");
        assert!(Vocabulary(None).check(&[u32::MAX]).is_ok());
    }
}
