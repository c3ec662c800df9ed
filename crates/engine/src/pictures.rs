//! Pictures in prompts of ids.
//!
//! The template writes one mark where it shows a picture, and the engine puts as many ids in the
//! mark's place as the picture takes. What the engine had in context is then another sequence than
//! was sent, told by itself; here it is held against what was sent, so that nothing but marks was
//! replaced.

use serde::Deserialize;

/// Where in its prompt an engine put a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Place {
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

/// The same by kind of medium, as vLLM tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Places {
    #[serde(default)]
    pub(crate) image: Vec<Place>,
}

/// The marks that stood in the places of pictures, in their order; none where `had` is anything
/// else than `sent` with one mark replaced at each place.
pub(crate) fn replaced(sent: &[u32], had: &[u32], places: &[Place]) -> Option<Vec<u32>> {
    let (mut sent, mut had, mut from) = (sent, had, 0_usize);
    let mut marks = Vec::with_capacity(places.len());
    for place in places {
        let before = place.offset.checked_sub(from)?;
        let (ours, rest) = sent.split_at_checked(before)?;
        let (theirs, shown) = had.split_at_checked(before)?;
        let (mark, rest) = rest.split_first()?;
        let (_, behind) = shown.split_at_checked(place.length)?;
        if ours != theirs || place.length == 0 {
            return None;
        }
        marks.push(*mark);
        (sent, had, from) = (rest, behind, place.offset + place.length);
    }
    (sent == had).then_some(marks)
}

/// The places of pictures where an engine does not tell them: each repeats its mark. None where the
/// one is not the other with its marks repeated.
pub(crate) fn places_of(mark: u32, sent: &[u32], had: &[u32]) -> Option<Vec<Place>> {
    let (mut at, mut places) = (0, Vec::new());
    for id in sent {
        let length = match *id == mark {
            true => had.get(at..)?.iter().take_while(|had| **had == mark).count(),
            false => 1,
        };
        if length == 0 || (*id != mark && had.get(at) != Some(id)) {
            return None;
        }
        if *id == mark {
            places.push(Place { offset: at, length });
        }
        at += length;
    }
    (at == had.len()).then_some(places)
}

/// The mark of the one picture in a prompt that the engine repeats: the first id at which both differ
/// stands behind it, or nothing but the mark was sent.
pub(crate) fn repeated_mark(sent: &[u32], had: &[u32]) -> Option<u32> {
    let same = sent.iter().zip(had).take_while(|(sent, had)| sent == had).count();
    let mark = *sent.get(same.checked_sub(1)?)?;
    (had.len() > sent.len() && places_of(mark, sent, had)?.len() == 1).then_some(mark)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MARK: u32 = 9;

    fn shown(sent: &[u32], lengths: &[usize]) -> (Vec<u32>, Vec<Place>) {
        let (mut had, mut places) = (Vec::new(), Vec::new());
        let mut lengths = lengths.iter().copied();
        for id in sent {
            match lengths.next().filter(|_| *id == MARK) {
                Some(length) => {
                    places.push(Place { offset: had.len(), length });
                    had.extend(std::iter::repeat_n(MARK, length));
                }
                None => had.push(*id),
            }
        }
        (had, places)
    }

    proptest! {
        #[test]
        fn only_marks_may_have_been_replaced(
            sent in prop::collection::vec(prop_oneof![0_u32..5, Just(MARK)], 1..20),
            length in 1_usize..6,
            at in any::<prop::sample::Index>(),
        ) {
            let marks = sent.iter().filter(|id| **id == MARK).count();
            let (had, places) = shown(&sent, &vec![length; sent.len()]);
            prop_assert_eq!(replaced(&sent, &had, &places), Some(vec![MARK; places.len()]));
            prop_assert_eq!(places.len(), marks);
            // Marks beside each other cannot be told apart without being told.
            if sent.windows(2).all(|two| two != [MARK, MARK]) {
                prop_assert_eq!(places_of(MARK, &sent, &had), Some(places.clone()));
                if marks == 1 && length > 1 {
                    prop_assert_eq!(repeated_mark(&sent, &had), Some(MARK));
                }
            }
            // Anything else that is another is seen.
            let at = at.index(had.len());
            let is_picture =
                places.iter().any(|place| (place.offset..place.offset + place.length).contains(&at));
            let mut other = had.clone();
            other[at] = 7;
            let seen = replaced(&sent, &other, &places).is_none();
            prop_assert_eq!(seen, !is_picture);
            let mut longer = had.clone();
            longer.push(7);
            prop_assert_eq!(replaced(&sent, &longer, &places), None);
        }
    }

    #[test]
    fn places_that_cannot_be_are_none() {
        let place = |offset, length| Place { offset, length };
        assert_eq!(replaced(&[1, MARK, 2], &[1, 5, 5, 2], &[place(1, 2)]), Some(vec![MARK]));
        for places in [vec![], vec![place(4, 1)], vec![place(1, 9)], vec![place(1, 2), place(1, 2)]]
        {
            assert_eq!(replaced(&[1, MARK, 2], &[1, 5, 5, 2], &places), None, "{places:?}");
        }
        assert_eq!(replaced(&[1, 2], &[1, 2], &[place(1, 0)]), None);
    }
}
