//! Checks of what an engine says it sampled. An id outside the vocabulary is an engine
//! fault and never gets into a record; a logprob that cannot be paired is missing.

use crate::EngineError;
use crate::chat_reply::Logprob;
use polar_types::ErrorClass;

/// The ids an engine can have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vocabulary(pub(crate) Option<u32>);

impl Vocabulary {
    pub(crate) fn check(self, ids: &[u32]) -> Result<(), EngineError> {
        match self.stranger(ids) {
            None => Ok(()),
            Some(problem) => Err(EngineError::malformed(problem)),
        }
    }

    /// The same of ids that are to be sent, before any engine sees them.
    pub(crate) fn allows(self, ids: &[u32]) -> Result<(), EngineError> {
        match self.stranger(ids) {
            None => Ok(()),
            Some(problem) => Err(EngineError::new(
                ErrorClass::Invalid,
                format!("{problem}, so that nothing was sent; use the served model's tokenizer"),
            )),
        }
    }

    fn stranger(self, ids: &[u32]) -> Option<String> {
        let size = self.0?;
        let id = ids.iter().find(|id| **id >= size)?;
        Some(format!("token id {id} is outside the vocabulary of {size}"))
    }
}

/// Pairs logprobs with ids by position, which is right only where there are as many of
/// both; `None` when there are not.
pub(crate) fn pair_by_position(ids: &[u32], logprobs: &[Logprob]) -> Option<Vec<Option<f32>>> {
    (ids.len() == logprobs.len()).then(|| logprobs.iter().map(|entry| entry.logprob).collect())
}

/// The same where logprobs say which id they are of, which has to be that id.
pub(crate) fn pair_exactly(ids: &[u32], logprobs: &[Logprob]) -> Option<Vec<Option<f32>>> {
    let paired = pair_by_position(ids, logprobs)?;
    let is_same = ids.iter().zip(logprobs).all(|(id, entry)| entry.id == Some(*id));
    is_same.then_some(paired)
}

/// Pairs logprobs with ids by id, in order; ids without a logprob get none. `None` when
/// some logprob belongs to no id, for then the two are not of one reply.
///
/// Where an id repeats beside a hole, several pairings are possible: the bytes of `₂` are
/// `E2 82 82`, and a tokenizer may have one id for both last ones, of which one has a logprob.
/// A logprob is given only where it has the same place in every pairing, which it has where
/// pairing from the front and from the back agree.
pub(crate) fn pair_by_id(ids: &[u32], logprobs: &[Logprob]) -> Option<Vec<Option<f32>>> {
    let earliest = places(ids.iter().enumerate(), logprobs.iter())?;
    let latest = places(ids.iter().enumerate().rev(), logprobs.iter().rev())?;
    let mut paired = vec![None; ids.len()];
    for ((entry, early), late) in logprobs.iter().zip(earliest).zip(latest.into_iter().rev()) {
        if early == late {
            paired[early] = entry.logprob;
        }
    }
    Some(paired)
}

/// The first place for each logprob behind the place of the one before it.
fn places<'a>(
    mut ids: impl Iterator<Item = (usize, &'a u32)>,
    logprobs: impl Iterator<Item = &'a Logprob>,
) -> Option<Vec<usize>> {
    logprobs
        .map(|entry| ids.find(|(_, id)| entry.id == Some(**id)).map(|(place, _)| place))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn promise_3_a_logprob_that_could_be_anothers_is_nobodys() {
        // `H₂O` in bytes: the first two of the three that make `₂` have no logprob.
        let ids = [72, 0xE2, 0x82, 0x82, 79];
        let logprobs = [entry(72, -0.1), entry(0x82, -0.7), entry(79, -0.2)];
        let paired = pair_by_id(&ids, &logprobs);
        assert_eq!(paired, Some(vec![Some(-0.1), None, None, None, Some(-0.2)]));
    }

    /// All ways to give each of `entries` a place of its own, in order.
    fn pairings(ids: &[u32], entries: &[u32], from: usize) -> Vec<Vec<usize>> {
        let Some((first, others)) = entries.split_first() else { return vec![Vec::new()] };
        let fitting = (from..ids.len()).filter(|at| ids[*at] == *first);
        fitting
            .flat_map(|at| {
                pairings(ids, others, at + 1).into_iter().map(move |rest| [vec![at], rest].concat())
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn promise_3_a_logprob_is_given_where_every_pairing_agrees_and_nowhere_else(
            tokens in prop::collection::vec((0u32..3, prop::bool::weighted(0.8)), 0..9),
        ) {
            let ids: Vec<u32> = tokens.iter().map(|(id, _)| *id).collect();
            let given = || tokens.iter().enumerate().filter(|(_, (_, given))| *given);
            let entries: Vec<u32> = given().map(|(_, (id, _))| *id).collect();
            let logprobs: Vec<Logprob> =
                given().map(|(at, (id, _))| entry(*id, -(at as f32))).collect();
            let all = pairings(&ids, &entries, 0);
            let mut expected = vec![None; ids.len()];
            for (number, entry) in logprobs.iter().enumerate() {
                if all.iter().all(|pairing| pairing[number] == all[0][number]) {
                    expected[all[0][number]] = entry.logprob;
                }
            }
            prop_assert_eq!(pair_by_id(&ids, &logprobs), Some(expected));
        }
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
