//! What can be done about a fork.

use polar_types::ForkCause;
use serde::Serialize;

/// Where a remedy lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Nowhere: the harness made the fork, and it is part of what it does.
    None,
    /// Token mode, where a history is the ids that were sampled.
    TokenMode,
    /// Token mode with the task's `history: sampled`.
    HistorySampled,
    /// The task's `trajectory_strategy`.
    Strategy,
    /// A rule under `normalise:` in the harness's adapter.
    NormaliseRule,
}

/// What can be done about forks of a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Where.
    pub remedy: Remedy,
    /// In words.
    pub text: &'static str,
}

/// What can be done about forks of a cause. The one place that says so.
pub fn advice(cause: ForkCause) -> Advice {
    let (remedy, text) = match cause {
        ForkCause::NewLineage => {
            (Remedy::None, "a conversation of its own; there is nothing to heal")
        }
        ForkCause::HistoryRewritten => (
            Remedy::None,
            "the harness changed, dropped or inserted an earlier message, as a compaction does; \
             the trace before it is whole, and there is nothing to heal",
        ),
        ForkCause::ReasoningStripped => (
            Remedy::HistorySampled,
            "the reasoning of an earlier reply is not in the prompt, because the model's template \
             leaves it out of past turns or the harness dropped it; in token mode `history: \
             sampled`, which is the default, keeps it, at the price of its tokens in each later \
             prompt",
        ),
        ForkCause::ToolArgumentsReserialised => (
            Remedy::TokenMode,
            "the harness spelled a call's arguments anew; in token mode they stay as sampled",
        ),
        ForkCause::ToolsChanged => (
            Remedy::None,
            "the harness offers other tools, which stand at the front of the prompt, so that no \
             token behind them has the same context; there is nothing to heal",
        ),
        ForkCause::Retokenised => (
            Remedy::TokenMode,
            "the same text became other tokens when it was rendered again; in token mode a \
             history is the ids that were sampled",
        ),
        ForkCause::TruncatedTurn => (
            Remedy::TokenMode,
            "a reply was cut at its limit, and its end was closed or dropped when it came back; \
             in token mode it stays as sampled and is closed by a rule",
        ),
        ForkCause::Unanswered => (
            Remedy::None,
            "the reply before never came: the harness hung up on it, or it broke off; what was \
             sampled of it is counted and not trained, and there is nothing to heal",
        ),
        ForkCause::Retry => (
            Remedy::None,
            "the harness asked the same again; both replies are trained, and `prefix_tree` keeps \
             their prompt once",
        ),
        ForkCause::Branch => (
            Remedy::None,
            "the harness went on twice from one reply; both ways are trained, and `prefix_tree` \
             keeps what they share once",
        ),
        ForkCause::PerRequest => (
            Remedy::Strategy,
            "the task asks for a trace per call; `trajectory_strategy: prefix_merging` joins \
             calls that extend each other",
        ),
    };
    Advice { remedy, text }
}

/// What can be done where the change is one line of text that means nothing to the model.
pub(crate) const VOLATILE_TEXT: Advice = Advice {
    remedy: Remedy::NormaliseRule,
    text: "one line of an earlier message came back changed; if it means nothing to the model, a \
           rule under `normalise:` in the harness's adapter takes it out",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_advice_of_its_own() {
        let mut texts: Vec<_> = ForkCause::ALL.iter().map(|cause| advice(*cause).text).collect();
        assert!(texts.iter().all(|text| text.len() > 20), "{texts:?}");
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), ForkCause::ALL.len());
        // What is the harness's own doing has no remedy, and all else has one.
        let healed = ForkCause::ALL.iter().filter(|cause| advice(**cause).remedy != Remedy::None);
        assert_eq!(
            healed.collect::<Vec<_>>(),
            [
                &ForkCause::ReasoningStripped,
                &ForkCause::ToolArgumentsReserialised,
                &ForkCause::Retokenised,
                &ForkCause::TruncatedTurn,
                &ForkCause::PerRequest,
            ]
        );
    }
}
