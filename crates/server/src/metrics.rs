//! What the server counts for Prometheus.
//!
//! Counters begin with the process: ends of sessions are read from the event log as far as it
//! has grown since, the rest is noted as results come in. Gauges are looked up when they are
//! asked for. Labels are kinds and nodes.

use crate::app::App;
use crate::error::ApiError;
use polar_http::metrics::{Histogram, Kind, Page, SECONDS};
use polar_store::EventQuery;
use polar_types::{
    EndReason, EventKind, NodeSeen, SessionReport, SessionStatus, TokenCounts, TroubleKind,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Events read at a time.
const PAGE: u32 = 1000;

/// The counters. Shared by all requests.
pub(crate) struct Metrics(Mutex<Counters>);

struct Counters {
    /// Position in the event log up to which is counted.
    cursor: u64,
    ended: BTreeMap<String, u64>,
    requeued: u64,
    /// Accepted reports, by reason. One that is followed by another attempt is no end.
    attempts: BTreeMap<&'static str, u64>,
    stages: [(&'static str, Histogram); 4],
    calls: u64,
    tokens: TokenCounts,
}

impl Metrics {
    /// Counts what comes after this position of the event log.
    pub(crate) fn since(cursor: u64) -> Self {
        let stage = |name| (name, Histogram::new(SECONDS));
        Self(Mutex::new(Counters {
            cursor,
            ended: BTreeMap::new(),
            requeued: 0,
            attempts: BTreeMap::new(),
            stages: [stage("prepare"), stage("ready"), stage("run"), stage("grade")],
            calls: 0,
            tokens: TokenCounts::default(),
        }))
    }

    /// Notes a report that was accepted.
    pub(crate) fn note(&self, report: &SessionReport) {
        let mut counters = self.locked();
        let reason = report.reason.unwrap_or_else(|| EndReason::of(&report.outcome, false));
        *counters.attempts.entry(reason.as_str()).or_default() += 1;
        counters.calls += u64::from(report.calls);
        counters.tokens.add(&report.tokens);
        let times = &report.times;
        let seconds =
            [times.prepare_seconds, times.ready_seconds, times.run_seconds, times.grade_seconds];
        for ((_, histogram), seconds) in counters.stages.iter_mut().zip(seconds) {
            // A stage that was not reached took no time.
            if seconds > 0.0 {
                histogram.observe(seconds);
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, Counters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the events that were stored since. Two requests at a time may read the same ones;
    /// they are counted by the first.
    async fn catch_up(&self, app: &App) -> Result<(), ApiError> {
        loop {
            let after = self.locked().cursor;
            let kinds = vec![EventKind::SessionEnded, EventKind::SessionStatus];
            let query = EventQuery { after, limit: PAGE, kinds, task_id: None };
            let page = app.store.events(&query).await?;
            let mut counters = self.locked();
            if counters.cursor != after {
                continue;
            }
            counters.cursor = page.cursor;
            for event in &page.events {
                match event.kind {
                    EventKind::SessionEnded => {
                        let reason = event.data["reason"].as_str().unwrap_or("unknown");
                        *counters.ended.entry(reason.to_owned()).or_default() += 1;
                    }
                    _ if event.data["status"] == "queued" => counters.requeued += 1,
                    _ => {}
                }
            }
            if page.events.len() < PAGE as usize {
                return Ok(());
            }
        }
    }

    /// Everything, as it stands now.
    pub(crate) async fn page(&self, app: &App) -> Result<Page, ApiError> {
        self.catch_up(app).await?;
        let live = app.store.live().await?;
        let nodes = app.store.nodes(app.now()).await?;
        let mut page = Page::default();
        self.locked().write(&mut page);
        let count = |status| live.by_status.get(&status).copied().unwrap_or(0);
        let mut sessions =
            page.metric(Kind::Gauge, "polar_sessions", "Sessions that have not ended, by status.");
        for status in LIVE {
            sessions.value(&[("status", status.as_str())], count(status) as f64);
        }
        let for_engine: u32 = nodes.iter().filter(|node| node.alive).map(waiting_for_engine).sum();
        page.metric(Kind::Gauge, "polar_sessions_waiting", "Sessions that wait, by what for.")
            .value(&[("for", "node")], (count(SessionStatus::Queued) - live.paused) as f64)
            .value(&[("for", "pause_before_retry")], live.paused as f64)
            .value(&[("for", "run_slot")], count(SessionStatus::Ready) as f64)
            .value(&[("for", "engine")], f64::from(for_engine));
        write_nodes(&mut page, &nodes);
        Ok(page)
    }
}

const LIVE: [SessionStatus; 6] = [
    SessionStatus::Queued,
    SessionStatus::Preparing,
    SessionStatus::Ready,
    SessionStatus::Running,
    SessionStatus::Grading,
    SessionStatus::Delivering,
];

impl Counters {
    fn write(&self, page: &mut Page) {
        let count = |counts: &BTreeMap<_, u64>, reason| counts.get(reason).copied().unwrap_or(0);
        let help = "Sessions that have ended since the server started, by reason.";
        let mut ended = page.metric(Kind::Counter, "polar_sessions_ended_total", help);
        for reason in EndReason::ALL.map(EndReason::as_str) {
            let number = self.ended.get(reason).copied().unwrap_or(0);
            ended.value(&[("reason", reason)], number as f64);
        }
        let help = "Attempts that nodes reported, by reason; some were followed by another.";
        let mut attempts = page.metric(Kind::Counter, "polar_attempts_total", help);
        for reason in EndReason::ALL.map(EndReason::as_str) {
            attempts.value(&[("reason", reason)], count(&self.attempts, reason) as f64);
        }
        let help = "Sessions that were queued again after an attempt.";
        page.metric(Kind::Counter, "polar_sessions_requeued_total", help)
            .value(&[], self.requeued as f64);
        let help = "Seconds that attempts spent in each stage.";
        let mut stages = page.histogram("polar_stage_seconds", help);
        for (stage, seconds) in &self.stages {
            stages.values(&[("stage", stage)], seconds);
        }
        page.metric(Kind::Counter, "polar_calls_total", "Model calls of reported attempts.")
            .value(&[], self.calls as f64);
        let untrained = self.tokens.untrained.values().sum::<u64>();
        page.metric(Kind::Counter, "polar_tokens_total", "Tokens of reported attempts.")
            .value(&[("kind", "sampled")], self.tokens.sampled as f64)
            .value(&[("kind", "trained")], self.tokens.trained as f64)
            .value(&[("kind", "untrained")], untrained as f64)
            .value(&[("kind", "context")], self.tokens.context as f64);
    }
}

fn waiting_for_engine(node: &NodeSeen) -> u32 {
    let troubles = node.node.troubles.iter();
    troubles.filter(|trouble| trouble.kind == TroubleKind::Engine).map(|t| t.waiting).sum()
}

fn write_nodes(page: &mut Page, nodes: &[NodeSeen]) {
    let mut up = page.metric(Kind::Gauge, "polar_node_up", "Whether a node was heard of lately.");
    for seen in nodes {
        up.value(&[("node", seen.node.node_id.as_str())], f64::from(u8::from(seen.alive)));
    }
    let help = "Whether something keeps a node from beginning sessions, by kind.";
    let mut troubles = page.metric(Kind::Gauge, "polar_node_trouble", help);
    for seen in nodes.iter().filter(|seen| seen.alive) {
        for kind in TroubleKind::ALL {
            let is_there = seen.node.troubles.iter().any(|trouble| trouble.kind == kind);
            let labels = [("node", seen.node.node_id.as_str()), ("kind", kind.as_str())];
            troubles.value(&labels, f64::from(u8::from(is_there)));
        }
    }
    let mut slots = page.metric(Kind::Gauge, "polar_node_slots", "Places of a node, by stage.");
    for seen in nodes.iter().filter(|seen| seen.alive) {
        let (node, of) = (seen.node.node_id.as_str(), seen.node.slots);
        let stages =
            [("prepare", of.prepare), ("ready", of.ready), ("run", of.run), ("grade", of.grade)];
        for (stage, places) in stages {
            slots.value(&[("node", node), ("stage", stage)], f64::from(places));
        }
    }
    let mut held = page.metric(Kind::Gauge, "polar_node_sessions", "Sessions a node holds.");
    for seen in nodes.iter().filter(|seen| seen.alive) {
        for status in LIVE.into_iter().skip(1).map(SessionStatus::as_str) {
            let number = seen.node.held.get(status).copied().unwrap_or(0);
            let labels = [("node", seen.node.node_id.as_str()), ("status", status)];
            held.value(&labels, f64::from(number));
        }
    }
    let help = "Calls that a node's engine failed since the node started.";
    let mut errors = page.metric(Kind::Counter, "polar_node_engine_errors_total", help);
    for seen in nodes.iter().filter(|seen| seen.alive) {
        errors.value(&[("node", seen.node.node_id.as_str())], seen.node.engine_errors as f64);
    }
}
