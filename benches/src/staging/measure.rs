//! What is measured of an arm, and the table.

use crate::node::Run;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    /// Of the time that all run slots had, how much their agents waited for the engine.
    pub(crate) engine_busy: f64,
    pub(crate) sessions_per_hour: f64,
    /// From the end of an agent to the start of the next one.
    pub(crate) gap_p50: f64,
    pub(crate) gap_p99: f64,
    /// How long a session waits for its grader's sandbox.
    pub(crate) grader_p50: f64,
    pub(crate) grader_p99: f64,
}

impl Measured {
    pub(crate) fn of(run: &Run, slots: u32) -> Self {
        let calls: Duration = run.sessions.iter().map(|session| session.calls).sum();
        let mut gaps = gaps(run, slots as usize);
        let graders =
            run.sessions.iter().filter_map(|session| session.report.times.grader.as_ref());
        let mut graders: Vec<f64> = graders.map(|grader| grader.waited_seconds).collect();
        Self {
            engine_busy: calls.as_secs_f64() / (run.seconds * f64::from(slots)),
            sessions_per_hour: run.sessions.len() as f64 / run.seconds * 3600.0,
            gap_p50: quantile(&mut gaps, 0.5),
            gap_p99: quantile(&mut gaps, 0.99),
            grader_p50: quantile(&mut graders, 0.5),
            grader_p99: quantile(&mut graders, 0.99),
        }
    }
}

/// Every agent that ends leaves a slot; agents that start take them in that order.
fn gaps(run: &Run, slots: usize) -> Vec<f64> {
    let sorted = |time: fn(&crate::node::Session) -> Instant| {
        let mut times: Vec<Instant> = run.sessions.iter().map(time).collect();
        times.sort_unstable();
        times
    };
    let starts = sorted(|session| session.agent_started);
    let ends = sorted(|session| session.agent_ended);
    let next = starts.iter().skip(slots);
    next.zip(&ends)
        .map(|(start, end)| start.saturating_duration_since(*end).as_secs_f64())
        .collect()
}

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (values.len() as f64 * share).ceil() as usize;
    values.get(place.max(1) - 1).copied().unwrap_or(f64::NAN)
}

/// Medians over the repeats; sessions per hour also as a multiple of the first arm's.
pub(crate) fn table(arms: &[(&str, Vec<Measured>)]) -> String {
    let mut text = String::from(
        "| staging | engine busy | sessions/h (×) | slot free to next agent, p50 s | p99 s | \
         wait for the grader's sandbox, p50 s | p99 s |\n|---|---|---|---|---|---|---|\n",
    );
    let median = |measured: &[Measured], of: fn(&Measured) -> f64| {
        let mut values: Vec<f64> = measured.iter().map(of).collect();
        let count = values.len() as f64;
        let upper = quantile(&mut values, 0.5 + 0.5 / count);
        (quantile(&mut values, 0.5) + upper) / 2.0
    };
    let first = arms.first().map(|(_, measured)| median(measured, |m| m.sessions_per_hour));
    for (name, measured) in arms {
        let hourly = median(measured, |m| m.sessions_per_hour);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {name} | {:.0}% | {hourly:.0} ({:.2}) | {:.3} | {:.3} | {:.3} | {:.3} |",
            median(measured, |m| m.engine_busy) * 100.0,
            hourly / first.unwrap_or(f64::NAN),
            median(measured, |m| m.gap_p50),
            median(measured, |m| m.gap_p99),
            median(measured, |m| m.grader_p50),
            median(measured, |m| m.grader_p99),
        );
    }
    text
}
