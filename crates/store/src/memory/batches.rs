//! Batches in the model.

use super::state::State;
use crate::batches::{AskedVersion, Begun, Candidate, Plan, Versions};
use crate::rules::{Cancelling, rfc3339};
use crate::{Limits, StoreError};
use polar_types::{
    Batch, BatchAnswer, BatchRequest, LeftOut, QueueInfo, QueueName, TaskId, TaskStatus,
    WeightState,
};
use std::collections::{BTreeMap, BTreeSet};

/// A queue that batches were asked of.
#[derive(Clone, Default)]
pub(super) struct Queue {
    pub(super) max_ahead: Option<u32>,
    /// The batches, from number 1.
    pub(super) batches: Vec<Made>,
}

#[derive(Clone)]
pub(super) struct Made {
    pub(super) at: i64,
    pub(super) settled: bool,
}

impl State {
    pub(super) fn next_batch(
        &mut self,
        request: &BatchRequest,
        enough: u32,
        limits: &Limits,
        now: i64,
    ) -> Result<BatchAnswer, StoreError> {
        let queue = self.queues.entry(request.queue.clone()).or_default();
        self.stored.queued |= queue.max_ahead != request.max_ahead;
        queue.max_ahead = request.max_ahead;
        let last = queue.batches.len() as u64;
        let asked = self.weights.iter().map(|weights| AskedVersion {
            version: weights.update.request.version.clone(),
            ordinal: weights.update.ordinal,
            reached: weights.engines.values().any(|(engine, _)| has_reached(engine.state)),
        });
        let versions = Versions::new(asked.collect());
        let placed = self.tasks.values().filter(|task| task.spec.queue == request.queue);
        let filled = placed.filter_map(|task| task.batch.filter(|(_, out)| out.is_none()));
        let between = |number: &u64| *number > request.after && *number < last;
        let filled = filled.map(|(number, _)| number).filter(between).min();
        let mut plan = Plan::new(request, &versions, last, filled)?;
        let number = plan.number;
        if let Some(made) = queue.batches.get(number as usize - 1) {
            let settled = made.settled;
            let groups = self.groups_of(&request.queue, number)?;
            let placed = self.placed(&request.queue, number).into_iter();
            let out = placed.filter(|(.., left_out)| left_out.is_some());
            let out: Vec<TaskId> = out.map(|(_, task, _)| task.clone()).collect();
            plan.go_on(Begun { settled }, groups, &out)?;
        }
        self.end_stale(request, &versions, limits, now)?;
        let mut ready: Vec<_> = self.tasks.values().filter(|task| task.is_ready()).collect();
        ready.retain(|task| task.spec.queue == request.queue);
        ready.sort_by_key(|task| task.ordinal);
        for task in ready {
            if plan.wants_more() {
                plan.offer(self.candidate(&task.spec.task_id)?);
            }
        }
        let held_back = plan.held_back;
        let decision = plan.decide(enough);
        let taken = decision.taken.iter().map(|task| (task, None));
        let left_out = decision.left_out.iter().map(|(task, reason)| (task, Some(*reason)));
        for (task, left_out) in taken.chain(left_out) {
            if let Some(task) = self.tasks.get_mut(task) {
                task.batch = Some((number, left_out));
                self.stored.queued = true;
            }
        }
        if let Some(queue) = self.queues.get_mut(&request.queue) {
            match (&decision.groups, queue.batches.get_mut(number as usize - 1)) {
                (Some(_), Some(made)) => made.settled = true,
                (Some(_), None) => queue.batches.push(Made { at: now, settled: true }),
                (None, Some(made)) => made.settled &= decision.left_out.is_empty(),
                (None, None) => {}
            }
        }
        let version = request.version.as_deref();
        let batch = match decision.groups {
            None => None,
            Some(groups) => {
                Some(self.assemble(&request.queue, number, groups, (version, &versions))?)
            }
        };
        Ok(BatchAnswer { batch, held_back, state: self.queue_info(&request.queue) })
    }

    /// Ends what still runs of groups that would be left out as stale.
    fn end_stale(
        &mut self,
        request: &BatchRequest,
        versions: &Versions,
        limits: &Limits,
        now: i64,
    ) -> Result<(), StoreError> {
        let mut running: Vec<_> = self.tasks.values().filter(|task| !task.is_over()).collect();
        running.retain(|task| task.spec.queue == request.queue);
        running.sort_by_key(|task| task.ordinal);
        let ids: Vec<TaskId> = running.iter().map(|task| task.spec.task_id.clone()).collect();
        for id in ids {
            if self.candidate(&id)?.is_too_stale(request, versions) {
                self.end_sessions(&id, Cancelling::Stale, limits, now);
            }
        }
        Ok(())
    }

    pub(super) fn batch(&self, queue: &QueueName, number: u64) -> Result<Batch, StoreError> {
        let groups = self.groups_of(queue, number)?;
        self.assemble(queue, number, groups, (None, &Versions::default()))
    }

    pub(super) fn queue_infos(&self) -> Vec<QueueInfo> {
        let names: BTreeSet<&QueueName> =
            self.tasks.values().map(|task| &task.spec.queue).collect();
        names.into_iter().map(|name| self.queue_info(name)).collect()
    }

    pub(super) fn queue_info(&self, name: &QueueName) -> QueueInfo {
        let queue = self.queues.get(name).cloned().unwrap_or_default();
        let tasks = || self.tasks.values().filter(|task| task.spec.queue == *name);
        QueueInfo {
            queue: name.clone(),
            last: queue.batches.len() as u64,
            ready: tasks().filter(|task| task.is_ready()).count() as u64,
            running: tasks().filter(|task| task.status == TaskStatus::Running).count() as u64,
            ahead: tasks().filter(|task| self.is_ahead(&task.spec.task_id)).count() as u64,
            max_ahead: queue.max_ahead,
            left_out: by_reason(tasks().filter_map(|task| task.batch?.1)),
        }
    }

    /// Whether no further group of the queue may be begun.
    pub(super) fn is_full(&self, queue: &QueueName) -> bool {
        let info = self.queue_info(queue);
        info.max_ahead.is_some_and(|most| u64::from(most) <= info.ahead)
    }

    /// Whether one of its sessions was handed out.
    pub(super) fn is_begun(&self, id: &TaskId) -> bool {
        self.sessions_of(id).any(|session| !session.attempts.is_empty())
    }

    fn is_ahead(&self, id: &TaskId) -> bool {
        self.tasks.get(id).is_some_and(|task| task.batch.is_none()) && self.is_begun(id)
    }

    fn candidate(&self, id: &TaskId) -> Result<Candidate, StoreError> {
        let sessions: Vec<_> = self.sessions_of(id).map(|s| self.session_info(s)).collect();
        Ok(Candidate::new(&self.task_info(id)?, self.find_task(id)?.ordinal, &sessions))
    }

    fn placed(&self, queue: &QueueName, number: u64) -> Vec<(u64, &TaskId, Option<LeftOut>)> {
        let tasks = self.tasks.values().filter(|task| task.spec.queue == *queue);
        let mut placed: Vec<_> = tasks
            .filter_map(|task| {
                let (_, left_out) = task.batch.filter(|(batch, _)| *batch == number)?;
                Some((task.ordinal, &task.spec.task_id, left_out))
            })
            .collect();
        placed.sort_by_key(|(ordinal, ..)| *ordinal);
        placed
    }

    fn groups_of(&self, queue: &QueueName, number: u64) -> Result<Vec<Candidate>, StoreError> {
        let placed = self.placed(queue, number).into_iter();
        let groups = placed.filter(|(_, _, left_out)| left_out.is_none());
        groups.map(|(_, task, _)| self.candidate(task)).collect()
    }

    fn assemble(
        &self,
        queue: &QueueName,
        number: u64,
        groups: Vec<Candidate>,
        (version, versions): (Option<&str>, &Versions),
    ) -> Result<Batch, StoreError> {
        let batches = self.queues.get(queue).map(|queue| queue.batches.as_slice());
        let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        let made = batches
            .zip(index)
            .and_then(|(batches, index)| batches.get(index))
            .ok_or_else(|| StoreError::not_found("batch", format!("{number} of queue {queue}")))?;
        let reasons = self.placed(queue, number).into_iter().filter_map(|(_, _, reason)| reason);
        let left_out = by_reason(reasons);
        Ok(Batch {
            queue: queue.clone(),
            number,
            made_at: rfc3339(made.at),
            groups: groups.into_iter().map(|group| group.into_group(version, versions)).collect(),
            left_out,
        })
    }
}

fn has_reached(state: WeightState) -> bool {
    !matches!(state, WeightState::Waiting | WeightState::Draining | WeightState::Unchanged)
}

fn by_reason(reasons: impl Iterator<Item = LeftOut>) -> BTreeMap<LeftOut, u64> {
    let mut counts = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason).or_default() += 1;
    }
    counts
}
