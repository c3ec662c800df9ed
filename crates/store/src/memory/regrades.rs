//! What happens to the model when stored work is graded again.

use super::state::{Session, State};
use crate::regrades::{self, NewRegrade};
use crate::rules::{self, Next, plus, rfc3339};
use crate::{Limits, StoreError};
use polar_types::{EventKind, RegradeOrder, SessionId, SessionInfo, SessionReport, SessionStatus};

impl State {
    pub(super) fn regrade(
        &mut self,
        new: &NewRegrade,
        limits: &Limits,
        now: i64,
    ) -> Result<SessionInfo, StoreError> {
        let of = self.find_session(&new.session)?.clone();
        let info = self.session_info(&of);
        let report = info.report().filter(|_| of.status.is_terminal());
        let report = report.ok_or_else(|| rules::not_ended(&of.id))?;
        let latest = self.regrades_of(&of.id).max_by_key(|regrade| regrade.revision);
        if let Some(running) = latest.filter(|latest| !latest.status.is_terminal()) {
            let same = running.regrade.as_ref().is_some_and(|o| o.evaluator == new.evaluator);
            return if same { Ok(info) } else { Err(rules::is_being_regraded(&of.id)) };
        }
        let revision = latest.map_or(1, |latest| latest.revision) + 1;
        let order = RegradeOrder::new(report, revision, new.evaluator.clone());
        let id = SessionId::of_regrade(&of.id, revision);
        self.last_session += 1;
        let row = Session {
            id: id.clone(),
            max_attempts: regrades::MAX_ATTEMPTS,
            ordinal: self.last_session,
            status: SessionStatus::Queued,
            waiting_for: Some(regrades::WAITING.to_owned()),
            cancel_requested: false,
            cancel_why: None,
            attempts: Vec::new(),
            spent: 0,
            lease: None,
            deadline_at: plus(now, limits.queue_limit),
            available_at: None,
            outcome: None,
            reward: None,
            revision,
            gradings: Vec::new(),
            regrade: Some(order),
            usable: false,
            created_at: now,
            updated_at: now,
            ..of
        };
        self.sessions.insert(id, row);
        self.stored.queued = true;
        Ok(self.session_info(self.find_session(&new.session)?))
    }

    pub(super) fn complete_regrade(
        &mut self,
        id: &SessionId,
        report: &SessionReport,
        limits: &Limits,
        now: i64,
    ) {
        let Some(row) = self.sessions.get(id) else { return };
        let Some(order) = row.regrade.clone() else { return };
        let told = regrades::as_ordered(report, &order.session_id);
        let verdict = rules::after_report(row.standing(), &told);
        if told.is_regraded() && matches!(verdict.next, Next::End(_)) {
            self.revise(&order, &told, now);
        }
        self.conclude(id, &verdict, limits, now);
    }

    /// Gives a session's result another revision.
    fn revise(&mut self, order: &RegradeOrder, by: &SessionReport, now: i64) {
        let Some(of) = self.sessions.get_mut(&order.session_id) else { return };
        let Some(attempt) = of.attempts.last_mut() else { return };
        let Some(before) = attempt.report.clone() else { return };
        let after = before.regraded(by);
        let ended_at = attempt.ended_at.clone().unwrap_or_default();
        attempt.report = Some(after.clone());
        let known = std::mem::take(&mut of.gradings);
        let first = (&before, ended_at);
        of.gradings = regrades::with_grading(known, first, &after, order.revision, rfc3339(now));
        of.reward = after.reward;
        of.usable = after.is_usable();
        of.revision = order.revision;
        of.updated_at = now;
        let task = of.task.clone();
        let data = regrades::regraded(&before, &after, order.revision);
        self.tell_of(order, &task, EventKind::SessionRegraded, data, now);
    }

    pub(super) fn end_regrade(&mut self, id: &SessionId, order: &RegradeOrder, now: i64) {
        let Some(row) = self.sessions.get(id) else { return };
        let Some(why) =
            row.outcome.as_ref().filter(|outcome| **outcome != polar_types::Outcome::Completed)
        else {
            return;
        };
        let (why, task) = (regrades::why_failed(why, None), row.task.clone());
        let data = regrades::failed(order.revision, &why);
        self.tell_of(order, &task, EventKind::SessionRegradeFailed, data, now);
    }

    fn tell_of(
        &mut self,
        order: &RegradeOrder,
        task: &polar_types::TaskId,
        kind: EventKind,
        data: serde_json::Value,
        now: i64,
    ) {
        let event = self.append(now, kind, task, Some(&order.session_id), data);
        let id = SessionId::of_regrade(&order.session_id, order.revision);
        self.tell(rules::callback_id(id.as_str(), kind), event, now);
    }
}
