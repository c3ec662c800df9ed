//! What passes between an attempt and its owner: orders in, progress out.

use polar_gateway::SessionHandle;
use polar_types::Stage;
use std::future::Future;
use tokio::sync::watch;

/// What the owner of an attempt wants of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Control {
    /// Go on.
    #[default]
    Go,
    /// End it and report what there is as cancelled.
    Cancel,
    /// End it and free everything; it has no outcome of its own: somebody else may hold it
    /// now.
    Abandon,
}

/// Where an attempt stands.
#[derive(Clone, Default)]
pub struct Progress {
    /// Its stage; absent before it started.
    pub stage: Option<Stage>,
    /// What it waits for, in words.
    waiting_for: String,
    /// Whether it cannot begin before its engine is there.
    needs_engine: bool,
    /// Its proxy session, while the harness runs.
    proxy: Option<SessionHandle>,
}

impl Progress {
    /// Progress in a stage of which only words are known.
    pub fn in_stage(stage: Stage, waiting_for: impl Into<String>) -> Self {
        let waiting_for = waiting_for.into();
        Self { stage: Some(stage), waiting_for, needs_engine: false, proxy: None }
    }

    pub(crate) fn without_engine(stage: Stage, waiting_for: &str) -> Self {
        Self { needs_engine: true, ..Self::in_stage(stage, waiting_for) }
    }

    pub(crate) fn running(harness: &str, proxy: SessionHandle) -> Self {
        Self { proxy: Some(proxy), ..Self::in_stage(Stage::Run, harness) }
    }

    /// Whether it waits for an engine that is away.
    pub fn waits_for_engine(&self) -> bool {
        self.needs_engine || self.proxy.as_ref().is_some_and(|proxy| proxy.activity().held > 0)
    }

    /// What it waits for now, in words.
    pub fn waiting_for(&self) -> String {
        match &self.proxy {
            Some(proxy) => format!("{}: {}", self.waiting_for, describe(proxy)),
            None => self.waiting_for.clone(),
        }
    }
}

fn describe(proxy: &SessionHandle) -> String {
    let activity = proxy.activity();
    if let Some(outage) = proxy.outage().filter(|_| activity.held > 0) {
        return format!("{outage}; calls that wait: {}", activity.held);
    }
    format!(
        "{} calls, {} running, {} tokens sampled",
        activity.calls, activity.running, activity.sampled_tokens
    )
}

/// Does `work` unless an order to stop comes first; then `work` is dropped.
pub(crate) async fn unless_stopped<T>(
    control: &watch::Receiver<Control>,
    work: impl Future<Output = T>,
) -> Result<T, Control> {
    tokio::select! {
        biased;
        order = stopped(control.clone()) => Err(order),
        done = work => Ok(done),
    }
}

/// Waits for an order to stop. An owner that is gone gives none.
pub(crate) async fn stopped(mut control: watch::Receiver<Control>) -> Control {
    let order = control.wait_for(|order| *order != Control::Go).await.ok().map(|order| *order);
    match order {
        Some(order) => order,
        None => std::future::pending().await,
    }
}
