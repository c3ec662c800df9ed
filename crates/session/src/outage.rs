//! Outages of the engine, as a session meets them: waiting for it before the harness starts, and
//! what the records of its calls say afterwards.

use crate::attempt::Attempt;
use crate::failure::Stop;
use crate::harness::OutageSeen;
use polar_gateway::ENGINE_OUTAGE;
use polar_record::RecordedCall;
use polar_types::Stage;
use std::time::Duration;

impl Attempt {
    /// Waits until the engine is there. The harness's budget has not begun, and the server counts
    /// the stage as waiting.
    pub(crate) async fn engine_is_there(&self) -> Result<(), Stop> {
        let engines = self.runner.config.gateway.engines();
        while let Some(outage) = engines.outage() {
            self.waits_for_engine(Stage::Ready, &format!("its engine: {outage}"));
            self.unless_stopped(engines.present()).await?;
        }
        Ok(())
    }
}

/// What the calls of a session lost to outages; nothing where none had to wait.
pub(crate) fn outage_of(calls: &[RecordedCall]) -> Option<OutageSeen> {
    let waits: Vec<Wait> = calls.iter().filter_map(Wait::of).collect();
    let last = waits.last()?;
    // The last call in the journal may be an earlier one: calls are kept in the order they end.
    let ended_well = calls.last().is_some_and(|call| Wait::of(call).is_none_or(|w| w.is_over));
    Some(OutageSeen {
        reason: last.reason.clone(),
        waited: Duration::from_millis(covered(&waits)),
        at_end: !ended_well,
    })
}

/// A call's wait for the engine.
struct Wait {
    since_ms: i64,
    until_ms: i64,
    is_over: bool,
    reason: String,
}

impl Wait {
    fn of(call: &RecordedCall) -> Option<Self> {
        let noted = call.meta.extra.get(ENGINE_OUTAGE)?;
        let since_ms = noted["since_ms"].as_i64()?;
        let is_over = noted["is_over"].as_bool()?;
        // Of a wait that was broken off nobody has noted the length.
        let ended = call.meta.started_at_ms.saturating_add_unsigned(call.meta.duration_ms);
        let waited = since_ms.saturating_add_unsigned(noted["waited_ms"].as_u64()?);
        Some(Self {
            since_ms,
            until_ms: if is_over { waited } else { waited.max(ended) },
            is_over,
            reason: noted["reason"].as_str().unwrap_or_default().to_owned(),
        })
    }
}

/// Milliseconds in which a call or more waited.
fn covered(waits: &[Wait]) -> u64 {
    let mut spans: Vec<_> = waits.iter().map(|wait| (wait.since_ms, wait.until_ms)).collect();
    spans.sort_unstable();
    let (mut covered, mut until) = (0, i64::MIN);
    for (since, end) in spans {
        covered += end.saturating_sub(since.max(until)).max(0);
        until = until.max(end);
    }
    covered.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::{Wait, covered};

    #[test]
    fn calls_that_wait_at_the_same_time_lose_it_once() {
        let wait = |(since_ms, until_ms)| Wait {
            since_ms,
            until_ms,
            is_over: true,
            reason: String::new(),
        };
        let covered =
            |spans: &[(i64, i64)]| covered(&spans.iter().copied().map(wait).collect::<Vec<_>>());
        assert_eq!(covered(&[]), 0);
        assert_eq!(covered(&[(10, 30), (20, 40), (12, 13)]), 30);
        assert_eq!(covered(&[(50, 60), (10, 20)]), 20);
        assert_eq!(covered(&[(10, 5)]), 0);
    }
}
