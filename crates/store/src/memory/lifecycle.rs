//! What happens to the model: from submission to the end.

use super::state::{Holder, Node, OutboxEntry, Session, State, Task};
use crate::rules::{
    self, Cancelling, End, Loss, NameHolder, Next, Standing, Turn, Verdict, longest_hold, plus,
    rfc3339,
};
use crate::{Claimed, Expired, Limits, NewTask, StoreError, Submitted};
use polar_types::{
    AttemptInfo, CallbackState, CallbackStatus, Demand, Epoch, Event, EventKind, Footprint, Lease,
    NodeInfo, Outcome, ReleaseRequest, RenewRequest, RenewResponse, ResultAck, SessionId,
    SessionReport, SessionStatus, TaskId, TaskInfo, TaskStatus,
};

impl State {
    pub(super) fn submit(
        &mut self,
        task: NewTask,
        limits: &Limits,
        now: i64,
    ) -> Result<Submitted, StoreError> {
        let NewTask { spec, body_hash } = task;
        let id = spec.task_id.clone();
        if let Some(stored) = self.tasks.get(&id) {
            if stored.body_hash != body_hash {
                let stored = serde_json::to_value(&stored.spec).unwrap_or_default();
                return Err(rules::other_body(&stored, &spec));
            }
            return Ok(Submitted { task: self.task_info(&id)?, created: false });
        }
        for index in 0..spec.num_samples {
            let session = SessionId::of_sample(&id, index);
            if self.sessions.contains_key(&session) {
                return Err(rules::session_ids_taken(&id));
            }
            self.last_session += 1;
            let session = Session {
                id: session,
                task: id.clone(),
                sample_index: index,
                runtime: spec.runtime.kind.as_str().to_owned(),
                max_attempts: spec.max_attempts,
                ordinal: self.last_session,
                status: SessionStatus::Queued,
                waiting_for: Some(rules::waiting_for_node(spec.runtime.kind.as_str())),
                cancel_requested: false,
                cancel_why: None,
                attempts: Vec::new(),
                spent: 0,
                lease: None,
                deadline_at: plus(now, limits.queue_limit),
                available_at: None,
                outcome: None,
                reward: None,
                revision: 1,
                gradings: Vec::new(),
                regrade: None,
                usable: false,
                created_at: now,
                updated_at: now,
            };
            self.sessions.insert(session.id.clone(), session);
        }
        self.last_task += 1;
        let created = rules::task_created(&spec.harness.name, spec.num_samples);
        let task = Task {
            spec,
            body_hash,
            ordinal: self.last_task,
            status: TaskStatus::Running,
            cancel_requested: false,
            batch: None,
            created_at: now,
            updated_at: now,
        };
        self.tasks.insert(id.clone(), task);
        self.append(now, EventKind::TaskCreated, &id, None, created);
        self.stored.queued = true;
        Ok(Submitted { task: self.task_info(&id)?, created: true })
    }

    pub(super) fn cancel(
        &mut self,
        id: &TaskId,
        limits: &Limits,
        now: i64,
    ) -> Result<TaskInfo, StoreError> {
        let task = self.tasks.get_mut(id).ok_or_else(|| StoreError::not_found("task", id))?;
        if task.status == TaskStatus::Running && !task.cancel_requested {
            task.cancel_requested = true;
            task.updated_at = now;
            self.end_sessions(id, Cancelling::Asked, limits, now);
        }
        let regrades = self.rows_of(id).filter(|row| row.regrade.is_some());
        let regrades: Vec<SessionId> = regrades.map(|row| row.id.clone()).collect();
        for regrade in regrades {
            self.cancel_session(&regrade, Cancelling::Asked, limits, now);
        }
        self.task_info(id)
    }

    pub(super) fn end_sessions(
        &mut self,
        task: &TaskId,
        why: Cancelling,
        limits: &Limits,
        now: i64,
    ) {
        let ids: Vec<SessionId> = self.sessions_of(task).map(|s| s.id.clone()).collect();
        for session in ids {
            self.cancel_session(&session, why, limits, now);
        }
    }

    /// Ends what is left of a task that has as many usable sessions as are enough.
    fn stop_early(&mut self, id: &TaskId, limits: &Limits, now: i64) {
        let Some(task) = self.tasks.get(id) else { return };
        let Some(stop) = task.spec.early_stop else { return };
        let usable = self.sessions_of(id).filter(|session| session.usable).count();
        if task.status == TaskStatus::Running && usable >= stop.usable as usize {
            self.end_sessions(id, Cancelling::EnoughUsable, limits, now);
        }
    }

    fn cancel_session(&mut self, id: &SessionId, why: Cancelling, limits: &Limits, now: i64) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.outcome.is_none() {
            session.cancel_why.get_or_insert_with(|| why.in_words().to_owned());
        }
        if session.lease.is_some() {
            session.cancel_requested = true;
            self.stored.cancelled = true;
            session.waiting_for = Some(rules::WAITING_FOR_CANCEL.to_owned());
            session.deadline_at = session.deadline_at.min(plus(now, limits.cancel_grace));
            session.updated_at = now;
        } else if session.status == SessionStatus::Queued {
            self.end(id, &End::of(Outcome::Cancelled), now);
        }
    }

    pub(super) fn claim(
        &mut self,
        node: &NodeInfo,
        free: u32,
        limits: &Limits,
        now: i64,
    ) -> Result<Claimed, StoreError> {
        self.check_name(node, limits, now)?;
        let replaced: Vec<SessionId> = self
            .leases_of(&node.node_id)
            .filter(|s| s.lease.as_ref().is_some_and(|held| held.boot_id != node.boot_id))
            .map(|s| s.id.clone())
            .collect();
        for id in replaced {
            self.lose(&id, Loss::NodeRestarted, limits, now);
        }
        self.note_node(node, now);
        let mut claimed = Claimed::default();
        let mut room = node.room;
        while claimed.leases.len() < free as usize {
            let Some(id) = self.next_in_turn(node, now) else { break };
            let row =
                self.sessions.get(&id).ok_or_else(|| StoreError::not_found("session", &id))?;
            let footprint = Footprint::of(&self.find_task(&row.task)?.spec.runtime);
            if !room.fits(footprint) {
                claimed.lacks_room = true;
                break;
            }
            room = room.with(footprint);
            claimed.leases.push(self.lease(&id, node, limits, now)?);
        }
        Ok(claimed)
    }

    /// The session to hand out next.
    fn next_in_turn(&self, node: &NodeInfo, now: i64) -> Option<SessionId> {
        let is_due = |session: &&Session| {
            session.status == SessionStatus::Queued
                && session.available_at.is_none_or(|at| at <= now)
        };
        let mut next: Option<(Turn, SessionId)> = None;
        for task in self.tasks.values().filter(|task| Demand::of(&task.spec).is_met_by(node)) {
            let sessions: Vec<_> = self.rows_of(&task.spec.task_id).collect();
            let first = sessions.iter().copied().filter(is_due).min_by_key(|s| s.ordinal);
            let Some(first) = first else { continue };
            if !self.is_begun(&task.spec.task_id) && self.is_full(&task.spec.queue) {
                continue;
            }
            let leased = sessions.iter().filter(|session| session.lease.is_some()).count();
            let turn = Turn {
                priority: i64::from(task.spec.priority),
                share: leased as f64 / f64::from(task.spec.weight),
                ordinal: task.ordinal,
            };
            if next.as_ref().is_none_or(|(best, _)| turn.cmp(best).is_lt()) {
                next = Some((turn, first.id.clone()));
            }
        }
        next.map(|(_, id)| id)
    }

    fn lease(
        &mut self,
        id: &SessionId,
        node: &NodeInfo,
        limits: &Limits,
        now: i64,
    ) -> Result<Lease, StoreError> {
        let none = || StoreError::not_found("session", id);
        let task = self.sessions.get(id).ok_or_else(none)?.task.clone();
        let mut task = self.find_task(&task)?.spec.clone();
        let session = self.sessions.get_mut(id).ok_or_else(none)?;
        let attempt = session.attempts.len() as u32 + 1;
        let epoch = Epoch(u64::from(attempt));
        session.attempts.push(AttemptInfo {
            attempt,
            epoch,
            node_id: node.node_id.clone(),
            started_at: rfc3339(now),
            ended_at: None,
            lost: None,
            report: None,
        });
        session.status = SessionStatus::Preparing;
        session.waiting_for = None;
        session.lease = Some(Holder {
            node: node.node_id.clone(),
            boot_id: node.boot_id.clone(),
            since: now,
            expires_at: plus(now, limits.lease_ttl),
        });
        session.available_at = None;
        session.deadline_at = plus(now, longest_hold(&task.budgets, limits));
        session.updated_at = now;
        let sample_index = session.sample_index;
        let node = node.node_id.as_str();
        let regrade = session.regrade.clone();
        match &regrade {
            Some(order) => order.apply(&mut task),
            None => {
                let data = rules::session_status(SessionStatus::Preparing, attempt, node);
                self.append(now, EventKind::SessionStatus, &task.task_id, Some(id), data);
            }
        }
        task.callback = None;
        let group_id = task.group_id.clone();
        let session_id = id.clone();
        Ok(Lease { session_id, attempt, epoch, sample_index, group_id, task, regrade })
    }

    fn check_name(&self, node: &NodeInfo, limits: &Limits, now: i64) -> Result<(), StoreError> {
        let Some(known) = self.nodes.get(&node.node_id) else { return Ok(()) };
        let leases = self.leases_of(&node.node_id).filter_map(|session| session.lease.as_ref());
        let holder = NameHolder {
            info: known.info.clone(),
            last_seen: known.last_seen,
            leased_until: leases.map(|lease| lease.expires_at).max(),
        };
        rules::check_name(node, &holder, limits, now)
    }

    fn note_node(&mut self, info: &NodeInfo, now: i64) {
        let node = Node { info: info.clone(), first_seen: now, last_seen: now };
        let node = self
            .nodes
            .remove(&info.node_id)
            .map(|known| Node { first_seen: known.first_seen, ..node.clone() })
            .unwrap_or(node);
        self.nodes.insert(info.node_id.clone(), node);
    }

    pub(super) fn renew(
        &mut self,
        request: &RenewRequest,
        limits: &Limits,
        now: i64,
    ) -> Result<RenewResponse, StoreError> {
        self.check_name(&request.node, limits, now)?;
        self.note_node(&request.node, now);
        let mut answer = RenewResponse::default();
        for item in &request.items {
            let id = &item.session_id;
            let Some(session) =
                self.sessions.get_mut(id).filter(|session| session.is_leased_with(item.epoch))
            else {
                answer.lost.push(id.clone());
                continue;
            };
            let task = self.tasks.get(&session.task);
            if let Some((lease, task)) = session.lease.as_mut().zip(task) {
                lease.expires_at = plus(now, limits.lease_ttl);
                if rules::waits_on_node(item.stage) && !session.cancel_requested {
                    let hold = longest_hold(&task.spec.budgets, limits);
                    session.deadline_at = rules::deadline_in_wait(lease.since, hold, limits, now);
                }
            }
            session.waiting_for.clone_from(&item.waiting_for);
            if session.cancel_requested {
                answer.cancelled.push(id.clone());
            }
            let status = SessionStatus::from(item.stage);
            if session.status != status {
                session.status = status;
                session.updated_at = now;
                let (task, attempt) = (session.task.clone(), session.attempts.len() as u32);
                let node = session.holder();
                if session.regrade.is_none() {
                    let data = rules::session_status(status, attempt, &node);
                    self.append(now, EventKind::SessionStatus, &task, Some(id), data);
                }
            }
        }
        Ok(answer)
    }

    pub(super) fn extend_leases(&mut self, limits: &Limits, now: i64) -> u64 {
        let expires_at = plus(now, limits.lease_ttl);
        let mut extended = 0;
        for session in self.sessions.values_mut() {
            if let Some(lease) = &mut session.lease {
                let away = expires_at.saturating_sub(lease.expires_at).max(0);
                session.deadline_at = session.deadline_at.saturating_add(away);
                lease.expires_at = expires_at;
                extended += 1;
            }
        }
        extended
    }

    pub(super) fn complete(
        &mut self,
        report: &SessionReport,
        limits: &Limits,
        now: i64,
    ) -> Result<ResultAck, StoreError> {
        let id = &report.session_id;
        let session =
            self.sessions.get_mut(id).ok_or_else(|| StoreError::not_found("session", id))?;
        let leased = session.is_leased_with(report.epoch);
        let standing = session.standing();
        let Some(attempt) = session.attempts.iter_mut().find(|a| a.epoch == report.epoch) else {
            let name = format!("{id} with epoch {}", report.epoch);
            return Err(StoreError::not_found("attempt of session", name));
        };
        if attempt.report.is_some() {
            let lost = attempt.lost.is_some();
            return Ok(if lost { ResultAck::Stale } else { ResultAck::Repeated });
        }
        attempt.report = Some(report.clone());
        if !leased {
            return Ok(ResultAck::Stale);
        }
        attempt.ended_at = Some(rfc3339(now));
        let task = session.task.clone();
        if session.regrade.is_some() {
            self.complete_regrade(id, report, limits, now);
            return Ok(ResultAck::Accepted);
        }
        let verdict = rules::after_report(standing, report);
        self.conclude(id, &verdict, limits, now);
        self.stop_early(&task, limits, now);
        Ok(ResultAck::Accepted)
    }

    pub(super) fn release(
        &mut self,
        request: &ReleaseRequest,
        limits: &Limits,
        now: i64,
    ) -> Vec<SessionId> {
        let mut released = Vec::new();
        for item in &request.items {
            let id = &item.session_id;
            if self.sessions.get(id).is_some_and(|s| s.is_leased_with(item.epoch)) {
                self.lose(id, Loss::from(request), limits, now);
                released.push(id.clone());
            }
        }
        released
    }

    pub(super) fn expire(&mut self, limits: &Limits, now: i64) -> Expired {
        let mut expired = Expired::default();
        let live: Vec<SessionId> = self
            .sessions
            .values()
            .filter(|s| !s.status.is_terminal())
            .filter(|s| s.deadline_at <= now || s.is_unrenewed(now))
            .map(|s| s.id.clone())
            .collect();
        for id in live {
            if self.expire_one(&id, limits, now) {
                expired.ended.push(id);
            } else {
                expired.requeued.push(id);
            }
        }
        for session in self.sessions.values_mut() {
            if session.available_at.is_some_and(|at| at <= now) {
                session.available_at = None;
                self.stored.queued = true;
            }
        }
        let silent_since = now.saturating_sub(plus(0, rules::NODE_MEMORY));
        let forgotten: Vec<_> = self
            .nodes
            .iter()
            .filter(|(id, node)| {
                node.last_seen < silent_since && self.leases_of(id).next().is_none()
            })
            .map(|(id, _)| id.clone())
            .collect();
        for id in forgotten {
            self.nodes.remove(&id);
        }
        expired
    }

    /// Returns whether the session has come to its end.
    fn expire_one(&mut self, id: &SessionId, limits: &Limits, now: i64) -> bool {
        let Some(session) = self.sessions.get(id) else { return false };
        if session.lease.is_none() {
            let outcome = rules::never_taken(&session.runtime, limits.queue_limit);
            self.end(id, &outcome, now);
            return true;
        }
        let unrenewed = session.is_unrenewed(now);
        let loss = if unrenewed { Loss::LeaseExpired } else { Loss::Overdue };
        self.lose(id, loss, limits, now)
    }

    /// Returns whether the session has come to its end.
    fn lose(&mut self, id: &SessionId, loss: Loss, limits: &Limits, now: i64) -> bool {
        let Some(session) = self.sessions.get_mut(id) else { return false };
        if let Some(attempt) = session.attempts.last_mut() {
            attempt.lost = Some(loss.as_str().to_owned());
            attempt.ended_at = Some(rfc3339(now));
        }
        let verdict = rules::after_loss(session.standing(), loss);
        self.conclude(id, &verdict, limits, now);
        matches!(verdict.next, Next::End(_))
    }

    pub(super) fn conclude(
        &mut self,
        id: &SessionId,
        verdict: &Verdict,
        limits: &Limits,
        now: i64,
    ) {
        match &verdict.next {
            Next::End(end) => self.end(id, end, now),
            Next::Again { because, paused } => {
                let Some(session) = self.sessions.get_mut(id) else { return };
                let (task, attempt) = (session.task.clone(), session.attempts.len() as u32);
                let data = rules::session_requeued(attempt, &session.holder(), because);
                session.status = SessionStatus::Queued;
                session.waiting_for =
                    Some(rules::waiting_for_retry(verdict, session.max_attempts, because));
                session.spent = verdict.spent;
                session.lease = None;
                session.deadline_at = plus(now, limits.queue_limit);
                let pause = rules::retry_pause(attempt, limits);
                session.available_at = paused.then(|| plus(now, pause));
                session.updated_at = now;
                if session.regrade.is_none() {
                    self.append(now, EventKind::SessionStatus, &task, Some(id), data);
                }
                self.stored.queued = true;
            }
        }
    }

    fn end(&mut self, id: &SessionId, end: &End, now: i64) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let node = session.lease.take().map(|held| held.node);
        session.status = end.outcome.status();
        session.waiting_for = None;
        session.available_at = None;
        session.outcome = Some(end.outcome.clone());
        session.reward = end.reward;
        session.usable = end.usable;
        session.updated_at = now;
        if let Some(order) = session.regrade.clone() {
            self.end_regrade(id, &order, now);
            return;
        }
        let (task, attempt) = (session.task.clone(), session.attempts.len() as u32);
        let node = node.as_ref().map(|node| node.as_str());
        let data = rules::session_ended(end, attempt, node);
        let event = self.append(now, EventKind::SessionEnded, &task, Some(id), data);
        self.tell(rules::callback_id(id.as_str(), event.kind), event, now);
        let all_ended = self.sessions_of(&task).all(|s| s.status.is_terminal());
        let any = self.sessions_of(&task).any(|s| rules::has_trajectory(s.status));
        let Some(owner) = self.tasks.get_mut(&task) else { return };
        owner.updated_at = now;
        if all_ended {
            owner.status = rules::task_end(owner.cancel_requested, any);
            let data = rules::task_ended(owner.status);
            let event = self.append(now, EventKind::TaskEnded, &task, None, data);
            self.tell(rules::callback_id(task.as_str(), event.kind), event, now);
        }
    }

    pub(super) fn tell(&mut self, id: String, event: Event, now: i64) {
        let callback = self.tasks.get(&event.task_id).and_then(|task| task.spec.callback.as_ref());
        if callback.is_some_and(|callback| callback.format.tells_of(event.kind)) {
            let state = CallbackState { status: CallbackStatus::Pending, attempts: 0, error: None };
            let entry = OutboxEntry { event, state, next_at: Some(now), created_at: now };
            self.callbacks.insert(id, entry);
        }
    }
}

impl Session {
    fn is_leased_with(&self, epoch: Epoch) -> bool {
        self.lease.is_some() && self.attempts.last().is_some_and(|a| a.epoch == epoch)
    }

    fn is_unrenewed(&self, now: i64) -> bool {
        self.lease.as_ref().is_some_and(|held| held.expires_at <= now)
    }

    fn holder(&self) -> String {
        self.lease.as_ref().map(|held| held.node.to_string()).unwrap_or_default()
    }

    pub(super) fn standing(&self) -> Standing {
        Standing {
            attempt: self.attempts.len() as u32,
            spent: self.spent,
            max_attempts: self.max_attempts,
            cancel_requested: self.cancel_requested,
        }
    }
}
