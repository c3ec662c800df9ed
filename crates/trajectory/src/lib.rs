//! From a session's records to its training traces: a pure function.
//!
//! # Invariants
//!
//! 1. Every sampled token is in exactly one trace with mask 1, or counted under the reason
//!    for which it is not. A break starts a new trace; nothing is cut off or dropped.
//! 2. Before each token with mask 1 a trace holds exactly the tokens the engine had in
//!    context when it sampled it. A call continues another only where its prompt begins with
//!    the other's prompt and sampled tokens, token by token, and shows the same pictures.
//! 3. Ids and logprobs are the engine's own bits. A token without a logprob has mask 0 and null.
//!
//! [`verify`] checks all three without using the code that builds.
//!
//! # What is trained
//!
//! | call | where its sampled tokens go |
//! |---|---|
//! | engine ended it with an error or an abort | counted `engine_aborted` |
//! | harness did not get the reply to its end | counted `undelivered` |
//! | … but a later prompt continues exactly what was sampled | trained: the harness evidently had it |
//! | no ids of prompt or reply | counted `ids_missing` |
//! | its role is not one of those trained | counted `side_call` |
//! | any other | trained, except positions without a finite logprob: `logprob_missing` |
//!
//! A trace holds calls of one role only: what a harness asks on the side is never between the
//! agent's own tokens. [`CallRole`] says which there are and the module `roles` how they are told.
//!
//! The list of logprobs counts as missing where it is not as long as the ids, because then
//! it is unknown which belongs to which.

mod advice;
pub mod arrays;
mod cause;
mod chains;
mod drift;
mod growing;
mod lineage;
mod messages;
mod rewards;
mod roles;
mod sharing;
mod summary;
mod translation;
mod tree;
mod unroll;
mod verify;
mod volatile;

pub use advice::{Advice, Remedy, advice};
pub use arrays::arrays;
pub use drift::{Drift, MessageDifference, SuggestedRule, TokenDifference, drift, drift_of_traces};
pub use rewards::set_rewards;
pub use unroll::unroll;
pub use verify::{
    FingerprintCounts, Promise, Violation, verify, verify_alone, verify_fingerprints,
};

use cause::Causes;
use chains::Chains;
use growing::Growing;
use lineage::{Fate, Lineages};
use polar_record::RecordedSession;
use polar_types::{
    CallOrigin, CallRole, CallSummary, ForkCause, LineageInfo, RoleCounts, TokenCounts,
    TrainingSizes, Trajectory, TrajectoryStrategy, UntrainedReason,
};
use sharing::Sharing;
use std::collections::BTreeMap;

/// What was built from a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Built {
    /// Its traces.
    pub trajectory: Trajectory,
    /// All its calls in the order in which they were recorded, with the trace each went to.
    pub calls: Vec<CallSummary>,
}

/// How traces are built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildOptions {
    /// How calls become traces.
    pub strategy: TrajectoryStrategy,
    /// Roles of calls whose tokens are trained.
    pub train_roles: Vec<CallRole>,
}

impl From<TrajectoryStrategy> for BuildOptions {
    /// Trains the roles that are trained by default.
    fn from(strategy: TrajectoryStrategy) -> Self {
        Self { strategy, train_roles: CallRole::trained_by_default() }
    }
}

/// Builds the traces of a session. `reward` is copied to every trace.
///
/// Grows with the tokens of the result: a conversation that is only ever extended takes
/// time and memory in proportion to its tokens, however many calls it has.
pub fn build(
    session: &RecordedSession,
    options: impl Into<BuildOptions>,
    reward: Option<f64>,
) -> Built {
    let options = options.into();
    let origins = roles::origins(session);
    let lineages = Lineages::of(session, &origins, &options.train_roles);
    let merged = Chains::merged(session, &lineages);
    let sharing = Sharing::of(session, &merged);
    let sizes = sharing.sizes(session, &merged);
    let single;
    let (chains, sharing) = match options.strategy {
        TrajectoryStrategy::PrefixMerging => (&merged, None),
        TrajectoryStrategy::PrefixTree => (&merged, Some(&sharing)),
        TrajectoryStrategy::PerRequest => {
            single = Chains::single(session, &lineages);
            (&single, None)
        }
    };
    let mut builder = Builder {
        session,
        lineages: &lineages,
        chains,
        sharing,
        options,
        origins,
        causes: Causes::new(session, &lineages),
        growing: Vec::with_capacity(chains.len()),
        tokens: TokenCounts::default(),
    };
    for index in 0..session.calls().len() as u32 {
        builder.take(index);
    }
    builder.finish(sizes, reward)
}

struct Builder<'a> {
    session: &'a RecordedSession,
    lineages: &'a Lineages,
    /// The sequences to build.
    chains: &'a Chains,
    /// How much of each is kept with another; absent where all of it is kept.
    sharing: Option<&'a Sharing>,
    options: BuildOptions,
    origins: Vec<CallOrigin>,
    causes: Causes<'a>,
    growing: Vec<Growing>,
    tokens: TokenCounts,
}

impl Builder<'_> {
    fn take(&mut self, index: u32) {
        let call = &self.session.calls()[index as usize];
        self.tokens.sampled += call.sampled_tokens();
        match self.lineages.fate(index) {
            Fate::Trained => self.place(index),
            Fate::Nothing => {}
            Fate::Untrained(reason) => {
                *self.tokens.untrained.entry(reason).or_default() += call.sampled_tokens();
            }
        }
        self.causes.pass(index);
    }

    /// Puts a call behind the one it continues, or at the front of a new sequence.
    fn place(&mut self, index: u32) {
        let Some(number) = self.chains.of_call(index) else { return };
        match self.chains.before(index) {
            Some(before) => self.growing[number as usize].extend(self.session, before, index),
            None => self.fork(index, number),
        }
        self.growing[number as usize].add_reply(self.session, index, &mut self.tokens);
    }

    fn fork(&mut self, index: u32, number: u32) {
        let is_merged = self.options.strategy != TrajectoryStrategy::PerRequest;
        let cause = if is_merged { self.causes.cause(index) } else { ForkCause::PerRequest };
        let from = match cause {
            ForkCause::NewLineage | ForkCause::PerRequest => None,
            _ => self.lineages.parent(index).or(self.causes.nearest(index)),
        };
        let lineage = LineageInfo {
            role: self.origins[index as usize].role,
            parent: from.and_then(|call| self.chains.of_call(call)),
            fork: self.causes.fork_point(index, cause),
        };
        let shared = self.sharing.map_or(0, |sharing| sharing.depth(number));
        self.growing.push(Growing::start(self.session, index, shared, lineage));
    }

    fn roles(&self) -> BTreeMap<CallRole, RoleCounts> {
        let mut roles = BTreeMap::<_, RoleCounts>::new();
        for (origin, call) in self.origins.iter().zip(self.session.calls()) {
            let counts = roles.entry(origin.role).or_default();
            counts.calls += 1;
            counts.sampled += call.sampled_tokens();
        }
        roles
    }

    fn finish(self, sizes: TrainingSizes, reward: Option<f64>) -> Built {
        let header = &self.session.header;
        let calls = summary::summaries(
            self.session,
            &self.origins,
            |call| self.chains.of_call(call),
            |number| &self.growing[number as usize].trace,
        );
        let mut trajectory = Trajectory {
            session_id: header.session_id.clone(),
            task_id: header.task_id.clone(),
            group_id: header.group_id.clone(),
            strategy: self.options.strategy,
            reward,
            reason: None,
            reason_detail: None,
            traces: Vec::new(),
            tree: None,
            roles: self.roles(),
            tokens: self.tokens,
            sizes: Some(sizes),
            forks: Default::default(),
            train_roles: self.options.train_roles,
            translation: translation::counts(self.session),
        };
        let traces = self.growing.iter().map(|growing| &growing.trace);
        let responses = traces.clone().map(|trace| trace.response_ids.len() as u64);
        let holes = trajectory.tokens.untrained.get(&UntrainedReason::LogprobMissing);
        trajectory.tokens.context =
            responses.sum::<u64>() - trajectory.tokens.trained - holes.copied().unwrap_or(0);
        for trace in traces {
            *trajectory.forks.entry(trace.lineage.fork.cause).or_default() += 1;
        }
        match self.sharing {
            Some(sharing) => {
                trajectory.tree = Some(tree::tree(self.session, self.growing, sharing));
            }
            None => {
                let whole =
                    self.growing.into_iter().map(|growing| growing.into_trace(self.session));
                trajectory.traces = whole.collect();
                unroll::weigh(&mut trajectory.traces, reward);
            }
        }
        Built { trajectory, calls }
    }
}
