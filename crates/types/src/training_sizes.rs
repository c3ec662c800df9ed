//! What a session costs a trainer, by how its calls are laid out.

use serde::{Deserialize, Serialize};

/// The trained calls of a session in each layout, whichever of them was built.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TrainingSizes {
    /// A sequence per call.
    pub per_request: LayoutSize,
    /// A sequence per lineage.
    pub prefix_merging: LayoutSize,
    /// A tree for each beginning that no other sequence shares, every token in it once.
    pub prefix_tree: LayoutSize,
}

/// How much there is to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LayoutSize {
    /// Sequences, or trees.
    pub samples: u64,
    /// Tokens of all of them together, context included.
    pub tokens: u64,
    /// Tokens as a share of those of `per_request`; 1 where there are none.
    pub share: f64,
}

impl TrainingSizes {
    /// From samples and tokens of each layout.
    pub fn new(
        per_request: (u64, u64),
        prefix_merging: (u64, u64),
        prefix_tree: (u64, u64),
    ) -> Self {
        let size = |(samples, tokens): (u64, u64)| {
            let whole = per_request.1;
            let share = if whole == 0 { 1.0 } else { tokens as f64 / whole as f64 };
            LayoutSize { samples, tokens, share }
        };
        Self {
            per_request: size(per_request),
            prefix_merging: size(prefix_merging),
            prefix_tree: size(prefix_tree),
        }
    }

    /// Both sessions together.
    pub fn plus(&self, other: &Self) -> Self {
        let sum = |mine: LayoutSize, theirs: LayoutSize| {
            (mine.samples + theirs.samples, mine.tokens + theirs.tokens)
        };
        Self::new(
            sum(self.per_request, other.per_request),
            sum(self.prefix_merging, other.prefix_merging),
            sum(self.prefix_tree, other.prefix_tree),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_a_sequence_per_call_takes() {
        let one = TrainingSizes::new((30, 300), (1, 60), (1, 60));
        let other = TrainingSizes::new((10, 100), (4, 40), (1, 20));
        let both = one.plus(&other);
        assert_eq!(both.per_request, LayoutSize { samples: 40, tokens: 400, share: 1.0 });
        assert_eq!(both.prefix_merging, LayoutSize { samples: 5, tokens: 100, share: 0.25 });
        assert_eq!(both.prefix_tree, LayoutSize { samples: 2, tokens: 80, share: 0.2 });
        assert_eq!(TrainingSizes::new((0, 0), (0, 0), (0, 0)).prefix_tree.share, 1.0);
    }
}
