//! What the node counts for Prometheus: its own sessions and calls.
//!
//! Counters begin with the process. The control listener tells them, to whoever has its token.

use crate::HeldSession;
use polar_gateway::Gateway;
use polar_http::metrics::{Kind, Page};
use polar_types::{
    EndReason, EngineState, EngineStatus, NodeTrouble, SessionReport, Slots, Stage, TroubleKind,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// The counters of sessions. Shared by all that end them.
#[derive(Default)]
pub(crate) struct Ends(Mutex<BTreeMap<EndReason, u64>>);

impl Ends {
    pub(crate) fn note(&self, report: &SessionReport) {
        let reason = report.reason.unwrap_or_else(|| EndReason::of(&report.outcome, false));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }
}

/// Everything that is told.
pub(crate) struct Metrics {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) ends: Arc<Ends>,
    pub(crate) held: watch::Receiver<Vec<HeldSession>>,
    pub(crate) troubles: watch::Receiver<Vec<NodeTrouble>>,
    pub(crate) slots: Slots,
}

impl Metrics {
    pub(crate) fn page(&self) -> Page {
        let mut page = Page::default();
        self.write_sessions(&mut page);
        self.write_calls(&mut page);
        page
    }

    fn write_sessions(&self, page: &mut Page) {
        let ends = self.ends.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let help = "Attempts that have ended here, by reason.";
        let mut attempts = page.metric(Kind::Counter, "polar_attempts_total", help);
        for reason in EndReason::ALL {
            let number = ends.get(&reason).copied().unwrap_or(0);
            attempts.value(&[("reason", reason.as_str())], number as f64);
        }
        let of = self.slots;
        page.metric(Kind::Gauge, "polar_slots", "Places, by stage.")
            .value(&[("stage", "prepare")], f64::from(of.prepare))
            .value(&[("stage", "ready")], f64::from(of.ready))
            .value(&[("stage", "run")], f64::from(of.run))
            .value(&[("stage", "grade")], f64::from(of.grade));
        let held = self.held.borrow().clone();
        let in_stage = |stage| held.iter().filter(|session| session.stage == stage).count() as f64;
        page.metric(Kind::Gauge, "polar_sessions", "Sessions held, by stage.")
            .value(&[("stage", "prepare")], in_stage(Stage::Prepare))
            .value(&[("stage", "ready")], in_stage(Stage::Ready))
            .value(&[("stage", "run")], in_stage(Stage::Run))
            .value(&[("stage", "grade")], in_stage(Stage::Grade))
            .value(&[("stage", "deliver")], in_stage(Stage::Deliver));
        let for_engine = held.iter().filter(|session| session.waits_for_engine).count();
        page.metric(Kind::Gauge, "polar_sessions_waiting", "Sessions that wait, by what for.")
            .value(&[("for", "engine")], for_engine as f64)
            .value(&[("for", "run_slot")], in_stage(Stage::Ready));
        let troubles = self.troubles.borrow().clone();
        let help = "Whether something keeps the node from beginning sessions, by kind.";
        let mut trouble = page.metric(Kind::Gauge, "polar_trouble", help);
        for kind in TroubleKind::ALL {
            let is_there = troubles.iter().any(|trouble| trouble.kind == kind);
            trouble.value(&[("kind", kind.as_str())], f64::from(u8::from(is_there)));
        }
    }

    fn write_calls(&self, page: &mut Page) {
        let calls = self.gateway.call_counts();
        page.metric(Kind::Counter, "polar_calls_total", "Model calls, by how they ended.")
            .value(&[("end", "answered")], calls.answered as f64)
            .value(&[("end", "failed")], calls.failed as f64)
            .value(&[("end", "broken_off")], calls.broken_off as f64);
        page.histogram("polar_call_seconds", "Seconds that calls took.")
            .values(&[], &calls.seconds);
        page.metric(Kind::Counter, "polar_tokens_total", "Tokens of calls.")
            .value(&[("kind", "prompt")], calls.prompt_tokens as f64)
            .value(&[("kind", "sampled")], calls.sampled_tokens as f64);
        self.write_engines(page);
    }

    fn write_engines(&self, page: &mut Page) {
        let engines = self.gateway.engines();
        let help = "Calls that engines failed, also where they were held, or went elsewhere, and \
                    went well later.";
        page.metric(Kind::Counter, "polar_engine_errors_total", help)
            .value(&[], engines.errors() as f64);
        let is_there = engines.outage().is_none();
        page.metric(Kind::Gauge, "polar_engine_up", "Whether an engine takes calls.")
            .value(&[], f64::from(u8::from(is_there)));
        let each = engines.status();
        let mut of_each = |kind, name, help, number: &dyn Fn(&EngineStatus) -> f64| {
            let mut metric = page.metric(kind, name, help);
            for engine in &each {
                metric.value(&[("engine", engine.engine.as_str())], number(engine));
            }
        };
        let (gauge, counter) = (Kind::Gauge, Kind::Counter);
        let help = "Whether an engine of several takes calls, by its URL.";
        of_each(gauge, "polar_engine_ready", help, &|engine| {
            f64::from(u8::from(engine.state == EngineState::Ready))
        });
        let help = "Its weight beside the others.";
        of_each(gauge, "polar_engine_weight", help, &|engine| engine.weight);
        let help = "Sessions whose calls go there.";
        of_each(gauge, "polar_engine_sessions", help, &|engine| f64::from(engine.sessions));
        let help = "Calls under way there.";
        of_each(gauge, "polar_engine_calls", help, &|engine| f64::from(engine.in_flight));
        let help = "Calls that it has begun to answer.";
        of_each(counter, "polar_engine_calls_total", help, &|engine| engine.calls as f64);
        let help = "Calls that it failed.";
        of_each(counter, "polar_engine_failures_total", help, &|engine| engine.errors as f64);
        let help = "Sessions that went from it to another one.";
        of_each(counter, "polar_engine_moves_total", help, &|engine| engine.moved_away as f64);
    }
}
