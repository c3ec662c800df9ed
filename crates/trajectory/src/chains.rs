//! Which calls are one sequence: each behind the call that it goes on from.

use crate::lineage::{Fate, Lineages};
use polar_record::RecordedSession;

/// The trained calls of a session as chains, in order of their first call.
#[derive(Debug)]
pub(crate) struct Chains {
    chains: Vec<Vec<u32>>,
    /// Chain of each call; absent for calls that are not trained.
    of_call: Vec<Option<u32>>,
}

impl Chains {
    /// Calls that each extend the one before it. A call whose parent another one continued
    /// already begins a chain of its own.
    pub(crate) fn merged(session: &RecordedSession, lineages: &Lineages) -> Self {
        Self::new(session, lineages, |call| lineages.parent(call))
    }

    /// Every call for itself.
    pub(crate) fn single(session: &RecordedSession, lineages: &Lineages) -> Self {
        Self::new(session, lineages, |_| None)
    }

    fn new(
        session: &RecordedSession,
        lineages: &Lineages,
        parent: impl Fn(u32) -> Option<u32>,
    ) -> Self {
        let calls = session.calls().len();
        let mut made = Self { chains: Vec::new(), of_call: vec![None; calls] };
        let trained = (0..calls as u32).filter(|call| lineages.fate(*call) == Fate::Trained);
        for call in trained {
            let parent = parent(call);
            let continued = parent.and_then(|parent| made.of_call[parent as usize]);
            let number = match continued {
                Some(number) if made.chains[number as usize].last().copied() == parent => number,
                _ => {
                    made.chains.push(Vec::new());
                    made.chains.len() as u32 - 1
                }
            };
            made.chains[number as usize].push(call);
            made.of_call[call as usize] = Some(number);
        }
        made
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.chains.len()
    }

    /// Calls of each chain, oldest first; at least one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u32]> {
        self.chains.iter().map(Vec::as_slice)
    }

    /// Calls of the `number`-th chain.
    pub(crate) fn calls(&self, number: u32) -> &[u32] {
        &self.chains[number as usize]
    }

    /// The chain that a call is in.
    pub(crate) fn of_call(&self, call: u32) -> Option<u32> {
        self.of_call[call as usize]
    }

    /// The call of the same chain that `call` extends.
    pub(crate) fn before(&self, call: u32) -> Option<u32> {
        let chain = self.calls(self.of_call(call)?);
        let place = chain.binary_search(&call).ok()?;
        chain.get(place.checked_sub(1)?).copied()
    }
}
