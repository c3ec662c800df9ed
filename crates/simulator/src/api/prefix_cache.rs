//! Which prompt beginnings an engine would find in its KV cache. Only changes what
//! usage reports.

use crate::weights::Context;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Tokens of a cache block, as vLLM has it on CPUs.
const BLOCK: usize = 128;
/// Blocks of one generation; two are kept.
const MOST_BLOCKS: usize = 1 << 16;

/// Blocks seen lately, each known by everything up to its end.
#[derive(Debug, Default)]
pub(crate) struct PrefixCache {
    blocks: Mutex<Blocks>,
}

#[derive(Debug, Default)]
struct Blocks {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

/// A prompt's share in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheUse {
    /// Tokens found.
    pub cached: usize,
    /// Tokens put in.
    pub created: usize,
}

impl PrefixCache {
    /// Looks a prompt up and puts it in. Also gives the context after the prompt.
    pub(crate) fn take(&self, prompt: &[u32], salt: u64) -> (Context, CacheUse) {
        let mut context = Context::empty();
        let mut ends = Vec::with_capacity(prompt.len() / BLOCK);
        for (index, id) in prompt.iter().enumerate() {
            context = context.then(*id);
            // The last token is always computed, so that there is something to sample from.
            if (index + 1) % BLOCK == 0 {
                ends.push(context.key(salt));
            }
        }
        let usable = prompt.len().saturating_sub(1) / BLOCK;
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let found = ends.iter().take(usable).take_while(|end| blocks.has(**end)).count();
        for end in &ends[found..] {
            blocks.put(*end);
        }
        let used = CacheUse { cached: found * BLOCK, created: (ends.len() - found) * BLOCK };
        (context, used)
    }

    /// Forgets everything.
    pub(crate) fn reset(&self) {
        *self.blocks.lock().unwrap_or_else(PoisonError::into_inner) = Blocks::default();
    }
}

impl Blocks {
    fn has(&self, end: u64) -> bool {
        self.young.contains(&end) || self.old.contains(&end)
    }

    fn put(&mut self, end: u64) {
        if self.young.len() >= MOST_BLOCKS {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_found_in_whole_blocks() {
        let cache = PrefixCache::default();
        let prompt: Vec<u32> = (0..600).collect();
        let cached = |prompt: &[u32], salt| cache.take(prompt, salt).1.cached;
        assert_eq!(cached(&prompt, 0), 0);
        assert_eq!(cached(&prompt, 0), 512);
        assert_eq!(cached(&prompt, 1), 0, "another salt");
        assert_eq!(cached(&prompt[..256], 0), 128, "the last token is computed");
        assert_eq!(cached(&prompt[1..], 0), 0);
        cache.reset();
        assert_eq!(cached(&prompt, 0), 0);
    }
}
