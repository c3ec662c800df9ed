//! What the simulator has been doing, for tests and metrics.

use crate::Fault;
use serde::Serialize;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// Counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Generations asked for, refused ones included.
    pub requests: u64,
    /// Generations under way.
    pub running: u64,
    /// Generations that ended by themselves.
    pub finished: u64,
    /// Generations given up by the client.
    pub cancelled: u64,
    /// Requests that met a fault.
    pub faults: u64,
    /// Tokens sampled.
    pub tokens: u64,
}

/// One request, as it came.
#[derive(Debug, Clone, Serialize)]
pub struct SeenRequest {
    /// Path of the URL.
    pub path: String,
    /// Headers; the last of those with the same name.
    pub headers: serde_json::Map<String, Value>,
    /// JSON body.
    pub body: Value,
}

/// Which rule of the policy answered a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// The id the client gave its request, or one made for it.
    pub request_id: String,
    /// Name of the rule; none where the policy's default answered.
    pub rule: Option<String>,
    /// The role the rule names.
    pub role: Option<String>,
    /// The fault that the answer met.
    pub fault: Option<Fault>,
}

/// Answers kept; more than any session asks for.
const MOST_ANSWERS: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Activity {
    requests: AtomicU64,
    running: AtomicU64,
    finished: AtomicU64,
    cancelled: AtomicU64,
    faults: AtomicU64,
    tokens: AtomicU64,
    seen: Mutex<VecDeque<SeenRequest>>,
    kept: usize,
    answers: Mutex<VecDeque<Answer>>,
    ended: Notify,
}

impl Activity {
    pub(crate) fn keeping(kept: usize) -> Self {
        Self { kept, ..Self::default() }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            requests: self.requests.load(Relaxed),
            running: self.running.load(Relaxed),
            finished: self.finished.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            faults: self.faults.load(Relaxed),
            tokens: self.tokens.load(Relaxed),
        }
    }

    pub(crate) fn requests(&self) -> Vec<SeenRequest> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Counts a request and gives it a number.
    pub(crate) fn arrived(&self) -> u64 {
        self.requests.fetch_add(1, Relaxed)
    }

    /// Whether requests are kept at all; building one costs time.
    pub(crate) fn keeps_requests(&self) -> bool {
        self.kept > 0
    }

    pub(crate) fn keep(&self, request: SeenRequest) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= self.kept {
            seen.pop_front();
        }
        seen.push_back(request);
    }

    pub(crate) fn answered(&self, answer: Answer) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= MOST_ANSWERS {
            answers.pop_front();
        }
        answers.push_back(answer);
    }

    pub(crate) fn answers(&self) -> Vec<Answer> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    pub(crate) fn fault(&self) {
        self.faults.fetch_add(1, Relaxed);
    }

    pub(crate) fn sampled(&self, tokens: usize) {
        self.tokens.fetch_add(tokens as u64, Relaxed);
    }

    /// Watches over a generation until the guard is dropped.
    pub(crate) fn queue(self: &Arc<Self>) -> Running {
        Running { activity: Arc::clone(self), started: false, finished: false }
    }

    /// Resolves when nothing runs.
    pub(crate) async fn idle(&self) {
        loop {
            let ended = self.ended.notified();
            if self.running.load(Relaxed) == 0 {
                return;
            }
            ended.await;
        }
    }
}

/// A generation that waits or runs. Dropped unfinished it counts as cancelled.
#[derive(Debug)]
pub(crate) struct Running {
    activity: Arc<Activity>,
    started: bool,
    finished: bool,
}

impl Running {
    pub(crate) fn start(&mut self) {
        self.started = true;
        self.activity.running.fetch_add(1, Relaxed);
    }

    pub(crate) fn finish(&mut self) {
        self.finished = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let end = if self.finished { &self.activity.finished } else { &self.activity.cancelled };
        end.fetch_add(1, Relaxed);
        if self.started {
            self.activity.running.fetch_sub(1, Relaxed);
        }
        self.activity.ended.notify_waiters();
    }
}
