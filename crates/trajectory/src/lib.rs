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

mod cause;
mod lineage;
mod messages;
mod roles;
mod summary;
mod trace;
mod translation;
mod verify;

pub use verify::{Violation, verify};

use cause::Causes;
use lineage::{Fate, Lineages};
use polar_record::RecordedSession;
use polar_types::{
    CallOrigin, CallRole, CallSummary, ForkCause, ForkPoint, RoleCounts, TokenCounts, Trace,
    Trajectory, TrajectoryStrategy, UntrainedReason,
};
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
    let mut builder = Builder {
        session,
        lineages: &lineages,
        options,
        origins,
        causes: Causes::new(session, &lineages),
        traces: Vec::new(),
        trace_of: vec![None; session.calls().len()],
        tokens: TokenCounts::default(),
    };
    for index in 0..session.calls().len() as u32 {
        builder.take(index);
    }
    builder.finish(reward)
}

struct Builder<'a> {
    session: &'a RecordedSession,
    lineages: &'a Lineages,
    options: BuildOptions,
    origins: Vec<CallOrigin>,
    causes: Causes<'a>,
    traces: Vec<Growing>,
    /// Which trace a call is in.
    trace_of: Vec<Option<u32>>,
    tokens: TokenCounts,
}

/// A trace, and the call it ends with so far.
struct Growing {
    trace: Trace,
    last: u32,
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

    /// Puts a call behind the one it continues, or at the front of a new trace.
    fn place(&mut self, index: u32) {
        let parent = match self.options.strategy {
            TrajectoryStrategy::PrefixMerging => self.lineages.parent(index),
            TrajectoryStrategy::PerRequest => None,
        };
        let continued = parent.and_then(|parent| {
            let number = self.trace_of[parent as usize]?;
            (self.traces[number as usize].last == parent).then_some((parent, number))
        });
        let number = match continued {
            Some((parent, number)) => {
                let growing = &mut self.traces[number as usize];
                trace::extend(&mut growing.trace, self.session, parent, index);
                growing.last = index;
                number
            }
            None => self.fork(index, parent),
        };
        self.trace_of[index as usize] = Some(number);
        let growing = &mut self.traces[number as usize];
        trace::add_reply(&mut growing.trace, self.session, index, &mut self.tokens);
    }

    fn fork(&mut self, index: u32, parent: Option<u32>) -> u32 {
        let cause = match self.options.strategy {
            TrajectoryStrategy::PrefixMerging => self.causes.cause(index),
            TrajectoryStrategy::PerRequest => ForkCause::PerRequest,
        };
        let fork: ForkPoint = self.causes.fork_point(index, cause);
        let from = match cause {
            ForkCause::NewLineage | ForkCause::PerRequest => None,
            _ => parent.or(self.causes.nearest(index)),
        };
        let parent_trace = from.and_then(|call| self.trace_of[call as usize]);
        let number = self.traces.len() as u32;
        let role = self.origins[index as usize].role;
        let trace = trace::start(self.session, index, role, fork, parent_trace);
        self.traces.push(Growing { trace, last: index });
        number
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

    fn finish(self, reward: Option<f64>) -> Built {
        let header = &self.session.header;
        let roles = self.roles();
        let calls = summary::summaries(self.session, &self.origins, &self.trace_of, |number| {
            let trace = &self.traces[number as usize].trace;
            (trace.calls.first(), &trace.lineage.fork)
        });
        let mut trajectory = Trajectory {
            session_id: header.session_id.clone(),
            task_id: header.task_id.clone(),
            group_id: header.group_id.clone(),
            strategy: self.options.strategy,
            reward,
            traces: self.traces.into_iter().map(|growing| growing.trace).collect(),
            tokens: self.tokens,
            forks: Default::default(),
            train_roles: self.options.train_roles,
            roles,
            translation: translation::counts(self.session),
        };
        let responses = trajectory.traces.iter().map(|trace| trace.response_ids.len() as u64);
        let holes = trajectory.tokens.untrained.get(&UntrainedReason::LogprobMissing);
        trajectory.tokens.context =
            responses.sum::<u64>() - trajectory.tokens.trained - holes.copied().unwrap_or(0);
        let siblings = trajectory.traces.len() as u32;
        for trace in &mut trajectory.traces {
            trace.reward = reward;
            trace.siblings = siblings;
            trace.loss_weight = 1.0 / f64::from(siblings);
            *trajectory.forks.entry(trace.lineage.fork.cause).or_default() += 1;
        }
        Built { trajectory, calls }
    }
}
