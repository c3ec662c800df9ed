//! What a check can find, in words.

use polar_types::CallId;

/// What Polar promises of training data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Promise {
    /// Every sampled token is trained once, or counted under the reason why not.
    Conservation = 1,
    /// Before each trained token stands exactly what the engine had in context.
    ContextTruth = 2,
    /// No id and no logprob that the engine did not give.
    NeverInvent = 3,
}

impl Promise {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Conservation => "conservation",
            Self::ContextTruth => "context truth",
            Self::NeverInvent => "never invent",
        }
    }
}

/// How a trajectory breaks what it promises. A trace is one of `traces`, or a lineage of the
/// tree, by its index; positions count from its first token, the prompt's included.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The arrays of a trace or node do not belong together.
    #[error("{place}: ids, mask and logprobs differ in length")]
    Lengths {
        /// Which trace or node.
        place: String,
    },
    /// The nodes of a tree are none.
    #[error("the tree does not hold together: {what}")]
    Tree {
        /// Where and how.
        what: String,
    },
    /// A trace names a call that was not recorded.
    #[error("trace {trace} names call {call}, which is not in the journal")]
    UnknownCall {
        /// The trace.
        trace: usize,
        /// The call it names.
        call: CallId,
    },
    /// A call's tokens are in two places with mask 1.
    #[error("call {call} is trained twice, the second time in trace {trace}")]
    TrainedTwice {
        /// The second trace.
        trace: usize,
        /// The call.
        call: CallId,
    },
    /// A token with mask 1 has another context than the engine had.
    #[error(
        "trace {trace}: the context of call {call} is not what the engine had, from position \
         {position} on"
    )]
    Context {
        /// The trace.
        trace: usize,
        /// The call whose prompt is not the trace's beginning.
        call: CallId,
        /// First token that is another.
        position: usize,
    },
    /// A call's context holds another picture than the engine was shown.
    #[error("trace {trace}: the context of call {call} stands for other pictures")]
    Pictures {
        /// The trace.
        trace: usize,
        /// The call.
        call: CallId,
    },
    /// A trace holds other tokens than were sampled.
    #[error(
        "trace {trace}: the tokens of call {call} are not those that were sampled, from position \
         {position} on"
    )]
    Sampled {
        /// The trace.
        trace: usize,
        /// The call.
        call: CallId,
        /// First token that is another.
        position: usize,
    },
    /// A position that was not sampled has a mask or a logprob.
    #[error("trace {trace}: position {position} was not sampled but has a mask or logprob")]
    Invented {
        /// The trace.
        trace: usize,
        /// The token.
        position: usize,
    },
    /// Mask or logprob of a sampled position is not what the record says.
    #[error("trace {trace}: mask or logprob at position {position} is not the engine's")]
    Logprob {
        /// The trace.
        trace: usize,
        /// The token.
        position: usize,
    },
    /// A position is trained without a logprob, or has one and is not trained.
    #[error("{place}: mask and logprob do not fit each other at position {position}")]
    Mask {
        /// Which trace or node.
        place: String,
        /// The token; in a node, counted from its beginning.
        position: usize,
    },
    /// The spans of weight versions do not cover the sampled positions, once and in order.
    #[error("{place}: weight_versions do not cover exactly the sampled positions")]
    WeightVersions {
        /// Which trace or node.
        place: String,
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
        /// The trace.
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
        /// As the records or traces say.
        found: u64,
    },
    /// `siblings` or `loss_weight` do not fit the number of traces.
    #[error("trace {trace}: siblings or loss_weight do not fit the number of traces")]
    Siblings {
        /// The trace.
        trace: usize,
    },
    /// `turn_ends` or `turn_scores` do not fit the calls.
    #[error("{place}: turn_ends or turn_scores do not fit its calls and its response")]
    Turns {
        /// The trace or lineage.
        place: String,
    },
    /// A call's record says that it goes on from another, and it does not.
    #[error("call {call} is recorded as going on from call {extends}, and does not")]
    Extends {
        /// The call.
        call: CallId,
        /// The one it names.
        extends: CallId,
    },
    /// The ids of a call's record have another hash than it says.
    #[error("the ids of call {call} have another chain hash than its record says")]
    Chain {
        /// The call.
        call: CallId,
    },
}

impl Violation {
    /// The promise it breaks; none where it is only the shape that is wrong.
    pub fn promise(&self) -> Option<Promise> {
        match self {
            Self::TrainedTwice { .. } | Self::Selection { .. } | Self::Counts { .. } => {
                Some(Promise::Conservation)
            }
            Self::UnknownCall { .. }
            | Self::Context { .. }
            | Self::Pictures { .. }
            | Self::Sampled { .. }
            | Self::Extends { .. }
            | Self::Chain { .. } => Some(Promise::ContextTruth),
            Self::Invented { .. } | Self::Logprob { .. } | Self::Mask { .. } => {
                Some(Promise::NeverInvent)
            }
            Self::Lengths { .. }
            | Self::Tree { .. }
            | Self::WeightVersions { .. }
            | Self::Role { .. }
            | Self::Turns { .. }
            | Self::Siblings { .. } => None,
        }
    }

    /// What it would do to training.
    pub fn meaning(&self) -> &'static str {
        match self {
            Self::TrainedTwice { .. } => "these tokens would count twice in the gradient",
            Self::Selection { is_trained: true, .. } => {
                "tokens would be trained that the agent never got, or that are not its work"
            }
            Self::Selection { .. } => "tokens that were sampled and used are lost to training",
            Self::Counts { .. } => "tokens are lost, or in more places than one",
            Self::UnknownCall { .. } => "nothing shows that an engine ever sampled these tokens",
            Self::Context { .. } | Self::Pictures { .. } => {
                "the tokens behind it would be trained in a context the model never saw, and the \
                 trainer's logprobs would not be the engine's"
            }
            Self::Sampled { .. } => "tokens would be trained that the model did not sample",
            Self::Invented { .. } | Self::Mask { .. } => {
                "context would be trained as if the model had said it, or a token without a logprob"
            }
            Self::Logprob { .. } => "the importance ratio of this token would be wrong",
            Self::WeightVersions { .. } => "it is unknown which weights sampled which token",
            Self::Role { .. } => "work of different callers would be trained as one",
            Self::Siblings { .. } => "this rollout would weigh more or less than others",
            Self::Turns { .. } => "a turn's reward would go to tokens of another",
            Self::Lengths { .. } | Self::Tree { .. } => "a trainer would pair the wrong values",
            Self::Extends { .. } | Self::Chain { .. } => {
                "the record was changed after it was written, or was written wrong"
            }
        }
    }
}
