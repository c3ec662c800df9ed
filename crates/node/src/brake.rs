//! Against spending the attempts of everybody's sessions on a machine that is broken.
//!
//! A session that fails for what may be this machine's fault slows the node down: it takes one at
//! a time, after growing pauses, until one goes well. Some of them in a row are a trouble, which
//! the node tells the server; what fails then before its agent ran goes back to the queue instead
//! of costing its session an attempt. Owns the count; it must not talk to the server.

use crate::client::Backoff;
use jiff::Timestamp;
use polar_types::{ErrorClass, NodeTrouble, Outcome, SessionReport, Side, TaskId, TroubleKind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// So many failures in a row, of more than one task, are the machine's.
const TROUBLE: u32 = 3;
/// Longest pause between sessions that are tried.
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// The node's brake. All sessions of a node share it.
pub(crate) struct Brake {
    failures: Mutex<Failures>,
    /// A session went well, so that nobody need wait.
    released: Notify,
}

/// What the end of a session says of the machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sign<'a> {
    /// It did what it was to do.
    Well,
    /// It may be the machine's fault, or its engine's.
    Suspicious(TroubleKind, &'a str),
    /// Nothing: the session was cancelled, or asked for what cannot be.
    Nothing,
}

struct Failures {
    backoff: Backoff,
    in_a_row: u32,
    first: Option<TaskId>,
    /// Whether tasks beside the first are among them.
    are_of_many: bool,
    kind: TroubleKind,
    message: String,
    since: Timestamp,
}

impl Brake {
    pub(crate) fn new() -> Self {
        let failures = Mutex::new(Failures {
            backoff: Backoff::up_to(LONGEST_PAUSE),
            in_a_row: 0,
            first: None,
            are_of_many: false,
            kind: TroubleKind::Sandbox,
            message: String::new(),
            since: Timestamp::UNIX_EPOCH,
        });
        Self { failures, released: Notify::new() }
    }

    /// How many sessions may be asked for. While one is being prepared that may fail as well, none;
    /// those that run are not waited for, which may take hours.
    pub(crate) fn room(&self, prepares: bool, free: u32) -> u32 {
        match self.locked().backoff.is_failing() {
            true if prepares => 0,
            true => free.min(1),
            false => free,
        }
    }

    /// Returns when one may be asked for: after the pause, or as soon as a session went well.
    pub(crate) async fn paused(&self) {
        // Told as soon as it is made, so that no release is missed in between.
        let released = self.released.notified();
        let pause = self.locked().backoff.pause();
        let _ = tokio::time::timeout(pause, released).await;
    }

    /// A session went well, as far as this machine is concerned.
    pub(crate) fn release(&self) {
        let mut failures = self.locked();
        failures.backoff.reset();
        failures.in_a_row = 0;
        failures.first = None;
        failures.are_of_many = false;
        drop(failures);
        self.released.notify_waiters();
    }

    /// A session of a task failed for what may be this machine's fault.
    pub(crate) fn fail(&self, task: &TaskId, kind: TroubleKind, message: &str) {
        let mut failures = self.locked();
        failures.backoff.fail();
        failures.in_a_row = failures.in_a_row.saturating_add(1);
        match &failures.first {
            None => {
                failures.first = Some(task.clone());
                failures.since = Timestamp::now();
            }
            Some(first) => failures.are_of_many |= first != task,
        }
        failures.kind = kind;
        message.clone_into(&mut failures.message);
    }

    /// What the server is told.
    pub(crate) fn trouble(&self) -> Option<NodeTrouble> {
        let failures = self.locked();
        failures.is_trouble().then(|| NodeTrouble {
            kind: failures.kind,
            message: format!("{} in a row; the last: {}", failures.in_a_row, failures.message),
            since: format!("{:.0}", failures.since),
            waiting: 0,
        })
    }

    /// Whether a session that failed so goes back to the queue: the machine is known to be
    /// broken, and its agent has done nothing yet. That the report is of all there was, the
    /// caller knows: one that was put together from what is left may have missed some of it.
    pub(crate) fn gives_back(&self, report: &SessionReport) -> bool {
        let is_before_run = report.calls == 0 && report.times.run_seconds == 0.0;
        let is_machines = matches!(
            report.outcome,
            Outcome::Failed {
                side: Side::Sandbox | Side::Polar,
                class: ErrorClass::Unavailable | ErrorClass::Internal,
                ..
            }
        );
        is_before_run && is_machines && self.locked().is_trouble()
    }

    fn locked(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    fn is_trouble(&self) -> bool {
        self.in_a_row >= TROUBLE && self.are_of_many
    }
}

/// Where a task asks for what cannot be, that is no machine's fault, wherever it shows.
pub(crate) fn sign(outcome: &Outcome) -> Sign<'_> {
    match outcome {
        Outcome::Cancelled | Outcome::Failed { class: ErrorClass::Invalid, .. } => Sign::Nothing,
        Outcome::Failed { side: Side::Engine, message, .. } => {
            Sign::Suspicious(TroubleKind::Engine, message)
        }
        Outcome::Failed { side: Side::Sandbox | Side::Polar, message, .. } => {
            Sign::Suspicious(TroubleKind::Sandbox, message)
        }
        Outcome::Failed { side: Side::Harness | Side::Grader, .. }
        | Outcome::Completed
        | Outcome::TimedOut => Sign::Well,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn one_task_that_always_fails_is_no_trouble_of_the_machine() {
        let brake = Brake::new();
        let (one, other): (TaskId, TaskId) = ("a".parse().unwrap(), "b".parse().unwrap());
        for _ in 0..9 {
            brake.fail(&one, TroubleKind::Sandbox, "no");
        }
        assert_eq!(brake.trouble(), None);
        assert_eq!((brake.room(false, 5), brake.room(true, 5)), (1, 0));
        brake.fail(&other, TroubleKind::Disk, "full");
        let trouble = brake.trouble().unwrap();
        assert_eq!(trouble.kind, TroubleKind::Disk);
        assert!(trouble.to_string().contains("10 in a row; the last: full"), "{trouble}");
        brake.release();
        assert_eq!((brake.trouble(), brake.room(true, 5)), (None, 5));
        brake.fail(&one, TroubleKind::Sandbox, "no");
        brake.fail(&other, TroubleKind::Sandbox, "no");
        assert_eq!(brake.trouble(), None, "two may be chance");
    }
    #[test]
    fn only_a_session_that_went_well_is_a_sign_of_a_sound_machine() {
        let failed = |side, class| Outcome::Failed { side, class, message: "why".to_owned() };
        for (outcome, expected) in [
            (Outcome::Completed, Sign::Well),
            (Outcome::TimedOut, Sign::Well),
            (failed(Side::Harness, ErrorClass::Internal), Sign::Well),
            (Outcome::Cancelled, Sign::Nothing),
            (failed(Side::Sandbox, ErrorClass::Invalid), Sign::Nothing),
            (failed(Side::Grader, ErrorClass::Invalid), Sign::Nothing),
            (
                failed(Side::Sandbox, ErrorClass::Unavailable),
                Sign::Suspicious(TroubleKind::Sandbox, "why"),
            ),
            (
                failed(Side::Engine, ErrorClass::Unavailable),
                Sign::Suspicious(TroubleKind::Engine, "why"),
            ),
        ] {
            assert_eq!(sign(&outcome), expected, "{outcome:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_ends_the_pause_that_somebody_is_in() {
        let brake = Arc::new(Brake::new());
        for _ in 0..20 {
            brake.fail(&"a".parse().unwrap(), TroubleKind::Sandbox, "no");
        }
        let since = tokio::time::Instant::now();
        brake.paused().await;
        assert!(since.elapsed() >= LONGEST_PAUSE / 2);
        let (since, waits) = (tokio::time::Instant::now(), brake.clone());
        let pause = tokio::spawn(async move { waits.paused().await });
        tokio::task::yield_now().await;
        brake.release();
        pause.await.unwrap();
        assert_eq!(since.elapsed(), Duration::ZERO);
    }
}
